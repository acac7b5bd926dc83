{{/* Whether anything runs on a Ray cluster. */}}
{{- define "rlhfless.onRay" -}}
{{- $beside := and (eq .Values.platform "knative") (eq .Values.knative.training.gang "ray") -}}
{{- or (eq .Values.platform "ray") $beside -}}
{{- end }}

{{/* platform.yaml: what the controller's platform makes functions from. */}}
{{- define "rlhfless.platform" -}}
{{- $root := . -}}
platform: {{ .Values.platform }}
release: {{ .Release.Name }}
{{- if eq .Values.platform "knative" }}
namespace: {{ .Release.Namespace }}
owner: {apiVersion: apps/v1, kind: Deployment, name: {{ include "rlhfless.fullname" . }}-controller}
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
{{- end }}
{{- if eq (include "rlhfless.onRay" .) "true" }}
ray:
  {{- if not (or .Values.ray.address .Values.ray.serveUrl) }}
  {{ fail "functions on Ray need ray.address, Ray's dashboard, or ray.serveUrl" }}
  {{- end }}
  address: {{ .Values.ray.address | quote }}
  serveUrl: {{ .Values.ray.serveUrl | quote }}
  startTimeout: {{ .Values.ray.startTimeout }}
  directSteering: {{ .Values.ray.directSteering }}
{{- end }}
functions:
{{- range $name := list "rollout" "reward" "reference" "training" }}
{{- $f := include "rlhfless.function" (list $root $name) | fromJson }}
  {{ $name }}:
    accelerator: {{ $f.accelerator }}
    count: {{ int $f.count }}
    {{- if eq $root.Values.platform "knative" }}
    acceleratorResource: {{ $f.acceleratorResource }}
    {{- if and (eq $name "training") (eq $root.Values.knative.training.gang "ray") }}
    ray: {{ $f.ray | toJson }}
    {{- end }}
    {{- else }}
    resources: {{ $f.ray | toJson }}
    {{- end }}
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
