"""Does an aggregator forward registrations to the right bridge, and does a bridge take them only from a sender that knows
its token?"""

import hashlib
import hmac
import json

import pytest

import marked
from conftest import PUBLISH, shared_scene, worker
from programs import wait_for
from test_members import TOKEN, lists, post, registering, registration, store, streams

REGISTER = f"{PUBLISH}.kv_register"


def write_token(scene, name, token=TOKEN):
    path = scene.folder / name
    path.write_text(marked.mark(token) + "\n")
    path.chmod(0o640)
    return path


def receptionist(scene, token=TOKEN, place='namespace = "dynamo"; component = "VllmWorker";', **options):
    """An aggregator that takes registrations."""
    path = write_token(scene, f"aggregators-{len(scene.started)}", token)
    aggregator = scene.aggregator(extra=f'register = {{ token_file = "{path}"; {place} }};', wait=False, **options)
    wait_for("the aggregator is connected to NATS", lambda: aggregator.metric("kvb_nats_connected") == 1)
    return aggregator


def outcomes(program):
    names = {"kvbridge": ("taken", "denied", "malformed"), "kvaggregator": ("done", "refused", "failed")}
    kind = "kvaggregator" if program.name.startswith("kvaggregator") else "kvbridge"
    return tuple(program.metric("kvb_register_forwarded_total", outcome=one) for one in names[kind])


def ids(bridge):
    return {key[0] for key in streams(bridge, "/state")}


def test_a_worker_registers_at_the_aggregator(scene):
    """Of three bridges, the one with the fewest ranks gets the worker, further ranks follow the
    first one, and /unregister finds it."""
    of_file, more, vllm, second = [scene.engine() for _ in range(4)]
    crowded = registering(scene, worker(of_file, 1), name="kvbridge-crowded", profile="protobuf", wait=False)
    closed = scene.bridge(worker(more, 2), name="kvbridge-closed", profile="protobuf", wait=False)
    empty = registering(scene, name="kvbridge-empty", profile="protobuf", wait=False)
    aggregator = receptionist(scene)
    for program in (crowded, closed, empty, aggregator):
        wait_for(f"{program.name} is ready", program.is_ready, 15)
    vllm.publish(store(1))
    body = registration(vllm, instance_id=8)
    assert post(aggregator, "/register", body) == (201, {"status": "ok", "instance_id": 8, "worker_id": 8, "dp_rank": 0})
    assert (ids(crowded), ids(closed), ids(empty)) == ({1}, {2}, {8})
    wait_for("the block is listed", lists(aggregator, 8, 1))
    assert 8 in {row["instance_id"] for row in aggregator.get("/workers")}

    # The answers of the bridge itself are returned.
    status, answer = post(aggregator, "/register", body)
    assert status == 409 and "instance 8 dp_rank 0 already registered" in answer["error"]
    assert post(aggregator, "/register", registration(of_file, instance_id=1))[0] == 409
    # Rank 1 goes to the bridge that has rank 0, although the other bridge has as many ranks now.
    assert post(aggregator, "/register", registration(second, instance_id=8, dp_rank=1))[0] == 201
    assert set(streams(empty, "/state")) == {(8, 0), (8, 1)}

    assert post(aggregator, "/unregister", {"instance_id": 8}) == (
        200, {"status": "ok", "removed_instances": ["8"], "ranks": 2})
    assert ids(empty) == set()
    status, answer = post(aggregator, "/unregister", {"instance_id": 8})
    assert (status, answer) == (404, {"error": "instance 8 not found"})
    status, answer = post(aggregator, "/unregister", {"instance_id": 1})
    assert status == 409 and "is in the configuration file" in answer["error"]
    assert outcomes(aggregator) == (3, 4, 0)
    assert outcomes(empty) == (4, 0, 0)
    assert 'path="/register"' not in aggregator.text()


@pytest.fixture(scope="module", name="world")
def one_bridge(tmp_path_factory):
    """A bridge that takes registrations and reads worker 1."""
    with shared_scene(tmp_path_factory) as scene:
        yield scene, registering(scene, worker(scene.engine(), 1), profile="protobuf")


@pytest.fixture(autouse=True)
def mark_token():
    marked.mark(TOKEN)


