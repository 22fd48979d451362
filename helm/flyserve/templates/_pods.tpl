{{/* Parts that all pods have. */}}

{{- define "flyserve.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "flyserve.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Scheduling of pods. Argument: an entry of `pods`. */}}
{{- define "flyserve.scheduling" }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "flyserve.pullSecrets" }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment of pods that read models: folder of the hub's models, and access to the hub. */}}
{{- define "flyserve.modelEnv" -}}
- {name: HOME, value: /tmp}
- name: HF_HOME
  value: {{ if include "flyserve.claim" . }}{{ .Values.models.mountPath }}/hub{{ else }}/tmp/hub{{ end }}
- name: HF_HUB_OFFLINE
  value: {{ ternary "0" "1" .Values.models.hub.online | quote }}
{{- with .Values.models.hub.tokenSecret }}
{{- if .name }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- end -}}

{{/* Ray's token, for pods outside the Ray cluster. Argument: a cluster. */}}
{{- define "flyserve.rayTokenEnv" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .tokenSecret }}, key: auth_token}}
{{- end -}}

{{- define "flyserve.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: config, mountPath: /etc/flyserve, readOnly: true}
{{- if include "flyserve.claim" . }}
- {name: models, mountPath: {{ .Values.models.mountPath }}}
{{- end }}
{{- end -}}

{{- define "flyserve.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: config, configMap: {name: {{ include "flyserve.fullname" . }}-config}}
{{- with include "flyserve.claim" . }}
- {name: models, persistentVolumeClaim: {claimName: {{ . }}}}
{{- end }}
{{- end -}}
