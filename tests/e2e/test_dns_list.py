"""Are the members of a DNS name used as workers: found, kept while the name servers fail, and
removed after three answers without them?"""

import random

import pytest

from name_server import FAILS, NO_NAME, SILENT
from programs import port_of, wait_for
from test_faults import name_of, store
from test_members import rows_of, streams

NAME = "vllm-headless"


@pytest.fixture
def pods(scene):
    """Three engines on addresses of their own, all with the same ports, as pods have."""
    part = random.randrange(1, 255)
    first = scene.engine(bind=f"tcp://127.77.{part}.1:*", bind_replay=f"tcp://127.77.{part}.1:*")

    def like_first(host):
        return scene.engine(bind=f"tcp://{host}:{port_of(first.events)}", bind_replay=f"tcp://{host}:{port_of(first.replay)}")

    return [first, *(like_first(f"127.77.{part}.{i}") for i in (2, 3))]


def host_of(endpoint):
    return endpoint.removeprefix("tcp://").rsplit(":", 1)[0]


def start(scene, names, defaults):
    return scene.bridge(
        formats=["protobuf"], prefix=names.prefix,
        limits=f'dns = {{ name = "{NAME}"; period_s = 1; }};\n'
               f'defaults = {{ {defaults} model = "m"; block_size = 16; }};\n')


def hosts(bridge):
    return {host_of(s["endpoint"]) for s in bridge.get("/state")["streams"]}


def lookups(bridge, result):
    return bridge.metric("kvb_dns_list_lookups_total", result=result)


@pytest.mark.first
@pytest.mark.sanitize
def test_members_come_stay_while_servers_fail_and_go_after_three_answers(scene, names, pods):
    one, two, three = pods
    addresses = [host_of(pod.events) for pod in pods]
    names.names[NAME] = (5, addresses[:2])
    aggregator = scene.aggregator()
    bridge = start(scene, names, f'events_port = {port_of(one.events)}; replay_port = {port_of(one.replay)};')
    wait_for("both are workers", lambda: hosts(bridge) == set(addresses[:2]))
    assert {s["origin"] for s in bridge.get("/state")["streams"]} == {"dns"}
    for number, pod in enumerate(pods):
        pod.publish(store(number))
    ids = {host_of(s["endpoint"]): s["worker_id"] for s in bridge.get("/state")["streams"]}
    wait_for("the blocks of the second pod are listed", lambda: rows_of(aggregator, ids[addresses[1]]) == {name_of(1)})

    for trouble, times in ((FAILS, 4), (SILENT, 2)):
        names.names[NAME] = trouble
        before = lookups(bridge, "failure")
        wait_for(f"look-ups fail: {trouble}", lambda: lookups(bridge, "failure") >= before + times)
        assert hosts(bridge) == set(addresses[:2]), "all stay"
        bridge.wait_until_it_says("cannot be looked up")

    names.names[NAME] = (5, [addresses[0], addresses[2]])
    wait_for("the third comes, the second is missed", lambda: addresses[2] in hosts(bridge))
    asked = lookups(bridge, "ok")
    wait_for("and goes", lambda: hosts(bridge) == {addresses[0], addresses[2]})
    assert lookups(bridge, "ok") >= asked + 1
    wait_for("with a goodbye", lambda: streams(aggregator, "/streams")[ids[addresses[1]], 0]["state"] == "DOWN")
    wait_for("its connection is the same", lambda: bridge.is_connected_once(pod_key=str(ids[addresses[0]])))
    wait_for("the metric counts two members", lambda: bridge.metric("kvb_dns_list_members") == 2)

    names.names[NAME] = NO_NAME
    wait_for("a name that does not exist has no members", lambda: not hosts(bridge))


@pytest.mark.sanitize
def test_a_look_up_under_way_delays_no_stop(scene, names):
    names.names[NAME] = SILENT
    names.configure(timeout_s=30, attempts=5)
    bridge = start(scene, names, 'events_port = 9;')
    wait_for("the name is asked for", lambda: names.asked[NAME] >= 1)
    assert bridge.stop() == 0


def test_a_thousand_members_come_over_tcp_and_v6_counts_where_there_is_no_v4(scene, names):
    names.names[NAME] = (5, [f"127.78.{i // 250}.{i % 250 + 1}" for i in range(1000)])
    bridge = start(scene, names, 'events_port = 9;')
    wait_for("all are workers", lambda: bridge.metric("kvb_dns_list_members") == 1000)
    wait_for("and open", lambda: len(hosts(bridge)) == 1000)
    assert names.streams > 0, "too long for a datagram"
    names.names[NAME] = (5, ["::1"])
    wait_for("the v6 address is one", lambda: "[::1]" in hosts(bridge))
    wait_for("and the others have gone", lambda: hosts(bridge) == {"[::1]"})
