#!/usr/bin/env bash
# Builds the Go controller that the bench compares with (see main.go), and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../hack/go-program.sh" "$directory" reference towline-reference . 'about two minutes'
