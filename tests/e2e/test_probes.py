"""Does the aggregator answer as the engine's own lookup did? Recorded messages of vLLM and SGLang
are sent again, all captures in parallel; at each point with recorded lookups the aggregator gets
the same queries."""

import dataclasses

import pytest

import probes
from conftest import shared_scene, worker
from programs import wait_for

@dataclasses.dataclass(frozen=True)
class Row:
    """A capture, and what is expected of its answers. An answer that is too high while the stream
    says EXACT is never allowed, and one that is too low only where the events do not tell more."""

    name: str
    format: str = "json"
    in_bounds: int = 0  # answers too low within their bounds: as a reader that knows nothing but the events
    more: str = ""  # further keys of the worker
    replay: str = "new"  # replies with a topic frame: vLLM from 0.26 on; "old": without
    states: tuple = ("EXACT",)  # of the stream, at the probes; a reason in parentheses
    # Known mistakes, at most so many answers of each kind.
    over: int = 0
    short: int = 0
    host_over: int = 0
    host_short: int = 0

    def __str__(self):
        return f"{self.name} {self.format}"


NO_SALTS = "salts = false;"
HYBRID = "sglang_hybrid = true;"
SALTS = ("UNVERIFIED(salts)", "UNVERIFIED(ambiguous)")  # the second once a contradiction shows them

RUNS = [
    Row("sglang-0.5.23-default"),
    Row("sglang-0.5.23-dynamo"),
    Row("sglang-0.5.23-eagle"),
    Row("vllm-0.32-copies", in_bounds=3),
    Row("vllm-0.32-copies", "protobuf", in_bounds=3),
    Row("vllm-0.32-copies-logprobs", in_bounds=8),
    Row("vllm-0.32-copies-logprobs", "protobuf", in_bounds=8),
    Row("vllm-0.33-hybrid", in_bounds=19),
    Row("vllm-0.33-hybrid-dense", in_bounds=7),
    Row("vllm-0.33-hybrid-full", in_bounds=9),
    Row("vllm-0.33-hybrid/window-first", in_bounds=19),
    Row("vllm-0.33-hybrid-dense/window-first", in_bounds=7),
    Row("vllm-0.33-hybrid-full/window-first", in_bounds=9),
    Row("vllm-0.33-lookahead"),
    Row("vllm-0.33-mamba", in_bounds=17),
    Row("vllm-0.33-mamba-dense", "protobuf", in_bounds=14),
    Row("vllm-0.33-mamba/window-first", in_bounds=17),
    # SGLang
    Row("sglang-0.5.2-page16", replay="old", over=3, short=39, more=NO_SALTS, states=("UNVERIFIED(ambiguous)",)),
    Row("sglang-0.5.5-page16", replay="old", over=1, short=30, more=NO_SALTS, states=("UNVERIFIED(ambiguous)",)),
    Row("sglang-0.5.6-page16", replay="old", short=51, states=("UNVERIFIED(salts)",)),
    Row("sglang-0.5.12-page64", replay="old", more=NO_SALTS),
    Row("sglang-0.5.12-salt", replay="old", over=2, short=30, states=("UNVERIFIED(salts)",)),
    Row("sglang-0.5.12-hicache", "protobuf", replay="old", host_short=3, more=NO_SALTS,
        states=("EXACT", "PARTIAL(unannounced)")),
    Row("sglang-0.5.12-mamba", replay="old", over=17, more=HYBRID, states=("UNVERIFIED(groups)",)),
    Row("sglang-0.5.12-swa", replay="old", over=1, more=HYBRID, states=("UNVERIFIED(groups)",)),
    Row("sglang-0.5.23-swa", over=42, more=HYBRID, states=("UNVERIFIED(groups)",)),
    Row("sglang-0.5.23-swa08", over=8, more=HYBRID, states=("UNVERIFIED(groups)",)),
    # vLLM: one group of full attention
    Row("vllm-0.9.2-salt", replay="old", over=3, short=32, states=SALTS),
    Row("vllm-0.10.2-bytes-salt", replay="old", over=6, short=16, states=SALTS),
    Row("vllm-0.11.2-copies", replay="old", more=NO_SALTS),
    Row("vllm-0.13.0-salt-lora", replay="old", over=1, short=22, states=SALTS),
    Row("vllm-0.16.0-lora", replay="old", over=3, short=30, states=SALTS),
    Row("vllm-0.19.1-mm", replay="old"),
    Row("vllm-0.22.1-copies", replay="old"),
    Row("vllm-0.24.0-salt-lora", replay="old"),
    Row("vllm-0.33-mm"),
    Row("vllm-0.33-dcp2"),
    # speculation
    Row("vllm-0.28.0-eagle", more="speculative_drop = 1;"),
    Row("vllm-0.33-spec-drop", more="speculative_drop = 1;"),
    Row("vllm-0.33-spec-lookahead", more="speculative_drop = 1;"),  # ignored: its hashes have lookahead
    Row("vllm-0.33-eagle-hybrid", more="speculative_drop = 1;"),
    Row("vllm-0.33-mamba-eagle", more="speculative_drop = 1;"),
    # groups
    Row("vllm-0.20.2-hybrid", replay="old", short=6, states=("UNVERIFIED(groups)",)),
    Row("vllm-0.30.0-twowindows"),
    Row("vllm-0.33-twowindows", in_bounds=3),
    Row("vllm-0.33-gemma3"),
    Row("vllm-0.33-swaonly"),
    Row("vllm-0.33-chunked", more="attention_chunk = 64;"),
    Row("vllm-0.33-sizes", in_bounds=1),
    Row("vllm-0.33-mamba-scheduler", in_bounds=2),
    Row("vllm-0.33-mamba-fine", short=31, states=("UNVERIFIED(groups)",)),
    # tiers: JSON has the device alone
    Row("vllm-0.33-offload-chunk4", "protobuf", in_bounds=1),
    Row("vllm-0.33-offload-legacy", "protobuf"),
    Row("vllm-0.33-offload-self", "protobuf", in_bounds=3),
]
FORMATS = ("json", "protobuf")
PASSING = {"connecting", "replaying", "replay_failed", "no_base"}  # reasons that go away by themselves


