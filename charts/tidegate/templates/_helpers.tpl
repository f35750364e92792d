{{- define "tidegate.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 36 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 36 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- /* What an object of a component is found by. Takes: root, component. */ -}}
{{- define "tidegate.selectorLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tidegate.labels" -}}
{{- with .root.Values.commonLabels }}{{ toYaml . }}
{{ end -}}
{{ include "tidegate.selectorLabels" . }}
app.kubernetes.io/part-of: tidegate
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /*
Labels of a pod: none that a release of the chart changes, or stores would be started again for nothing. Takes: root,
component, and settings (its part of the values) where it has one.
*/ -}}
{{- define "tidegate.podLabels" -}}
{{- with (.settings | default dict).podLabels }}{{ toYaml . }}
{{ end -}}
{{- with .root.Values.commonLabels }}{{ toYaml . }}
{{ end -}}
{{ include "tidegate.selectorLabels" . }}
app.kubernetes.io/part-of: tidegate
{{- end }}

{{- /* Takes: root, name (of the binary, and so of the image). */ -}}
{{- define "tidegate.image" -}}
image: {{ printf "%s/%s:%s" (trimSuffix "/" .root.Values.image.registry) .name (default .root.Chart.AppVersion .root.Values.image.tag) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}

{{- define "tidegate.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- /* What all pods have in common. Takes: root, user (number; the image's user by default). */ -}}
{{- define "tidegate.podBasics" -}}
automountServiceAccountToken: false
# Variables made of the names of Services would meet TIDEGATE_*.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 65532 }}
  runAsGroup: {{ .user | default 65532 }}
  fsGroup: {{ .user | default 65532 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Takes: root, component, settings. */ -}}
{{- define "tidegate.scheduling" -}}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if .settings.topologySpreadConstraints }}
  {{- toYaml .settings.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tidegate.selectorLabels" . | nindent 8 }}
{{- end }}
{{- end }}

{{- define "tidegate.generatedSecret" -}}
{{ include "tidegate.fullname" . }}-generated
{{- end }}

{{- define "tidegate.secretName" -}}
{{ default (include "tidegate.generatedSecret" .) .Values.secrets.existingSecret }}
{{- end }}

{{- /* A variable out of a Secret. Takes: name, secret, key. */ -}}
{{- define "tidegate.secretEnv" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end }}

{{- define "tidegate.adminTokenEnv" -}}
{{ include "tidegate.secretEnv" (dict "name" "TIDEGATE_ADMIN_TOKEN" "secret" (include "tidegate.secretName" .) "key" "admin-token") }}
{{- end }}

{{- define "tidegate.databaseEnv" -}}
{{- if .Values.database.existingSecret -}}
{{ include "tidegate.secretEnv" (dict "name" "TIDEGATE_DATABASE_URL" "secret" .Values.database.existingSecret "key" .Values.database.existingSecretKey) }}
{{- else -}}
{{ include "tidegate.secretEnv" (dict "name" "TIDEGATE_DATABASE_URL" "secret" (include "tidegate.generatedSecret" .) "key" "database-url") }}
{{- end }}
{{- end }}

{{- define "tidegate.redisEnv" -}}
{{- $secret := default (include "tidegate.generatedSecret" .) .Values.redis.existingSecret -}}
{{- $key := ternary .Values.redis.existingSecretKey "redis-url" (ne .Values.redis.existingSecret "") -}}
{{ include "tidegate.secretEnv" (dict "name" "TIDEGATE_REDIS_URL" "secret" $secret "key" $key) }}
{{- if and (eq .Values.redis.mode "sentinel") .Values.redis.sentinel.nodeUrlKey }}
{{ include "tidegate.secretEnv" (dict "name" "TIDEGATE_REDIS_NODE_URL" "secret" $secret "key" .Values.redis.sentinel.nodeUrlKey) }}
{{- end }}
{{- end }}

{{- /* Where traces go, and which; nothing without a collector. */ -}}
{{- define "tidegate.otlpEnv" -}}
{{- with .Values.telemetry.otlp }}
{{- if .endpoint -}}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: {{ .sampler | quote }}
{{- if hasSuffix "traceidratio" .sampler }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .samplerRatio | quote }}
{{- end }}
{{- if .existingSecret }}
{{ include "tidegate.secretEnv" (dict "name" "OTEL_EXPORTER_OTLP_HEADERS" "secret" .existingSecret "key" "headers") }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* "true" or nothing, as all of these. */ -}}
{{- define "tidegate.isFleet" -}}{{ if eq .Values.mode "fleet" }}true{{ end }}{{- end }}
{{- define "tidegate.bundlesPostgres" -}}
{{- if and (include "tidegate.isFleet" .) .Values.database.bundled.enabled (not .Values.database.existingSecret) }}true{{ end }}
{{- end }}
{{- define "tidegate.bundlesRedis" -}}
{{- if and (include "tidegate.isFleet" .) .Values.redis.bundled.enabled (not .Values.redis.existingSecret) }}true{{ end }}
{{- end }}
{{- define "tidegate.isConfigured" -}}
{{- if or .Values.configuration.document .Values.configuration.existingSecret }}true{{ end }}
{{- end }}
{{- /* Data planes may be ready before anything was applied. */ -}}
{{- define "tidegate.readyWithoutConfiguration" -}}
{{- $wanted := .Values.dataPlane.readyWithoutConfiguration | toString -}}
{{- $tried := and (include "tidegate.bundlesPostgres" .) (not (include "tidegate.isConfigured" .)) -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $tried) }}true{{ end }}
{{- end }}
{{- /* A Secret of ours is needed. */ -}}
{{- define "tidegate.generates" -}}
{{- if or (not .Values.secrets.existingSecret) (include "tidegate.bundlesPostgres" .) (include "tidegate.bundlesRedis" .) }}true{{ end }}
{{- end }}

