{{/* The one or two Ray clusters, and the values of each. */}}

{{/* The Ray clusters as a JSON list: the one that routers use, then the standby. */}}
{{- define "flyserve.clusters" -}}
{{- $fullname := include "flyserve.fullname" . -}}
{{- $clusters := list (dict "color" .Values.ray.active) -}}
{{- with .Values.ray.standby.name -}}
{{- $clusters = append $clusters (dict "color" .) -}}
{{- end -}}
{{- range $clusters -}}
{{- $_ := set . "name" (printf "%s-%s" $fullname .color) -}}
{{- $_ := set . "head" (printf "%s-head-%s" $fullname .color) -}}
{{- $own := dict -}}
{{- include "flyserve.fillRoot" (dict "root" $ "cluster" . "own" $own) -}}
{{- $_ := set . "tokenSecret" (default .name $own.Values.ray.authSecret) -}}
{{- end -}}
{{- toJson $clusters -}}
{{- end -}}

{{/* Fill `own`, an empty dict, with the root of a cluster: that of the release, for the second cluster with
ray.standby.values over its values. NOTE: a template returns text alone, which cannot hold a root.
Arguments: root, cluster, own. */}}
{{- define "flyserve.fillRoot" -}}
{{- $own := .own -}}
{{- range $key, $value := .root -}}{{- $_ := set $own $key $value -}}{{- end -}}
{{- with .root.Values.ray.standby -}}
{{- if and .values (eq $.cluster.color .name) -}}
{{- $merged := include "flyserve.merged" (dict "base" $.root.Values "over" .values "wholeLists" true) | fromJson -}}
{{- $_ := set $own "Values" $merged.value -}}
{{- end -}}
{{- end -}}
{{- end -}}
