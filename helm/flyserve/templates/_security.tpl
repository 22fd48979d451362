{{/* Certificates and API keys: files of Secrets that exist. They are mounted as folders, never as single files:
only folders follow a Secret that changes. */}}

{{/* NOTE: not below /etc/flyserve, which is a read-only volume itself. */}}
{{- define "flyserve.secretsFolder" -}}/etc/flyserve-secrets{{- end -}}

{{/* `yes` if sockets are encrypted, else empty.
NOTE: {} turns it on, which a template takes for nothing. */}}
{{- define "flyserve.hasTls" -}}
{{- if kindIs "map" .Values.security.tls -}}yes{{- end -}}
{{- end -}}

{{- define "flyserve.clientCertificates" -}}
{{- if dig "client_certificates" false (.Values.security.tls | default dict) -}}yes{{- end -}}
{{- end -}}

{{/* Section `security` of the deployment file, as JSON; {} if nothing is on. */}}
{{- define "flyserve.security" -}}
{{- $folder := include "flyserve.secretsFolder" . -}}
{{- $said := dict -}}
{{- if include "flyserve.hasTls" . -}}
{{- $tls := deepCopy .Values.security.tls -}}
{{- range $field, $file := dict "certificate" "tls.crt" "key" "tls.key" "ca" "ca.crt" -}}
{{- $_ := set $tls $field (printf "%s/tls/{role}/%s" $folder $file) -}}
{{- end -}}
{{- $said = dict "tls" $tls "health_port" .Values.security.health_port -}}
{{- end -}}
{{- with .Values.security.auth_tokens_file -}}
{{- $_ := set $said "auth_tokens_file" (printf "%s/api-keys/%s" $folder .) -}}
{{- end -}}
{{- toJson $said -}}
{{- end -}}

{{/* Mounts of the certificates of these roles. Arguments: root, roles, as secrets.tls names them. */}}
{{- define "flyserve.tlsMounts" -}}
{{- if include "flyserve.hasTls" .root }}
{{- range .roles }}
{{- $role := . | replace "_" "-" }}
- {name: tls-{{ $role }}, mountPath: {{ include "flyserve.secretsFolder" $.root }}/tls/{{ $role }}, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* Arguments: as above. */}}
{{- define "flyserve.tlsVolumes" -}}
{{- if include "flyserve.hasTls" .root }}
{{- range .roles }}
- {name: tls-{{ . | replace "_" "-" }}, secret: {secretName: {{ get $.root.Values.secrets.tls . }}, defaultMode: 0440}}
{{- end }}
{{- end }}
{{- end -}}

{{/* `yes` if the pod of `helm test` has the token and the certificate that it needs, else empty. */}}
{{- define "flyserve.hasTest" -}}
{{- $token := or (not .Values.security.auth_tokens_file) (and (include "flyserve.hasTls" .) .Values.secrets.testToken.name) -}}
{{- $certificate := or (not (include "flyserve.clientCertificates" .)) .Values.secrets.tls.client -}}
{{- if and $token $certificate -}}yes{{- end -}}
{{- end -}}
