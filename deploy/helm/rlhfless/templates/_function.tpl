{{/* A function with its defaults, as JSON. Call with (list $ name). */}}
{{- define "rlhfless.function" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- $given := deepCopy (index $root.Values.functions $name | default dict) -}}
{{- $all := mergeOverwrite (deepCopy $root.Values.functionDefaults) $given -}}
{{- /* What a node offers is of one kind: selectors given replace the defaults, they do not join them. */ -}}
{{- range $key := list "nodeSelector" "affinity" -}}
{{- if hasKey $given $key }}{{ $_ := set $all $key (index $given $key) }}{{ end -}}
{{- end -}}
{{- if and (ne $all.accelerator "cpu") (lt (int $all.count) 1) -}}
{{ fail (printf "functions.%s: accelerator %s needs a count of at least 1" $name $all.accelerator) }}
{{- end -}}
{{- if and (eq $all.accelerator "cpu") (gt (int $all.count) 0) -}}
{{ fail (printf "functions.%s: count is of accelerators, and accelerator is cpu" $name) }}
{{- end -}}
{{- if eq $all.sharedMemory "none" }}{{ $_ := set $all "sharedMemory" "" }}
{{- else if and (not $all.sharedMemory) (ne $all.accelerator "cpu") }}
{{- if eq $name "rollout" }}{{ $_ := set $all "sharedMemory" "16Gi" }}
{{- else if gt (int $all.count) 1 }}{{ $_ := set $all "sharedMemory" "1Gi" }}{{ end }}
{{- end -}}
{{- if $all.sharedMemory }}
{{- $shared := int (include "rlhfless.mebibytes" $all.sharedMemory) -}}
{{- range $which, $share := dict "limits" 1 "requests" 4 -}}
{{- $amounts := index $all.resources $which -}}
{{- $memory := int (include "rlhfless.mebibytes" $amounts.memory) -}}
{{- $_ := set $amounts "memory" (printf "%dMi" (add $memory (div $shared $share))) -}}
{{- end -}}
{{- end -}}
{{- toJson $all }}
{{- end }}

{{/* A size, such as 512Mi or 16G, in mebibytes. */}}
{{- define "rlhfless.mebibytes" -}}
{{- $size := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $size -}}
{{- $bytes := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if not (hasKey $bytes $unit) }}{{ fail (printf "%s is no size such as 16Gi" $size) }}{{ end -}}
{{- divf (mulf (trimSuffix $unit $size | float64) (index $bytes $unit)) 1048576 | int -}}
{{- end }}

{{/* The pod of a function: valid as the template of a Knative Service, of a Job, and as a PodTemplateSpec.
     Call with (list $ name function pool). */}}
{{- define "rlhfless.functionTemplate" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}{{- $f := index . 2 -}}{{- $pool := index . 3 -}}
{{- $spot := eq $pool "spot" -}}
{{- $image := $f.image -}}
{{- if not $image.repository }}{{ $image = ternary $root.Values.images.functionsCpu $root.Values.images.functionsGpu (eq $f.accelerator "cpu") }}{{ end -}}
metadata:
  labels:
    {{- include "rlhfless.selector" (list $root "function") | nindent 4 }}
    app.kubernetes.io/part-of: rlhfless
    rlhfless.io/function: {{ $name }}
    rlhfless.io/pool: {{ $pool }}
  {{- with $f.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "rlhfless.account" (list $root "functions") }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq $root.Values.store.type "pvc" }}
  # Needed to write to the volume; Knative's flag kubernetes.podspec-securitycontext allows it.
  securityContext: {fsGroup: 10001, fsGroupChangePolicy: OnRootMismatch}
  {{- end }}
  containers:
    - name: function
      image: {{ include "rlhfless.image" (list $root $image) }}
      imagePullPolicy: {{ $image.pullPolicy | default "IfNotPresent" }}
      command: [python, -m, functions.host]
      args:
        - --function={{ $name }}
        - --port=8000
        - --workdir=/work
        - --accelerator={{ $f.accelerator }}
        - --threads={{ int $f.threads }}
        - --concurrency={{ int $f.concurrency }}
      ports: [{name: http1, containerPort: 8000}]
      env:
        - name: RLHFLESS_FUNCTION_TOKEN
          valueFrom: {secretKeyRef: {name: {{ include "rlhfless.tokenSecret" $root }}, key: {{ include "rlhfless.tokenKey" $root }}}}
        - {name: HOME, value: /work}
        - {name: TMPDIR, value: /tmp}
        {{- with include "rlhfless.storeEnv" $root | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $f.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with include "rlhfless.storeEnvFrom" $root | trim }}
      envFrom: {{- . | nindent 8 }}
      {{- end }}
      {{- $resources := deepCopy $f.resources }}
      {{- if ne $f.accelerator "cpu" }}
      {{- $limits := set (deepCopy ($resources.limits | default dict)) $f.acceleratorResource (toString (int $f.count)) }}
      {{- $_ := set $resources "limits" $limits }}
      {{- end }}
      resources: {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- include "rlhfless.containerSecurity" $root | nindent 8 }}
        runAsUser: 10001
        runAsGroup: 10001
      # It answers when its model's libraries and the engine are there, which takes minutes on GPUs.
      startupProbe:
        httpGet: {path: /healthz, port: 8000}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 360
      readinessProbe:
        httpGet: {path: /readyz, port: 8000}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 3
      livenessProbe:
        httpGet: {path: /healthz, port: 8000}
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 6
      volumeMounts:
        - {name: work, mountPath: /work}
        - {name: tmp, mountPath: /tmp}
        - {name: inputs, mountPath: /data/inputs, readOnly: true}
        {{- if $f.sharedMemory }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- with include "rlhfless.storeMount" $root | trim }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    - name: work
      emptyDir: {sizeLimit: {{ $f.scratch }}}
    - name: tmp
      emptyDir: {sizeLimit: 4Gi}
    - name: inputs
      persistentVolumeClaim: {claimName: {{ include "rlhfless.inputsClaim" $root }}, readOnly: true}
    {{- if $f.sharedMemory }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $f.sharedMemory }}}
    {{- end }}
    {{- with include "rlhfless.storeVolume" $root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- $selector := deepCopy $f.nodeSelector }}
  {{- $tolerations := $f.tolerations }}
  {{- if $spot }}
  {{- $selector = mergeOverwrite $selector (deepCopy $f.spot.nodeSelector) }}
  {{- $tolerations = concat $tolerations $f.spot.tolerations }}
  {{- end }}
  {{- with $selector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $f.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $f.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $f.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
{{- end }}
