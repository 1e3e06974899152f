#!/bin/sh
# Proves that hack/setup.sh tells a user who may install nothing exactly what to install, everything at once, and fails;
# and that it is quiet where nothing is missing. It runs as nobody (where this is root's), on a PATH that has what a case
# wants it to have: stand-ins for the tools that it looks for, the machine's own for what it is made of.
#
# Usage: tests/setup/check.sh
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Nobody may read a checkout that is root's.
mkdir -p "$work/hack" "$work/integration/controlplane" "$work/integration/helm" "$work/integration/reference" "$work/own" "$work/bin"
cp "$root/hack/setup.sh" "$work/hack/"
cp "$root/Cargo.toml" "$work/"
for built in controlplane helm reference; do
    printf '#!/bin/sh\necho built\n' > "$work/integration/$built/build.sh"
done
for tool in bash dirname env sed cut sort tr; do ln -s "$(command -v "$tool")" "$work/own/$tool"; done

stand_in() { # tool body
    printf '#!/bin/sh\n%s\n' "$2" > "$work/bin/$1"
    chmod 755 "$work/bin/$1"
}

# Everything is there, and new enough.
complete() {
    rm -rf "$work/bin"
    mkdir "$work/bin"
    stand_in cc 'while read -r line; do :; done'
    for tool in git setpriv flock initdb curl python3 zsh fish; do stand_in "$tool" ''; done
    stand_in cargo 'echo "cargo 99.0.0 (hash date)"'
    stand_in go 'echo go99.0'
    chmod -R a+rX "$work"
    chmod 755 "$work"/integration/*/build.sh
}

failed=0
nobody=""
if [ "$(id -u)" -eq 0 ]; then nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"; fi

# case_of NAME PURPOSE STATUS LINE... : the script ends with this status and says these lines and no others.
case_of() {
    name=$1 purpose=$2 expected=$3
    shift 3
    : > "$work/expected"
    for line in "$@"; do echo "$line" >> "$work/expected"; done
    status=0
    # The words of $nobody are separate arguments.
    # shellcheck disable=SC2086
    (cd / && $nobody env -i PATH="$work/bin:$work/own" "$work/hack/setup.sh" "$purpose") \
        > "$work/said" 2> "$work/told" || status=$?
    if [ "$status" -ne "$expected" ] || [ -s "$work/said" ] || ! cmp -s "$work/expected" "$work/told"; then
        echo "setup: $name: status $status instead of $expected, or other words:" >&2
        diff "$work/expected" "$work/told" >&2 || true
        cat "$work/said" >&2
        failed=1
    fi
}

rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
no_rust="  - cargo is missing: install Rust $rust or newer with rustup, and put ~/.cargo/bin on the PATH"
no_go="  - go is missing: install Go 1.26 or newer"
packages() { echo "  - these packages are missing: apt-get install $* (as root)"; }

complete
case_of "nothing is missing" demo 0
case_of "an unknown purpose" dmeo 2 "setup: unknown purpose 'dmeo': tools, demo or test"

for missing in "git git" "flock util-linux" "setpriv util-linux" "cc gcc libc6-dev"; do
    complete
    rm "$work/bin/${missing%% *}"
    case_of "${missing%% *} is missing" demo 1 "setup: not ready:" "$(packages "${missing#* }")"
done
complete
stand_in cc 'while read -r line; do :; done; exit 1'
case_of "a compiler that can't link" demo 1 "setup: not ready:" "$(packages gcc libc6-dev)"

complete
rm "$work/bin/cargo"
case_of "cargo is missing" demo 1 "setup: not ready:" "$no_rust"
complete
stand_in cargo 'echo "cargo 1.0.0 (hash date)"'
case_of "Rust is too old" demo 1 "setup: not ready:" \
    "  - Rust is too old (1.0.0): 'rustup update stable' installs a newer one than $rust"
complete
stand_in cargo 'if [ "$1" = clippy ]; then exit 1; fi; echo "cargo 99.0.0 (hash date)"'
case_of "clippy is missing" demo 1 "setup: not ready:" \
    "  - cargo clippy is missing: 'rustup component add rustfmt clippy' installs it"

complete
rm "$work/bin/go"
case_of "go is missing" demo 1 "setup: not ready:" "$no_go"
case_of "go is not needed" tools 0
complete
stand_in go 'echo go1.9'
case_of "Go is too old" demo 1 "setup: not ready:" "  - Go is too old (go1.9): install Go 1.26 or newer"

complete
rm "$work"/bin/*
# The script looks for a database server where Debian puts it, too.
server=postgresql
for initdb in /usr/lib/postgresql/*/bin/initdb; do if [ -e "$initdb" ]; then server=""; fi; done
case_of "everything is missing" demo 1 "setup: not ready:" "$(packages gcc libc6-dev git util-linux ${server:+"$server"} curl)" \
    "$no_rust" "$no_go"

# The script looks for nft where the machine has it.
complete
broker=rabbitmq-server
if [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]; then broker=""; fi
if [ -n "$broker" ]; then
    case_of "the broker is missing" test 1 "setup: not ready:" "$(packages $([ -x /usr/sbin/nft ] || [ -x /sbin/nft ] || echo nftables) "$broker")"
elif [ -x /usr/sbin/nft ] || [ -x /sbin/nft ]; then
    case_of "nobody may drop packets" test 1 "setup: not ready:" \
        "  - this user may not use nftables, by which tests drop packets: run as root, or with CAP_NET_ADMIN"
else
    case_of "nft is missing" test 1 "setup: not ready:" "$(packages nftables)"
fi

if [ "$failed" -ne 0 ]; then exit 1; fi
echo "setup: what is missing is told"
