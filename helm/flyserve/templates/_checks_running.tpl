{{/* Checks against the Ray clusters that run. `lookup` finds none in `helm template` and in GitOps tools, which check nothing
here. */}}

{{/* The running Ray clusters of this release, as a JSON list. */}}
{{- define "flyserve.liveClusters" -}}
{{- $live := list -}}
{{- range (lookup "ray.io/v1" "RayCluster" .Release.Namespace "").items -}}
{{- $isOurs := eq (dig "labels" "flyserve.io/deployment" "" .metadata) (include "flyserve.fullname" $) -}}
{{- if and $isOurs (not .metadata.deletionTimestamp) -}}{{- $live = append $live . -}}{{- end -}}
{{- end -}}
{{- toJson $live -}}
{{- end -}}

{{/* Arguments: root, live (a list of RayCluster objects). */}}
{{- define "flyserve.checkRunning" -}}
{{- $live := dict -}}
{{- range .live -}}{{- $_ := set $live .metadata.name . -}}{{- end -}}
{{- $clusters := include "flyserve.clusters" .root | fromJsonArray -}}
{{- $active := first $clusters -}}
{{- if and $live (not (hasKey $live $active.name)) -}}
{{- fail (printf "ray.active: is %s, but RayCluster %s does not run, and %s does: a second cluster starts as ray.standby first (flyserve upgrade does all steps); or set ray.active to the one that runs" $active.color $active.name (keys $live | sortAlpha | join " and ")) -}}
{{- end -}}
{{- range $cluster := $clusters -}}
{{- if hasKey $live $cluster.name -}}
{{- $own := dict -}}
{{- include "flyserve.fillRoot" (dict "root" $.root "cluster" $cluster "own" $own) -}}
{{- $wanted := include "flyserve.rayCluster" (dict "root" $own "cluster" $cluster) | fromYaml -}}
{{- include "flyserve.checkUnchanged" (dict "live" (get $live $cluster.name) "wanted" $wanted "namespace" $.root.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuse what only later pods of a running cluster would get. Arguments: live, wanted (RayClusters), namespace. */}}
{{- define "flyserve.checkUnchanged" -}}
{{- $name := .live.metadata.name -}}
{{- $before := include "flyserve.podFacts" .live.spec | fromJson -}}
{{- $after := include "flyserve.podFacts" .wanted.spec | fromJson -}}
{{- range $group, $facts := $after -}}
{{- $old := get $before $group | default dict -}}
{{- range $fact := concat (keys $facts) (keys $old) | uniq | sortAlpha -}}
{{- $was := dig $fact "none" $old -}}
{{- $is := dig $fact "none" $facts -}}
{{- if and $old (ne $was $is) -}}
{{- fail (printf "RayCluster %s: %s of its running pods (%s) is %s, and only pods that start later would have %s, so that both would mix: keep it, or move to a second cluster (flyserve upgrade, or ray.standby by hand), or delete this one first: kubectl -n %s delete raycluster %s" $name $fact $group $was $is $.namespace $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Image, Ray's version and size of each group's pods, as JSON: {group: {fact: text}}. Argument: the spec of a RayCluster. */}}
{{- define "flyserve.podFacts" -}}
{{- $groups := dict "head" .headGroupSpec -}}
{{- range .workerGroupSpecs -}}{{- $_ := set $groups .groupName . -}}{{- end -}}
{{- $found := dict -}}
{{- range $name, $group := $groups -}}
{{- $container := first $group.template.spec.containers -}}
{{- $facts := dict "image" $container.image "Ray's version" $.rayVersion -}}
{{- range $kind, $amounts := $container.resources | default dict -}}
{{- range $resource, $amount := $amounts -}}{{- $_ := set $facts (printf "resources.%s.%s" $kind $resource) (toString $amount) -}}{{- end -}}
{{- end -}}
{{- range $key := list "num-cpus" "num-gpus" "resources" -}}
{{- with get $group.rayStartParams $key -}}{{- $_ := set $facts (printf "rayStartParams.%s" $key) (toString .) -}}{{- end -}}
{{- end -}}
{{- $_ := set $found $name $facts -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
