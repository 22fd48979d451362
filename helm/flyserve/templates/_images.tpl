{{/* Images: keys of `image`, changed by those of the role, changed by those of the second cluster. */}}

{{/* Image of a role's pods, as JSON: name, pullPolicy, pullSecrets. A layer that names a tag drops a digest from below;
the pods of vLLM have a tag of their own. Arguments: root, role, cluster. */}}
{{- define "flyserve.image" -}}
{{- $values := .root.Values -}}
{{- $own := (get $values.pods .role).image | default dict -}}
{{- $ofCluster := ternary $values.ray.standby.image dict (eq .cluster.color $values.ray.standby.name) -}}
{{- $image := deepCopy $values.image -}}
{{- range list $own $ofCluster -}}
{{- if .tag -}}{{- $_ := set $image "digest" "" -}}{{- end -}}
{{- $image = mergeOverwrite $image . -}}
{{- end -}}
{{- $isExact := and (or $own.tag $own.digest) (not (or $ofCluster.tag $ofCluster.digest)) -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- if and (include "flyserve.isOnVllm" .) (not $isExact) -}}
{{- if $ofCluster.digest -}}
{{- fail (printf "ray.standby.image.digest: is the image without vLLM, but the pods of %s run it: give image.digest and pods.%s.image.digest in ray.standby.values instead" .role .role) -}}
{{- else if $image.digest -}}
{{- fail (printf "image.digest: is the image without vLLM, but the pods of %s run it: give theirs in pods.%s.image.digest" .role .role) -}}
{{- end -}}
{{- $tag = $image.vllmTag | default (printf "%s-vllm" $tag) -}}
{{- end -}}
{{- $name := ternary (printf "%s@%s" $image.repository $image.digest) (printf "%s:%s" $image.repository $tag) (not (empty $image.digest)) -}}
{{- dict "name" $name "pullPolicy" $image.pullPolicy "pullSecrets" $image.pullSecrets | toJson -}}
{{- end -}}
