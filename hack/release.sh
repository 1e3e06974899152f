#!/usr/bin/env bash
# Writes a release to dist/: for each platform an archive with the binary, completions and man pages, and an SBOM; an OCI layout with one
# index for all platforms; the chart; the book; krew's manifest; SHA256SUMS. It is made in target/ and moved at the end, so that an interrupted one leaves no dist/.
#
# Usage: hack/release.sh [check]   check: only what has to be so before
#   PLATFORMS    default: amd64 arm64
#   RELEASE_URL  where the files will be, for krew's manifest: see hack/release/krew.sh
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly platforms=${PLATFORMS:-amd64 arm64}
readonly glibc=2.28

fail() {
    echo "release: $*" >&2
    exit 1
}

# What has to be so before.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
readonly version
for key in version appVersion; do
    found=$(sed -n "s/^$key: //p" deploy/chart/Chart.yaml)
    [[ $found == "$version" ]] || fail "deploy/chart/Chart.yaml has $key $found, and Cargo.toml version $version"
done
grep -q "^## \[$version\]" CHANGELOG.md || fail "CHANGELOG.md has no heading [$version], the version of Cargo.toml"
[[ -z $(git status --porcelain) ]] || fail "the tree has changes that are not committed"
[[ ${1:-} != check ]] || exit 0
# Whatever happens now, nobody takes an earlier release for this one.
rm -rf dist

# regctl has the last one without its H.
export TOWLINE_COMMIT TOWLINE_DATE SOURCE_DATE_EPOCH SOURCE_DATE_EPOC
TOWLINE_COMMIT=$(git rev-parse --short=12 HEAD)
TOWLINE_DATE=$(git show --no-patch --format=%cs HEAD)
SOURCE_DATE_EPOCH=$(git show --no-patch --format=%ct HEAD)
SOURCE_DATE_EPOC=$SOURCE_DATE_EPOCH

# The tools: see CONTRIBUTING.md, "A release".
readonly tools=$PWD/target/release-tools
python3 -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --require-hashes --requirement hack/release/requirements.txt
export PATH=$tools/bin:$PATH
regctl=$(hack/release/regctl/build.sh)
helm=$(integration/helm/build.sh)
for tool in cargo-auditable cargo-cyclonedx mdbook; do
    command -v "$tool" >/dev/null || fail "$tool is missing: cargo install --locked $tool"
done
for architecture in $platforms; do hack/release/trial.sh emulator "$architecture" >/dev/null; done

readonly work=$PWD/target/dist built=$PWD/target/dist-build
rm -rf "$work"
mkdir -p "$work/source" "$work/dist"
git archive HEAD | tar -x -C "$work/source"

# The same bytes each time. Arguments: file, directory that holds it, what goes in
archive() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
        -C "$2" -c "${@:3}" | gzip -9n >"$1"
}

triple() { [[ $1 == arm64 ]] && echo aarch64-unknown-linux-gnu || echo x86_64-unknown-linux-gnu; }

build() { # architecture
    local target
    target=$(triple "$1")
    rustup target list --installed | grep -qx "$target" || rustup target add "$target"
    (
        cd "$work/source"
        # Paths of this machine are no part of the binary. Backtraces keep their names.
        # What build scripts have written is in the target directory.
        export RUSTFLAGS="--remap-path-prefix=$work/source=. --remap-path-prefix=$built=target --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
        CARGO_TARGET_DIR=$built CARGO_PROFILE_RELEASE_STRIP=debuginfo \
            cargo auditable zigbuild --release --locked --package towline --bin towline --target "$target.$glibc"
        cargo cyclonedx --format json --target "$target" --manifest-path Cargo.toml --override-filename sbom
    )
    mkdir -p "$work/$1"
    cp "$built/$target/release/towline" "$work/$1/"
    sed "s|path+file://$work/source|path+file://.|g" "$work/source/sbom.json" |
        hack/release/sbom.py "$work/$1/towline" >"$work/dist/towline-$version-linux-$1.cdx.json"
}

# Completions, man pages and the book are the same for all platforms: the binary of this machine writes them.
describe() {
    local own=$work/amd64/towline shell
    [[ $(uname -m) != aarch64 ]] || own=$work/arm64/towline
    mkdir -p "$work/described/completions" "$work/described/man"
    for shell in bash zsh fish; do "$own" completion "$shell" >"$work/described/completions/towline.$shell"; done
    "$own" man "$work/described/man"
    hack/docs.sh "$own" >&2
    mkdir -p "$work/book"
    cp -r target/docs/html "$work/book/towline-$version-docs"
    archive "$work/dist/towline-$version-docs.tar.gz" "$work/book" "towline-$version-docs"
}

pack() { # architecture
    local name=towline-$version-linux-$1
    mkdir -p "$work/packed/$name"
    cp -r "$work/described/." "$work/$1/towline" LICENSE "$work/packed/$name/"
    archive "$work/dist/$name.tar.gz" "$work/packed" "$name"
}

