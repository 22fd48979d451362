{{/* Names, labels. */}}

{{/* Name of the release's objects: at most 32 characters, which leave room for `-COLOR-apply-REVISION-CHECKSUM`. Longer ones end
with a checksum, so that two that begin alike differ. */}}
{{- define "flyserve.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $whole := .Values.fullnameOverride | default (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) -}}
{{- if gt (len $whole) 32 -}}
{{- $whole = printf "%s-%s" (trunc 25 $whole | trimSuffix "-") (sha256sum $whole | trunc 6) -}}
{{- end -}}
{{- trimSuffix "-" $whole -}}
{{- end -}}

{{/* Selector of the pods of this release, including those that KubeRay creates. */}}
{{- define "flyserve.selector" -}}
flyserve.io/deployment: {{ include "flyserve.fullname" . }}
{{- end -}}

{{- define "flyserve.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "flyserve.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "flyserve.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "flyserve.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Name of the model in HTTP requests. */}}
{{- define "flyserve.servedName" -}}
{{- $model := .Values.target.model -}}
{{- .Values.router.model_name | default (contains "@" $model | ternary (splitList "@" $model | first) (base $model)) -}}
{{- end -}}
