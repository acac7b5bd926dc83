{{- define "rlhfless.cidrs" -}}
{{- range . }}
- ipBlock: {cidr: {{ . }}}
{{- end }}
{{- end }}

{{- define "rlhfless.ports" -}}
{{- range . }}
- {protocol: TCP, port: {{ int . }}}
{{- end }}
{{- end }}

{{- define "rlhfless.dnsEgress" -}}
- to:
    - namespaceSelector: {}
    {{- range .Values.networkPolicy.dnsCidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end }}

{{/* Nothing for a volume: the node mounts it. */}}
{{- define "rlhfless.storeEgress" -}}
{{- if ne .Values.store.type "pvc" }}
{{- if not .Values.networkPolicy.storeCidrs }}
{{ fail "networkPolicy.storeCidrs is needed: the addresses by which pods reach the object store (0.0.0.0/0 would let reward code out)" }}
{{- end }}
- to: {{- include "rlhfless.cidrs" .Values.networkPolicy.storeCidrs | nindent 4 }}
  ports: {{- include "rlhfless.ports" .Values.networkPolicy.storePorts | nindent 4 }}
{{- with .Values.networkPolicy.identityCidrs }}
- to: {{- include "rlhfless.cidrs" . | nindent 4 }}
  ports: {{- include "rlhfless.ports" $.Values.networkPolicy.identityPorts | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rlhfless.internetEgress" -}}
- to: [{ipBlock: {cidr: 0.0.0.0/0, except: {{ toJson .Values.networkPolicy.privateCidrs }}}}]
  ports: [{protocol: TCP, port: 80}, {protocol: TCP, port: 443}]
{{- end }}
