"""Does kubectl render each folder of etc/kubernetes, do its objects fit the published schemas and
each other, do the programs take their configurations, are token ids kept where the documents say,
and does Prometheus find the daemons?"""

import ipaddress
import json
import pathlib
import re
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest

import engine
import manifests
import programs
from manifests import FOLDERS, EXAMPLES, name_of, of_kind, ports_of, render
from programs import wait_for

pytestmark = [
    pytest.mark.no_nats, pytest.mark.skipif(not manifests.kubectls(), reason="no kubectl here: tests/run fetches it")]

# Native sidecars are on by default from 1.29.
VERSIONS = ["1.29", kubernetes_validate.latest_version()]


# ---- Rendering, schemas ----------------------------------------------------------------


def closed(properties, required=(), **more):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False, **more}


STRING = {"type": "string"}
STRINGS = {"type": "object", "additionalProperties": STRING}
# No package has these CRDs: they are the fields of the API references that we use, with their types and
# patterns.  A field that is not here is refused.
POD_MONITOR = closed({
    "apiVersion": {"const": "monitoring.coreos.com/v1"},
    "kind": {"const": "PodMonitor"},
    "metadata": closed({"name": STRING, "namespace": STRING, "labels": STRINGS}, ["name"]),
    "spec": closed({
        "selector": closed({"matchLabels": STRINGS}, ["matchLabels"]),
        "podMetricsEndpoints": {"type": "array", "minItems": 1, "items": closed({
            "port": STRING,
            "path": {"type": "string", "pattern": "^/"},
            "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
            "relabelings": {"type": "array", "items": closed({
                "action": {"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"]},
                "sourceLabels": {"type": "array", "items": {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}},
                "regex": STRING, "targetLabel": STRING, "replacement": STRING})},
        }, ["port"])},
    }, ["selector", "podMetricsEndpoints"]),
}, ["apiVersion", "kind", "metadata", "spec"])

NAMED = closed({"name": STRING, "namespace": STRING, "labels": STRINGS}, ["name"])
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
INFERENCE_POOL = closed({
    "apiVersion": {"const": "inference.networking.k8s.io/v1"},
    "kind": {"const": "InferencePool"},
    "metadata": NAMED,
    "spec": closed({
        "selector": closed({"matchLabels": STRINGS}, ["matchLabels"]),
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": closed({"number": PORT}, ["number"])},
        "appProtocol": {"enum": ["http", "kubernetes.io/h2c"]},
        "endpointPickerRef": closed({
            "group": STRING, "kind": STRING, "name": {"type": "string", "minLength": 1},
            "port": closed({"number": PORT}, ["number"]), "failureMode": {"enum": ["FailOpen", "FailClose"]}}, ["name"]),
    }, ["selector", "targetPorts", "endpointPickerRef"]),
}, ["apiVersion", "kind", "metadata", "spec"])
DESTINATION_RULE = closed({
    "apiVersion": {"const": "networking.istio.io/v1"},
    "kind": {"const": "DestinationRule"},
    "metadata": NAMED,
    "spec": closed({
        "host": {"type": "string", "minLength": 1},
        "trafficPolicy": closed({"tls": closed({
            "mode": {"enum": ["DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"]}, "insecureSkipVerify": {"type": "boolean"}},
            ["mode"])}),
    }, ["host"]),
}, ["apiVersion", "kind", "metadata", "spec"])
CUSTOM = {"PodMonitor": POD_MONITOR, "InferencePool": INFERENCE_POOL, "DestinationRule": DESTINATION_RULE}


def validate(thing, version):
    if thing["kind"] in CUSTOM:
        jsonschema.Draft202012Validator(CUSTOM[thing["kind"]]).validate(thing)
    else:
        kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_each_object_fits_its_schema(folder, version):
    for thing in render(folder):
        validate(thing, version)


# ---- Configurations --------------------------------------------------------------------


def places(folders):
    """[(folder, workload, container)] of the programs of this project, each with a test id."""
    found = []
    for folder in folders if manifests.kubectls() else []:
        for workload in manifests.workloads(render(folder)):
            for container in manifests.containers(workload):
                if container["image"].startswith("kvbridge:"):
                    found.append(pytest.param(folder, workload, container, id=f"{folder}-{workload['metadata']['name']}"))
    return found


