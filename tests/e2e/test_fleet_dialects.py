"""Engines of every dialect in one fleet: are they listed correctly, and does a malformed message of
one not affect the others?"""

import json

import pytest

import contract
import programs
from programs import wait_for
from test_fleet import say, start_bridge, start_fleet, verify

DIALECTS = (
    "vllm-0.9", "vllm-0.11", "vllm-0.22", "vllm-0.31", "sglang-2025", "sglang-mid", "sglang-map",
    "trtllm", "mooncake-a", "mooncake-b", "mooncake-c",
)
# They keep no replay buffer. Their lists are complete after a Cleared, and later losses cannot be
# excluded.
NEVER_REPLAYED = ("mooncake-c",)


def streams(aggregator):
    rows = aggregator.get("/streams")["streams"]
    return {(row["worker_id"], row["dp_rank"]): (row["state"], row["reason"]) for row in rows}


def start_all(scene, dialects, format="protobuf", **options):
    """Worker n speaks dialects[n - 1]; all of them go over one bridge."""
    more = [word for pair in options.items() for word in (f"--{pair[0].replace('_', '-')}", pair[1])]
    truth, workers = start_fleet(
        scene, "--workers", len(dialects), "--dialect", ",".join(dialects), "--rate", 20 * len(dialects),
        "--blocks", 256, *more,
    )
    aggregator = scene.aggregator(block_size=16)
    bridge = start_bridge(scene, workers, format)
    clear_those_without_replays(truth, bridge, dialects)
    return truth, aggregator, bridge


def clear_those_without_replays(truth, bridge, dialects):
    """What they published before somebody listened is known to nobody until they clear their caches."""
    blind = {(worker, rank) for worker, name in enumerate(dialects, 1) for rank in (0, 1) if name in NEVER_REPLAYED}

    def are_heard():
        rows = bridge.get("/state")["streams"]
        return blind <= {(row["worker_id"], row["dp_rank"]) for row in rows if row["batches"] > 0}

    wait_for("the bridge hears the engines without replays", are_heard)
    for worker, rank in blind:
        say(truth, f"reset {worker} {rank}")


def wait_until_proven(aggregator, dialects):
    """A replayed history is UNVERIFIED(no_base) until a live batch is found in it, and verify pauses the
    engines, which then send none."""
    wanted = {
        (worker, rank): ("UNVERIFIED", "no_replay") if name in NEVER_REPLAYED else ("EXACT", "")
        for worker, name in enumerate(dialects, 1) for rank in (0, 1)
    }
    wait_for("live batches have proven the lists", lambda: streams(aggregator) == wanted)


def expect_the_truth(scene, truth, aggregator, dialects):
    """Nothing is listed that is not held, and everything held is listed. Returns the verdict."""
    wait_until_proven(aggregator, dialects)
    status, verdict = verify(scene, truth)
    assert (verdict["phantom"], verdict["missing"], verdict["wrong"]) == (0, 0, 0), verdict
    assert verdict["streams"] == 2 * len(dialects)
    for (worker, _), standing in streams(aggregator).items():
        is_blind = dialects[worker - 1] in NEVER_REPLAYED
        assert standing == (("UNVERIFIED", "no_replay") if is_blind else ("EXACT", "")), (worker, verdict)
    assert status == 0 or any(name in NEVER_REPLAYED for name in dialects), verdict
    return verdict


def held(truth):
    return [row["held_blocks"] for row in say(truth, "stats") if "worker_id" in row]


@pytest.mark.first
def test_a_fleet_of_all_dialects_is_listed_correctly(scene):
    dialects = DIALECTS
    truth, aggregator, bridge = start_all(scene, dialects)
    wait_for("all caches have begun to evict", lambda: min(held(truth)) > 200)
    verdict = expect_the_truth(scene, truth, aggregator, dialects)
    assert verdict["held_blocks"] > 400 * len(dialects)
    assert bridge.metric("kvb_batches_refused_total") == 0
    assert bridge.metric("kvb_events_skipped_total") == 0
    assert bridge.metric("kvb_rank_mismatches_total") == 0


def names_of(rank):
    """{salt or None: names of the held blocks}, from a line of the command truth."""
    names, held = [], {}
    for block in rank["blocks"]:
        parent = names[block["parent"]] if block["parent"] >= 0 else None
        salt = block.get("salt")
        names.append(contract.next_hash(parent, contract.tokens_hash(block["tokens"], contract.block_seed(salt=salt))))
        if block["copies"] > 0:
            held.setdefault(salt, set()).add(names[-1])
    return held


def roots_of(rank):
    """{(salt or None, tokens)} of the first blocks of prompts that are held."""
    return {
        (block.get("salt"), tuple(block["tokens"]))
        for block in rank["blocks"] if block["parent"] < 0 and block["copies"] > 0
    }


