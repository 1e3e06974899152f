#!/usr/bin/env bash
# Writes the manifest of krew for the archives of a release: DIST/towline.yaml. krew unpacks files and directories and nothing else, so that an
# archive with a symbolic link is refused.
#
# Usage: hack/release/krew.sh DIST VERSION PLATFORM…   (amd64, arm64)
#   RELEASE_URL  where the files of a release are, with VERSION in place of its version; default: below
set -euo pipefail
readonly dist=$1 version=$2
url=${RELEASE_URL:-https://github.com/towline/towline/releases/download/vVERSION}
url=${url//VERSION/$version}

fail() {
    echo "krew: $*" >&2
    exit 1
}

{
    cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: towline
spec:
  version: v$version
  homepage: https://github.com/towline/towline
  shortDescription: Show and steer the replicas of Towline
  description: |
    Finds the pods of a release of Towline, merges what its replicas say, sends orders to the one that runs the section, and opens its page.
  platforms:
END
    for platform in "${@:3}"; do
        name=towline-$version-linux-$platform
        archive=$dist/$name.tar.gz
        listed=$(tar -tvzf "$archive")
        ! grep -q '^[^d-]' <<<"$listed" || fail "$archive has more than files and directories: $(grep '^[^d-]' <<<"$listed")"
        for file in towline LICENSE; do
            grep -q " $name/$file\$" <<<"$listed" || fail "$archive has no $name/$file"
        done
        cat <<END
  - selector:
      matchLabels:
        os: linux
        arch: $platform
    uri: $url/$name.tar.gz
    sha256: $(sha256sum "$archive" | cut -d ' ' -f 1)
    files:
    - from: $name/towline
      to: kubectl-towline
    - from: $name/LICENSE
      to: .
    bin: kubectl-towline
END
    done
} >"$dist/towline.yaml.new"
mv "$dist/towline.yaml.new" "$dist/towline.yaml"
