"""F33: authentication. The daemons reach nats-server over TLS and log in with NKeys, which are
replaced under load; then the server shows certificates that must not be accepted, and a key is
revoked."""

import signal
import socket
import time

import logins
import nkeys
import programs
from authority import Authority
from case import ENGINE_SIDE, REPAIRS
from programs import wait_for
from stage import NATS

ROTATIONS = 5
BAD_SECONDS = 4
CONNECTS = "kvb_nats_connects_total"


class SecureServer:
    """The nats-server of the daemons. The oracle, which has neither TLS nor a login, uses a second
    one behind a route, which the daemons do not learn of."""

    exact_limit_s = None

    def __init__(self, stage):
        self.stage = stage
        self.config = stage.folder / "secure.conf"
        self.seed = stage.folder / "seed"
        ours = Authority(stage.folder / "pki")
        others = Authority(stage.folder / "others")
        self.certificates = {
            "right": ours.sign("right"),
            "of another authority": others.sign("foreign"),
            "expired": ours.sign("expired", days=-1),
            "of another host": ours.sign("elsewhere", hosts="DNS:elsewhere.example"),
        }
        self.shown = "right"
        self.keys = [self.new_key()]
        stage.nats_keys = f' nkey_seed_file = "{self.seed.resolve()}"; ca_file = "{ours.path.resolve()}";'
        self.port, self.route = programs.free_port(), programs.free_port()
        stage.bridge_urls = stage.aggregator_urls = dict.fromkeys((0, 1), f"nats://127.0.0.1:{self.port}")
        self.program = None
        self.start()
        plain = stage.folder / "plain.conf"
        plain.write_text(
            f"cluster {{ name: c, listen: 127.0.0.1:{programs.free_port()}, no_advertise: true,"
            f' routes: ["nats://127.0.0.1:{self.route}"] }}\n')
        stage.nats = programs.Program(
            stage.folder, "nats-oracle", [NATS, "-c", plain, "-a", "127.0.0.1", "-p", stage.nats_port])
        stage.started.append(stage.nats)
        wait_for("nats-server of the oracle listens", stage.nats_answers)

    def new_key(self):
        """Writes its seed where the daemons read it; returns the public key."""
        key = logins.make_key(nkeys.PREFIX_BYTE_USER)
        logins.write_secret(self.seed, logins.seed_of(key))
        return logins.public(key)

    def write_config(self):
        certificate, key = self.certificates[self.shown]
        users = "".join(f"  {{ nkey: {one} }}\n" for one in self.keys)
        self.config.write_text(
            f'tls {{ cert_file: "{certificate.resolve()}", key_file: "{key.resolve()}" }}\n'
            f"cluster {{ name: c, listen: 127.0.0.1:{self.route}, no_advertise: true }}\n"
            f"authorization {{ users: [\n{users}  {{ user: nobody, password: x }}\n] }}\n")

    def start(self):
        self.write_config()
        stage = self.stage
        self.program = programs.Program(
            stage.folder, f"nats{len(stage.started)}", [NATS, "-c", self.config, "-a", "127.0.0.1", "-p", self.port])
        stage.started.append(self.program)
        wait_for("nats-server listens", self.answers)

    def answers(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as door:
            return door.recv(4) == b"INFO"

    def show(self, certificate):
        """Shows this certificate on connections from now on."""
        self.shown = certificate
        self.program.kill()
        self.start()

    def permit(self, *keys):
        self.keys = list(keys)
        self.write_config()
        self.program.process.send_signal(signal.SIGHUP)

    def close(self):
        pass


def daemons(case):
    return [*case.stage.bridges, *case.stage.aggregators]


def sums(case, name):
    return [daemon.metric(name) for daemon in daemons(case)]


def rotate(case):
    """The server accepts both keys, then only the new one."""
    site = case.stage.site
    before, (old,) = sums(case, CONNECTS), site.keys
    new = site.new_key()
    site.permit(old, new)
    for daemon in daemons(case):
        daemon.process.send_signal(signal.SIGHUP)
    wait_for("the new key is used", lambda: all(now > count for now, count in zip(sums(case, CONNECTS), before)), 10)
    site.permit(new)


def refuse_and_rotate(case):
    site = case.stage.site
    case.note_metrics(*REPAIRS, *ENGINE_SIDE)
    case.began_ns = time.monotonic_ns()
    case.begin_fault()
    for _ in range(ROTATIONS):
        rotate(case)
    case.rotated_ns, case.rotated_connects = time.monotonic_ns(), sums(case, CONNECTS)
    for certificate in list(site.certificates)[1:]:
        site.show(certificate)
        case.last(case.age_s() + BAD_SECONDS)
    site.keys = []
    site.show("right")
    case.last(case.age_s() + BAD_SECONDS)
    case.refused_connects = sums(case, CONNECTS)
    site.permit(site.new_key())
    case.end_fault()


def check_refused(case):
    case.figures = f"{ROTATIONS} keys in {(case.rotated_ns - case.began_ns) / 1e9:.1f} s; connections of each daemon: {sums(case, CONNECTS)}"
    case.expect_that(case.refused_connects == case.rotated_connects, "somebody was let in who should not, or believed whom it should not")
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")
    for daemon in daemons(case):
        text = daemon.text()
        case.expect_that("certificate" in text, f"{daemon.name} does not say what is wrong with the certificate")
        case.expect_that("uthorization" in text, f"{daemon.name} does not say that its login was refused")
