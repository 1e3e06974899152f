{{/*
What a release would only tell by a pod that does not start, or not at all: each fault as a sentence with its path, all at once. The types and
the names of keys are checked before, by values.schema.json.
*/}}
{{- define "towline.check" -}}
{{- $config := .Values.config -}}
{{- $secrets := .Values.existingSecrets -}}
{{- $clusters := $config.clusters | default dict -}}
{{- $faults := list -}}
{{- $passwords := include "towline.passwords" (dict "path" "config" "value" $config) | splitList "\n" | compact -}}

{{- if not .Values.image.repository -}}
{{- $faults = append $faults "image.repository: missing; name the image that you pushed, such as registry.example/towline" -}}
{{- end -}}
{{- $elected := include "towline.isElected" . -}}
{{- if not (or $elected (hasKey $config "hub")) -}}
{{- $faults = append $faults "config: has nothing to run; add one of sync, lease, status_sync, inventory and hub, or begin with a file of presets/" -}}
{{- end -}}
{{- if and (hasKey $config "syncsets") (not (hasKey $config "hub")) -}}
{{- $faults = append $faults "config.syncsets: needs config.hub; with `listen: \"\"` there, a replica is a worker without an API" -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) $elected (not (include "towline.hasElection" .)) -}}
{{- $faults = append $faults "replicas: more than one would all do the same work; add config.election, as presets/edge-replicated.yaml does, or set it to 1" -}}
{{- end -}}
{{- if not (has (dig "daemon" "listen" "" $config) (list "" "0.0.0.0:8384" "[::]:8384")) -}}
{{- $faults = append $faults "config.daemon.listen: leave it out; the chart sets 0.0.0.0:8384, where probes and Prometheus connect. For pods with IPv6 alone, set [::]:8384" -}}
{{- end -}}
{{- /* A Service's name begins with a letter, and has no dot. */ -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) -}}
{{- $faults = append $faults (printf "release %s: its name has to begin with a letter, and to have letters, digits and - alone" .Release.Name) -}}
{{- end -}}
{{- /* Only a daemon with election waits for the Leases of others. */ -}}
{{- if and $elected (include "towline.hasElection" .) .Release.IsUpgrade -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace .Release.Name -}}
{{- if and (eq (dig "spec" "strategy" "type" "" $running) "Recreate") (dig "status" "replicas" 0 $running) -}}
{{- $faults = append $faults (printf "config.election: the pod that runs has no election, and would go on beside the new ones; end it before, and wait until it is gone: kubectl --namespace %[1]s scale deployment/%[2]s --replicas 0; kubectl --namespace %[1]s wait --for delete pod --selector app.kubernetes.io/instance=%[2]s" .Release.Namespace .Release.Name) -}}
{{- end -}}
{{- end -}}

