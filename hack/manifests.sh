#!/usr/bin/env bash
# Renders the presets of the chart for those who use kustomize. Beside a kustomization it writes towline.yaml, and towline.toml, of which
# the kustomization makes the ConfigMap. The definition of a kind has a file of its own, definition.yaml: who deletes what towline.yaml has
# keeps its objects. What only Helm reads is left out. Rules and dashboard are copies of the chart's files.
#
# Usage: hack/manifests.sh [DIRECTORY]   (default deploy)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly into=${1:-deploy}
helm=$(integration/helm/build.sh)

render() { # directory preset release namespace [flag...]
    local directory=$into/$1 preset=$2 release=$3 namespace=$4 rendered
    shift 4
    rendered=$("$helm" template "$release" deploy/chart --namespace "$namespace" --kube-version 1.30.0 --values "deploy/chart/presets/$preset.yaml" \
        --set image.repository=towline "$@")
    mkdir -p "$directory"
    awk -v preset="$preset${*:+, with $*}" -v configuration="$directory/towline.toml" -v definition="$directory/definition.yaml" '
        function document() {
            if (text ~ /\nkind: ConfigMap\n/) print substr(toml, 2) >configuration
            else if (text ~ /\nkind: CustomResourceDefinition\n/) print made text >definition
            else if (text) print "---" text
            text = ""
        }
        BEGIN {
            made = "# Made by `make manifests` of deploy/chart with the preset " preset "."
            print made
        }
        /^---$/ { document(); next }
        /^# Source: / || /^ *helm\.sh\/chart: / || /^ *app\.kubernetes\.io\/managed-by: Helm$/ { next }
        /^ *# The daemon reads its configuration once\.$/ { left_out = 3 }
        left_out > 0 { left_out--; next }
        { text = text "\n" $0 }
        /^  towline\.toml: \|$/ { toml = ""; next }
        { sub(/^    /, ""); toml = toml "\n" $0 }
        END { document() }' <<<"$rendered" >"$directory/towline.yaml"
}

mkdir -p "$into/base/monitoring"
cp deploy/chart/files/{dashboard.json,prometheus-rule.yaml} "$into/base/monitoring"
render base edge towline towline
render overlays/replicated edge-replicated towline towline
render status-sync status-sync towline-status-sync open-cluster-management
render inventory inventory towline-inventory towline-inventory
render inventory-configmaps inventory towline-inventory towline-inventory --set config.inventory.helm_driver=configmap
render syncsets/production hub towline-hub syncsets
render syncsets/applying hub-syncsets towline-hub syncsets
render syncsets/rabbitmq rabbitmq towline-hub syncsets
render syncsets/trial trial towline-hub syncsets