# What the image has beside the binary: Debian's C library for the architecture, and the authorities of this machine.
rootfs() { # architecture
    local root=$work/rootfs-$1 apt=$work/apt-$1
    mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$apt/lists/partial" "$apt/archives/partial" "$apt/unpacked"
    local -a options=(-q -o "APT::Architecture=$1" -o "APT::Architectures::=$1" -o "Dir::State::Lists=$apt/lists"
        -o "Dir::Cache=$apt" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2
    (
        cd "$apt"
        apt-get "${options[@]}" download libc6 libgcc-s1 >&2
        for package in ./*.deb; do dpkg-deb --extract "$package" unpacked; done
    )
    cp "$work/$1/towline" "$root/usr/bin/"
    # The loader and the libraries that the binary names, where it looks for them.
    local loader library found
    loader=$(readelf --program-headers "$work/$1/towline" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
    for library in $(readelf --dynamic "$work/$1/towline" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        [[ $library != "$(basename "$loader")" ]] || continue
        found=$(find "$apt/unpacked" -name "$library" -print -quit)
        [[ -n $found ]] || fail "the binary for $1 needs $library, which libc6 and libgcc-s1 do not have"
        mkdir -p "$root/lib"
        cp --dereference "$found" "$root/lib/"
    done
    mkdir -p "$root$(dirname "$loader")"
    cp --dereference "$(find "$apt/unpacked" -name "$(basename "$loader")" -print -quit)" "$root$loader"
    cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    echo 'towline:x:65532:65532::/:/usr/bin/towline' >"$root/etc/passwd"
    echo 'towline:x:65532:' >"$root/etc/group"
}

digest() { echo "sha256:$(sha256sum "$1" | cut -d ' ' -f 1)"; }
size() { stat --format %s "$1"; }

# The manifest of one platform in a layout, as the last stage of the Dockerfile says.
image() { # architecture
    local layout=ocidir://$work/layout layer=$work/layer-$1.tar.gz config=$work/config-$1.json
    rootfs "$1"
    archive "$layer" "$work/rootfs-$1" .
    local environment user entry command
    environment=$(sed -n '/^FROM scratch/,$s/^ENV \(.*\)/"\1"/p' Dockerfile | paste -sd ,)
    user=$(sed -n 's/^USER //p' Dockerfile)
    entry=$(sed -n 's/^ENTRYPOINT //p' Dockerfile)
    command=$(sed -n 's/^CMD //p' Dockerfile)
    printf '{"architecture":"%s","os":"linux","created":"%s","config":{"User":"%s","Env":[%s],"Entrypoint":%s,"Cmd":%s,"ExposedPorts":{"8384/tcp":{}}},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
        "$1" "$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" "$user" "$environment" "$entry" "$command" \
        "sha256:$(gzip -dc "$layer" | sha256sum | cut -d ' ' -f 1)" >"$config"
    "$regctl" blob put "$layout" <"$layer" >/dev/null
    "$regctl" blob put "$layout" <"$config" >/dev/null
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"%s","size":%s}]}' \
        "$(digest "$config")" "$(size "$config")" "$(digest "$layer")" "$(size "$layer")" >"$work/manifest-$1.json"
    "$regctl" manifest put --content-type application/vnd.oci.image.manifest.v1+json \
        "$layout@$(digest "$work/manifest-$1.json")" <"$work/manifest-$1.json"
}

for architecture in $platforms; do build "$architecture"; done
describe
references=()
for architecture in $platforms; do
    pack "$architecture"
    image "$architecture"
    references+=(--ref "ocidir://$work/layout@$(digest "$work/manifest-$architecture.json")")
done
"$regctl" index create "ocidir://$work/layout:$version" "${references[@]}"
# The copy names nothing but the index, which leads to the platforms.
"$regctl" image copy "ocidir://$work/layout:$version" "ocidir://$work/dist/image:$version" >&2

hack/release/push-check.sh "$work/dist/image" "$version"
env --unset=TOWLINE_COMMIT --unset=TOWLINE_DATE cargo build --workspace --locked --bin towline --bin demo --test setup
hack/release/trial.sh "$work/dist/image" "$version" "towline $version ($TOWLINE_COMMIT, $TOWLINE_DATE)"
# shellcheck disable=SC2086  # one word for each platform
hack/release/krew.sh "$work/dist" "$version" $platforms

mkdir -p "$work/chart"
cp -r "$work/source/deploy/chart" "$work/chart/towline"
archive "$work/dist/towline-$version.tgz" "$work/chart" towline
"$helm" show chart "$work/dist/towline-$version.tgz" >/dev/null

(cd "$work/dist" && find . -type f ! -name SHA256SUMS -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum >"$work/SHA256SUMS")
mv "$work/SHA256SUMS" "$work/dist/"
chmod -R u=rwX,go=rX "$work/dist"
mv "$work/dist" dist
rm -rf "$work"
echo "release: dist/ has $version for $platforms" >&2
