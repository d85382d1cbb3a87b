"""Does an aggregator receive each message once, and what becomes of messages that find no room in it?"""

import json
import re
import socket
import urllib.request

import pytest

import programs
from conftest import PUBLISH, ROUTER, worker
from programs import wait_for
from test_faults import store
from test_json_readers import listed

REQUESTS = 500
BURST = 5000
FLOOD = 50_000


@pytest.mark.no_nats
def test_each_message_is_received_once(scene):
    """With the default configuration, where the aggregator reads all components, its own among them."""
    config = scene.folder / "nats.conf"
    monitor, port = programs.free_port(), programs.free_port()
    config.write_text(f'http: "127.0.0.1:{monitor}"\n')
    scene.start_nats(config=config)

    def ask(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}{path}", timeout=5) as page:
            return json.load(page)

    aggregator = scene.daemon(
        "kvaggregator", f'nats = {{ url = "{scene.nats_url}"; }};\nhttp = "127.0.0.1:{port}";\n', port)
    wait_for("kvaggregator is ready", aggregator.is_ready, 15)
    [one] = ask("/connz?subs=1")["connections"]
    subjects = {re.sub(r"\*", "x", subject) for subject in one["subscriptions_list"]}
    assert len(subjects) == len(one["subscriptions_list"]) == 20, one["subscriptions_list"]
    assert {f"{ROUTER}.kv_match", f"{ROUTER}.kv_route", f"{ROUTER}.kv_routed"} <= subjects
    for subject in subjects:
        assert len(ask(f"/subsz?subs=1&test={subject}")["subscriptions_list"]) == 1, subject

    bus = scene.bus()
    for _ in range(REQUESTS):
        bus.request(f"{ROUTER}.kv_match", b'{"token_ids":[1]}')
    [after] = ask(f"/connz?cid={one['cid']}")["connections"]
    # besides its own echoes and statuses, three each second
    assert REQUESTS <= after["out_msgs"] - one["out_msgs"] < REQUESTS * 3 / 2


def test_events_that_find_no_room_are_counted_and_fetched(scene):
    vllm, bus = scene.engine(), scene.bus()
    scene.bridge(worker(vllm), formats=["protobuf"])
    aggregator = scene.aggregator(extra="limits = { event_ring = 64; };\n")
    vllm.publish(store(1))
    wait_for("the list", lambda: listed(aggregator, 1) and aggregator.is_exact())
    numbers = [1]

    async def burst():
        for _ in range(BURST):
            await bus.client.publish(f"{PUBLISH}.load_metrics", b"x")

    def has_lost():
        for _ in range(3):
            numbers.append(len(numbers) + 1)
            vllm.publish(store(numbers[-1]))
            bus._wait(burst())
        return (aggregator.metric("kvb_messages_refused_total", reason="ring_full") > 0
                and aggregator.metric("kvb_sync_requests_total") > requested)

    requested = aggregator.metric("kvb_sync_requests_total")
    wait_for("events of the stream are lost and requested", has_lost, 60)
    wait_for("the list is right", lambda: listed(aggregator, *numbers) and aggregator.is_exact(), 60)
    assert aggregator.metric("kvb_messages_refused_total", reason="dropped_by_client") == 0


def test_a_flood_of_requests_is_answered_and_lists_stay_right(scene):
    """Events wait behind requests on one thread, so what is too much is answered unread."""
    vllm = scene.engine()
    scene.bridge(worker(vllm), formats=["protobuf"])
    aggregator = scene.aggregator(extra="limits = { query_ring = 1000000; };\n")  # does not fill
    vllm.publish(store(1))
    wait_for("the list", lambda: listed(aggregator, 1) and aggregator.is_exact())
    answers = refused = sent = 0
    with socket.create_connection(("127.0.0.1", scene.nats_port), timeout=60) as link:
        link.sendall(b'CONNECT {"verbose":false}\r\nSUB a 1\r\n')
        lines = link.makefile("rb")
        request = b'PUB %s.kv_match a 17\r\n{"token_ids":[1]}\r\n' % ROUTER.encode()

        def are_refused():
            nonlocal answers, refused, sent
            link.sendall(request * FLOOD)
            sent += FLOOD
            while answers < sent:
                line = lines.readline()
                assert line
                answers += line.startswith(b"MSG a 1 ")
                refused += b'"busy"' in line
            return refused > FLOOD / 10

        wait_for("many are refused", are_refused, 60)
    assert refused < answers == sent
    vllm.publish(store(2))
    wait_for("the list", lambda: listed(aggregator, 1, 2) and aggregator.is_exact(), 60)
