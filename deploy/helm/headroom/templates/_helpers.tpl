{{- define "headroom.name" -}}
{{- if contains "headroom" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ .Release.Name | trunc 41 | trimSuffix "-" }}-headroom{{ end }}
{{- end }}

{{- define "headroom.selector" -}}
app.kubernetes.io/name: headroom
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "headroom.labels" -}}
{{ include "headroom.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end }}

{{- define "headroom.image" -}}
{{- with .Values.image -}}
{{- if not .digest }}{{ $_ := required "image.tag must name the image's commit, or image.digest the image itself" .tag }}{{ end -}}
{{- .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "headroom.serviceAccount" -}}
{{- $account := .Values.serviceAccount | default dict -}}
{{- $account.name | default ($account.create | empty | ternary "default" (include "headroom.name" .)) -}}
{{- end }}

{{- /* GPUs of a pod, or its MIG device. */ -}}
{{- define "headroom.gpus" -}}
{{- $gpus := 0 -}}
{{- range $name, $count := .Values.resources.limits -}}
{{- if hasPrefix "nvidia.com/" $name }}{{ $gpus = add $gpus (int $count) }}{{ end -}}
{{- end -}}
{{- $gpus -}}
{{- end }}

{{- /* What the service's pods and the test's have in common. */ -}}
{{- define "headroom.pod" -}}
automountServiceAccountToken: false
# Otherwise Kubernetes sets variables such as HEADROOM_PROD_PORT, and the service warns that they are no settings.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The rights of each container. */ -}}
{{- define "headroom.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* What a container of the service is given, and so is the check before an upgrade. */ -}}
{{- define "headroom.env" -}}
- {name: HEADROOM_API_KEYS_FILE, value: /etc/headroom-keys/api-keys}
{{- if (.Values.database).secret }}
- name: HEADROOM_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.database.secret | quote }}, key: {{ .Values.database.key | quote }}}}
- {name: HEADROOM_SERVICE_NAME, value: {{ printf "%s-%s" .Release.Namespace .Release.Name | replace "." "-" | trunc 64 | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "headroom.mounts" -}}
- {name: config, mountPath: /etc/headroom} # the whole folder: a single file would not follow edits
- {name: keys, mountPath: /etc/headroom-keys, readOnly: true}
- {name: state, mountPath: /var/lib/headroom}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
{{- if (.Values.modelCache).claim }}
- {name: model-cache, mountPath: /var/lib/headroom/cache}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* All but the volume of the config. */ -}}
{{- define "headroom.volumes" -}}
- {name: keys, secret: {secretName: {{ .Values.apiKeys.secret | quote }}, defaultMode: 0440, items: [{key: {{ .Values.apiKeys.key | quote }}, path: api-keys}]}}
- {name: state, emptyDir: { {{- with (.Values.emptyDirs).state }}sizeLimit: {{ . }}{{ end -}} }}
- {name: tmp, emptyDir: { {{- with (.Values.emptyDirs).tmp }}sizeLimit: {{ . }}{{ end -}} }}
- {name: shm, emptyDir: {medium: Memory{{ with (.Values.emptyDirs).shm }}, sizeLimit: {{ . }}{{ end }}}}
{{- if (.Values.modelCache).claim }}
- {name: model-cache, persistentVolumeClaim: {claimName: {{ .Values.modelCache.claim | quote }}}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* deploy/serve.yaml with the chart's values in it. */ -}}
{{- define "headroom.serve" -}}
{{- $document := .Files.Get "files/serve.yaml" | fromYaml -}}
{{- $application := first $document.applications -}}
{{- $deployment := first $application.deployments -}}
{{- $args := dict "drain_timeout_s" .Values.drainSeconds -}}
{{- if .Values.model }}{{ $_ := set $args "model" .Values.model }}{{ end -}}
{{- $_ := set $application "args" (merge $args (.Values.args | default dict)) -}}
{{- $_ := set $deployment "graceful_shutdown_timeout_s" (add .Values.drainSeconds 10) -}}
{{- $perGpu := (.Values.serve).replicasPerGpu | int -}}
{{- if and (.Values.serve).replicas $perGpu }}{{ fail "serve: give replicas or replicasPerGpu, not both" }}{{ end -}}
{{- $gpus := include "headroom.gpus" . | int -}}
{{- if and $perGpu (not $gpus) }}{{ fail "serve.replicasPerGpu needs a GPU in resources.limits, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb" }}{{ end -}}
{{- with (.Values.serve).replicas | default (mul $perGpu $gpus) }}{{ $_ := set $deployment "num_replicas" (int .) }}{{ end -}}
{{- if .Values.userConfig }}{{ $_ := set $deployment "user_config" .Values.userConfig }}{{ end -}}
{{- toYaml $document -}}
{{- end }}

{{- /* What applies only at a start: the pods restart if it changes. */ -}}
{{- define "headroom.restarts" -}}
{{- $document := include "headroom.serve" . | fromYaml -}}
{{- $_ := unset (first (first $document.applications).deployments) "user_config" -}}
{{- toYaml $document -}}
{{- end }}
