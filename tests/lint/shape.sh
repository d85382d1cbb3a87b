#!/bin/sh
# Fails when the tree loses its shape: the fixed top level, headers that guard
# themselves, scripts that parse, no stray blanks.
# usage: shape.sh [REPO_ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
files=tests/lint/files.sh
bad=0
say() {
    echo "$1" && bad=1
}

top='CMakeLists\.txt|CMakePresets\.json|bridge|proto|etc|tests|docker-compose\.yml|README\.md|\..*'
for name in $(sh "$files" | sed 's|/.*||' | sort -u | grep -vxE "$top"); do
    say "$name: the top level holds CMake, bridge, proto, etc, tests, docker-compose.yml, README.md"
done

for file in $(sh "$files" '^(bridge|tests)/.*\.h$'); do
    [ "$(head -n 1 "$file")" = '#pragma once' ] || say "$file: begins with #pragma once"
done

for file in $(sh "$files" '(^|/)(run|quickstart|[^/]*\.sh)$' '^tests/data/'); do
    shell=sh
    head -n 1 "$file" | grep -q bash && shell=bash
    # Sourced files have no first line of their own; they are bash.
    head -n 1 "$file" | grep -q '^#!' || shell=bash
    "$shell" -n "$file" || say "$file: does not parse"
done

blanks=$(sh "$files" '\.(c|h|md|sh|py|cfg|yml|txt|json|proto)$' '^tests/data/' | tr '\n' '\0' |
    xargs -0 -r grep -nHE '[[:blank:]]+$' || true)
[ -z "$blanks" ] || say "$blanks
^ blanks at the end of a line"
[ "$bad" -eq 0 ]
