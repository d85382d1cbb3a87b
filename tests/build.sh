# Sourced by tests/sim/run, from the top of the tree.

# build_release NAME TARGET...: these targets in build/release.  What was said lies in
# build/log/NAME-build.txt, its end is shown when it fails.
build_release() {
    local log=build/log/$1-build.txt
    shift
    mkdir -p build/log
    { cmake --preset release && cmake --build --preset release --target "$@" -j "$(nproc)"; } >"$log" 2>&1 ||
        { tail -n 40 "$log" >&2 && return 1; }
}