{{- /* Control planes as a whole: for operators. Data planes know each by its name. */ -}}
{{- define "tidegate.controlPlaneScheme" -}}{{ ternary "https" "http" (ne .Values.tls.existingSecret "") }}{{- end }}
{{- define "tidegate.controlPlaneUrl" -}}
{{ include "tidegate.controlPlaneScheme" . }}://{{ include "tidegate.fullname" . }}-control-plane:7400
{{- end }}

{{- /* Who calls a control plane: whose certificate it trusts, and which one it shows. */ -}}
{{- define "tidegate.tlsDomain" -}}
{{ .Values.tls.serverName | default (printf "%s-control-plane" (include "tidegate.fullname" .)) }}
{{- end }}
{{- define "tidegate.callerMounts" -}}
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/tidegate/tls
  readOnly: true
{{- end }}
{{- if .Values.tls.clientSecret }}
- name: client-tls
  mountPath: /etc/tidegate/client-tls
  readOnly: true
{{- end }}
{{- end }}
{{- define "tidegate.callerVolumes" -}}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    items:
      - {key: ca.crt, path: ca.crt}
{{- end }}
{{- if .Values.tls.clientSecret }}
- name: client-tls
  secret:
    secretName: {{ .Values.tls.clientSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- define "tidegate.ctlArgs" -}}
- --control-plane={{ include "tidegate.controlPlaneUrl" . }}
{{- if .Values.tls.existingSecret }}
- --ca-file=/etc/tidegate/tls/ca.crt
- --tls-domain={{ include "tidegate.tlsDomain" . }}
{{- end }}
{{- if .Values.tls.clientSecret }}
- --cert-file=/etc/tidegate/client-tls/tls.crt
- --key-file=/etc/tidegate/client-tls/tls.key
{{- end }}
{{- end }}

{{- /* Where the document is mounted from. */ -}}
{{- define "tidegate.configurationVolume" -}}
- name: configuration
  {{- if .Values.configuration.existingSecret }}
  secret:
    secretName: {{ .Values.configuration.existingSecret }}
  {{- else }}
  configMap:
    name: {{ include "tidegate.fullname" . }}-configuration
  {{- end }}
{{- end }}

{{- define "tidegate.configurationEnvFrom" -}}
{{- with .Values.configuration.environmentSecrets }}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.hpaApi" -}}
{{ ternary "autoscaling/v2" "autoscaling/v2beta2" (.Capabilities.APIVersions.Has "autoscaling/v2") }}
{{- end }}
{{- define "tidegate.pdbApi" -}}
{{ ternary "policy/v1" "policy/v1beta1" (.Capabilities.APIVersions.Has "policy/v1") }}
{{- end }}
