"""Are engines read over CURVE, in both directions of connecting, and does a wrong key make the
stream DOWN, with the reason?"""

import subprocess

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

import engine
import marked
import programs
from conftest import worker
from programs import wait_for
from test_faults import Reader, store
from test_members import reload, streams


class CurveEngine(engine.Engine):
    """Its sockets are CURVE servers. Without a list of keys, any client with its public key may
    connect."""

    def __init__(self, keys, allowed=None, **options):
        self.keys = keys
        self.allowed = allowed
        self.zap = None
        super().__init__(**options)

    def secure(self, socket):
        socket.curve_server = True
        socket.curve_secretkey = self.keys[1]
        if self.allowed is not None:
            socket.zap_domain = b"engine"

    def _open(self, events, replay):
        if self.allowed is not None and self.zap is None:
            self.zap = Authenticator(self.context, self.allowed)
        super()._open(events, replay)

    def close(self):
        if self.zap:
            self.zap.stop()
        super().close()


class Authenticator:
    """pyzmq's own responder of ZAP."""

    def __init__(self, context, allowed):
        self.one = ThreadAuthenticator(context)
        self.one.start()
        self.one.configure_curve_callback("engine", credentials_provider=self)
        self.allowed = allowed

    def callback(self, domain, key):
        return key in self.allowed  # as Z85

    def stop(self):
        self.one.stop()


class ConnectingCurveEngine(engine.ConnectingEngine):
    """Its PUB is a client of the bridge; its replay socket a server for it."""

    def __init__(self, keys, bridge_public, address, **options):
        self.keys = keys
        self.bridge_public = bridge_public
        super().__init__(address, **options)

    def _open(self, events, replay):
        super()._open(events, replay)
        self.pub.disconnect(self.address)
        self.pub.curve_publickey, self.pub.curve_secretkey = self.keys
        self.pub.curve_serverkey = self.bridge_public
        self.pub.connect(self.address)


class Keys:
    """Files of keys for a bridge."""

    def __init__(self, folder):
        self.folder = folder / "keys"
        self.folder.mkdir()
        self.bridge = zmq.curve_keypair()
        self.engine = zmq.curve_keypair()
        marked.mark(*(key.decode() for key in (*self.bridge, *self.engine)))
        self.write("secret", self.bridge[1], 0o600)
        self.write("public", self.bridge[0])
        self.write("server", self.engine[0])
        self.write("clients", self.engine[0])

    def write(self, name, key, mode=0o644):
        path = self.folder / name
        path.write_bytes(key + b"\n")
        path.chmod(mode)
        return path

    def group(self, *names):
        rows = " ".join(f'{name}{"s" if name == "client_key" else ""}_file = "{self.folder / file}";'
                        for name, file in names)
        return f"curve = {{ {rows} }};"

    @property
    def connecting(self):
        return self.group(("server_key", "server"), ("public_key", "public"), ("secret_key", "secret"))

    @property
    def listening(self):
        return "bind = true; " + self.group(("secret_key", "secret"), ("client_key", "clients"))


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


def stream(bridge):
    return streams(bridge, "/state")[7, 0]


def is_exact(bridge):
    return lambda: stream(bridge)["state"] == "EXACT"


def is_down_because(bridge, why):
    def is_said():
        now = stream(bridge)
        return now["state"] in ("DOWN", "SYNCING") and why in now.get("why", "") and now

    return is_said


def refused(bridge):
    return bridge.metric("kvcache_zmq_errors_total", error_type="security")


@pytest.mark.sanitize
def test_an_engine_with_curve_is_read_and_replayed(scene, keys):
    reader = Reader(scene.bus())
    vllm = scene.engine_of(CurveEngine, keys=keys.engine, allowed=[keys.bridge[0]])
    vllm.publish(store(1))
    bridge = scene.bridge(worker(vllm, more=keys.connecting))
    wait_for("block 1, by a replay over CURVE", reader.holds(1))
    vllm.publish(store(2))
    wait_for("block 2", reader.holds(1, 2))
    wait_for("EXACT", is_exact(bridge))
    assert stream(bridge)["curve"] is True
    assert refused(bridge) == 0


