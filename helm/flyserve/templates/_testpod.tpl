{{/* The pod of `helm test`: a sentence from the deployment itself, through its Service. Arguments: root, role, cluster. */}}
{{- define "flyserve.testPod" -}}
{{- $root := .root -}}
{{- $folder := include "flyserve.secretsFolder" $root -}}
{{- $hasTls := include "flyserve.hasTls" $root -}}
{{- $certificate := include "flyserve.clientCertificates" $root -}}
{{- $client := dict "root" $root "roles" (ternary (list "client") list (eq $certificate "yes")) -}}
{{- $hook := dict "helm.sh/hook" "test" "helm.sh/hook-delete-policy" "before-hook-creation" -}}
metadata:
  name: {{ include "flyserve.fullname" $root }}-test
  labels:
    {{- merge (include "flyserve.labels" $root | fromYaml) (include "flyserve.podLabels" . | fromYaml) | toYaml | nindent 4 }}
  {{- include "flyserve.podAnnotations" (merge (dict "more" $hook) .) | nindent 2 }}
spec:
  restartPolicy: Never
  {{- include "flyserve.podSpec" . | trim | nindent 2 }}
  containers:
    - name: generate
      {{- include "flyserve.container" . | nindent 6 }}
      command:
        - flyserve
        - generate
        - "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books. How many books does Karl have now?\n"
        - --max-new-tokens
        - "32"
        - --address
        - {{ include "flyserve.fullname" $root }}:{{ include "flyserve.grpcPort" $root }}
        {{- if $hasTls }}
        - --tls-root
        - {{ $folder }}/ca/ca.crt
        {{- end }}
        {{- if $certificate }}
        - --tls-certificate
        - {{ $folder }}/tls/client/tls.crt
        - --tls-key
        - {{ $folder }}/tls/client/tls.key
        {{- end }}
      env:
        - {name: HOME, value: /tmp}
        {{- with $root.Values.secrets.testToken }}
        {{- if $root.Values.security.auth_tokens_file }}
        - name: FLYSERVE_TOKEN
          valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
        {{- end }}
        {{- end }}
        {{- with include "flyserve.env" . }}{{ . | nindent 8 }}{{ end }}
      resources: {{- toYaml $root.Values.pods.test.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $hasTls }}
        - {name: ca, mountPath: {{ $folder }}/ca, readOnly: true}
        {{- end }}
        {{- with include "flyserve.tlsMounts" $client | trim }}{{ . | nindent 8 }}{{ end }}
  volumes:
    {{- include "flyserve.tmpVolume" . | nindent 4 }}
    {{- if $hasTls }}
    # The authority to trust, without the routers' key.
    - name: ca
      secret: {secretName: {{ $root.Values.secrets.tls.router }}, items: [{key: ca.crt, path: ca.crt}], defaultMode: 0440}
    {{- end }}
    {{- with include "flyserve.tlsVolumes" $client | trim }}{{ . | nindent 4 }}{{ end }}
{{- end -}}
