{{/* First port of the metrics; empty if there are none. */}}
{{- define "flyserve.metricsPort" -}}
{{- with .Values.telemetry -}}{{- with .metrics_port -}}{{- int . -}}{{- end -}}{{- end -}}
{{- end -}}

{{/* Conditions of PromQL that select the metrics of this release.
NOTE: other monitors than the chart's may not give the second label. */}}
{{- define "flyserve.ownMetrics" -}}
namespace={{ .Release.Namespace | quote }}
{{- if .Values.monitoring.serviceMonitor.enabled }}, flyserve_io_deployment={{ include "flyserve.fullname" . | quote }}{{ end }}
{{- end -}}

{{/* Port of Ray's own metrics in each of its pods: KubeRay names it, too, if nobody does. */}}
{{- define "flyserve.rayMetricsPort" -}}8080{{- end -}}

{{/* Parameters of `ray start` for the ports on which it listens: others than the services' and the metrics'.
NOTE: by itself, Ray takes free ones from the range in which they are. */}}
{{- define "flyserve.rayPorts" -}}
metrics-export-port: {{ include "flyserve.rayMetricsPort" . | quote }}
node-manager-port: "6380"
object-manager-port: "6381"
runtime-env-agent-port: "6382"
dashboard-agent-grpc-port: "6383"
min-worker-port: "10002"
max-worker-port: "19999"
{{- end -}}

{{/* Ports of the metrics of the replicas in a role's pods, as a JSON list: name, number. Each role has a hundred,
from which every replica takes the first that is free in its pod. Arguments: root, role. */}}
{{- define "flyserve.podMetrics" -}}
{{- $root := .root -}}
{{- $ports := list -}}
{{- with include "flyserve.metricsPort" $root -}}
{{- $base := int . -}}
{{- $offsets := include "flyserve.metricsOffsets" $ | fromJson -}}
{{- range $role := include "flyserve.inhabitants" $ | fromJsonArray -}}
{{- range $index := until (get $root.Values.pods $role | dig "replicasPerPod" 1 | int) -}}
{{- $name := printf "m-%s-%d" ($role | replace "_drafter" "") $index -}}
{{- $ports = append $ports (dict "name" $name "port" (add $base (get $offsets $role) $index)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* Port of the gRPC API. */}}
{{- define "flyserve.grpcPort" -}}
{{- dig "grpc_port" (include "flyserve.defaults" . | fromJson).grpc_port .Values.router | int -}}
{{- end -}}

{{/* Port on which a router serves health in plaintext. */}}
{{- define "flyserve.probedPort" -}}
{{- ternary .Values.security.health_port (include "flyserve.grpcPort" .) (eq (include "flyserve.hasTls" .) "yes") | int -}}
{{- end -}}

{{/* Ports of a router, as a JSON list: name, port, isPublic (clients call it), protocol. */}}
{{- define "flyserve.routerPorts" -}}
{{- $ports := list (dict "name" "grpc" "port" (include "flyserve.grpcPort" . | int) "isPublic" true "protocol" "grpc") -}}
{{- with .Values.router.http_port -}}
{{- $ports = append $ports (dict "name" "http" "port" (int .) "isPublic" true "protocol" "http") -}}
{{- end -}}
{{- if include "flyserve.hasTls" . -}}
{{- $ports = append $ports (dict "name" "health" "port" (int .Values.security.health_port) "isPublic" false "protocol" "grpc") -}}
{{- end -}}
{{- with include "flyserve.metricsPort" . | int -}}
{{- $ports = append $ports (dict "name" "metrics" "port" (int .) "isPublic" false "protocol" "http") -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}
