"""Do both daemons connect again with a login that has changed while events flow, and is the index
exact again afterwards?  Does a login that cannot be used leave the connection?"""

import os
import re
import signal
import threading

import pytest

import engine
import marked
import programs
from conftest import worker
from logins import Authority, Login, seed_of, make_key, public, write_secret
from nkeys import PREFIX_BYTE_USER
from programs import wait_for

pytestmark = pytest.mark.no_nats

RENEWALS = 3


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


def daemons_with(scene, material, vllm, format):
    ports = [programs.free_port(), programs.free_port()]
    nats = f'nats = {{ url = "{scene.nats_url}"; {material.keys(0)} }};\n'
    aggregator = scene.daemon(
        "kvaggregator",
        nats + 'subscribe = { namespace = "*"; component = "*"; default = { model = "m"; block_size = 16; }; };\n'
        f'router = {{ namespace = "dynamo"; component = "Router"; }};\nhttp = "127.0.0.1:{ports[0]}";\n', ports[0])
    bridge = scene.daemon(
        "kvbridge",
        nats + f'publish = {{ namespace = "dynamo"; component = "w"; formats = ["{format}"]; refresh_s = 0; }};\n'
        f'workers = ( {{ {worker(vllm, 7)} }} );\nhttp = "127.0.0.1:{ports[1]}";\n', ports[1])
    for daemon in (aggregator, bridge):
        wait_for(f"{daemon.name} is ready", daemon.is_ready)
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


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.parametrize("kind, format", [
    ("password", "json"), ("token", "protobuf"), ("credentials", "json"), ("nkey", "protobuf"), ("certificate", "json")])
def test_after_another_login_the_index_is_exact_again(scene, kind, format):
    material = Material(kind, scene.folder)
    material.use(0)
    scene.start_nats(config=material.config)
    load = Load(scene.engine())
    daemons = _, aggregator = daemons_with(scene, material, load.vllm, format)
    load.send()
    wait_for("the stream is EXACT", lambda: states(aggregator) == ["EXACT"])
    load.start()
    for i in range(1, RENEWALS + 1):
        before = {daemon: daemon.metric("kvb_nats_connects_total") for daemon in daemons}
        material.use(i, *daemons)
        wait_for("both have the new login", lambda before=before: all(
            daemon.metric("kvb_nats_connects_total") > count for daemon, count in before.items()))
    load.is_over.set()
    load.join()
    wait_for("the aggregator holds every block", lambda: aggregator.metric("kvb_index_blocks") == load.sent)
    wait_for("the stream is EXACT again", lambda: states(aggregator) == ["EXACT"])


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
        wait_for(f"{daemon.name} has a new login", lambda one=daemon: one.metric("kvb_nats_connects_total") == 2)


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
                 lambda one=daemon: re.search(f"the changed login cannot be used.*{why}", one.text()))
    load = Load(vllm)
    load.send()
    wait_for("events pass", lambda: aggregator.metric("kvb_index_blocks") == 1)
    material.use(1, bridge, aggregator)
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} has a new login", lambda one=daemon: one.metric("kvb_nats_connects_total") == 2)


def test_a_changed_file_is_noticed_without_a_signal(scene):
    material = Material("nkey", scene.folder)
    material.use(0)
    scene.start_nats(config=material.config)
    bridge, _ = daemons_with(scene, material, scene.engine(), "json")
    material.use(1)
    wait_for("kvbridge has the new login", lambda: bridge.metric("kvb_nats_connects_total") == 2)
