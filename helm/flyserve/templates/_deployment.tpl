{{/* The deployment file of each Ray cluster, which its controller and the routers read. */}}

{{/* Ports that the chart assigns to the registry and to the services in each pod. */}}
{{- define "flyserve.registryPort" -}}50052{{- end -}}
{{- define "flyserve.firstServicePort" -}}50100{{- end -}}
{{- define "flyserve.lastServicePort" -}}50199{{- end -}}

{{/* The tiers of the deployment, as a JSON list. */}}
{{- define "flyserve.tiers" -}}
{{- $tiers := list "target" -}}
{{- if .Values.drafter -}}
{{- $tiers = append $tiers "drafter" -}}
{{- if and .Values.sub_drafter (ne (.Values.sub_drafter.engine | default (include "flyserve.defaults" . | fromJson).engine) "none") -}}
{{- $tiers = append $tiers "sub_drafter" -}}
{{- end -}}
{{- end -}}
{{- toJson $tiers -}}
{{- end -}}

{{/* Arguments: root, cluster. */}}
{{- define "flyserve.deploymentFile" -}}
{{- $root := .root -}}
{{- $file := pick $root.Values "target" "drafter" "sub_drafter" "router" "speculation" "telemetry" "rollout" | deepCopy -}}
{{- range $role := include "flyserve.tiers" $root | fromJsonArray -}}
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
{{- set $read "model" .Values.target.model | toYaml | sha256sum -}}
{{- end -}}
