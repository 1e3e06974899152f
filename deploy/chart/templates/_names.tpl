{{/* `towline` or `RELEASE-towline`. Room is left for suffixes. */}}
{{- define "towline.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "towline" $name) }}{{ $name = printf "%s-towline" $name }}{{ end -}}
{{- .Values.fullnameOverride | default $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "towline.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "towline.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* By these, Deployment, Service, policies and `kubectl` find the pods. They never change. */}}
{{- define "towline.selector" -}}
app.kubernetes.io/name: towline
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "towline.labels" -}}
{{ include "towline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object: (list $ "suffix"), or with a third element another namespace. */}}
{{- define "towline.metadata" -}}
{{- $ := index . 0 -}}
name: {{ printf "%s%s" (include "towline.name" $) (index . 1) | quote }}
namespace: {{ if gt (len .) 2 }}{{ index . 2 | quote }}{{ else }}{{ $.Release.Namespace | quote }}{{ end }}
labels:
  {{- include "towline.labels" $ | nindent 2 }}
{{- with $.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The same of an object without a namespace, whose name has the release's. */}}
{{- define "towline.clusterMetadata" -}}
{{- $ := index . 0 -}}
name: {{ printf "%s-%s%s" $.Release.Namespace (include "towline.name" $) (index . 1) | quote }}
labels:
  {{- include "towline.labels" $ | nindent 2 }}
{{- with $.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
