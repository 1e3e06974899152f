#!/usr/bin/env bash
# Builds the checker of histories (see main.go), and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../hack/go-program.sh" "$directory" linearizability towline-linearizability . 'about half a minute'
