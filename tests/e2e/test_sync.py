"""Does an aggregator get missed events from the bridge, without an effect on other readers?"""

import signal
import socket
import threading

import pytest

import engine
from conftest import PUBLISH, SNAPSHOT, worker
from proxy import Proxy
from programs import wait_for
from test_faults import store
from test_json_readers import listed

FORMATS = pytest.mark.parametrize("format", ["json", "protobuf"])


def repairs(aggregator, kind):
    return aggregator.metric("kvb_sync_repairs_total", kind=kind)


def check(aggregator, *numbers):
    wait_for("the list is the engine's", lambda: listed(aggregator, *numbers))
    wait_for("the list is EXACT", aggregator.is_exact)


@pytest.mark.first
@pytest.mark.sanitize
@FORMATS
def test_a_late_aggregator_gets_all_held_blocks(scene, format):
    vllm = scene.engine()
    bridge = scene.bridge(worker(vllm), formats=[format])
    for number in range(1, 200):
        vllm.publish(store(number))
    vllm.publish(engine.batch(engine.removed(*range(1, 190))))
    wait_for("the bridge holds the blocks", lambda: bridge.metric("kvb_blocks_held") == 10)
    wait_for("the bridge's list is proven", lambda: bridge.metric("kvb_streams", state="exact") == 1)
    early = scene.aggregator(name="early")
    check(early, *range(190, 200))  # all of it is published
    early.stop()
    vllm.forget(keep=1)  # the engine itself can no longer replay it
    announced = bridge.metric("kvb_announcements_total")
    aggregator = scene.aggregator()
    check(aggregator, *range(190, 200))
    wait_for("by a snapshot", lambda: repairs(aggregator, "snapshot") == 1)
    assert bridge.metric("kvb_announcements_total") == announced, "nobody else was told anew"


def cut_off(scene, format, sync_blocks=16384):
    """Only the aggregator's link is cut, while the engine runs."""
    vllm = scene.engine()
    bridge = scene.bridge(
        worker(vllm), formats=[format], limits=f"limits = {{ sync_blocks = {sync_blocks}; }};"
    )
    proxy = Proxy(scene.nats_port)
    direct, scene.nats_port = scene.nats_port, proxy.port
    aggregator = scene.aggregator()
    scene.nats_port = direct
    vllm.publish(store(1))
    vllm.publish(store(2))
    check(aggregator, 1, 2)
    proxy.cut()
    wait_for("the aggregator notices the loss", lambda: aggregator.states() == [("STALE", "nats_away")])
    for number in (3, 4, 5):
        vllm.publish(store(number))
    vllm.publish(engine.batch(engine.removed(1)))
    wait_for("the bridge holds the blocks", lambda: bridge.metric("kvb_blocks_held") == 4)
    proxy.heal()
    return vllm, bridge, aggregator, proxy


@pytest.mark.first
@pytest.mark.sanitize
@FORMATS
def test_a_disconnected_aggregator_gets_the_missed_events(scene, format):
    vllm, bridge, aggregator, proxy = cut_off(scene, format)
    check(aggregator, 2, 3, 4, 5)
    wait_for("by a range", lambda: repairs(aggregator, "range") == 1)
    assert aggregator.metric("kvb_sync_requests_total", kind="snapshot") == 0
    assert bridge.metric("kvb_announcements_total") == 1
    vllm.publish(store(6))
    check(aggregator, 2, 3, 4, 5, 6)
    proxy.close()


@FORMATS
def test_events_that_the_bridge_forgot_are_replaced_by_a_snapshot(scene, format):
    _, bridge, aggregator, proxy = cut_off(scene, format, sync_blocks=2)
    check(aggregator, 2, 3, 4, 5)
    wait_for("by a snapshot", lambda: repairs(aggregator, "snapshot") == 1)
    assert bridge.metric("kvb_announcements_total") == 1
    proxy.close()


def test_a_server_that_comes_back_costs_protobuf_no_epoch(scene):
    vllm = scene.engine()
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(vllm), formats=["protobuf"])
    for number in (1, 2, 3):
        vllm.publish(store(number))
    check(aggregator, 1, 2, 3)
    scene.started[0].kill()
    wait_for("the bridge notices", lambda: not bridge.is_ready())
    vllm.publish(engine.batch(engine.removed(1)))
    vllm.publish(store(4))
    scene.start_nats(scene.nats_port)
    check(aggregator, 2, 3, 4)
    assert bridge.metric("kvb_announcements_total") == 1


class Flood:
    """Requests a whole stream, each time with a new inbox that nobody subscribes to."""

    def __init__(self, nats_port, subject, a_second):
        self.socket = socket.create_connection(("127.0.0.1", nats_port))
        self.socket.recv(4096)
        self.socket.sendall(b'CONNECT {"verbose":false,"lang":"x","version":"1"}\r\n')
        self.subject, self.a_second, self.sent = subject.encode(), a_second, 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.is_over.wait(0.02):
            asks = b""
            for _ in range(self.a_second // 50):
                self.sent += 1
                asks += b"PUB %s _INBOX.f%d.1 %d\r\n%s\r\n" % (
                    self.subject, self.sent, len(SNAPSHOT), SNAPSHOT)
            self.socket.sendall(asks)

    def stop(self):
        self.is_over.set()
        self.thread.join()
        self.socket.close()


def test_a_flood_from_ever_new_inboxes_keeps_no_late_aggregator_from_exact(scene):
    """A snapshot of the large stream has about 100 messages; many snapshots at once are slow."""
    large, small = scene.engine(), scene.engine()
    bridge = scene.bridge(worker(large, 8, block_size=1), worker(small), formats=["protobuf"])
    blocks = 400_000
    for first in range(1, blocks, 100_000):
        numbers = range(first, first + 100_000)
        large.publish(engine.batch(engine.stored(numbers, numbers, 1)))
    small.publish(store(1))
    wait_for("all blocks", lambda: bridge.metric("kvb_blocks_held") == blocks + 1)
    flood = Flood(scene.nats_port, f"{PUBLISH}.kv_sync.8.0", 1000)
    try:
        wait_for("some have to wait", lambda: bridge.metric("kvb_sync_refused_total", reason="busy") > 100)
        aggregator = scene.aggregator()
        wait_for("both are EXACT", lambda: aggregator.is_exact(2))
        wait_for("with all blocks", lambda: aggregator.metric("kvb_index_blocks") == blocks + 1)
    finally:
        flood.stop()


@pytest.mark.both_servers
def test_a_frozen_server_makes_no_bridge_down(scene):
    """Connections stay open but nothing is delivered: the aggregator's messages to itself do not
    come back either. STALE at once, and never DOWN."""
    vllm = scene.engine()
    aggregator = scene.aggregator()
    scene.bridge(worker(vllm), formats=["protobuf"])
    vllm.publish(store(1))
    check(aggregator, 1)
    nats = scene.started[0].process
    nats.send_signal(signal.SIGSTOP)
    try:
        seen = set()

        def is_stale():
            seen.update(aggregator.states())
            return aggregator.states() == [("STALE", "nats_away")]

        wait_for("the list is marked", is_stale)
        wait_for("sooner than by pings", lambda: aggregator.metric("kvb_nats_echo_silences_total") == 1)
        vllm.publish(store(2))
        assert listed(aggregator, 1), "and kept"
    finally:
        nats.send_signal(signal.SIGCONT)

    def is_back():
        seen.update(aggregator.states())
        return aggregator.is_exact() and listed(aggregator, 1, 2)

    wait_for("both are connected and EXACT again", is_back)
    assert not [state for state in seen if state[0] == "DOWN"], seen