def tokens_held(aggregator, stream, tokens, salt):
    body = {"token_ids": tokens, "model_name": "fleet"} | ({"cache_salt": salt} if salt else {})
    status, text = aggregator.http("POST", "/query", body)
    assert status == 200, text
    return json.loads(text)["scores"].get(str(stream[0]), {}).get(str(stream[1]), 0)


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_blocks_of_requests_with_salts_are_listed_and_found_by_their_salt(scene, format):
    dialects = ["sglang-map", "sglang-map", "vllm-0.31"]
    truth, aggregator, bridge = start_all(scene, dialects, format)
    wait_for("all caches have begun to evict", lambda: min(held(truth)) > 200)
    verdict = expect_the_truth(scene, truth, aggregator, dialects)
    assert verdict["asked"] > 0 and bridge.metric("kvb_events_skipped_total") == 0

    say(truth, "drain")
    ranks = {(rank["worker_id"], rank["dp_rank"]): rank for rank in say(truth, "truth")}
    wanted = {stream: names_of(rank) for stream, rank in ranks.items()}

    def listed():
        found = {stream: set() for stream in wanted}
        for worker, rank, _, name in aggregator.rows():
            found[int(worker), int(rank)].add(int(name))
        return found

    # Computed by the rules of the contract, not by `kvctl verify`.
    all_names = {stream: set().union(*names.values()) for stream, names in wanted.items()}
    assert [row["doubtful"] for row in aggregator.get("/streams")["streams"]] == [0] * 6
    wait_for("the lists equal the engines' blocks", lambda: listed() == all_names)
    salts = {stream[0]: set().union(*(wanted[stream[0], rank] for rank in (0, 1))) for stream in wanted}
    assert salts[3] == {None}, "an engine of another dialect has none"
    assert salts[1] | salts[2] == {None, "tenant-a", "tenant-b", "tenant-c"}

    for stream, rank in ranks.items():
        roots = roots_of(rank)
        for _, tokens in sorted(roots, key=str)[:5]:
            for salt in (None, "tenant-a", "tenant-b", "tenant-c", "tenant-d"):
                found = tokens_held(aggregator, stream, list(tokens), salt)
                assert found == (16 if (salt, tokens) in roots else 0), (stream, salt)
    say(truth, "resume")


def test_engines_of_all_dialects_are_followed_through_restarts_and_losses(scene):
    dialects = DIALECTS
    truth, aggregator, bridge = start_all(scene, dialects)
    wait_for("all caches fill", lambda: min(held(truth)) > 100)
    for worker, name in enumerate(dialects, 1):
        say(truth, f"restart {worker} 0")
        if name not in NEVER_REPLAYED:
            say(truth, f"drop {worker} 1 5")
    wait_for("the engines have filled their caches again", lambda: min(held(truth)) > 100)
    clear_those_without_replays(truth, bridge, dialects)  # not earlier: the batch might have been published before the bridge connected
    wait_for("and once more", lambda: min(held(truth)) > 50)
    expect_the_truth(scene, truth, aggregator, dialects)
    assert bridge.metric("kvb_batches_refused_total") == 0


def test_each_malformed_payload_affects_only_one_stream(scene):
    truth, aggregator, bridge = start_all(scene, ["vllm-0.11", "vllm-0.31"])
    kinds = programs.run("kvfleet", "--malformed", "list", check=True).stdout.split()
    assert len(kinds) == len(set(kinds)) == 24
    others = {(1, 1): ("EXACT", ""), (2, 0): ("EXACT", ""), (2, 1): ("EXACT", "")}
    wait_for("all are known", lambda: streams(aggregator) == {(1, 0): ("EXACT", ""), **others})

    for kind in kinds:
        before = refused(bridge)
        say(truth, f"malform 1 0 {kind}")
        # Refused when it arrives, and again when the engine sends it on request.
        wait_for(f"{kind} is refused", lambda: refused(bridge) > before)
        wait_for(f"{kind} is known to be missing",
                 lambda: streams(aggregator) == {(1, 0): ("PARTIAL", "poison"), **others})
    # Two malformed payloads in quick succession may count once.
    assert bridge.metric("kvb_streams_cleared_total") <= 24
    _, verdict = verify(scene, truth)
    assert (verdict["phantom"], verdict["wrong"], verdict["exact"]) == (0, 0, 3), verdict

    # From here on the stream is known completely.
    say(truth, "reset 1 0")
    wait_for("the stream is EXACT again", lambda: streams(aggregator)[1, 0] == ("EXACT", ""))
    status, verdict = verify(scene, truth)
    assert status == 0, verdict

def refused(bridge):
    return bridge.metric("kvb_batches_refused_total", reason="payload")
