"""Are logins replaced while events flow, without losing an event and without a stream leaving
EXACT?

KVB_RENEWALS=20 KVB_RENEWAL_SECONDS=60 is the long form."""

import os
import re
import signal
import threading
import time

import pytest

import engine
import marked
import programs
from clock import Clock, build_shim
from conftest import worker
from logins import Authority, Login, seed_of, make_key, public, write_secret
from nkeys import PREFIX_BYTE_USER
from programs import wait_for

pytestmark = pytest.mark.no_nats

RENEWALS = int(os.environ.get("KVB_RENEWALS", "6"))
SECONDS = float(os.environ.get("KVB_RENEWAL_SECONDS", "3"))


class Material:
    """Logins of one kind that the server accepts at the same time; use(i) makes number i the
    current one."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.login = Login("credentials", folder) if kind == "credentials" else None
        self.config = folder / "nats.conf"
        self.file = folder / "current"
        self.keys = {
            "password": lambda i: f'user = "u{i}"; password_file = "{self.file}";',
            "token": lambda i: f'token_file = "{self.file}";',
            "credentials": lambda i: f'credentials = "{self.file}";',
            "nkey": lambda i: f'nkey_seed_file = "{self.file}";',
            "certificate": lambda i: f'ca_file = "{folder}/bundle.pem"; cert_file = "{folder}/client.pem";'
                                     f' key_file = "{self.file}";',
        }[kind]
        getattr(self, f"make_{kind}")()
        marked.mark(*self.secrets)

    def make_password(self):
        self.secrets = [f"password{i}-{os.urandom(4).hex()}" for i in range(RENEWALS + 1)]
        users = "\n".join(f'{{ user: "u{i}", password: "{s}" }}' for i, s in enumerate(self.secrets))
        self.config.write_text(f"authorization {{ users = [\n{users}\n] }}\n")

    def make_token(self):
        """A server has one token. A file that is replaced by one with the same content is a new
        login, too."""
        self.secrets = [os.urandom(8).hex()] * (RENEWALS + 1)
        self.config.write_text(f'authorization {{ token: "{self.secrets[0]}" }}\n')

    def make_nkey(self):
        keys = [make_key(PREFIX_BYTE_USER) for _ in range(RENEWALS + 1)]
        self.secrets = [seed_of(key) for key in keys]
        users = "\n".join(f"{{ nkey: {public(key)} }}" for key in keys)
        self.config.write_text(f"authorization {{ users = [\n{users}\n] }}\n")

    def make_credentials(self):
        self.secrets = [self.login.operator.credentials()[0] for _ in range(RENEWALS + 1)]

    def make_certificate(self):
        """Two authorities: the server and the daemons trust both, and the certificates alternate."""
        pki = self.folder / "pki"
        both = self.authorities = [Authority(pki, "old"), Authority(pki, "new")]
        bundle = self.folder / "bundle.pem"
        bundle.write_text("".join(one.path.read_text() for one in both))
        shown, key = both[0].sign("server")
        self.pairs = [both[i % 2].sign(f"client{i}") for i in range(RENEWALS + 1)]
        self.secrets = [pair[1].read_text() for pair in self.pairs]
        self.config.write_text(
            f'tls {{ cert_file: "{shown}", key_file: "{key}", ca_file: "{bundle}", verify: true }}\n')

    def use(self, i, *daemons):
        if self.kind == "certificate":
            write_secret(self.folder / "client.pem", self.pairs[i][0].read_text())
        write_secret(self.file, self.secrets[i])
        for daemon in daemons:
            path = self.folder / f"{daemon.name}.cfg"
            write_secret(path, path.read_text().replace(self.keys(i - 1), self.keys(i)))
            daemon.process.send_signal(signal.SIGHUP)


def daemons_with(scene, material, vllm, profile):
    ports = [programs.free_port(), programs.free_port()]
    nats = f'nats = {{ url = "{scene.nats_url}"; {material.keys(0)} }};\n'
    aggregator = scene.daemon(
        "kvaggregator",
        nats + 'subscribe = { namespace = "*"; component = "*"; default = { model = "m"; block_size = 16; }; };\n'
        f'router = {{ namespace = "dynamo"; component = "Router"; }};\nhttp = "127.0.0.1:{ports[0]}";\n', ports[0])
    bridge = scene.daemon(
        "kvbridge",
        nats + f'publish = {{ namespace = "dynamo"; component = "w"; profile = "{profile}"; refresh_s = 0; }};\n'
        f'workers = ( {{ {worker(vllm, 7)} }} );\nhttp = "127.0.0.1:{ports[1]}";\n', ports[1])
    for daemon in (aggregator, bridge):
        wait_for(f"{daemon.name} is ready", daemon.is_ready, 15)
    return bridge, aggregator


class Load(threading.Thread):
    """About 700 batches a second."""

    def __init__(self, vllm):
        super().__init__(daemon=True)
        self.vllm, self.is_over, self.sent = vllm, threading.Event(), 0

    def send(self):
        self.sent += 1
        self.vllm.publish(engine.batch(engine.stored([self.sent], [self.sent * 16 + i for i in range(16)], 16)))

    def run(self):
        while not self.is_over.wait(0.001):
            self.send()


def states(aggregator):
    return [stream["state"] for stream in aggregator.get("/streams")["streams"]]


class Flow:
    """Events flow through both daemons; end() says that none was lost and no stream left EXACT."""

    def __init__(self, scene, material, profile):
        vllm = scene.engine()
        self.load = Load(vllm)
        self.daemons = bridge, self.aggregator = daemons_with(scene, material, vllm, profile)
        self.load.send()
        wait_for("the stream is EXACT", lambda: states(self.aggregator) == ["EXACT"], 15)
        self.before = [daemon.metric("kvb_nats_connects_total") for daemon in self.daemons]
        self.others = []
        self.load.start()

    def look(self):
        self.others += [state for state in states(self.aggregator) if state != "EXACT"]

    def await_renewals(self, count):
        def have_renewed():
            self.look()
            return all(daemon.metric("kvb_nats_renewals_total") >= count for daemon in self.daemons)

        wait_for(f"both have renewed {count} times", have_renewed)

    def go_on(self, until):
        while time.monotonic() < until:
            self.look()

    def end(self):
        self.load.is_over.set()
        self.load.join()
        wait_for("the aggregator holds every block",
                 lambda: self.aggregator.metric("kvb_index_blocks") == self.load.sent)
        assert self.others == [], "a stream left EXACT"
        assert [daemon.metric("kvb_nats_connects_total") for daemon in self.daemons] == self.before, "a loss"
        for name in ("kvb_event_holes_total", "kvb_events_missed_total", "kvb_events_old_total"):
            assert self.aggregator.metric(name) == 0, name


@pytest.mark.sanitize
@pytest.mark.parametrize("profile", ["json", "protobuf"])
@pytest.mark.parametrize("kind", ["password", "token", "credentials", "nkey", "certificate"])
def test_logins_are_replaced_without_a_loss(scene, kind, profile):
    material = Material(kind, scene.folder)
    material.use(0)
    scene.start_nats(config=material.config)
    flow = Flow(scene, material, profile)
    for i in range(1, RENEWALS + 1):
        began = time.monotonic()
        material.use(i, *flow.daemons)
        flow.await_renewals(i)
        flow.go_on(began + SECONDS / RENEWALS)
    flow.end()


class RollOver:
    """Changes the authority as described in etc/README.md, with certificates as the only login."""

    def __init__(self, scene):
        self.scene, self.folder = scene, scene.folder
        self.file = scene.folder / "client.key"
        self.authority = Authority(scene.folder / "pki", "ca0")
        self.config = scene.folder / "nats.conf"
        self.reloads = 0
        self.trust(self.authority)
        self.show(self.authority)
        self.serve(self.authority, self.authority)
        self.server = scene.start_nats(config=self.config)

    def keys(self, _):
        return (f'ca_file = "{self.folder}/bundle.pem"; cert_file = "{self.folder}/client.pem";'
                f' key_file = "{self.file}";')

    def trust(self, *authorities):
        write_secret(self.folder / "bundle.pem", "".join(one.path.read_text() for one in authorities))

    def show(self, authority):
        shown, key = authority.sign(f"client_of_{authority.name}")
        write_secret(self.folder / "client.pem", shown.read_text())
        write_secret(self.file, key.read_text())

    def serve(self, authority, *trusted):
        """The certificate that the server shows, and the authorities whose certificates it accepts."""
        shown, key = authority.sign(f"server_of_{authority.name}")
        bundle = write_secret(self.folder / "server_bundle.pem", "".join(one.path.read_text() for one in trusted))
        self.config.write_text(
            f'tls {{ cert_file: "{shown}", key_file: "{key}", ca_file: "{bundle}", verify: true }}\n')

    def reload_server(self):
        self.reloads += 1
        self.server.process.send_signal(signal.SIGHUP)
        wait_for("nats-server has read its configuration again",
                 lambda: self.server.text().count("Reloaded server configuration") == self.reloads)

    def steps(self, new):
        """The steps; each ends with something new for the daemons."""
        old, self.authority = self.authority, new
        self.trust(old, new)
        yield
        self.serve(new, old, new)
        self.reload_server()
        self.show(new)
        yield
        self.serve(new, new)
        self.reload_server()
        self.trust(new)
        yield


@pytest.mark.both_servers
@pytest.mark.parametrize("profile", ["json", "protobuf"])
def test_the_authority_is_rolled_over_without_a_loss(scene, profile):
    roll = RollOver(scene)
    flow = Flow(scene, roll, profile)
    first = roll.authority
    renewals = 0
    for turn in range(1, max(1, RENEWALS // 3) + 1):
        for _ in roll.steps(Authority(scene.folder / "pki", f"ca{turn}")):
            began = time.monotonic()
            renewals += 1
            for daemon in flow.daemons:
                daemon.process.send_signal(signal.SIGHUP)
            flow.await_renewals(renewals)
            flow.go_on(began + SECONDS / RENEWALS)
    flow.end()
    roll.trust(first)  # a certificate that neither side uses any more
    for daemon in flow.daemons:
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(f"{daemon.name} does not trust the server", lambda one=daemon: re.search(
            "the changed login cannot be used.*unable to get local issuer certificate", one.text()))


FILES = {  # by key: the login that it belongs to, and a content that cannot be right
    "password_file": ("password", "pass\x1bword\n", "control character"),
    "token_file": ("token", "to\x1bken\n", "control character"),
    "credentials": ("credentials", "nothing like it\n", "JWT and the seed"),
    "nkey_seed_file": ("nkey", "SUNOTASEED\n", "seed of an NKey"),
    "ca_file": ("certificate", "no authority\n", "no certificate in PEM"),
    "cert_file": ("certificate", "nothing of the kind\n", "no certificate in PEM"),
    "key_file": ("certificate", "nothing like a key\n", "no private key in PEM"),
}


def spoilt(path, key, nonsense, why):
    """Makes the file bad in several ways, and yields what the log must say each time."""
    good = path.read_text()

    def put(text, mode=0o600):
        if path.is_dir():
            path.rmdir()
        write_secret(path, text, mode)

    path.unlink()
    yield "cannot read"
    put("")
    yield "is empty"
    path.unlink()
    path.mkdir()
    yield "no regular file"
    if key not in ("ca_file", "cert_file"):
        put(good, 0o644)
        yield "chmod o-rw"
    put(nonsense)
    yield why
    put(good)


@pytest.mark.parametrize("key", FILES)
def test_a_file_that_goes_bad_is_named_and_leaves_the_connection(scene, key):
    kind, nonsense, why = FILES[key]
    material = Material(kind, scene.folder)
    material.use(0)
    scene.start_nats(config=material.config)
    vllm = scene.engine()
    daemons = daemons_with(scene, material, vllm, "protobuf")
    path = {"ca_file": scene.folder / "bundle.pem", "cert_file": scene.folder / "client.pem"}.get(key, material.file)
    for words in spoilt(path, key, nonsense, why):
        for daemon in daemons:
            daemon.process.send_signal(signal.SIGHUP)
            wait_for(f"the log of {daemon.name} names the key, and says {words}",
                     lambda one=daemon, w=words: re.search(f"nats[.]{key}: .*{w}", one.text()))
    load = Load(vllm)
    load.send()
    wait_for("events pass", lambda: daemons[1].metric("kvb_index_blocks") == 1)
    for daemon in daemons:
        assert daemon.is_ready() and daemon.metric("kvb_nats_connects_total") == 1
        assert nonsense.strip() not in daemon.text()
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(f"{daemon.name} has a new login", lambda one=daemon: one.metric("kvb_nats_renewals_total") > 0)
        assert daemon.metric("kvb_nats_connects_total") == 1


@pytest.mark.parametrize("kind, nonsense, has_signal, why", [
    ("password", "wrong\n", True, "Authorization Violation"),
    ("certificate", "no key\n", False, "nats.key_file: .* contains no private key"),
])
def test_a_login_that_cannot_be_used_leaves_the_connection(scene, kind, nonsense, has_signal, why):
    material = Material(kind, scene.folder)
    material.use(0)
    scene.start_nats(config=material.config)
    vllm = scene.engine()
    bridge, aggregator = daemons_with(scene, material, vllm, "protobuf")
    write_secret(material.file, nonsense)
    for daemon in (bridge, aggregator):
        if has_signal:
            daemon.process.send_signal(signal.SIGHUP)
        wait_for(f"the log of {daemon.name} says so",
                 lambda one=daemon: re.search(f"the changed login cannot be used.*{why}", one.text()), 15)
    load = Load(vllm)
    load.send()
    wait_for("events pass", lambda: aggregator.metric("kvb_index_blocks") == 1)
    material.use(1, bridge, aggregator)
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} has a new login", lambda one=daemon: one.metric("kvb_nats_renewals_total") == 1)
        assert daemon.metric("kvb_nats_connects_total") == 1


def test_a_login_with_fewer_permissions_leaves_the_connection(scene):
    material = Material("password", scene.folder)
    less = f'{{ user: "u1", password: "{material.secrets[1]}"'
    text = material.config.read_text()
    material.config.write_text(text.replace(
        less, less + ', permissions: { publish: ">", subscribe: { deny: ["namespace.>"] } }'))
    assert material.config.read_text() != text
    material.use(0)
    scene.start_nats(config=material.config)
    vllm = scene.engine()
    bridge, aggregator = daemons_with(scene, material, vllm, "protobuf")
    material.use(1, bridge, aggregator)
    for daemon in (bridge, aggregator):
        wait_for(f"the log of {daemon.name} says why",
                 lambda one=daemon: re.search("the changed login cannot be used.*Subscription to", one.text()))
    load = Load(vllm)
    load.send()
    wait_for("events pass", lambda: aggregator.metric("kvb_index_blocks") == 1)
    for daemon in (bridge, aggregator):
        assert daemon.is_ready()
        assert daemon.metric("kvb_nats_renewals_total") == 0
        assert "no permission" not in daemon.text()
    material.use(2, bridge, aggregator)
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} has a new login", lambda one=daemon: one.metric("kvb_nats_renewals_total") == 1)
        assert daemon.is_ready() and daemon.metric("kvb_nats_connects_total") == 1


def test_another_inbox_prefix_is_taken_by_a_restart_only(scene):
    material = Material("password", scene.folder)
    material.use(0)
    scene.start_nats(config=material.config)
    bridge, _ = daemons_with(scene, material, scene.engine(), "json")
    path = scene.folder / f"{bridge.name}.cfg"
    write_secret(path, path.read_text().replace("nats = {", 'nats = { inbox_prefix = "other";'))
    bridge.process.send_signal(signal.SIGHUP)
    wait_for("the log says so", lambda: re.search("takes effect only after a restart.*inbox_prefix", bridge.text()))
    material.use(1, bridge)
    wait_for("kvbridge has the new login", lambda: bridge.metric("kvb_nats_renewals_total") > 0)
    assert bridge.metric("kvb_nats_renewals_total") == 1, "the prefix alone made a new connection"
    assert bridge.is_ready()


def test_a_changed_file_is_noticed_without_a_signal(scene):
    material = Material("nkey", scene.folder)
    material.use(0)
    scene.start_nats(config=material.config)
    bridge, _ = daemons_with(scene, material, scene.engine(), "json")
    material.use(1)
    wait_for("kvbridge has the new login", lambda: bridge.metric("kvb_nats_renewals_total") == 1, 15)


def test_the_end_of_a_certificate_is_a_metric_and_a_warning(scene):
    material = Material("certificate", scene.folder)
    material.pairs[0] = material.authorities[0].sign("short", days=6)
    material.secrets[0] = material.pairs[0][1].read_text()
    material.use(0)
    scene.start_nats(config=material.config)
    bridge, aggregator = daemons_with(scene, material, scene.engine(), "json")
    for daemon in (bridge, aggregator):
        left = daemon.metric("kvb_nats_certificate_expires_seconds") - time.time()
        assert 5 * 86400 < left < 7 * 86400, left
        assert daemon.text().count("ends within 7 days") == 1
    material.use(1, bridge, aggregator)
    for daemon in (bridge, aggregator):
        wait_for("the new certificate is shown",
                 lambda one=daemon: one.metric("kvb_nats_certificate_expires_seconds") > time.time() + 20 * 86400)
        assert daemon.text().count("ends within 7 days") == 1


def test_a_certificate_that_ends_while_connected_is_logged(scene, monkeypatch):
    """Only the daemon's clock moves by three days: nats-server does not check open connections."""
    material = Material("certificate", scene.folder)
    material.pairs[0] = material.authorities[0].sign("short", days=2)
    material.secrets[0] = material.pairs[0][1].read_text()
    material.use(0)
    clock = Clock(scene.folder / "clock")
    scene.start_nats(config=material.config)
    with monkeypatch.context() as patch:
        for name, value in clock.environment(build_shim(scene.folder)).items():
            patch.setenv(name, value)
        bridge, _ = daemons_with(scene, material, scene.engine(), "json")
    wait_for("the log says that it ends soon", lambda: "ends within 7 days" in bridge.text())
    clock.jump(3 * 86400)
    wait_for("the log says that it has ended",
             lambda: "the certificate in nats.cert_file has ended" in bridge.text(), 15)
    assert bridge.metric("kvb_nats_certificate_expires_seconds") < time.time() + 3 * 86400
    assert bridge.is_ready() and bridge.metric("kvb_nats_connects_total") == 1
