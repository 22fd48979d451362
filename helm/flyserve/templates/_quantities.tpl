{{/* Quantities of Kubernetes, and what the pods of a release request. */}}

{{/* The number that a quantity stands for. Argument: such as 500m, 2 or 3Gi. */}}
{{- define "flyserve.quantity" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $factors := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (trimSuffix $unit $text | float64) (get $factors $unit | default 1.0) -}}
{{- end -}}

{{/* The containers that an installation begins with, as a JSON list: key (of their resources in the values), count, resources. */}}
{{- define "flyserve.firstContainers" -}}
{{- $pods := .Values.pods -}}
{{- $found := list (dict "key" "pods.router" "count" (include "flyserve.fewestRouters" . | int) "resources" $pods.router.resources) -}}
{{- range $cluster := include "flyserve.clusters" . | fromJsonArray -}}
{{- $own := dict -}}
{{- include "flyserve.fillRoot" (dict "root" $ "cluster" $cluster "own" $own) -}}
{{- $found = append $found (dict "key" "pods.apply" "count" 1 "resources" $own.Values.pods.apply.resources) -}}
{{- $found = append $found (dict "key" "pods.head" "count" 1 "resources" $own.Values.pods.head.resources) -}}
{{- with $own.Values.ray.autoscaling -}}
{{- if .enabled -}}{{- $found = append $found (dict "key" "ray.autoscaling" "count" 1 "resources" .resources) -}}{{- end -}}
{{- end -}}
{{- range $role := include "flyserve.hosts" $own | fromJsonArray -}}
{{- $self := dict "root" $own "role" $role -}}
{{- $count := (include "flyserve.podSize" $self | fromJson).first -}}
{{- $found = append $found (dict "key" (printf "pods.%s" $role) "count" $count "resources" (include "flyserve.rayResources" $self | fromYaml)) -}}
{{- end -}}
{{- end -}}
{{- if .Values.models.fetch.models -}}
{{- $found = append $found (dict "key" "pods.fetch" "count" (len .Values.models.fetch.models) "resources" $pods.fetch.resources) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* A container's request or limit; without a request it is the limit. Empty if there is none. Arguments: resources, kind, resource. */}}
{{- define "flyserve.amount" -}}
{{- $all := .resources | default dict -}}
{{- $limit := dig "limits" .resource "" $all -}}
{{- ternary (dig "requests" .resource $limit $all) $limit (eq .kind "requests") -}}
{{- end -}}

{{/* Argument: a number. */}}
{{- define "flyserve.rounded" -}}
{{- float64 . | printf "%.1f" | trimSuffix ".0" -}}
{{- end -}}

{{/* Sum that these containers request or are limited to. Arguments: containers, kind (requests, limits), resource. */}}
{{- define "flyserve.sum" -}}
{{- $sum := 0.0 -}}
{{- range .containers -}}
{{- $sum = addf $sum (mulf .count (include "flyserve.amount" (dict "resources" .resources "kind" $.kind "resource" $.resource) | default "0" | include "flyserve.quantity" | float64)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}
