#!/usr/bin/env bash
# Pushes an image layout to a registry on loopback, pulls it back, and fails unless index and platforms have the digests that they had.
#
# Usage: hack/release/push-check.sh LAYOUT VERSION
set -euo pipefail
directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
readonly directory layout=$1 version=$2

regctl=$("$directory/regctl/build.sh")
crane=$("$directory/crane/build.sh")
work=$(mktemp --directory)
"$crane" registry serve --address 127.0.0.1:0 2>"$work/log" &
registry=$!
trap 'kill "$registry" 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in {1..100}; do
    port=$(sed -n 's/.*serving on port //p' "$work/log")
    if [[ -n $port ]] || ! kill -0 "$registry" 2>/dev/null; then break; fi
    sleep 0.1
done
[[ -n $port ]] || {
    echo "push-check: the registry does not start, or does not say on which port it serves: $(<"$work/log")" >&2
    exit 1
}

ask() { "$regctl" --host "reg=127.0.0.1:$port,tls=disabled" "$@"; }
readonly image=127.0.0.1:$port/towline:$version
ask image copy "ocidir://$layout:$version" "$image" >/dev/null
ask image copy "$image" "ocidir://$work/pulled:$version" >/dev/null
# The index, and each manifest in it.
digests() {
    ask manifest head "$1"
    ask manifest get "$1" --format '{{range .Manifests}}{{println .Platform .Digest}}{{end}}'
}
pushed=$(digests "ocidir://$layout:$version")
for place in "$image" "ocidir://$work/pulled:$version"; do
    found=$(digests "$place")
    [[ $found == "$pushed" ]] || {
        printf 'push-check: %s has\n%s\ninstead of\n%s\n' "$place" "$found" "$pushed" >&2
        exit 1
    }
done
printf 'push-check: pushed and pulled\n%s\n' "$pushed" >&2
