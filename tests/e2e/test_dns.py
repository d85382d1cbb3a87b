"""Engines configured by name: does a silent name server delay nothing else? are names looked up
only when something is to be connected, each 5 s at most, and is an engine found after it has
moved?"""

import time
import types

import pytest
import zmq

import programs
from conftest import worker
from name_server import SILENT
from programs import wait_for
from test_faults import Reader, name_of, store
from test_load import page, sources


FRESH_S = 5  # for so long a name is not looked up again


def named(one, host):
    """The addresses of the engine, with this host name."""
    return types.SimpleNamespace(
        events=one.events.replace("127.0.0.1", host), replay=one.replay.replace("127.0.0.1", host)
    )


def most_look_ups(begun):
    """Of one name since then."""
    return 1 + (time.monotonic() - begun) / FRESH_S


def stream(bridge, worker_id=7):
    return next(one for one in bridge.get("/state")["streams"] if one["worker_id"] == worker_id)


def is_exact(bridge, worker_id=7):
    return lambda: stream(bridge, worker_id)["state"] == "EXACT"


@pytest.mark.sanitize
def test_a_silent_name_server_delays_nothing_and_no_stop(scene, names, web):
    names.names = {"good.fleet": (3600, ["127.0.0.1"]), "silent.fleet": SILENT}
    begun, hosts = time.monotonic(), []

    def load_page(request):
        hosts.append(request.headers["Host"])
        body = page(3).encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    web.pages["/metrics"] = load_page
    reader = Reader(scene.bus())
    vllm = scene.engine()
    feed = scene.load_feed()
    silent = types.SimpleNamespace(events="tcp://silent.fleet:5557", replay="tcp://silent.fleet:6557")
    bridge = scene.bridge(
        worker(named(vllm, "good.fleet"), more=f'load = {{ prometheus = "http://good.fleet:{web.port}/metrics";'
               f' scrape_ms = 100; zmq = "{feed.endpoint.replace("127.0.0.1", "good.fleet")}"; }};'),
        worker(silent, worker_id=8, more='load = { prometheus = "http://silent.fleet:8000/metrics"; scrape_ms = 100;'
               ' zmq = "tcp://silent.fleet:7557"; };'),
        'id = 9L; model = "m"; block_size = 16; discover = "http://silent.fleet:8000";',
        prefix=names.prefix,
    )
    number = 0

    def is_asked_twice():
        """Returns while events and load of the good engine arrive."""
        nonlocal number
        number += 1
        pages = len(hosts)
        feed.send({"request_active_slots": number, "request_total_slots": 99, "num_requests_waiting": 0})
        vllm.publish(store(number))
        wait_for(f"block {number}", lambda: name_of(number) in reader.names())
        wait_for("a page more", lambda: len(hosts) > pages)
        return names.asked["silent.fleet"] >= 4 and bridge.metric("kvb_dns_failures_total", reason="failure") >= 2

    wait_for("block 0", lambda: vllm.publish(store(0)) is None or stream(bridge)["state"] == "EXACT")
    wait_for("the silent name was asked for twice", is_asked_twice)
    wait_for("EXACT", is_exact(bridge))
    assert set(hosts) == {f"good.fleet:{web.port}"}
    wait_for("both sources are fresh", lambda: is_asked_twice() and all(
        sources(bridge)[7, kind]["state"] == "fresh" for kind in ("prometheus", "zmq")))
    why = "the name silent.fleet cannot be resolved: the name servers do not answer, or fail"
    assert stream(bridge, 8)["why"] == why
    wait_for("the load sources say why", lambda: sources(bridge)[8, "zmq"]["why"] == sources(bridge)[8, "prometheus"]["why"] == why)
    assert names.asked["good.fleet"] <= most_look_ups(begun), "for ZMQ and pages together"
    bridge.wait_until_it_says("an engine's host name cannot be resolved; trying again")

    # The next look-up lasts longer than this test waits for anything.
    failures = bridge.metric("kvb_dns_failures_total", reason="failure")
    wait_for("a look-up ends", lambda: bridge.metric("kvb_dns_failures_total", reason="failure") > failures)
    names.configure(timeout_s=30, attempts=5)
    asked = names.asked["silent.fleet"]
    wait_for("the silent name is queried again", lambda: names.asked["silent.fleet"] > asked)
    is_asked_twice()
    assert names.asked["silent.fleet"] <= asked + 2, "it is under way"
    assert bridge.stop() == 0


@pytest.mark.sanitize
def test_an_engine_that_has_moved_is_found_and_one_that_is_there_is_kept(scene, names):
    names.names, begun = {"engine.fleet": (1, ["127.0.0.1"])}, time.monotonic()
    places = [programs.free_port(), programs.free_port()]
    old, new = (
        scene.engine(bind=f"tcp://{address}:{places[0]}", bind_replay=f"tcp://{address}:{places[1]}")
        for address in ("127.0.0.1", "127.0.0.2")
    )
    reader = Reader(scene.bus())
    bridge = scene.bridge(worker(named(old, "engine.fleet")), prefix=names.prefix)
    old.publish(store(1))
    wait_for("block 1", reader.holds(1))
    new.publish(store(5))

    names.names["engine.fleet"] = (1, ["127.0.0.2"])
    beats = scene.bus().watch("*.*.component.*.kv_heartbeat_json")
    wait_for("the answer is old", lambda: len(beats) >= FRESH_S + 2)
    old.publish(store(2))
    wait_for("the old connection goes on", reader.holds(1, 2))
    assert names.asked["engine.fleet"] == 1 or bridge.was_kept_waiting(), "only who connects again asks"

    old.go_away()
    wait_for("the engine at the new address is read and replayed", reader.holds(5))
    wait_for("EXACT", is_exact(bridge))
    assert new.requests
    assert names.asked["engine.fleet"] <= most_look_ups(begun)


@pytest.mark.sanitize
def test_each_address_of_a_name_is_tried(scene, names):
    names.names = {"engine.fleet": (3600, ["127.0.0.3", "127.0.0.4", "127.0.0.1"])}
    begun = time.monotonic()
    vllm = scene.engine()
    reader = Reader(scene.bus())
    bridge = scene.bridge(worker(named(vllm, "engine.fleet")), prefix=names.prefix)
    vllm.publish(store(1))
    wait_for("block 1", reader.holds(1))
    wait_for("EXACT", is_exact(bridge))
    assert bridge.metric("kvb_replays_total", step="failed") == 0 or bridge.was_kept_waiting(), "asked for where the events come from"
    vllm.restart()
    vllm.publish(store(2))
    wait_for("block 2 arrives from the address that worked before", reader.holds(2))
    assert names.asked["engine.fleet"] <= most_look_ups(begun)


def test_a_bridge_listens_at_a_name(scene, names):
    names.names = {"here.fleet": (3600, ["127.0.0.1"])}
    port = programs.free_port()
    scene.bridge(
        f'id = 7L; model = "m"; block_size = 16; events = "tcp://here.fleet:{port}"; bind = true;', prefix=names.prefix
    )

    def has_connected():
        with zmq.Context() as context, context.socket(zmq.PUB) as pub:
            pub.set(zmq.LINGER, 0)
            monitor = pub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            pub.connect(f"tcp://127.0.0.1:{port}")
            seen = monitor.poll(500)
            pub.disable_monitor()
            monitor.close()
            return seen

    wait_for("an engine connects", has_connected)
