#!/usr/bin/env bash
# Builds crane, which serves a registry on loopback, and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../go-program.sh" "$directory" crane crane github.com/google/go-containerregistry/cmd/crane 'one minute'
