#!/usr/bin/env bash
# Builds Helm, whose releases the tests of the inventory report, and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../hack/go-program.sh" "$directory" helm helm helm.sh/helm/v3/cmd/helm 'two minutes'
