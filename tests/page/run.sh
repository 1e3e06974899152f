#!/usr/bin/env bash
# Drives the pages in Debian's Chromium with playwright-core, and looks at them with axe-core. Both are kept in ~/.cache/towline/page. The page of a
# fleet meets a hub on a database server that is made for it.
#
# Usage: tests/page/run.sh TOWLINE [DIRECTORY]   the binary whose pages are shown, and where screenshots go
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

readonly playwright=1.65.1 axe=4.14.1
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/towline/page

# Debian keeps the server's programs off the PATH, each version's in a directory of its own.
postgres() { compgen -G '/usr/lib/postgresql/*/bin' | sort --version-sort | tail -n 1; }

if ! { command -v chromium && command -v node && command -v npm && postgres; } >/dev/null; then
    as_root=()
    ((EUID == 0)) || as_root=(sudo -n)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium nodejs npm postgresql >&2 || {
        echo "these packages are missing: apt-get install chromium nodejs npm postgresql (as root)" >&2
        exit 1
    }
fi
if [[ ! -d $cache/node_modules/axe-core || ! -d $cache/node_modules/playwright-core ]]; then
    mkdir -p "$cache"
    npm install --silent --no-fund --no-audit --prefix "$cache" "playwright-core@$playwright" "axe-core@$axe" >&2
fi

room=$(mktemp --directory)
server=
trap '[[ -z $server ]] || kill -INT "$server"; wait; rm -rf "$room"' EXIT
# It refuses to run as root, and ends with this script, however that ends.
as_owner=(setpriv --pdeathsig KILL)
if ((EUID == 0)); then
    chown postgres "$room"
    as_owner=(setpriv --reuid=postgres --regid=postgres --init-groups --pdeathsig KILL)
fi
port=$(node -e 'const server = require("net").createServer().listen(0, "127.0.0.1", () => { console.log(server.address().port); server.close(); })')
programs=$(postgres)
cd "$room"
"${as_owner[@]}" "$programs/initdb" --pgdata="$room/data" --username=towline --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync >/dev/null
"${as_owner[@]}" "$programs/postgres" -D "$room/data" -c "port=$port" -c listen_addresses=127.0.0.1 -c "unix_socket_directories=$room" -c fsync=off \
    >"$room/log" 2>&1 &
server=$!
cd "$OLDPWD"
until "$programs/pg_isready" --quiet --host=127.0.0.1 --port="$port" --dbname=postgres --username=towline; do
    kill -0 "$server" || { cat "$room/log" >&2; exit 1; }
    sleep 0.1
done
CHROMIUM=$(command -v chromium) PAGE_MODULES=$cache PAGE_DATABASE="postgres://towline@127.0.0.1:$port/postgres" node test.mjs "$@"
