"""A Mooncake store beside engines: are its blocks shown as shared, and is it never offered as a
target for a request?"""

import gzip
import json
import pathlib
import re

import msgspec
import pytest
import zmq

import contract
import engine
from conftest import ROUTER, worker
from programs import wait_for
from test_dialects import BlockStoreEvent, BlockUpdateEvent, Batch090, RemoveAllEvent, encode

BLOCK = 16
STORE, ENGINE = 9, 1
PROMPT = list(range(3000, 3000 + 4 * BLOCK))
OTHERS = list(range(7000, 7000 + 4 * BLOCK))
NAMES = [name for name, _ in contract.prompt_hashes(PROMPT, BLOCK)]
OTHER_NAMES = [name for name, _ in contract.prompt_hashes(OTHERS, BLOCK)]
MEMORY, DISK = ("memory", "tcp://10.0.0.1:1"), ("disk", "/data/1")


class Guide:
    """Format A, of the subscriber guide: one object for each block, with its tokens."""

    config = "store = true;"
    has_parents = True

    @staticmethod
    def prompt(tokens, names, model, replica=MEMORY):
        keys = [f"{name:#018x}" for name in names]
        return encode(Batch090(1.5, [
            BlockStoreEvent(key, [replica], model, 4096, key, keys[at - 1] if at else "",
                            tokens[at * BLOCK : (at + 1) * BLOCK])
            for at, key in enumerate(keys)
        ]))

    @staticmethod
    def gone(name):
        return encode(Batch090(1.5, [BlockUpdateEvent(f"{name:#018x}", [])]))

    @staticmethod
    def cleared():
        return encode(Batch090(1.5, [RemoveAllEvent()]))


class Objects:
    """Format C, of Mooncake's main branch: maps that name blocks by the hashes of their writer,
    without tokens."""

    config = 'hashes = "engine";'
    has_parents = False  # each block looks like the first one of a prompt

    @staticmethod
    def batch(*events):
        return encode([1700000000500, list(events), 0])

    @staticmethod
    def event(kind, **more):
        unset = dict.fromkeys(("block_size", "token_ids", "parent_hash", "group_id", "lora_name"))
        return {"event_id": 1, "event_type": kind, "backend_id": "node-1", "tenant_id": "default", **unset, **more}

    @classmethod
    def prompt(cls, tokens, names, model, replica=MEMORY):
        medium = {MEMORY: "cpu", DISK: "disk"}[replica]
        return cls.batch(*(
            cls.event("stored", seq_hashes=[name], object_key=hex(name), medium=medium, model_name=model)
            for name in names
        ))

    @classmethod
    def gone(cls, name):
        return cls.batch(cls.event("removed", seq_hashes=[name], object_key=hex(name), medium="cpu"))

    @classmethod
    def cleared(cls):
        return cls.batch(cls.event("cleared", medium=None))


FORMS = pytest.mark.parametrize("form", [Guide, Objects], ids=["guide", "objects"])


class Store(engine.Engine):
    """Mooncake's clients may send their name in a request."""

    def request_of(self, frames):
        return frames[:1] + frames[2:] if len(frames) == 4 else frames


class Stage:
    """A store and an engine, which holds the first block of PROMPT, on one bridge."""

    def __init__(self, scene, form, **publish):
        self.form = form
        self.is_known = False  # recognised as a store, because each of its events shows it
        self.store, self.vllm = scene.engine_of(Store, topic=b"mooncake"), scene.engine()
        self.aggregator = scene.aggregator()
        self.bus = scene.bus()
        self.bridge = scene.bridge(
            worker(self.store, STORE, more=form.config), worker(self.vllm, ENGINE), heartbeat_ms=100, **publish,
        )
        self.store.publish(form.cleared())
        self.vllm.publish(engine.batch(engine.stored([1], PROMPT[:BLOCK], BLOCK)))

    def question(self, names, tokens):
        """A client that knows a store's blocks only by their hashes queries by these."""
        return {"seq_hashes": names} if self.form is Objects else {"token_ids": tokens}

    def match(self, names, tokens):
        body = json.dumps(self.question(names, tokens)).encode()
        return json.loads(self.bus.request(f"{ROUTER}.kv_match", body))

    def shared(self, names=NAMES, tokens=PROMPT):
        """{store: tokens by tier} by kv_match, and then by POST /query."""
        match = self.match(names, tokens)
        status, text = self.aggregator.http("POST", "/query", {**self.question(names, tokens), "model_name": "m"})
        assert status == 200, text
        query = json.loads(text)
        if self.is_known:
            assert STORE not in [row["worker_id"] for row in match["workers"]], match
            assert str(STORE) not in query["scores"] and str(STORE) not in query["instances"], query
        return [{row["worker_id"]: row["tokens"] for row in answer.get("shared", [])} for answer in (match, query)]

    def shows(self, host, disk, names=NAMES, tokens=PROMPT):
        """This many blocks of the prompt are shared, in memory and elsewhere."""
        if not self.form.has_parents:
            host, disk = min(host, 1), min(disk, 1)
        wanted = {STORE: {"host": host * BLOCK, "disk": disk * BLOCK}} if disk else {}
        wait_for(f"{host}, {disk} blocks are shared", lambda: self.shared(names, tokens) == [wanted, wanted])
        self.is_known = True


