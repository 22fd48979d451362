{{/* Checks of the Ray clusters and of where they keep their state. */}}

{{- define "flyserve.checkRay" -}}
{{- with .Values.ray -}}
{{- if eq .active .standby.name -}}
{{- fail (printf "ray.standby.name: is %s, as ray.active is: give the second cluster another name, such as green" .active) -}}
{{- end -}}
{{- range $key := list "image" "values" -}}
{{- if and (get $.Values.ray.standby $key) (not $.Values.ray.standby.name) -}}
{{- fail (printf "ray.standby.%s: is set without ray.standby.name: name the second cluster, such as green" $key) -}}
{{- end -}}
{{- end -}}
{{- $surge := dig "surge" (include "flyserve.defaults" $ | fromJson).surge ($.Values.rollout | default dict) | int -}}
{{- if and $surge (not .autoscaling.enabled) -}}
{{- fail (printf "rollout.surge: is %d, but ray.autoscaling.enabled is false, so that no pod is added for it: set rollout.surge to 0" $surge) -}}
{{- end -}}
{{- with .gcsFaultTolerance -}}
{{- range $key := list "usernameSecret" "passwordSecret" -}}
{{- if and (get $.Values.ray.gcsFaultTolerance $key).name (not $.Values.ray.gcsFaultTolerance.redisAddress) -}}
{{- fail (printf "ray.gcsFaultTolerance.redisAddress: is empty, but %s.name is set: give host:port of Redis" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .usernameSecret.name (not .passwordSecret.name) -}}
{{- fail "ray.gcsFaultTolerance.passwordSecret.name: is empty, but usernameSecret.name is set: name the Secret that holds the user's password" -}}
{{- end -}}
{{- if and .redisAddress .rocksdb.enabled -}}
{{- fail "ray.gcsFaultTolerance.rocksdb.enabled: is true, but redisAddress is set: keep one of them" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
