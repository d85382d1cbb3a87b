#!/bin/sh
# Fails on words that do not belong in this tree: functions that overflow or stop
# the program, waiting by the clock, promises of later work, paths of one machine.
# usage: words.sh [REPO_ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
files=tests/lint/files.sh
bad=0

# ban PATTERN WHY FILES EXCEPT: each hit is an error.  Comments are looked at too:
# a banned call in a comment is commented-out code.
ban() {
    hits=$(sh "$files" "$3" "$4" | tr '\n' '\0' | xargs -0 -r grep -nHE -- "$1" || true)
    [ -z "$hits" ] || { printf '%s\n^ %s\n' "$hits" "$2" && bad=1; }
}

call='(^|[^A-Za-z0-9_.>])'
ban "${call}(sprintf|vsprintf|strcpy|strcat|strncpy|strncat|strtok|atoi|atol|atoll|gets|alloca|system) ?\\(" \
    'banned: no bound, no error, or a shell; see kvb_buf, snprintf, strtoull' '\.[ch]$' '^$'
ban "${call}s?rand ?\\(" 'banned: hidden state; take a seed' '\.[ch]$' '^$'
ban "${call}u?sleep ?\\(" 'banned outside tests: wait on a condition with a deadline' \
    '^(bridge|tests/fleet)/.*\.[ch]$' '^$'
ban '\b(TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b' 'say it in an issue, or do it' '.' '^tests/data/'
ban '(\.\./sh[a]red|/wo[r]k/|/ro[o]t/|/ho[m]e/[a-z])' 'a path of one machine' '.' '^tests/data/'
# Not the C of the protocol buffers compiler, not a vendored copy.
ban '' 'generated code lives in the build folder only' '\.pb-c\.[ch]$' '^$'
[ "$bad" -eq 0 ]