@pytest.mark.first
@FORMS
@pytest.mark.parametrize("publish", [{"formats": ["protobuf"]}, {"formats": ["json"], "tiers": "all"}], ids=["protobuf", "json"])
def test_a_store_is_shown_as_shared_and_never_chosen(scene, form, publish):
    stage = Stage(scene, form, **publish)
    stage.store.publish(form.prompt(PROMPT, NAMES, "m"))
    stage.shows(4, 4)

    # The engine holds one block of the prompt.
    listed = {s["worker_id"]: s.get("store") for s in stage.aggregator.get("/streams")["streams"]}
    assert listed == {STORE: True, ENGINE: None}
    body = stage.question(NAMES, PROMPT)
    for _ in range(5):
        by_nats = json.loads(stage.bus.request(f"{ROUTER}.kv_route", json.dumps(body).encode()))
        status, text = stage.aggregator.http("POST", "/route", {**body, "model": "m"})
        assert status == 200, text
        for answer in (by_nats, json.loads(text)):
            assert answer["worker_id"] == ENGINE, answer
            assert [score["worker_id"] for score in answer["scores"]] == [ENGINE], answer

    stage.store.publish(form.gone(NAMES[2]))
    stage.shows(2, 2)
    stage.store.publish(form.gone(NAMES[0]))
    stage.shows(0, 0)
    stage.store.publish(form.prompt(PROMPT, NAMES, "m"))
    stage.shows(4, 4)
    stage.store.publish(form.cleared())
    stage.shows(0, 0)


@FORMS
def test_blocks_of_another_model_are_not_found(scene, form):
    stage = Stage(scene, form, formats=["protobuf"])
    stage.store.publish(form.prompt(OTHERS, OTHER_NAMES, "other"))
    stage.store.publish(form.prompt(PROMPT, NAMES, "m"))
    stage.shows(4, 4)
    stage.shows(0, 0, OTHER_NAMES, OTHERS)
    wait_for("the metric counts the events", lambda: stage.bridge.metric("kvb_events_skipped_total", reason="other_model") == 4)
    assert stage.bridge.metric("kvb_events_skipped_total") == 4
    # Events that are skipped because of their model do not make this stream PARTIAL.
    # A store evicts objects without saying so, so it is never EXACT.
    wait_for("the engine is EXACT, the store is not", lambda: {
        s["worker_id"]: (s["state"], s["reason"]) for s in stage.aggregator.get("/streams")["streams"]
    } == {STORE: ("UNVERIFIED", "no_removals"), ENGINE: ("EXACT", "")})
    # A block without a model's name belongs to the configured model.
    stage.store.publish(form.prompt(OTHERS[:BLOCK], OTHER_NAMES[:1], "" if form is Guide else None))
    stage.shows(1, 1, OTHER_NAMES, OTHERS)


# ---- Mooncake 0.3.14: objects that only their keys name -------------------------------------

CAPTURE = pathlib.Path(__file__).parents[1] / "data" / "mooncake-0.3.14"


def lines_of(name):
    return gzip.decompress((CAPTURE / name).read_bytes()).decode().splitlines()


def hash_in(key):
    """The hash of the block that the key of an object names."""
    if match := re.fullmatch(r".+@tp_rank:\d+@pcp\d+@dcp\d+@pp_rank:\d+@group:\d+@([0-9a-f]{64})", key):
        return int(match[1][-16:], 16)  # vLLM
    if match := re.fullmatch(r"([0-9a-f]{64})_\d+_[kv]", key):
        return int(match[1][:16], 16)  # SGLang
    return int(key, 0)


class HeardStore(Store):
    """Knows its subscribers: it has no replay, so what it publishes before one is there is lost."""

    publisher = zmq.XPUB

    def has_subscriber(self):
        return self.pub.poll(0) and self.pub.recv()[:1] == b"\1"


def stream_of(aggregator, worker_id):
    rows = aggregator.get("/streams")["streams"]
    return next((row for row in rows if row["worker_id"] == worker_id), None)


def test_objects_of_a_real_store_are_listed_as_the_store_has_them(scene):
    """A recorded master of 0.3.14, and the keys that it had at 12 points.  At the last of them it had
    evicted objects of which it published nothing."""
    frames = [line.split() for line in lines_of("frames.hex.gz")]
    truth = [json.loads(line) for line in lines_of("truth.jsonl.gz")]
    store, aggregator = scene.engine_of(HeardStore, topic=b""), scene.aggregator()
    bridge = scene.bridge(worker(store, STORE, replay=False, more='hashes = "engine";'), formats=["protobuf"], heartbeat_ms=100)
    wait_for("the bridge listens", store.has_subscriber)

    published, held, sent = set(), [], 0
    for point in truth:
        for _, seq, payload in frames[sent : point["after_seq"]]:
            store.publish(bytes.fromhex(payload), seq=int(seq, 16))
            for event in msgspec.msgpack.decode(bytes.fromhex(payload))[1]:
                (published.add if event["event_type"] == "stored" else published.discard)(event["object_key"])
        sent = point["after_seq"]

        def has_all():
            of_bridge, of_aggregator = bridge.get("/state")["streams"][0], stream_of(aggregator, STORE)
            return (of_bridge["last_seq"] == sent and of_aggregator
                    and of_aggregator["last_event_id"] == of_bridge["event_id"])

        wait_for(f"the aggregator has all up to message {sent}", has_all)
        stream = stream_of(aggregator, STORE)
        assert (stream["state"], stream["reason"], stream["store"]) == ("UNVERIFIED", "no_removals", True), stream
        listed = {int(row[3]) for row in aggregator.rows()}
        held.append({hash_in(key) for key in point["keys"]})
        if point is truth[-1]:
            assert held[-1] < listed == {hash_in(key) for key in published}, "nothing but what was evicted is left"
            assert len(listed - held[-1]) == 31
        else:
            assert listed == held[-1], f"after message {sent}"
    assert bridge.metric("kvb_events_skipped_total") == 0
