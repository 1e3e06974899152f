{{/*
The configuration as TOML, whose keys need no quotes: the schema has them all. Helm's own `toToml` makes 64.0 of 64, since all numbers of
values are floats.
*/}}
{{- define "towline.toml" -}}
{{- $tables := list -}}
{{- range $key, $value := include "towline.config" . | fromJson -}}
{{- $tables = append $tables (include "towline.table" (dict "path" $key "value" $value)) -}}
{{- end -}}
{{- /* No value has a line break. */ -}}
{{ regexReplaceAll "\n\n+" (join "\n" $tables) "\n\n" | trim }}
{{- end -}}

{{/* A table, or a list of them: `[path]` or `[[path]]`. */}}
{{- define "towline.table" -}}
{{- if kindIs "slice" .value -}}
{{- range .value }}
[[{{ $.path }}]]
{{- include "towline.keys" (dict "path" $.path "table" .) }}
{{ end -}}
{{- else }}
{{- $onlyTables := gt (len .value) 0 }}
{{- range .value }}{{ if not (kindIs "map" .) }}{{ $onlyTables = false }}{{ end }}{{ end }}
{{- if not $onlyTables }}
[{{ .path }}]
{{- end }}
{{- include "towline.keys" (dict "path" .path "table" .value) }}
{{ end -}}
{{- end -}}

{{/* The keys of a table. Tables in it come last, since what follows their headers is theirs. */}}
{{- define "towline.keys" -}}
{{- range $key, $value := .table }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "towline.value" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{ include "towline.table" (dict "path" (printf "%s.%s" $.path $key) "value" $value) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A value on one line. TOML's strings have JSON's escapes, and want one for DEL, too. */}}
{{- define "towline.value" -}}
{{- if kindIs "string" . -}}
{{ toRawJson . | replace "\x7f" "\\u007f" }}
{{- else if kindIs "slice" . -}}
{{- $values := list -}}
{{- range . }}{{ $values = append $values (include "towline.value" .) }}{{ end -}}
[{{ join ", " $values }}]
{{- else if kindIs "map" . -}}
{{- $values := list -}}
{{- range $key, $value := . -}}
{{- $values = append $values (printf "%s = %s" $key (include "towline.value" $value)) -}}
{{- end -}}
{ {{- join ", " $values -}} }
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}