@pytest.mark.first
@pytest.mark.parametrize("folder, workload, container", places(FOLDERS))
def test_the_program_accepts_its_configuration(tmp_path, folder, workload, container):
    done = manifests.check(tmp_path, render(folder), workload, container)
    *said, last = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 0 and last == f"{container['command'][0]}.cfg: ok", done
    assert all("the model of a pod: " in line for line in said), said


@pytest.mark.parametrize("folder, workload, container", places(FOLDERS))
def test_probes_and_metrics_are_where_the_program_listens(folder, workload, container):
    _, text = manifests.configuration(render(folder), workload, container)
    host, _, port = manifests.value_of(text, "http").rpartition(":")
    assert host == "0.0.0.0", "the kubelet comes to the pod's address"
    one, *more = container["ports"]
    assert one["containerPort"] == int(port)
    listens = re.findall(r'listen = "0\.0\.0\.0:(\d+)"', text)  # of a gateway
    assert [(each["name"], str(each["containerPort"])) for each in more] == [("gateway", number) for number in listens]
    probes = {key: value["httpGet"] for key, value in container.items() if key.endswith("Probe")}
    assert {probe["port"] for probe in probes.values()} == {one["name"]}
    assert probes["livenessProbe"]["path"] == "/livez"
    is_sidecar = container in workload["spec"]["template"]["spec"].get("initContainers", [])
    # The readiness of a sidecar is that of the pod: a loss of NATS must not take engines out of
    # service.
    assert ("readinessProbe" in probes) == (not is_sidecar)
    assert is_sidecar or probes["readinessProbe"]["path"] == {
        "kvbridge": "/readyz", "kvaggregator": "/readyz?exact=0.95"}[container["command"][0]]


# ---- Objects that name each other ---------------------------------------------------------

@pytest.mark.parametrize("folder", FOLDERS)
def test_selectors_select_pods_that_are_there(folder):
    things = render(folder)
    for workload in manifests.workloads(things):
        assert manifests.selects(workload["spec"]["selector"], manifests.labels_of(workload)), name_of(workload)
    for thing in of_kind(things, "PodDisruptionBudget"):
        assert manifests.selected(things, thing["spec"]["selector"]), name_of(thing)
    for thing in of_kind(things, "Service"):
        found = manifests.selected(things, {"matchLabels": thing["spec"]["selector"]})
        assert found, name_of(thing)
        for port in thing["spec"]["ports"]:
            assert all(ports_of(workload)[port["targetPort"]] == port["port"] for workload in found), name_of(thing)


def test_a_budget_leaves_one_pod():
    budgets = [thing for folder in FOLDERS for thing in of_kind(render(folder), "PodDisruptionBudget")]
    assert budgets
    for folder in FOLDERS:
        things = render(folder)
        for thing in of_kind(things, "PodDisruptionBudget"):
            pods = sum(one["spec"]["replicas"] for one in manifests.selected(things, thing["spec"]["selector"]))
            assert thing["spec"]["minAvailable"] == 1 < pods, "a node could never be drained"


@pytest.mark.parametrize("folder", EXAMPLES)
def test_policies_and_monitors_name_ports_of_the_pods_that_they_select(folder):
    things = render(folder)
    for thing in of_kind(things, "NetworkPolicy"):
        if manifests.selects(thing["spec"]["podSelector"], manifests.NATS_CHART):
            continue  # pods of the chart
        found = manifests.selected(things, thing["spec"]["podSelector"])
        assert found, name_of(thing)
        for rule in thing["spec"]["ingress"]:
            assert rule["from"], "an empty list is everybody"
            for one in rule["ports"]:
                assert all(one["port"] in {**ports_of(w), **{n: n for n in ports_of(w).values()}} for w in found), one
    for thing in of_kind(things, "PodMonitor"):
        found = manifests.selected(things, thing["spec"]["selector"])
        assert found, name_of(thing)
        for endpoint in thing["spec"]["podMetricsEndpoints"]:
            assert all(endpoint["port"] in ports_of(workload) for workload in found), name_of(thing)