{{- /* Clusters. */ -}}
{{- range $name, $cluster := $clusters -}}
{{- $cluster = $cluster | default dict -}}
{{- $ways := list -}}
{{- if $cluster.in_cluster }}{{ $ways = append $ways "in_cluster" }}{{ end -}}
{{- if $cluster.kubeconfig }}{{ $ways = append $ways "kubeconfig" }}{{ end -}}
{{- if hasKey $secrets.clusters $name }}{{ $ways = append $ways (printf "existingSecrets.clusters.%s" $name) }}{{ end -}}
{{- $variable := printf "TOWLINE__CLUSTERS__%s__KUBECONFIG" ($name | upper | replace "-" "_") -}}
{{- if and (ne (len $ways) 1) (include "towline.unsetByVariable" (list $ $variable)) -}}
{{- $faults = append $faults (printf "config.clusters.%s: has %s; needs exactly one of in_cluster, kubeconfig, and a Secret at existingSecrets.clusters.%s" $name (join " and " $ways | default "no access") $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := $secrets.clusters -}}
{{- if not (hasKey $clusters $name) -}}
{{- $faults = append $faults (printf "existingSecrets.clusters.%s: there is no such cluster in config.clusters, which has %s; add `%s: {}` there" $name (keys $clusters | sortAlpha | join ", " | default "none") $name) -}}
{{- end -}}
{{- end -}}
{{- $references := list -}}
{{- range $index, $section := $config.sync -}}
{{- range list "remote" "local" }}{{ $references = append $references (list (printf "sync[%d].%s" $index .) (get $section .)) }}{{ end -}}
{{- end -}}
{{- range $index, $section := $config.lease }}{{ $references = append $references (list (printf "lease[%d].cluster" $index) $section.cluster) }}{{ end -}}
{{- range list "election" "status_sync" "inventory" }}{{ $references = append $references (list (printf "%s.cluster" .) (get (get $config . | default dict) "cluster")) }}{{ end -}}
{{- range $references -}}
{{- if and (index . 1) (not (hasKey $clusters (index . 1))) -}}
{{- $faults = append $faults (printf "config.%s: there is no cluster %q in config.clusters, which has %s" (index . 0) (index . 1) (keys $clusters | sortAlpha | join ", " | default "none")) -}}
{{- end -}}
{{- end -}}

{{- /* Secrets that are needed, and those that nobody reads. */ -}}
{{- $lacking := list -}}
{{- range $section := list "hub" "status_sync" -}}
{{- if and (hasKey $config $section) (include "towline.lacksDatabase" (list $ $section)) }}{{ $lacking = append $lacking $section }}{{ end -}}
{{- end -}}
{{- if and $lacking (not $secrets.database.name) -}}
{{- $faults = append $faults (printf "existingSecrets.database.name: missing; name the Secret with the database of config.%s" (join " and config." $lacking)) -}}
{{- else if gt (len $lacking) 1 -}}
{{- $faults = append $faults "config.status_sync: hub and status_sync have different databases; set database_url_file of one of them, and mount its Secret with extraVolumes" -}}
{{- end -}}
{{- if and $secrets.database.name (not $lacking) (not $passwords) -}}
{{- $faults = append $faults "existingSecrets.database.name: nobody reads it; config has neither hub nor status_sync, or names a database already" -}}
{{- end -}}
{{- if not (hasKey $config "hub") -}}
{{- range list "broker" "hubAccess" "hubTls" -}}
{{- if (get $secrets .).name }}{{ $faults = append $faults (printf "existingSecrets.%s.name: nobody reads it; config has no hub" .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if hasKey $config "hub" -}}
{{- $hub := $config.hub -}}
{{- if include "towline.hasApi" $ -}}
{{- if not (or $secrets.hubAccess.name (and $hub.tokens_file $hub.keys_file)) -}}
{{- $faults = append $faults "existingSecrets.hubAccess.name: missing; others reach config.hub.listen, so that the hub needs tokens and keys" -}}
{{- end -}}
{{- if not (or $secrets.hubTls.name $hub.tls_cert $hub.plaintext) -}}
{{- $faults = append $faults "existingSecrets.hubTls.name: missing; others reach config.hub.listen, so that the hub needs a certificate, or `plaintext: true` behind a proxy that ends TLS" -}}
{{- end -}}
{{- end -}}
{{- $url := or $secrets.broker.name $hub.amqp_url $hub.amqp_url_file (not (include "towline.unsetByVariable" (list $ "TOWLINE__HUB__AMQP_URL"))) -}}
{{- if and (eq ($hub.bus | default "postgres") "amqp") (not $url) -}}
{{- $faults = append $faults "existingSecrets.broker.name: missing; config.hub.bus is amqp" -}}
{{- else if and (ne ($hub.bus | default "postgres") "amqp") $secrets.broker.name -}}
{{- $faults = append $faults "config.hub.bus: has to be amqp for the broker of existingSecrets.broker" -}}
{{- end -}}
{{- end -}}
{{- if hasKey $config "inventory" -}}
{{- if not (or $secrets.inventoryToken.name $config.inventory.token_file) -}}
{{- $faults = append $faults "existingSecrets.inventoryToken.name: missing; name the Secret with the token of the API" -}}
{{- end -}}
{{- else if $secrets.inventoryToken.name -}}
{{- $faults = append $faults "existingSecrets.inventoryToken.name: nobody reads it; config has no inventory" -}}
{{- end -}}

{{- /* A ConfigMap and a Deployment are readable by many. */ -}}
{{- range $passwords -}}
{{- $faults = append $faults (printf "%s: contains a password, which everybody could read in a ConfigMap; put the whole URL into a Secret, and name that in existingSecrets" .) -}}
{{- end -}}
{{- $variables := dict -}}
{{- if or $secrets.adminToken.name (dig "daemon" "admin_token_file" "" $config) -}}
{{- $_ := set $variables "TOWLINE_ADMIN_TOKEN_FILE" "the chart, from existingSecrets.adminToken or config.daemon.admin_token_file" -}}
{{- end -}}
{{- range $index, $variable := .Values.extraEnv -}}
{{- with get $variables $variable.name -}}
{{- $faults = append $faults (printf "extraEnv[%d].name: %s is set by %s; of two values one would be ignored" $index $variable.name .) -}}
{{- end -}}
{{- $_ := set $variables $variable.name (printf "extraEnv[%d]" $index) -}}
{{- if include "towline.passwords" (dict "path" "extraEnv" "value" ($variable.value | default "")) -}}
{{- $faults = append $faults (printf "extraEnv[%d].value: contains a password, which everybody could read in the Deployment; use existingSecrets, or valueFrom.secretKeyRef" $index) -}}
{{- end -}}
{{- if hasPrefix "TOWLINE__DAEMON__" $variable.name -}}
{{- $faults = append $faults (printf "extraEnv[%d].name: %s would go before what the chart derives from the configuration; set it in config.daemon" $index $variable.name) -}}
{{- end -}}
{{- if has $variable.name (list "POSTGRES_PARAMS" "DATABASE_URL" "AMQP_URL") -}}
{{- $faults = append $faults (printf "extraEnv[%d].name: `towline run` does not read %s; name the Secret in existingSecrets" $index $variable.name) -}}
{{- end -}}
{{- end -}}

{{- if and .Values.rbac.create (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- $faults = append $faults "serviceAccount.name: missing; without it, the roles would be those of the namespace's account default, so of all its pods" -}}
{{- end -}}

{{- /* By these, Deployment and Service find their pods. */ -}}
{{- range $values := list "labels" "podLabels" -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey (get $.Values $values) . }}{{ $faults = append $faults (printf "%s.%s: is the chart's own" $values .) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- if $faults }}{{ fail (join "\n" $faults) }}{{ end -}}
{{- end -}}

{{/* The paths of texts that have a password: in a URL before its host, or as a parameter. */}}
{{- define "towline.passwords" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value }}{{ include "towline.passwords" (dict "path" (printf "%s.%s" $path $key) "value" $value) }}{{ end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value }}{{ include "towline.passwords" (dict "path" (printf "%s[%d]" $path $index) "value" $value) }}{{ end -}}
{{- else if and (kindIs "string" .value) (regexMatch "(?i)://[^/?#@]*:[^@]+@|(^|[\\s?&])(ssl)?password\\s*=" .value) -}}
{{ $path }}{{ "\n" }}
{{- end -}}
{{- end -}}
