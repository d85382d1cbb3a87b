"""Two bridges for the same engines, one of them a standby (publish.standby): who publishes, from
when on, and are the lists those of the engines afterwards?"""

import collections
import json
import signal
import time

import pytest

import programs
from conftest import PUBLISH
from programs import wait_for
from test_fleet import start_fleet, verify

STREAMS = 6  # of start_fleet()
SLACK_S = 2.0  # of a busy machine, on top of what is promised

Beat = collections.namedtuple("Beat", "at worker rank standby publisher bye first_id")


class Pair:
    """A simulated fleet under load, an aggregator, a primary, and what its readers see."""

    def __init__(self, scene, profile="protobuf", checkpoints=False):
        self.scene, self.profile, self.checkpoints = scene, profile, checkpoints
        self.truth, self.workers = start_fleet(scene)
        self.aggregator = scene.aggregator()
        self.beats, self.other_subjects = [], []
        self.watch()

    def watch(self):
        async def note_beat(message):
            beat = json.loads(message.data)
            self.beats.append(Beat(
                time.monotonic(), beat["worker_id"], beat["dp_rank"], beat["standby"], beat["publisher"],
                beat["bye"], beat["epoch_first_id"]))

        async def note(message):
            tail = message.subject.removeprefix(f"{PUBLISH}.")
            if tail not in ("bridge_status", "kv_heartbeat_json"):
                self.other_subjects.append((time.monotonic(), tail))

        bus = self.scene.bus()
        bus._wait(bus.client.subscribe(f"{PUBLISH}.kv_heartbeat_json", cb=note_beat, pending_msgs_limit=1 << 20))
        bus._wait(bus.client.subscribe(f"{PUBLISH}.>", cb=note, pending_msgs_limit=1 << 20))
        bus.flush()

    def start(self, name, standby=False, wait=True):
        folder = self.scene.folder / f"checkpoints-{name.split('.')[0]}"
        folder.mkdir(exist_ok=True)
        port = programs.free_port()
        kept = f'checkpoint = "{folder}"; checkpoint_s = 1;\n' if self.checkpoints else ""
        bridge = self.scene.daemon(
            "kvbridge",
            f'nats = {{ url = "{self.scene.nats_url}"; }};\n'
            f'publish = {{ namespace = "dynamo"; component = "VllmWorker"; profile = "{self.profile}";'
            f' standby = {json.dumps(standby)}; }};\n{kept}'
            f'{self.workers}http = "127.0.0.1:{port}";\n', port, name,
        )
        if wait:
            wait_for(f"{name} is ready", bridge.is_ready, 15)
        return bridge

    def start_both(self):
        self.primary, self.standby = self.start("primary"), self.start("standby", standby=True)
        self.is_right()
        wait_for("the standby has read the engines", lambda: states(self.standby) == {"EXACT"}, 30)
        return self

    def is_right(self, wait_ms=30_000):
        """The lists are those of the engines, and their state is EXACT."""
        status, verdict = verify(self.scene, self.truth, wait_ms)
        assert status == 0, verdict
        assert (verdict["streams"], verdict["exact"]) == (STREAMS, STREAMS), verdict
        assert (verdict["phantom"], verdict["missing"], verdict["wrong"]) == (0, 0, 0)

    def reasons(self):
        return {row["reason"] for row in self.aggregator.get("/streams")["streams"]}

    def since(self, at, standby):
        """When the first heartbeat of each stream came, of a standby or not, after `at`."""
        first = {}
        for beat in list(self.beats):
            if beat.at >= at and beat.standby == standby and not beat.bye:
                first.setdefault((beat.worker, beat.rank), beat.at - at)
        return first

    def all_taken_over(self, at, standby=True):
        return wait_for(
            f"heartbeats of all streams, of standby={standby}",
            lambda: len(self.since(at, standby)) == STREAMS and self.since(at, standby), 30)

    def ends_above_the_standby(self):
        """The epoch with which a primary continues is above the standby's, whatever its own was before."""
        def newest(standby):
            return {(beat.worker, beat.rank): beat.first_id for beat in list(self.beats) if beat.standby == standby}

        floor = newest(True)
        assert len(floor) == STREAMS
        wait_for("epochs above the standby's", lambda: all(newest(False)[one] > floor[one] for one in floor), 10)

    def epochs_are_in_order(self):
        newest = {}
        for beat in self.beats:
            stream = beat.worker, beat.rank
            known = newest.setdefault(stream, beat)
            if beat.publisher != known.publisher and not beat.bye:
                assert beat.first_id > known.first_id, (known, beat)
                newest[stream] = beat


