# Sourced by etc/quickstart and tests/run: the Debian 12 packages that the project
# needs, and a function that installs those of them that are missing.

# To build the programs.
packages_build=(
    gcc libc6-dev cmake make pkg-config protobuf-c-compiler
    libnats-dev libzmq3-dev libmsgpack-dev libprotobuf-c-dev libconfig-dev
    libmicrohttpd-dev libjson-c-dev libxxhash-dev libcurl4-openssl-dev
)
# To run them: the server that they meet on.
packages_run=(nats-server)
# To test them.
packages_test=(
    git libcmocka-dev clang clang-tidy clang-format libclang-rt-14-dev python3 python3-venv
)

# Prints those of "$@" that are not installed.
packages_missing() {
    local name
    for name in "$@"; do
        # "ii" or "hi" (held): installed.  Anything else, unknown names included, is missing.
        case $(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null || true) in
        ?i*) ;;
        *) echo "$name" ;;
        esac
    done
}

# Installs those of "$@" that are missing; asks apt for nothing when none is.
packages_install() {
    local missing=() as_root=()
    if ! command -v dpkg-query >/dev/null; then
        echo "this is not Debian: install the like of: $*" >&2
        return 1
    fi
    mapfile -t missing < <(packages_missing "$@")
    if [ ${#missing[@]} -eq 0 ]; then
        return 0
    fi
    echo "installing ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "not root and no sudo here.  As root: apt-get install ${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    # The environment goes through env, because sudo drops ours.
    as_root+=(env DEBIAN_FRONTEND=noninteractive)
    # A list that cannot be refreshed is no reason to give up: the install says more.
    "${as_root[@]}" apt-get update -qq </dev/null ||
        echo "apt-get update failed; trying with the package lists as they are" >&2
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
        -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >&2 || {
        echo "apt-get install failed: see above; then try again" >&2
        return 1
    }
}