def test_the_policy_of_nats_matches_the_chart():
    """Chart 1.x: Service nats with port 4222, container ports nats, cluster, monitor, prom-metrics."""
    (policy,) = of_kind(render("nats"), "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"] == manifests.NATS_CHART
    ports = [one["port"] for rule in policy["spec"]["ingress"] for one in rule["ports"]]
    assert ports == ["nats", "cluster", "prom-metrics"]
    clients = policy["spec"]["ingress"][0]["from"]
    for folder in FOLDERS:
        for workload, container in manifests.ours(render(folder)) if folder not in ("access", "nats") else ():
            assert any(manifests.selects(term["podSelector"], manifests.labels_of(workload)) for term in clients), folder
            _, text = manifests.configuration(render(folder), workload, container)
            assert re.fullmatch(r"(nats|tls)://nats:4222", manifests.value_of(text, "url"))


# ---- Security --------------------------------------------------------------------------

@pytest.mark.parametrize("folder, workload, container", places(FOLDERS))
def test_our_containers_have_only_the_rights_that_they_need(folder, workload, container):
    spec = workload["spec"]["template"]["spec"]
    allowed = {**spec.get("securityContext", {}), **container["securityContext"]}
    user, group = re.search(r"^USER (\d+):(\d+)$", (manifests.TREE / "etc/Dockerfile").read_text(), re.M).groups()
    assert allowed.pop("fsGroup", int(group)) == int(group)
    allowed.pop("fsGroupChangePolicy", None)
    assert allowed == {
        "runAsNonRoot": True, "runAsUser": int(user), "runAsGroup": int(group), "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert {"memory"} == container["resources"]["limits"].keys(), "bounded memory, and no throttling"
    assert spec["terminationGracePeriodSeconds"] >= 30
    has_account = spec.get("serviceAccountName") == "kvbridge"
    assert spec["automountServiceAccountToken"] is has_account
    for path, volume in manifests.mounts(workload, container).items():
        mount = next(one for one in container["volumeMounts"] if one["mountPath"] == path)
        assert mount.get("readOnly", False) == ("emptyDir" not in volume), path


def test_the_examples_run_this_version():
    version = re.search(r"VERSION (\S+) LANGUAGES", (manifests.TREE / "CMakeLists.txt").read_text())[1]
    images = {c["image"] for folder in EXAMPLES for _, c in manifests.ours(render(folder))}
    assert images == {f"kvbridge:{version}"}


def test_a_role_permits_reading_pods_and_nothing_else():
    for folder in FOLDERS:
        things = render(folder)
        assert not of_kind(things, "ClusterRole", "ClusterRoleBinding")
        roles = {thing["metadata"]["name"]: thing["rules"] for thing in of_kind(things, "Role")}
        assert all(
            rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
            for rules in roles.values())
        accounts = {thing["metadata"]["name"] for thing in of_kind(things, "ServiceAccount")}
        for thing in of_kind(things, "RoleBinding"):
            assert thing["roleRef"]["name"] in roles
            assert {one["name"] for one in thing["subjects"]} <= accounts
        for workload, container in manifests.ours(things) if folder not in ("access", "nats") else ():
            _, text = manifests.configuration(things, workload, container)
            account = workload["spec"]["template"]["spec"].get("serviceAccountName")
            assert (account in accounts) == bool(re.search(r"^kubernetes = ", text, re.M)), name_of(workload)


def is_loopback(endpoint):
    host = re.fullmatch(r"tcp://(.+):\d+", endpoint)[1]
    return host != "*" and ipaddress.ip_address(host).is_loopback


@pytest.mark.parametrize("folder", EXAMPLES)
def test_only_bridges_reach_the_ports_that_carry_token_ids(folder):
    things = render(folder)
    bridge = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "kvbridge"}}}
    assert manifests.engines(things)
    for workload, _, options in manifests.engines(things):
        events = options["events"]
        for name, endpoint in (("kv-events", events["endpoint"]), ("kv-replay", events["replay_endpoint"])):
            admitted = manifests.admitted(things, workload, programs.port_of(endpoint))
            if is_loopback(endpoint):
                assert admitted == [] and name not in ports_of(workload)
            else:
                assert admitted == [bridge] and ports_of(workload)[name] == programs.port_of(endpoint)
        assert manifests.admitted(things, workload, options["port"]), "requests come through"


