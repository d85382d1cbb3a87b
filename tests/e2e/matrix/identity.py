"""F33: authentication. The daemons reach nats-server over TLS and log in with NKeys, which are
replaced under load; then the server shows certificates that must not be accepted, and a key is
revoked."""

import signal
import time

import logins
import nkeys
import programs
from authority import Authority
from matrix.case import ENGINE_SIDE, REPAIRS
from programs import wait_for

ROTATIONS = 5
CONNECTS = "kvb_nats_connects_total"


class SecureServer:
    """The nats-server of the daemons. The oracle, which has neither TLS nor a login, uses a second
    one behind a route, which the daemons do not learn of."""

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
        stage.nats = stage.start_server(stage.nats_port, plain)

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
        self.program = self.stage.start_server(self.port, self.config)

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
    wait_for("the new key is used", lambda: all(now > count for now, count in zip(sums(case, CONNECTS), before)))
    site.permit(new)


def wait_until_refused(case, word):
    """Each daemon has dialed since, and its log says why in vain."""
    known = {daemon: len(daemon.text()) for daemon in daemons(case)}
    for daemon in daemons(case):
        wait_for(f"{daemon.name} says {word}", lambda one=daemon: word in one.text()[known[one]:])


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
        wait_until_refused(case, "ertificate")
    site.keys = []
    site.show("right")
    wait_until_refused(case, "uthorization")
    case.refused_connects = sums(case, CONNECTS)
    site.permit(site.new_key())
    case.end_fault()


def check_refused(case):
    case.figures = f"{ROTATIONS} keys in {(case.rotated_ns - case.began_ns) / 1e9:.1f} s; connections of each daemon: {sums(case, CONNECTS)}"
    case.expect_that(case.refused_connects == case.rotated_connects, "somebody was let in who should not, or believed whom it should not")
    case.expect_that(not case.new_epochs(), "a stream began a new epoch")
