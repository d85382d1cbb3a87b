"""Is a stock engine found by its HTTP address alone? The answers are those of real vLLM and SGLang;
only the ports are replaced."""

import json
import pathlib
import re

import pytest

import zmq
from programs import free_port, free_ports, port_of, wait_for
from test_faults import store
from test_members import EngineApi, discovered, lists, reload, rewrite, streams

RECORDED = json.loads((pathlib.Path(__file__).parent.parent / "data" / "kv_event_sources.json").read_text())
VLLM = RECORDED["vllm"]["bodies"]
SGLANG = RECORDED["sglang"]["kv_events"]


class StockApi(EngineApi):
    """The HTTP server of one engine, with these pages; others do not exist."""

    def __init__(self):
        super().__init__()
        self.pages = {}
        self.paths = []

    def answer(self, path):
        self.paths.append(path)
        return self.pages.get(path)


@pytest.fixture
def api():
    one = StockApi()
    yield one
    one.close()


def vllm_says(name, *ranks):
    """A recorded body with the ports of these ranks; without replay where the recording had none."""
    body = json.loads(VLLM[name])
    assert sorted(body) == [str(rank) for rank in range(len(ranks))]
    for number, one in enumerate(ranks):
        row = body[str(number)]
        for key, address in (("endpoint", one.events), ("replay_endpoint", one.replay)):
            if row[key]:
                row[key] = re.sub(r"\d+$", str(port_of(address)), row[key])
    return body


def state(bridge, dp_rank=0):
    return streams(bridge, "/state")[7, dp_rank]


def lines(bridge, words):
    return [line for line in bridge.text().splitlines() if words in line]


INFO = "/server_info?config_format=json"
FOUND = "an engine has given its event sockets"
CONNECTS = "an engine that connects to its endpoint cannot be subscribed to"


@pytest.mark.first
@pytest.mark.sanitize
def test_two_ranks_of_a_stock_vllm_are_found(scene, api):
    ranks = [scene.engine(), scene.engine()]
    api.pages["/kv_event_sources"] = vllm_says("2 ranks", *ranks)
    api.start()
    aggregator = scene.aggregator()
    bridge = scene.bridge(discovered(api), formats=["protobuf"])
    for number, one in enumerate(ranks):
        one.publish(store(number + 1))
    wait_for("both are listed", lists(aggregator, 7, 1, 2))
    assert [state(bridge, rank)["endpoint"] for rank in (0, 1)] == [one.events for one in ranks]
    wait_for("both are exact", lambda: {state(bridge, rank)["state"] for rank in (0, 1)} == {"EXACT"})
    assert set(api.paths) - {"/v1/models"} == {"/kv_event_sources", INFO}
    assert not lines(bridge, CONNECTS)
    # The engine is away for several requests and then answers the same; the log has one line about
    # it.
    ranks[0].go_away()
    asked = api.asked
    wait_for("the engine is requested repeatedly", lambda: api.asked >= asked + 4)
    ranks[0].come_back()
    wait_for("the stream is EXACT again", lambda: state(bridge)["state"] == "EXACT")
    assert len(lines(bridge, FOUND)) == 1


def test_an_engine_that_wants_a_key_is_discovered_and_its_key_is_never_shown(scene, api, tmp_path):
    one = scene.engine()
    api.pages["/kv_event_sources"] = vllm_says("1 rank, endpoint tcp://*:0, no replay, no topic", one)
    api.key = "sk-7"
    key_file = tmp_path / "key"
    key_file.write_text("sk-wrong\n")
    key_file.chmod(0o600)
    api.start()
    aggregator = scene.aggregator()
    bridge = scene.bridge(discovered(api, more=f'discover_token_file = "{key_file}";'), formats=["protobuf"])
    wait_for("it is said", lambda: "it answers 401: it does not accept the key in" in bridge.text())
    key_file.write_text("sk-7\n")  # rotated: the next request has it
    wait_for("the engine is connected", lambda: bridge.metric("kvcache_zmq_connection_status", pod_key="7") == 1)
    one.publish(store(1))
    wait_for("the block is listed", lists(aggregator, 7, 1))
    shown = bridge.text() + json.dumps(bridge.get("/state"))
    assert "sk-7" not in shown and "sk-wrong" not in shown


def sglang_says(name, events, replay):
    part = dict(SGLANG[name], endpoint_port_base=port_of(events))
    if replay:
        part["replay_endpoint_port_base"] = port_of(replay)
    return {"model_path": "m", "page_size": 16, "kv_events": part, "internal_states": [{"load": {}}]}


