{{- define "rljob.name" -}}
{{- if hasPrefix .Release.Name .Chart.Name -}}
{{ .Chart.Name }}
{{- else if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" (.Release.Name | trunc 37 | trimSuffix "-") .Chart.Name }}
{{- end -}}
{{- end -}}

{{- define "rljob.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "rljob.labels" -}}
{{ include "rljob.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: rljob
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "rljob.account" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "rljob.name" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "rljob.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end -}}
{{- end -}}

{{- /* Of the Lease that the replicas share. Other releases of the namespace have others, and so do those that watch
the same jobs. */}}
{{- define "rljob.lease" -}}
{{- $name := include "rljob.name" . -}}
{{ ternary (include "rljob.shared" .) $name (has $name (list "rljob-operator-cluster" "rljob-operator-namespace")) }}
{{- end -}}

{{- /* Of objects in a namespace that several releases may share. */}}
{{- define "rljob.shared" -}}
{{ include "rljob.name" . | trunc 52 | trimSuffix "-" }}-{{ printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 10 }}
{{- end -}}
