#!/usr/bin/env bash
# Prepares a fresh Debian machine: installs the missing packages if it may, and otherwise lists all of them. Prints nothing if
# nothing is missing.
#
# Usage: hack/setup.sh [tools|demo|test]
#   tools  what is needed to build and lint Towline
#   demo   the same, curl, a database server, a control plane and Helm: built once, in about seven minutes, and kept
#   test   the same, and what the tests of network failures, of the bus (rabbitmq-server, whose service is not used: tests start
#          brokers of their own) and of the hub's API need (default): schemathesis in a virtual
#          environment of Python, and the generator of the Go client. If Go builds the control plane, it also builds the Go
#          controller that the bench compares with. Four minutes, once;
#          and the checker of the hub's histories
set -euo pipefail

readonly purpose=${1:-test}
readonly go_wanted=1.26
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# nft is there, and other users than root don't have it on their PATH.
export PATH=$PATH:/usr/sbin:/sbin

say() { echo "setup: $*" >&2; }

case $purpose in
tools | demo | test) ;;
*)
    say "unknown purpose '$purpose': tools, demo or test"
    exit 2
    ;;
esac

# A compiler is useless without the C library's headers, and a linker without its objects.
c_compiler_works() { echo '#include <stdio.h>
int main(void) { return puts("") < 0; }' | cc -x c - -o /dev/null 2>/dev/null; }
have() { command -v "$1" >/dev/null; }
# Debian keeps the server's programs off the PATH, each version's in a directory of its own.
have_postgres() { have initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }
# The programs themselves: those on the PATH refuse other users than root and its own.
have_rabbitmq() { [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]]; }
have_python_environments() { have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }

missing_packages() {
    c_compiler_works || echo gcc libc6-dev
    have git || echo git
    [[ $purpose == tools ]] || { have setpriv && have flock; } || echo util-linux
    [[ $purpose != test ]] || have nft || echo nftables
    [[ $purpose != test ]] || have zsh || echo zsh
    [[ $purpose != test ]] || have fish || echo fish
    [[ $purpose != test ]] || have_rabbitmq || echo rabbitmq-server
    [[ $purpose == tools ]] || have_postgres || echo postgresql
    [[ $purpose != test ]] || have_python_environments || echo python3-venv
    [[ $purpose == tools ]] || have curl || echo curl
}

# version_reaches FOUND WANTED
version_reaches() { printf '%s\n%s\n' "$2" "$1" | sort --check=quiet --version-sort; }

install_packages() { # package...
    local -a as_root=()
    if ((EUID != 0)); then
        as_root=(sudo -n)
        sudo -n true 2>/dev/null || return 1
    fi
    have apt-get || return 1
    say "installing $*"
    local -a install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@")
    "${install[@]}" >&2 && return
    # A fresh machine has no package lists, and an old one has outdated ones.
    say "bringing the lists of packages up to date"
    "${as_root[@]}" apt-get update -q >&2 && "${install[@]}" >&2
}

todo=()
read -ra packages <<<"$(missing_packages | tr '\n' ' ')"
if ((${#packages[@]} > 0)) && ! install_packages "${packages[@]}"; then
    todo+=("these packages are missing: apt-get install ${packages[*]} (as root)")
elif [[ " ${packages[*]} " == *" rabbitmq-server "* ]] && have systemctl && [[ -d /run/systemd/system ]]; then
    # The package starts a broker for the whole machine, which nobody has asked for.
    say "stopping the broker of the package, since tests start their own"
    if ((EUID == 0)); then systemctl disable --now rabbitmq-server; else sudo -n systemctl disable --now rabbitmq-server; fi >&2 || true
fi

rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! have cargo; then
    todo+=("cargo is missing: install Rust $rust_wanted or newer with rustup, and put ~/.cargo/bin on the PATH")
else
    rust_found=$(cargo --version | cut -d ' ' -f 2)
    version_reaches "$rust_found" "$rust_wanted" ||
        todo+=("Rust is too old ($rust_found): 'rustup update stable' installs a newer one than $rust_wanted")
    for component in fmt clippy; do
        cargo $component --version >/dev/null 2>&1 ||
            todo+=("cargo $component is missing: 'rustup component add rustfmt clippy' installs it")
    done
fi

# Go builds the control plane and Helm where nobody has built them, and the client of the hub that is tested.
if [[ $purpose != tools ]]; then
    if ! have go; then
        todo+=("go is missing: install Go $go_wanted or newer")
    else
        go_found=$(GOTOOLCHAIN=local go env GOVERSION)
        version_reaches "${go_found#go}" "$go_wanted" ||
            todo+=("Go is too old ($go_found): install Go $go_wanted or newer")
    fi
fi

# The tests of black-holed clusters drop packets on their own loopback ports.
if [[ $purpose == test ]] && have nft && ! nft list tables >/dev/null 2>&1; then
    todo+=("this user may not use nftables, by which tests drop packets: run as root, or with CAP_NET_ADMIN")
fi

if ((${#todo[@]} > 0)); then
    say "not ready:"
    printf '  - %s\n' "${todo[@]}" >&2
    exit 1
fi

if [[ $purpose != tools ]]; then
    integration/controlplane/build.sh >/dev/null
    integration/helm/build.sh >/dev/null
fi
if [[ $purpose == test && -z ${KUBEBUILDER_ASSETS:-} ]]; then
    integration/reference/build.sh >/dev/null
    integration/linearizability/build.sh >/dev/null
    integration/templates/build.sh >/dev/null
    integration/kstatus/build.sh >/dev/null
fi
if [[ $purpose == test ]]; then
    integration/schemathesis/build.sh >/dev/null
    integration/pika/build.sh >/dev/null
    clients/go/generator/build.sh >/dev/null
fi
