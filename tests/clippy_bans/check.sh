#!/bin/sh
# Proves that the bans of clippy.toml fire: a path that clippy can't resolve, or resolves to something else, bans
# nothing and says so at most in a warning. Lints uses.rs, which commits every banned act once, with the repository's
# clippy.toml and locked versions, and fails unless each banned path is reported.
#
# Usage: tests/clippy_bans/check.sh   (needs what `cargo fetch` has brought, and no network)
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/src"
cp "$root/clippy.toml" "$root/Cargo.lock" "$work/"
if [ -f "$root/rust-toolchain.toml" ]; then cp "$root/rust-toolchain.toml" "$work/"; fi
cp "$root/tests/clippy_bans/uses.rs" "$work/src/lib.rs"
cat > "$work/Cargo.toml" <<'MANIFEST'
[package]
name = "clippy-bans"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
actix = { version = "0.13", default-features = false }
futures = { version = "0.3", default-features = false, features = ["std"] }
tokio = { version = "1", features = ["rt", "sync"] }

[workspace]
MANIFEST

# Dependencies are built once and kept; the crate itself is always linted anew.
CARGO_TARGET_DIR="$root/target/clippy-bans"
export CARGO_TARGET_DIR
if ! (cd "$work" && cargo clippy --offline --color never) > "$work/report" 2>&1; then
    cat "$work/report"
    echo "clippy_bans: linting the uses failed" >&2
    exit 1
fi

banned=$(sed -n 's/.*{ *path *= *"\([^"]*\)".*/\1/p' "$root/clippy.toml")
if [ -z "$banned" ]; then
    echo "clippy_bans: clippy.toml bans nothing" >&2
    exit 1
fi
failed=0
if grep -n -A 4 'does not refer to' "$work/report"; then
    echo "clippy_bans: clippy.toml names a path that does not exist" >&2
    failed=1
fi
for path in $banned; do
    if ! grep -q "use of a disallowed method \`$path\`" "$work/report"; then
        echo "clippy_bans: $path is banned, but using it is not reported; is it used in uses.rs?" >&2
        failed=1
    fi
done
if [ "$failed" -ne 0 ]; then exit 1; fi
echo "clippy_bans: all $(echo "$banned" | wc -w) bans fire"
