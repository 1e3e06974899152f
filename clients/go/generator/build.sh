#!/usr/bin/env bash
# Builds oapi-codegen (go.mod has its version), and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../../hack/go-program.sh" "$directory" client-generator oapi-codegen github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen 'about a minute'
