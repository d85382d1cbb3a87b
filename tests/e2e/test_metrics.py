"""Do the figures on /metrics show what happened?  A scene makes each metric leave 0, and where the
scene determines the value, that value is asserted."""

import collections
import re
import time

import pytest

import engine
import prometheus
from conftest import worker
from programs import TREE, wait_for

BLOCK = 16
ZMQ = "kvcache_zmq_"
OURS = {"pod_key": "7", "dp_rank": "0"}


def store(*numbers):
    """A message that stores each of these blocks as a prompt of its own."""
    return engine.batch(
        *(engine.stored([n], [n * 1000 + i for i in range(BLOCK)], BLOCK) for n in numbers)
    )


class FaultyEngine(engine.Engine):
    """An engine whose replay socket answers as the test says."""

    answers = "well"

    def _reply(self, peer, seq, payload):
        if self.answers == "well":
            super()._reply(peer, seq, payload)
        elif self.answers == "nonsense":
            self.router.send_multipart([peer, b"", b"kv-events", b"no number", b"payload"])


# The metric names of AIBrix's dashboards.
TYPES = ("BLOCK_STORED", "BLOCK_REMOVED", "ALL_BLOCKS_CLEARED")


def zmq(daemon, name, **labels):
    """The value of one of the names known to operators, for worker 7, rank 0."""
    return prometheus.Page.of(daemon).sum(ZMQ + name, **{**OURS, **labels})


def wait_until(daemon, name, expected, **labels):
    wait_for(
        f"{name} {labels} becomes {expected}", lambda: zmq(daemon, name, **labels) == expected
    )


def wait_until_above(daemon, name, floor, **labels):
    wait_for(f"{name} {labels} is above {floor}", lambda: zmq(daemon, name, **labels) > floor)


@pytest.mark.first
@pytest.mark.sanitize
def test_each_message_is_counted_once(scene):
    vllm = scene.engine(repeats=False)
    bridge = scene.bridge(worker(vllm))
    wait_until(bridge, "connection_status", 1)
    vllm.publish(store(1))
    vllm.publish(store(2, 3))
    vllm.publish(engine.batch(engine.removed(2)))
    wait_until(bridge, "last_sequence_id", 2)

    page = prometheus.Page.of(bridge)
    expected = {
        "connections_total": 1, "disconnections_total": 0, "connection_status": 1,
        "events_received_total": 4, "events_processed_total": 4, "missed_events_total": 0,
        "replay_failures_total": 0, "errors_total": 0, "last_sequence_id": 2,
    }
    assert {name: page.sum(ZMQ + name, **OURS) for name in expected} == expected
    for name in ("events_received_total", "events_processed_total"):
        by_type = {kind: page.sum(ZMQ + name, **OURS, event_type=kind) for kind in TYPES}
        assert by_type == {"BLOCK_STORED": 3, "BLOCK_REMOVED": 1, "ALL_BLOCKS_CLEARED": 0}
    assert page.sum("kvb_stream_blocks", **OURS) == 2
    # Engine and bridge share a clock, so a message has a short delay.
    assert 0 < page.sum("kvb_stream_lag_seconds", **OURS) < 60
    # The probe of an idle engine has its newest message sent again.
    assert page.sum(ZMQ + "event_processing_duration_seconds_count", **OURS) >= 4
    assert 0 < page.sum(ZMQ + "event_processing_duration_seconds_sum", **OURS) < 60
    wait_for("the replay is proven to be the engine's own", lambda: bridge.metric("kvb_stream_state", **OURS, state="exact") == 1)
    page = prometheus.Page.of(bridge)
    assert page.sum("kvb_stream_state", **OURS) == 1, "a stream is in one state"


@pytest.mark.parametrize("replay", [True, False], ids=["repaired", "not-repaired"])
def test_gaps_are_counted_in_messages_and_replays_in_events(scene, replay):
    vllm = scene.engine(repeats=False)
    bridge = scene.bridge(worker(vllm, replay=replay))
    wait_until(bridge, "connection_status", 1)
    vllm.publish(store(1))
    wait_until(bridge, "events_processed_total", 1)
    state = "exact" if replay else "unverified"
    wait_for("no replay is under way", lambda: bridge.metric("kvb_stream_state", **OURS, state=state) == 1)
    vllm.publish(store(2, 3), live=False)
    vllm.publish(store(4), live=False)
    vllm.publish(store(5))
    wait_until(bridge, "last_sequence_id", 3)
    page = prometheus.Page.of(bridge)
    assert page.sum(ZMQ + "missed_events_total", **OURS) == 2
    assert page.sum(ZMQ + "events_received_total", **OURS) == 2
    assert page.sum(ZMQ + "events_processed_total", **OURS) == (5 if replay else 2)
    requests, successes = (page.sum(ZMQ + f"replay_{x}_total", **OURS) for x in ("requests", "success"))
    assert (requests >= successes >= 2) if replay else (requests == successes == 0)


