{{/*
Objects are named after the release, whose name is unique in its namespace. Roles have more in their names where that is not enough: a cluster's
and those in other namespaces are named `towline:NAMESPACE:RELEASE:WHAT`. Those for what a section keeps are named after the section,
`towline:SECTION`: so Helm refuses a second release with a section of that name in the same namespace, which would take the first one's state
for its own.
*/}}
{{- define "towline.account" -}}
{{- .Values.serviceAccount.name | default (ternary .Release.Name "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* By these, Deployment, Service, policies and `kubectl` find the pods. They never change. */}}
{{- define "towline.selector" -}}
app.kubernetes.io/name: towline
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "towline.labels" -}}
{{- $described := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{ merge (include "towline.selector" . | fromYaml) .Values.labels $described | toYaml }}
{{- end -}}

{{/* Metadata of an object: (list $ "name" "namespace"), with an empty namespace for none. */}}
{{- define "towline.metadata" -}}
{{- $ := index . 0 -}}
name: {{ index . 1 | quote }}
{{- with index . 2 }}
namespace: {{ . | quote }}
{{- end }}
labels:
  {{- include "towline.labels" $ | nindent 2 }}
{{- with $.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
