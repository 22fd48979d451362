{{/* A part of an object with another one merged over it, as JSON: {value: ...}. Mappings merge by key, and null removes a
key. Lists merge by the key that identifies an item, if every item has it; other lists are replaced.
Arguments: base, over, key (of both in the object that has them), wholeLists (true: every list is replaced). */}}
{{- define "flyserve.merged" -}}
{{- $value := .over -}}
{{- if and (kindIs "map" .base) (kindIs "map" .over) -}}
{{- $value = deepCopy .base -}}
{{- range $key, $item := .over -}}
{{- if kindIs "invalid" $item -}}
{{- $value = omit $value $key -}}
{{- else if hasKey $value $key -}}
{{- $_ := set $value $key (include "flyserve.merged" (dict "base" (get $value $key) "over" $item "key" $key "wholeLists" $.wholeLists) | fromJson).value -}}
{{- else -}}
{{- $_ := set $value $key $item -}}
{{- end -}}
{{- end -}}
{{- else if and (kindIs "slice" .base) (kindIs "slice" .over) -}}
{{- $id := get (dict "volumeMounts" "mountPath" "ports" "containerPort") (.key | default "") | default "name" -}}
{{- if and (not .wholeLists) (include "flyserve.allHave" (dict "items" (concat .base .over) "key" $id)) -}}
{{- $value = include "flyserve.mergedItems" (dict "base" .base "over" .over "id" $id) | fromJsonArray -}}
{{- end -}}
{{- end -}}
{{- dict "value" $value | toJson -}}
{{- end -}}

{{/* `yes` if all items are mappings with this key, else empty. Arguments: items, key. */}}
{{- define "flyserve.allHave" -}}
{{- $all := "yes" -}}
{{- range .items -}}
{{- if not (kindIs "map" .) -}}{{- $all = "" -}}{{- else if not (hasKey . $.key) -}}{{- $all = "" -}}{{- end -}}
{{- end -}}
{{- $all -}}
{{- end -}}

{{/* Items of two lists, merged by the key `id`, as a JSON list. Arguments: base, over, id. */}}
{{- define "flyserve.mergedItems" -}}
{{- $over := dict -}}
{{- range .over -}}{{- $_ := set $over (get . $.id | toString) . -}}{{- end -}}
{{- $made := list -}}
{{- $known := dict -}}
{{- range .base -}}
{{- $name := get . $.id | toString -}}
{{- $_ := set $known $name true -}}
{{- $made = append $made (include "flyserve.merged" (dict "base" . "over" (get $over $name | default dict)) | fromJson).value -}}
{{- end -}}
{{- range .over -}}
{{- if not (hasKey $known (get . $.id | toString)) -}}{{- $made = append $made . -}}{{- end -}}
{{- end -}}
{{- toJson $made -}}
{{- end -}}

{{/* Remove the values that are null, as helm does where the chart has a default. A part that is merged over something else
keeps them, since there they remove. NOTE: values are changed in place, so each file of objects begins with this.
Argument: the values. */}}
{{- define "flyserve.dropNulls" -}}
{{- range $key, $value := . -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $ $key -}}
{{- else if and (kindIs "map" $value) (not (has $key (list "extra" "values"))) -}}
{{- include "flyserve.dropNulls" $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
