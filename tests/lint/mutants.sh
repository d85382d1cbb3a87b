#!/bin/sh
# Fails on a mutant that is none any more: its patch does not fit the tree, or does not
# say what is wrong.  tests/mutants/run finds those that do not compile.
# usage: mutants.sh [REPO_ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
bad=0

for patch in tests/mutants/*.patch; do
    head -n 1 "$patch" | grep -qE '^# [A-Z].*\.$' || { echo "$patch: does not say what is wrong" && bad=1; }
    git apply --check "$patch" || { echo "^ $patch does not fit: make it anew" && bad=1; }
done
[ "$bad" -eq 0 ]
