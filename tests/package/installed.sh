#!/usr/bin/env bash
# Tests what `cmake --install` installs: exactly the files of installed.txt, at any prefix;
# programs that run and are hardened at least as Debian's; units that systemd accepts and rates
# as little exposed.  A configuration that an operator changed must stay.
# usage: installed.sh BUILD_FOLDER PREFIX      PREFIX is emptied first
set -euo pipefail
build=$1
prefix=$2
expected=$(dirname "${BASH_SOURCE[0]}")/installed.txt
max_exposure=15 # in tenths; systemd rates up to 2.0 as OK

files_below() {
    (cd "$1" && find . ! -type d -printf '%P\n' | LC_ALL=C sort)
}

rm -rf "$prefix" "$prefix.staged"
cmake --install "$build" --prefix "$prefix" >/dev/null
diff -u "$expected" <(files_below "$prefix")
echo "files: $(wc -l <"$expected"), as expected"

# As a package is built: with the prefix /usr the configuration belongs into /etc.
DESTDIR=$prefix.staged cmake --install "$build" --prefix /usr >/dev/null
diff -u <(sed 's|^|usr/|; s|^usr/etc/|etc/|' "$expected" | LC_ALL=C sort) <(files_below "$prefix.staged")
grep -qx 'ExecStart=/usr/bin/kvbridge --config /etc/kvbridge/kvbridge.cfg' \
    "$prefix.staged/usr/lib/systemd/system/kvbridge.service"
echo "DESTDIR: the same, for /usr and /etc"

for program in kvbridge kvaggregator kvctl; do
    "$prefix/bin/$program" --version
done
# has PROGRAM WHAT PATTERN READELF_OPTION: fails if no line of readelf matches.
# Not grep -q: it stops at the first match, and readelf fails when its output is not read.
has() {
    LC_ALL=C readelf -W "$4" "$1" | grep -E -- "$3" >/dev/null || { echo "$1: no $2" && exit 1; }
}

# lacks PROGRAM WHAT PATTERN READELF_OPTION: fails if a line matches.
lacks() {
    ! LC_ALL=C readelf -W "$4" "$1" | grep -E -- "$3" >/dev/null || { echo "$1: $2" && exit 1; }
}

for program in "$prefix"/bin/*; do
    has "$program" "position-independent executable" 'FLAGS_1.* PIE' -d
    has "$program" "binding of all symbols at the start" 'FLAGS_1.* NOW' -d
    has "$program" "read-only relocations" '^ *GNU_RELRO' -l
    has "$program" "stack segment header" '^ *GNU_STACK' -l
    lacks "$program" "has memory that is writable and executable" ' RWE ' -l
    lacks "$program" "has a library path" '(RPATH|RUNPATH)' -d
    has "$program" "stack protector" '__stack_chk_fail' --dyn-syms
    has "$program" "checks of _FORTIFY_SOURCE" '__[a-z]+_chk@' --dyn-syms
    [ "$(uname -m)" != x86_64 ] || has "$program" "shadow stack (CET)" 'x86 feature:.*SHSTK' -n
done
echo "programs: PIE, RELRO, NOW, NX, stack protector, FORTIFY, CET"

for daemon in kvbridge kvaggregator; do
    "$prefix/bin/$daemon" --check --config "$prefix/etc/kvbridge/$daemon.cfg"
done

echo "# mine" >>"$prefix/etc/kvbridge/kvbridge.cfg"
cmake --install "$build" --prefix "$prefix" >/dev/null
tail -n 1 "$prefix/etc/kvbridge/kvbridge.cfg" | grep -qx '# mine'
echo "a changed configuration is kept"

for unit in "$prefix"/lib/systemd/system/*.service; do
    # Checks also that man finds the pages of Documentation=.  Exits with 0 after a warning.
    said=$(MANPATH=$prefix/share/man systemd-analyze verify "$unit" 2>&1) || { echo "$said" && exit 1; }
    [ -z "$said" ] || { echo "$said" && exit 1; }
    systemd-analyze security --offline=true --threshold="$max_exposure" --no-pager "$unit" |
        sed -n 's/^.*Overall exposure level/exposure/p'
done
