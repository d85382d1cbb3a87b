"""Does an aggregator receive each message once?"""

import json
import re
import urllib.request

import pytest

import programs
from conftest import ROUTER
from programs import wait_for

REQUESTS = 500


@pytest.mark.no_nats
def test_each_message_is_received_once(scene):
    """With the default configuration, where the aggregator reads all components, its own among them."""
    config = scene.folder / "nats.conf"
    monitor, port = programs.free_port(), programs.free_port()
    config.write_text(f'http: "127.0.0.1:{monitor}"\n')
    scene.start_nats(config=config)

    def ask(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}{path}", timeout=programs.DEADLINE_S) as page:
            return json.load(page)

    aggregator = scene.daemon(
        "kvaggregator", f'nats = {{ url = "{scene.nats_url}"; }};\nhttp = "127.0.0.1:{port}";\n', port)
    wait_for("kvaggregator is ready", aggregator.is_ready)
    [one] = ask("/connz?subs=1")["connections"]
    subjects = {re.sub(r"\*", "x", subject) for subject in one["subscriptions_list"]}
    assert len(subjects) == len(one["subscriptions_list"]) == 20, one["subscriptions_list"]
    assert {f"{ROUTER}.kv_match", f"{ROUTER}.kv_route", f"{ROUTER}.kv_routed"} <= subjects
    for subject in subjects:
        assert len(ask(f"/subsz?subs=1&test={subject}")["subscriptions_list"]) == 1, subject

    bus = scene.bus()
    for _ in range(REQUESTS):
        bus.request(f"{ROUTER}.kv_match", b'{"token_ids":[1]}')
    [after] = ask(f"/connz?cid={one['cid']}&subs=detail")["connections"]
    received = {row["subject"]: row["msgs"] for row in after["subscriptions_list_detail"]}
    # by any other, only its own echoes and statuses, each at most once a second
    assert received.pop(f"{ROUTER}.kv_match") == REQUESTS
    assert max(received.values()) < REQUESTS, received
