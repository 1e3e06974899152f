{{/* The configuration with what the chart sets, as JSON. */}}
{{- define "towline.config" -}}
{{- include "towline.check" . -}}
{{- $config := deepCopy .Values.config -}}
{{- $secrets := .Values.existingSecrets -}}
{{- $daemon := set ($config.daemon | default dict) "listen" (dig "daemon" "listen" "0.0.0.0:8384" $config) -}}
{{- if $secrets.adminToken.name }}{{ $_ := set $daemon "admin_token_file" (printf "/etc/towline/admin/%s" $secrets.adminToken.key) }}{{ end -}}
{{- $_ := set $config "daemon" $daemon -}}
{{- range $name, $secret := $secrets.clusters -}}
{{- $kubeconfig := dict "kubeconfig" (printf "/etc/towline/clusters/%s/%s" $name ($secret.key | default "kubeconfig")) -}}
{{- if $config.clusters }}{{ $_ := set $config.clusters $name (merge $kubeconfig (get $config.clusters $name | default dict)) }}{{ end -}}
{{- end -}}
{{- with $config.election }}{{ if not .namespace }}{{ $_ := set . "namespace" $.Release.Namespace }}{{ end }}{{ end -}}
{{- range $section := list "hub" "status_sync" -}}
{{- if and (hasKey $config $section) (include "towline.lacksDatabase" (list $ $section)) -}}
{{- $_ := set (get $config $section) "database_url_file" (printf "/etc/towline/database/%s" $secrets.database.key) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $config "hub" -}}
{{- $hub := $config.hub -}}
{{- if $secrets.hubAccess.name }}{{ $_ := set $hub "tokens_file" "/etc/towline/access/tokens" }}{{ $_ := set $hub "keys_file" "/etc/towline/access/keys" }}{{ end -}}
{{- if $secrets.hubTls.name }}{{ $_ := set $hub "tls_cert" "/etc/towline/tls/tls.crt" }}{{ $_ := set $hub "tls_key" "/etc/towline/tls/tls.key" }}{{ end -}}
{{- if $secrets.broker.name }}{{ $_ := set $hub "amqp_url_file" (printf "/etc/towline/broker/%s" $secrets.broker.key) }}{{ end -}}
{{- end -}}
{{- with $config.inventory -}}
{{- if $secrets.inventoryToken.name }}{{ $_ := set . "token_file" (printf "/etc/towline/inventory/%s" $secrets.inventoryToken.key) }}{{ end -}}
{{- end -}}
{{ toJson $config }}
{{- end -}}

{{/* Whether a section has no database but that of `existingSecrets`: (list $ "hub"). */}}
{{- define "towline.lacksDatabase" -}}
{{- $ := index . 0 -}}
{{- $section := get $.Values.config (index . 1) -}}
{{- $named := or (hasKey $section "database_url") (hasKey $section "database_url_file") -}}
{{- if not $named }}{{ include "towline.unsetByVariable" (list $ (printf "TOWLINE__%s__DATABASE_URL" (upper (index . 1)))) }}{{ end -}}
{{- end -}}

{{/* "true" unless `extraEnv` has a variable that begins so: (list $ "TOWLINE__HUB__AMQP_URL"). */}}
{{- define "towline.unsetByVariable" -}}
{{- $prefix := index . 1 -}}
{{- $unset := "true" -}}
{{- range (index . 0).Values.extraEnv }}{{ if hasPrefix $prefix .name }}{{ $unset = "" }}{{ end }}{{ end -}}
{{ $unset }}
{{- end -}}

{{/* "true" if sections of the configuration run in one replica at a time: all but those of the hub. */}}
{{- define "towline.isElected" -}}
{{- $config := .Values.config -}}
{{- if or $config.sync $config.lease (hasKey $config "status_sync") (hasKey $config "inventory") }}true{{ end -}}
{{- end -}}

{{/* "true" if replicas divide the sections, or one of them has status sync. */}}
{{- define "towline.hasElection" -}}
{{- if or (hasKey .Values.config "election") (dig "status_sync" "election_namespace" "" .Values.config) }}true{{ end -}}
{{- end -}}

{{/* "true" if a name of a cluster means the one that the pod runs in: (list $config "edge"). Without a name, it is `default` or the pod's. */}}
{{- define "towline.isOwn" -}}
{{- $clusters := (index . 0).clusters | default dict -}}
{{- $name := index . 1 | default "default" -}}
{{- if hasKey $clusters $name -}}
{{- if (get $clusters $name).in_cluster }}true{{ end -}}
{{- else if not (index . 1) }}true{{ end -}}
{{- end -}}

{{/* "true" if anything is asked of the cluster that the pod runs in. Otherwise the pod gets no token. */}}
{{- define "towline.usesOwn" -}}
{{- $config := .Values.config -}}
{{- $uses := false -}}
{{- range $config.clusters }}{{ if .in_cluster }}{{ $uses = true }}{{ end }}{{ end -}}
{{- range $config.lease }}{{ if include "towline.isOwn" (list $config .cluster) }}{{ $uses = true }}{{ end }}{{ end -}}
{{- range list "status_sync" "inventory" -}}
{{- if and (hasKey $config .) (include "towline.isOwn" (list $config (get $config .).cluster)) }}{{ $uses = true }}{{ end -}}
{{- end -}}
{{- if $uses }}true{{ end -}}
{{- end -}}

{{/* "true" if other machines reach the hub's API. It listens on loopback by default. */}}
{{- define "towline.hasApi" -}}
{{- $listen := dig "hub" "listen" "" .Values.config -}}
{{- if and $listen (not (regexMatch "^(127\\.|\\[::1\\]|\\[::ffff:127\\.)" $listen)) }}true{{ end -}}
{{- end -}}

{{/* The port of the hub's API, if it has one. */}}
{{- define "towline.hubPort" -}}
{{- if hasKey .Values.config "hub" }}{{ dig "hub" "listen" "127.0.0.1:7070" .Values.config | regexFind "[0-9]+$" }}{{ end -}}
{{- end -}}

{{/* Seconds of a duration such as `1m 30s`, rounded up. */}}
{{- define "towline.seconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+ *[a-z]+" . -1 -}}
{{- $number := regexFind "[0-9]+" . | int -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- if regexMatch "^(n|u|ms|mill)" $unit }}{{ $sum = add $sum (div (add $number 999) 1000) -}}
{{- else if hasPrefix "s" $unit }}{{ $sum = add $sum $number -}}
{{- else if hasPrefix "m" $unit }}{{ $sum = add $sum (mul $number 60) -}}
{{- else if hasPrefix "h" $unit }}{{ $sum = add $sum (mul $number 3600) -}}
{{- else }}{{ $sum = add $sum (mul $number 86400) -}}{{ end -}}
{{- end -}}
{{ $sum }}
{{- end -}}
