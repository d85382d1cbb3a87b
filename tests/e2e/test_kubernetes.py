"""Are the workers of a bridge the pods that the API server lists, whatever happens to either?"""

import itertools
import json
import re
import time

import pytest

import programs
from conftest import NAMESPACE, PUBLISH, ROUTER, worker
from pod_store import container, engine_pod, pod_status
from programs import wait_for
from test_faults import store, tokens_of
from test_members import EngineApi, lists

MAX_PODS = 8192  # kvb_max_workers


def config(kube, **keys):
    values = {"namespaces": ["inference"], "selector": "app=vllm", "kubeconfig": str(kube.bridge_kubeconfig)}
    defaults = {"metrics_port": 0, "model": "m"}
    for key, value in keys.items():
        (defaults if key in ("model", "events_port", "discover") else values)[key] = value

    def text(value):
        if isinstance(value, list):
            return "(" + ", ".join(json.dumps(one) for one in value) + ")"
        return json.dumps(value)

    def group(name, rows):
        return name + " = {" + " ".join(f"{key} = {text(value)};" for key, value in rows.items()) + "};\n"

    return group("kubernetes", values) + group("defaults", defaults)


class Pods:
    """Engines that act as pods, at addresses 127.0.0.2, 127.0.0.3, ..."""

    def __init__(self, scene, kube):
        self.scene, self.kube = scene, kube
        self.engines = {}
        self.last = 1

    def address(self):
        self.last += 1
        return f"127.0.0.{self.last}"

    def start(self, name, ip=None, age_s=0, **more):
        ip = ip or self.address()
        one = self.scene.engine(bind=f"tcp://{ip}:*", bind_replay=f"tcp://{ip}:*")
        self.engines[name] = one
        return self.create(name, ip, one, age_s, **more)

    def create(self, name, ip, one, age_s=0, **more):
        ports = {"kv_events": int(one.events.rpartition(":")[2]), "kv_replay": int(one.replay.rpartition(":")[2])}
        return self.kube.pods.create(engine_pod(name, ip=ip, containers=[container(**ports)], **more), age_s=age_s)


@pytest.fixture
def pods(scene, kube):
    return Pods(scene, kube)


def state(bridge):
    return bridge.get("/state")


def names(bridge):
    """{pod: stream} of the pods that are read."""
    return {stream["pod"]: stream for stream in state(bridge)["streams"] if stream["origin"] == "kubernetes"}


def has(bridge, *wanted):
    return lambda: set(names(bridge)) == set(wanted)


def reasons(bridge):
    return {row["pod"]: row["reason"] for row in state(bridge)["kubernetes"]["not_taken"]}


def metric(bridge, name):
    for line in bridge.http("GET", "/metrics")[1].splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    raise AssertionError(f"no {name}")


def watching(scene, kube, published=(), **keys):
    bridge = scene.bridge(limits=config(kube, **keys), labels=list(published))
    wait_for("the pods are watched", lambda: state(bridge)["kubernetes"]["state"] in ("watching", "empty"))
    return bridge


# ---- Pods come and go --------------------------------------------------------------------


@pytest.mark.first
def test_pods_that_run_are_workers_and_leave_with_their_blocks(scene, kube, pods):
    aggregator = scene.aggregator()
    pods.start("a")
    bridge = watching(scene, kube)
    wait_for("the pod is a worker", has(bridge, "a"))
    pods.start("b", node="node-b", ready=True)
    wait_for("the other one, too", has(bridge, "a", "b"))
    stream = names(bridge)["b"]
    assert (stream["node"], stream["namespace_k8s"], stream["ready"]) == ("node-b", "inference", True)
    pods.engines["b"].publish(store(1))
    wait_for("the pod's block is listed", lists(aggregator, stream["worker_id"], 1))
    kube.pods.delete("inference", "b")
    wait_for("the pod drains", lambda: names(bridge)["b"]["draining"])
    assert lists(aggregator, stream["worker_id"], 1)()  # the pod still exists
    kube.pods.finish("inference", "b")
    wait_for("the pod is no worker any more", has(bridge, "a"))
    wait_for("the pod's block is not listed any more", lists(aggregator, stream["worker_id"]))
    assert metric(bridge, "kvb_kubernetes_relists_total") == 0
    assert metric(bridge, 'kvb_kubernetes_requests_total{verb="list"}') == 1


