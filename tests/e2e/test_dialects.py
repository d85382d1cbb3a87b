"""Does `kvctl decode` understand what engines' own encoders write?  The structs are declared as the
engines declare them, msgspec writes them, and the expected output is next to each."""

import json
import typing

import contract
import msgspec
import pytest
from programs import run

TS = 1700000000.5
Hash = typing.Union[bytes, int]

pytestmark = pytest.mark.first


class Array(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    pass


class TaggedArray(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class TaggedMap(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


def decode(data, *options, fails=False):
    """-> (events, the summary)"""
    done = run("kvctl", "decode", *options, input=data, text=False)
    assert done.returncode == (1 if fails else 0), done
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return events, done.stderr.decode().splitlines()[-1]


def encode(batch):
    return msgspec.msgpack.encode(batch)


def event(kind, **given):
    """An event as `kvctl decode` shows it: fields that the engine did not send are null, empty or
    0."""
    shown = {
        "kind": kind, "reason": None, "rank": None, "ts": TS, "tier": "device", "group": None,
        "group_kind": None, "window_tokens": None, "is_sparse": False, "model": None, "lora": None, "salt": None,
        "parent": None, "block_hashes": [], "tokens_hashes": [], "media": [], "token_count": 0, "block_size": 0,
        "lookahead": 0,
    }
    if kind == "stored" and given.get("group") is not None:
        shown["group_kind"] = "full"
    if kind in ("cleared", "skipped"):
        shown["tier"] = None
    assert given.keys() <= shown.keys(), given
    return {**shown, **given}


def stored(hashes, tokens, block_size, lora=None, salt=None, **given):
    seed = contract.block_seed(lora, salt)
    own = [contract.tokens_hash(tokens[i * block_size : (i + 1) * block_size], seed) for i in range(len(hashes))]
    return event(
        "stored", block_hashes=hashes, tokens_hashes=own, token_count=len(tokens), block_size=block_size,
        lora=lora, salt=salt, **given,
    )


# ---- vLLM -------------------------------------------------------------------------------


class Batch090(Array):
    ts: float
    events: list


class Batch011(Array):
    ts: float
    events: list
    data_parallel_rank: typing.Optional[int] = None


def vllm_arrays(stored_fields, removed_fields):
    """The three events of a version, with these fields in BlockStored and BlockRemoved."""
    make = msgspec.defstruct
    options = {"bases": (TaggedArray,), "array_like": True, "tag": True}
    return (
        make("BlockStored", stored_fields, **options),
        make("BlockRemoved", removed_fields, **options),
        make("AllBlocksCleared", [], **options),
    )


STORED_09 = [("block_hashes", list[Hash]), ("parent_block_hash", typing.Optional[Hash]), ("token_ids", list),
             ("block_size", int), ("lora_id", typing.Optional[int])]
STORED_11 = [*STORED_09, ("medium", typing.Optional[str])]
STORED_22 = [*STORED_11, ("lora_name", typing.Optional[str]), ("extra_keys", typing.Any, None),
             ("group_idx", typing.Optional[int], None), ("kv_cache_spec_kind", typing.Optional[str], None),
             ("kv_cache_spec_sliding_window", typing.Optional[int], None)]
REMOVED_09 = [("block_hashes", list[Hash])]
REMOVED_11 = [*REMOVED_09, ("medium", typing.Optional[str])]
REMOVED_22 = [*REMOVED_11, ("group_idx", typing.Optional[int], None)]


def test_vllm_0_22_adds_names_salts_and_groups():
    Stored, Removed, _ = vllm_arrays(STORED_22, REMOVED_22)
    keys = [["ad", "tenant"], ["ad"]]
    parts = [
        Stored([1, 2], None, [1, 2, 3, 4], 2, 1, "GPU", "ad", keys, 0, "full_attention", None),
        Stored([1], None, [1, 2], 2, None, "GPU", None, None, 1, "sliding_window", 1024),
        Stored([1], None, [1, 2], 2, None, "GPU", None, None, 2, "mamba", None),
        Stored([3], None, [1, 2], 2, None, "GPU", None, None, 0, "mla_attention", None),
        Removed([2], "GPU", 0),
    ]
    events, said = decode(encode(Batch011(TS, parts, 0)))
    assert events == [
        stored([1, 2], [1, 2, 3, 4], 2, lora="ad", salt="tenant", group=0, rank=0),
        stored([1], [1, 2], 2, group=1, group_kind="window", window_tokens=1024, rank=0),
        stored([1], [1, 2], 2, group=2, group_kind="window", window_tokens=2, rank=0),
        stored([3], [1, 2], 2, group=0, rank=0),
        event("removed", block_hashes=[2], group=0, rank=0),
    ]
    assert said.endswith(" 0 skipped")


class BlockStored(TaggedMap):
    block_hashes: list[Hash]
    parent_block_hash: typing.Optional[Hash]
    token_ids: list
    block_size: int
    lora_id: typing.Optional[int]
    medium: typing.Optional[str]
    lora_name: typing.Optional[str]
    extra_keys: typing.Any = None
    group_idx: typing.Optional[int] = None
    kv_cache_spec_kind: typing.Optional[str] = None
    kv_cache_spec_sliding_window: typing.Optional[int] = None
    locality: typing.Optional[str] = None
    ownership: typing.Optional[str] = None
    session_id: typing.Optional[str] = None
    lookahead_token_ids: typing.Optional[list[list[int]]] = None


class BlockRemoved(TaggedMap):
    block_hashes: list[Hash]
    medium: typing.Optional[str]
    group_idx: typing.Optional[int] = None


class AllBlocksCleared(TaggedMap):
    pass


def test_vllm_0_31_writes_maps_with_the_medium():
    parts = [
        BlockStored([1], None, [1, 2], 2, None, "GPU", None, locality="LOCAL", session_id="s"),
        BlockStored([2], None, [1, 2], 2, None, "GPU", None, locality="REMOTE"),
        BlockStored([1], None, [], 0, None, "CPU", None, ownership="shared"),
        BlockRemoved([1], "GPU"),
        AllBlocksCleared(),
    ]
    events, _ = decode(encode(Batch011(TS, parts, 2)))
    assert events == [
        stored([1], [1, 2], 2, rank=2),
        event("skipped", reason="remote", rank=2),
        event("stored", block_hashes=[1], tier="host", rank=2),
        event("removed", block_hashes=[1], rank=2),
        event("cleared", rank=2),
    ]


def test_eagle_pairs_are_windows_one_token_wider():
    Stored, _, _ = vllm_arrays(STORED_11, REMOVED_11)
    pairs = [(1, 2), (2, 3), (3, 4), (4, 5)]
    events, _ = decode(encode(Batch011(TS, [Stored([7, 8], None, pairs, 2, None, "GPU")])))
    own = [contract.tokens_hash([1, 2, 3]), contract.tokens_hash([3, 4, 5])]
    assert events == [
        event("stored", block_hashes=[7, 8], tokens_hashes=own, token_count=4, block_size=2, lookahead=1)
    ]


# ---- SGLang -----------------------------------------------------------------------------


class SaltTail(msgspec.Struct):
    cache_salt: str


def test_sglang_2026_puts_a_salt_behind_the_medium():
    Stored, Removed, _ = vllm_arrays([*STORED_11, ("tail", SaltTail)], REMOVED_11)
    parts = [
        Stored([1], None, [1, 2], 2, None, "CPU_PINNED", SaltTail("tenant")),
        Removed([1], "CPU_PINNED"),
    ]
    events, _ = decode(encode(Batch011(TS, parts)))
    assert events == [
        stored([1], [1, 2], 2, salt="tenant", tier="host"),
        event("removed", block_hashes=[1], tier="host"),
    ]


class SglangStored(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: typing.Optional[int]
    token_ids: list
    block_size: int
    lora_id: typing.Optional[int]
    medium: typing.Optional[str] = None
    cache_salt: typing.Optional[str] = None
    session_id: typing.Optional[str] = None
    lora_name: typing.Optional[str] = None


def test_sglang_0_5_23_names_salt_and_adapter_on_every_event():
    parts = [
        SglangStored([-1], None, [1], 1, None, "GPU", "tenant", "session", "ad"),
        SglangStored([-2], -1, [2], 1, None, "GPU", "tenant", None, "ad"),
        SglangStored([-3], None, [1], 1, None, "GPU", session_id="session"),
    ]
    events, _ = decode(encode(Batch011(TS, parts)))
    assert events == [
        stored([2**64 - 1], [1], 1, lora="ad", salt="tenant"),
        stored([2**64 - 2], [2], 1, lora="ad", salt="tenant", parent=2**64 - 1),
        stored([2**64 - 3], [1], 1),
    ]


# ---- Mooncake -----------------------------------------------------------------------------


class BlockStoreEvent(TaggedArray):
    mooncake_key: str
    replica_list: list[tuple[str, str]]
    model_name: str
    block_size: int
    block_hash: str
    parent_block_hash: str
    token_ids: list[int]


class BlockUpdateEvent(TaggedArray):
    mooncake_key: str
    replica_list: list[tuple[str, str]]


class RemoveAllEvent(TaggedArray):
    pass


def test_mooncakes_guide_writes_objects_with_key_and_replicas():
    memory, disk = ("memory", "tcp://10.0.0.1:1"), ("disk", "/data/1")
    parts = [
        BlockStoreEvent("99", [memory, disk], "m", 4096, "0xff", "254", [1, 2]),
        BlockStoreEvent("98", [memory], "", 4096, "", "", []),
        BlockUpdateEvent("97", [disk]),
        RemoveAllEvent(),
    ]
    events, _ = decode(encode(Batch090(TS, parts)))
    assert events == [
        stored([0xFF], [1, 2], 2, parent=254, tier="host", model="m"),
        stored([0xFF], [1, 2], 2, parent=254, tier="disk", model="m"),
        event("stored", block_hashes=[98], tier="host"),
        event("stored", block_hashes=[97], tier="disk"),
        event("removed", block_hashes=[97], tier="host"),
        event("removed", block_hashes=[97], tier="external"),
        event("cleared"),
    ]


def test_mooncakes_store_writes_maps_with_milliseconds():
    nothing = {"model_name": None, "block_size": None, "token_ids": None, "parent_hash": None, "group_id": None}
    parts = [
        {"event_id": 1, "event_type": "stored", "type": "BlockStored", "seq_hashes": [2**64 - 2],
         "block_hashes": [-2], "object_key": "0xfffffffffffffffe", "tenant_id": "default",
         "backend_id": "node-1", "medium": "cpu", **nothing},
        {"event_id": 2, "event_type": "removed", "seq_hashes": [42], "object_key": "42", "medium": "disk", **nothing},
        {"event_id": 3, "event_type": "stored", "seq_hashes": [], "object_key": "x", "medium": "cpu", **nothing},
        {"event_id": 4, "event_type": "cleared", "medium": None, **nothing},
    ]
    events, _ = decode(encode([1700000000500, parts, 0]))
    assert events == [
        event("stored", block_hashes=[2**64 - 2], tier="host", rank=0),
        event("removed", block_hashes=[42], tier="disk", rank=0),
        event("skipped", reason="unknown_key", rank=0),
        event("cleared", rank=0),
    ]


# ---- Unknown and broken events -------------------------------------------------------------


def test_one_bad_event_affects_no_other():
    Stored, Removed, _ = vllm_arrays(STORED_11, REMOVED_11)
    New = msgspec.defstruct("BlockTouched", [("block_hashes", list)], bases=(TaggedArray,), array_like=True, tag=True)
    parts = [
        Stored([1], None, [1], 1, None, "GPU"),
        Stored([2], None, [-1], 1, None, "GPU"),
        New([1]),
        Removed(["x"], "GPU"),
        Removed([1], "GPU"),
    ]
    events, said = decode(encode(Batch011(TS, parts)))
    assert [(e["kind"], e["reason"]) for e in events] == [
        ("stored", None), ("skipped", "bad_stored"), ("skipped", "unknown_event"), ("skipped", "bad_removed"),
        ("removed", None),
    ]
    assert said.endswith("3 skipped (bad_stored 1, bad_removed 1, unknown_event 1)")


# ---- The program ----------------------------------------------------------------------------


def test_lines_of_digits_and_files_are_read(tmp_path):
    good = encode(Batch011(TS, [AllBlocksCleared()], 1)).hex()
    file = tmp_path / "lines"
    file.write_text(f"{good}\n\nnamed|{len(good) // 2}|{good.upper()}\nshort|3|{good}\nodd|abc\n")
    done = run("kvctl", "decode", "--hex", file)
    assert done.returncode == 1
    assert [json.loads(line) for line in done.stdout.splitlines()] == 2 * [event("cleared", rank=1)]
    assert [line.split(" cannot")[0] for line in done.stderr.splitlines()[:2]] == [
        "kvctl: message 3 (short)", "kvctl: message 4 (odd)",
    ]


def test_every_event_of_a_real_engines_recording_is_decoded():
    lines = open("tests/data/vllm-0.32/frames.hex").read().splitlines()
    digits = "\n".join(line.split()[-1] for line in lines)
    events, said = decode(digits.encode(), "--hex", "-")
    assert said.startswith(f"kvctl: {len(lines)} messages, 0 of them unreadable")
    assert events and not [shown for shown in events if shown["kind"] == "skipped"]
    with_tokens = [shown for shown in events if shown["token_count"]]
    assert with_tokens and all(len(s["block_hashes"]) == len(s["tokens_hashes"]) for s in with_tokens)
