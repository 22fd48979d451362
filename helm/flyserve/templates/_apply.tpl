{{/* The Job that applies a deployment file to a Ray cluster. Arguments: root, cluster. */}}
{{- define "flyserve.applyJob" -}}
{{- $root := .root -}}
{{- $pod := dict "root" $root "role" "apply" -}}
{{- $file := include "flyserve.deploymentFile" . -}}
backoffLimit: 20
activeDeadlineSeconds: {{ mul 3 $root.Values.apply.timeoutSeconds }}
ttlSecondsAfterFinished: 3600
template:
  metadata:
    labels:
      {{- include "flyserve.selector" $root | nindent 6 }}
      flyserve.io/role: apply
    annotations:
      flyserve.io/deployment-checksum: {{ sha256sum $file }}
  spec:
    restartPolicy: OnFailure
    serviceAccountName: {{ include "flyserve.serviceAccount" $root }}
    automountServiceAccountToken: false
    securityContext: {{- include "flyserve.podSecurity" $root | nindent 6 }}
    {{- with include "flyserve.pullSecrets" $root | trim }}{{ . | nindent 4 }}{{ end }}
    containers:
      - name: apply
        image: {{ include "flyserve.image" (dict "root" $root "image" .cluster.image) }}
        imagePullPolicy: {{ .cluster.image.pullPolicy }}
        securityContext: {{- include "flyserve.containerSecurity" $root | nindent 10 }}
        command:
          - flyserve
          - apply
          - /etc/flyserve/deployment-{{ .cluster.color }}.yaml
          - --dashboard
          - http://{{ .cluster.head }}:8265
          - --timeout-s
          - {{ $root.Values.apply.timeoutSeconds | int | toString | quote }}
        env:
          {{- include "flyserve.modelEnv" $pod | nindent 10 }}
          {{- include "flyserve.rayTokenEnv" .cluster | nindent 10 }}
        resources: {{- toYaml $root.Values.apply.resources | nindent 10 }}
        volumeMounts: {{- include "flyserve.mounts" $pod | nindent 10 }}
    volumes: {{- include "flyserve.volumes" $pod | nindent 6 }}
{{- end -}}