def test_an_address_that_is_given_to_another_pod_mixes_no_lists(scene, kube, pods):
    """The pods overlap: the node of the first one was lost, and the API server does not know that
    yet."""
    aggregator = scene.aggregator()
    pods.start("a")
    bridge = watching(scene, kube)
    wait_for("the pod is a worker", has(bridge, "a"))
    one, first = pods.engines["a"], names(bridge)["a"]["worker_id"]
    one.publish(store(1))
    wait_for("the pod's block is listed", lists(aggregator, first, 1))
    one.close()
    time_to_tell = 1.1  # timestamps of the API are in seconds
    wait_for("a second", lambda began=time.monotonic(): time.monotonic() - began > time_to_tell)
    other = scene.engine(bind=one.events, bind_replay=one.replay)
    other.publish(store(2))
    pods.create("b", one.events.split("/")[2].split(":")[0], other)
    wait_for("the younger has the address", has(bridge, "b"))
    wait_for("the older pod is refused with its reason", lambda: reasons(bridge) == {"a": "address_taken"})
    wait_for("each list has only its engine's block", lambda: lists(aggregator, names(bridge)["b"]["worker_id"], 2)()
             and lists(aggregator, first)())
    kube.pods.delete("inference", "a", grace_s=0)
    wait_for("the older pod is not shown any more", lambda: reasons(bridge) == {})


def test_what_a_pod_is_stands_in_every_answer(scene, kube, pods):
    """Its name, node, role, labels and readiness, and that it drains; test_worker_facts.py has the rest."""
    aggregator, bus = scene.aggregator(), scene.bus()
    statuses, beats = bus.watch(f"{PUBLISH}.bridge_status"), bus.watch(f"{PUBLISH}.kv_heartbeat_json")
    pods.start("a", node="node-b", ready=True, labels={"app": "vllm", "llm-d.ai/role": "decode", "zone": "c"})
    bridge = scene.bridge(limits=config(kube), labels=["zone"], heartbeat_ms=100)
    wait_for("the pod is a worker", has(bridge, "a"))
    wait_for("its engine is there", lambda: pods.engines["a"].requests)
    pods.engines["a"].publish(store(1))
    worker_id = names(bridge)["a"]["worker_id"]
    wait_for("its block is listed", lists(aggregator, worker_id, 1))
    question = {"token_ids": tokens_of(1), "model": "m"}
    subject = {"query": f"{ROUTER}.kv_match", "route": f"{ROUTER}.kv_route"}

    def ask(path, **more):
        return json.loads(aggregator.http("POST", f"/{path}", {**question, **more})[1])

    def ask_nats(name, **more):
        return json.loads(bus.request(subject[name], json.dumps({**question, **more}).encode()))

    def answers():
        def of(rows):
            return next(row for row in rows if row.get("worker_id", row.get("instance_id")) == worker_id)

        return {
            "heartbeat": of(json.loads(beat.data) for beat in reversed(list(beats))),
            "bridge_status": of(json.loads(statuses[-1].data)["streams"]), "/state": names(bridge)["a"],
            "/workers": of(aggregator.get("/workers")), "/streams": of(aggregator.get("/streams")["streams"]),
            "/query": ask("query")["workers"][str(worker_id)], "kv_match": of(ask_nats("query")["workers"]),
        }

    pod = {"pod": "a", "namespace_k8s": "inference", "node": "node-b", "role": "decode", "labels": {"zone": "c"}, "ready": True}

    def have_all(**wanted):
        return lambda: [name for name, row in answers().items() if not wanted.items() <= row.items()] == []

    wait_for("all say what it is", have_all(**pod))
    for route in (ask("route", dry_run=True), ask_nats("route", dry_run=True)):
        assert pod.items() <= route.items(), route
    kube.pods.patch("inference", "a", {"status": pod_status("127.0.0.2", "Running", ready=False)})
    wait_for("it is not ready", have_all(**{**pod, "ready": False}))
    kube.pods.delete("inference", "a")
    wait_for("it drains", have_all(**{**pod, "ready": False, "draining": True}))


