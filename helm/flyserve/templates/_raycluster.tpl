{{/* A Ray cluster. With Ray's autoscaler, groups have no `replicas`: KubeRay begins with the fewest pods, and a number here
would be set again at every upgrade, against the autoscaler. Arguments: root (of this cluster), cluster. */}}
{{- define "flyserve.rayCluster" -}}
{{- $root := .root -}}
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: {{ $.cluster.name }}
  labels:
    {{- include "flyserve.labels" $root | nindent 4 }}
    flyserve.io/color: {{ $.cluster.color }}
    {{- with $root.Values.ray.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $root.Values.ray.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  rayVersion: {{ $root.Values.ray.version | quote }}
  authOptions:
    mode: token
    {{- with $root.Values.ray.authSecret }}
    secretName: {{ . }}
    {{- end }}
  # A change of the pods below applies to new pods only; the guide's "Upgrade" describes how to replace all.
  upgradeStrategy: {type: None}
  enableInTreeAutoscaling: {{ $root.Values.ray.autoscaling.enabled }}
  {{- if $root.Values.ray.autoscaling.enabled }}
  autoscalerOptions:
    version: v2
    idleTimeoutSeconds: {{ int $root.Values.ray.autoscaling.idleTimeoutSeconds }}
    securityContext: {{- toYaml $root.Values.securityContext | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
    resources: {{- toYaml $root.Values.ray.autoscaling.resources | nindent 6 }}
  {{- end }}
  {{- with include "flyserve.faultTolerance" (dict "root" $root "cluster" $.cluster) }}
  gcsFaultToleranceOptions: {{- . | nindent 4 }}
  {{- end }}
  headGroupSpec:
    serviceType: ClusterIP
    rayStartParams:
      dashboard-host: 0.0.0.0
      # CPUs for the controller only.
      num-cpus: "1"
      num-gpus: "0"
      object-store-memory: "200000000"
      {{- include "flyserve.rayPorts" . | nindent 6 }}
    {{- $head := dict "root" $root "cluster" $.cluster "role" "head" }}
    template: {{- include "flyserve.pod" (set $head "pod" (include "flyserve.rayPod" $head)) | nindent 6 }}
  workerGroupSpecs:
    {{- range $role := include "flyserve.hosts" $root | fromJsonArray }}
    {{- $self := dict "root" $root "cluster" $.cluster "role" $role }}
    {{- $size := include "flyserve.podSize" $self | fromJson }}
    {{- $marks := dict }}
    {{- range include "flyserve.inhabitants" $self | fromJsonArray }}
    {{- $_ := set $marks (include "flyserve.nodeResource" .) 1000 }}
    {{- end }}
    - groupName: {{ $role | replace "_" "-" }}
      {{- if not $root.Values.ray.autoscaling.enabled }}
      replicas: {{ $size.first }}
      {{- end }}
      minReplicas: {{ $size.min }}
      maxReplicas: {{ $size.max }}
      rayStartParams:
        num-cpus: {{ $size.cpus | toString | quote }}
        num-gpus: {{ $size.gpus | toString | quote }}
        resources: {{ toJson $marks | quote | squote }}
        object-store-memory: "200000000"
        {{- include "flyserve.rayPorts" . | nindent 8 }}
      template: {{- include "flyserve.pod" (set $self "pod" (include "flyserve.rayPod" $self)) | nindent 8 }}
    {{- end }}
{{- end -}}

{{/* Where Ray keeps its state outside the head's memory; empty if nowhere. Arguments: root, cluster. */}}
{{- define "flyserve.faultTolerance" -}}
{{- with .root.Values.ray.gcsFaultTolerance -}}
{{- if .redisAddress -}}
redisAddress: {{ .redisAddress }}
externalStorageNamespace: {{ $.root.Release.Namespace }}-{{ $.cluster.name }}
{{- range $key, $secret := dict "redisUsername" .usernameSecret "redisPassword" .passwordSecret }}
{{- if $secret.name }}
{{ $key }}:
  valueFrom: {secretKeyRef: {name: {{ $secret.name }}, key: {{ $secret.key }}}}
{{- end }}
{{- end }}
{{- else if .rocksdb.enabled -}}
backend: rocksdb
{{- $storage := dict }}
{{- with .rocksdb.size }}{{- $_ := set $storage "size" . }}{{- end }}
{{- with .rocksdb.storageClass }}{{- $_ := set $storage "storageClassName" . }}{{- end }}
{{- with $storage }}
storage: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
