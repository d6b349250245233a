{{- define "hairpin.labels" -}}
app.kubernetes.io/name: hairpin
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: hairpin
app.kubernetes.io/version: {{ regexReplaceAll "[^A-Za-z0-9]+$" (.Values.image.tag | default .Chart.AppVersion | trunc 63) "" | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "hairpin.image" -}}
{{- with .Values.image -}}
{{ required "image.repository is needed: where nodes get the image, such as registry.example/net/hairpin (docs/operations/install.md)" .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The image of Open vSwitch. Its tag is its own and changes only with its content. */}}
{{- define "hairpin.ovsImage" -}}
{{- with .Values.openvswitch.image -}}
{{ .repository | default (printf "%s-ovs" (required "image.repository is needed" $.Values.image.repository)) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ required "openvswitch.image.tag is needed: the one that `make image-oci` prints (docs/operations/install.md)" .tag }}{{ end }}
{{- end -}}
{{- end }}

{{/* The API server's host:port. Without kube-proxy, the address of the Service "kubernetes" does not
     work before this chart's pods do. In a cluster of kubeadm, the address is in cluster-info. */}}
{{- define "hairpin.apiServer" -}}
{{- if .Values.apiServer.host -}}
{{- if regexMatch "^[^:]*:[^:]*$|[][]" .Values.apiServer.host -}}
{{- fail (printf "apiServer.host is %q: it is an address or a name, without brackets; the port is apiServer.port" .Values.apiServer.host) -}}
{{- end -}}
{{ .Values.apiServer.host }} {{ .Values.apiServer.port }}
{{- else -}}
{{- $server := "" -}}
{{- with lookup "v1" "ConfigMap" "kube-public" "cluster-info" -}}
{{- $server = (first (index .data "kubeconfig" | fromYaml).clusters).cluster.server | default "" -}}
{{- end -}}
{{- if not $server -}}
{{- fail "apiServer.host is needed: the address by which nodes reach the API server, without kube-proxy (see docs/operations/install.md)" -}}
{{- end -}}
{{- $at := (urlParse $server).host -}}
{{ regexReplaceAll ":[0-9]+$" $at "" | trimAll "[]" }} {{ regexFind "[0-9]+$" (regexFind ":[0-9]+$" $at) | default "443" }}
{{- end -}}
{{- end }}

{{/* The security context of a container with only the given capabilities, separated by spaces. It
     uses directories of the host, to which SELinux admits only the type spc_t. */}}
{{- define "hairpin.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with . }}
  add: [{{ splitList " " . | join ", " }}]
  {{- end }}
seccompProfile: {type: RuntimeDefault}
seLinuxOptions: {type: spc_t}
{{- end }}

{{/* The path at which programs look for the service account's token. */}}
{{- define "hairpin.tokenMount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{- define "hairpin.env" -}}
{{- $api := include "hairpin.apiServer" . | splitList " " -}}
- {name: KUBERNETES_SERVICE_HOST, value: {{ first $api | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ last $api | quote }}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- end }}

{{/* A value of the configuration file: numbers without an exponent. */}}
{{- define "hairpin.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* The files of egressHealthTLS: the configuration's keys for them, the volume, its mount. */}}
{{- define "hairpin.tlsFile" -}}
{{- if and .metrics.secretName (eq .key "metrics-cert") }}/etc/hairpin-metrics-tls/tls.crt{{ end -}}
{{- if and .metrics.secretName (eq .key "metrics-key") }}/etc/hairpin-metrics-tls/tls.key{{ end -}}
{{- $files := dict "egressip-node-healthcheck-cert" "tls.crt" "egressip-node-healthcheck-key" "tls.key" "egressip-node-healthcheck-ca" "ca.crt" -}}
{{- if and (hasKey $files .key) (or .tls.secretName .tls.hostPath) }}/etc/hairpin-tls/{{ get $files .key }}{{ end -}}
{{- end }}

{{- define "hairpin.tlsMount" -}}
{{- with .Values.egressHealthTLS }}{{- if or .secretName .hostPath }}
- {name: egress-health-tls, mountPath: /etc/hairpin-tls, readOnly: true}
{{- end }}{{ end }}
{{- end }}

{{- define "hairpin.tlsVolume" -}}
{{- with .Values.egressHealthTLS }}
{{- if and .secretName .hostPath }}{{ fail "egressHealthTLS: either secretName or hostPath" }}{{ end }}
{{- if .secretName }}
- {name: egress-health-tls, secret: {secretName: {{ .secretName }}, defaultMode: 0444}} # the controller is not root
{{- else if .hostPath }}
- {name: egress-health-tls, hostPath: {path: {{ .hostPath }}, type: Directory}}
{{- end }}{{ end }}
{{- end }}

{{- define "hairpin.config" -}}
{{- range $section, $options := .Values.config }}
[{{ $section }}]
{{- range $key, $value := $options }}
{{ $key }} ={{ with include "hairpin.value" $value | default (include "hairpin.tlsFile" (dict "key" $key "tls" $.Values.egressHealthTLS "metrics" $.Values.metrics.tls)) }} {{ . }}{{ end }}
{{- end }}
{{ end }}
{{- end }}

{{/* The port of the first address in a list of host:port; empty if there is none. */}}
{{- define "hairpin.port" -}}
{{ regexFind "[0-9]+$" (first (splitList "," .)) }}
{{- end }}

{{/* The certificate of metrics: its volume and the mount. */}}
{{- define "hairpin.metricsMount" -}}
{{- if .Values.metrics.tls.secretName }}
- {name: metrics-tls, mountPath: /etc/hairpin-metrics-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "hairpin.metricsVolume" -}}
{{- with .Values.metrics.tls.secretName }}
- {name: metrics-tls, secret: {secretName: {{ . }}, defaultMode: 0444}} # the controller is not root
{{- end }}
{{- end }}

{{/* Whether to create objects of the Prometheus operator: the value, and whether the cluster has the kind. */}}
{{- define "hairpin.monitors" -}}
{{- if and .of.enabled (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind)) }}yes{{ end -}}
{{- end }}

{{/* An HTTP check of the first address in a list of host:port. */}}
{{- define "hairpin.http" -}}
{{- $first := first (splitList "," .address) -}}
{{- $host := regexReplaceAll ":[0-9]+$" $first "" | trimAll "[]" -}}
httpGet: {path: {{ .path }}, port: {{ regexFind "[0-9]+$" $first }}, host: {{ if has $host (list "" "0.0.0.0" "::") }}127.0.0.1{{ else }}{{ $host | quote }}{{ end }}}
{{- end }}
