{{/* Checks of the places that models come from. */}}

{{- define "flyserve.checkModelSources" -}}
{{- range $role := include "flyserve.tiers" . | fromJsonArray -}}
{{- with (get $.Values $role).model -}}
{{- include "flyserve.checkModelName" (dict "root" $ "key" (printf "%s.model" $role) "model" .) -}}
{{- end -}}
{{- end -}}
{{- include "flyserve.checkFetchedWeights" . -}}
{{- include "flyserve.checkFetch" . -}}
{{- end -}}

{{/* A folder, or org/name@revision. Arguments: root, key, model. */}}
{{- define "flyserve.checkModelName" -}}
{{- if hasPrefix "hf://" .model -}}
{{- fail (printf "%s: is %s: a model of the hub is written org/name@revision here" .key .model) -}}
{{- end -}}
{{- if contains "://" .model -}}
{{- fail (printf "%s: is %s, but pods read models from folders and from the hub: fetch it with models.fetch, or fill models.existingClaim, and name its folder, such as %s/FOLDER" .key .model .root.Values.models.mountPath) -}}
{{- end -}}
{{- if and (regexMatch "^[^./~@][^/@]*/[^/@]+@?$" .model) (not (hasPrefix "./" .model)) -}}
{{- fail (printf "%s: is %s, without a revision: write %s@main, or better a commit; a folder of the image is ./%s" .key .model (trimSuffix "@" .model) (trimSuffix "@" .model)) -}}
{{- end -}}
{{- end -}}

{{/* Weights that every pod would fetch into the disk of its node. */}}
{{- define "flyserve.checkFetchedWeights" -}}
{{- $hub := .Values.models.hub -}}
{{- range $role := include "flyserve.tiers" . | fromJsonArray -}}
{{- $model := (get $.Values $role).model | default "" -}}
{{- $onHub := eq (include "flyserve.isHubId" $model) "yes" -}}
{{- if and (include "flyserve.fetchesWeights" (dict "root" $ "role" $role "onHub" $onHub)) (not $hub.ephemeralSize) -}}
{{- fail (printf "%s.model: is %s of the model hub, and nothing keeps it, so that every pod would fetch it into its node's disk: set models.existingClaim or models.persistence.size, or models.hub.ephemeralSize to the space that a pod may take" $role $model) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkFetch" -}}
{{- $models := .Values.models -}}
{{- $folders := list -}}
{{- range $model := $models.fetch.models -}}
{{- if not (include "flyserve.claim" $) -}}
{{- fail (printf "models.fetch.models: %s has no volume: set models.persistence.size or models.existingClaim" $model.source) -}}
{{- end -}}
{{- if and $models.persistence.size (ne $models.persistence.accessMode "ReadWriteMany") -}}
{{- fail (printf "models.persistence.accessMode: is %s, but a Job fills the volume that other pods read: set it to ReadWriteMany, or fill a claim yourself and name it in models.existingClaim" $models.persistence.accessMode) -}}
{{- end -}}
{{- if has $model.folder $folders -}}
{{- fail (printf "models.fetch.models: two of them have the folder %s: give each its own" $model.folder) -}}
{{- end -}}
{{- $folders = append $folders $model.folder -}}
{{- include "flyserve.checkFetchSource" (dict "root" $ "source" $model.source) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, source. */}}
{{- define "flyserve.checkFetchSource" -}}
{{- $scheme := splitList "://" .source | first -}}
{{- if eq $scheme "hf" -}}
{{- if not (include "flyserve.isHubId" (trimPrefix "hf://" .source)) -}}
{{- fail (printf "models.fetch.models: %s has no revision: write hf://org/name@main, or better a commit" .source) -}}
{{- end -}}
{{- else if eq $scheme "oci" -}}
{{- fail (printf "models.fetch.models: %s is an image, which is not fetched: mount it as a volume in pods.<role>.extra" .source) -}}
{{- else -}}
{{- $image := .root.Values.pods.fetch.image | default dict -}}
{{- if not (or $image.repository $image.tag $image.digest) -}}
{{- fail (printf "models.fetch.models: %s needs a client of %s, which the image does not have: build one with it (docs/kubernetes/install.md), and name it in pods.fetch.image" .source $scheme) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A volume from an image cannot be written, and older versions of Kubernetes have none. */}}
{{- define "flyserve.checkOciImage" -}}
{{- with .Values.models.ociImage -}}
{{- if include "flyserve.claim" $ -}}
{{- fail (printf "models.ociImage: is %s, but there is a claim of the models, too: keep one of models.existingClaim, models.persistence.size and models.ociImage" .) -}}
{{- end -}}
{{- if $.Values.models.hub.online -}}
{{- fail (printf "models.hub.online: is true, but the models are in the image %s, which cannot be written: set it to false" .) -}}
{{- end -}}
{{- if semverCompare "<1.33-0" $.Capabilities.KubeVersion.Version -}}
{{- fail (printf "models.ociImage: this cluster is Kubernetes %s, which has no image volumes: take 1.35 or later (1.33 with the feature gate ImageVolume), or a claim; to render without a cluster, add --kube-version 1.35.0" $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- end -}}
