{{/* Ways in from outside of the cluster: load balancer, Ingress, routes of the Gateway API. */}}

{{/* Protocol of a public port for load balancers and gateways; empty leaves it open.
NOTE: gRPC over TLS has no standard name, and a gateway rejects names that it does not know; without one it asks by ALPN.
Arguments: root, api (grpc or http). */}}
{{- define "flyserve.appProtocol" -}}
{{- $byDefault := ternary (dict "http" "https") (dict "grpc" "kubernetes.io/h2c" "http" "http") (eq (include "flyserve.hasTls" .root) "yes") -}}
{{- get .root.Values.service.appProtocols .api | default (get $byDefault .api) -}}
{{- end -}}

{{/* The APIs that have a route of the Gateway API, as a JSON list: name, port, hostnames, annotations. */}}
{{- define "flyserve.routed" -}}
{{- $found := list -}}
{{- range include "flyserve.routerPorts" . | fromJsonArray -}}
{{- if .isPublic -}}
{{- $route := get $.Values.gateway .name -}}
{{- if $route.hostnames -}}
{{- $found = append $found (merge (dict "name" .name "port" .port) $route) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "flyserve.checkWaysIn" -}}
{{- include "flyserve.checkLoadBalancer" . -}}
{{- include "flyserve.checkIngress" . -}}
{{- include "flyserve.checkGateway" . -}}
{{- end -}}

{{- define "flyserve.checkLoadBalancer" -}}
{{- range $key := list "loadBalancerClass" "loadBalancerSourceRanges" -}}
{{- if and (get $.Values.service $key) (ne $.Values.service.type "LoadBalancer") -}}
{{- fail (printf "service.%s: is set, but service.type is %s: set service.type to LoadBalancer, or remove it" $key $.Values.service.type) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkIngress" -}}
{{- $http := .Values.ingress.http -}}
{{- $grpc := .Values.ingress.grpc -}}
{{- if and $http.host (not .Values.router.http_port) -}}
{{- fail (printf "ingress.http.host: is %s, but router.http_port is null, so that routers serve no HTTP: give a port" $http.host) -}}
{{- end -}}
{{- if and $http.host (eq $http.host $grpc.host) -}}
{{- fail (printf "ingress.grpc.host: is %s, as ingress.http.host is, but a controller needs the protocol of a host: give each its own" $grpc.host) -}}
{{- end -}}
{{- range $api, $ingress := dict "http" $http "grpc" $grpc -}}
{{- if and $ingress.tlsSecret (not $ingress.host) -}}
{{- fail (printf "ingress.%s.tlsSecret: is %s, but ingress.%s.host is empty: name the host of the certificate" $api $ingress.tlsSecret $api) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "flyserve.checkGateway" -}}
{{- $gateway := .Values.gateway -}}
{{- $http := $gateway.http.hostnames | default list -}}
{{- $grpc := $gateway.grpc.hostnames | default list -}}
{{- $both := concat $http $grpc -}}
{{- if $both -}}
{{- if not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1") -}}
{{- fail "gateway: this cluster does not know the Gateway API: install it, 1.1 or later, or use ingress; to render without a cluster, add --api-versions gateway.networking.k8s.io/v1" -}}
{{- end -}}
{{- if not $gateway.parentRefs -}}
{{- fail "gateway.parentRefs: is empty, but there are hostnames: name the Gateway that serves them" -}}
{{- end -}}
{{- if and $http (not .Values.router.http_port) -}}
{{- fail "gateway.http.hostnames: are set, but router.http_port is null, so that routers serve no HTTP: give a port" -}}
{{- end -}}
{{- range $both | uniq -}}
{{- if and (has . $http) (has . $grpc) -}}
{{- fail (printf "gateway.grpc.hostnames: %s is one of gateway.http.hostnames, too, and a Gateway accepts only one of two such routes: give each its own" .) -}}
{{- end -}}
{{- end -}}
{{- if include "flyserve.hasTls" . -}}
{{- if not $gateway.backendCa -}}
{{- fail "gateway.backendCa: is empty, but security.tls is set: name a ConfigMap whose ca.crt signs the routers' certificate" -}}
{{- end -}}
{{- if not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1/BackendTLSPolicy") -}}
{{- fail "gateway.backendCa: this cluster does not know BackendTLSPolicy, without which a gateway does not encrypt towards routers: install the Gateway API 1.4 or later; to render without a cluster, add --api-versions gateway.networking.k8s.io/v1/BackendTLSPolicy" -}}
{{- end -}}
{{- end -}}
{{- else if $gateway.parentRefs -}}
{{- fail "gateway.parentRefs: are set, but there is no route: give gateway.http.hostnames, gateway.grpc.hostnames, or both" -}}
{{- end -}}
{{- if and $gateway.backendCa (not (include "flyserve.hasTls" .)) -}}
{{- fail (printf "gateway.backendCa: is %s, but security.tls is null, so that routers do not encrypt: set security.tls, or remove it" $gateway.backendCa) -}}
{{- end -}}
{{- end -}}
