{{/* platform.yaml: what the controller's platform makes functions from. */}}
{{- define "rlhfless.platform" -}}
{{- $root := . -}}
platform: {{ .Values.platform }}
namespace: {{ .Release.Namespace }}
release: {{ .Release.Name }}
owner: {apiVersion: apps/v1, kind: Deployment, name: {{ include "rlhfless.fullname" . }}-controller}
{{- if eq .Values.platform "knative" }}
knative:
  timeoutSeconds: {{ int .Values.knative.timeoutSeconds }}
  responseStartTimeoutSeconds: {{ int .Values.knative.responseStartTimeoutSeconds }}
  progressDeadline: {{ .Values.knative.progressDeadline }}
  initialScaleZero: {{ .Values.knative.initialScaleZero }}
  directSteering: {{ .Values.knative.directSteering }}
{{- with .Values.knative.training }}
training:
  gang: {{ .gang }}
  kueueQueue: {{ .kueueQueue | quote }}
  nodes: {{ int .nodes }}
{{- end }}
{{- else }}
ray:
  address: {{ required "ray.address is needed with platform ray" .Values.ray.address | quote }}
  serveUrl: {{ .Values.ray.serveUrl | quote }}
{{- end }}
functions:
{{- range $name := list "rollout" "reward" "reference" "training" }}
{{- $f := include "rlhfless.function" (list $root $name) | fromJson }}
  {{ $name }}:
    accelerator: {{ $f.accelerator }}
    count: {{ int $f.count }}
    acceleratorResource: {{ $f.acceleratorResource }}
    concurrency: {{ int $f.concurrency }}
    maxInstances: {{ int $f.maxInstances }}
    scaleDownDelay: {{ $f.scaleDownDelay }}
    {{- if eq $root.Values.platform "knative" }}
    pools:
      {{- if not (and $f.spot.enabled $f.spot.only) }}
      - name: on-demand
        maxInstances: {{ int $f.maxInstances }}
        template: {{- include "rlhfless.functionTemplate" (list $root $name $f "on-demand") | nindent 10 }}
      {{- end }}
      {{- if $f.spot.enabled }}
      - name: spot
        maxInstances: {{ int $f.spot.maxInstances }}
        template: {{- include "rlhfless.functionTemplate" (list $root $name $f "spot") | nindent 10 }}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}
