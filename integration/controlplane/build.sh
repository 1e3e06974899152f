#!/usr/bin/env bash
# Builds the control plane (see main.go) into a cache outside the tree and prints
# the directory that holds kube-apiserver, etcd, kube-controller-manager and
# kubectl: the only line on stdout. The first build takes about five minutes on
# two cores; after that it only prints.
#
#   KUBEBUILDER_ASSETS  a directory with these four programs: used instead of a build
#   TOWLINE_CACHE       where builds are kept; default: towline in the user's cache folder
set -euo pipefail

readonly programs=(kube-apiserver etcd kube-controller-manager kubectl)
readonly go_wanted=1.26
readonly progress_interval=15 # seconds

say() { echo "controlplane: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

missing_programs() { # directory
    local program
    for program in "${programs[@]}"; do
        [[ -f $1/$program && -x $1/$program ]] || echo "$program"
    done
}

# Both paths may be relative to where the caller stands, so they come before any cd.
if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
    missing=$(missing_programs "$KUBEBUILDER_ASSETS")
    if [[ -z $missing ]]; then
        cd -- "$KUBEBUILDER_ASSETS" && pwd
        exit
    fi
    say "KUBEBUILDER_ASSETS is not used: $KUBEBUILDER_ASSETS has no ${missing//$'\n'/, no }"
fi
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

key=$({ cat go.mod go.sum main.go build.sh && echo "$go_found"; } | sha256sum | cut -c 1-16)
readonly target=$cache/controlplane-$key
if [[ -d $target ]]; then
    echo "$target"
    exit
fi

exec {lock}>"$cache/controlplane.lock"
if ! flock --nonblock "$lock"; then
    say "waiting for another build to end"
    flock "$lock"
fi
if [[ -d $target ]]; then # by whoever had the lock
    echo "$target"
    exit
fi

# Only the holder of the lock builds, so what lies here was left by a build that was killed.
rm -rf -- "$cache"/controlplane-unfinished.*
work=$(mktemp -d -- "$cache/controlplane-unfinished.XXXXXX")
build=
clean_up() {
    if [[ -n $build ]]; then kill "$build" 2>/dev/null || true; fi
    rm -rf -- "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir "$work/bin" "$work/tmp"

# Without these a server calls itself v0.0.0-master, and clients that look at the version go wrong.
version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' go.mod)
IFS=. read -r major minor _ <<<"${version#v}"
ldflags='-s -w'
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
done

say "building Kubernetes $version into $target; the first build takes about five minutes"
SECONDS=0
# Neither the lock nor the caller's pipe on stdout may outlive this script in a compiler.
GOTMPDIR=$work/tmp go build -trimpath -buildvcs=false -ldflags "$ldflags" \
    -o "$work/bin/towline-controlplane" . >&2 {lock}>&- &
build=$!
next=$progress_interval
while kill -0 "$build" 2>/dev/null; do
    sleep 1
    if ((SECONDS >= next)); then
        say "still building after $SECONDS s"
        ((next += progress_interval))
    fi
done
wait "$build" || fail "the build failed after $SECONDS s, see above"
build=

for program in "${programs[@]}"; do
    ln -s towline-controlplane "$work/bin/$program"
done
mv -T -- "$work/bin" "$target"
say "built in $SECONDS s"
echo "$target"
