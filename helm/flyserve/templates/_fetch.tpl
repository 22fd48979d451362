{{/* Models that a Job fetches into the claim, once, and the wait of the pods that read them. */}}

{{/* Folder of a fetched model in the pods. Arguments: root, model. */}}
{{- define "flyserve.fetchedFolder" -}}
{{- printf "%s/%s" .root.Values.models.mountPath .model.folder -}}
{{- end -}}

{{/* The Job that fetches a model; it does nothing if the claim holds the model. Arguments: root, role (fetch), cluster, model. */}}
{{- define "flyserve.fetchJob" -}}
# It tries until its time is over: a token or a license may be put right meanwhile, and this does not change the Job.
backoffLimit: {{ add 10 (div (int .root.Values.models.fetch.timeoutSeconds) 60) }}
activeDeadlineSeconds: {{ int .root.Values.models.fetch.timeoutSeconds }}
template: {{- include "flyserve.pod" (merge (dict "pod" (include "flyserve.fetchPod" .)) .) | nindent 2 }}
{{- end -}}

{{/* Arguments: as above. */}}
{{- define "flyserve.fetchPod" -}}
{{- $root := .root -}}
metadata:
  labels: {{- include "flyserve.podLabels" . | nindent 4 }}
  {{- with include "flyserve.podAnnotations" . }}{{ . | nindent 2 }}{{ end }}
spec:
  restartPolicy: OnFailure
  {{- include "flyserve.podSpec" . | trim | nindent 2 }}
  containers:
    - name: fetch
      {{- include "flyserve.container" . | nindent 6 }}
      command: [flyserve, pull, {{ .model.source | quote }}, {{ include "flyserve.fetchedFolder" . }}]
      env:
        - {name: HOME, value: /tmp}
        - {name: HF_HUB_OFFLINE, value: "0"}
        {{- with $root.Values.models.hub.tokenSecret }}
        {{- if and .name (hasPrefix "hf://" $.model.source) }}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
        {{- end }}
        {{- end }}
        {{- with include "flyserve.env" . }}{{ . | nindent 8 }}{{ end }}
      resources: {{- toYaml $root.Values.pods.fetch.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: models, mountPath: {{ $root.Values.models.mountPath }}}
  volumes:
    {{- include "flyserve.tmpVolume" . | nindent 4 }}
    - {name: models, persistentVolumeClaim: {claimName: {{ include "flyserve.claim" $root }}}}
{{- end -}}

{{/* Init containers that wait for the fetched models that a role's pods read, with their key; empty if there are none.
Arguments: root, role, cluster. */}}
{{- define "flyserve.waitForModels" -}}
{{- $files := include "flyserve.modelFiles" . | fromJsonArray -}}
{{- $awaited := list -}}
{{- range $model := .root.Values.models.fetch.models -}}
{{- $folder := include "flyserve.fetchedFolder" (dict "root" $.root "model" $model) -}}
{{- range $files -}}
{{- if hasPrefix (printf "%s/" $folder) (printf "%s/" .) -}}{{- $awaited = append $awaited (dict "folder" $folder "source" $model.source) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $awaited -}}
initContainers:
{{- range $number, $model := uniq $awaited }}
  - name: wait-for-model-{{ $number }}
    {{- include "flyserve.container" $ | nindent 4 }}
    command: [flyserve, pull, {{ $model.source | quote }}, {{ $model.folder }}, --wait-only, --timeout-s, {{ $.root.Values.models.fetch.timeoutSeconds | int | toString | quote }}]
    env:
      - {name: HOME, value: /tmp}
    resources: {{- toYaml $.root.Values.pods.fetch.resources | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      - {name: models, mountPath: {{ $.root.Values.models.mountPath }}, readOnly: true}
{{- end -}}
{{- end -}}
{{- end -}}
