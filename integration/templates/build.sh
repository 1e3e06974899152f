#!/usr/bin/env bash
# Builds the renderer of templates (see main.go) into a cache outside the tree and prints the path of the program: the only
# line on stdout. The first build takes a few seconds; after that it only prints.
#
#   TOWLINE_CACHE  where builds are kept; default: towline in the user's cache folder
set -euo pipefail

readonly go_wanted=1.26

say() { echo "templates: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

cache=${TOWLINE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is TOWLINE_CACHE}/.cache}/towline}
mkdir -p -- "$cache"
cache=$(cd -- "$cache" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

# The installed Go or none, for this machine, and no other module has a say.
export GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0
unset GOOS GOARCH
command -v go >/dev/null ||
    fail "the command 'go' is missing: install Go $go_wanted or newer and put it on the PATH"
go_found=$(go version)
[[ $go_found =~ go([0-9]+)\.([0-9]+) ]] || fail "can't read the version of Go from '$go_found'"
((BASH_REMATCH[1] > ${go_wanted%.*} || (BASH_REMATCH[1] == ${go_wanted%.*} && BASH_REMATCH[2] >= ${go_wanted#*.}))) ||
    fail "Go is too old ($go_found): install Go $go_wanted or newer"
command -v flock >/dev/null || fail "the command 'flock' is missing: install util-linux"

key=$({ cat go.mod ./*.go build.sh && echo "$go_found"; } | sha256sum | cut -c 1-16)
readonly target=$cache/templates-$key
exec {lock}>"$cache/templates.lock"
flock "$lock"
if [[ ! -d $target ]]; then
    # Only the holder of the lock builds, so what lies here was left by a build that was killed.
    rm -rf -- "$cache"/templates-unfinished.*
    work=$(mktemp -d -- "$cache/templates-unfinished.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    say "building into $target"
    SECONDS=0
    # Neither the lock nor the caller's pipe on stdout may outlive this script in a compiler.
    go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$work/bin/towline-templates" . >&2 {lock}>&- ||
        fail "the build failed after $SECONDS s, see above"
    mv -T -- "$work/bin" "$target"
    say "built in $SECONDS s"
fi
echo "$target/towline-templates"
