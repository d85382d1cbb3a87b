"""Does `kvctl decode` understand what engines' own encoders write?  The structs are declared as the
engines declare them, msgspec writes them, and the expected output is next to each."""

import json
import subprocess
import typing

import contract
import msgspec
import pytest
from programs import BIN

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
    done = subprocess.run([BIN / "kvctl", "decode", *options], input=data, capture_output=True, timeout=60)
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


class BatchMap(msgspec.Struct):
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


def test_vllm_0_9_counts_blocks_by_signed_numbers():
    Stored, Removed, Cleared = vllm_arrays(STORED_09, REMOVED_09)
    parts = [Stored([5, -6], None, [1, 2, 3, 4], 2, None), Removed([-6]), Cleared()]
    events, said = decode(encode(Batch090(TS, parts)))
    assert events == [
        stored([5, 2**64 - 6], [1, 2, 3, 4], 2),
        event("removed", block_hashes=[2**64 - 6]),
        event("cleared"),
    ]
    assert said == (
        "kvctl: 1 messages, 0 of them unreadable, 3 events: 1 stored, 1 removed, 1 cleared, 0 skipped"
    )


def test_vllm_0_11_names_blocks_by_digests_and_ranks_by_number():
    Stored, Removed, Cleared = vllm_arrays(STORED_11, REMOVED_11)
    digest = bytes(range(32))
    name = int.from_bytes(digest[-8:], "big")
    parts = [Stored([digest], 7, [1, 2], 2, 3, "GPU"), Removed([digest], "CPU"), Cleared()]
    events, _ = decode(encode(Batch011(TS, parts, 1)))
    assert events == [
        stored([name], [1, 2], 2, lora="lora_id:3", parent=7, rank=1),
        event("removed", block_hashes=[name], tier="host", rank=1),
        event("cleared", rank=1),
    ]


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


def test_a_window_of_vllm_that_leaves_blocks_out_is_known_by_its_hashes():
    Stored, _, _ = vllm_arrays(STORED_22, REMOVED_22)
    window = [None, "GPU", None, None, 1, "sliding_window", 4]
    parts = [Stored([2], 7, [1, 2, 3, 4], 2, *window), Stored([], 7, [1, 2], 2, *window)]
    events, _ = decode(encode(Batch011(TS, parts)))
    about = {"group": 1, "group_kind": "window", "window_tokens": 4, "is_sparse": True, "block_size": 2, "parent": 7}
    assert events == [event("stored", block_hashes=[2], **about), event("stored", block_hashes=[], **about)]


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


def test_vllm_0_33_writes_the_tokens_behind_each_block():
    parts = [BlockStored([1, 2], None, [1, 2, 3, 4], 2, None, "GPU", None, lookahead_token_ids=[[3], [5]])]
    events, _ = decode(encode(Batch011(TS, parts)))
    own = [contract.tokens_hash([1, 2, 3]), contract.tokens_hash([3, 4, 5])]
    assert events == [
        event("stored", block_hashes=[1, 2], tokens_hashes=own, token_count=4, block_size=2, lookahead=1)
    ]


def test_a_salt_of_vllm_may_look_like_a_picture():
    picture, salt = "ab" * 32, "cd" * 32
    parts = [
        BlockStored([1], None, [1], 1, None, "GPU", "ad", [["ad", (picture, 0), salt]]),
        BlockStored([2], 1, [1], 1, None, "GPU", "ad", [["ad", (picture, -1)]]),
    ]
    events, _ = decode(encode(Batch011(TS, parts)))
    assert [(e["lora"], e["salt"], e["media"]) for e in events] == [
        ("ad", salt, [[0xABABABABABABABAB]]),
        ("ad", None, [[0xABABABABABABABAB]]),
    ]


def test_arrays_maps_and_a_batch_as_a_map_may_be_mixed():
    Stored, _, _ = vllm_arrays(STORED_11, REMOVED_11)
    parts = [Stored([1], None, [1], 1, None, "GPU"), BlockRemoved([1], None)]
    events, _ = decode(encode(BatchMap(TS, parts, 3)))
    assert events == [stored([1], [1], 1, rank=3), event("removed", block_hashes=[1], rank=3)]


