{{/* What KubeRay does not roll out: a change of a RayCluster replaces no running pod (upgradeStrategy None). It applies the
number of pods, idleTimeoutSeconds and labels of the object; everything else of a running pod is a fact below. */}}

{{/* Facts whose change is refused: with two of them in one cluster, pods, the head or the replicas in them do not work. A change
of any other fact is named in the notes. */}}
{{- define "flyserve.refusedFacts" -}}
^(image|Ray's version|resources[.].+|rayStartParams[.](num-cpus|num-gpus|resources)|gcsFaultToleranceOptions|authOptions|enableInTreeAutoscaling|(volume|mount) of models.*|env[.]HF_(HOME|HUB_OFFLINE))$
{{- end -}}

{{/* Facts of running pods that the values change, as a JSON list: cluster, group, fact, was, is.
Arguments: root, live (a list of RayClusters). */}}
{{- define "flyserve.changedFacts" -}}
{{- $changed := list -}}
{{- $live := dict -}}
{{- range .live -}}{{- $_ := set $live .metadata.name .spec -}}{{- end -}}
{{- range $cluster := include "flyserve.clusters" .root | fromJsonArray -}}
{{- if hasKey $live $cluster.name -}}
{{- $own := dict -}}
{{- include "flyserve.fillRoot" (dict "root" $.root "cluster" $cluster "own" $own) -}}
{{- $wanted := include "flyserve.rayCluster" (dict "root" $own "cluster" $cluster) | fromYaml -}}
{{- $before := include "flyserve.podFacts" (get $live $cluster.name) | fromJson -}}
{{- range $group, $after := include "flyserve.podFacts" $wanted.spec | fromJson -}}
{{- $old := get $before $group | default dict -}}
{{- range $fact := concat (keys $after) (keys $old) | uniq | sortAlpha -}}
{{- $was := dig $fact "none" $old -}}
{{- $is := dig $fact "none" $after -}}
{{- if and $old (ne $was $is) -}}
{{- $changed = append $changed (dict "cluster" $cluster.name "group" $group "fact" $fact "was" $was "is" $is) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $changed -}}
{{- end -}}

{{/* Everything that a pod of each group is made from, as JSON: {group: {fact: text}}. Argument: the spec of a RayCluster. */}}
{{- define "flyserve.podFacts" -}}
{{- $groups := dict "head" .headGroupSpec -}}
{{- range .workerGroupSpecs -}}{{- $_ := set $groups .groupName . -}}{{- end -}}
{{- $found := dict -}}
{{- range $name, $group := $groups -}}
{{- $pod := $group.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $facts := dict "Ray's version" $.rayVersion -}}
{{- if eq $name "head" -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "of" (pick $ "gcsFaultToleranceOptions" "authOptions" "enableInTreeAutoscaling")) -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "prefix" "autoscalerOptions." "of" (omit ($.autoscalerOptions | default dict) "idleTimeoutSeconds")) -}}
{{- end -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "prefix" "rayStartParams." "of" $group.rayStartParams) -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "of" ($group.template.metadata | default dict)) -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "of" (omit $pod "containers" "volumes")) -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "of" (omit $container "name" "env" "resources" "volumeMounts")) -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "of" (dict "containers" (rest $pod.containers))) -}}
{{- range $kind, $amounts := $container.resources | default dict -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "prefix" (printf "resources.%s." $kind) "of" $amounts) -}}
{{- end -}}
{{- range $container.env -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "prefix" "env." "of" (dict .name (.value | default (.valueFrom | default "")))) -}}
{{- end -}}
{{- range $pod.volumes -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "prefix" "volume of " "of" (dict .name (omit . "name"))) -}}
{{- end -}}
{{- range $container.volumeMounts -}}
{{- include "flyserve.addFacts" (dict "facts" $facts "prefix" "mount of " "of" (dict (printf "%s at %s" .name .mountPath) .)) -}}
{{- end -}}
{{- $_ := set $found $name $facts -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Add the entries of an object to facts, as texts; an empty one is none. NOTE: the API server adds the protocol of a port.
Arguments: facts, prefix, of. */}}
{{- define "flyserve.addFacts" -}}
{{- range $key, $value := .of -}}
{{- if $value -}}
{{- $_ := set $.facts (print ($.prefix | default "") $key) (kindIs "string" $value | ternary $value (toJson $value) | replace ",\"protocol\":\"TCP\"" "") -}}
{{- end -}}
{{- end -}}
{{- end -}}
