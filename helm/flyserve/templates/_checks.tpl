{{/* Checks across values, which a schema cannot express. Each names the key and the remedy. */}}

{{- define "flyserve.checks" -}}
{{- include "flyserve.checkApi" . -}}
{{- include "flyserve.checkNames" . -}}
{{- include "flyserve.checkModels" . -}}
{{- include "flyserve.checkSpeculation" . -}}
{{- include "flyserve.checkSecurity" . -}}
{{- include "flyserve.checkRouter" . -}}
{{- include "flyserve.checkRay" . -}}
{{- include "flyserve.checkMonitoring" . -}}
{{- include "flyserve.checkPorts" . -}}
{{- include "flyserve.checkSchedule" . -}}
{{- if .Values.checks.quotas -}}{{- include "flyserve.checkQuotas (checks.quotas: false skips this)" . -}}{{- end -}}
{{- range $cluster := include "flyserve.clusters" . | fromJsonArray -}}
{{- $own := dict -}}
{{- include "flyserve.fillRoot" (dict "root" $ "cluster" $cluster "own" $own) -}}
{{- range $role := include "flyserve.tiers" $own | fromJsonArray -}}
{{- include "flyserve.checkTier" (dict "root" $own "role" $role) -}}
{{- include "flyserve.checkPods" (dict "root" $own "role" $role) -}}
{{- end -}}
{{- if and $own.Values.checks.kuberay $own.Values.ray.gcsFaultTolerance.rocksdb.enabled -}}
{{- include "flyserve.checkKubeRay (checks.kuberay: false skips this)" (dict "root" $own "cluster" $cluster) -}}
{{- end -}}
{{- end -}}
{{- include "flyserve.checkRequests" . -}}
{{- include "flyserve.checkRunning" (dict "root" . "live" (include "flyserve.liveClusters" . | fromJsonArray)) -}}
{{- end -}}

