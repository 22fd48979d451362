{{/* The deployment file of each Ray cluster, which its controller and the routers read. */}}

{{/* Ports that the chart assigns to the registry and to the services in each pod. */}}
{{- define "flyserve.registryPort" -}}50052{{- end -}}
{{- define "flyserve.firstServicePort" -}}50100{{- end -}}
{{- define "flyserve.lastServicePort" -}}50199{{- end -}}

{{/* The tiers of the deployment, as a JSON list. */}}
{{- define "flyserve.tiers" -}}
{{- $tiers := list "target" -}}
{{- if kindIs "map" .Values.drafter -}}
{{- $tiers = append $tiers "drafter" -}}
{{- $helper := .Values.sub_drafter -}}
{{- $isWanted := and (kindIs "map" $helper) (ne (dig "engine" "" ($helper | default dict)) "none") -}}
{{- if and $isWanted (or $helper (eq (.Values.drafter.engine | default "builtin") "builtin")) -}}
{{- $tiers = append $tiers "sub_drafter" -}}
{{- end -}}
{{- end -}}
{{- toJson $tiers -}}
{{- end -}}

{{/* The keys of a tier that its values leave to the chart, as JSON: those of the shipped drafter and sub-drafter, and
the number that gpus: auto stands for; llama.cpp and quantization allow none. Arguments: root, role. */}}
{{- define "flyserve.filledKeys" -}}
{{- $tier := get .root.Values .role -}}
{{- $keys := dict -}}
{{- if and (eq .role "drafter") (not $tier.model) (not (include "flyserve.looksUp" .)) -}}
{{- $keys = dict "model" "demo/models/drafter" "dtype" ($tier.dtype | default "float32") -}}
{{- end -}}
{{- if and (eq .role "sub_drafter") (not $tier.engine) -}}
{{- $keys = dict "engine" "suffix" "response_cache_tokens" ($tier.response_cache_tokens | default 1000000) -}}
{{- end -}}
{{- if eq (toString $tier.gpus) "auto" -}}
{{- $host := dig .role "runsWith" "" .root.Values.pods | default .role -}}
{{- $isOnCpu := or (eq ($tier.engine | default "") "llamacpp") (ne ($tier.quantization | default "none") "none") -}}
{{- $hasGpus := gt (get .root.Values.pods $host | dig "gpus" 0 | int) 0 -}}
{{- $_ := set $keys "gpus" (ternary 1 0 (and $hasGpus (not $isOnCpu))) -}}
{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{/* Arguments: root, cluster. */}}
{{- define "flyserve.deploymentFile" -}}
{{- $root := .root -}}
{{- $file := pick $root.Values "target" "drafter" "sub_drafter" "router" "speculation" "telemetry" "rollout" | deepCopy -}}
{{- $tiers := include "flyserve.tiers" $root | fromJsonArray -}}
{{- if not (has "sub_drafter" $tiers) -}}{{- $_ := unset $file "sub_drafter" -}}{{- end -}}
{{- range $role := $tiers -}}
{{- range $key, $value := include "flyserve.filledKeys" (dict "root" $root "role" $role) | fromJson -}}
{{- $_ := set (get $file $role) $key (ternary (int $value) $value (kindIs "float64" $value)) -}}
{{- end -}}
{{- $_ := set (get $file $role) "node_resource" (include "flyserve.nodeResource" $role) -}}
{{- end -}}
{{- $_ := set $file.router "host" "0.0.0.0" -}}
{{- with include "flyserve.security" $root | fromJson -}}
{{- $_ := set $file "security" . -}}
{{- end -}}
{{- $port := include "flyserve.registryPort" $root | int -}}
{{- $_ := set $file "controller" (dict "port" $port "advertised_host" .cluster.head) -}}
{{- $_ := set $file "service_ports" (printf "%s-%s" (include "flyserve.firstServicePort" $root) (include "flyserve.lastServicePort" $root)) -}}
{{- toYaml $file -}}
{{- end -}}

{{/* The Ray resource that marks the pods of a role. */}}
{{- define "flyserve.nodeResource" -}}
flyserve_{{ . }}
{{- end -}}

{{/* Checksum of the keys that routers read: a change replaces the routers. */}}
{{- define "flyserve.routerChecksum" -}}
{{- $cluster := include "flyserve.clusters" . | fromJsonArray | first -}}
{{- $file := include "flyserve.deploymentFile" (dict "root" . "cluster" $cluster) | fromYaml -}}
{{- $read := omit $file "target" "drafter" "sub_drafter" "rollout" -}}
{{- $read = set $read "has_drafter" (hasKey $file "drafter") -}}
{{- set $read "model" .Values.target.model | toYaml | sha256sum -}}
{{- end -}}
