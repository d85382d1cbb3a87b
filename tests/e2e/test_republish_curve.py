"""Republished events with CURVE: does a reader with a listed key get live batches and replays, and does nobody else get
anything?  Does a reload take other keys and leave the engine's stream alone?"""

import pytest
import zmq

import marked
import readers
from programs import wait_for
from test_curve import Keys
from test_members import reload
from test_republish import World


class ReaderKeys(Keys):
    """Key files for readers, whose CURVE server is the bridge."""

    def __init__(self, folder):
        super().__init__(folder)
        self.first, self.second = zmq.curve_keypair(), zmq.curve_keypair()
        marked.mark(*(key.decode() for key in (*self.first, *self.second)))
        self.allow(self.first)

    def allow(self, *pairs):
        self.write("clients", b"\n".join(public for public, _ in pairs))

    @property
    def readers(self):
        return self.group(("secret_key", "secret"), ("public_key", "public"), ("client_key", "clients"))

    def of(self, pair, server=None):
        def secure(socket):
            socket.curve_publickey, socket.curve_secretkey = pair
            socket.curve_serverkey = server or self.bridge[0]

        return secure


@pytest.fixture
def keys(tmp_path):
    return ReaderKeys(tmp_path)


@pytest.fixture
def world(scene, keys):
    one = World(scene, more=keys.readers + ' from_zero = "snapshot";')
    yield one
    one.close()


class Stranger:
    """Subscribes and sends a request; has_some: whether anything has arrived."""

    def __init__(self, world, secure):
        self.context = zmq.Context()
        self.sub, self.dealer = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        for socket, address in ((self.sub, world.events), (self.dealer, world.replay)):
            secure(socket)
            socket.connect(address)
        self.sub.subscribe(b"")
        self.dealer.send_multipart([b"", bytes(8)])
        world.readers.append(self)  # sockets to be closed

    def has_some(self):
        return self.sub.poll(0) or self.dealer.poll(0)

    def close(self):
        self.context.destroy(linger=0)


def failed(world):
    return world.bridge.metric("kvb_republish_handshakes_failed_total")


def republish(world):
    return world.bridge.get("/state")["streams"][0]["republish"]


def lose_some(world, reader):
    """Reads live batches, and then requests them."""
    reader.lose = lambda: True
    for _ in range(3):
        world.store()
        reader.read(200)
    reader.lose = lambda: False
    world.wait(reader, seconds=5)


@pytest.mark.sanitize
def test_only_readers_with_a_listed_key_get_anything(world, keys):
    world.store(5)
    reader = world.reader(readers.Dynamo, secure=keys.of(keys.first))
    world.wait(reader)
    assert failed(world) == 0
    strangers = [
        Stranger(world, secure)
        for secure in (keys.of(keys.second), keys.of(keys.first, server=keys.second[0]), lambda socket: None)
    ]
    wait_for("each reader is refused at both sockets", lambda: failed(world) >= 6)
    lose_some(world, reader)
    wait_for("the reader's request is counted", lambda: world.bridge.metric("kvb_republish_replies_total"))
    wait_for("the refused readers try again", lambda: failed(world) >= 12)
    assert not any(one.has_some() for one in strangers)
    numbers = sorted(reader.batches)
    assert numbers[-1] - numbers[0] < len(numbers) + 10, "some batches were lost by the reader itself"
    assert world.bridge.metric("kvb_republish_requests_total") <= 2 + 3, "no stranger's request arrived"
    wait_for("/state counts the failed handshakes", lambda: republish(world)["handshakes_failed"] >= 6)
    assert republish(world)["curve"] is True
    assert "the handshake of a reader of republished events failed" in world.bridge.text()


def test_a_reload_takes_other_keys_and_leaves_the_stream_alone(world, keys):
    world.store(3)
    first = world.reader(readers.Dynamo, secure=keys.of(keys.first))
    world.wait(first)
    before = world.bridge.get("/state")["streams"][0]

    keys.allow(keys.first, keys.second)
    said = reload(world.bridge)
    assert "changed=0" in said and "connect again" not in world.bridge.text()
    second = world.reader(readers.Dynamo, secure=keys.of(keys.second))
    world.store(2)
    world.wait(first, second)

    keys.allow(keys.second)
    reload(world.bridge)
    wait_for("the first reader is refused", lambda: failed(world))
    assert "readers of republished events have to connect again" in world.bridge.text()
    first.read()
    received = len(first.batches)
    for _ in range(3):
        world.store()
    world.wait(second)
    first.read(200)
    assert len(first.batches) == received

    keys.write("clients", b"nonsense")
    assert "configuration rejected" in reload(world.bridge)
    world.store()
    world.wait(second)
    after = world.bridge.get("/state")["streams"][0]
    for same in ("restarts", "reconnects", "gaps"):
        assert after[same] == before[same], same
    assert second.batches == sorted(set(second.batches))
