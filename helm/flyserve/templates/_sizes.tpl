{{/* Number of pods of each role, and the resources that Ray counts in one of them. */}}

{{/* `yes` if the replicas of a role run on vLLM, else empty. Arguments: root, role. */}}
{{- define "flyserve.isOnVllm" -}}
{{- if eq (get .root.Values .role | default dict | dig "engine" "") "vllm" -}}yes{{- end -}}
{{- end -}}

{{/* `yes` if the replicas of a role look tokens up and run no model, else empty. Arguments: root, role. */}}
{{- define "flyserve.looksUp" -}}
{{- if ne .role "target" -}}
{{- $default := ternary (include "flyserve.defaults" . | fromJson).engine "" (eq .role "sub_drafter") -}}
{{- if has (get .root.Values .role | default dict | dig "engine" $default) (include "flyserve.lookupEngines" . | fromJsonArray) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Processes that compute one replica: shards, times the stages of a pipeline of vLLM. Arguments: root, role. */}}
{{- define "flyserve.processes" -}}
{{- $tier := get .root.Values .role -}}
{{- $shards := dig "shards" (include "flyserve.defaults" . | fromJson).shards $tier | int -}}
{{- $stages := ternary (dig "engine_args" "pipeline_parallel_size" 1 $tier) 1 (eq (include "flyserve.isOnVllm" .) "yes") -}}
{{- mul $shards (int $stages) -}}
{{- end -}}

{{/* Arguments: root, role. The numbers of a role, as JSON: replicas at first, at least and at most, as autoscaling
has them; processes of one replica, CPUs and GPUs of one process. */}}
{{- define "flyserve.numbers" -}}
{{- $tier := get .root.Values .role -}}
{{- $defaults := include "flyserve.defaults" . | fromJson -}}
{{- $scaling := get $tier "autoscaling" | default dict -}}
{{- $filled := include "flyserve.filledKeys" . | fromJson -}}
{{- $threads := dig "threads" $defaults.threads $tier -}}
{{- if eq (toString $threads) "auto" -}}{{- $threads = $tier.max_threads | default 1 -}}{{- end -}}
{{- $replicas := dig "replicas" (dig "min" $defaults.min $scaling | int | max 1) $tier | int -}}
{{- dict
    "first" $replicas
    "min" (ternary (dig "min" $defaults.min $scaling | int) $replicas (not (empty $scaling)))
    "max" (int (dig "max" $replicas $scaling))
    "processes" (include "flyserve.processes" . | int)
    "cpus" (ternary 0.5 ($threads | float64) (eq (include "flyserve.looksUp" .) "yes"))
    "gpus" ($filled.gpus | default (dig "gpus" $defaults.gpus $tier) | float64)
  | toJson -}}
{{- end -}}

{{/* Roles whose replicas run in the pods of this role, itself first, as a JSON list. Arguments: root, role. */}}
{{- define "flyserve.inhabitants" -}}
{{- $roles := list .role -}}
{{- range $guest := include "flyserve.tiers" .root | fromJsonArray -}}
{{- if eq (dig $guest "runsWith" "" $.root.Values.pods) $.role -}}
{{- $roles = append $roles $guest -}}
{{- end -}}
{{- end -}}
{{- toJson $roles -}}
{{- end -}}

{{/* Roles that have pods of their own, as a JSON list. */}}
{{- define "flyserve.hosts" -}}
{{- $hosts := list -}}
{{- range $role := include "flyserve.tiers" . | fromJsonArray -}}
{{- if not (dig $role "runsWith" "" $.Values.pods) -}}
{{- $hosts = append $hosts $role -}}
{{- end -}}
{{- end -}}
{{- toJson $hosts -}}
{{- end -}}

{{/* Number of GPUs that hold these requests, the largest first: like Ray, a fraction takes the fullest GPU with room
for it, so that three times 0.6 takes three. Argument: list of dicts with processes and gpus. */}}
{{- define "flyserve.wholeGpus" -}}
{{- $requests := list -}}
{{- range . -}}
{{- $asked := round (mulf .gpus 10000) 0 | int -}}
{{- range until (ternary (int .processes) 0 (gt $asked 0)) -}}
{{- $requests = append $requests (printf "%05d" $asked) -}}
{{- end -}}
{{- end -}}
{{- $free := dict -}}
{{- range sortAlpha $requests | reverse -}}
{{- $asked := atoi . -}}
{{- $chosen := len $free | toString -}}
{{- range $gpu, $left := $free -}}
{{- if and (ge $left $asked) (lt $left (get $free $chosen | default 10000 | int)) -}}
{{- $chosen = $gpu -}}
{{- end -}}
{{- end -}}
{{- $_ := set $free $chosen (sub (get $free $chosen | default 10000) $asked | int) -}}
{{- end -}}
{{- len $free -}}
{{- end -}}

{{/* Arguments: root, role. One pod of a role, as JSON: pods at first, at least and at most, Ray's CPUs and GPUs in each. */}}
{{- define "flyserve.podSize" -}}
{{- $root := .root -}}
{{- $numbers := include "flyserve.numbers" . | fromJson -}}
{{- $perPod := get $root.Values.pods .role | dig "replicasPerPod" 1 | float64 -}}
{{- $cpus := 0.0 -}}
{{- $onGpus := list -}}
{{- range $role := include "flyserve.inhabitants" . | fromJsonArray -}}
{{- $n := include "flyserve.numbers" (dict "root" $root "role" $role) | fromJson -}}
{{- $processes := mulf (get $root.Values.pods $role | dig "replicasPerPod" 1 | float64) $n.processes -}}
{{- $cpus = addf $cpus (mulf $processes $n.cpus) -}}
{{- $onGpus = append $onGpus (dict "processes" $processes "gpus" $n.gpus) -}}
{{- end -}}
{{- $defaults := include "flyserve.defaults" . | fromJson -}}
{{- $surge := dig "surge" $defaults.surge ($root.Values.rollout | default dict) | int -}}
{{- dict
    "first" (divf $numbers.first $perPod | ceil | int)
    "min" (divf $numbers.min $perPod | ceil | int)
    "max" (divf $numbers.max $perPod | ceil | int | add $surge)
    "cpus" (ceil $cpus | int)
    "gpus" (include "flyserve.wholeGpus" $onGpus | int)
  | toJson -}}
{{- end -}}

{{/* Seconds that running streams have to finish where a replica or a router ends. */}}
{{- define "flyserve.drainSeconds" -}}
{{- dig "drain_s" (include "flyserve.defaults" . | fromJson).drain_s (.Values.rollout | default dict) | int -}}
{{- end -}}

{{/* Number of routers that always run. */}}
{{- define "flyserve.fewestRouters" -}}
{{- $routers := .Values.pods.router -}}
{{- ternary $routers.autoscaling.minReplicas $routers.replicas $routers.autoscaling.enabled -}}
{{- end -}}
