#!/bin/sh
# Fails when a published name has changed: what the programs write or read by name (metrics,
# labels, configuration keys, JSON fields, states, subjects, fields of protocol buffers) is
# what others rely on.  Names are the string literals of bridge/ that look like one, and the
# fields of proto/.  With --write the list is made anew: look at the difference before you
# commit it.
# usage: published.sh [REPO_ROOT] [--write]
set -eu
cd "${1:-$(dirname "$0")/../..}"
list=tests/data/published-names.txt

published() {
    {
        find bridge -name '*.[ch]' -exec cat {} + | grep -v '^#include' |
            grep -oE '"[a-z$][A-Za-z0-9_.$]*"' | tr -d '"' | sed 's/^/name /'
        sed -n 's/^ *\(optional \|repeated \)\{0,1\}\([a-z0-9_.A-Z]* [a-z_]* = [0-9]*\)\( \[.*\]\)\{0,1\};.*/field \2/p' proto/*.proto
    } | LC_ALL=C sort -u
}

if [ "${2:-}" = --write ]; then
    published >"$list"
    exit
fi
difference=$(published | diff "$list" - || true)
[ -z "$difference" ] || { printf '%s\n^ published names have changed: if that is meant, sh tests/lint/published.sh . --write\n' "$difference" && exit 1; }
