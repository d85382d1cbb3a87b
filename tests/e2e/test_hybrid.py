"""Does a stream with window lists survive the loss of a process and of NATS? A real engine's
recorded messages are sent again up to one point; then a program fails. Afterwards the aggregator
must give the same answers as before, and the right ones at the next point."""

import pytest

import probes
from conftest import worker
from programs import wait_for
from test_checkpoint import kept, saved_seq_is

HYBRID, EAGLE = "vllm-0.33-hybrid", "sglang-0.5.23-eagle"
STREAMS = pytest.mark.parametrize("name, format", [(HYBRID, "json"), (EAGLE, "protobuf")])


class Stream:
    """One capture at one engine, sent up to the last point but one."""

    def __init__(self, scene, name, format):
        self.scene = scene
        self.format = format
        self.capture = probes.load(name)
        self.engine = scene.engine(topic=self.capture.topic)
        self.aggregator = scene.aggregator()
        self.start_bridge("kvbridge", announcements=1)
        self.points = self.capture.points[-2:]
        self.publish_up_to(self.points[0][0])
        self.settle()
        self.before = self.answers()
        assert len([hit for _, hit in self.before if hit > 0]) > 20, "something can go wrong"

    def start_bridge(self, name, announcements):
        """The bridge announces its list this many times before anything else happens."""
        self.announcements = announcements
        self.bridge = self.scene.bridge(
            worker(self.engine), formats=[self.format], name=name,
            limits=f'checkpoint = "{kept(self.scene)}"; checkpoint_s = 1;',
        )

    def start_bridge_again(self):
        self.start_bridge("again", announcements=self.tells_anew)

    def start_aggregator_again(self):
        self.aggregator = self.scene.aggregator(name="again")

    @property
    def tells_anew(self):
        """Readers of json cannot request what they missed."""
        return int(self.format == "json")

    def kill_nats(self):
        (nats,) = [program for program in self.scene.started if program.name.startswith("nats")]
        nats.kill()
        wait_for("both have noticed", lambda: not self.bridge.is_ready() and not self.aggregator.is_ready())

    def start_nats_again(self):
        self.scene.start_nats(self.scene.nats_port)
        self.announcements += self.tells_anew
        wait_for("both are back", lambda: self.bridge.is_ready() and self.aggregator.is_ready())

    def publish_up_to(self, last_seq):
        while self.engine.next_seq <= last_seq:
            self.engine.publish(self.capture.frames[self.engine.next_seq])

    def has_settled(self):
        """The newest message is applied, its events are too, and the list is proven."""
        (told,) = self.bridge.get("/state")["streams"]
        (known,) = self.aggregator.get("/streams")["streams"]
        return (
            self.bridge.metric("kvb_announcements_total") == self.announcements
            and told["last_seq"] == self.engine.next_seq - 1
            and (told["state"], known["state"]) == ("EXACT", "EXACT")
            and known["last_event_id"] == told["event_id"]
        )

    def settle(self):
        wait_for("bridge and aggregator have applied all messages", self.has_settled)

    def ask(self, asked):
        """[(probe, answer)]."""
        asker = probes.Asker(self.aggregator)
        try:
            return [(probe, asker.ask(probe, "m")) for probe in asked]
        finally:
            asker.close()

    def answers(self):
        """[(held tokens, tokens that a request can reuse)] for every prompt of the capture."""
        asked = [probe for _, those in self.capture.points for probe in those]
        return [
            tuple(probes.tokens_of(answer, field, 7) for field in ("scores", "hits"))
            for _, answer in self.ask(asked)
        ]

    def check_same(self):
        self.settle()
        assert self.answers() == self.before
        self.check_point(0)

    def check_point(self, number):
        """The answers of the engine itself at this point."""
        last_seq, asked = self.points[number]
        self.publish_up_to(last_seq)
        self.settle()
        tally = probes.Tally(self.capture)
        for probe, answer in self.ask(asked):
            tally.add(probe, answer, 7, "EXACT")
        for count in (tally.held, tally.hits):
            assert count.kinds["over"] == 0 and count.kinds["short"] == 0, count.examples
        assert tally.hits.kinds["right"] > len(asked) / 2


@pytest.mark.first
@STREAMS
def test_a_killed_bridge_continues_with_the_same_answers(scene, name, format):
    stream = Stream(scene, name, format)
    wait_for("a checkpoint of all batches is written", lambda: saved_seq_is(scene, stream.engine.next_seq - 1))
    stream.bridge.kill()
    stream.start_bridge_again()
    stream.check_same()
    assert stream.bridge.metric("kvb_checkpoints_restored_total") == 1
    stream.check_point(1)


@STREAMS
def test_a_new_aggregator_gives_the_same_answers(scene, name, format):
    stream = Stream(scene, name, format)
    stream.aggregator.kill()
    stream.start_aggregator_again()
    stream.check_same()
    stream.check_point(1)


def test_batches_of_a_hybrid_engine_while_nats_was_away_are_published(scene):
    stream = Stream(scene, HYBRID, "json")
    stream.kill_nats()
    stream.publish_up_to(stream.points[1][0])
    last = stream.points[1][0]
    wait_for("the bridge has read all batches", lambda: stream.bridge.get("/state")["streams"][0]["last_seq"] == last)
    stream.start_nats_again()
    stream.check_point(1)
