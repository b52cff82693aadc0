{{/* The container of Tidegate, for a Deployment or a DaemonSet. */}}
{{- define "tidegate.container" -}}
{{- $deployment := eq .Values.shape "deployment" -}}
name: tidegate
image: {{ include "tidegate.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - serve
  - --limits=/etc/tidegate
  {{- if $deployment }}
  - --data-dir=/data
  - --grpc=0.0.0.0:8081
  {{- else }}
  - --data-dir={{ .Values.daemonset.hostPath }}/data
  - --grpc=unix:{{ .Values.daemonset.hostPath }}/socket/rls.sock
  {{- end }}
  - --memory-dir=/memory
  - --http=0.0.0.0:8080
  - --frs=off
  - --workers={{ .Values.workers }}
  - --log={{ .Values.log.level }}
  - --log-format={{ .Values.log.format }}
  {{- if .Values.counters.capacity }}
  - --capacity={{ int64 .Values.counters.capacity }}
  {{- end }}
  {{- if .Values.tls.existingSecret }}
  - --tls-cert=/tls/tls.crt
  - --tls-key=/tls/tls.key
  {{- if .Values.tls.clientCa }}
  - --tls-client-ca=/tls/ca.crt
  {{- end }}
  {{- range .Values.tls.clientNames }}
  - --tls-client-name={{ . }}
  {{- end }}
  {{- end }}
  {{- with .Values.http }}
  {{- if .tokenSecret }}
  - --http-token-file=/http-token/token
  {{- end }}
  {{- if .tlsSecret }}
  - --http-tls-cert=/http-tls/tls.crt
  - --http-tls-key=/http-tls/tls.key
  {{- if .clientCa }}
  - --http-tls-client-ca=/http-tls/ca.crt
  {{- end }}
  {{- range .clientNames }}
  - --http-tls-client-name={{ . }}
  {{- end }}
  {{- end }}
  {{- if not .console }}
  - --console=off
  {{- end }}
  {{- end }}
  - --statistics-timezone={{ .Values.statistics.timezone }}
  {{- with .Values.cold.url }}
  - --cold={{ . }}
  {{- end }}
  {{- with .Values.warm }}
  {{- if .url }}
  - --warm={{ .url }}
  {{- if .existingSecret }}
  - --warm-password-file=/warm/password
  {{- if .hasCa }}
  - --warm-ca=/warm/ca.crt
  {{- end }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with .Values.authority }}
  {{- if .url }}
  - --authority={{ .url }}
  {{- if .user }}
  - --authority-user={{ .user }}
  {{- end }}
  {{- if .existingSecret }}
  - --authority-password-file=/authority/password
  {{- if .hasCa }}
  - --authority-ca=/authority/ca.crt
  {{- end }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- range .Values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
{{- $database := .Values.statistics.existingSecret }}
{{- $cold := .Values.cold.existingSecret }}
{{- if or $database $cold .Values.extraEnv }}
env:
  {{- if $database }}
  # It has a password.
  - name: TIDEGATE_STATISTICS
    valueFrom: { secretKeyRef: { name: {{ $database }}, key: url } }
  {{- end }}
  {{- if $cold }}
  - name: TIDEGATE_COLD
    valueFrom: { secretKeyRef: { name: {{ $cold }}, key: url } }
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
ports:
  {{- if $deployment }}
  - { name: grpc-rls, containerPort: 8081 }
  {{- end }}
  - { name: http, containerPort: 8080 }
{{- $scheme := ternary "HTTPS" "HTTP" (ne .Values.http.tlsSecret "") }}
startupProbe:
  httpGet: { path: /healthcheck, port: http, scheme: {{ $scheme }} }
  periodSeconds: 1
  failureThreshold: 60
readinessProbe:
  httpGet: { path: /healthcheck, port: http, scheme: {{ $scheme }} }
  periodSeconds: 2
livenessProbe:
  tcpSocket: { port: http }
  periodSeconds: 10
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  runAsNonRoot: true
  {{- if $deployment }}
  runAsUser: 65534
  runAsGroup: 65534
  {{- else }}
  # The user of Istio's proxies: only it may open the socket.
  runAsUser: 1337
  runAsGroup: 1337
  {{- end }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
  seccompProfile: { type: RuntimeDefault }
volumeMounts:
  - { name: limits, mountPath: /etc/tidegate, readOnly: true }
  - { name: memory, mountPath: /memory }
  {{- if $deployment }}
  - { name: data, mountPath: /data }
  {{- else }}
  - { name: run, mountPath: {{ .Values.daemonset.hostPath }} }
  {{- end }}
  {{- if .Values.tls.existingSecret }}
  - { name: tls, mountPath: /tls, readOnly: true }
  {{- end }}
  {{- if .Values.http.tokenSecret }}
  - { name: http-token, mountPath: /http-token, readOnly: true }
  {{- end }}
  {{- if .Values.http.tlsSecret }}
  - { name: http-tls, mountPath: /http-tls, readOnly: true }
  {{- end }}
  {{- if .Values.statistics.hasCa }}
  - { name: statistics, mountPath: /statistics, readOnly: true }
  {{- end }}
  {{- if and .Values.authority.url .Values.authority.existingSecret }}
  - { name: authority, mountPath: /authority, readOnly: true }
  {{- end }}
  {{- if .Values.warm.existingSecret }}
  - { name: warm, mountPath: /warm, readOnly: true }
  {{- end }}
{{- end -}}
