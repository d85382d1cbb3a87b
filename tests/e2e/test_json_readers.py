"""Do readers that know only JSON RouterEvents end with what the engines hold?  They read no
heartbeats and send no requests, and some of them do not understand ranks."""

import json

import pytest

import engine
from conftest import PUBLISH, ROUTER, worker
from programs import free_ports, wait_for
from test_faults import name_of, store, tokens_of

BLOCK = 16


class PlainReader:
    """A nats-py subscriber of P.kv_events, with the blocks that it lists for each worker, as the index of
    Dynamo up to 0.4: ranks are ignored, and so is a stored event whose parent the worker does not hold."""

    def __init__(self, bus):
        self.messages = bus.watch(f"{PUBLISH}.kv_events")
        self.held = {}  # worker -> set of block hashes
        self.clears = self.ignored = self.told = 0  # told: stored blocks, each time that they are published
        self.event_ids = []

    def _apply(self, message):
        event = json.loads(message)
        body, data = event["event"], event["event"]["data"]
        held = self.held.setdefault(event["worker_id"], set())
        self.event_ids.append(body["event_id"])
        if data == "cleared":
            self.clears += 1
            held.clear()
        elif "stored" in data:
            self.told += len(data["stored"]["blocks"])
            parent = data["stored"]["parent_hash"]
            if parent is None or parent in held:
                held.update(block["block_hash"] for block in data["stored"]["blocks"])
            else:
                self.ignored += 1
        else:
            held.difference_update(data["removed"]["block_hashes"])

    def read_until(self, count):
        """Reads message by message, and leaves those that follow when it holds so many blocks. True: it does."""
        while sum(map(len, self.held.values())) < count and self.messages:
            self._apply(self.messages.pop(0).data)
        return sum(map(len, self.held.values())) == count

    def blocks(self):
        """{worker: held blocks}, of workers that hold any."""
        while self.messages:
            self._apply(self.messages.pop(0).data)
        return {worker_id: held for worker_id, held in self.held.items() if held}

    def count(self):
        return sum(len(held) for held in self.blocks().values())

    def of(self, worker_id=7):
        return self.blocks().get(worker_id, set())

    def holds(self, *numbers, worker_id=7):
        return lambda: self.of(worker_id) == {name_of(n) for n in numbers}


def listed(aggregator, *numbers):
    """kvaggregator reads the same messages: no event is missing, and no block is invented."""
    return sorted(int(row[3]) for row in aggregator.rows()) == sorted(name_of(n) for n in numbers)


# ---- What empties a list --------------------------------------------------------------


def three_blocks(scene):
    reader = PlainReader(scene.bus())
    vllm = scene.engine()
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(vllm))
    for number in (1, 2, 3):
        vllm.publish(store(number))
    wait_for("three blocks", reader.holds(1, 2, 3))
    return reader, vllm, aggregator, bridge


def check_truth(reader, aggregator, *numbers):
    wait_for("the reader holds what the engine holds", reader.holds(*numbers))
    wait_for("kvaggregator lists the same", lambda: listed(aggregator, *numbers))
    wait_for("the list is EXACT", aggregator.is_exact)


@pytest.mark.first
def test_an_engines_restart_is_published(scene):
    reader, vllm, aggregator, _ = three_blocks(scene)
    vllm.restart()
    vllm.publish(store(2))
    vllm.publish(store(9))
    check_truth(reader, aggregator, 2, 9)


def test_a_killed_bridges_successor_publishes_what_is_held_now(scene):
    """The bridge ended without a goodbye."""
    reader, vllm, aggregator, bridge = three_blocks(scene)
    bridge.kill()
    vllm.publish(engine.batch(engine.removed(1)))
    vllm.publish(store(4))
    scene.bridge(worker(vllm), name="second")
    check_truth(reader, aggregator, 2, 3, 4)


# ---- Readers that ignore ranks --------------------------------------------------------------


def two_ranks(scene):
    """Rank 1's endpoint is rank 0's port + 1."""
    events, replay = free_ports(2), free_ports(2)
    ranks = [
        scene.engine(
            bind=f"tcp://127.0.0.1:{events + rank}", bind_replay=f"tcp://127.0.0.1:{replay + rank}"
        )
        for rank in (0, 1)
    ]
    return ranks, f'events = "tcp://127.0.0.1:{events}"; replay = "tcp://127.0.0.1:{replay}"; ranks = 2;'


def row(ids, endpoints):
    return f'{ids} model = "m"; block_size = {BLOCK}; {endpoints}'


def test_each_rank_may_be_a_worker_of_its_own(scene):
    reader = PlainReader(scene.bus())
    (first, second), endpoints = two_ranks(scene)
    aggregator = scene.aggregator()
    scene.bridge(row("ids = (70, 71);", endpoints))
    for one in (first, second):
        one.publish(store(1))  # the same prompt in both
    second.publish(store(2))
    wait_for("rank 0", reader.holds(1, worker_id=70))
    wait_for("rank 1", reader.holds(1, 2, worker_id=71))
    second.publish(engine.batch(engine.removed(1)))
    wait_for("rank 1 has lost the block", reader.holds(2, worker_id=71))
    first.restart()
    first.publish(store(3))
    wait_for("rank 0 began again", reader.holds(3, worker_id=70))
    assert reader.holds(2, worker_id=71)()
    wait_for("both are exact", lambda: aggregator.is_exact(2))
    ids = {(s["worker_id"], s["dp_rank"]) for s in aggregator.get("/streams")["streams"]}
    assert ids == {(70, 0), (71, 1)}


