"""The NATS contract, implemented from proto/README.md alone as a foreign reader would: how blocks
are named, and how a list of held blocks is rebuilt from P.kv_events."""

import json
import struct

import xxhash

SEED = 1337
U64 = (1 << 64) - 1


def block_seed(lora_name=None, salt=None):
    seed = SEED
    if lora_name:
        seed += xxhash.xxh3_64_intdigest(lora_name.encode(), seed=0)
    if salt:
        seed += xxhash.xxh3_64_intdigest(salt.encode(), seed=1)
    return seed & U64


def tokens_hash(tokens, seed=SEED):
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(tokens)}I", *tokens), seed=seed)


def next_hash(parent, block_tokens_hash):
    """The canonical name of a block; parent None: it begins a prompt."""
    if parent is None:
        return block_tokens_hash
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", parent, block_tokens_hash), seed=SEED)


def prompt_hashes(tokens, block_size, seed=SEED):
    """[(block_hash, tokens_hash)] of the complete blocks of a prompt."""
    blocks, parent = [], None
    for at in range(0, len(tokens) - block_size + 1, block_size):
        own = tokens_hash(tokens[at : at + block_size], seed)
        parent = next_hash(parent, own)
        blocks.append((parent, own))
    return blocks


class HeldBlocks:
    """The set of held blocks of each stream, rebuilt from JSON RouterEvents."""

    def __init__(self):
        self.blocks = {}  # (worker, rank) -> {block_hash: tokens_hash}
        self.parents = {}  # (worker, rank) -> {block_hash: parent or None}
        self.last_id = {}  # (worker, rank) -> event id

    def apply(self, message):
        event = json.loads(message)
        stream = (event["worker_id"], event.get("dp_rank", event["event"].get("dp_rank", 0)))
        event_id = event["event"]["event_id"]
        held = self.blocks.setdefault(stream, {})
        parents = self.parents.setdefault(stream, {})
        if stream in self.last_id:
            # Ids are never reused, never go back, and increase by one. A jump means a lost message,
            # unless the event clears everything.
            is_next = event_id == self.last_id[stream] + 1
            is_clear = event["event"]["data"] == "cleared"
            assert is_next or (is_clear and event_id > self.last_id[stream]), event
        self.last_id[stream] = event_id

        data = event["event"]["data"]
        if data == "cleared":
            held.clear()
            parents.clear()
        elif "stored" in data:
            parent = data["stored"]["parent_hash"]
            for block in data["stored"]["blocks"]:
                assert block["block_hash"] not in held, "only transitions are published"
                held[block["block_hash"]] = block["tokens_hash"]
                parents[block["block_hash"]] = parent
                parent = block["block_hash"]
        else:
            for block_hash in data["removed"]["block_hashes"]:
                del held[block_hash]  # a KeyError shows an event that is no transition
                del parents[block_hash]

    def of(self, worker, rank=0):
        return self.blocks.get((worker, rank), {})
