#!/usr/bin/env bash
# Builds the renderer of templates (see main.go), and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../hack/go-program.sh" "$directory" templates towline-templates . 'a few seconds'
