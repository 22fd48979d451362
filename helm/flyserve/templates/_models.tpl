{{/* Where models come from, and which pods read them: only those that load weights mount the claim. */}}

{{/* Claim of the models' volume; empty if there is none. */}}
{{- define "flyserve.claim" -}}
{{- if .Values.models.persistence.size -}}
{{- include "flyserve.fullname" . }}-models
{{- else -}}
{{- .Values.models.existingClaim | default "" -}}
{{- end -}}
{{- end -}}

{{/* Source of the models' volume, as JSON: a claim, or an image; empty if there is none. */}}
{{- define "flyserve.modelVolume" -}}
{{- with include "flyserve.claim" . -}}
{{- dict "persistentVolumeClaim" (dict "claimName" .) | toJson -}}
{{- else -}}
{{- with .Values.models.ociImage -}}{{- dict "image" (dict "reference" . "pullPolicy" $.Values.image.pullPolicy) | toJson -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Files that the pods of a role read, as a JSON list: models, the chat template of routers, and the target's tokenizer if a
drafter maps its drafts by their text. The head, Jobs and sub-drafters that look tokens up read none. Arguments: root, role. */}}
{{- define "flyserve.modelFiles" -}}
{{- $values := .root.Values -}}
{{- $files := list -}}
{{- if eq .role "router" -}}
{{- $files = list $values.target.model (dig "chat_template" "" $values.router) -}}
{{- else if has .role (include "flyserve.tiers" .root | fromJsonArray) -}}
{{- range $role := include "flyserve.inhabitants" . | fromJsonArray -}}
{{- $filled := include "flyserve.filledKeys" (dict "root" $.root "role" $role) | fromJson -}}
{{- $files = append $files ((get $values $role).model | default $filled.model) -}}
{{- if eq ((get $values $role).vocabulary | default "same") "text" -}}{{- $files = append $files $values.target.model -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- compact $files | toJson -}}
{{- end -}}

{{/* Access of a role's pods to models, as JSON: volume (source; empty: none is mounted), isReadOnly, usesHub, space (of an emptyDir
into which the pod fetches weights; empty: none).
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
    "volume" (ternary (include "flyserve.modelVolume" .root) "" (or $onVolume $keepsHub))
    "isReadOnly" (or (eq .role "router") (not $models.hub.online))
    "usesHub" $onHub
    "space" (ternary $models.hub.ephemeralSize "" (include "flyserve.fetchesWeights" (dict "root" .root "role" .role "onHub" $onHub) | eq "yes"))
  | toJson -}}
{{- end -}}

{{/* `yes` if the pods of a role fetch weights and no claim keeps them, else empty. Arguments: root, role, onHub. */}}
{{- define "flyserve.fetchesWeights" -}}
{{- if and .onHub .root.Values.models.hub.online (ne .role "router") (not (include "flyserve.modelVolume" .root)) -}}yes{{- end -}}
{{- end -}}

{{/* `yes` for org/name@revision, else empty. Argument: a model. */}}
{{- define "flyserve.isHubId" -}}
{{- if regexMatch "^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*@[A-Za-z0-9_./-]+$" . -}}yes{{- end -}}
{{- end -}}

{{/* Environment of the pods of a role: a home that can be written, and the hub for those that read models of it.
Arguments: root, role. */}}
{{- define "flyserve.modelEnv" -}}
{{- $access := include "flyserve.modelAccess" . | fromJson -}}
{{- $models := .root.Values.models -}}
{{- $keepsNothing := and (empty $access.volume) (empty $access.space) -}}
{{- $onlyReads := and $access.isReadOnly $models.hub.online -}}
- {name: HOME, value: /tmp}
{{- if $access.usesHub }}
- name: HF_HOME
  value: {{ ternary "/tmp" $models.mountPath (or $keepsNothing $onlyReads) }}/hub
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
{{- if or $access.volume $access.space }}
- {name: models, mountPath: {{ .root.Values.models.mountPath }}, readOnly: {{ $access.isReadOnly }}}
{{- end }}
{{- end -}}

{{/* Arguments: as above. */}}
{{- define "flyserve.volumes" -}}
{{- $access := include "flyserve.modelAccess" . | fromJson -}}
{{ include "flyserve.tmpVolume" . }}
- {name: config, configMap: {name: {{ include "flyserve.fullname" .root }}-config}}
{{- with $access.volume }}
- {{ fromJson . | merge (dict "name" "models") | toJson }}
{{- end }}
{{- with $access.space }}
- {name: models, emptyDir: {sizeLimit: {{ . }}}}
{{- end }}
{{- end -}}

{{/* Scratch space of a pod: logs, caches. A pod that needs more of its node is evicted. Arguments: root, role. */}}
{{- define "flyserve.tmpVolume" -}}
- {name: tmp, emptyDir: {sizeLimit: {{ (get .root.Values.pods .role).tmpSize }}}}
{{- end -}}

{{/* A volume that one node mounts serves one pod: the scheduler does not bring several together. */}}
{{- define "flyserve.checkSharedVolume" -}}
{{- if and .Values.models.persistence.size (eq .Values.models.persistence.accessMode "ReadWriteOnce") -}}
{{- $remedy := "set models.persistence.accessMode to ReadWriteMany" -}}
{{- $roles := list -}}
{{- range $role := include "flyserve.hosts" . | fromJsonArray | concat (list "router") -}}
{{- if (include "flyserve.modelAccess" (dict "root" $ "role" $role) | fromJson).volume -}}
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
