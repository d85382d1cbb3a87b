"""Several ranks of one engine: at which port each is found, and to which rank events belong."""

import json

import pytest

import capture
import engine
from programs import free_ports, wait_for
from test_faults import BLOCK, Reader, name_of, tokens_of


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
    base = free_ports(2 * (FIRST + RANKS))
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


def listed(aggregator, rank):
    """The names of the blocks that the aggregator lists for a rank of worker 7."""
    return {int(row[3]) for row in aggregator.rows() if row[:3] == ["7", str(rank), "device"]}


def test_each_rank_of_a_recorded_engine_gets_the_list_of_its_own_messages(scene):
    """A vLLM 0.32 with two ranks; no prompt was sent to both."""
    sent = [capture.frames(f"frames-dp2-rank{rank}.hex") for rank in (0, 1)]
    names = [capture.canonical_names(rows) for rows in sent]
    assert not set(names[0].values()) & set(names[1].values())
    base, replay = free_ports(2), free_ports(2)
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
