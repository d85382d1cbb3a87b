"""An engine's own blocks of 16 tokens and an offload connector's chunks of 256, interleaved in one
stream: is a prompt answered in tokens, tier by tier, after each event?"""

import json
import random

import pytest

import engine
from conftest import ROUTER, shared_scene, worker
from programs import wait_for

BLOCK, CHUNK = 16, 256
FORMATS = ("json", "protobuf")
# LMCache's events name host memory, or no medium; in the second case readers take the chunk for the
# device's.
MEDIA = {"cpu": "CPU", "unsaid": None}

PROMPT = list(range(1000, 1000 + 4 * CHUNK))
FORK = PROMPT[: 2 * CHUNK] + list(range(9000, 9000 + 2 * CHUNK))
QUERIES = (PROMPT, FORK, PROMPT[:700], FORK[: 3 * CHUNK], [1] + PROMPT)


def name_in_engine(size, at):
    """PROMPT's block of this size at this position."""
    return size << 32 | at


def stored(size, first, last, medium):
    """Blocks first .. last - 1 of PROMPT."""
    return engine.MapForm.stored(
        [name_in_engine(size, at) for at in range(first, last)], PROMPT[first * size : last * size], size,
        name_in_engine(size, first - 1) if first else None, medium,
    )


def removed(size, first, last, medium):
    return engine.MapForm.removed(*(name_in_engine(size, at) for at in range(first, last)), medium=medium)


class Plain:
    """The held blocks by tier: each is its size and all tokens up to its end."""

    def __init__(self):
        self.held = {"device": set(), "host": set()}

    def store(self, tier, size, first, last):
        self.held[tier] |= {(size, tuple(PROMPT[: (at + 1) * size])) for at in range(first, last)}

    def remove(self, tier, size, first, last):
        self.held[tier] -= {(size, tuple(PROMPT[: (at + 1) * size])) for at in range(first, last)}

    def prefix(self, tier, size, prompt):
        end = 0
        while end + size <= len(prompt) and (size, tuple(prompt[: end + size])) in self.held[tier]:
            end += size
        return end

    def tokens(self, prompt):
        device, host = (max(self.prefix(tier, size, prompt) for size in (BLOCK, CHUNK)) for tier in self.held)
        return {"device": device, "host": max(device, host), "disk": max(device, host)}

    def hit(self, prompt):
        """A request always computes its last token itself."""
        return max(
            min(self.prefix("device", size, prompt), (len(prompt) - 1) // size * size) for size in (BLOCK, CHUNK)
        )


def script():
    """[(is a chunk, is stored, first, last)], random but realistic: a block of PROMPT is stored
    after its parent and removed before it."""
    rng = random.Random(1)
    ends = {BLOCK: 0, CHUNK: 0}
    steps = []
    while len(steps) < 60:
        size = rng.choice((BLOCK, BLOCK, CHUNK))
        more = rng.randrange(1, 24 if size == BLOCK else 3)
        before = ends[size]
        after = before + more if rng.random() < 0.6 else before - more
        after = ends[size] = min(max(after, 0), len(PROMPT) // size)
        if after != before:
            steps.append((size == CHUNK, after > before, min(before, after), max(before, after)))
    return steps


class Run:
    """One stream with its connector's medium, its bridge's format, and its held blocks."""

    def __init__(self, scene, worker_id, format, medium):
        self.format, self.medium, self.worker_id = format, MEDIA[medium], worker_id
        self.model = f"{format}-{medium}"
        self.engine = scene.engine()
        self.row = worker(self.engine, worker_id, self.model, BLOCK)
        self.plain = Plain()

    def step(self, is_chunk, is_stored, first, last):
        size = CHUNK if is_chunk else BLOCK
        medium = self.medium if is_chunk else "GPU"
        tier = "host" if medium == "CPU" else "device"
        make, note = (stored, self.plain.store) if is_stored else (removed, self.plain.remove)
        self.engine.publish(engine.batch(make(size, first, last, medium)))
        note(tier, size, first, last)


class Stage:
    def __init__(self, scene):
        kinds = [(format, medium) for format in FORMATS for medium in MEDIA]
        self.runs = [Run(scene, i, *kind) for i, kind in enumerate(kinds, 1)]
        self.bus = scene.bus()
        self.aggregator = scene.aggregator()
        self.bridges = {
            format: scene.bridge(
                *(run.row for run in self.runs if run.format == format), name=f"kvbridge-{format}",
                component=f"Worker-{format}", formats=[format], tiers="all", heartbeat_ms=100,
            )
            for format in FORMATS
        }
        wait_for("all wait for a first batch",
                 lambda: self.states() == {run.worker_id: "UNVERIFIED" for run in self.runs})

    def states(self):
        return {s["worker_id"]: s["state"] for s in self.aggregator.get("/streams")["streams"]}

    def has_settled(self):
        for format, bridge in self.bridges.items():
            sent = sum(run.engine.next_seq - 1 for run in self.runs if run.format == format)
            if bridge.metric("kvcache_zmq_last_sequence_id") != sent:
                return False
        published = sum(bridge.metric("kvb_events_published_total") for bridge in self.bridges.values())
        return self.aggregator.metric("kvb_events_applied_total") == published

    def ask(self, run, prompt):
        """(tokens by POST /query, the worker's row of kv_match, kv_match's own block size)"""
        body = {"token_ids": prompt, "model_name": run.model}
        status, text = self.aggregator.http("POST", "/query", body)
        assert status == 200, text
        one = json.loads(text)["instances"].get(str(run.worker_id), {"gpu": 0, "cpu": 0, "disk": 0})
        match = json.loads(self.bus.request(f"{ROUTER}.kv_match", json.dumps(body).encode()))
        rows = [row for row in match["workers"] if row["worker_id"] == run.worker_id]
        none = {"tokens": {"device": 0, "host": 0, "disk": 0}, "hit_tokens": 0}
        return {"device": one["gpu"], "host": one["cpu"], "disk": one["disk"]}, rows[0] if rows else none, match


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield Stage(scene)


@pytest.mark.first
def test_blocks_and_chunks_are_answered_by_tier_after_each_event(stage):
    steps = script()
    seen = set()
    for number, step in enumerate(steps):
        for run in stage.runs:
            run.step(*step)
        wait_for(f"event {number} is applied", stage.has_settled)
        for run in stage.runs:
            for prompt in QUERIES:
                wanted, hit = run.plain.tokens(prompt), run.plain.hit(prompt)
                about = (number, step, run.model, len(prompt))

                # Where heartbeats come late, a stream that is right leaves the answers for a while.
                def answer():
                    queried, row, match = stage.ask(run, prompt)
                    assert queried == wanted or not any(queried.values()), (about, queried)
                    return (row, match) if queried == row["tokens"] == wanted and row["hit_tokens"] == hit else None

                row, match = wait_for(f"the answer is {wanted}, hit {hit}, {about}", answer)
                assert row.get("block_size", BLOCK) == match["block_size"] == BLOCK, (about, match)
                seen.add((run.medium, wanted["device"] > 0, wanted["host"] > wanted["device"]))
    assert ("CPU", True, True) in seen and ("CPU", True, False) in seen and ("CPU", False, True) in seen
    wait_for("all are EXACT", lambda: stage.states() == {run.worker_id: "EXACT" for run in stage.runs})
    for bridge in stage.bridges.values():
        assert bridge.metric("kvb_events_skipped_total") == 0
        assert bridge.metric("kvb_streams_cleared_total") == 0