{{- define "flyserve.checkApi" -}}
{{- if not (.Capabilities.APIVersions.Has "ray.io/v1") -}}
{{- fail "ray.io/v1: this cluster does not know RayCluster: install the KubeRay operator, 1.6 or later, first; to render without a cluster, add --api-versions ray.io/v1" -}}
{{- end -}}
{{- if and (.Capabilities.APIVersions.Has "ray.io/v1/RayCluster") (not (.Capabilities.APIVersions.Has "ray.io/v1/RayCronJob")) -}}
{{- fail "ray.io/v1: this cluster's KubeRay is older than 1.6, which brings RayCronJob: upgrade the operator and its CustomResourceDefinitions, which helm upgrade does not do by itself" -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkModels" -}}
{{- if and .Values.models.existingClaim .Values.models.persistence.size -}}
{{- fail "models.existingClaim: is set, and models.persistence.size, too: keep one of them" -}}
{{- end -}}
{{- include "flyserve.checkOciImage" . -}}
{{- include "flyserve.checkSharedVolume" . -}}
{{- $kvHeads := int .Values.models.kvHeads -}}
{{- $shards := int (.Values.target.shards | default (include "flyserve.defaults" . | fromJson).shards) -}}
{{- if and $kvHeads (mod $kvHeads $shards) -}}
{{- fail (printf "target.shards: is %d, which does not divide the model's %d KV heads (models.kvHeads): take a divisor of %d" $shards $kvHeads $kvHeads) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, role. */}}
{{- define "flyserve.checkTier" -}}
{{- $values := .root.Values -}}
{{- $tier := get $values .role -}}
{{- $filled := include "flyserve.filledKeys" . | fromJson -}}
{{- $model := $tier.model | default $filled.model | default "" -}}
{{- if and (include "flyserve.isHubId" $model) (not $values.models.hub.online) (not (include "flyserve.modelVolume" .root)) -}}
{{- fail (printf "%s.model: is %s, of the model hub: set models.hub.online to true, or models.existingClaim to a claim whose folder hub holds it" .role $model) -}}
{{- end -}}
{{- if and (hasPrefix (printf "%s/" $values.models.mountPath) $model) (not (include "flyserve.modelVolume" .root)) -}}
{{- fail (printf "%s.model: is %s, but nothing is mounted at %s: set models.existingClaim, models.persistence.size or models.ociImage" .role $model $values.models.mountPath) -}}
{{- end -}}
{{- include "flyserve.checkEngine" . -}}
{{- if and (eq .role "sub_drafter") (include "flyserve.looksUp" (dict "root" .root "role" "drafter")) -}}
{{- fail (printf "sub_drafter: helps a drafter that runs a model, but drafter.engine is %s: set sub_drafter to null" $values.drafter.engine) -}}
{{- end -}}
{{- include "flyserve.checkShardsOnGpus" . -}}
{{- $runsModel := not (or (eq (include "flyserve.isOnVllm" .) "yes") (eq (include "flyserve.looksUp" .) "yes")) -}}
{{- if and $runsModel (eq (toString $tier.kv_tokens) "auto") (ne (float64 ($filled.gpus | default $tier.gpus | default 0)) 1.0) -}}
{{- fail (printf "%s.kv_tokens: is auto, the memory of whole GPUs, but %s.gpus is %v, must be 1: set kv_tokens to a number" .role .role ($tier.gpus | default 0)) -}}
{{- end -}}
{{- if $tier.autoscaling -}}
{{- include "flyserve.checkAutoscaling" . -}}
{{- else if lt (int (include "flyserve.numbers" . | fromJson).first) 1 -}}
{{- fail (printf "%s.replicas: is 0, must be at least 1; target.autoscaling.min: 0 stops an idle target" .role) -}}
{{- end -}}
{{- end -}}

{{/* A tier has the keys of its engine, and a model if its engine runs one.
NOTE: no rule of the schema: helm lint validates the chart's own values even where null removes them. Arguments: root, role. */}}
{{- define "flyserve.checkEngine" -}}
{{- $tier := get .root.Values .role -}}
{{- $engines := get (include "flyserve.engines" .root | fromJson) .role -}}
{{- $engine := $tier.engine | default (include "flyserve.filledKeys" . | fromJson).engine | default $engines.default -}}
{{- range $key, $value := $tier -}}
{{- $having := list -}}
{{- range $name, $keys := $engines.keys -}}
{{- if has $key $keys -}}{{- $having = append $having $name -}}{{- end -}}
{{- end -}}
{{- if not (or (has $engine $having) (kindIs "invalid" $value)) -}}
{{- fail (printf "%s.%s: engine %s has no such key, only %s: set %s.%s to null" $.role $key $engine (join ", " $having) $.role $key) -}}
{{- end -}}
{{- end -}}
{{- if and (has "model" (get $engines.keys $engine)) (not $tier.model) (eq .role "target") -}}
{{- fail (printf "%s.model: is empty, but the engine %s runs one: name it" .role $engine) -}}
{{- end -}}
{{- end -}}

{{/* Two shards never share a GPU: they have fractions above 0.5, and processes of vLLM whole GPUs. Arguments: root, role. */}}
{{- define "flyserve.checkShardsOnGpus" -}}
{{- $n := include "flyserve.numbers" . | fromJson -}}
{{- $isOnVllm := eq (include "flyserve.isOnVllm" .) "yes" -}}
{{- if and (gt $n.processes 1.0) (gt $n.gpus 0.0) (lt $n.gpus 1.0) (or $isOnVllm (le $n.gpus 0.5)) -}}
{{- fail (printf "%s.gpus: is %v, must be %s for each of the %v processes of a replica, which cannot share a GPU: set it to 1" .role $n.gpus (ternary "1" "above 0.5" $isOnVllm) $n.processes) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, role. */}}
{{- define "flyserve.checkAutoscaling" -}}
{{- $numbers := include "flyserve.numbers" . | fromJson -}}
{{- $first := int $numbers.first -}}{{- $min := int $numbers.min -}}{{- $max := int $numbers.max -}}
{{- if gt $min $max -}}
{{- fail (printf "%s.autoscaling.min: is %d, beyond autoscaling.max of %d: raise max" .role $min $max) -}}
{{- end -}}
{{- if or (lt $first $min) (gt $first $max) -}}
{{- fail (printf "%s.replicas: is %d, but autoscaling goes from %d to %d: set it to a number between them, with which it begins" .role $first $min $max) -}}
{{- end -}}
{{- if and (not $min) (ne .role "target") -}}
{{- fail (printf "%s.autoscaling.min: is 0, must be at least 1: only target can be stopped while it is idle" .role) -}}
{{- end -}}
{{- if and (not $min) (not (hasKey (.root.Values.router | default dict) "replica_wait_s")) -}}
{{- fail "target.autoscaling.min: is 0, but router.replica_wait_s is not set: set it to the seconds that a target needs to start, such as 300; requests wait for so long" -}}
{{- end -}}
{{- $isGuest := get .root.Values.pods .role | dig "runsWith" "" -}}
{{- if not (or $isGuest .root.Values.ray.autoscaling.enabled) -}}
{{- $perPod := get .root.Values.pods .role | dig "replicasPerPod" 1 | int -}}
{{- $places := mul (include "flyserve.podSize" . | fromJson).first $perPod | int -}}
{{- if gt $max $places -}}
{{- fail (printf "%s.autoscaling.max: is %d, but ray.autoscaling.enabled is false, and the %d pods that there are have %d places: set ray.autoscaling.enabled to true" .role $max (div $places $perPod) $places) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkSpeculation" -}}
{{- with .Values.speculation -}}
{{- $preset := .preset | default (include "flyserve.defaults" $ | fromJson).preset -}}
{{- $own := get (default dict .presets) $preset | default dict -}}
{{- $base := ternary ($own.preset | default (include "flyserve.defaults" $ | fromJson).preset) $preset (hasKey (default dict .presets) $preset) -}}
{{- $window := int (.window | default $own.window | default (get (include "flyserve.windows" $ | fromJson) $base)) -}}
{{- if gt (int .carry_after) $window -}}
{{- fail (printf "speculation.carry_after: is %d, must be at most the window of %d" (int .carry_after) $window) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkRouter" -}}
{{- $taken := dict -}}
{{- range include "flyserve.routerPorts" . | fromJsonArray -}}
{{- $number := .port | toString -}}
{{- if eq $number "0" -}}
{{- fail (printf "router: the port %s is 0, any free one, which no Service can name: give a number" .name) -}}
{{- end -}}
{{- if hasKey $taken $number -}}
{{- fail (printf "router: the ports %s and %s are both %s: give each its own (router.grpc_port, router.http_port, security.health_port, telemetry.metrics_port)" (get $taken $number) .name $number) -}}
{{- end -}}
{{- $_ := set $taken $number .name -}}
{{- end -}}
{{- with .Values.pods.router.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "pods.router.autoscaling.minReplicas: is %d, beyond maxReplicas of %d: raise maxReplicas" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.pods.router.keda.prometheus -}}
{{- if not $.Values.pods.router.autoscaling.enabled -}}
{{- fail (printf "pods.router.keda.prometheus: is %s, but pods.router.autoscaling.enabled is false: set it to true; its minReplicas and maxReplicas are KEDA's limits" .) -}}
{{- end -}}
{{- if not ($.Capabilities.APIVersions.Has "keda.sh/v1alpha1") -}}
{{- fail "pods.router.keda.prometheus: this cluster does not know ScaledObject: install KEDA, or leave it empty to scale by CPU; to render without a cluster, add --api-versions keda.sh/v1alpha1" -}}
{{- end -}}
{{- end -}}
{{- $least := include "flyserve.fewestRouters" . | int -}}
{{- $available := int .Values.pods.router.minAvailable -}}
{{- if and (gt $least 1) (ge $available $least) -}}
{{- fail (printf "pods.router.minAvailable: is %d, but there may be only %d routers, so that no node could be drained: lower it below %d" $available $least $least) -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkSecurity" -}}
{{- $secrets := .Values.secrets -}}
{{- if include "flyserve.hasTls" . -}}
{{- range $role := include "flyserve.tiers" . | fromJsonArray | concat (list "router" "controller") -}}
{{- if not (get $secrets.tls $role) -}}
{{- fail (printf "secrets.tls.%s: is empty, but security.tls is set: name the Secret with tls.crt, tls.key and ca.crt of %s.flyserve" $role ($role | replace "_" "-")) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.security.health_port -}}
{{- fail "security.health_port: is null, but probes cannot do TLS: give a port" -}}
{{- end -}}
{{- else -}}
{{- range $role, $name := $secrets.tls -}}
{{- if $name -}}
{{- fail (printf "security.tls: is null, which encrypts nothing, but secrets.tls.%s is %s: set security.tls to {}, or remove the Secret" $role $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.security.auth_tokens_file (not $secrets.authTokens) -}}
{{- fail "secrets.authTokens: is empty, but security.auth_tokens_file is set: name the Secret that holds this file" -}}
{{- end -}}
{{- if and $secrets.authTokens (not .Values.security.auth_tokens_file) -}}
{{- fail (printf "security.auth_tokens_file: is null, which accepts every client, but secrets.authTokens is %s: name the file in it, or remove the Secret" $secrets.authTokens) -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes refuses a pod with a container that requests more than its limit. */}}
{{- define "flyserve.checkRequests" -}}
{{- $test := dict "key" "pods.test" "resources" .Values.pods.test.resources -}}
{{- range $container := include "flyserve.firstContainers" . | fromJsonArray | concat (list $test) -}}
{{- range $resource, $limit := dig "limits" dict (.resources | default dict) -}}
{{- $request := include "flyserve.amount" (dict "resources" $container.resources "kind" "requests" "resource" $resource) -}}
{{- if gt (include "flyserve.quantity" $request | float64) (include "flyserve.quantity" $limit | float64) -}}
{{- $follows := and (eq $resource "cpu") (regexMatch "target|drafter" $container.key) | ternary ", which follows from the threads of the replicas unless it is given" "" -}}
{{- fail (printf "%s.resources.requests.%s: is %s, above %s.resources.limits.%s of %v: raise the limit, or lower the request%s" $container.key $resource $request $container.key $resource $limit $follows) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkMonitoring" -}}
{{- $knows := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- $metricsPort := include "flyserve.metricsPort" . -}}
{{- range $key, $kind := dict "serviceMonitor" "ServiceMonitor" "alerts" "PrometheusRule" -}}
{{- if (get $.Values.monitoring $key).enabled -}}
{{- if not $knows -}}
{{- fail (printf "monitoring.%s.enabled: this cluster does not know %s: install the Prometheus operator, or set it to false" $key $kind) -}}
{{- end -}}
{{- if not $metricsPort -}}
{{- fail (printf "monitoring.%s.enabled: there are no metrics: set telemetry.metrics_port" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The pods of vLLM have an image of their own. Arguments: root, role, host. */}}
{{- define "flyserve.checkGuestEngine" -}}
{{- $isGuestOnVllm := include "flyserve.isOnVllm" . -}}
{{- $isHostOnVllm := include "flyserve.isOnVllm" (dict "root" .root "role" .host) -}}
{{- $runsModel := not (include "flyserve.looksUp" .) -}}
{{- if and $isGuestOnVllm (not $isHostOnVllm) -}}
{{- fail (printf "pods.%s.runsWith: is %s, whose pods have no vLLM: leave it empty, or set %s.engine to vllm, too" .role .host .host) -}}
{{- end -}}
{{- if and $isHostOnVllm $runsModel (not $isGuestOnVllm) -}}
{{- fail (printf "pods.%s.runsWith: is %s, whose pods have vLLM alone, without the builtin engine: leave it empty" .role .host) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, role. */}}
{{- define "flyserve.checkPods" -}}
{{- $values := .root.Values -}}
{{- $pod := get $values.pods .role -}}
{{- with $pod.runsWith -}}
{{- if eq . $.role -}}
{{- fail (printf "pods.%s.runsWith: is the role itself: leave it empty for pods of its own" $.role) -}}
{{- end -}}
{{- if not (has . (include "flyserve.hosts" $.root | fromJsonArray)) -}}
{{- fail (printf "pods.%s.runsWith: is %s, which has no pods of its own: name a role that has" $.role .) -}}
{{- end -}}
{{- include "flyserve.checkGuestEngine" (dict "root" $.root "role" $.role "host" .) -}}
{{- if $pod.gpus -}}
{{- fail (printf "pods.%s.gpus: is %d, but its replicas run in the pods of %s: count them in pods.%s.gpus" $.role (int $pod.gpus) . .) -}}
{{- end -}}
{{- $numbers := include "flyserve.numbers" $ | fromJson -}}
{{- $host := include "flyserve.podSize" (dict "root" $.root "role" .) | fromJson -}}
{{- $places := mul $host.min $pod.replicasPerPod -}}
{{- if gt (int $numbers.max) (int $places) -}}
{{- fail (printf "pods.%s.replicasPerPod: is %d, which makes %d places in the %d pods of %s for %d replicas: raise it" $.role (int $pod.replicasPerPod) (int $places) (int $host.min) . (int $numbers.max)) -}}
{{- end -}}
{{- else -}}
{{- $size := include "flyserve.podSize" . | fromJson -}}
{{- if ne (int $size.gpus) (int $pod.gpus) -}}
{{- fail (printf "pods.%s.gpus: is %d, but the replicas in one pod take %d (replicasPerPod x %s.gpus%s, and those of its guests): set pods.%s.gpus to %d, or change the others" .role (int $pod.gpus) (int $size.gpus) .role (ternary " x target.shards" "" (eq .role "target")) .role (int $size.gpus)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
