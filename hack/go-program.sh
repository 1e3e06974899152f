#!/usr/bin/env bash
# Builds a Go program, which the tests or the bench use, from the module in a directory into a cache outside the tree, and prints its
# path: the only line on stdout. After the first time it only prints. The module's version, its sources and Go's version are the key
# in the cache.
#
# Usage: hack/go-program.sh DIRECTORY NAME PROGRAM PACKAGE DURATION
#   DIRECTORY  where go.mod is
#   NAME       what messages and the cache call it
#   PROGRAM    the name of the program
#   PACKAGE    its package: . or one of a required module
#   DURATION   of the first build on two cores, in words
#
#   TOWLINE_CACHE  where builds are kept; default: towline in the user's cache folder
set -euo pipefail

readonly go_wanted=1.26
readonly directory=$1 name=$2 program=$3 package=$4 duration=$5

say() { echo "$name: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

cache=${TOWLINE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is TOWLINE_CACHE}/.cache}/towline}
mkdir -p -- "$cache"
cache=$(cd -- "$cache" && pwd)
script=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/go-program.sh
cd -- "$directory"

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

shopt -s nullglob
key=$({ cat go.mod go.sum ./*.go "$script" && echo "$go_found $program $package"; } | sha256sum | cut -c 1-16)
readonly target=$cache/$name-$key
exec {lock}>"$cache/$name.lock"
flock "$lock"
if [[ ! -d $target ]]; then
    # Only the holder of the lock builds, so what lies here was left by a build that was killed.
    rm -rf -- "$cache/$name"-unfinished.*
    work=$(mktemp -d -- "$cache/$name-unfinished.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    say "building into $target; the first build takes $duration"
    SECONDS=0
    # Neither the lock nor the caller's pipe on stdout may outlive this script in a compiler.
    go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$work/bin/$program" "$package" >&2 {lock}>&- ||
        fail "the build failed after $SECONDS s, see above"
    mv -T -- "$work/bin" "$target"
    say "built in $SECONDS s"
fi
echo "$target/$program"
