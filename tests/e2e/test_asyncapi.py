"""Is each subject of the programs in proto/asyncapi.yaml, and is each message on a fleet's NATS of the form written there?"""

import json
import re

import jsonschema
import pytest
import referencing
import yaml

import engine
from conftest import PUBLISH, ROUTER, SNAPSHOT, worker
from programs import TREE, wait_for

DOCUMENT = yaml.safe_load((TREE / "proto/asyncapi.yaml").read_text())
OPENAPI = yaml.safe_load((TREE / "proto/openapi.yaml").read_text())
PROTO = (TREE / "proto/kvbridge.proto").read_text()
# Patterns to which the programs subscribe, and no subjects of their own.
SUBSCRIPTIONS = {"P.*", "{prefix}.>"}
REGISTRY = referencing.Registry().with_resources(
    (uri, referencing.Resource.from_contents(document, referencing.jsonschema.DRAFT202012))
    for uri, document in (("", DOCUMENT), ("openapi.yaml", OPENAPI)))


def tokens_of(address):
    """With a star for each variable."""
    return re.sub(r"\{[a-z_]+\}", "*", address)


def addresses():
    return {name: channel["address"] for name, channel in DOCUMENT["channels"].items()}


def resolve(part):
    if "$ref" not in part:
        return part
    place = DOCUMENT
    for step in part["$ref"].removeprefix("#/").split("/"):
        place = place[step]
    return place


def test_each_subject_of_the_contract_is_written():
    source = (TREE / "bridge/bus/contract.c").read_text()
    forms = set(re.findall(r'\[KVB_SUBJECT_[A-Z_]+\] *= "([^"]+)"', source))
    assert len(forms) > 20
    component = "namespace.*.component.*."
    expected = {tokens_of(re.sub(r"^[PR]\.", component, form)) for form in forms - SUBSCRIPTIONS}
    assert {tokens_of(address) for address in addresses().values()} == expected


def test_each_channel_is_used_and_names_its_variables():
    used = {operation[key]["$ref"].removeprefix("#/channels/") if key == "channel"
            else operation[key]["channel"]["$ref"].removeprefix("#/channels/")
            for operation in DOCUMENT["operations"].values() for key in ("channel", "reply") if key in operation}
    assert used == set(addresses())
    for name, channel in DOCUMENT["channels"].items():
        assert set(channel["parameters"]) == set(re.findall(r"\{([a-z_]+)\}", channel["address"])), name
        for message in channel["messages"].values():
            title = resolve(message).get("title", "")
            if "protobuf" in resolve(message).get("contentType", ""):
                assert f"message {title} {{" in PROTO, title


def channel_of(subject):
    """The channel with the fewest variables that the subject fits."""
    def fits(address):
        return re.fullmatch(re.sub(r"\\\{[a-z_]+\\\}", "[^.]+", re.escape(address)), subject)

    found = sorted((address.count("{"), name) for name, address in addresses().items() if fits(address))
    # of those with the components' names, P and R look alike: their last words differ
    assert found, f"{subject} is in no channel"
    return found[0][1]


def check(message):
    """True where the payload was read: JSON against its schema."""
    name = channel_of(message.subject)
    forms = [resolve(form) for form in DOCUMENT["channels"][name]["messages"].values()]
    plain = [form for form in forms if "contentType" not in form]
    if not plain or not message.data.startswith(b"{"):
        return name, False
    validator = jsonschema.Draft202012Validator(plain[0].get("payload", True), registry=REGISTRY)
    errors = [f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(json.loads(message.data))]
    assert not errors, errors
    return name, True


@pytest.mark.first
def test_each_message_of_a_fleet_is_as_written(scene):
    one, feed, bus = scene.engine(), scene.load_feed(), scene.bus()
    seen = bus.watch("namespace.>")
    services = bus.watch("$SRV.>")
    aggregator = scene.aggregator(router="hit_rate_alias = true;")
    scene.bridge(worker(one, 1, more=f'load = {{ zmq = "{feed.endpoint}"; }};'), formats=["json", "protobuf"])
    prompt = list(range(100, 196))
    one.publish(engine.batch(engine.stored([1, 2], prompt[:32], 16)))
    wait_for("the blocks are listed", lambda: len(aggregator.rows()) == 2)
    one.publish(engine.batch(engine.removed([2])))
    one.publish(engine.batch(engine.cleared()))
    wait_for("and removed", lambda: not aggregator.rows())
    one.publish(engine.batch(engine.stored([1, 2], prompt[:32], 16)))
    wait_for("and listed again", lambda: len(aggregator.rows()) == 2 and aggregator.is_exact())
    feed.send(dict.fromkeys(
        ("request_active_slots", "request_total_slots", "kv_active_blocks", "kv_total_blocks", "num_requests_waiting"), 1)
        | {"gpu_cache_usage_perc": 0.5, "gpu_prefix_cache_hit_rate": 0.5})
    query = json.dumps({"token_ids": prompt}).encode()
    me = json.loads(bus.request(f"{ROUTER}.kv_match", query))["aggregator"]
    routed = json.loads(bus.request(f"{ROUTER}.kv_route", query))
    for subject in (f"kv_match.{me}", f"kv_route.{me}"):
        bus.request(f"{ROUTER}.{subject}", query)
    for what in ("state", "load", "streams", "dump", f"state.{me}"):
        bus.request(f"{ROUTER}.kv_get.{what}", b"{}")
    for path in ("/first_token", "/finished"):
        assert aggregator.http("POST", path, {"request_id": routed["request_id"]})[0] == 200
    bus.request(f"{PUBLISH}.kv_refresh", b"{}")
    bus.request_many(f"{PUBLISH}.kv_sync.1.0", SNAPSHOT)
    for subject in ("$SRV.PING", "$SRV.INFO.kvaggregator", f"$SRV.STATS.kvaggregator.{me}"):
        bus.request(subject, b"")
    expected = set(addresses()) - {
        "window_events",  # of hybrid models
        "answers", "echo",  # of the daemons' inboxes
    }

    def are_all_seen():
        return expected <= {channel_of(message.subject) for message in (*seen, *services)}

    wait_for("a message of each channel", are_all_seen)
    read = {name for name, is_read in map(check, (*seen, *services)) if is_read}
    assert expected - read == {"events_pb", "heartbeat", "sync", "services", "services_of_a_kind", "one_service"}


def test_a_message_of_another_form_is_noticed():
    class Message:
        subject, data = f"{PUBLISH}.kv_events", b'{"worker_id":1,"event":{"event_id":1,"data":"clear","dp_rank":0}}'

    with pytest.raises(AssertionError, match="event"):
        check(Message)
    Message.data = Message.data.replace(b"clear", b"cleared")
    assert check(Message) == ("events", True)
    Message.subject = f"{PUBLISH}.kv_unknown.x.y"
    with pytest.raises(AssertionError, match="no channel"):
        check(Message)
