# Sourced by etc/quickstart and by the scripts in tests/, from the top folder: the Debian 12
# packages that the project needs, and a function that installs the missing ones.

# To build the programs.
packages_build=(
    gcc libc6-dev cmake make pkg-config protobuf-c-compiler
    libnats-dev libzmq3-dev libcurl4-openssl-dev libmsgpack-dev libprotobuf-c-dev libconfig-dev
    libmicrohttpd-dev libnghttp2-dev libgnutls28-dev libjson-c-dev libyaml-dev libuv1-dev libssl-dev libncurses-dev libxxhash-dev
)
# To run them.
packages_run=(nats-server)
# To test them.
packages_test=(
    git libcmocka-dev clang clang-tidy clang-format libclang-rt-14-dev python3 python3-venv
    groff-base iproute2 man-db strace systemd
    chromium fonts-dejavu-core curl nghttp2-client
)
# To build the Debian package, and to install it in a minimal root.
packages_package=(dpkg-dev file debootstrap)

# Prints the packages of "$@" that are not installed.
packages_missing() {
    local name
    for name in "$@"; do
        # "ii" and "hi" (held) are installed.  Anything else is missing, also unknown names.
        case $(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null || true) in
        ?i*) ;;
        *) echo "$name" ;;
        esac
    done
}

# Runs as root.  Debian's nats-server package starts a service, now and at each boot, which
# nobody needs who only tries this project.  policy-rc.d is Debian's way to prevent the start.
packages_as_root='
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap "rm -f $policy" EXIT
        printf "#!/bin/sh\nexit 101\n" >"$policy" && chmod 755 "$policy"
    fi
    # The installation may succeed with old package lists; else its error says more.
    apt-get update -qq || echo "apt-get update failed; trying with the present package lists"
    apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "$@"
    case " $* " in
    *" nats-server "*)
        [ ! -d /run/systemd/system ] || systemctl --quiet disable nats-server.service || true
        ;;
    esac
'

# Installs the packages of "$@" that are missing.  Does not call apt when none is.
packages_install() {
    local missing=() as_root=()
    if ! command -v dpkg-query >/dev/null; then
        echo "this is not Debian: install the equivalent of these packages: $*" >&2
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
            echo "installing needs root or sudo.  Run as root: apt-get install ${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    # sudo asks for the password on the terminal, so it is not in the log.
    "${as_root[@]}" sh -c "$packages_as_root" sh "${missing[@]}" </dev/null >build/apt.log 2>&1 || {
        tail -n 20 build/apt.log >&2
        echo "apt-get failed: see above and build/apt.log; then try again" >&2
        return 1
    }
}
