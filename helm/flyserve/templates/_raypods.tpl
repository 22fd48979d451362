{{/* Pods of a Ray cluster: the head, and the workers of each role. */}}

{{/* Arguments: root, cluster, role, which is `head` or one that has pods of its own. */}}
{{- define "flyserve.rayPod" -}}
{{- $root := .root -}}
{{- $isHead := eq .role "head" -}}
{{- $certified := list "controller" -}}
{{- if not $isHead -}}{{- $certified = include "flyserve.inhabitants" . | fromJsonArray -}}{{- end -}}
{{- $certified = dict "root" $root "roles" $certified -}}
{{- $more := dict "flyserve.io/color" .cluster.color "flyserve.io/ray" "true" -}}
{{- /* The head's autoscaler has an account from KubeRay. */ -}}
{{- $hasOwnAccount := and $isHead $root.Values.ray.autoscaling.enabled -}}
{{- $drain := include "flyserve.drainSeconds" $root | int -}}
metadata:
  labels: {{- include "flyserve.podLabels" (merge (dict "more" $more) .) | nindent 4 }}
  {{- with include "flyserve.podAnnotations" . }}{{ . | nindent 2 }}{{ end }}
spec:
  # The second autoscaler counts a pod that restarts in place as lost.
  restartPolicy: {{ ternary "Never" "Always" $root.Values.ray.autoscaling.enabled }}
  terminationGracePeriodSeconds: {{ ternary 60 (add 90 $drain) $isHead }}
  {{- include "flyserve.podSpec" (merge (dict "hasOwnAccount" $hasOwnAccount) .) | trim | nindent 2 }}
  {{- with include "flyserve.waitForModels" . }}{{ . | nindent 2 }}{{ end }}
  containers:
    - name: ray-{{ ternary "head" "worker" $isHead }}
      {{- include "flyserve.container" . | nindent 6 }}
      env:
        {{- include "flyserve.modelEnv" . | nindent 8 }}
        - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
        - {name: RAY_worker_niceness, value: "0"}
        # By default a node ends itself if its agent has not started within 30 s, as on a busy machine.
        - {name: RAY_agent_register_timeout_ms, value: "600000"}
        {{- with include "flyserve.env" . }}{{ . | nindent 8 }}{{ end }}
      ports:
        # Ray's own metrics.
        - {name: metrics, containerPort: {{ include "flyserve.rayMetricsPort" $root }}}
        {{- if $isHead }}
        - {name: gcs, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: client, containerPort: 10001}
        - {name: registry, containerPort: {{ include "flyserve.registryPort" $root }}}
        {{- else }}
        - {name: services, containerPort: {{ include "flyserve.firstServicePort" $root }}}
        {{- range include "flyserve.podMetrics" . | fromJsonArray }}
        - {name: {{ .name }}, containerPort: {{ .port }}}
        {{- end }}
        {{- end }}
      {{- /* Raylet, and on the head GCS: the controller runs on the head's raylet. */}}
      {{- $probe := dict "port" 52365 "path" "/api/healthz" }}
      startupProbe:
        httpGet: {{- toYaml $probe | nindent 10 }}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {{- toYaml $probe | nindent 10 }}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 12
      readinessProbe:
        httpGet: {{- toYaml $probe | nindent 10 }}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 3
      {{- if not $isHead }}
      # The replicas of this pod drain and serve elsewhere before it ends.
      lifecycle:
        preStop: {exec: {command: [flyserve, drain, --node, this, --timeout-s, {{ add 30 $drain | toString | quote }}]}}
      {{- end }}
      resources: {{- include "flyserve.rayResources" . | nindent 8 }}
      volumeMounts:
        {{- include "flyserve.mounts" . | nindent 8 }}
        {{- with include "flyserve.tlsMounts" $certified | trim }}{{ . | nindent 8 }}{{ end }}
  volumes:
    {{- include "flyserve.volumes" . | nindent 4 }}
    {{- with include "flyserve.tlsVolumes" $certified | trim }}{{ . | nindent 4 }}{{ end }}
{{- end -}}

{{/* Resources of a Ray pod: as given, with the CPUs and GPUs that its replicas need. Arguments: root, role. */}}
{{- define "flyserve.rayResources" -}}
{{- $pod := get .root.Values.pods .role -}}
{{- $resources := deepCopy ($pod.resources | default dict) -}}
{{- if ne .role "head" -}}
{{- $size := include "flyserve.podSize" . | fromJson -}}
{{- $resources = mergeOverwrite (dict "requests" (dict "cpu" ($size.cpus | toString))) $resources -}}
{{- with (include "flyserve.modelAccess" . | fromJson).space -}}
{{- $_ := set $resources.requests "ephemeral-storage" . -}}
{{- end -}}
{{- if and $pod.gpus $pod.gpuResource -}}
{{- $gpus := dict $pod.gpuResource ($pod.gpus | int | toString) -}}
{{- $resources = mergeOverwrite $resources (dict "requests" $gpus "limits" $gpus) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
