{{/* Checks of single values, which a pattern of the schema would refuse without saying why. */}}

{{/* Services take this name, and a Service's name is a label of DNS. */}}
{{- define "flyserve.checkNames" -}}
{{- $name := include "flyserve.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) -}}
{{- fail (printf "fullnameOverride: objects would be called %s, which no Service may be: give lower-case letters, digits and hyphens, with a letter first" $name) -}}
{{- end -}}
{{- end -}}

{{/* Replicas take their metrics' ports from three hundreds above the routers'. */}}
{{- define "flyserve.checkPorts" -}}
{{- $from := include "flyserve.firstServicePort" . | int -}}{{- $to := include "flyserve.lastServicePort" . | int -}}
{{- $taken := list (dict "of" "their services have" "first" $from "last" $to) -}}
{{- range tuple (list 6379 6383) (list 8080 8080) (list 8265 8265) (list 10001 19999) (list 52365 52365) -}}
{{- $taken = append $taken (dict "of" "Ray has" "first" (first .) "last" (last .)) -}}
{{- end -}}
{{- with include "flyserve.metricsPort" . | int -}}
{{- $first := add . 100 | int -}}{{- $last := add . 399 | int -}}
{{- range $taken -}}
{{- if and (le $first .last) (ge $last .first) -}}
{{- fail (printf "telemetry.metrics_port: is %d, which gives replicas the ports %d to %d, but %s %d to %d: choose one below %d" (sub $first 100) $first $last .of .first .last (sub .first 399)) -}}
{{- end -}}
{{- end -}}
{{- if gt $last 65535 -}}
{{- fail (printf "telemetry.metrics_port: is %d, which gives replicas the ports %d to %d, beyond 65535: choose one below %d" . $first $last (sub $from 399)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkSchedule" -}}
{{- with .Values.apply.repeatSchedule -}}
{{- $numbers := list "[0-5]?[0-9]" "(1?[0-9]|2[0-3])" "([1-9]|[12][0-9]|3[01])" "([1-9]|1[0-2]|[a-z]{3})" "([0-7]|[a-z]{3})" -}}
{{- $fields := splitList " " . -}}
{{- $isValid := eq (len $fields) 5 -}}
{{- if $isValid -}}
{{- range $index, $number := $numbers -}}
{{- $part := printf "([*?]|%s(-%s)?)(/[0-9]+)?" $number $number -}}
{{- if not (regexMatch (printf "(?i)^%s(,%s)*$" $part $part) (index $fields $index)) -}}{{- $isValid = false -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (or $isValid (regexMatch "^@(yearly|annually|monthly|weekly|daily|midnight|hourly|every [0-9]+[smh])$" .)) -}}
{{- fail (printf "apply.repeatSchedule: is %s, which is no schedule of a CronJob: give five fields, such as */10 * * * *, or leave it empty to apply only on install and upgrade" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
