#!/bin/sh
# Prints the files that are the project's, from the folder it is called in:
# tracked ones and new ones that git does not ignore; all of them where there is
# no git (an unpacked archive).
# usage: files.sh [EXTENDED_REGEX [EXCLUDED_REGEX]]
set -eu
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard
else
    find . -type f -not -path './build/*' -not -path './.git/*' -not -path './.venv/*' | sed 's|^\./||'
fi | sort -u | grep -E "${1:-.}" | grep -vE "${2:-^$}" | while IFS= read -r file; do
    [ ! -f "$file" ] || printf '%s\n' "$file"
done
