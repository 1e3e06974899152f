#!/bin/sh
# Runs the Dockerfile's steps without a container engine, and tests the result: copies only what .dockerignore allows, runs
# each stage in its own directory with this machine's tools instead of the stage's image, and then starts the image's entry
# point in the last stage's root directory, as the image's user.
#
# Supports the instructions that the Dockerfile uses, and fails at any other.
#
# Usage: hack/image-steps.sh [DIRECTORY]   (default target/image; cargo's output there is kept for the next run)
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$root/target/image}
mkdir -p "$work"
work=$(cd "$work" && pwd)
# These variables would change the directory and the settings that cargo uses in the image.
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET CARGO_BUILD_TARGET_DIR RUSTFLAGS

fail() {
    echo "image-steps: $*" >&2
    exit 1
}

# The build context: .dockerignore excludes everything and lists what is included.
make_context() {
    context=$work/context
    rm -rf "$context"
    mkdir "$context"
    rules=$(grep -v -e '^#' -e '^$' "$root/.dockerignore")
    [ "$(echo "$rules" | head -n 1)" = '*' ] || fail ".dockerignore does not begin by shutting everything out"
    for rule in $(echo "$rules" | tail -n +2); do
        case $rule in
            !*) path=${rule#!} ;;
            *) fail ".dockerignore: only exceptions after the first line: $rule" ;;
        esac
        mkdir -p "$(dirname "$context/$path")"
        cp -Rp "$root/$path" "$context/$path"
    done
}

# One instruction per line: continued lines are joined, comments and empty lines dropped.
instructions() {
    sed -e '/^#/d' -e '/^[[:space:]]*$/d' "$root/Dockerfile" | sed -e ':more' -e '/\\$/{N;s/\\\n[[:space:]]*//;b more' -e '}'
}

# Where a path of the current stage is.
in_stage() {
    case $1 in
        /*) echo "$stage$1" ;;
        *) echo "$stage$workdir/$1" ;;
    esac
}

from() {
    # IMAGE [AS NAME]
    stage=$work/${3:-final}
    if [ "$1" = scratch ]; then
        rm -rf "$stage"
    elif [ -d "$stage" ]; then
        # Like an engine's layers: cargo's directory stays, the sources don't.
        find "$stage" -mindepth 2 -maxdepth 2 ! -name target -exec rm -rf {} +
    fi
    mkdir -p "$stage"
    workdir=
    environment=
    user=
    entry=
}

copy() {
    base=$context
    case $1 in
        --from=*) base=$work/${1#--from=}; shift ;;
    esac
    while [ $# -gt 1 ]; do
        sources="${sources:-} $1"
        shift
    done
    destination=$(in_stage "$1")
    for source in $sources; do
        if [ -d "$base/$source" ]; then
            # For a directory, its content is copied.
            mkdir -p "$destination"
            cp -Rp "$base/$source/." "$destination"
        else
            case $1 in
                */) mkdir -p "$destination" ;;
            esac
            cp -p "$base/$source" "$destination"
        fi
    done
    unset sources
}

run() {
    echo "image-steps: RUN $1"
    # Word splitting of the environment is meant: its values have no spaces.
    # shellcheck disable=SC2086
    (cd "$stage$workdir" && env $environment sh -c "$1") || fail "this step failed: $1"
}

# A JSON list of plain words, as words.
words() {
    echo "$1" | tr -d '[]",'
}

make_context
instructions > "$work/instructions"
while read -r instruction rest; do
    case $instruction in
        # shellcheck disable=SC2086
        FROM) from $rest ;;
        WORKDIR) workdir=$rest; mkdir -p "$stage$workdir" ;;
        ENV)
            case $rest in
                *[[:space:]]*) fail "ENV with spaces: $rest" ;;
            esac
            environment="$environment $rest"
            ;;
        # shellcheck disable=SC2086
        COPY) copy $rest ;;
        RUN) run "$rest" < /dev/null ;;
        USER) user=$rest ;;
        ENTRYPOINT) entry=$(words "$rest") ;;
        EXPOSE | CMD) ;;
        *) fail "unknown instruction: $instruction" ;;
    esac
done < "$work/instructions"

# The result: the last stage's directory is the image's root.
[ -n "$user" ] && [ "${user%%:*}" -ne 0 ] || fail "the image runs as root"
[ -n "$entry" ] || fail "the image has no entry point"
shells=$(find "$stage" -name '*sh' ! -type d)
[ -z "$shells" ] || fail "the image has a shell: $shells"
loose=$(find "$stage" ! -type l \( -perm /6022 -o ! -perm -004 \))
[ -z "$loose" ] || fail "these can be written to by anybody, change the user, or can't be read by all: $loose"
( cd "$stage" && find . -type f -exec du -k {} + | sort -k 2 )

# What a container runtime mounts: the configuration, and its hosts file.
mkdir -p "$stage/etc/towline"
cp "$root/deploy/base/towline.toml" "$stage/etc/towline/towline.toml"
echo '127.0.0.1 hub.test' > "$stage/etc/hosts"
chmod -R go=rX "$stage/etc"

chroot=$(PATH=$PATH:/usr/sbin:/sbin command -v chroot) || fail "no chroot here: install coreutils"
in_image() {
    # shellcheck disable=SC2086
    if [ "$(id -u)" -eq 0 ]; then
        env -i $environment "$chroot" --userspec="$user" "$stage" $entry "$@"
    else
        env -i $environment "$(command -v unshare)" --map-root-user "$chroot" "$stage" $entry "$@"
    fi
}

expected="towline $(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)"
version=$(in_image --version)
[ "$version" = "$expected" ] || fail "--version says \"$version\", not \"$expected\""
in_image check --config /etc/towline/towline.toml || fail "the deployment's configuration is refused"
# Port 9 of loopback refuses connections; a name that could not be resolved would give another error.
if answer=$(in_image status --admin http://hub.test:9 2>&1); then
    fail "a daemon has answered where there is none: $answer"
fi
case $answer in
    *refused*) ;;
    *) fail "names are not looked up in the image: $answer" ;;
esac
rm -r "$stage/etc/towline" "$stage/etc/hosts"
echo "image-steps: $version runs as $user in a root directory of $(du -sk "$stage" | cut -f 1) KiB: $stage"
