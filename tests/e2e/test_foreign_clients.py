"""Do clients that were not written by us, from the contract alone, agree with us?
A publisher declared as vLLM declares it drives kvbridge; a nats-py reader rebuilds
the held blocks; Python's xxhash names them."""

import random

import pytest

import contract
import engine
from conftest import PUBLISH, worker
from programs import wait_for

BLOCK = 16


def prompt(seed, blocks):
    return [random.Random(seed * 1000 + i).randrange(1 << 32) for i in range(blocks * BLOCK)]


class Cache:
    """The blocks of a simulated engine: engine hashes and canonical names."""

    def __init__(self, form):
        self.form = form
        self.held = {}  # canonical name: tokens_hash
        self.names = {}  # engine hash: canonical name
        self.next_hash = 1 << 60

    def store(self, tokens, have=0, parent=None):
        """Stores the blocks of a prompt from block `have` on."""
        rows = contract.prompt_hashes(tokens, BLOCK)[have:]
        hashes = [self.next_hash + i for i in range(len(rows))]
        self.next_hash += len(rows)
        for engine_hash, (name, own) in zip(hashes, rows):
            self.held[name] = own
            self.names[engine_hash] = name
        return hashes, self.form.stored(hashes, tokens[have * BLOCK :], BLOCK, parent)

    def remove(self, engine_hash):
        del self.held[self.names.pop(engine_hash)]
        return self.form.removed(engine_hash)

    def clear(self):
        self.held.clear()
        self.names.clear()
        return self.form.cleared()


@pytest.mark.first
@pytest.mark.both_servers
@pytest.mark.sanitize
@pytest.mark.parametrize("form", [engine.ArrayForm, engine.MapForm], ids=["array", "map"])
def test_a_reader_rebuilds_the_held_blocks_from_the_contract(scene, form):
    bus, reader, cache = scene.bus(), contract.HeldBlocks(), Cache(form)
    messages = bus.watch(f"{PUBLISH}.kv_events")
    vllm = scene.engine()
    scene.bridge(worker(vllm))

    def agrees():
        while messages:
            reader.apply(messages.pop(0).data)
        return reader.of(7) == cache.held

    first = prompt(1, 5)
    hashes, event = cache.store(first)
    vllm.publish(engine.batch(event))
    wait_for("five blocks of a first prompt are held", agrees)
    assert reader.parents[(7, 0)] == dict(
        zip(list(cache.held), [None, *list(cache.held)[:-1]])
    ), "each block names the one before it as its parent"

    # A longer prompt with the same beginning: the event names only the parent.
    _, event = cache.store(first + prompt(2, 3), have=5, parent=hashes[4])
    vllm.publish(engine.batch(event))
    wait_for("eight blocks are held", agrees)

    # Removes leaves first, as an LRU cache does; several events in one batch.
    vllm.publish(engine.batch(cache.remove(hashes[4]), cache.remove(hashes[3])))
    wait_for("six blocks are held", agrees)

    _, event = cache.store(prompt(3, 40))
    vllm.publish(engine.batch(cache.remove(hashes[2]), event))
    wait_for("45 blocks are held", agrees)

    vllm.publish(engine.batch(cache.clear()))
    wait_for("nothing is held", agrees)
    _, event = cache.store(first)
    vllm.publish(engine.batch(event))
    wait_for("the first prompt is held again", agrees)


def test_worker_ids_and_hashes_keep_all_their_bits(scene):
    big = (1 << 63) - 1
    bus, reader = scene.bus(), contract.HeldBlocks()
    messages = bus.watch(f"{PUBLISH}.kv_events")
    vllm = scene.engine()
    scene.bridge(worker(vllm, worker_id=big), hashes="engine")
    tokens = prompt(4, 3)
    hashes = [(1 << 64) - 1, -(1 << 63), (1 << 63) + 1]
    vllm.publish(engine.batch(engine.stored(hashes, tokens, BLOCK)))

    def agrees():
        while messages:
            reader.apply(messages.pop(0).data)
        return list(reader.of(big)) == [value % (1 << 64) for value in hashes]

    wait_for("three blocks under the engine's own names", agrees)


@pytest.mark.sanitize
def test_token_ids_never_leave_the_host(scene):
    bus = scene.bus()
    messages = bus.watch(">")
    vllm = scene.engine()
    scene.bridge(worker(vllm))
    tokens = [3_000_000_000 + i for i in range(BLOCK)]
    name = contract.prompt_hashes(tokens, BLOCK)[0][0]
    vllm.publish(engine.batch(engine.stored([1], tokens, BLOCK)))
    wait_for("the block is published", lambda: any(str(name).encode() in m.data for m in messages))
    for message in messages:
        assert b"30000000" not in message.data, message.subject
