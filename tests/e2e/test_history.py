"""Does a JetStream stream that captures P.kv_events hold the whole history?  It is replayed into a
reader that knows nothing but JSON RouterEvents, and compared with what the engines hold.  The
daemons need no configuration for it."""

import json
import subprocess

import pytest

import contract
import programs
from conftest import NAMESPACE, PUBLISH, ROUTER
from matrix.truth import Fleet
from programs import wait_for
from test_fleet import TRACE

STREAM, SUBJECT = "KV_EVENTS", f"{PUBLISH}.kv_events"


def start_jetstream(scene):
    config = scene.folder / "jetstream.conf"
    config.write_text(f'jetstream {{ store_dir: "{scene.folder}/jetstream" }}\n')
    return scene.start_nats(config=config)


class History:
    """A client of the stream; etc/monitoring.md does the same with the nats command."""

    def __init__(self, bus):
        self.bus = bus
        self.jetstream = bus.client.jetstream(timeout=10)

    def create(self):
        self.bus._wait(self.jetstream.add_stream(name=STREAM, subjects=[SUBJECT]))

    def messages(self):
        return self.bus._wait(self.jetstream.stream_info(STREAM)).state.messages

    def replay(self, take):
        """Passes each message, from the first on, to take()."""
        left = self.messages()
        reader = self.bus._wait(self.jetstream.pull_subscribe(SUBJECT, stream=STREAM))
        while left > 0:
            batch = self.bus._wait(reader.fetch(min(left, 500), timeout=10))
            for message in batch:
                take(message.data)
            left -= len(batch)


def start_fleet(scene):
    truth, workers = scene.folder / "truth", scene.folder / "workers"
    scene.start("kvfleet", [
        programs.BIN / "kvfleet", "--workers", 6, "--ranks", 1, "--blocks", 256, "--rate", 60,
        "--trace", TRACE, "--truth", truth, "--config-out", workers,
    ])
    wait_for("kvfleet has bound its sockets", lambda: workers.exists() and workers.read_text())
    fleet = Fleet([truth], 6)
    fleet.say("pause")
    return fleet, workers.read_text()


def start_bridge(scene, workers):
    port = programs.free_port()
    bridge = scene.daemon(
        "kvbridge",
        f'nats = {{ url = "{scene.nats_url}"; }};\n'
        'publish = { namespace = "dynamo"; component = "VllmWorker"; formats = ["json"]; refresh_s = 0; };\n'
        f'{workers}http = "127.0.0.1:{port}";\n', port,
    )
    wait_for("kvbridge is ready", bridge.is_ready)
    return bridge


@pytest.mark.parametrize("scene", ["debian", "current"], indirect=True)
def test_a_jetstream_stream_is_the_history_of_the_engines(scene):
    start_jetstream(scene)
    history = History(scene.bus())
    history.create()
    fleet, workers = start_fleet(scene)
    aggregator = scene.aggregator(block_size=16, model="fleet")
    bridge = start_bridge(scene, workers)
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


def test_kvctl_waits_for_the_answer_behind_an_acknowledgement(scene):
    """A stream that captures the requests of routers acknowledges each of them, before anybody answers or alone."""
    start_jetstream(scene)
    bus = scene.bus()
    bus._wait(bus.client.jetstream(timeout=10).add_stream(name="REQUESTS", subjects=[f"{ROUTER}.>"]))

    def load():
        command = [programs.BIN / "kvctl", "--nats", scene.nats_url, "--namespace", NAMESPACE, "--json", "load"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    alone = load()
    assert alone.returncode != 0
    assert "only a stream of JetStream acknowledges the request" in alone.stderr, alone
    scene.aggregator()
    wait_for("the aggregator answers", lambda: load().returncode == 0)
    assert "load_avg" in json.loads(load().stdout)
