{{/* Checks against what runs. `lookup` finds nothing in `helm template` and in GitOps tools, which check nothing here. */}}

{{/* The running Ray clusters of this release, as a JSON list. */}}
{{- define "flyserve.liveClusters" -}}
{{- $live := list -}}
{{- range (lookup "ray.io/v1" "RayCluster" .Release.Namespace "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $isOurs := and (eq (get $labels "app.kubernetes.io/instance") $.Release.Name) (hasPrefix (printf "%s-" $.Chart.Name) (get $labels "helm.sh/chart")) -}}
{{- if and $isOurs (not .metadata.deletionTimestamp) -}}{{- $live = append $live . -}}{{- end -}}
{{- end -}}
{{- toJson $live -}}
{{- end -}}

{{/* Arguments: root, live (a list of RayCluster objects). */}}
{{- define "flyserve.checkRunning" -}}
{{- include "flyserve.checkRenamed" . -}}
{{- include "flyserve.checkClaim" .root -}}
{{- $live := dict -}}
{{- range .live -}}{{- $_ := set $live .metadata.name . -}}{{- end -}}
{{- $active := include "flyserve.clusters" .root | fromJsonArray | first -}}
{{- if and $live (not (hasKey $live $active.name)) -}}
{{- fail (printf "ray.active: is %s, but RayCluster %s does not run, and %s does: a second cluster starts as ray.standby first (flyserve upgrade does all steps); or set ray.active to the one that runs" $active.color $active.name (keys $live | sortAlpha | join " and ")) -}}
{{- end -}}
{{- range .live -}}{{- include "flyserve.checkEncryption" (dict "root" $.root "live" .) -}}{{- end -}}
{{- range include "flyserve.changedFacts" . | fromJsonArray -}}
{{- if regexMatch (include "flyserve.refusedFacts" $) .fact -}}
{{- fail (printf "RayCluster %s: %s of its running pods (%s) is %s, and only pods that start later would have %s, so that both would mix: keep it, or move to a second cluster (flyserve upgrade, or ray.standby by hand), or delete this one first: kubectl -n %s delete raycluster %s" .cluster .fact .group .was .is $.root.Release.Namespace .cluster) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Other names are other objects: helm would remove the running cluster at once. Arguments: root, live. */}}
{{- define "flyserve.checkRenamed" -}}
{{- $wanted := include "flyserve.fullname" .root -}}
{{- range .live -}}
{{- $is := get .metadata.labels "flyserve.io/deployment" -}}
{{- if ne $is $wanted -}}
{{- fail (printf "fullnameOverride: the objects of this release are called %s, and would be called %s, which removes the running Ray cluster at once: set fullnameOverride to %s; for another name install a second release and move the clients" $is $wanted $is) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Processes with TLS cannot call those without it, and both clusters have the same. Arguments: root, live (a RayCluster). */}}
{{- define "flyserve.checkEncryption" -}}
{{- $encrypts := contains "/tls/controller" (toJson .live.spec.headGroupSpec) -}}
{{- $wanted := eq (include "flyserve.hasTls" .root) "yes" -}}
{{- if ne $encrypts $wanted -}}
{{- fail (printf "security.tls: would %s encryption of RayCluster %s, whose running pods could not call the new ones: install a second release, move the clients and uninstall this one; or delete the cluster first: kubectl -n %s delete raycluster %s" (ternary "begin" "end" $wanted) .live.metadata.name .root.Release.Namespace .live.metadata.name) -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes changes nothing of a claim but its size, and that upwards alone. */}}
{{- define "flyserve.checkClaim" -}}
{{- $values := .Values.models.persistence -}}
{{- if $values.size -}}
{{- with lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "flyserve.claim" .) -}}
{{- $size := .spec.resources.requests.storage -}}
{{- $shrinks := lt (include "flyserve.quantity" $values.size | float64) (include "flyserve.quantity" $size | float64) -}}
{{- $is := dict "size" (ternary $size $values.size $shrinks) "accessMode" (first .spec.accessModes) "storageClass" (.spec.storageClassName | default "") -}}
{{- range $key, $was := $is -}}
{{- $wanted := get $values $key -}}
{{- if and $wanted (ne $wanted $was) -}}
{{- fail (printf "models.persistence.%s: is %s, but the claim %s has %s, and Kubernetes does not change it: set it to %s, or name another claim in models.existingClaim" $key $wanted (include "flyserve.claim" $) $was $was) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