def states(bridge):
    return {stream["state"] for stream in bridge.get("/state")["streams"]}


def roles(bridge):
    return [stream["standby"] for stream in bridge.get("/state")["streams"]]


def role(bridge, name):
    return bridge.metric("kvb_standby_streams", role=name)


def yields_all(bridge):
    wait_for("the standby yields", lambda: bridge.metric("kvb_standby_yields_total") == STREAMS, 30)
    wait_for("the gauges show a standby", lambda: (role(bridge, "standby"), role(bridge, "active")) == (STREAMS, 0))


@pytest.mark.sanitize
@pytest.mark.parametrize("profile", ["json", "protobuf"])
def test_a_killed_bridge_is_replaced_in_time_and_takes_its_streams_back(scene, profile):
    pair = Pair(scene, profile).start_both()
    assert roles(pair.standby) == ["standby"] * STREAMS
    status, text = pair.standby.http("GET", "/readyz")
    assert (status, text) == (200, f"ready; standby: {STREAMS} of {STREAMS} streams are left to other bridges\n")
    assert pair.standby.metric("kvb_messages_published_total") == 0
    assert pair.standby.get("/state")["publishing"] is False

    killed = time.monotonic()
    pair.primary.kill()
    took = max(pair.all_taken_over(killed).values())
    print(f"taken over {took:.2f} s after kill -9")
    assert took <= 3.5 + SLACK_S
    pair.is_right()
    wait_for("the status shows an active bridge", lambda: roles(pair.standby) == ["active"] * STREAMS)
    assert pair.standby.metric("kvb_standby_take_overs_total") == STREAMS
    pair.epochs_are_in_order()

    back = pair.start("primary.again")
    yields_all(pair.standby)
    pair.is_right()
    wait_for("no stream has two bridges", lambda: pair.reasons() == {""}, 10)
    assert pair.standby.metric("kvb_standby_yields_total") == STREAMS
    assert pair.standby.metric("kvb_standby_take_overs_total") == STREAMS
    said = time.monotonic()
    pair.all_taken_over(said, standby=False)
    assert not pair.since(said, standby=True)
    assert back.metric("kvb_standby_streams") == 0, "it is none"


def test_a_standby_publishes_nothing_while_another_bridge_does(scene):
    pair = Pair(scene).start_both()
    assert not [beat for beat in pair.beats if beat.standby]
    assert len({beat.publisher for beat in pair.beats}) == 1
    bus = scene.bus()
    watched = bus.watch(f"{PUBLISH}.>")
    pair.primary.process.send_signal(signal.SIGSTOP)
    try:
        bus.flush()
        watched.clear()  # what the primary has sent is here
        answers = bus.watch("_INBOX.standby.1")
        for subject in (f"{PUBLISH}.kv_sync.1.0", f"{PUBLISH}.kv_refresh"):
            bus.publish(subject, b"", reply="_INBOX.standby.1")
        wait_for("statuses of the standby", lambda: sum(
            message.subject.endswith(".bridge_status") for message in watched) >= 1)
        said = {message.subject.removeprefix(f"{PUBLISH}.").split(".")[0] for message in watched}
        if not pair.standby.metric("kvb_standby_take_overs_total"):  # otherwise the machine was too slow for the query
            assert said <= {"bridge_status", "kv_sync", "kv_refresh"}
            assert not answers
    finally:
        pair.primary.process.send_signal(signal.SIGCONT)
    assert pair.standby.metric("kvb_refresh_requests_total", outcome="granted") == 0


@pytest.mark.parametrize("profile", ["json", "protobuf"])
def test_a_goodbye_is_followed_at_once(scene, profile):
    pair = Pair(scene, profile).start_both()
    stopped = time.monotonic()
    assert pair.primary.stop() == 0
    took = max(pair.all_taken_over(stopped).values())
    print(f"taken over {took:.2f} s after SIGTERM")
    assert took <= 0.5 + SLACK_S, "three periods were not waited for"
    pair.is_right()
    pair.epochs_are_in_order()


