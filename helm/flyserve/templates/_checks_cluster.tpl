{{/* Checks against the cluster, before anything is installed. They read what not every account may read: the name of each template,
which helm prints if it may not, has the value that turns it off. */}}

{{/* Kubernetes admits a pod under a quota only if each container has a number for it, and all fit. Numbers are compared at the
first installation alone: later the quota counts the pods that run. */}}
{{- define "flyserve.checkQuotas (checks.quotas: false skips this)" -}}
{{- $given := dict -}}
{{- range (lookup "v1" "LimitRange" .Release.Namespace "").items -}}
{{- range .spec.limits -}}
{{- if eq .type "Container" -}}
{{- $given = mergeOverwrite $given (dict "limits" (.default | default dict) "requests" (.defaultRequest | default .default | default dict)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $containers := include "flyserve.firstContainers" . | fromJsonArray -}}
{{- range $quota := (lookup "v1" "ResourceQuota" .Release.Namespace "").items -}}
{{- if not (or .spec.scopes .spec.scopeSelector) -}}
{{- range $name, $most := .spec.hard -}}
{{- $words := splitList "." (has $name (list "cpu" "memory") | ternary (printf "requests.%s" $name) $name) -}}
{{- $kind := first $words -}}{{- $resource := last $words -}}
{{- if and (has $kind (list "requests" "limits")) (has $resource (list "cpu" "memory")) (not (dig $kind $resource "" $given)) -}}
{{- $self := dict "root" $ "quota" $quota "name" $name "kind" $kind "resource" $resource "containers" $containers -}}
{{- include "flyserve.checkQuota" $self -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, quota, name, kind, resource, containers. */}}
{{- define "flyserve.checkQuota" -}}
{{- $missing := list -}}
{{- range .containers -}}
{{- if not (include "flyserve.amount" (dict "resources" .resources "kind" $.kind "resource" $.resource)) -}}{{- $missing = append $missing .key -}}{{- end -}}
{{- end -}}
{{- $where := printf "ResourceQuota %s of namespace %s" .quota.metadata.name .root.Release.Namespace -}}
{{- $key := printf "resources.%s.%s" .kind .resource -}}
{{- if $missing -}}
{{- fail (printf "%s.%s: is not set, but %s has %s, so that none of these pods is admitted: set %s of %s, or give the namespace a LimitRange with defaults" (first $missing) $key $where .name $key (uniq $missing | join ", ")) -}}
{{- end -}}
{{- $left := subf (include "flyserve.quantity" (get .quota.spec.hard .name) | float64) (include "flyserve.quantity" (dig "status" "used" .name "0" .quota) | float64) -}}
{{- $sum := include "flyserve.sum" . | float64 -}}
{{- if and .root.Release.IsInstall (gt $sum $left) -}}
{{- $unit := ternary 1.0 1073741824.0 (eq .resource "cpu") -}}
{{- $units := ternary "CPUs" "GiB" (eq .resource "cpu") -}}
{{- fail (printf "pods: take %s %s, but %s has %s %s left of %s: lower %s or the replicas, or raise the quota" (divf $sum $unit | include "flyserve.rounded") $units $where (divf $left $unit | include "flyserve.rounded") $units .name $key) -}}
{{- end -}}
{{- end -}}

{{/* KubeRay's definition may be older than a field, which the API server then refuses when all other objects exist.
Arguments: root (of this cluster), cluster. */}}
{{- define "flyserve.checkKubeRay (checks.kuberay: false skips this)" -}}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "rayclusters.ray.io" -}}
{{- $wanted := include "flyserve.rayCluster" $ | fromYaml -}}
{{- range .spec.versions -}}
{{- if eq .name "v1" -}}
{{- include "flyserve.checkKnown" (dict "object" $wanted "schema" .schema.openAPIV3Schema "path" "RayCluster") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Arguments: object, schema, path. */}}
{{- define "flyserve.checkKnown" -}}
{{- if kindIs "slice" .object -}}
{{- range .object -}}
{{- include "flyserve.checkKnown" (dict "object" . "schema" ($.schema.items | default dict) "path" $.path) -}}
{{- end -}}
{{- else if and (kindIs "map" .object) .schema.properties -}}
{{- range $key, $value := .object -}}
{{- $path := printf "%s.%s" $.path $key -}}
{{- if not (hasKey $.schema.properties $key) -}}
{{- fail (printf "%s: KubeRay's CustomResourceDefinition in this cluster does not have it: upgrade KubeRay and its definitions (1.7 or later for ray.gcsFaultTolerance.rocksdb), or leave it out" $path) -}}
{{- end -}}
{{- include "flyserve.checkKnown" (dict "object" $value "schema" (get $.schema.properties $key) "path" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