def test_a_sidecar_matches_the_arguments_of_its_engine():
    """Ports, model and block size are written twice: in the arguments of vLLM and in kvbridge.cfg."""
    things = render("sidecar")
    ((workload, container, options),) = manifests.engines(things)
    ((_, bridge),) = manifests.ours(things)
    _, text = manifests.configuration(things, workload, bridge)
    events = options["events"]
    assert events["enable_kv_cache_events"] is True and events["publisher"] == "zmq"
    # vLLM connects to an endpoint without *; it always binds its replay endpoint.
    assert is_loopback(events["endpoint"]) and manifests.value_of(text, "bind") == "true"
    assert manifests.value_of(text, "events") == events["endpoint"]
    assert manifests.value_of(text, "replay") == events["replay_endpoint"]
    assert manifests.value_of(text, "model") == options["model"]
    assert int(manifests.value_of(text, "block_size")) == options["block_size"]
    assert manifests.value_of(text, "prometheus") == f"http://127.0.0.1:{options['port']}/metrics"
    assert ports_of(workload)["http"] == options["port"]
    assert bridge["restartPolicy"] == "Always", "a sidecar, not a step before the engine"


def test_a_bridge_that_watches_pods_finds_the_engine_as_it_is():
    """Selector, port names, numbers, model and block size are in the pod, in the arguments of vLLM
    and in kvbridge.cfg."""
    things = render("examples/daemonset")
    ((workload, container, options),) = manifests.engines(things)
    texts = [
        manifests.configuration(things, workload, container)[1] for folder in ("examples/daemonset", "daemonset", "deployment")
        for things in [render(folder)] for workload, container in manifests.ours(things)
        if container["command"][0] == "kvbridge"]
    assert len(texts) == 3
    ports = {"kv-events": options["events"]["endpoint"], "kv-replay": options["events"]["replay_endpoint"]}
    numbers = {name: programs.port_of(endpoint) for name, endpoint in ports.items()} | {"http": options["port"]}
    assert ports_of(workload) == numbers
    for text in texts:
        key, _, value = manifests.value_of(text, "selector").partition("=")
        assert manifests.labels_of(workload)[key] == value
        assert [int(manifests.value_of(text, f"{name}_port")) for name in ("events", "replay", "metrics")] == [*numbers.values()]
        annotations = workload["spec"]["template"]["metadata"]["annotations"]
        assert annotations[manifests.value_of(text, "model_label")] == options["model"]
        assert int(manifests.value_of(text, "block_size")) == options["block_size"]


# ---- The endpoint picker ----------------------------------------------------------------

POOLS = [folder for folder in FOLDERS if "gateway" in folder]