UNKNOWN = b"\x93\xcb" + bytes(8) + b"\x91\x91\xa5Dance\xc0"  # [0.0, [["Dance"]], nil]

BROKEN = {
    "consume_events": lambda vllm: vllm.send_raw(b"kv-events", b"short", store(8)),
    "decode": lambda vllm: vllm.publish(b"\xc1"),
    "handle_event": lambda vllm: vllm.publish(UNKNOWN),
    "replay_reply": lambda vllm: setattr(vllm, "answers", "nonsense"),
}


def test_every_name_that_operators_know_leaves_0(scene):
    """All faults in one run of a bridge; the table contains the metric names."""
    vllm = scene.engine_of(FaultyEngine)
    bridge = scene.bridge(worker(vllm))
    wait_until(bridge, "connection_status", 1)
    vllm.publish(store(1))
    # No replay is running that would deliver batch 2 before it is missed.
    wait_for("batch 1 is proven", lambda: bridge.metric("kvb_stream_state", **OURS, state="exact") == 1)
    vllm.publish(store(2), live=False)
    vllm.publish(store(3))
    wait_until(bridge, "last_sequence_id", 2)
    for kind in ("consume_events", "decode", "handle_event", "replay_reply"):
        BROKEN[kind](vllm)
        wait_until_above(bridge, "errors_total", 0, error_type=kind)
    wait_until_above(bridge, "replay_failures_total", 0)
    vllm.answers = "well"
    vllm.restart()
    wait_until(bridge, "connections_total", 2)
    vllm.publish(store(4))
    vllm.publish(store(5))
    wait_until(bridge, "last_sequence_id", 1)

    page = prometheus.Page.of(bridge)
    names = {name for _, _, name in prometheus.table("kvbridge/rank_metrics.h") if name.startswith(ZMQ)}
    assert len(names) == 13
    duration = ZMQ + "event_processing_duration_seconds"
    names = (names - {duration}) | {f"{duration}_{part}" for part in ("bucket", "sum", "count")}
    assert [name for name in sorted(names) if page.sum(name, **OURS) == 0] == []


# ---- The pages as a whole -------------------------------------------------------


@pytest.fixture
def pages(scene):
    vllm = scene.engine(repeats=False)
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(vllm))
    vllm.publish(store(1))
    wait_for("a block is listed", lambda: aggregator.metric("kvb_index_blocks") == 1)
    assert aggregator.http("POST", "/query", {"token_ids": list(range(BLOCK))})[0] == 200
    wait_for(
        "the metric counts the query", lambda: aggregator.metric("kvb_question_duration_seconds_count") == 1
    )
    return {"kvbridge": prometheus.Page.of(bridge), "kvaggregator": prometheus.Page.of(aggregator)}


def test_a_page_is_its_tables_and_each_name_is_there_once(pages):
    for program, page in pages.items():
        expected = {n: t for h in prometheus.TABLES[program] for _, t, n in prometheus.table(h)}
        types = {n: t.rpartition("_")[2].lower() for n, t in expected.items()}
        assert page.types == types
        for word in ("HELP", "TYPE"):
            said = collections.Counter(re.findall(rf"^# {word} (\w+)", page.text, re.M))
            assert set(said) == set(expected) and set(said.values()) == {1}
        assert all(re.search(rf"^# HELP {name} \S+ \S+", page.text, re.M) for name in expected)


def test_both_report_version_start_time_and_resources(pages):
    for page in pages.values():
        (labels, one), = page.rows("kvb_build_info").items()
        assert one == 1 and re.fullmatch(r"\d+\.\d+\.\d+", dict(labels)["version"])
        assert time.time() - 60 < page.sum("process_start_time_seconds") <= time.time()
        assert page.sum("process_resident_memory_bytes") > 1 << 20
        assert page.sum("process_cpu_seconds_total") > 0
    assert pages["kvaggregator"].sum("kvb_index_bytes") > 1000
    assert pages["kvaggregator"].sum("kvb_index_nodes_limit") > 1000


@pytest.mark.parametrize("header, prefix", [
    ("kvbridge/metrics.h", "kvb_bridge_"), ("kvbridge/rank_metrics.h", "kvb_rank_"),
    ("kvaggregator/metrics.h", "kvb_aggregator_"),
])
def test_every_row_of_a_table_is_written_by_some_code(header, prefix):
    folder = (TREE / "bridge" / header).parent
    code = "\n".join(path.read_text() for path in folder.rglob("*.c"))
    unwritten = [i for i, _, _ in prometheus.table(header) if not re.search(rf"\b{prefix}{i}\b", code)]
    assert unwritten == []
