"""Do token ids of prompts stay on the engine's host?  A host and the cluster are two network
namespaces with a link between them; everything on the link is recorded and searched."""

import os
import struct

import msgspec
import pytest

import engine
import namespaces
import programs
import readers
from conftest import COMPONENT, NAMESPACE
from programs import wait_for

pytestmark = [
    pytest.mark.no_nats,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root")]

CLUSTER, HOST = "198.18.7.1", "198.18.7.2"
BLOCK = 16


def marked_prompt(number):
    """Token ids of nine and ten digits, two of which in a row appear in no other data on the link."""
    return [1_900_000_000 + 7_919 * (number * BLOCK + at) for at in range(BLOCK)]


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def spellings(one, two):
    """Two token ids in a row, in each encoding in which they may be sent."""
    for form in ("<2I", ">2I", "<2Q", ">2Q", "<2i", ">2i"):
        yield struct.pack(form, one, two)
    for kind in (msgspec.msgpack, msgspec.json):
        yield kind.encode([one, two])[1:].rstrip(b"]")
    yield varint(one) + varint(two)
    for between in (", ", " ", ",\n", ";"):
        yield f"{one}{between}{two}".encode()
    yield f"{one:x}{two:x}".encode()


def tokens_on_line(flows, prompts):
    """The encodings of marked prompts that were found."""
    found = []
    for number in prompts:
        tokens = marked_prompt(number)
        for one, two in zip(tokens, tokens[1:]):
            for text in spellings(one, two):
                found += [(number, text) for flow in flows if text in flow]
    return found


def store_marked(number):
    return engine.batch(engine.stored([number], marked_prompt(number), BLOCK))


class Site:
    """A host with an engine, and a cluster with NATS and an aggregator; this test is in the
    cluster."""

    def __init__(self, scene):
        self.scene = scene
        self.cluster = namespaces.Namespace()
        self.host = namespaces.Namespace()
        namespaces.join(self.cluster, CLUSTER, self.host, HOST)
        self.capture = namespaces.Capture(self.cluster)

    def start_nats(self):
        port = programs.free_port()
        nats = self.scene.start("nats", [self.scene.server, "-a", "0.0.0.0", "-p", port])
        wait_for("nats-server listens", lambda: "Server is ready" in nats.text())
        self.scene.nats_port = port

    def engine(self, kind=engine.Engine, **options):
        with self.host.entered():
            return self.scene.engine_of(kind, **options)

    def bridge(self, where, row, format):
        """Starts it in the namespace `where`."""
        with where.entered():
            return self.scene.daemon(
                "kvbridge",
                f'nats = {{ url = "nats://{CLUSTER}:{self.scene.nats_port}"; }};\n'
                f'publish = {{ namespace = "{NAMESPACE}"; component = "{COMPONENT}"; formats = ["{format}"]; }};\n'
                f'workers = ( {{ id = 7; model = "m"; block_size = {BLOCK}; {row} }} );\nhttp = "";\n',
                port=None)

    def aggregator(self, name):
        return self.scene.aggregator(name=name)

    def close(self):
        self.capture.close()
        self.cluster.close()
        self.host.close()


@pytest.fixture
def site(scene):
    one = Site(scene)
    with one.cluster.entered():
        one.start_nats()
        yield one
    one.close()


def lists(aggregator, count):
    def is_listed():
        streams = aggregator.get("/streams")["streams"]
        return len(streams) == 1 and streams[0]["state"] == "EXACT" and sum(streams[0]["blocks"].values()) == count

    return is_listed


def carry(site, vllm, where, row, format, crosses):
    """Sends marked prompts on every possible way: by replay, live, and to an aggregator that starts
    late. Returns the encodings found on the link; `crosses` must be among the recorded data."""
    first = site.aggregator("kvaggregator")
    vllm.publish(store_marked(1))
    vllm.publish(store_marked(2))
    site.bridge(where, row, format)
    wait_for("the replay is listed", lists(first, 2))
    vllm.publish(store_marked(3))
    wait_for("a live batch is listed", lists(first, 3))
    late = site.aggregator("late")
    wait_for("a late aggregator lists all blocks", lists(late, 3))
    flows = site.capture.stop()
    assert any(crosses in flow for flow in flows), "nothing was recorded"
    return tokens_on_line(flows, (1, 2, 3))


def sidecar(site, address):
    """As etc/kubernetes/sidecar: the engine connects to the bridge."""
    vllm = site.engine(engine.ConnectingEngine, address=address)
    return vllm, f'events = "{address}"; bind = true; replay = "{vllm.replay}";'


@pytest.mark.first
@pytest.mark.parametrize(
    ("by", "format"), [("loopback", "json"), ("loopback", "protobuf"), ("ipc", "protobuf")])
def test_no_token_id_leaves_the_host_of_a_sidecar(site, by, format):
    address = "tcp://127.0.0.1:5557" if by == "loopback" else f"ipc://{site.scene.folder}/events"
    vllm, row = sidecar(site, address)
    assert carry(site, vllm, site.host, row, format, crosses=b".kv_events") == []


def test_a_bridge_on_another_host_sends_token_ids_over_the_link(site):
    """The control: the search finds token ids of each prompt and way when they do cross the link."""
    vllm = site.engine(bind=f"tcp://{HOST}:*", bind_replay=f"tcp://{HOST}:*")
    row = f'events = "{vllm.events}"; replay = "{vllm.replay}";'
    found = carry(site, vllm, site.cluster, row, "json", crosses=b"kv-events")
    assert {number for number, _ in found} == {1, 2, 3}


def test_what_is_republished_beyond_the_host_has_token_ids(site):
    """Live and by request, to a reader on another host: the search finds both."""
    vllm = site.engine()
    events, replay = f"tcp://{HOST}:5657", f"tcp://{HOST}:6657"
    row = f'events = "{vllm.events}"; replay = "{vllm.replay}";'
    site.bridge(site.host, row + f' republish = {{ events = "{events}"; replay = "{replay}"; }};', "json")
    reader = readers.Dynamo(events, replay, block_size=BLOCK)
    for number in (1, 2, 3):
        vllm.publish(store_marked(number))
    wait_for("all blocks are read", lambda: reader.read(50) and len(reader.held) == 3)
    assert list(reader.request(reader.batches[0]))
    reader.close()
    assert {number for number, _ in tokens_on_line(site.capture.stop(), (1, 2, 3))} == {1, 2, 3}
