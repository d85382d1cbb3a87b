{{- define "image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Of each pod with our containers alone. */}}
{{- define "podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  fsGroup: 65534 # so that the container may read the Secrets
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "locked" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: ["ALL"]
{{- end }}

{{/* {port, ready, when}: probes of a daemon; no `ready`, no readinessProbe. */}}
{{- define "probes" -}}
{{- if .ready }}
readinessProbe:
  httpGet:
    path: {{ .ready }}
    port: http
  {{- toYaml .when | nindent 2 }}
{{- end }}
livenessProbe:
  httpGet:
    path: /livez
    port: {{ .port }}
  periodSeconds: 10
  failureThreshold: 3
{{- end }}

{{/* nats.creds and ca.crt, if these Secrets exist. */}}
{{- define "natsVolume" -}}
projected:
  defaultMode: 0440
  sources:
    - secret:
        name: {{ . }}
        optional: true
    - secret:
        name: nats-ca
        optional: true
{{- end }}

{{/* The group `nats` of both configurations. */}}
{{- define "natsConfig" -}}
nats = {
    url = {{ .Values.nats.url | quote }};
{{- if .Values.nats.credentials }}
    credentials = "/run/secrets/nats/nats.creds";
{{- end }}
{{- if .Values.nats.tls }}
    ca_file = "/run/secrets/nats/ca.crt";
{{- end }}
};
{{- end }}

{{- define "kvbridge.cfg" -}}
{{- if .Values.bridge.config }}
{{- .Values.bridge.config }}
{{- else -}}
{{ include "natsConfig" . }}
publish = {
    namespace = {{ .Values.publish.namespace | quote }};
    component = {{ .Values.publish.component | quote }};
    formats = {{ .Values.publish.formats | toJson }};
};
{{- if eq .Values.bridge.mode "sidecar" }}
workers = ({
    model = {{ .Values.engine.model | quote }};
    block_size = {{ .Values.engine.blockSize }};
    # The bridge listens and vLLM connects: vLLM binds its events only on all interfaces.
    events = "tcp://127.0.0.1:5557";
    bind = true;
    replay = "tcp://127.0.0.1:6557";
    load = { prometheus = "http://127.0.0.1:8000/metrics"; };
    address = "http://$(POD_IP):8000";
    tokenize = "http://$(POD_IP):8000";
});
watch_files = true;
{{- else }}
defaults = {
    block_size = {{ .Values.bridge.blockSize }};
    # For pods that name no ports.
    events_port = 5557;
    replay_port = 6557;
    metrics_port = 8000;
    tokenize = "address";
};
kubernetes = {
    selector = {{ .Values.bridge.selector | quote }};
{{- if eq .Values.bridge.mode "daemonset" }}
    field_selector = "spec.nodeName=$(NODE_NAME)";
{{- end }}
    preset = {{ .Values.bridge.preset | quote }};
    model_label = {{ .Values.bridge.modelLabel | quote }};
};
{{- end }}
checkpoint = "/var/lib/kvbridge";
# Requests need no token: a NetworkPolicy limits who reaches the port.
http = "0.0.0.0:9401";
http_security = { insecure = true; };
{{- end }}
{{- end }}

{{- define "kvaggregator.cfg" -}}
{{- if .Values.aggregator.config }}
{{- .Values.aggregator.config }}
{{- else -}}
{{ include "natsConfig" . }}
subscribe = { namespace = {{ .Values.publish.namespace | quote }}; component = {{ .Values.publish.component | quote }}; };
router = {
    namespace = {{ .Values.publish.namespace | quote }};
    component = {{ .Values.aggregator.routerComponent | quote }};
    queue_group = "q";
};
{{- if .Values.gateway.enabled }}
gateway = ({
    listen = "0.0.0.0:9002";
    # Gateways require TLS, and do not check the certificate.
    tls = { self_signed = true; };
    # They show none of their own either: a NetworkPolicy limits who reaches the port.
    insecure = true;
});
tokenize = { networks = ( {{- range $at, $one := .Values.gateway.engineNetworks }}{{ if $at }}, {{ end }}{{ $one | quote }}{{ end -}} ); };
{{- end }}
# Requests need no token: a NetworkPolicy limits who reaches the port.
http = "0.0.0.0:9402";
http_security = { insecure = true; };
{{- end }}
{{- end }}

{{/* {name, labels, port, job}: metrics of a daemon. */}}
{{- define "podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ .name }}
spec:
  selector:
    matchLabels:
      {{- toYaml .labels | nindent 6 }}
  podMetricsEndpoints:
    - port: {{ .port }}
      path: /metrics
      interval: 15s
      relabelings:
        # etc/alerts.yml and the dashboard select by this name.
        - targetLabel: job
          replacement: {{ .job }}
{{- end }}

{{/* {name, labels}: up to its rules. */}}
{{- define "networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
spec:
  podSelector:
    matchLabels:
      {{- toYaml .labels | nindent 6 }}
  policyTypes: ["Ingress"]
  ingress:
{{- end }}

{{- define "fromMonitoring" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Values.monitoringNamespace }}
{{- end }}
