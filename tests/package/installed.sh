#!/usr/bin/env bash
# What `cmake --install` puts on a machine: these files and no others, wherever it is
# told to put them; programs that run, units that systemd takes and that leave little
# open, configurations that an operator changed as they were.
# The programs are hardened as Debian's are, and more.
# usage: installed.sh BUILD_FOLDER PREFIX      PREFIX is emptied first
set -euo pipefail
build=$1
prefix=$2
expected=$(dirname "${BASH_SOURCE[0]}")/installed.txt
most_exposure=15 # tenths; systemd calls 2.0 and less OK

files_below() {
    (cd "$1" && find . ! -type d -printf '%P\n' | LC_ALL=C sort)
}

rm -rf "$prefix" "$prefix.staged"
cmake --install "$build" --prefix "$prefix" >/dev/null
diff -u "$expected" <(files_below "$prefix")
echo "files: $(wc -l <"$expected"), as expected"

# A package is staged for /usr, whose configuration is /etc.
DESTDIR=$prefix.staged cmake --install "$build" --prefix /usr >/dev/null
diff -u <(sed 's|^|usr/|; s|^usr/etc/|etc/|' "$expected" | LC_ALL=C sort) <(files_below "$prefix.staged")
grep -qx 'ExecStart=/usr/bin/kvbridge --config /etc/kvbridge/kvbridge.cfg' \
    "$prefix.staged/usr/lib/systemd/system/kvbridge.service"
echo "DESTDIR: the same, for /usr and /etc"

for program in kvbridge kvaggregator kvctl kvfleet; do
    "$prefix/bin/$program" --version
done
# has PROGRAM WHAT PATTERN READELF_OPTION: fails when readelf shows no line that matches.
# grep reads to the end: readelf would fail when nobody reads on.
has() {
    LC_ALL=C readelf -W "$4" "$1" | grep -E -- "$3" >/dev/null || { echo "$1: no $2" && exit 1; }
}

# lacks: the contrary.
lacks() {
    ! LC_ALL=C readelf -W "$4" "$1" | grep -E -- "$3" >/dev/null || { echo "$1: $2" && exit 1; }
}

for program in "$prefix"/bin/*; do
    has "$program" "position-independent executable" 'FLAGS_1.* PIE' -d
    has "$program" "binding of all symbols at the start" 'FLAGS_1.* NOW' -d
    has "$program" "relocations that are read-only" '^ *GNU_RELRO' -l
    has "$program" "header of the stack" '^ *GNU_STACK' -l
    lacks "$program" "memory that is writable and executable" ' RWE ' -l
    lacks "$program" "path of libraries of its own" '(RPATH|RUNPATH)' -d
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
    # It asks man for the pages of Documentation=; a warning is no failure to it.
    said=$(MANPATH=$prefix/share/man systemd-analyze verify "$unit" 2>&1) || { echo "$said" && exit 1; }
    [ -z "$said" ] || { echo "$said" && exit 1; }
    systemd-analyze security --offline=true --threshold="$most_exposure" --no-pager "$unit" |
        sed -n 's/^.*Overall exposure level/exposure/p'
done
