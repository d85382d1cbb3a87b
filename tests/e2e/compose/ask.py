"""Queries the aggregator for a prompt that an engine holds, and compares the whole list
of workers with what all engines hold.  --own-ids, as the first argument: each rank has a
separate worker id, as in etc/compose/kvbridge.cfg.

    ask.py HOST:PORT STREAMS QUERY TRUTH...   makes the query from the answers of the fleets'
                                              truth sockets, and saves it in the file QUERY.
                                              All streams must become EXACT, and the answer
                                              must match what the engines hold.
    ask.py HOST:PORT STREAMS QUERY            repeats the saved query while NATS is away.  All
                                              streams must become STALE, and the last known
                                              list is still answered.
"""

import http.client
import json
import struct
import sys
import time
import urllib.request

import xxhash

DEADLINE_S = 40


class NotYet(Exception):
    """A check failed that may succeed later."""


def call(address, path, body=None):
    request = urllib.request.Request(
        f"http://{address}{path}", data=body and json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


# ---- What the engines hold ----------------------------------------------------------


HASH_SEED = 1337  # of block names: proto/README.md


def block_hash(parent, tokens, salt=None):
    seed = HASH_SEED + (xxhash.xxh3_64_intdigest(salt.encode(), seed=1) if salt else 0)
    own = xxhash.xxh3_64_intdigest(struct.pack(f"<{len(tokens)}I", *tokens), seed=seed & (1 << 64) - 1)
    if parent is None:
        return own
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", parent, own), seed=HASH_SEED)


class Rank:
    """One line of the answer to `truth`: the blocks of a rank, and which block each one follows."""

    def __init__(self, line, has_own_ids):
        worker, rank = line["worker_id"], line["dp_rank"]
        self.name = (str(10 * worker + rank if has_own_ids else worker), str(rank))
        self.is_all_told = line["unsent"] == 0
        self.block_size = line["block_size"]
        self.places, depths, blocks = {}, [], line["blocks"]
        names = []  # of all blocks, held or not
        self.hashes = set()  # of those that are held
        for place, block in enumerate(blocks):
            before = depths[block["parent"]] if block["parent"] >= 0 else 0
            parent = names[block["parent"]] if block["parent"] >= 0 else None
            names.append(block_hash(parent, block["tokens"], block.get("salt")))
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


def read_truth(paths, has_own_ids):
    ranks = []
    for path in paths:
        for line in open(path, encoding="utf-8"):
            line = json.loads(line)
            if "error" in line:
                sys.exit(f"ask: {path}: {line['error']}")
            if "blocks" in line:
                ranks.append(Rank(line, has_own_ids))
    return ranks


def best_prompt(ranks):
    """The longest prompt of which at least two ranks hold half; otherwise the longest one."""
    prompts = sorted((rank.prompt for rank in ranks if rank.is_all_told), key=len, reverse=True)
    for prompt in prompts:
        if sum(rank.held_of(prompt) * 2 >= len(prompt) for rank in ranks) > 1:
            return prompt
    return prompts[0] if prompts else []


# ---- Answers -------------------------------------------------------------------------


def states_of(address, count, wanted):
    streams = call(address, "/streams")["streams"]
    other = [f"{s['worker_id']}/{s['dp_rank']} {s['state']}({s['reason']})"
             for s in streams if (s["state"], s["reason"]) != wanted]
    if len(streams) != count or other:
        raise NotYet(f"{len(streams)} of {count} streams are listed; not {wanted[0]}: {', '.join(other)}")
    return streams


def listed_of(answer):
    return {(worker, rank): tokens for worker, ranks in answer["scores"].items()
            for rank, tokens in ranks.items()}


def check_exact(address, count, question, ranks):
    streams = states_of(address, count, ("EXACT", ""))
    doubtful = {(str(s["worker_id"]), str(s["dp_rank"])) for s in streams if s["doubtful"] > 0}
    listed = listed_of(call(address, "/query", question))
    for rank in ranks:
        held, told = rank.held_of(question["token_ids"]), listed.pop(rank.name, 0)
        if told > held or (told < held and rank.name not in doubtful):
            raise NotYet(f"worker {'/'.join(rank.name)} holds {held} tokens; {told} are listed")
    if listed:
        raise NotYet(f"unknown workers are listed: {listed}")
    return listed_of(call(address, "/query", question))


def check_stale(address, count, question, _):
    states_of(address, count, ("STALE", "nats_away"))
    answer = call(address, "/query", question)
    listed = listed_of(answer)
    for worker, rank in listed:
        if answer.get("states", {}).get(worker, {}).get(rank) != "STALE(nats_away)":
            raise NotYet(f"the answer does not say that worker {worker}/{rank} is STALE")
    return listed


def wait_for(check, *arguments):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return check(*arguments)
        except (NotYet, OSError, http.client.HTTPException, ValueError, KeyError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"ask: not within {DEADLINE_S} s: {error!r}")
        time.sleep(0.1)


def main(*arguments):
    has_own_ids = arguments[0] == "--own-ids"
    address, streams, path, *truths = arguments[1:] if has_own_ids else arguments
    ranks = read_truth(truths, has_own_ids)
    if truths:
        question = {"token_ids": best_prompt(ranks)}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(question, file)
    else:
        with open(path, encoding="utf-8") as file:
            question = json.load(file)
    listed = wait_for(check_exact if truths else check_stale, address, int(streams), question, ranks)
    best = sorted(listed.items(), key=lambda item: -item[1])
    if not best or best[0][1] == 0:
        sys.exit(f"ask: no worker is listed for a prompt of {len(question['token_ids'])} tokens")
    print(f"         {streams} streams {'EXACT' if truths else 'STALE(nats_away)'}; a prompt of "
          f"{len(question['token_ids'])} tokens: {len(best)} ranks hold a part; worker/rank and tokens held:",
          ", ".join(f"{'/'.join(name)} {tokens}" for name, tokens in best[:3]))


if __name__ == "__main__":
    main(*sys.argv[1:])