@pytest.mark.first
def test_two_ranks_of_sglang_are_found_by_its_other_page(scene, api):
    events, replays = free_ports(2), free_ports(2)
    ranks = [
        scene.engine(bind=f"tcp://127.0.0.1:{events + r}", bind_replay=f"tcp://127.0.0.1:{replays + r}") for r in (0, 1)
    ]
    api.pages["/server_info"] = sglang_says("2 ranks, replay, load", ranks[0].events, ranks[0].replay)
    api.start()
    aggregator = scene.aggregator()
    bridge = scene.bridge(discovered(api), formats=["protobuf"])
    for number, one in enumerate(ranks):
        one.publish(store(number + 1))
    wait_for("both are listed", lists(aggregator, 7, 1, 2))
    wait_for("both are exact", lambda: {state(bridge, rank)["state"] for rank in (0, 1)} == {"EXACT"})
    assert api.paths[:2] == ["/kv_event_sources", "/server_info"]
    assert not lines(bridge, "does not give its event sockets")
    # An engine of another kind takes its place.
    ranks[0].go_away()
    ranks[1].go_away()
    other = scene.engine()
    api.pages = {"/kv_event_sources": vllm_says("1 rank", other)}
    wait_for("the other engine is read", lambda: state(bridge)["endpoint"] == other.events)
    assert (7, 1) not in streams(bridge, "/state")


def speculates(method):
    return {"vllm_config": {"speculative_config": method and {"method": method, "model": "x"}}, "vllm_env": {}}


def test_how_vllm_speculates_is_asked_of_itself(scene, api):
    """In its development mode; the same stream goes on when only that changes."""
    vllm = scene.engine()
    api.pages = {"/kv_event_sources": vllm_says("1 rank", vllm), INFO: speculates("eagle3")}
    api.start()
    aggregator = scene.aggregator()
    bridge = scene.bridge(discovered(api), formats=["protobuf"])
    vllm.publish(store(1))
    wait_for("exact", lambda: state(bridge)["state"] == "EXACT")
    shown = state(bridge)["speculative_drop"]
    assert (shown["blocks"], shown["source"]) == (1, "server_info"), shown
    wait_for("the aggregator has it", lists(aggregator, 7, 1))
    wait_for("the log says it", lambda: lines(bridge, "a block less than it holds: hits are answered so"))
    for info, blocks, reason in ((speculates("ngram"), 0, ""), (speculates("new"), None, "speculation"),
                                 ("text", None, ""), (speculates(None), 0, "")):
        api.pages[INFO] = info
        asked = api.paths.count(INFO)
        vllm.go_away()
        wait_for("it is asked again", lambda: api.paths.count(INFO) > asked)
        vllm.come_back()
        wait_for("the answer is taken", lambda: (
            state(bridge).get("speculative_drop", {}).get("blocks"), state(bridge)["reason"]) == (blocks, reason))
    assert state(bridge)["reconnects"] >= 4, "one stream all the time"
    assert not lines(bridge, "does not give its event sockets")


def test_an_engine_that_connects_is_named_once_and_found_when_it_binds(scene, api):
    """It was configured with tcp://127.0.0.1:port, so its publisher connects there."""
    port = free_port()
    body = json.loads(VLLM["1 rank"])
    body["0"].update(endpoint=f"tcp://127.0.0.1:{port}", replay_endpoint=None)
    api.pages["/kv_event_sources"] = body
    api.start()
    with zmq.Context() as context, context.socket(zmq.PUB) as pub:
        pub.set(zmq.LINGER, 0)
        pub.connect(f"tcp://127.0.0.1:{port}")
        bridge = scene.bridge(discovered(api), formats=["protobuf"])
        wait_for("the log says so", lambda: lines(bridge, CONNECTS))
        wait_for("and shown", lambda: "bind = true" in state(bridge).get("why", ""))
        assert (state(bridge)["state"], state(bridge)["reason"]) == ("DOWN", "connecting")
        (line,) = lines(bridge, CONNECTS)
        assert "worker=7 dp_rank=0" in line and f"tcp://127.0.0.1:{port}" in line
    # Configured to bind, it listens on the same port.
    one = scene.engine(bind=f"tcp://127.0.0.1:{port}")
    one.publish(store(1))
    wait_for("the engine is connected", lambda: bridge.metric("kvcache_zmq_connection_status", pod_key="7") == 1)
    wait_for("the state shows no trouble", lambda: "why" not in state(bridge))
    assert len(lines(bridge, CONNECTS)) == 1


def test_published_facts_change_while_the_engine_does_not_answer(scene, api):
    """The engine's API is gone, as when it is being stopped: the ranks that it reported stay, and
    the log says so."""
    ranks = [scene.engine(), scene.engine()]
    api.pages["/kv_event_sources"] = vllm_says("2 ranks", *ranks)
    api.start()
    aggregator = scene.aggregator()
    bridge = scene.bridge(discovered(api, more='role = "prefill";'), formats=["protobuf"], heartbeat_ms=60000)
    wait_for("both have the role", lambda: [s.get("role") for s in streams(aggregator, "/streams").values()] == ["prefill"] * 2)
    api.close()
    api.server = None
    asked = api.asked
    rewrite(bridge, discovered(api, more='role = "both"; labels = { zone = "b"; };'))
    assert "added=0 removed=0 changed=0" in reload(bridge)
    wait_for("both have the new one", lambda: [
        (s.get("role"), s.get("labels")) for s in streams(aggregator, "/streams").values()] == [("both", {"zone": "b"})] * 2)
    assert api.asked == asked and not any(s["reconnects"] for s in streams(bridge, "/state").values())
