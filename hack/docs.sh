#!/usr/bin/env bash
# Makes the book of the documentation in target/docs/html, with the pages of commands and keys. Its links are those of the pages in the repository,
# which tests/docs.rs follows; what is left to see is that no page makes a request to another host.
#
# Usage: hack/docs.sh TOWLINE   (the binary, whose help the page of commands has)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly towline=$1 work=target/docs

mdbook --version >/dev/null 2>&1 || {
    echo "docs: mdbook is missing: cargo install --locked mdbook" >&2
    exit 1
}
rm -rf "$work"
mkdir -p "$work/src"
cp docs/book.toml "$work/"
git ls-files -z -- '*.md' LICENSE config deploy docs clients/go integration/sql | xargs -0 cp --parents --target-directory "$work/src"
mv "$work/src/docs/SUMMARY.md" "$work/src/"

hack/commands.sh "$towline" >"$work/src/docs/commands.md"
{
    printf '# Keys\n\nEvery key with its default, as in `config/towline.toml`.\n\n```toml\n'
    cat config/towline.toml
    echo '```'
} >"$work/src/docs/keys.md"
mdbook build "$work"
hack/book-requests.py "$work/html"
echo "docs: $work/html/index.html" >&2