def test_an_engine_whose_container_restarts_is_probed_at_once_although_it_publishes(scene, kube, pods):
    pods.start("a")
    bridge = watching(scene, kube)
    wait_for("the pod is a worker", has(bridge, "a"))
    engine, number = pods.engines["a"], itertools.count(1)

    def publishes():
        engine.publish(store(next(number)))
        return names(bridge)["a"]["state"] == "EXACT" and len(engine.requests)

    def quiet():
        before = publishes()
        return before and all(publishes() == before for _ in range(20))

    wait_for("no replay is requested while the engine publishes", quiet)
    before = len(engine.requests)
    kube.pods.patch("inference", "a", {"status": pod_status("127.0.0.2", "Running", restarts=1)})
    wait_for("the engine is probed", lambda: publishes() and len(engine.requests) > before)
    assert names(bridge)["a"]["reconnects"] == 0
    assert metric(bridge, "kvb_kubernetes_restarts_total") == 1


# ---- Why not -------------------------------------------------------------------------------


def test_each_pod_that_is_not_taken_has_its_reason(scene, kube, pods):
    pods.start("taken")
    ip = pods.address()
    for name, more in {
        "pending": {"ip": None}, "ended": {"ip": ip, "phase": "Succeeded"}, "no-ip": {"ip": None, "phase": "Running"},
    }.items():
        kube.pods.create(engine_pod(name, containers=[container(kv_events=5557)], **more))
    kube.pods.create(engine_pod("silent", ip=pods.address(), containers=[container(http=8000)]))
    pods.start("relabelled")
    bridge = watching(scene, kube, events_port=0)
    wait_for("two are taken", has(bridge, "taken", "relabelled"))
    kube.pods.patch("inference", "relabelled", {"metadata": {"labels": {"app": "other"}}})
    wait_for("one is left", has(bridge, "taken"))
    wait_for("each refused pod has its reason", lambda: reasons(bridge) == {
        "pending": "phase", "ended": "phase", "no-ip": "no_ip", "silent": "no_port", "relabelled": "relabelled",
    })
    assert state(bridge)["kubernetes"]["pods"]["phase"] == 2
    assert metric(bridge, 'kvb_kubernetes_pods{state="relabelled"}') == 1
    kube.pods.patch("inference", "relabelled", {"metadata": {"labels": {"app": "vllm"}}})
    wait_for("both pods are workers again", has(bridge, "taken", "relabelled"))


def test_a_selector_that_matches_nothing_is_a_state_that_is_logged_once(scene, kube, pods):
    pods.start("a")
    bridge = scene.bridge(limits=config(kube, selector="app=nothing"))
    wait_for("the log says so", lambda: "no pod matches" in bridge.text())
    wait_for("the state is empty", lambda: state(bridge)["kubernetes"]["state"] == "empty")
    kube.bookmark()
    wait_for("a bookmark", lambda: metric(bridge, 'kvb_kubernetes_events_total{kind="bookmark"}') == 1)
    assert bridge.text().count("no pod matches") == 1
    assert bridge.http("GET", "/readyz")[0] == 200


# ---- The API server ---------------------------------------------------------------------------


def test_while_the_api_is_away_all_workers_stay(scene, kube, pods):
    aggregator = scene.aggregator()
    pods.start("a")
    bridge = watching(scene, kube)
    wait_for("the pod is a worker", has(bridge, "a"))
    worker_id = names(bridge)["a"]["worker_id"]
    kube.go_away()
    wait_for("the state is away", lambda: state(bridge)["kubernetes"]["state"] == "away")
    pods.engines["a"].publish(store(1))
    wait_for("blocks of the worker are still read", lists(aggregator, worker_id, 1))
    assert bridge.http("GET", "/readyz")[0] == 200
    wait_for("since when", lambda: state(bridge)["kubernetes"]["away_s"] >= 1)
    assert metric(bridge, "kvb_kubernetes_connected") == 0
    kube.pods.delete("inference", "a", grace_s=0)
    pods.start("b")
    kube.come_back()
    wait_for("what happened meanwhile is known", has(bridge, "b"))
    wait_for("the state is watching", lambda: state(bridge)["kubernetes"]["state"] == "watching")
    bridge.wait_until_it_says("the API server is unreachable or refuses: all workers stay")


