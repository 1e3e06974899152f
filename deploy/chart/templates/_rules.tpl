{{/*
The rules of the roles. A test compares them with what `towline rbac` prints, which is what the jobs ask for.
*/}}

{{/* The kinds of `[[sync]]` sections, group by group: {group: [plural]} as JSON. A resource is `plural.version.group`, or `plural.version`. */}}
{{- define "towline.kinds" -}}
{{- $kinds := dict -}}
{{- range . -}}
{{- $parts := splitn "." 3 .resource -}}
{{- $group := $parts._2 | default "" -}}
{{- $_ := set $kinds $group (append (get $kinds $group | default list) $parts._0 | uniq) -}}
{{- end -}}
{{ toJson $kinds }}
{{- end -}}

{{- define "towline.rules.local" -}}
{{- range $group, $plurals := include "towline.kinds" . | fromJson }}
- apiGroups: [{{ $group | quote }}]
  resources: {{ toJson $plurals }}
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{ include "towline.rules.identity" . }}
# Not needed for a cluster-scoped kind. `patch` removes or changes owner marks (`towline detach`, and when an object leaves the selector).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch, create, delete, patch]
{{- $secrets := list }}
{{- range . }}{{ if dig "write_back" true . }}{{ $secrets = concat $secrets (.secret_names | default list) | uniq }}{{ end }}{{ end }}
{{- with $secrets }}
# One watch for each name: other Secrets are neither read nor listed. `patch` records the hash of the uploaded content.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get, list, watch, patch]
{{- end }}
{{ include "towline.rules.events" . }}
{{- end -}}

{{- define "towline.rules.remote" -}}
{{- range $group, $plurals := include "towline.kinds" . | fromJson }}
- apiGroups: [{{ $group | quote }}]
  resources: {{ toJson $plurals }}
  verbs: [get, list, watch, patch]
{{- end }}
{{ include "towline.rules.identity" . }}
{{- $writing := list }}
{{- range . }}{{ if dig "write_back" true . }}{{ $writing = append $writing . }}{{ end }}{{ end }}
{{- range $group, $plurals := include "towline.kinds" $writing | fromJson }}
- apiGroups: [{{ $group | quote }}]
  resources: [{{ range $index, $plural := $plurals }}{{ if $index }}, {{ end }}{{ $plural }}/status{{ end }}]
  verbs: [patch]
{{- end }}
{{- $secrets := list }}
{{- range $section := $writing }}{{ range .secret_names }}{{ $secrets = append $secrets (printf "%s%s" . ($section.remote_resource_suffix | default "")) | uniq }}{{ end }}{{ end }}
{{- with $secrets }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [update]
{{- end }}
{{- if $writing }}
{{ include "towline.rules.events" . }}
{{- end }}
{{- end -}}

{{- define "towline.rules.identity" -}}
# The cluster's identity, to recognise another cluster behind the same name.
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
{{- end -}}

{{- define "towline.rules.events" -}}
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- define "towline.rules.state" -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ printf "towline-%s" . | quote }}]
  verbs: [get, patch]
# Can't be granted by name.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
{{- end -}}

{{- define "towline.rules.election" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ printf "towline-%s" . | quote }}]
  verbs: [get, patch]
# One watch shows all of them. `create` can't be granted by name.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, watch, create]
{{- end -}}

{{/* One object of a kind: (list "secrets" "name"). */}}
{{- define "towline.rules.one" -}}
- apiGroups: [""]
  resources: [{{ index . 0 }}]
  resourceNames: [{{ index . 1 | quote }}]
  verbs: [get, list, watch]
{{- end -}}

{{- define "towline.rules.statusSync" -}}
{{- $all := list "policies" "placementrules" "placements" "placementdecisions" "subscription_statuses" "subscription_reports" -}}
{{- $families := .families | default $all -}}
{{- $groups := dict "policies" "policy.open-cluster-management.io" "placements" "cluster.open-cluster-management.io" "placementdecisions" "cluster.open-cluster-management.io" -}}
{{- range $families }}
{{- $group := get $groups . | default "apps.open-cluster-management.io" }}
{{- $plural := . | replace "_" "" }}
- apiGroups: [{{ $group }}]
  resources: [{{ $plural }}]
  # Objects of three kinds are created, and deleted when their rows are gone.
  verbs: [get, list, watch, patch{{ if has . (list "placementdecisions" "subscription_statuses" "subscription_reports") }}, create, delete{{ end }}]
{{- if not (hasPrefix "subscription_" .) }}
- apiGroups: [{{ $group }}]
  resources: [{{ $plural }}/status]
  verbs: [patch]
{{- end }}
{{- end }}
{{- /* Created objects block the deletion of their owner until they are gone. */}}
{{- if has "placementdecisions" $families }}
- apiGroups: [cluster.open-cluster-management.io]
  resources: [placements]
  verbs: [get, list, watch]
- apiGroups: [cluster.open-cluster-management.io]
  resources: [placements/finalizers]
  verbs: [update]
{{- end }}
{{- if or (has "subscription_statuses" $families) (has "subscription_reports" $families) }}
- apiGroups: [apps.open-cluster-management.io]
  resources: [subscriptions]
  verbs: [get, list, watch]
- apiGroups: [apps.open-cluster-management.io]
  resources: [subscriptions/finalizers]
  verbs: [update]
{{- end }}
{{ include "towline.rules.identity" . }}
{{ include "towline.rules.events" . }}
{{- end -}}

{{- define "towline.rules.inventory" -}}
# Helm's records, and the Secrets `uuid`. RBAC can't narrow the records down.
{{- if eq (.helm_driver | default "secret") "configmap" }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [uuid]
  verbs: [list, watch]
{{- else }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch]
{{- end }}
- apiGroups: [""]
  resources: [pods, services, persistentvolumeclaims]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [list, watch]
- apiGroups: [hossted.com]
  resources: [hosstedprojects]
  verbs: [get, list, watch]
- apiGroups: [hossted.com]
  resources: [hosstedprojects/status]
  verbs: [patch]
{{- end -}}