@pytest.mark.sanitize
def test_a_clear_of_one_rank_does_not_affect_its_siblings(scene):
    """With a shared id, `cleared` removes all ranks of the worker, so the others are published
    again."""
    reader = PlainReader(scene.bus())
    (first, second), endpoints = two_ranks(scene)
    aggregator = scene.aggregator()
    bridge = scene.bridge(row("id = 7;", endpoints))
    first.publish(store(1))
    first.publish(store(2))
    second.publish(store(2))
    second.publish(store(3))
    wait_for("both ranks", reader.holds(1, 2, 3))
    first.restart()
    first.publish(store(4))
    wait_for("rank 0 began again, rank 1 stands", reader.holds(2, 3, 4))
    assert bridge.metric("kvb_retellings_total") >= 1
    wait_for("kvaggregator took nothing twice", lambda: listed(aggregator, 2, 3, 4))
    wait_for("and is sure", lambda: aggregator.is_exact(2))


# ---- An engine that is away --------------------------------------------------------------------


def test_the_blocks_of_an_engine_away_for_long_are_removed(scene):
    reader = PlainReader(scene.bus())
    vllm = scene.engine()
    aggregator = scene.aggregator()
    scene.bridge(worker(vllm), down_clear_ms=300)
    vllm.publish(store(1))
    vllm.publish(store(2))
    wait_for("two blocks", reader.holds(1, 2))
    vllm.go_away()
    wait_for("nothing", reader.holds())
    wait_for("the stream says why", lambda: aggregator.states() == [("DOWN", "engine_away")])
    vllm.come_back()  # the same process, which still holds both blocks
    check_truth(reader, aggregator, 1, 2)
    vllm.publish(store(3))
    check_truth(reader, aggregator, 1, 2, 3)


# ---- A loss towards NATS ----------------------------------------------------------------------------


def lose_nats(scene, bridge, vllm):
    """Block 1 is removed and block 3 stored while no reader can receive it."""
    scene.started[0].kill()
    wait_for("the bridge notices", lambda: not bridge.is_ready())
    vllm.publish(engine.batch(engine.removed(1)))
    vllm.publish(store(3))
    wait_for(
        "the bridge has it",
        lambda: bridge.get("/state")["streams"][0]["last_seq"] == vllm.next_seq - 1,
    )
    scene.start_nats(scene.nats_port)


def test_lost_events_are_published_again(scene):
    reader = PlainReader(scene.bus())
    vllm = scene.engine()
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(vllm))
    # a chain: parents must be published first
    tokens = tokens_of(2, blocks=3)
    vllm.publish(store(1))
    vllm.publish(engine.batch(engine.stored([21, 22, 23], tokens, BLOCK)))
    wait_for("four blocks", lambda: len(reader.of()) == 4)
    lose_nats(scene, bridge, vllm)
    wait_for("what is held now", lambda: len(reader.of()) == 4 and name_of(1) not in reader.of())
    assert name_of(3) in reader.of()
    wait_for("kvaggregator is sure", aggregator.is_exact)


def test_with_reannounce_never_the_ids_show_the_loss(scene):
    bus = scene.bus()
    reader = PlainReader(bus)
    vllm = scene.engine()
    aggregator = scene.aggregator()
    bridge = scene.bridge(worker(vllm), reannounce="never")
    vllm.publish(store(1))
    vllm.publish(store(2))
    wait_for("two blocks", reader.holds(1, 2))
    clears, seen = reader.clears, len(reader.event_ids)
    lose_nats(scene, bridge, vllm)
    wait_for("the bridge publishes again", bridge.is_ready)
    wait_for("the reader is back too", lambda: bus.client.is_connected)
    bus.flush()  # so it receives again
    vllm.publish(store(4))
    wait_for("only what came after", reader.holds(1, 2, 4))
    assert reader.clears == clears
    assert reader.event_ids[seen:] == [reader.event_ids[seen - 1] + 3], "two events are missing"
    wait_for("kvaggregator has requested the missing events", lambda: listed(aggregator, 2, 3, 4))
    wait_for("and is sure", aggregator.is_exact)


def test_the_aggregator_reads_events_that_hold_prompts(scene):
    """Another publisher's form of events, with token ids in place of hashes."""
    aggregator = scene.aggregator(model="m", block_size=BLOCK)
    bus = scene.bus()
    tokens = tokens_of(3) + tokens_of(4)

    def tell(**data):
        bus.publish(f"{PUBLISH}.kv_events", json.dumps({"worker_id": 5, "data": data}).encode())

    def blocks(**more):
        answer = bus.request(f"{ROUTER}.kv_match", json.dumps({"token_ids": tokens, **more}).encode())
        return {row["worker_id"]: row["blocks"] for row in json.loads(answer)["workers"]}

    # Tokens that do not fill a block are ignored.
    tell(Stored={"request_id": "r-1", "token_ids": tokens + [1], "block_hashes": [101, 102], "lora_id": None})
    wait_for("both blocks are listed", lambda: blocks() == {5: 2})
    tell(Removed={"block_hashes": [102]})
    wait_for("one is left", lambda: blocks() == {5: 1})
    tell(Stored={"request_id": "r-2", "token_ids": tokens, "block_hashes": [201, 202], "lora_id": 7})
    wait_for("an adapter's blocks are other blocks", lambda: blocks(lora_name="lora_id:7") == {5: 2})
    assert blocks() == {5: 1}

    before = aggregator.metric("kvb_messages_refused_total")
    tell(Stored={"request_id": "r-3", "token_ids": tokens[:-1], "block_hashes": [301, 302], "lora_id": None})
    tell(Stolen={"block_hashes": [101]})
    wait_for("both are refused", lambda: aggregator.metric("kvb_messages_refused_total") == before + 2)
    assert blocks() == {5: 1}
