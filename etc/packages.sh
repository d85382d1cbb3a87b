# Sourced by etc/quickstart and by the scripts in tests/, from the top of the tree: the Debian 12
# packages that the project needs, and a function that installs what is missing.

# To build the programs.
packages_build=(
    gcc libc6-dev cmake make pkg-config protobuf-c-compiler
    libnats-dev libzmq3-dev libcurl4-openssl-dev libc-ares-dev libmsgpack-dev libprotobuf-c-dev libconfig-dev
    libmicrohttpd-dev libnghttp2-dev libgnutls28-dev libjson-c-dev libyaml-dev libssl-dev libncurses-dev libxxhash-dev
)
# To run them: the server that they meet on.
packages_run=(nats-server)
# To test them.
packages_test=(
    git libcmocka-dev clang clang-tidy clang-format libclang-rt-14-dev python3 python3-venv
    groff-base iproute2 man-db strace systemd
    chromium fonts-dejavu-core curl nftables
)
# To build the Debian package, and to install it where nothing is.
packages_package=(dpkg-dev file debootstrap)

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

# What runs as root.  Debian's nats-server package would start a service and start it
# again at each boot: whoever only tries us out does not ask for that.  policy-rc.d is
# Debian's way to say so.
packages_as_root='
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap "rm -f $policy" EXIT
        printf "#!/bin/sh\nexit 101\n" >"$policy" && chmod 755 "$policy"
    fi
    # A list that cannot be refreshed is no reason to give up: the install says more.
    apt-get update -qq || echo "apt-get update failed; trying with the lists as they are"
    apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "$@"
    case " $* " in
    *" nats-server "*)
        [ ! -d /run/systemd/system ] || systemctl --quiet disable nats-server.service || true
        ;;
    esac
'

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
    mkdir -p build
    echo "installing ${missing[*]} (log: build/apt.log)"
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "not root and no sudo here.  As root: apt-get install ${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    # sudo asks for its password on the terminal, not on stderr.
    "${as_root[@]}" sh -c "$packages_as_root" sh "${missing[@]}" </dev/null >build/apt.log 2>&1 || {
        tail -n 20 build/apt.log >&2
        echo "apt-get failed: see above and build/apt.log; then try again" >&2
        return 1
    }
}