def test_invalid_requests_are_refused_where_they_arrive(world):
    scene, bridge = world
    taken = outcomes(bridge)[0]
    aggregator = receptionist(scene, name="kvaggregator-of-all", place="")
    good = registration(scene.engine(), instance_id=8)
    for path, body, token, kind, status, says in (
            ("/register", good, None, "application/json", 401, "the token is missing"),
            ("/register", good, "wrong-token-0123456789", "application/json", 401, "the token is missing"),
            ("/register", good, TOKEN, "text/plain", 415, "application/json"),
            ("/register", {**good, "instance_id": None}, TOKEN, "application/json", 422, "missing field `instance_id`"),
            ("/register", {**good, "block_size": 0}, TOKEN, "application/json", 422, "block_size: expected"),
            ("/unregister", {}, TOKEN, "application/json", 422, "missing field `instance_id`"),
            ("/register", good, TOKEN, "application/json", 400, "or set register.namespace"),
            ("/register?namespace=dynamo", good, TOKEN, "application/json", 400, "or set register.component"),
            ("/register?namespace=dynamo&component=*", good, TOKEN, "application/json", 400, "component: name that"),
            (f"/register?namespace=dynamo&component={'C' * 65}", good, TOKEN, "application/json", 400, "component: name that"),
            (f"/register?component=VllmWorker&namespace={'n' * 600}", good, TOKEN, "application/json", 400, "namespace: name"),
            ("/register?namespace=dynamo&component=Other", good, TOKEN, "application/json", 503,
             "no bridge of namespace dynamo, component Other takes registrations")):
        answer = post(aggregator, path, body, token, kind)
        assert answer[0] == status and says in str(answer[1]), (path, body, answer)
    assert post(aggregator, "/register", "[" * 20000, TOKEN)[0] in (400, 413)
    assert outcomes(bridge)[0] == taken and ids(bridge) == {1}
    place = "?namespace=dynamo&component=VllmWorker"
    assert post(aggregator, f"/register{place}", good)[0] == 201
    assert ids(bridge) == {1, 8}
    assert post(aggregator, f"/unregister{place}", {"instance_id": 8})[0] == 200
    closed = scene.aggregator("kvaggregator-closed", wait=False)
    wait_for("the bridge answers", lambda: closed.http("GET", "/livez")[0] == 200)
    status, answer = post(closed, "/register", good)
    assert status == 403 and "register.token_file is not configured" in answer["error"]


def test_nobody_registers_without_the_token_of_the_bridge(world):
    """A client that may publish on the subject but has another token, or that repeats a message,
    changes nothing."""
    scene, bridge = world
    before = outcomes(bridge)
    other = "another-token-0123456789"
    stranger = receptionist(scene, name="kvaggregator-stranger", token=other)
    status, answer = post(stranger, "/register", registration(scene.engine(), instance_id=8), other)
    assert status == 403 and "must hold the same token" in answer["error"]
    assert outcomes(bridge) == (before[0], before[1] + 1, before[2])

    bus = scene.bus()
    seen = bus.watch(f"{REGISTER}.*")
    aggregator = receptionist(scene, name="kvaggregator-ours")
    assert post(aggregator, "/register", registration(scene.engine(), instance_id=8))[0] == 201
    wait_for("both messages", lambda: len(seen) == 2)
    forwarded = seen[1]
    assert TOKEN.encode() not in b"".join(message.data for message in seen)
    assert post(aggregator, "/unregister", {"instance_id": 8})[0] == 200
    repeated = json.loads(bus.request(forwarded.subject, forwarded.data))
    assert repeated["status"] == 403 and "the challenge is unknown, used or too old" in repeated["body"]
    assert ids(bridge) == {1}

    # The description of the proof in the documentation is enough to make one.
    offer = json.loads(bus.request(f"{REGISTER}.all", b'{"worker_id":1}'))
    assert (offer["ranks"], offer["held"]) == (1, 1) and offer["bridge_id"] == bridge.get("/state")["bridge_id"]
    for proven, status in (('{"instance_id":9}', 403), ('{"instance_id":1}', 409)):
        text = f'{offer["bridge"]}\n{offer["challenge"]}\n/unregister\n{proven}\n'.encode()
        answer = json.loads(bus.request(f'{REGISTER}.{offer["bridge"]}', json.dumps({
            "path": "/unregister", "challenge": offer["challenge"], "body": '{"instance_id":1}',
            "proof": hmac.new(TOKEN.encode(), text, hashlib.sha256).hexdigest()}).encode()))
        assert answer["status"] == status, answer
        offer = json.loads(bus.request(f"{REGISTER}.all", b'{"worker_id":1}'))
    for garbage in (b"", b"{}", b"[" * 3000):
        assert json.loads(bus.request(f'{REGISTER}.{offer["bridge"]}', garbage))["status"] == 400
    bus.publish(f'{REGISTER}.{offer["bridge"]}', b"{}", reply="$JS.API.STREAM.PURGE.x")
    wait_for("the metric counts the refusals", lambda: outcomes(bridge)[2] == before[2] + 4)


def test_a_bridge_that_hangs_is_named(world):
    scene, bridge = world
    aggregator = receptionist(scene, name="kvaggregator-deceived")
    bus = scene.bus()

    # It makes an offer and then never answers. Its name sorts before those of the other bridges.
    async def offer(message):
        await bus.client.publish(message.reply, json.dumps({
            "bridge": "0" * 16, "bridge_id": "silent", "ranks": 0, "held": 0, "challenge": "0" * 32}).encode())

    bus._wait(bus.client.subscribe(f"{REGISTER}.all", cb=offer))
    bus.flush()
    status, answer = post(aggregator, "/register", registration(scene.engine(), instance_id=8))
    assert status == 504 and "bridge silent did not answer within 2000 ms" in answer["error"]
    assert ids(bridge) == {1} and outcomes(aggregator) == (0, 0, 1)
