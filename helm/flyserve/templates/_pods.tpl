{{/* Parts that all pods have, and the door for everything else: pods.<role>.extra. */}}

{{/* Labels of a pod: those that objects and policies select it by come last. Arguments: root, role, and more of them. */}}
{{- define "flyserve.podLabels" -}}
{{- $labels := merge (dict) (get .root.Values.pods .role | dig "labels" dict) (.root.Values.commonLabels | default dict) -}}
{{- $own := include "flyserve.selector" .root | fromYaml | merge (dict "flyserve.io/role" .role) (.more | default dict) -}}
{{- mergeOverwrite $labels $own | toYaml -}}
{{- end -}}

{{/* Annotations of a pod, with their key; empty if there are none. Arguments: root, role, more. */}}
{{- define "flyserve.podAnnotations" -}}
{{- with merge (dict) (.more | default dict) (get .root.Values.pods .role | dig "annotations" dict) -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Account, user, pull secrets and scheduling of a pod. Arguments: root, role, cluster, hasOwnAccount. */}}
{{- define "flyserve.podSpec" -}}
{{- $pod := get .root.Values.pods .role -}}
{{- if not .hasOwnAccount }}
serviceAccountName: {{ include "flyserve.serviceAccount" .root }}
automountServiceAccountToken: false
{{- end }}
securityContext: {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with (include "flyserve.image" . | fromJson).pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
{{- with get $pod $key }}
{{ dict $key . | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Image and user of a container. Arguments: root, role, cluster. */}}
{{- define "flyserve.container" -}}
{{- $image := include "flyserve.image" . | fromJson -}}
image: {{ $image.name }}
imagePullPolicy: {{ $image.pullPolicy }}
securityContext: {{- toYaml .root.Values.securityContext | nindent 2 }}
{{- end -}}

{{/* Further variables of a role's containers. Arguments: root, role. */}}
{{- define "flyserve.env" -}}
{{- with (get .root.Values.pods .role).env -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* A pod's template with pods.<role>.extra merged into its spec. Arguments: root, role, pod (as YAML). */}}
{{- define "flyserve.pod" -}}
{{- $extra := (get .root.Values.pods .role).extra -}}
{{- if $extra -}}
{{- $pod := fromYaml .pod -}}
{{- (include "flyserve.merged" (dict "base" $pod "over" (dict "spec" $extra)) | fromJson).value | toYaml -}}
{{- else -}}
{{- .pod -}}
{{- end -}}
{{- end -}}

{{/* Ray's token, for pods outside the Ray cluster. Argument: a cluster. */}}
{{- define "flyserve.rayTokenEnv" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .tokenSecret }}, key: auth_token}}
{{- end -}}
