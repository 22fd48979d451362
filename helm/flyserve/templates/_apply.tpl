{{/* The Job that applies a deployment file to a Ray cluster. Arguments: root, cluster. */}}
{{- define "flyserve.applyJob" -}}
{{- $root := .root -}}
{{- $self := dict "root" $root "role" "apply" "cluster" .cluster -}}
backoffLimit: 6
activeDeadlineSeconds: {{ mul 3 $root.Values.apply.timeoutSeconds }}
ttlSecondsAfterFinished: 3600
template: {{- include "flyserve.pod" (set $self "pod" (include "flyserve.applyPod" $self)) | nindent 2 }}
{{- end -}}

{{/* Arguments: root, role, cluster. */}}
{{- define "flyserve.applyPod" -}}
{{- $checksum := dict "flyserve.io/deployment-checksum" (include "flyserve.deploymentFile" . | sha256sum) -}}
metadata:
  labels: {{- include "flyserve.podLabels" . | nindent 4 }}
  {{- include "flyserve.podAnnotations" (merge (dict "more" $checksum) .) | nindent 2 }}
spec:
  restartPolicy: Never   # a pod that failed stays with its log as long as the Job
  {{- include "flyserve.podSpec" . | trim | nindent 2 }}
  containers:
    - name: apply
      {{- include "flyserve.container" . | nindent 6 }}
      command:
        - flyserve
        - apply
        - /etc/flyserve/deployment-{{ .cluster.color }}.yaml
        - --dashboard
        - http://{{ .cluster.head }}:8265
        - --timeout-s
        - {{ .root.Values.apply.timeoutSeconds | int | toString | quote }}
      env:
        {{- include "flyserve.modelEnv" . | nindent 8 }}
        {{- include "flyserve.rayTokenEnv" .cluster | nindent 8 }}
        {{- with include "flyserve.env" . }}{{ . | nindent 8 }}{{ end }}
      resources: {{- toYaml .root.Values.pods.apply.resources | nindent 8 }}
      volumeMounts: {{- include "flyserve.mounts" . | nindent 8 }}
  volumes: {{- include "flyserve.volumes" . | nindent 4 }}
{{- end -}}
