#!/usr/bin/env bash
# Installs pika (requirements.txt) into a virtual environment outside the tree and prints the path of its Python: the only
# line on stdout. The first time takes a few seconds; after that it only prints.
#
#   TOWLINE_CACHE  where it is kept; default: towline in the user's cache folder
set -euo pipefail

readonly python_wanted=3.9

say() { echo "pika: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

cache=${TOWLINE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is TOWLINE_CACHE}/.cache}/towline}
mkdir -p -- "$cache"
cache=$(cd -- "$cache" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' 2>/dev/null ||
    fail "Python with virtual environments is missing: install python3-venv"
python_found=$(python3 -c 'import sys; print(*sys.version_info[:3], sep=".")')
python3 -c "import sys; sys.exit(sys.version_info < (${python_wanted/./, }))" ||
    fail "Python is too old ($python_found): install Python $python_wanted or newer"
command -v flock >/dev/null || fail "the command 'flock' is missing: install util-linux"

key=$({ cat requirements.txt build.sh && echo "$python_found" && command -v python3; } | sha256sum | cut -c 1-16)
readonly target=$cache/pika-$key
exec {lock}>"$cache/pika.lock"
flock "$lock"
# The programs of a virtual environment contain its path, so it is made where it stays, and counts when this file is there.
if [[ ! -e $target/complete ]]; then
    rm -rf -- "$target"
    say "installing into $target; this takes a few seconds"
    SECONDS=0
    python3 -m venv "$target" >&2 {lock}>&- &&
        "$target/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --require-hashes \
            --requirement requirements.txt >&2 {lock}>&- ||
        fail "the installation failed after $SECONDS s, see above"
    touch "$target/complete"
    say "installed in $SECONDS s"
fi
echo "$target/bin/python"
