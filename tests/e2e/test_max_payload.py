"""Is a nats-server that accepts messages of at most 64 KB enough for everything that is published?"""

import json

import pytest

import engine
from conftest import ROUTER, worker
from programs import run, wait_for

MAX_PAYLOAD = 65536
CHAIN, SMALL = 20000, 3000  # blocks in one event, and events with one block

pytestmark = pytest.mark.no_nats


@pytest.fixture
def small(scene):
    config = scene.folder / "nats.conf"
    config.write_text(f"max_payload: {MAX_PAYLOAD}\n")
    scene.start_nats(config=config)
    return scene


def await_exact(aggregator, blocks):
    def holds():
        streams = aggregator.get("/streams")["streams"]
        return [(s["state"], s["blocks"]["device"]) for s in streams] == [("EXACT", blocks)]

    wait_for(f"{aggregator.name}: EXACT with {blocks} blocks", holds)


def store_much(vllm):
    names = list(range(1, CHAIN + 1))
    vllm.publish(engine.batch(engine.stored(names, names, 1)))
    vllm.publish(engine.batch(*(engine.stored([100000 + i], [500000 + i], 1) for i in range(SMALL))))


@pytest.mark.first
@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_events_and_lists_are_split(small, format):
    vllm, early = small.engine(), small.aggregator(block_size=1)
    bridge = small.bridge(worker(vllm, block_size=1), formats=[format])
    store_much(vllm)
    await_exact(early, CHAIN + SMALL)
    late = small.aggregator("late", block_size=1)
    await_exact(late, CHAIN + SMALL)
    assert bridge.metric("kvb_publish_failures_total") == 0
    assert bridge.metric("kvb_sync_failures_total") == 0


def test_a_new_announcement_is_split(small):
    """After an engine's restart readers of JSON get a new epoch, with all held blocks."""
    vllm = small.engine()
    bridge = small.bridge(worker(vllm, block_size=1), formats=["json"])
    aggregator = small.aggregator(block_size=1)
    store_much(vllm)
    await_exact(aggregator, CHAIN + SMALL)
    nats, = (one for one in small.started if one.name.startswith("nats"))
    nats.kill()
    wait_for("NATS is missed", lambda: not bridge.is_ready())
    small.start_nats(small.nats_port, small.folder / "nats.conf")
    wait_for("the stream is announced again", lambda: bridge.metric("kvb_announcements_total") >= 2)
    await_exact(aggregator, CHAIN + SMALL)
    assert bridge.metric("kvb_publish_failures_total") == 0


def test_answers_come_in_pages_that_fit(small):
    vllm, bus, aggregator = small.engine(), small.bus(), small.aggregator(block_size=1)
    small.bridge(worker(vllm, block_size=1), formats=["protobuf"])
    store_much(vllm)
    await_exact(aggregator, CHAIN + SMALL)
    rows, page, pages = [], {}, 0
    while page is not None:
        data = bus.request(f"{ROUTER}.kv_get.dump", json.dumps(page).encode() if page else b"")
        assert len(data) <= MAX_PAYLOAD
        answer = json.loads(data)
        assert "error" not in answer
        rows += answer["rows"].splitlines()
        page = {"stream": answer["stream"], "row": answer["row"]} if "stream" in answer else None
        pages += 1
    assert pages > 1 and len(set(rows)) == len(rows) == CHAIN + SMALL
    told = run("kvctl", "--nats", small.nats_url, "dump")
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.splitlines()) >= CHAIN + SMALL
