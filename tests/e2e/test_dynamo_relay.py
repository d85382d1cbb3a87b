"""Does kvbridge publish for Dynamo's routers of 2025 what Dynamo's own relay published?

67 inputs went through the relay of ai-dynamo-runtime 0.4.1 and were recorded.  With
hashes = "engine", where it published, our blocks and hashes are equal; event_id and
dp_rank are ours.  DIFFERENCES lists every input where they are not, and why."""

import json
import pathlib
import re

import pytest

import contract
import engine
from conftest import PUBLISH, shared_scene, worker
from programs import wait_for

VECTORS = pathlib.Path(__file__).resolve().parent.parent / "data/vectors/dynamo-relay-0.4.1.txt"
WORKER = 7587888888888888001


def load():
    """{number: (title, payload, [what the relay published, in short form])}."""
    inputs = {}
    for line in VECTORS.read_text().splitlines():
        head = re.match(r"## (\d+)\. (.*?)  \[seq", line)
        if head:
            number = int(head[1])
            inputs[number] = [head[2], None, []]
        elif line.startswith("ZMQ  "):
            inputs[number][1] = line[5:]
        elif line.startswith("NATS namespace"):
            text = line[line.index("{"):]
            inputs[number][2].append(text if text.endswith("bytes)") else short(json.loads(text)))
    return inputs


def short(message):
    """Blocks and hashes, without ids: [kind, ...]."""
    data = message["event"]["data"]
    if data == "cleared":
        return ["cleared"]
    if "removed" in data:
        return ["removed", *data["removed"]["block_hashes"]]
    rows = [(b["block_hash"], b["tokens_hash"]) for b in data["stored"]["blocks"]]
    return ["stored", data["stored"]["parent_hash"], *rows]


INPUTS = load()

NOTHING = "a transition is published, and there is none"


def one_block(name, first_token, block_size, lora_name=None):
    own = contract.tokens_hash(range(first_token, first_token + block_size), contract.block_seed(lora_name))
    return [["stored", None, (name, own)]]


# number: (what kvbridge publishes, why it differs from the relay).
DIFFERENCES = {
    13: ([], NOTHING),
    14: (one_block(406, 15000, 8), "the event's own block size counts"),
    15: (one_block(407, 15000, 32), "the event's own block size counts"),
    16: (one_block(408, 16000, 16, "lora_id:5"), "a LoRA's block never hashes as the base model's"),
    25: ([], "host blocks are not announced to readers that know no tiers"),
    33: ([], NOTHING),
    35: ([], NOTHING),
    36: ([], NOTHING),
    37: ([["stored", None, (501, 7269348974316682434)]], "the second store is no transition"),
    38: ([], "an engine of arrays announces no block again: the second store was a copy, which is left"),
    39: ([["removed", 501]], "the last copy is removed"),
    45: ([["removed", 604, 605]], "neighbouring removals of a batch travel as one event"),
}
CUT = 66  # the record of this input is cut: its beginning is compared, by a test of its own
# Where the relay published nothing or crashed, we may publish what the event says.
# 12: with hashes = engine a block without tokens is held by its name.
PUBLISHED_BY_US_ALONE = {6, 8, 12, 17, 19, 20, 21, 22, 31, 47, 50, 51, 52, 55, 56, 63, 64}


@pytest.fixture(scope="module")
def said(request, tmp_path_factory):
    """What our bridge published for each input: {number: [short form]}.

    All inputs run through one bridge, in order, under sequence numbers of our own
    (numbers 59 to 64 are about the frames around a payload: test_faults).  After
    each comes a batch whose block marks the end of what the input caused."""
    with shared_scene(tmp_path_factory) as scene:
        yield run_inputs(scene)


def run_inputs(scene):
    bus = scene.bus()
    messages = bus.watch(f"{PUBLISH}.kv_events")
    vllm = scene.engine()
    scene.bridge(worker(vllm, worker_id=WORKER), hashes="engine")
    out = {}
    for number, (_, payload, _) in INPUTS.items():
        payload = rebuilt_66() if number == CUT else bytes.fromhex(payload)
        mark = 1 << 40 | number
        vllm.publish(payload)
        vllm.publish(engine.batch(engine.stored([mark], [number] * 16, 16)))
        seen = []

        def is_marked():
            while messages:
                event = short(json.loads(messages.pop(0).data))
                if event[0] == "stored" and event[2:] and event[2][0] == mark:
                    return True
                seen.append(event)
            return False

        wait_for(f"the mark after input {number}", is_marked)
        out[number] = seen
    return out


def rebuilt_66():
    """The record is truncated after its first hashes, but contains their number."""
    tokens = [100_000 + block * 1000 + i for block in range(200) for i in range(16)]
    payload = engine.batch(
        ["BlockStored", list(range(7000, 7200)), None, tokens, 16, None],
        ts=1700000000.0,
    )
    assert len(payload) == 16634
    return payload


def published_by_relay():
    return [n for n, row in INPUTS.items() if row[2] and n != CUT]


@pytest.mark.first
@pytest.mark.parametrize("number", published_by_relay(), ids=lambda n: f"{n}-{INPUTS[n][0]}")
def test_where_the_relay_published_our_blocks_and_hashes_are_equal(said, number):
    expected, why = DIFFERENCES.get(number, (INPUTS[number][2], "equal"))
    ours = said[number]
    if number == 1:
        assert ours[0] == ["cleared"], "our stream begins with it"
        ours = ours[1:]
    assert ours == expected, why


def test_the_first_blocks_of_the_cut_record_are_equal(said):
    recorded = re.findall(r'"block_hash":(\d+),"tokens_hash":(\d+)\}', INPUTS[CUT][2][0])
    assert len(recorded) > 5
    ours = [row for event in said[CUT] if event[0] == "stored" for row in event[2:]]
    assert ours[: len(recorded)] == [(int(a), int(b)) for a, b in recorded]


@pytest.mark.parametrize(
    "number", [n for n in INPUTS if not INPUTS[n][2]], ids=lambda n: f"{n}-{INPUTS[n][0]}"
)
def test_where_the_relay_published_nothing_or_died_kvbridge_continues(said, number):
    """The mark arrived, because `said` has not failed; the difference is listed."""
    if number not in PUBLISHED_BY_US_ALONE:
        assert [e for e in said[number] if e[0] == "stored"] == []
