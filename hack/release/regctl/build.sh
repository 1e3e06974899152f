#!/usr/bin/env bash
# Builds regctl, which writes and pushes image layouts, and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../go-program.sh" "$directory" regctl regctl github.com/regclient/regclient/cmd/regctl 'one minute'
