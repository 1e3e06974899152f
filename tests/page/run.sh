#!/usr/bin/env bash
# Drives the pages in Debian's Chromium with playwright-core, and looks at them with axe-core. Both are kept in ~/.cache/towline/page.
#
# Usage: tests/page/run.sh TOWLINE [DIRECTORY]   the binary whose pages are shown, and where screenshots go
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

readonly playwright=1.65.1 axe=4.14.1
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/towline/page

if ! { command -v chromium && command -v node && command -v npm; } >/dev/null; then
    as_root=()
    ((EUID == 0)) || as_root=(sudo -n)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium nodejs npm >&2 || {
        echo "these packages are missing: apt-get install chromium nodejs npm (as root)" >&2
        exit 1
    }
fi
if [[ ! -d $cache/node_modules/axe-core || ! -d $cache/node_modules/playwright-core ]]; then
    mkdir -p "$cache"
    npm install --silent --no-fund --no-audit --prefix "$cache" "playwright-core@$playwright" "axe-core@$axe" >&2
fi
CHROMIUM=$(command -v chromium) PAGE_MODULES=$cache exec node test.mjs "$@"
