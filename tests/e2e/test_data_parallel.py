"""Several ranks of one engine: at which port each is found, to which rank events belong, and how
topics are filtered."""

import json
import socket

import pytest

import capture
import engine
from conftest import worker
from programs import free_port, wait_for
from test_faults import BLOCK, Reader, name_of, store, tokens_of


def free_row(count):
    """The first of this many consecutive free ports."""
    while True:
        first = free_port()
        if all(is_free(port) for port in range(first, first + count)):
            return first


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def at(port):
    return f"tcp://127.0.0.1:{port}"


def held_by(reader, rank):
    """Each rank is a separate worker for the router: a clear of one does not affect another."""
    reader.names()
    return set(reader.of(100 + rank, rank))


def of_rank(number, rank):
    """A batch of vLLM, which contains the rank too."""
    return engine.batch(engine.stored([number], tokens_of(number), BLOCK), rank=rank)


FIRST, RANKS = 2, 3


def rows(scene):
    """Ranks 2, 3 and 4 at the ports that vLLM uses: base port + rank, for events and replays."""
    base = free_row(2 * (FIRST + RANKS))
    events, replay = base, base + FIRST + RANKS
    engines = {
        rank: scene.engine(bind=at(events + rank), bind_replay=at(replay + rank))
        for rank in range(FIRST, FIRST + RANKS)
    }
    row = (
        f'ids = (102, 103, 104); model = "m"; block_size = {BLOCK}; events = "{at(events)}"; '
        f'replay = "{at(replay)}"; first_rank = {FIRST}; ranks = {RANKS};'
    )
    return engines, row


@pytest.mark.first
def test_each_rank_is_read_and_replayed_at_its_own_ports(scene):
    reader = Reader(scene.bus())
    engines, row = rows(scene)
    bridge = scene.bridge(row)
    for rank, one in engines.items():
        one.publish(of_rank(10 * rank, rank))
        one.publish(of_rank(10 * rank + 1, rank), live=False)  # only a replay contains it
        one.publish(of_rank(10 * rank + 2, rank))
    for rank in engines:
        wanted = {name_of(10 * rank + i) for i in range(3)}
        wait_for(f"rank {rank}", lambda: held_by(reader, rank) == wanted)
    assert set(reader.blocks) == {(100 + rank, rank) for rank in engines}
    assert bridge.metric("kvb_rank_mismatches_total") == 0
    assert all(len(one.requests) > 0 for one in engines.values())


def test_a_request_that_is_pinned_to_a_rank_is_routed_there_and_counts_there(scene):
    engines, row = rows(scene)
    aggregator = scene.aggregator()
    scene.bridge(row, formats=["protobuf"])
    for rank, one in engines.items():
        one.publish(of_rank(10 * rank, rank))
    wait_for("all ranks are known", lambda: len(aggregator.get("/streams")["streams"]) == len(engines))
    tokens = list(range(4 * BLOCK))

    def route(rank, **more):
        request = {"token_ids": tokens, "data_parallel_rank": rank, **more}
        return json.loads(aggregator.http("POST", "/route", request)[1])

    last = max(engines)
    for _ in range(3):
        assert route(last)["dp_rank"] == last
    for rank in engines:
        (score,) = route(rank, dry_run=True)["scores"]
        assert score["dp_rank"] == rank
        assert (score["decode_blocks"] > 0) == (rank == last), "the books of that rank alone have the requests"
    assert f"{len(engines)} of another data_parallel_rank" in route(max(engines) + 1)["error"]


def test_the_connection_decides_the_rank_and_not_the_batch(scene):
    reader = Reader(scene.bus())
    engines, row = rows(scene)
    bridge = scene.bridge(row)
    engines[2].publish(of_rank(1, rank=4))
    engines[2].publish(of_rank(2, rank=2))
    engines[2].publish(of_rank(3, rank=None))
    engines[3].publish(of_rank(4, rank=0))
    wait_for("all blocks that rank 2 sent", lambda: held_by(reader, 2) == {name_of(n) for n in (1, 2, 3)})
    wait_for("all blocks that rank 3 sent", lambda: held_by(reader, 3) == {name_of(4)})
    assert held_by(reader, 4) == set()
    # A tail probe may return one batch again.
    assert bridge.metric("kvb_rank_mismatches_total") >= 2
    assert bridge.metric("kvb_batches_refused_total") == 0


def listed(aggregator, rank):
    """The names of the blocks that the aggregator lists for a rank of worker 7."""
    return {int(row[3]) for row in aggregator.rows() if row[:3] == ["7", str(rank), "device"]}


