{{- define "headroom.name" -}}
{{- if contains "headroom" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ .Release.Name | trunc 41 | trimSuffix "-" }}-headroom{{ end }}
{{- end }}

{{- define "headroom.selector" -}}
app.kubernetes.io/name: headroom
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headroom.labels" -}}
{{ include "headroom.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end }}

{{- /* deploy/serve.yaml with the chart's values in it. */ -}}
{{- define "headroom.serve" -}}
{{- $document := .Files.Get "files/serve.yaml" | fromYaml -}}
{{- $application := first $document.applications -}}
{{- $deployment := first $application.deployments -}}
{{- $args := dict "drain_timeout_s" .Values.drainSeconds -}}
{{- if .Values.model }}{{ $_ := set $args "model" .Values.model }}{{ end -}}
{{- $_ := set $application "args" (merge $args .Values.args) -}}
{{- $_ := set $deployment "graceful_shutdown_timeout_s" (add .Values.drainSeconds 10) -}}
{{- if .Values.userConfig }}{{ $_ := set $deployment "user_config" .Values.userConfig }}{{ end -}}
{{- toYaml $document -}}
{{- end }}

{{- /* What applies only at a start: the pods restart if it changes. */ -}}
{{- define "headroom.restarts" -}}
{{- $document := include "headroom.serve" . | fromYaml -}}
{{- $_ := unset (first (first $document.applications).deployments) "user_config" -}}
{{- toYaml $document -}}
{{- end }}
