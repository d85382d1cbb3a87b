"""One event with a bad field among good ones, for each field that identifies a block besides its
tokens: is it counted by its reason, and are the other events of the batch and the other stream
unaffected?"""

import itertools

import msgspec
import pytest
import xxhash

import contract
from conftest import shared_scene, worker
from programs import wait_for

BLOCK = 16
VICTIM, BESIDE, FIRST_SPARE = 7, 8, 11
HUGE = "x" * 100_000

# The result of the event: a reason of kvb_events_skipped_total; or the event is applied, and its
# block has a name that a query can compute (LISTED, Salted, OfImage), or none and is in no list
# (UNNAMED).
LISTED, UNNAMED = object(), object()


class Salted(str):
    """The block's name has this salt."""


class OfImage(int):
    """The block's name has this media hash."""


def changed(**fields):
    return fields


NONE = {"extra_keys": None, "cache_salt": None, "mm_keys": None, "lookahead_token_ids": None}
MM_KEY = {"type": "mm_key", "hash": "ab" * 32, "start_offset": 0}

CASES = {
    "all-nil": (changed(**NONE, session_id=None, group_idx=None, kv_cache_spec_kind=None, model_name=None), LISTED),
    "unknown-fields": (changed(colour="blue", shapes=[{"a": [1]}]), LISTED),
    "session-nested": (changed(session_id=[{"a": [1]}]), LISTED),  # no part of a block's name
    "salt": (changed(cache_salt="tenant"), Salted("tenant")),  # SGLang
    "salt-number": (changed(cache_salt=5), "bad_stored"),
    "salt-huge": (changed(cache_salt=HUGE), "unmatchable"),
    "salt-of-vllm-otherwise": (changed(cache_salt="tenant", extra_keys=[["other"]]), "bad_stored"),
    "lookahead-text": (changed(lookahead_token_ids=[["5"]]), "bad_stored"),  # vLLM 0.33
    "mm-without-hash": (changed(mm_keys=[[{"type": "mm_key", "start_offset": 0}]]), "bad_stored"),  # TensorRT-LLM
    "mm-huge": (changed(mm_keys=[[{**MM_KEY, "hash": HUGE}]]), OfImage(xxhash.xxh3_64_intdigest(HUGE.encode()))),
    "mm-many": (changed(mm_keys=[[MM_KEY] * 65]), UNNAMED),
    "extra-salt": (changed(extra_keys=[["tenant"]]), Salted("tenant")),  # vLLM
    "extra-map": (changed(extra_keys=[[{"a": 1}]]), UNNAMED),
    "model-other": (changed(model_name="other"), "other_model"),  # stores
    "model-nested": (changed(model_name=[["m"]]), "bad_stored"),
    "group-negative": (changed(group_idx=-1), "bad_stored"),  # vLLM
    "window-huge": (changed(kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=1 << 32), "bad_stored"),
}

# These show that the model has a group of an unknown kind, which is permanent, so each has its own
# stream.
GROUP_CASES = {
    "kind-number": (changed(group_idx=1, kv_cache_spec_kind=5), "not_prefix"),
    "kind-cross": (changed(group_idx=1, kv_cache_spec_kind="cross_attention"), "not_prefix"),
    "window-absent": (changed(group_idx=1, kv_cache_spec_kind="sliding_window"), "not_prefix"),
}

# The state of the stream after an event was skipped for this reason.
STATES = {"bad_stored": ("PARTIAL", "skipped"), "not_prefix": ("UNVERIFIED", "groups")}


def tokens_of(number):
    return [number * 100 + i for i in range(BLOCK)]


def name_of(number, outcome=LISTED):
    if type(outcome) is OfImage:
        media = [outcome & 0xFFFFFFFF, outcome >> 32]  # after the tokens: a little-endian u64
        return contract.tokens_hash([*tokens_of(number), *media])
    salt = outcome if type(outcome) is Salted else None
    return contract.tokens_hash(tokens_of(number), contract.block_seed(salt=salt))


def stored(number, **fields):
    """The event as a map, in which any field may have any value; {} has none of the newer fields."""
    return {
        "type": "BlockStored", "block_hashes": [number], "parent_block_hash": None, "token_ids": tokens_of(number),
        "block_size": BLOCK, "lora_id": None, "medium": "GPU", **fields,
    }


def batch(*events):
    return msgspec.msgpack.encode([1.5, list(events), 0])