def test_a_wrong_key_of_the_engine_is_reported_and_fixed_by_a_reload(scene, keys):
    reader = Reader(scene.bus())
    vllm = scene.engine_of(CurveEngine, keys=keys.engine)
    other = scene.engine()
    keys.write("server", zmq.curve_keypair()[0])
    bridge = scene.bridge(worker(vllm, more=keys.connecting), worker(other, worker_id=8))
    wait_for("DOWN, and why", is_down_because(bridge, "server_key_file may not hold its key"))
    wait_for("DOWN in the end", lambda: stream(bridge)["state"] == "DOWN")
    assert "the handshake failed" in bridge.text()
    assert refused(bridge) > 0

    vllm.publish(store(1))
    connected = "reconnects"
    before = streams(bridge, "/state")[8, 0][connected]
    keys.write("server", keys.engine[0])
    assert "configuration read again" in reload(bridge)
    wait_for("block 1", reader.holds(1))
    wait_for("EXACT", is_exact(bridge))
    assert "why" not in stream(bridge)
    assert streams(bridge, "/state")[8, 0][connected] == before, "the other worker does not notice"


def test_a_bridge_key_unknown_to_the_engine_is_reported(scene, keys):
    vllm = scene.engine_of(CurveEngine, keys=keys.engine, allowed=[zmq.curve_keypair()[0]])
    bridge = scene.bridge(worker(vllm, more=keys.connecting))
    wait_for("why", is_down_because(bridge, "the engine refused our CURVE key"))
    assert refused(bridge) > 0


@pytest.mark.parametrize("whose", ["engine", "bridge"])
def test_keys_on_one_side_only_give_no_connection(scene, keys, whose):
    """A connection is never unencrypted: neither side falls back."""
    reader = Reader(scene.bus())
    if whose == "engine":
        vllm = scene.engine_of(CurveEngine, keys=keys.engine)
        bridge = scene.bridge(worker(vllm))
        why = "the engine requires CURVE"
    else:
        vllm = scene.engine()
        bridge = scene.bridge(worker(vllm, more=keys.connecting))
        why = "use CURVE"
    vllm.publish(store(1))
    wait_for("why", is_down_because(bridge, why))
    assert not reader.names()


@pytest.mark.sanitize
def test_a_bridge_that_listens_admits_only_the_listed_engine(scene, keys):
    reader = Reader(scene.bus())
    address = f"tcp://127.0.0.1:{programs.free_port()}"
    stranger = scene.engine_of(
        ConnectingCurveEngine, keys=zmq.curve_keypair(), bridge_public=keys.bridge[0], address=address)
    plain = scene.engine_of(engine.ConnectingEngine, address=address)
    bridge = scene.bridge(worker(stranger, replay=False, more=keys.listening))
    stranger.publish(store(50))
    plain.publish(store(51))
    wait_for("both are refused", lambda: refused(bridge) >= 2)
    wait_for("why", is_down_because(bridge, "client_keys_file"))

    vllm = scene.engine_of(
        ConnectingCurveEngine, keys=keys.engine, bridge_public=keys.bridge[0], address=address)
    wait_for("the engine is connected",
             lambda: bridge.metric("kvcache_zmq_connection_status") == 1)
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    assert bridge.metric("kvcache_zmq_connections_total") == 1

    # After a key is removed from the list and the list is read again, its engine is disconnected.
    keys.write("clients", zmq.curve_keypair()[0])
    reload(bridge)
    wait_for("the engine is refused", is_down_because(bridge, "client_keys_file"))


def test_mistakes_of_keys_are_found_by_check(scene, keys):
    def check(row):
        config = scene.folder / "check.cfg"
        config.write_text(
            'publish = { namespace = "n"; component = "c"; };\n'
            f'workers = ( {{ id = 7; model = "m"; block_size = 16; events = "tcp://127.0.0.1:9"; {row} }} );\n')
        done = subprocess.run([programs.BIN / "kvbridge", "--config", config, "--check"],
                              capture_output=True, text=True, timeout=20)
        for key in (*keys.bridge, *keys.engine):
            assert key.decode() not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    assert check(keys.connecting)[0] == 0
    assert check(keys.listening)[0] == 0
    wrong = {
        "curve.secret_key_file: is missing": keys.group(("server_key", "server")),
        "curve.server_key_file: is missing": keys.group(("secret_key", "secret")),
        "curve.client_keys_file: is missing": "bind = true; " + keys.group(("secret_key", "secret")),
        "curve.client_keys_file: leave it out": keys.group(
            ("server_key", "server"), ("secret_key", "secret"), ("client_key", "clients")),
        "does not have the public key": keys.group(
            ("server_key", "server"), ("secret_key", "secret"), ("public_key", "server")),
        "cannot read": keys.group(("server_key", "absent"), ("secret_key", "secret")),
    }
    for says, row in wrong.items():
        status, text = check(row)
        assert status == 78 and says in text, (says, text)
    (keys.folder / "secret").chmod(0o644)
    status, text = check(keys.connecting)
    assert status == 78 and "chmod o-rw" in text
