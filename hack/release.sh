#!/bin/sh
# Builds the daemon's release binary. The demo, the bench and the image all run this one: cargo chooses the features of
# dependencies for the packages that it builds together, so the binary is built without those of the workspace's other package.
#
# Usage: hack/release.sh [LINKER_SCRIPT]   (hack/order.ld: ARCHITECTURE.md, The order of functions)
#
# The script is for LLVM's linker, which Rust uses on x86_64 Linux with glibc; on other platforms it is left out. GNU's takes longer than
# five minutes for the patterns, and others refuse it: whoever has configured one calls this without a script (`make bench ORDER=`).
set -eu

cd "$(dirname "$0")/.."
order=${1:-}
set -- cargo rustc --release --locked --package towline --bin towline
if [ -n "$order" ] && rustc --version --verbose | grep -q '^host: x86_64-unknown-linux-gnu$'; then
    # Cargo links again when an argument changes, not when a file does that an argument names. So the checksum is an argument, too.
    set -- "$@" -- -C "link-arg=-T$(realpath "$order")" --cfg "order=\"$(cksum < "$order")\""
fi
exec "$@"