class Stage:
    def __init__(self, scene):
        spares = {name: FIRST_SPARE + i for i, name in enumerate(GROUP_CASES)}
        self.worker_of = {**dict.fromkeys(CASES, VICTIM), **spares}
        self.engines = {number: scene.engine() for number in (VICTIM, BESIDE, *spares.values())}
        self.aggregator = scene.aggregator()
        self.bridge = scene.bridge(
            *(worker(one, number) for number, one in self.engines.items()), formats=["protobuf"], heartbeat_ms=100,
        )
        self.numbers = itertools.count(1)
        self.beside = set()

    def publish(self, worker_id, *events):
        self.engines[worker_id].publish(batch(*events))

    def listed(self):
        """{worker: names of its blocks}"""
        rows = self.aggregator.rows()
        return {number: {int(row[3]) for row in rows if row[0] == str(number)} for number in self.engines}

    def standing(self, worker_id):
        rows = self.aggregator.get("/streams")["streams"]
        return {row["worker_id"]: (row["state"], row["reason"]) for row in rows}[worker_id]

    def why(self, worker_id):
        """The status of the bridge, which may be one heartbeat older than the aggregator's."""
        return {row["worker_id"]: row for row in self.bridge.get("/state")["streams"]}[worker_id].get("why", "")

    def counts(self):
        """Skipped events by reason, and blocks that no query can name."""
        reasons = ("bad_stored", "unmatchable", "not_prefix", "other_model")
        counts = {reason: self.bridge.metric("kvb_events_skipped_total", reason=reason) for reason in reasons}
        return {
            **counts, "all": self.bridge.metric("kvb_events_skipped_total"),
            "unnamed": self.bridge.metric("kvb_blocks_unmatchable_total"),
        }


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        yield Stage(scene)


@pytest.mark.first
@pytest.mark.parametrize("name", [*CASES, *GROUP_CASES])
def test_a_bad_field_costs_only_its_event(stage, name):
    fields, outcome = {**CASES, **GROUP_CASES}[name]
    is_skipped = type(outcome) is str
    victim = stage.worker_of[name]
    first, bad, last, aside = itertools.islice(stage.numbers, 4)
    counts = stage.counts()
    stage.beside.add(name_of(aside))
    others = stage.listed()

    stage.publish(victim, {"type": "AllBlocksCleared"}, stored(first), stored(bad, **fields), stored(last))
    stage.publish(BESIDE, stored(aside))
    wanted = {name_of(first), name_of(last)}
    if not is_skipped and outcome is not UNNAMED:
        wanted.add(name_of(bad, outcome))
    wait_for("the good ones are listed", lambda: stage.listed() == {**others, victim: wanted, BESIDE: stage.beside})
    wanted_state = STATES.get(outcome, ("EXACT", "")) if is_skipped else ("EXACT", "")
    wait_for("the stream's state is as expected", lambda: stage.standing(victim) == wanted_state)
    if outcome == "not_prefix":
        wait_for("it is said which kind of group has no rule", lambda: "cache group" in stage.why(victim))
    wait_for("the other stream is EXACT", lambda: stage.standing(BESIDE) == ("EXACT", ""))
    if is_skipped:
        counts[outcome] += 1
        counts["all"] += 1
    counts["unnamed"] += outcome is UNNAMED
    wait_for("the metrics count the event", lambda: stage.counts() == counts)
    assert stage.bridge.metric("kvb_batches_refused_total") == 0


def test_a_field_nested_too_deeply_affects_only_its_stream(stage):
    deep = []
    for _ in range(20):
        deep = [deep]
    first, bad, aside = itertools.islice(stage.numbers, 3)
    stage.beside.add(name_of(aside))
    stage.publish(VICTIM, {"type": "AllBlocksCleared"}, stored(first))
    stage.publish(VICTIM, stored(bad, extra_keys=deep))
    stage.publish(BESIDE, stored(aside))
    wait_for("the batch is refused", lambda: stage.bridge.metric("kvb_batches_refused_total", reason="payload") > 0)
    wait_for("the stream is PARTIAL(poison)", lambda: stage.standing(VICTIM) == ("PARTIAL", "poison"))
    wait_for("the other stream is listed", lambda: stage.listed()[BESIDE] == stage.beside)
    wait_for("the other stream is EXACT", lambda: stage.standing(BESIDE) == ("EXACT", ""))