@pytest.mark.parametrize("folder", POOLS)
def test_a_pool_names_its_picker(folder):
    """Two ready pods behind the Service, or FailOpen does not work while one is replaced."""
    things = render(folder)
    (pool,) = of_kind(things, "InferencePool")
    picker = pool["spec"]["endpointPickerRef"]
    (service,) = [thing for thing in of_kind(things, "Service") if thing["metadata"]["name"] == picker["name"]]
    (port,) = service["spec"]["ports"]
    assert port["port"] == picker["port"]["number"] and port["appProtocol"] == "http2"
    ((workload, container),) = [one for one in manifests.ours(things) if one[1]["command"][0] == "kvaggregator"]
    assert manifests.selected(things, {"matchLabels": service["spec"]["selector"]}) == [workload]
    assert workload["spec"]["replicas"] >= 2 and "readinessProbe" in container
    _, text = manifests.configuration(things, workload, container)
    assert manifests.value_of(text, "listen") == f"0.0.0.0:{port['port']}"
    # Gateways speak TLS and do not check the certificate; Istio must be told so.
    assert "tls = { self_signed = true; };" in text
    for rule in of_kind(things, "DestinationRule"):
        assert rule["spec"]["host"] == picker["name"]
        assert rule["spec"]["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}


@pytest.mark.parametrize("folder", POOLS)
def test_only_gateways_reach_the_picker(folder):
    things = render(folder)
    ((workload, _),) = [one for one in manifests.ours(things) if one[1]["command"][0] == "kvaggregator"]
    terms = manifests.admitted(things, workload, ports_of(workload)["gateway"])
    assert [*map(json.dumps, terms)] == [
        json.dumps({"podSelector": {"matchExpressions": [
            {"key": "gateway.networking.k8s.io/gateway-name", "operator": "Exists"}]}}),
        json.dumps({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy-gateway-system"}}})]
    assert terms != manifests.admitted(things, workload, ports_of(workload)["http"])


def test_the_engines_of_a_pool_are_the_workers_of_its_picker():
    """What the gateway finds by the pool is what the picker answers: the pod's address and this port."""
    things = render("examples/gateway")
    (pool,) = of_kind(things, "InferencePool")
    ((workload, _, options),) = manifests.engines(things)
    assert manifests.selected(things, pool["spec"]["selector"]) == [workload]
    assert [one["number"] for one in pool["spec"]["targetPorts"]] == [options["port"]] == [ports_of(workload)["http"]]
    ((_, bridge),) = [one for one in manifests.ours(things) if one[1]["command"][0] == "kvbridge"]
    _, text = manifests.configuration(things, workload, bridge)
    for key in ("address", "tokenize"):
        assert manifests.value_of(text, key) == f"http://$(POD_IP):{options['port']}"


# ---- Prometheus ------------------------------------------------------------------------

def promtool(*words, text=None):
    program = shutil.which("promtool") or programs.TREE / "build" / "promtool"
    if not pathlib.Path(program).is_file():
        pytest.skip("no promtool here: tests/run fetches it")
    return subprocess.run([program, *map(str, words)], input=text, capture_output=True, text=True, timeout=60)


def test_promtool_accepts_the_pages_of_both_daemons(scene):
    scene.start_nats()
    vllm = scene.engine()
    aggregator = scene.aggregator()
    bridge = scene.bridge(f'id = 7; model = "m"; block_size = 16; events = "{vllm.events}"; replay = "{vllm.replay}";')
    vllm.publish(engine.batch(engine.stored([1], list(range(16)), 16)))
    wait_for("a block is listed", lambda: aggregator.metric("kvb_index_blocks") == 1)
    for daemon in (bridge, aggregator):
        done = promtool("check", "metrics", text=daemon.http("GET", "/metrics")[1])
        assert (done.returncode, done.stderr) == (0, ""), done


# ---- The sidecar, in use -----------------------------------------------------------------

def with_environment(container):
    return ["env", *(f"{name}={value}" for name, value in manifests.environment(container).items())]


def test_vllm_and_its_sidecar_work_together_as_configured(scene):
    """The flags of vLLM and the configurations of both daemons are as rendered; only ports differ."""
    scene.start_nats()
    things = render("examples/sidecar")
    texts = dict(manifests.configuration(things, workload, container) for workload, container in manifests.ours(things))
    prefixes = {container["command"][0]: with_environment(container) for _, container in manifests.ours(things)}
    ((_, _, options),) = manifests.engines(things)
    address = f"tcp://127.0.0.1:{programs.free_port()}"
    vllm = scene.engine_of(engine.ConnectingEngine, address=address, topic=options["events"]["topic"].encode())
    ports = {program: programs.free_port() for program in texts}
    addresses = {
        "nats://nats:4222": scene.nats_url, options["events"]["endpoint"]: address,
        options["events"]["replay_endpoint"]: vllm.replay, "/var/lib/kvbridge": str(scene.folder),
        "0.0.0.0:9401": f"127.0.0.1:{ports['kvbridge']}", "0.0.0.0:9402": f"127.0.0.1:{ports['kvaggregator']}",
    }

    def here(text):
        for old, new in addresses.items():
            text = text.replace(f'"{old}', f'"{new}')
        return text

    bridge, aggregator = (
        scene.daemon(name, here(texts[name]), ports[name], prefix=prefixes[name]) for name in ("kvbridge", "kvaggregator"))
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} is ready", daemon.is_ready)
    tokens = list(range(2 * options["block_size"]))
    vllm.publish(engine.batch(engine.MapForm.stored([1, 2], tokens, options["block_size"])))
    query = {"model": options["model"], "token_ids": tokens}
    wait_for("the engine's blocks are found", lambda: [
        row["longest_matched"] for row in json.loads(aggregator.http("POST", "/query", query)[1])["instances"].values()
    ] == [len(tokens)])
    (stream,) = aggregator.get("/streams")["streams"]
    assert stream["address"] == f"http://{manifests.FROM_FIELDS['status.podIP']}:{options['port']}", "what routers dial"
    for _, container in manifests.ours(things):
        daemon = {"kvbridge": bridge, "kvaggregator": aggregator}[container["command"][0]]
        for key in [key for key in container if key.endswith("Probe")]:
            wait_for(key, lambda: daemon.http("GET", container[key]["httpGet"]["path"])[0] == 200)

    assert bridge.stop() == 0, "as the kubelet stops it"
    wait_for("the goodbye", lambda: "bridge_stopped" in aggregator.http("GET", "/streams")[1])


def running(workload, name, ports):
    """A pod of the workload on this host, with these ports by name."""
    template = workload["spec"]["template"]
    shown = [
        {**one, "ports": [{**port, "containerPort": ports[port["name"]]} for port in one["ports"]]}
        for one in template["spec"]["containers"]]
    return {
        "metadata": {**template["metadata"], "name": name, "namespace": "inference"},
        "spec": {**template["spec"], "containers": shown, "nodeName": manifests.FROM_FIELDS["spec.nodeName"]},
        "status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}


def test_the_role_is_all_that_a_bridge_needs_to_read_its_pods(scene, kube):
    """The engine of the example, found by the bridge of the daemonset with a token of these rights."""
    scene.start_nats()
    things = render("daemonset")
    (role,) = of_kind(things, "Role")
    (rule,) = role["rules"]
    kube.new_token(namespaces=["inference"], verbs=rule["verbs"])
    kube.expire()
    vllm = scene.engine()
    ((workload, _, options),) = manifests.engines(render("examples/daemonset"))
    ports = {
        "kv-events": programs.port_of(vllm.events), "kv-replay": programs.port_of(vllm.replay),
        "http": programs.free_port()}
    kube.pods.create(running(workload, "here", ports))
    elsewhere = running(workload, "elsewhere", ports)
    kube.pods.create({**elsewhere, "spec": {**elsewhere["spec"], "nodeName": "node-b"}})

    ((daemonset, container),) = manifests.ours(things)
    _, text = manifests.configuration(things, daemonset, container)
    port = programs.free_port()
    for old, new in {
        "nats://nats:4222": scene.nats_url, "0.0.0.0:9401": f"127.0.0.1:{port}", "/var/lib/kvbridge": str(scene.folder),
        "kubernetes = {": f'kubernetes = {{ namespaces = ("inference"); kubeconfig = "{kube.bridge_kubeconfig}";',
    }.items():
        assert old in text
        text = text.replace(old, new)
    bridge = scene.daemon("kvbridge", text, port, prefix=with_environment(container))
    wait_for("kvbridge is ready", bridge.is_ready)

    (stream,) = wait_for("the pod of this node is read", lambda: bridge.get("/state")["streams"])
    assert stream["origin"] == "kubernetes" and stream["endpoint"] == vllm.events
    tokens = list(range(options["block_size"]))
    vllm.publish(engine.batch(engine.MapForm.stored([1], tokens, options["block_size"])))
    wait_for("the list is EXACT", lambda: bridge.metric("kvb_streams", state="exact") == 1)
    wait_for("the watch has begun", lambda: kube.counts["watch"])
    assert not [each for each in kube.counts if each.endswith((" 401", " 403"))], kube.counts
