#!/usr/bin/env bash
# Prints the page with the help of every command: of `towline`, of its commands for sections of a daemon, and of `kubectl towline`.
#
# Usage: hack/commands.sh TOWLINE   (the binary)
set -euo pipefail
towline=$(realpath -- "$1")
work=$(mktemp --directory)
readonly towline work
trap 'rm -rf -- "$work"' EXIT
ln -s "$towline" "$work/towline"
ln -s "$towline" "$work/kubectl-towline"
cd "$work"

# What variables of this shell have would be in it.
help_of() { env --ignore-environment "$@" --help; }

show() { # title program word…
    printf '\n## %s\n\n```text\n' "$1"
    help_of "${@:2}"
    printf '```\n'
}

# Each command below the words, and those below it.
each() { # name program word…
    local name=$1 command
    shift
    { help_of "$@" | sed -n '/^Commands:/,/^$/s/^  \([a-z-]\+\)  .*/\1/p'; } | while read -r command; do
        [[ $command == help ]] && continue
        show "$name $command" "$@" "$command"
        each "$name $command" "$@" "$command"
    done
}

echo '# Commands'
each towline ./towline
# For a section they are other commands, which a word behind them tells apart.
show 'towline explain SECTION' ./towline explain inventory
show 'towline resync SECTION' ./towline resync inventory
show 'kubectl towline' ./kubectl-towline
each 'kubectl towline' ./kubectl-towline