@dataclasses.dataclass
class Run:
    """One capture at one engine, which is one worker of the bridge with its format."""

    expected: Row
    capture: probes.Capture
    worker_id: int
    engine: object
    tally: probes.Tally

    @property
    def format(self):
        return self.expected.format

    @property
    def model(self):
        return f"{self.capture.name}-{self.format}"

    @property
    def row(self):
        return worker(self.engine, self.worker_id, self.model, self.capture.block_size, more=self.expected.more)

    def publish_up_to(self, last_seq):
        while self.engine.next_seq <= last_seq:
            self.engine.publish(self.capture.frames[self.engine.next_seq])


class Replayed:
    """All captures in one scene: the daemons start once, and each wait is for all."""

    def __init__(self, scene):
        self.runs = [self.run_of(scene, i, row) for i, row in enumerate(RUNS)]
        self.aggregator = scene.aggregator()
        self.bridges = {
            format: scene.bridge(
                *(run.row for run in self.runs if run.format == format),
                name=f"kvbridge-{format}", component=f"Worker-{format}", formats=[format], heartbeat_ms=100,
                wait=False,
            )
            for format in FORMATS
        }
        wait_for("the empty streams wait for a first batch", self.are_unverified)

    @staticmethod
    def run_of(scene, i, row):
        capture = probes.load(row.name)
        engine = scene.engine(topic=capture.topic, form=row.replay)
        return Run(row, capture, i + 1, engine, probes.Tally(capture))

    def streams(self):
        return {s["worker_id"]: s for s in self.aggregator.get("/streams")["streams"]}

    def states(self):
        return {
            worker_id: f"{s['state']}({s['reason']})" if s.get("reason") else s["state"]
            for worker_id, s in self.streams().items()
        }

    def are_unverified(self):
        streams = self.streams().values()
        return len(streams) == len(self.runs) and {s["state"] for s in streams} == {"UNVERIFIED"}

    def has_settled(self):
        """Each engine's newest message is applied, all that was published of it too, and a
        heartbeat has said since the last clear how far the list may be trusted.  The numbers are
        read before the counters, which are then not older."""
        for format, bridge in self.bridges.items():
            sent = sum(run.engine.next_seq - 1 for run in self.runs if run.format == format)
            if bridge.metric("kvcache_zmq_last_sequence_id") != sent:
                return False
        published = sum(bridge.metric("kvb_events_published_total") for bridge in self.bridges.values())
        return self.aggregator.metric("kvb_events_applied_total") == published and not self.some_are_passing()

    def some_are_passing(self):
        streams = self.streams()
        sent = [streams[run.worker_id] for run in self.runs if run.engine.next_seq > 0]
        return any(stream["state"] == "SYNCING" or stream.get("reason") in PASSING for stream in sent)

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
    """Row -> Tally, of every probe."""
    with shared_scene(tmp_path_factory) as scene:
        replayed = Replayed(scene)
        number = 0
        while replayed.ask_at(number):
            number += 1
        yield {run.expected: run.tally for run in replayed.runs}


def check(count, in_bounds, over=0, short=0):
    assert count.kinds["over"] <= over, count.examples
    assert count.kinds["short"] <= short, count.examples
    assert count.kinds["short_in_bounds"] <= in_bounds, count.examples


@pytest.mark.first
@pytest.mark.parametrize("row", RUNS, ids=str)
def test_scores_equal_the_blocks_of_the_engine(tallies, record_property, row):
    tally = tallies[row]
    record_property("probes", tally.row(str(row)))
    assert tally.probes == sum(len(asked) for _, asked in tally.capture.points)
    assert set(tally.states) <= set(row.states)
    check(tally.held, row.in_bounds, row.over, row.short)


@pytest.mark.first
@pytest.mark.parametrize("row", RUNS, ids=str)
def test_hits_are_those_of_the_engine(tallies, row):
    tally = tallies[row]
    assert tally.has_hits, "an answer lacks hits"
    check(tally.hits, row.in_bounds, row.over, row.short)


@pytest.mark.first
@pytest.mark.parametrize("row", [row for row in RUNS if "offload" in row.name or "hicache" in row.name], ids=str)
def test_the_host_continues_as_the_engine_does(tallies, row):
    tally = tallies[row]
    check(tally.host, row.in_bounds, row.host_over, row.host_short)
