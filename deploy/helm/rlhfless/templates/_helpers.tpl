{{/* The release's own name: every object and every selector has it, so two releases never cross. */}}
{{- define "rlhfless.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- end }}

{{/* What selectors match: never changes over a release's life. Call with (list $ component). */}}
{{- define "rlhfless.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 40 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "rlhfless.labels" -}}
{{- $root := index . 0 -}}
{{ include "rlhfless.selector" . }}
app.kubernetes.io/part-of: rlhfless
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Image reference, by digest where there is one. Call with (list $ image). */}}
{{- define "rlhfless.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- $tag := $image.tag | default $root.Chart.AppVersion -}}
{{- if $image.digest -}}
{{ printf "%s:%s@%s" $image.repository $tag $image.digest }}
{{- else if $root.Values.images.requireDigests -}}
{{ fail (printf "images.requireDigests: %s has no digest" $image.repository) }}
{{- else -}}
{{ printf "%s:%s" $image.repository $tag }}
{{- end }}
{{- end }}

{{- define "rlhfless.account" -}}
{{- $root := index . 0 -}}{{- $which := index . 1 -}}
{{- $given := (index $root.Values.serviceAccounts $which).name -}}
{{- default (printf "%s-%s" (include "rlhfless.fullname" $root) $which) $given }}
{{- end }}

{{- define "rlhfless.redisName" -}}{{ include "rlhfless.fullname" . }}-redis{{- end }}
{{- define "rlhfless.redisSecret" -}}
{{- .Values.redis.external.existingSecret | default (include "rlhfless.redisName" .) }}
{{- end }}
{{- define "rlhfless.tokenSecret" -}}
{{- .Values.functionToken.existingSecret | default (printf "%s-function-token" (include "rlhfless.fullname" .)) }}
{{- end }}
{{- define "rlhfless.tokenKey" -}}
{{- if .Values.functionToken.existingSecret }}{{ .Values.functionToken.existingSecretKey }}{{ else }}token{{ end }}
{{- end }}
{{- define "rlhfless.claim" -}}
{{- .Values.store.pvc.existingClaim | default (printf "%s-store" (include "rlhfless.fullname" .)) }}
{{- end }}

{{/* For pods of our own; what Knative would refuse in a pod's is in the container's. */}}
{{- define "rlhfless.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .group }}
fsGroup: {{ .group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "rlhfless.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
