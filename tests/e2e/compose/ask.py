"""Queries an aggregator for a prompt that an engine holds, and compares the whole list of workers with what all
engines hold."""

import json
import urllib.request

import contract


def call(address, path, body=None):
    request = urllib.request.Request(
        f"http://{address}{path}", data=body and json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


def metric(address, row):
    """The value of a row of /metrics, such as kvb_index_blocks."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        return next(float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith(row + " "))


class Rank:
    """One row of the answer to `truth`: the blocks of a rank, and which block each one follows.  has_own_ids: each rank has
    a worker id of its own, as in etc/compose/kvbridge.cfg."""

    def __init__(self, row, has_own_ids=False):
        worker, rank = row["worker_id"], row["dp_rank"]
        self.name = (str(10 * worker + rank if has_own_ids else worker), str(rank))
        self.is_all_told = row["unsent"] == 0
        self.block_size = row["block_size"]
        self.places, depths, blocks = {}, [], row["blocks"]
        names = []  # of all blocks, held or not
        self.hashes = set()  # of those that are held
        for place, block in enumerate(blocks):
            before = depths[block["parent"]] if block["parent"] >= 0 else 0
            parent = names[block["parent"]] if block["parent"] >= 0 else None
            seed = contract.block_seed(salt=block.get("salt"))
            names.append(contract.next_hash(parent, contract.tokens_hash(block["tokens"], seed)))
            if block["copies"] > 0:
                self.hashes.add(names[place])
            # Prompts here have no salt, and blocks of a request with a salt do not match them.
            is_held = block["copies"] > 0 and before is not None and "salt" not in block
            depths.append(before + 1 if is_held else None)
            if is_held:
                self.places[block["parent"], tuple(block["tokens"])] = place
        self.prompt = []
        place = max(range(len(depths)), key=lambda at: depths[at] or 0, default=-1)
        while place >= 0 and depths[place]:
            self.prompt = blocks[place]["tokens"] + self.prompt
            place = blocks[place]["parent"]

    def held_of(self, prompt):
        """Tokens of the beginning of the prompt that this rank holds."""
        place, at = -1, 0
        while at < len(prompt):
            place = self.places.get((place, tuple(prompt[at:at + self.block_size])))
            if place is None:
                break
            at += self.block_size
        return at


def best_prompt(ranks):
    """The longest prompt of which at least two ranks hold half; otherwise the longest one."""
    prompts = sorted((rank.prompt for rank in ranks if rank.is_all_told), key=len, reverse=True)
    for prompt in prompts:
        if sum(rank.held_of(prompt) * 2 >= len(prompt) for rank in ranks) > 1:
            return prompt
    return prompts[0]


def listed_of(answer):
    return {(worker, rank): tokens for worker, ranks in answer["scores"].items() for rank, tokens in ranks.items()}


def check_exact(address, ranks, prompt):
    """Raises ValueError while it is not so, as check_stale does."""
    streams = call(address, "/streams")["streams"]
    other = [row for row in streams if (row["state"], row["reason"]) != ("EXACT", "")]
    if len(streams) != len(ranks) or other:
        raise ValueError(f"{len(streams)} of {len(ranks)} streams are listed; not EXACT: {other[:3]}")
    doubtful = {(str(row["worker_id"]), str(row["dp_rank"])) for row in streams if row["doubtful"] > 0}
    listed = listed_of(call(address, "/query", {"token_ids": prompt}))
    best = max(listed.values(), default=0)
    for rank in ranks:
        held, told = rank.held_of(prompt), listed.pop(rank.name, 0)
        if told > held or (told < held and rank.name not in doubtful):
            raise ValueError(f"worker {'/'.join(rank.name)} holds {held} tokens; {told} are listed")
    if listed or not best:
        raise ValueError(f"unknown workers are listed, or nobody: {listed}")
    return best


def check_stale(address, count, prompt):
    """NATS is away: the last known list is still answered, and the answer says so."""
    streams = call(address, "/streams")["streams"]
    other = [row for row in streams if (row["state"], row["reason"]) != ("STALE", "nats_away")]
    if len(streams) != count or other:
        raise ValueError(f"{len(streams)} of {count} streams are listed; not STALE: {other[:3]}")
    answer = call(address, "/query", {"token_ids": prompt})
    for worker, rank in listed_of(answer):
        if answer["states"][worker][rank] != "STALE(nats_away)":
            raise ValueError(f"the answer does not say that worker {worker}/{rank} is STALE")
    return bool(answer["scores"])