def test_each_rank_of_a_recorded_engine_gets_the_list_of_its_own_messages(scene):
    """A vLLM 0.32 with two ranks; no prompt was sent to both."""
    sent = [capture.frames(f"frames-dp2-rank{rank}.hex") for rank in (0, 1)]
    names = [capture.canonical_names(rows) for rows in sent]
    assert not set(names[0].values()) & set(names[1].values())
    base, replay = free_row(2), free_row(2)
    engines = [
        scene.engine(topic=sent[rank][0][0], bind=at(base + rank), bind_replay=at(replay + rank))
        for rank in (0, 1)
    ]
    aggregator = scene.aggregator(block_size=capture.BLOCK_SIZE)
    bridge = scene.bridge(
        f'id = 7; model = "m"; block_size = {capture.BLOCK_SIZE}; events = "{at(base)}"; '
        f'replay = "{at(replay)}"; ranks = 2;'
    )
    # In the middle; when one rank was cleared and the other not yet; when both were.
    for ends in ((40, 60), (97, 98), (97, 99)):
        for rank, one in enumerate(engines):
            for _, seq, payload in sent[rank][one.next_seq : ends[rank]]:
                assert one.publish(payload) == seq
        for rank in (0, 1):
            held = capture.held_after(sent[rank][: ends[rank]])
            wanted = {names[rank][block] for block in held}
            wait_for(f"rank {rank} after {ends[rank]} messages", lambda: listed(aggregator, rank) == wanted)
    assert ends == tuple(map(len, sent))
    assert bridge.metric("kvb_rank_mismatches_total") == 0
    assert bridge.metric("kvb_batches_refused_total") == 0


def test_engines_that_connect_find_a_port_for_each_rank(scene):
    reader = Reader(scene.bus())
    base = free_row(2)
    replay = free_row(2)
    engines = [
        scene.engine_of(engine.ConnectingEngine, address=at(base + rank), bind_replay=at(replay + rank)) for rank in (0, 1)
    ]
    bridge = scene.bridge(
        f'ids = (100, 101); model = "m"; block_size = {BLOCK}; events = "{at(base)}"; '
        f'replay = "{at(replay)}"; ranks = 2; bind = true;'
    )
    wait_for("both are connected", lambda: bridge.metric("kvcache_zmq_connections_total") == 2)
    for rank, one in enumerate(engines):
        one.publish(of_rank(rank + 1, rank))
    for rank in (0, 1):
        wait_for(f"rank {rank}", lambda: held_by(reader, rank) == {name_of(rank + 1)})
    engines[1].publish(of_rank(5, 1), live=False)
    engines[1].publish(of_rank(6, 1))
    wait_for("the gap of rank 1", lambda: held_by(reader, 1) == {name_of(n) for n in (2, 5, 6)})


@pytest.mark.parametrize("topic,is_ours", [
    (b"kv-events", True),
    (b"kv-events\0dp0", True),
    (b"kv-events\0\0\xff\xfe", True),
    (b"kv-events.rank1", True),
    (b"kv-event", False),
    (b"kv\0events", False),
    (b"other\0kv-events", False),
    (b"", False),
])
def test_topics_are_filtered_by_their_beginning(scene, topic, is_ours):
    reader = Reader(scene.bus())
    vllm = scene.engine(topic=b"kv-events")
    bridge = scene.bridge(worker(vllm, replay=False, more='topic = "kv-events";'))
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    vllm.send_raw(topic, (1).to_bytes(8, "big"), store(2))
    vllm.send_raw(b"kv-events", (2 if is_ours else 1).to_bytes(8, "big"), store(3))
    wait_for("block 3", lambda: name_of(3) in reader.names())
    assert reader.names() == {name_of(n) for n in ((1, 2, 3) if is_ours else (1, 3))}
    assert bridge.metric("kvb_batches_missed_total") == 0


def test_ports_that_collide_are_refused_and_named(scene):
    """vLLM's own defaults, 5557 and 5558, are such a pair from rank 1 on."""
    bridge = scene.bridge(
        'id = 7L; model = "m"; block_size = 16; events = "tcp://127.0.0.1:5557"; '
        'replay = "tcp://127.0.0.1:5558"; ranks = 2;', wait=False,
    )
    assert bridge.process.wait(10) == 78
    assert ("workers[0].replay: its ports 5558 .. 5559 are also those of workers[0].events in line 4 "
            "(5557 .. 5558): move one of them") in bridge.text()
