{{/* Names, labels, images, and the list of Ray clusters. */}}

{{- define "flyserve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 32 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 32 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 32 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
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
{{- end -}}

{{- define "flyserve.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "flyserve.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, image. */}}
{{- define "flyserve.image" -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}

{{/* Image of the pods of a Ray cluster. Arguments: root, cluster, role. */}}
{{- define "flyserve.rayImage" -}}
{{- $image := .cluster.image -}}
{{- if include "flyserve.isOnVllm" . -}}
{{- $tag := $image.tag | default .root.Chart.AppVersion -}}
{{- $image = dict "repository" $image.repository "tag" ($image.vllmTag | default (printf "%s-vllm" $tag)) -}}
{{- end -}}
{{- include "flyserve.image" (dict "root" .root "image" $image) -}}
{{- end -}}

{{/* The Ray clusters as a JSON list: the one that routers use, then the standby. */}}
{{- define "flyserve.clusters" -}}
{{- $fullname := include "flyserve.fullname" . -}}
{{- $clusters := list (dict "color" .Values.ray.active "image" .Values.image) -}}
{{- with .Values.ray.standby.name -}}
{{- $image := mergeOverwrite (deepCopy $.Values.image) $.Values.ray.standby.image -}}
{{- $clusters = append $clusters (dict "color" . "image" $image) -}}
{{- end -}}
{{- range $clusters -}}
{{- $_ := set . "name" (printf "%s-%s" $fullname .color) -}}
{{- $_ := set . "head" (printf "%s-head-%s" $fullname .color) -}}
{{- $_ := set . "tokenSecret" (default .name $.Values.ray.authSecret) -}}
{{- end -}}
{{- toJson $clusters -}}
{{- end -}}

{{/* Name of the model in HTTP requests. */}}
{{- define "flyserve.servedName" -}}
{{- $model := .Values.target.model -}}
{{- .Values.router.model_name | default (contains "@" $model | ternary (splitList "@" $model | first) (base $model)) -}}
{{- end -}}
