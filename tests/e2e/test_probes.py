"""Does the aggregator answer as the engine's own lookup did? Recorded messages of vLLM and SGLang
are sent again, all captures in parallel; at each point with recorded lookups the aggregator gets
the same queries."""

import dataclasses

import pytest

import probes
from conftest import shared_scene, worker
from programs import wait_for

# Capture, profile, and how many answers may be too low within their bounds: as many as
# a reader that knows nothing but the events (README.md of the captures).
RUNS = [
    ("sglang-0.5.23-default", "json", 0),
    ("sglang-0.5.23-dynamo", "json", 0),
    ("sglang-0.5.23-eagle", "json", 0),
    ("vllm-0.32-copies", "json", 3),
    ("vllm-0.32-copies", "protobuf", 3),
    ("vllm-0.32-copies-logprobs", "json", 8),
    ("vllm-0.32-copies-logprobs", "protobuf", 8),
    ("vllm-0.33-hybrid", "json", 19),
    ("vllm-0.33-hybrid-dense", "json", 7),
    ("vllm-0.33-hybrid-full", "json", 9),
    ("vllm-0.33-hybrid/window-first", "json", 19),
    ("vllm-0.33-hybrid-dense/window-first", "json", 7),
    ("vllm-0.33-hybrid-full/window-first", "json", 9),
    ("vllm-0.33-lookahead", "json", 0),
    ("vllm-0.33-mamba", "json", 17),
    ("vllm-0.33-mamba-dense", "protobuf", 14),
    ("vllm-0.33-mamba/window-first", "json", 17),
]
PROFILES = ("json", "protobuf")


@dataclasses.dataclass
class Run:
    """One capture at one engine, which is one worker of the bridge with its profile."""

    capture: probes.Capture
    profile: str
    worker_id: int
    engine: object
    tally: probes.Tally

    @property
    def model(self):
        return f"{self.capture.name}-{self.profile}"

    @property
    def row(self):
        return worker(self.engine, self.worker_id, self.model, self.capture.block_size)

    def publish_up_to(self, last_seq):
        while self.engine.next_seq <= last_seq:
            self.engine.publish(self.capture.frames[self.engine.next_seq])


class Replayed:
    """All captures in one scene: the daemons start once, and each wait is for all."""

    def __init__(self, scene):
        self.runs = [self.run_of(scene, i, *row[:2]) for i, row in enumerate(RUNS)]
        self.aggregator = scene.aggregator()
        self.bridges = {
            profile: scene.bridge(
                *(run.row for run in self.runs if run.profile == profile),
                name=f"kvbridge-{profile}", component=f"Worker-{profile}", profile=profile, heartbeat_ms=100,
                wait=False,
            )
            for profile in PROFILES
        }
        wait_for("the empty streams wait for a first batch", lambda: self.states_are({"UNVERIFIED"}), 15)

    @staticmethod
    def run_of(scene, i, name, profile):
        capture = probes.load(name)
        engine = scene.engine(topic=capture.topic)
        return Run(capture, profile, i + 1, engine, probes.Tally(capture))

    def states(self):
        return {s["worker_id"]: s["state"] for s in self.aggregator.get("/streams")["streams"]}

    def states_are(self, wanted):
        states = self.states()
        return len(states) == len(self.runs) and set(states.values()) == wanted

    def has_settled(self):
        """Each engine's newest message is applied, all that was published of it too, and a
        heartbeat has said since the last clear how far the list may be trusted.  The numbers are
        read before the counters, which are then not older."""
        for profile, bridge in self.bridges.items():
            sent = sum(run.engine.next_seq - 1 for run in self.runs if run.profile == profile)
            if bridge.metric("kvcache_zmq_last_sequence_id") != sent:
                return False
        published = sum(bridge.metric("kvb_events_published_total") for bridge in self.bridges.values())
        return (
            self.aggregator.metric("kvb_events_applied_total") == published
            and not {"SYNCING", "UNVERIFIED"} & {
                state for run, state in ((run, self.states()[run.worker_id]) for run in self.runs)
                if run.engine.next_seq > 0
            }
        )

    def ask_at(self, number):
        """The point with this number, in each capture that has so many."""
        due = [run for run in self.runs if number < len(run.capture.points)]
        for run in due:
            run.publish_up_to(run.capture.points[number][0])
        wait_for(f"point {number} is applied", self.has_settled)
        states = self.states()
        asker = probes.Asker(self.aggregator)
        for run in due:
            for probe in run.capture.points[number][1]:
                run.tally.add(probe, asker.ask(probe, run.model), run.worker_id, states[run.worker_id])
        asker.close()
        return due


@pytest.fixture(scope="module")
def tallies(tmp_path_factory):
    """(capture, profile) -> Tally, of every probe."""
    with shared_scene(tmp_path_factory) as scene:
        replayed = Replayed(scene)
        number = 0
        while replayed.ask_at(number):
            number += 1
        yield {row[:2]: run.tally for row, run in zip(RUNS, replayed.runs)}


def check(count, allowed):
    assert count.kinds["over"] == 0, count.examples
    assert count.kinds["short"] == 0, count.examples
    assert count.kinds["short_in_bounds"] <= allowed, count.examples


@pytest.mark.parametrize("name,profile,allowed", RUNS)
def test_scores_equal_the_blocks_of_the_engine(tallies, record_property, name, profile, allowed):
    tally = tallies[name, profile]
    record_property("probes", tally.row(f"{name} {profile}"))
    assert tally.probes == sum(len(asked) for _, asked in tally.capture.points)
    assert set(tally.states) == {"EXACT"}, "only an EXACT list is held to its word"
    check(tally.held, allowed)


@pytest.mark.parametrize("name,profile,allowed", RUNS)
def test_hits_are_those_of_the_engine(tallies, name, profile, allowed):
    tally = tallies[name, profile]
    assert tally.has_hits, "an answer lacks hits"
    check(tally.hits, allowed)
