"""Does a JetStream stream that captures P.kv_events hold the whole history?  It is replayed into a
reader that knows nothing but JSON RouterEvents, and compared with what the engines hold.  The
daemons need no configuration for it."""

import json

import pytest

import contract
from conftest import PUBLISH
from matrix.truth import Fleet
from programs import DEADLINE_S, wait_for
from test_fleet import start_bridge, start_fleet

STREAM, SUBJECT = "KV_EVENTS", f"{PUBLISH}.kv_events"


def start_jetstream(scene):
    config = scene.folder / "jetstream.conf"
    config.write_text(f'jetstream {{ store_dir: "{scene.folder}/jetstream" }}\n')
    return scene.start_nats(config=config)


class History:
    """A client of the stream; etc/monitoring.md does the same with the nats command."""

    def __init__(self, bus):
        self.bus = bus
        self.jetstream = bus.client.jetstream(timeout=DEADLINE_S)

    def create(self):
        self.bus._wait(self.jetstream.add_stream(name=STREAM, subjects=[SUBJECT]))

    def messages(self):
        return self.bus._wait(self.jetstream.stream_info(STREAM)).state.messages

    def replay(self, take):
        """Passes each message, from the first on, to take()."""
        left = self.messages()
        reader = self.bus._wait(self.jetstream.pull_subscribe(SUBJECT, stream=STREAM))
        while left > 0:
            batch = self.bus._wait(reader.fetch(min(left, 500), timeout=DEADLINE_S))
            for message in batch:
                take(message.data)
            left -= len(batch)


@pytest.mark.parametrize("scene", ["debian", "current"], indirect=True)
def test_a_jetstream_stream_is_the_history_of_the_engines(scene):
    start_jetstream(scene)
    history = History(scene.bus())
    history.create()
    truth, workers = start_fleet(scene, "--workers", 6, "--ranks", 1, "--blocks", 256, "--rate", 60)
    fleet = Fleet([truth], 6)
    fleet.say("pause")
    aggregator = scene.aggregator(block_size=16, model="fleet")
    bridge = start_bridge(scene, workers, "json", "refresh_s = 0;")
    # one rank a worker: a `cleared` of one would have the blocks of the others stored again
    wait_for("all lists are announced", lambda: bridge.metric("kvb_announcements_total") >= len(fleet.stats()))
    fleet.say("resume")
    wait_for("the engines have evicted blocks", lambda: sum(
        row["held_blocks"] for row in fleet.stats().values()) > 6 * 200 and history.messages() > 300)
    fleet.say("drain")
    truth = fleet.whole_truth()
    wait_for("the aggregator lists what the engines hold", lambda: aggregator.metric("kvb_index_blocks") == sum(
        len(held) for held in truth.values()))
    assert bridge.metric("kvb_publish_failures_total") == 0

    kinds = set()

    def replayed():
        """The blocks of a reader that starts now, after the last message."""
        reader = contract.HeldBlocks()

        def take(data):
            event = json.loads(data)["event"]["data"]
            kinds.update([event] if event == "cleared" else event)
            reader.apply(data)

        history.replay(take)
        return {stream: set(reader.of(*stream)) for stream in truth}

    wait_for("the history ends with what the engines hold", lambda: replayed() == truth)
    assert kinds >= {"stored", "removed"}, kinds
    fleet.close()
