"""Is the reader that test_compose.py uses outside its stack (dynamo.py) as strict as
Dynamo's? It must refuse messages that end a KvIndexer, accept those that Dynamo itself writes, and
keep its index by Dynamo's rules. Otherwise a successful run of test_compose.py would prove nothing."""

import json
import pathlib

import pytest

import dynamo
import engine
from conftest import PUBLISH, worker
from programs import wait_for

TESTS = pathlib.Path(__file__).parents[1]

BLOCK = 16
CLEARED = b'{"worker_id":1,"event":{"event_id":1,"data":"cleared"}}'


def removed(block_hash, worker_id="1", event_id='"event_id":1,'):
    return f'{{"worker_id":{worker_id},"event":{{{event_id}"data":{{"removed":{{"block_hashes":[{block_hash}]}}}}}}}}'.encode()


REFUSED = {
    "nothing": b"",
    "not JSON": b"cleared",
    "an array of events": b"[" + CLEARED + b"]",
    "two events": CLEARED + CLEARED,
    "a negative hash": removed(-1),
    "a whole hash with a point": removed("7.0"),
    "a hash above u64": removed(1 << 64),
    "a hash that is NaN": removed("NaN"),
    "a worker id above i64": removed(7, worker_id=1 << 63),
    "no worker id": CLEARED.replace(b'"worker_id":1,', b""),
    "data of another kind": CLEARED.replace(b'"cleared"', b'"emptied"'),
    "a key twice": CLEARED.replace(b'"worker_id":1,', b'"worker_id":1,"worker_id":1,'),
    "a stored block without tokens_hash":
        CLEARED.replace(b'"cleared"', b'{"stored":{"parent_hash":null,"blocks":[{"block_hash":7}]}}'),
    "the form with whole prompts": b'{"worker_id":1,"data":{"Removed":{"block_hashes":[7]}}}',
    "protobuf": b"\x0a\x10" + bytes(16),
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_messages_that_end_a_dynamo_indexer_are_refused(payload):
    with pytest.raises(dynamo.Undecodable):
        dynamo.RouterEvent(payload)


def test_messages_of_any_dynamo_version_are_accepted():
    vectors = (TESTS / "data" / "vectors" / "dynamo.txt").read_text().splitlines()
    events = [dynamo.RouterEvent(line.split(maxsplit=1)[1].encode()) for line in vectors if line.startswith("JSON")]
    assert len(events) >= 9
    assert {type(event.data) for event in events} == {dynamo.Stored, dynamo.Removed, dynamo.Cleared}
    assert events[0].data.blocks == [(14643705804678351452, 14643705804678351452)]


# ---- The index -------------------------------------------------------------------------


def tokens(number):
    return [number] * BLOCK


def event(worker_id, data):
    return dynamo.RouterEvent(json.dumps({"worker_id": worker_id, "event": {"event_id": 1, "data": data}}).encode())


def stored(worker_id, parent, *blocks):
    """Blocks by number: the number is the name, and its tokens are derived from it."""
    return event(worker_id, {"stored": {"parent_hash": parent, "blocks": [
        {"block_hash": block, "tokens_hash": dynamo.tokens_hash(tokens(block))} for block in blocks]}})


def matches(index, *blocks):
    return index.find_matches([token for block in blocks for token in tokens(block)], BLOCK)


# ---- Against a bridge --------------------------------------------------------------------


@pytest.mark.first
def test_it_reads_a_bridge_in_json_and_refuses_one_in_protobuf(scene):
    for component, format in (("A", "json"), ("B", "protobuf")):
        one = scene.engine()
        subject = "kv_events" if format == "json" else "kv_events_pb"
        messages = scene.bus().watch(f"{PUBLISH.rsplit('.', 1)[0]}.{component}.{subject}")
        scene.bridge(worker(one, 7), name=component, component=component, formats=[format])
        one.publish(engine.batch(engine.stored([1], tokens(1), BLOCK)))
        if format == "json":
            index, applied = dynamo.Indexer(), []

            def look():
                while len(applied) < len(messages):
                    applied.append(dynamo.RouterEvent(messages[len(applied)].data))
                    index.apply(applied[-1])
                return matches(index, 1) == {7: 1}

            wait_for("the block is found", look)
        else:
            wait_for("an event", lambda: messages)
            with pytest.raises(dynamo.Undecodable):
                dynamo.RouterEvent(messages[0].data)