@pytest.mark.parametrize("profile", ["json", "protobuf"])
def test_of_a_bridge_that_was_frozen_and_its_standby_the_standby_yields(scene, profile):
    pair = Pair(scene, profile).start_both()
    frozen = time.monotonic()
    pair.primary.process.send_signal(signal.SIGSTOP)
    pair.all_taken_over(frozen)
    pair.is_right()
    pair.primary.process.send_signal(signal.SIGCONT)
    began = time.monotonic()
    yields_all(pair.standby)
    wait_for("one publisher", lambda: "two_bridges" not in pair.reasons(), 10)
    print(f"one publisher {time.monotonic() - began:.2f} s after SIGCONT")
    pair.is_right()
    assert pair.standby.metric("kvb_standby_take_overs_total") == STREAMS, "no flapping"
    assert pair.primary.metric("kvb_handovers_total") >= STREAMS, "its epoch was below the standby's"
    pair.ends_above_the_standby()


def test_a_primary_restored_from_its_checkpoint_ends_above_the_standby(scene):
    pair = Pair(scene, checkpoints=True).start_both()
    wait_for("checkpoints", lambda: pair.primary.metric("kvb_checkpoints_written_total") >= STREAMS, 30)
    killed = time.monotonic()
    pair.primary.kill()
    pair.all_taken_over(killed)
    back = pair.start("primary.again")
    assert back.metric("kvb_checkpoints_restored_total") == STREAMS
    yields_all(pair.standby)
    pair.is_right()
    pair.ends_above_the_standby()

    # both again, at once: the primary has its streams, the standby waits
    for bridge in (back, pair.standby):
        bridge.kill()
    again, standby = pair.start("primary.third", wait=False), pair.start("standby.again", standby=True)
    wait_for("the primary", again.is_ready, 15)
    pair.is_right()
    assert standby.metric("kvb_standby_take_overs_total") == 0


def test_a_restarted_server_is_no_reason_to_take_over(scene):
    pair = Pair(scene).start_both()
    nats = scene.started[0]
    nats.kill()
    both = (pair.primary, pair.standby)
    wait_for("both have lost it", lambda: not any(one.metric("kvb_nats_connected") for one in both), 15)
    lost = time.monotonic()
    wait_for("four periods", lambda: time.monotonic() - lost > 4, 10)
    scene.start_nats(scene.nats_port)
    wait_for("both are back", lambda: all(one.metric("kvb_nats_connected") for one in both), 15)
    wait_for("the aggregator is back", pair.aggregator.is_ready, 15)
    back = time.monotonic()
    pair.is_right()
    wait_for("the time in which a standby decides", lambda: time.monotonic() - back > 5, 10)
    assert pair.standby.metric("kvb_standby_take_overs_total") == 0
    pair.is_right()


def test_a_standby_alone_takes_over_after_three_periods(scene):
    pair = Pair(scene)
    began = time.monotonic()
    standby = pair.start("standby", standby=True)
    took = pair.all_taken_over(began)
    print(f"alone: {min(took.values()):.2f} to {max(took.values()):.2f} s")
    assert min(took.values()) >= 3.0, "another bridge may be about to connect"
    assert max(took.values()) <= 3.5 + 2 * SLACK_S
    pair.is_right()
    wait_for("the gauge shows an active bridge", lambda: role(standby, "active") == STREAMS)


def test_of_two_standbys_the_smaller_id_comes_first(scene):
    pair = Pair(scene).start_both()
    standbys = [pair.standby, pair.start("standby2", standby=True)]
    standbys.sort(key=lambda one: one.get("/state")["bridge_id"])
    wait_for("both watch", lambda: all(states(one) == {"EXACT"} for one in standbys), 30)
    heard = scene.bus().watch(f"{PUBLISH}.bridge_status")
    wait_for("their statuses", lambda: len(heard) >= 8)
    killed = time.monotonic()
    pair.primary.kill()
    pair.all_taken_over(killed)
    pair.is_right()
    assert [one.metric("kvb_standby_take_overs_total") for one in standbys] == [STREAMS, 0]
    heirs = {beat.publisher for beat in pair.beats if beat.standby}
    assert len(heirs) == 1
    killed = time.monotonic()
    standbys[0].kill()
    wait_for("the second takes over", lambda: role(standbys[1], "active") == STREAMS, 30)
    pair.is_right()
    pair.epochs_are_in_order()