def test_a_kubeconfig_gives_the_api_and_the_identity(scene, kube, pods):
    kube.kubeconfig.chmod(0o600)
    pods.start("a")
    bridge = watching(scene, kube, kubeconfig=str(kube.kubeconfig), namespaces=[])
    wait_for("the pod is a worker", has(bridge, "a"))  # the context's namespace
    kube.new_token()
    kube.kubeconfig.chmod(0o600)
    kube.expire()
    pods.start("b")
    wait_for("the new token is read after a 401", has(bridge, "a", "b"))


def test_missing_rights_of_the_role_are_reported(scene, kube):
    kube.new_token(verbs=["get"])
    bridge = scene.bridge(limits=config(kube))
    wait_for("the log says so", lambda: "the Role needs get, list and watch of pods" in bridge.text())
    wait_for("/state, too, and since when", lambda: state(bridge)["kubernetes"]["state"] == "away"
             and state(bridge)["kubernetes"]["away_s"] >= 1)


def test_a_certificate_that_has_expired_is_an_api_that_is_away(scene, kube, pods):
    kube.new_certificate(days=-1)
    pods.start("a")
    bridge = scene.bridge(limits=config(kube))
    wait_for("the log says so", lambda: "certificate has expired" in bridge.text())
    kube.new_certificate(new_authority=True)  # the file of the CA is new, too
    wait_for("the pod is a worker", has(bridge, "a"))


# ---- What it may answer, too ----------------------------------------------------------------


def line(kind, thing):
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


@pytest.mark.parametrize("how", ["event", "status"])
def test_an_expired_version_causes_a_list_that_keeps_unchanged_workers(scene, kube, pods, how):
    kube.gone_as = how
    pods.start("a")
    pods.start("b")
    bridge = watching(scene, kube)
    wait_for("the pods are workers", has(bridge, "a", "b"))
    before = {name: stream["reconnects"] for name, stream in names(bridge).items()}
    kube.go_away()
    wait_for("the state is away", lambda: state(bridge)["kubernetes"]["state"] == "away")
    kube.pods.delete("inference", "b", grace_s=0)
    kube.pods.skip_versions(5)
    kube.pods.compact()
    kube.come_back()
    wait_for("one is left", has(bridge, "a"))
    wait_for("by a list", lambda: metric(bridge, "kvb_kubernetes_relists_total") == 1)
    assert names(bridge)["a"]["reconnects"] == before["a"]


def test_lines_split_at_every_byte_and_lists_in_pages(scene, kube, pods):
    for number in range(501):  # one more than a page has
        kube.pods.create(engine_pod(f"idle-{number}", ip=None))
    kube.split_bytes = 1
    pods.start("a")
    bridge = watching(scene, kube)
    wait_for("the pod of the second page is a worker", has(bridge, "a"))
    assert metric(bridge, 'kvb_kubernetes_requests_total{verb="list"}') == 2
    pods.start("b")
    wait_for("the pod of the watch is a worker", has(bridge, "a", "b"))
    assert state(bridge)["kubernetes"]["pods"]["phase"] == 501
    assert len(state(bridge)["kubernetes"]["not_taken"]) == 32


def test_a_kubeconfig_that_others_may_read_or_that_runs_a_program_is_refused(scene, kube, tmp_path):
    path = tmp_path / "kubeconfig"

    def check(text, mode=0o600):
        path.write_text(text)
        path.chmod(mode)
        config_file = tmp_path / "bridge.cfg"
        config_file.write_text('publish = { namespace = "n"; component = "c"; };\n' + config(kube, kubeconfig=str(path)))
        done = programs.run("kvbridge", "--config", config_file, "--check")
        return done.stdout + done.stderr

    good = kube.kubeconfig.read_text()
    assert "kubernetes.kubeconfig" not in check(good)
    assert "kubernetes.kubeconfig: every user may read or write" in check(good, 0o644)
    assert "exec: no program is run" in check(good.replace('"token"', '"exec"'))
    assert "client-key" not in check(good) and "cannot read" in check(
        good.replace('"token"', '"client-key": "gone.key", "token"'))
    assert "tokenFile cannot be used now: cannot read" in check(good.replace('"token"', '"tokenFile"'))
    clear = check(good.replace("https://", "http://"))
    assert "kubernetes.kubeconfig: the token goes over http:// in clear" in clear


