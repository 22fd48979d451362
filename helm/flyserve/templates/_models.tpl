{{/* Where models come from, and which pods read them: only those that load weights mount the claim. */}}

{{/* Claim of the models' volume; empty if there is none. */}}
{{- define "flyserve.claim" -}}
{{- if .Values.models.persistence.size -}}
{{- include "flyserve.fullname" . }}-models
{{- else -}}
{{- .Values.models.existingClaim -}}
{{- end -}}
{{- end -}}

{{/* Files that the pods of a role read, as a JSON list: models, and the chat template of routers. The head, Jobs and
sub-drafters that look tokens up read none. Arguments: root, role. */}}
{{- define "flyserve.modelFiles" -}}
{{- $values := .root.Values -}}
{{- $files := list -}}
{{- if eq .role "router" -}}
{{- $files = list $values.target.model (dig "chat_template" "" $values.router) -}}
{{- else if has .role (include "flyserve.tiers" .root | fromJsonArray) -}}
{{- range $role := include "flyserve.inhabitants" . | fromJsonArray -}}
{{- $files = append $files (get $values $role).model -}}
{{- end -}}
{{- end -}}
{{- compact $files | toJson -}}
{{- end -}}

{{/* Access of a role's pods to models, as JSON: claim (empty: nothing is mounted), isReadOnly, usesHub.
NOTE: routers read the tokenizer alone. Those that may use the hub fetch it, and need no volume.
Arguments: root, role. */}}
{{- define "flyserve.modelAccess" -}}
{{- $models := .root.Values.models -}}
{{- $onVolume := false -}}{{- $onHub := false -}}
{{- range $file := include "flyserve.modelFiles" . | fromJsonArray -}}
{{- if hasPrefix (printf "%s/" $models.mountPath) $file -}}{{- $onVolume = true -}}{{- end -}}
{{- if include "flyserve.isHubId" $file -}}{{- $onHub = true -}}{{- end -}}
{{- end -}}
{{- $keepsHub := and $onHub (not (and (eq .role "router") $models.hub.online)) -}}
{{- dict
    "claim" (ternary (include "flyserve.claim" .root) "" (or $onVolume $keepsHub))
    "isReadOnly" (or (eq .role "router") (not $models.hub.online))
    "usesHub" $onHub
  | toJson -}}
{{- end -}}

{{/* `yes` for org/name@revision, else empty. Argument: a model. */}}
{{- define "flyserve.isHubId" -}}
{{- if contains "@" . -}}yes{{- end -}}
{{- end -}}

{{/* Environment of the pods of a role: a home that can be written, and the hub for those that read models of it.
Arguments: root, role. */}}
{{- define "flyserve.modelEnv" -}}
{{- $access := include "flyserve.modelAccess" . | fromJson -}}
{{- $models := .root.Values.models -}}
- {name: HOME, value: /tmp}
{{- if $access.usesHub }}
- name: HF_HOME
  value: {{ ternary $models.mountPath "/tmp" (ne $access.claim "") }}/hub
- name: HF_HUB_OFFLINE
  value: {{ ternary "0" "1" $models.hub.online | quote }}
{{- with $models.hub.tokenSecret }}
{{- if .name }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Mounts of the pods of a role. Arguments: root, role. */}}
{{- define "flyserve.mounts" -}}
{{- $access := include "flyserve.modelAccess" . | fromJson -}}
- {name: tmp, mountPath: /tmp}
- {name: config, mountPath: /etc/flyserve, readOnly: true}
{{- if $access.claim }}
- {name: models, mountPath: {{ .root.Values.models.mountPath }}, readOnly: {{ $access.isReadOnly }}}
{{- end }}
{{- end -}}

{{/* Arguments: as above. */}}
{{- define "flyserve.volumes" -}}
{{- $access := include "flyserve.modelAccess" . | fromJson -}}
- {name: tmp, emptyDir: {}}
- {name: config, configMap: {name: {{ include "flyserve.fullname" .root }}-config}}
{{- with $access.claim }}
- {name: models, persistentVolumeClaim: {claimName: {{ . }}}}
{{- end }}
{{- end -}}

{{/* A volume that one node mounts serves one pod: the scheduler does not bring several together. */}}
{{- define "flyserve.checkSharedVolume" -}}
{{- if and .Values.models.persistence.size (eq .Values.models.persistence.accessMode "ReadWriteOnce") -}}
{{- $remedy := "set models.persistence.accessMode to ReadWriteMany" -}}
{{- $roles := list -}}
{{- range $role := include "flyserve.hosts" . | fromJsonArray | concat (list "router") -}}
{{- if (include "flyserve.modelAccess" (dict "root" $ "role" $role) | fromJson).claim -}}
{{- $roles = append $roles $role -}}
{{- end -}}
{{- end -}}
{{- if has "router" $roles -}}
{{- fail (printf "models.persistence.accessMode: is ReadWriteOnce, which one node can mount, but routers would read the tokenizer from it, too: %s, or target.model to org/name@revision with models.hub.online, so that routers fetch it" $remedy) -}}
{{- end -}}
{{- if gt (len $roles) 1 -}}
{{- fail (printf "models.persistence.accessMode: is ReadWriteOnce, which one node can mount, but pods of %s would: %s, or pods.<role>.runsWith, so that they share pods" (join " and " $roles) $remedy) -}}
{{- end -}}
{{- range $role := $roles -}}
{{- $pods := mul (include "flyserve.podSize" (dict "root" $ "role" $role) | fromJson).max (include "flyserve.clusters" $ | fromJsonArray | len) | int -}}
{{- if gt $pods 1 -}}
{{- fail (printf "models.persistence.accessMode: is ReadWriteOnce, which one node can mount, but there can be %d pods of %s: %s, or see that there is one (%s.replicas, pods.%s.replicasPerPod, rollout.surge 0, no ray.standby)" $pods $role $remedy $role $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
