#!/usr/bin/env bash
# Builds the program that judges objects as kstatus does (see main.go), and prints its path.
set -euo pipefail

directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$directory/../../hack/go-program.sh" "$directory" kstatus towline-kstatus . 'about a minute'