def test_refusals_are_waited_out_and_said(scene, kube, pods):
    pods.start("a")
    kube.refuse(429, times=1, verb="list", retry_after=2)
    kube.refuse(503, times=2, verb="watch")
    began = time.monotonic()
    bridge = scene.bridge(limits=config(kube))
    wait_for("the pod is a worker", has(bridge, "a"))
    assert time.monotonic() - began >= 2
    pods.start("b")
    wait_for("and the next", has(bridge, "a", "b"))


def test_watches_that_end_at_once_are_said(scene, kube, pods):
    pods.start("a")
    kube.intercept(lambda handler: handler.answer(b""), times=1000, verb="watch")
    bridge = scene.bridge(limits=config(kube))
    wait_for("the log says why", lambda: any(
        "the API server is unreachable or refuses" in line and "ends watches at once" in line
        for line in bridge.text().splitlines()))


def test_bad_objects_are_counted_and_affect_no_others(scene, kube, pods):
    pods.start("a")
    bridge = watching(scene, kube, published=["zone"])
    wait_for("the pod is a worker", has(bridge, "a"))
    large = engine_pod("large", ip="127.0.0.200", annotations={"x": "y" * (2 << 20)}, uid="large")
    wordy = engine_pod("wordy", ip="127.0.0.202", uid="wordy", labels={"app": "vllm", "zone": "x" * 300})
    many = engine_pod("many", ip="127.0.0.201", uid="many", containers=[container(
        kv_events=5557, **{f"p{number}": 1000 + number for number in range(299)})])
    kube.say(line("ADDED", large))
    kube.say(line("ADDED", {"kind": "Node", "metadata": {"name": "n", "uid": "n"}}))
    kube.say(line("EXPLODED", {"kind": "Pod", "metadata": {"name": "n", "uid": "n"}}))
    kube.say(b'{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"\xff\xfe","uid":"odd"}}}\n')
    kube.say(line("ADDED", many))
    kube.say(line("ADDED", wordy))
    pods.start("b")
    wait_for("the pods are workers", has(bridge, "a", "b", "many", "wordy"))
    wait_for("the others are counted", lambda: state(bridge)["kubernetes"]["refused"] == {
        "too_large": 1, "invalid": 1, "other_kind": 1, "ceiling": 0})
    assert metric(bridge, 'kvb_kubernetes_events_total{kind="unknown"}') == 1
    assert metric(bridge, "kvb_kubernetes_ports_beyond_total") == 300 - 64
    assert metric(bridge, "kvb_kubernetes_labels_refused_total") == 1
    assert metric(bridge, 'kvb_kubernetes_requests_total{verb="watch"}') == 1


def test_pods_above_the_ceiling_are_counted_and_the_others_stay(scene, kube, pods):
    pods.start("a")
    for number in range(MAX_PODS):
        kube.pods.create(engine_pod(f"idle-{number}", ip=None))
    bridge = watching(scene, kube)
    wait_for("the pod is a worker", has(bridge, "a"))
    wait_for("one is beyond", lambda: state(bridge)["kubernetes"]["refused"]["ceiling"] == 1)
    wait_for("the others are counted", lambda: state(bridge)["kubernetes"]["pods"]["phase"] == MAX_PODS - 1)
    wait_for("so is the one", lambda: metric(bridge, 'kvb_kubernetes_objects_refused_total{reason="ceiling"}') == 1)
    assert bridge.http("GET", "/readyz")[0] == 200


def test_a_list_without_an_end_is_given_up_and_tried_again(scene, kube, pods):
    pods.start("a")

    def endless(handler):
        body = {"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": "again"}, "items": []}
        text = json.dumps(body).encode()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(text) + text)

    kube.intercept(endless, times=512, verb="list")
    bridge = scene.bridge(limits=config(kube))
    wait_for("the pod is a worker", has(bridge, "a"))


def test_a_pod_whose_engine_says_where_its_events_are_is_discovered(scene, kube, pods):
    ip = pods.address()
    one = scene.engine(bind=f"tcp://{ip}:*", bind_replay=f"tcp://{ip}:*")
    api = EngineApi()
    api.sources = [{"data_parallel_rank": 0, "endpoint": one.events.replace(ip, "*"),
                    "replay_endpoint": one.replay.replace(ip, "*"), "topic": "kv-events"}]
    api.start(ip)
    kube.pods.create(engine_pod("a", ip=ip, containers=[container(http=api.port)]))
    bridge = watching(scene, kube, discover="address")
    wait_for("the pod's rank is read", lambda: [
        s["pod"] for s in state(bridge)["streams"] if s["origin"] == "discovered"] == ["a"])
    kube.pods.delete("inference", "a", grace_s=0)
    wait_for("the pod's stream is gone", lambda: state(bridge)["streams"] == [])
    api.close()


