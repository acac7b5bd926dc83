{{/* The object store, as every pod that uses it sees it. */}}
{{- define "rlhfless.storeUrl" -}}
{{- if eq .Values.store.type "pvc" }}/store
{{- else if eq .Values.store.type "s3" }}s3://{{ required "store.bucket is needed with store.type s3" .Values.store.bucket }}
{{- else }}gs://{{ required "store.bucket is needed with store.type gcs" .Values.store.bucket }}
{{- end }}
{{- end }}

{{/* How S3 is reached; calls tell functions the URL. */}}
{{- define "rlhfless.storeEnv" -}}
{{- with .Values.store.endpoint }}
- {name: AWS_ENDPOINT_URL_S3, value: {{ . | quote }}}
{{- end }}
{{- with .Values.store.region }}
- {name: AWS_REGION, value: {{ . | quote }}}
- {name: AWS_DEFAULT_REGION, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* The claim of unpacked inputs, which the controller fills and functions read. */}}
{{- define "rlhfless.inputsClaim" -}}
{{- .Values.inputs.existingClaim | default (printf "%s-inputs" (include "rlhfless.fullname" .)) }}
{{- end }}

{{- define "rlhfless.storeEnvFrom" -}}
{{- with .Values.store.existingSecret }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "rlhfless.storeMount" -}}
{{- if eq .Values.store.type "pvc" }}
- {name: store, mountPath: /store}
{{- end }}
{{- end }}

{{- define "rlhfless.storeVolume" -}}
{{- if eq .Values.store.type "pvc" }}
- name: store
  persistentVolumeClaim: {claimName: {{ include "rlhfless.claim" . }}}
{{- end }}
{{- end }}
