{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tidegate.tag" -}}
{{- default .Chart.AppVersion .Values.image.tag -}}
{{- end -}}

{{- define "tidegate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ include "tidegate.tag" . }}
{{- end -}}
{{- end -}}

{{- define "tidegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tidegate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.limits" -}}
{{- default (printf "%s-limits" (include "tidegate.fullname" .)) .Values.existingLimits -}}
{{- end -}}

{{- define "tidegate.host" -}}
{{- default (ternary "pod.tidegate.internal" "node.tidegate.internal" (eq .Values.shape "injected")) .Values.istio.host -}}
{{- end -}}

{{/* The cluster that Istio makes in each proxy, which the filter calls. */}}
{{- define "tidegate.cluster" -}}
{{- if eq .Values.shape "deployment" -}}
outbound|{{ .Values.service.grpcPort }}||{{ include "tidegate.fullname" . }}.{{ .Release.Namespace }}.svc.cluster.local
{{- else -}}
outbound|8081||{{ include "tidegate.host" . }}
{{- end -}}
{{- end -}}

{{/* What replicas need, said when the chart is rendered. */}}
{{- define "tidegate.check" -}}
{{- $several := or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled -}}
{{- if and $several (ne .Values.shape "deployment") -}}
{{- fail (printf "replicas and autoscaling are for `shape: deployment`, and shape is %s" .Values.shape) -}}
{{- end -}}
{{- if and $several (not .Values.authority.url) -}}
{{- fail "several replicas need authority.url: without a shared authority each of them would admit the whole limit" -}}
{{- end -}}
{{- if and $several .Values.persistence.enabled -}}
{{- fail "several replicas cannot share the volume of persistence.enabled; with authority.url the counts are in the authority" -}}
{{- end -}}
{{- if and .Values.tls.existingSecret (ne .Values.shape "deployment") -}}
{{- fail "tls.existingSecret is for `shape: deployment`: a Unix socket has no TLS" -}}
{{- end -}}
{{- if and (or .Values.tls.clientCa .Values.tls.clientNames) (not .Values.tls.existingSecret) -}}
{{- fail "tls.clientCa and tls.clientNames need tls.existingSecret: without TLS nobody shows a certificate" -}}
{{- end -}}
{{- if and (or .Values.http.clientCa .Values.http.clientNames) (not .Values.http.tlsSecret) -}}
{{- fail "http.clientCa and http.clientNames need http.tlsSecret: without TLS nobody shows a certificate" -}}
{{- end -}}
{{- range $name, $port := dict "tls" .Values.tls "http" .Values.http -}}
{{- if and $port.clientNames (not $port.clientCa) -}}
{{- fail (printf "%s.clientNames needs %s.clientCa: nobody asks for a certificate without it" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.statistics.hasCa (not .Values.statistics.existingSecret) -}}
{{- fail "statistics.hasCa needs statistics.existingSecret" -}}
{{- end -}}
{{- if and .Values.cold.url .Values.cold.existingSecret -}}
{{- fail "cold.url and cold.existingSecret exclude each other" -}}
{{- end -}}
{{- if and (or .Values.cold.url .Values.cold.existingSecret) .Values.authority.url -}}
{{- fail "cold and authority.url exclude each other: counters of an authority are in its servers" -}}
{{- end -}}
{{- if and .Values.warm.url .Values.authority.url -}}
{{- fail "warm.url and authority.url exclude each other: counters of an authority are in its servers" -}}
{{- end -}}
{{- if and .Values.warm.existingSecret (not .Values.warm.url) -}}
{{- fail "warm.existingSecret needs warm.url" -}}
{{- end -}}
{{- if and .Values.warm.hasCa (not .Values.warm.existingSecret) -}}
{{- fail "warm.hasCa needs warm.existingSecret" -}}
{{- end -}}
{{- if and .Values.istio.filter.selector .Values.istio.filter.targetRefs -}}
{{- fail "istio.filter.selector and istio.filter.targetRefs exclude each other" -}}
{{- end -}}
{{- end -}}