# ---- What people read ------------------------------------------------------------------------------------


def test_kvctl_lists_workers_and_refused_pods(scene, kube, pods):
    pods.start("a")
    kube.pods.create(engine_pod("waits", ip=None))
    one = scene.engine()
    bridge = scene.bridge(worker(one), limits=config(kube))
    wait_for("the pod is a worker", has(bridge, "a"))
    wait_for("the other is not", lambda: reasons(bridge) == {"waits": "phase"})

    def kvctl(*words):
        return scene.kvctl("--namespace", NAMESPACE, *words, check=True).stdout

    text = kvctl("workers")
    assert re.search(r"^ *7 +0 +file ", text, re.M) and re.search(r" kubernetes .* a +node-a", text)
    assert re.search(r"waits +inference +phase ", text)
    answer = json.loads(kvctl("--json", "workers"))
    assert {row["origin"] for row in answer["workers"]} == {"file", "kubernetes"}
    assert answer["pods"][0]["reason"] == "phase"


def test_what_a_pod_runs_names_its_model(scene, kube, pods):
    runs = {
        "one-list": {"command": ["vllm"], "args": ["serve", "Qwen/Q", "--block_size", "4"]},
        "shell": {"command": ["/bin/sh", "-c"], "args": ["cd /w && exec vllm serve 'Qwen/Q' \\\n --block-size 4"]},
        "entry-point": {"args": ["Qwen/Q", "--block-size=4"]},
        "unknown": {"command": ["sh", "-c", "vllm serve $(cat /w/name)"]},
    }
    for name, words in runs.items():
        ip = pods.address()
        one = scene.engine(bind=f"tcp://{ip}:*", bind_replay=f"tcp://{ip}:*")
        ports = {"kv_events": int(one.events.rpartition(":")[2]), "kv_replay": int(one.replay.rpartition(":")[2])}
        kube.pods.create(engine_pod(name, ip=ip, containers=[{**container(**ports), **words}]))
    bridge = scene.bridge(limits=config(kube, model=""))
    wait_for("the pods are workers", has(bridge, "one-list", "shell", "entry-point"))
    wait_for("the last is not", lambda: reasons(bridge) == {"unknown": "no_model"})
    found = {pod: (row["model"], row["block_size"], row["model_rule"]) for pod, row in names(bridge).items()}
    assert found == {
        "one-list": ("Qwen/Q", 4, "argument of serve"),
        "shell": ("Qwen/Q", 4, "argument of serve"),
        "entry-point": ("Qwen/Q", 4, "first argument"),
    }
    wait_for("its metrics name the pod", lambda: 'pod_key="inference/one-list"' in bridge.http("GET", "/metrics")[1])
    text = scene.kvctl("--namespace", NAMESPACE, "workers", check=True).stdout
    assert len(re.findall(r" Qwen/Q +argument of serve ", text)) == 2, text


def test_a_pod_whose_engine_does_not_say_where_its_events_are_is_read_at_its_ports(scene, kube, pods):
    """In one list with engines that report it, as during a rolling update from an old release to a
    new one."""
    ip = pods.address()
    one = scene.engine(bind=f"tcp://{ip}:*", bind_replay=f"tcp://{ip}:*")
    api = EngineApi()
    api.answer = lambda path: None  # no such page
    api.start(ip)
    ports = {"kv_events": int(one.events.rpartition(":")[2]), "kv_replay": int(one.replay.rpartition(":")[2])}
    kube.pods.create(engine_pod("a", ip=ip, containers=[container(http=api.port, **ports)]))
    bridge = watching(scene, kube, discover="address")
    wait_for("the pod's rank is read", lambda: [
        (s["pod"], s["endpoint"]) for s in state(bridge)["streams"] if s["origin"] == "discovered"
    ] == [("a", one.events)])
    one.publish(store(1))
    wait_for("the stream is EXACT", lambda: [s["state"] for s in state(bridge)["streams"]] == ["EXACT"])
    api.close()
