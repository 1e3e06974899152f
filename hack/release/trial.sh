#!/usr/bin/env bash
# Runs each platform's binary of an image layout: unpacks its layers, looks for a shell, asks for the version and checks a configuration as the
# image's user in that root, and plays the demo with it. A platform that is not this machine's runs in qemu.
#
# Without root, it is the user who calls it that the binary runs as.
#
# Usage: hack/release/trial.sh LAYOUT VERSION EXPECTED   EXPECTED: what --version has to print
#        hack/release/trial.sh emulator ARCHITECTURE     only prints what would run programs of it here
#   DEMO   default target/debug/demo
set -euo pipefail
directory=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

fail() {
    echo "trial: $*" >&2
    exit 1
}

# Nothing for the architecture of this machine.
emulator() { # architecture
    local machine=x86_64
    [[ $1 != arm64 ]] || machine=aarch64
    [[ $machine != "$(uname -m)" ]] || return 0
    command -v "qemu-$machine-static" || fail "qemu-$machine-static is missing: apt-get install qemu-user-static"
}

if [[ $1 == emulator ]]; then
    emulator "$2"
    exit
fi

readonly directory layout=$1 version=$2 expected=$3 demo=${DEMO:-$directory/../../target/debug/demo}
regctl=$("$directory/regctl/build.sh")
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
chmod go+rx "$work"

# Arguments: root, user, emulator or nothing, then towline's.
in_root() {
    local -a run=(/usr/bin/towline "${@:4}")
    [[ -z $3 ]] || run=("/${3##*/}" "${run[@]}")
    if ((EUID == 0)); then
        env -i /usr/sbin/chroot --userspec="$2" "$1" "${run[@]}"
    else
        env -i /usr/bin/unshare --map-root-user /usr/sbin/chroot "$1" "${run[@]}"
    fi
}

try() { # architecture, digest
    local root=$work/$1 image=ocidir://$layout@$2 emulated user found digest
    emulated=$(emulator "$1")
    mkdir "$root"
    for digest in $("$regctl" manifest get "$image" --format '{{range .Layers}}{{println .Digest}}{{end}}'); do
        "$regctl" blob get "ocidir://$layout" "$digest" | tar -xz -C "$root"
    done
    user=$("$regctl" image config "$image" --format '{{.Config.User}}')
    [[ $user =~ ^[1-9] ]] || fail "$1: the image runs as user $user"
    found=$(find "$root" -name '*sh' ! -type d)
    [[ -z $found ]] || fail "$1: the image has a shell: $found"

    # What a container runtime mounts, and what runs programs of another architecture.
    install -D --mode=644 "$directory/../../deploy/base/towline.toml" "$root/etc/towline/towline.toml"
    [[ -z $emulated ]] || cp "$emulated" "$root/"
    found=$(in_root "$root" "$user" "$emulated" --version)
    [[ $found == "$expected" ]] || fail "$1: --version says $found, not $expected"
    in_root "$root" "$user" "$emulated" check --config /etc/towline/towline.toml >&2 || fail "$1: check refuses deploy/base/towline.toml"

    # The demo's files are outside of that root: its loader and libraries are named instead.
    local loader
    loader=$(readelf --program-headers "$root/usr/bin/towline" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
    # The story types its name.
    mkdir "$work/bin-$1"
    cat >"$work/bin-$1/towline" <<END
#!/bin/sh
exec $emulated $root$loader --library-path $root/lib $root/usr/bin/towline "\$@"
END
    chmod +x "$work/bin-$1/towline"
    TOWLINE_BIN=$work/bin-$1/towline "$demo" --once >"$work/demo-$1" 2>&1 || {
        cat "$work/demo-$1" >&2
        fail "$1: the demo fails"
    }
    ((EUID == 0)) || user="$EUID, for want of root,"
    echo "trial: $1: $expected runs as $user without a shell, and plays the demo" >&2
}

"$regctl" manifest get "ocidir://$layout:$version" --format '{{range .Manifests}}{{println .Platform.Architecture .Digest}}{{end}}' >"$work/platforms"
while read -r architecture digest; do
    [[ -z $architecture ]] || try "$architecture" "$digest" </dev/null
done <"$work/platforms"
