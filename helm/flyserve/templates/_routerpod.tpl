{{/* Number of routers in the running Deployment; empty if there is none. */}}
{{- define "flyserve.liveRouters" -}}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-router" (include "flyserve.fullname" .)) -}}{{ .spec.replicas }}{{- end -}}
{{- end -}}

{{/* Number of routers for the Deployment; empty leaves it to an autoscaler.
NOTE: where an autoscaler begins, the running number stays: Kubernetes would take a number that is gone for 1. */}}
{{- define "flyserve.routerReplicas" -}}
{{- $pod := .Values.pods.router -}}
{{- if not $pod.autoscaling.enabled -}}
{{- int $pod.replicas -}}
{{- else -}}
{{- with include "flyserve.liveRouters" . -}}{{- max (int .) $pod.autoscaling.minReplicas -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Behavior of the autoscaler of routers, CPU's and KEDA's. */}}
{{- define "flyserve.routerScaling" -}}
# Streams are long, and a router that is removed must finish them.
scaleDown: {stabilizationWindowSeconds: 600}
{{- end -}}

{{/* The pod of a router. Arguments: root, role (router), cluster (that it uses). */}}
{{- define "flyserve.routerPod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $pod := $values.pods.router -}}
{{- $certified := dict "root" $root "roles" (list "router") -}}
{{- $drain := include "flyserve.drainSeconds" $root | int -}}
{{- $checksum := dict "flyserve.io/config-checksum" (include "flyserve.routerChecksum" $root) -}}
metadata:
  labels: {{- include "flyserve.podLabels" (merge (dict "more" (dict "flyserve.io/color" .cluster.color)) .) | nindent 4 }}
  {{- include "flyserve.podAnnotations" (merge (dict "more" $checksum) .) | nindent 2 }}
spec:
  terminationGracePeriodSeconds: {{ add 20 $drain }}
  {{- include "flyserve.podSpec" . | trim | nindent 2 }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "flyserve.selector" $root | nindent 10 }}
          flyserve.io/role: router
  {{- with include "flyserve.waitForModels" . }}{{ . | nindent 2 }}{{ end }}
  containers:
    - name: router
      {{- include "flyserve.container" . | nindent 6 }}
      command:
        - flyserve
        - router
        - /etc/flyserve/deployment-{{ .cluster.color }}.yaml
        - --registry
        - {{ .cluster.head }}:{{ include "flyserve.registryPort" . }}
        - --name
        - $(POD_NAME)
        - --start-timeout-s
        - {{ $pod.startTimeoutSeconds | int | toString | quote }}
      env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        {{- include "flyserve.modelEnv" . | nindent 8 }}
        {{- with include "flyserve.env" . }}{{ . | nindent 8 }}{{ end }}
      ports:
        {{- range include "flyserve.routerPorts" $root | fromJsonArray }}
        - {name: {{ .name }}, containerPort: {{ .port }}}
        {{- end }}
      # A router listens only when a target is there.
      startupProbe:
        grpc: {port: {{ include "flyserve.probedPort" $root }}, service: flyserve.v1.Generation}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div (add 60 $pod.startTimeoutSeconds) 5 }}
      readinessProbe:
        # Not the service: a router whose last target is lost goes on to answer, with 503.
        grpc: &alive {port: {{ include "flyserve.probedPort" $root }}, service: ""}
        periodSeconds: 3
        timeoutSeconds: 3
        # One slow answer of a busy event loop does not send its clients to the next router.
        failureThreshold: 3
      livenessProbe:
        # A router that drains is not restarted: Kubernetes stops this probe when it ends a pod.
        grpc: *alive
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      lifecycle:
        # Time for endpoints to drop this pod before it rejects new connections.
        preStop: {exec: {command: [sleep, "5"]}}
      resources: {{- toYaml $pod.resources | nindent 8 }}
      volumeMounts:
        {{- include "flyserve.mounts" . | nindent 8 }}
        {{- with include "flyserve.tlsMounts" $certified | trim }}{{ . | nindent 8 }}{{ end }}
        {{- if $values.security.auth_tokens_file }}
        - {name: api-keys, mountPath: {{ include "flyserve.secretsFolder" $root }}/api-keys, readOnly: true}
        {{- end }}
  volumes:
    {{- include "flyserve.volumes" . | nindent 4 }}
    {{- with include "flyserve.tlsVolumes" $certified | trim }}{{ . | nindent 4 }}{{ end }}
    {{- if $values.security.auth_tokens_file }}
    - {name: api-keys, secret: {secretName: {{ $values.secrets.authTokens }}, defaultMode: 0440}}
    {{- end }}
{{- end -}}
