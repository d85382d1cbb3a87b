"""The capture of a real vLLM 0.32 (tests/data/vllm-0.32): its messages, and the content of its
block pool at 14 points."""

import pathlib

import msgspec

import contract

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "vllm-0.32"
BLOCK_SIZE = 32


def frames(name="frames.hex"):
    """[(topic, seq, payload)] in the order sent."""
    out = []
    for line in (DATA / name).read_text().splitlines():
        topic, seq, payload = line.split()
        out.append((bytes.fromhex(topic), int(seq, 16), bytes.fromhex(payload)))
    return out


def labels():
    """[(label, last_seq, unsent, {engine_hash})]."""
    out = []
    for line in (DATA / "resident.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        head, _, rest = line.partition("|")
        label, last_seq, unsent = head.split()
        # One column for each group, as `group:hash:copies`; the capture has only group 0.
        held = {int(cell.split(":")[1]) for cell in rest.replace(" | ", " ").split() if ":" in cell}
        out.append((label, int(last_seq), int(unsent), held))
    return out


def held_after(rows):
    """The engine hashes that are held after these messages, for an engine that announces no block
    twice."""
    held = set()
    for _, _, payload in rows:
        for event in msgspec.msgpack.decode(payload)[1]:
            hashes = set(event.get("block_hashes", ()))
            if event["type"] == "BlockStored":
                assert not hashes & held
                held |= hashes
            elif event["type"] == "BlockRemoved":
                assert hashes <= held
                held -= hashes
            else:
                assert event["type"] == "AllBlocksCleared"
                held.clear()
    return held


def canonical_names(rows):
    """{engine hash: canonical name of the block}, from the tokens in the frames."""
    names = {}
    seeds = {}  # {engine hash: seed}, because a child inherits its parent's salt
    for _, _, payload in rows:
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] != "BlockStored":
                continue
            parent = event["parent_block_hash"]
            if parent is None:
                keys = (event.get("extra_keys") or [None])[0]
                seed = contract.block_seed(event["lora_name"], keys[0] if keys else None)
                name = None
            else:
                seed, name = seeds[parent], names[parent]
            tokens = event["token_ids"]
            for i, engine_hash in enumerate(event["block_hashes"]):
                own = contract.tokens_hash(tokens[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE], seed)
                name = contract.next_hash(name, own)
                assert names.get(engine_hash, name) == name
                names[engine_hash] = name
                seeds[engine_hash] = seed
    return names