def test_eagle_pairs_are_windows_one_token_wider():
    Stored, _, _ = vllm_arrays(STORED_11, REMOVED_11)
    pairs = [(1, 2), (2, 3), (3, 4), (4, 5)]
    events, _ = decode(encode(Batch011(TS, [Stored([7, 8], None, pairs, 2, None, "GPU")])))
    own = [contract.tokens_hash([1, 2, 3]), contract.tokens_hash([3, 4, 5])]
    assert events == [
        event("stored", block_hashes=[7, 8], tokens_hashes=own, token_count=4, block_size=2, lookahead=1)
    ]


def test_tokens_beyond_the_blocks_belong_to_none():
    Stored, _, _ = vllm_arrays(STORED_11, REMOVED_11)
    events, _ = decode(encode(Batch011(TS, [Stored([7], None, [1, 2, 3], 2, None, "GPU")])))
    assert events == [
        event("stored", block_hashes=[7], tokens_hashes=[contract.tokens_hash([1, 2])], token_count=3, block_size=2)
    ]


# ---- SGLang -----------------------------------------------------------------------------


def test_sglang_2025_is_vllms_form_with_signed_hashes():
    Stored, Removed, _ = vllm_arrays(STORED_09, REMOVED_09)
    parts = [Stored([-(2**63)], -1, [1, 2], 2, None), Removed([-(2**63)])]
    events, _ = decode(encode(Batch011(TS, parts, 0)))
    assert events == [
        stored([2**63], [1, 2], 2, parent=2**64 - 1, rank=0),
        event("removed", block_hashes=[2**63], rank=0),
    ]


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


def test_sglang_maps_know_no_lora_name():
    BlockStoredMap = msgspec.defstruct(
        "BlockStored", STORED_11, bases=(TaggedMap,), tag=True, omit_defaults=True
    )
    events, _ = decode(encode(Batch011(TS, [BlockStoredMap([-5], None, [1], 1, 4, "GPU")])))
    assert events == [stored([2**64 - 5], [1], 1, lora="lora_id:4")]


# ---- TensorRT-LLM, llm-d ------------------------------------------------------------------


def test_an_empty_batch_is_no_error():
    events, said = decode(encode(Batch011(TS, [], 0)))
    assert events == [] and "1 messages, 0 of them unreadable, 0 events" in said


def test_fs_backend_writes_zero_for_no_parent():
    Stored, _, _ = vllm_arrays(STORED_11, REMOVED_11)
    events, _ = decode(encode(Batch090(TS, [Stored([5], 0, [], 0, None, "STORAGE")])))
    assert events == [event("stored", block_hashes=[5], tier="disk")]


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


def test_mooncakes_first_store_writes_only_where_objects_are():
    parts = [BlockUpdateEvent("97", [("memory", "tcp://10.0.0.1:1")]), BlockUpdateEvent("97", [])]
    events, _ = decode(encode(Batch090(TS, parts)))
    assert events == [
        event("stored", block_hashes=[97], tier="host"),
        event("removed", block_hashes=[97], tier="disk"),
        event("removed", block_hashes=[97], tier="external"),
        event("removed", block_hashes=[97], tier="host"),
        event("removed", block_hashes=[97], tier="disk"),
        event("removed", block_hashes=[97], tier="external"),
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


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


BROKEN = {
    "empty": b"",
    "not msgpack": b"\xc1",
    "cut short": encode(Batch011(TS, [BlockRemoved([1], None)]))[:-1],
    "bytes behind it": encode(Batch011(TS, [])) + b"\x00",
    "a length that lies": b"\x92\x01\xdd\xff\xff\xff\xff",
    "a text that lies": b"\x92\x01\x91\x91\xdb\xff\xff\xff\xffx",
    "too deep": encode([TS, [nested(9)]]),
    "no batch": encode({"ts": TS}),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_an_invalid_batch_is_refused(data):
    events, said = decode(data, fails=True)
    assert events == [] and "1 messages, 1 of them unreadable" in said


# ---- The program ----------------------------------------------------------------------------


def test_lines_of_digits_and_files_are_read(tmp_path):
    good = encode(Batch011(TS, [AllBlocksCleared()], 1)).hex()
    file = tmp_path / "lines"
    file.write_text(f"{good}\n\nnamed|{len(good) // 2}|{good.upper()}\nshort|3|{good}\nodd|abc\n")
    done = subprocess.run(
        [BIN / "kvctl", "decode", "--hex", file], capture_output=True, text=True, timeout=60
    )
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


def test_a_missing_file_is_reported(tmp_path):
    done = subprocess.run([BIN / "kvctl", "decode", tmp_path / "none"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "No such file" in done.stderr and not done.stdout
