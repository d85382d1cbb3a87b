"""Does Helm render the chart to what kustomize makes of etc/kubernetes, object by object, do the objects fit
their schemas and the programs take their configurations, does each value do something, and is a wrong one
refused?"""

import copy
import json
import re

import pytest
import yaml

import manifests
from manifests import name_of, of_kind, render
from test_manifests import VERSIONS, validate

helm = pytest.importorskip("helm_python", reason="no Helm here: tests/requirements.txt names it")

pytestmark = pytest.mark.no_nats

CHART = manifests.TREE / "etc" / "helm" / "kvbridge"
ALONE = {"aggregator": {"enabled": False}}
NONE = {"bridge": {"mode": "none"}}
PICKER = {**NONE, "gateway": {"enabled": True}}
# The values that give the objects of a folder of etc/kubernetes.
SAME = {
    "sidecar": {"bridge": {"mode": "sidecar"}, "engine": {"image": "vllm/vllm-openai:VERSION"}, **ALONE},
    "daemonset": {"bridge": {"mode": "daemonset"}, **ALONE},
    "deployment": {"bridge": {"mode": "deployment"}, **ALONE},
    "aggregator": NONE,
    "gateway": PICKER,
    "gateway-istio": {**NONE, "gateway": {"enabled": True, "istio": True}},
}
ALL = {**SAME, "nats": {**NONE, **ALONE, "nats": {"install": True}}}


def chart(values):
    """The objects that Helm makes of the chart."""
    with helm.Chart.load(CHART) as loaded:
        made = loaded.render(values, name="kvbridge", namespace="inference")
    return [thing for name, text in sorted(made.items()) if name.endswith(".yaml")
            for thing in yaml.safe_load_all(text) if thing]


def comparable(things):
    """By name, without what the two ways do differently: the hash of a configuration is in the name of its
    ConfigMap or in an annotation; Helm sets a pull policy; the order of volumes; comments."""
    text = re.sub(r'("name": "(?:kvbridge-node|kvbridge-sidecar|kvbridge|kvaggregator))-[a-z0-9]{10}"', r'\1"', json.dumps(things))
    found = {}
    for thing in json.loads(text):
        if thing["kind"] == "ConfigMap":
            thing["data"] = {key: settings(value) for key, value in thing["data"].items()}
            thing["metadata"].pop("annotations", None)
            thing["metadata"].pop("labels", None)
        if thing in manifests.workloads([thing]):
            metadata = thing["spec"]["template"]["metadata"]
            metadata.pop("annotations", None)
            thing["spec"]["template"]["spec"]["volumes"].sort(key=lambda one: one["name"])
            for container in manifests.containers(thing):
                container.pop("imagePullPolicy", None)
                container["volumeMounts"].sort(key=lambda one: one["name"])
        found[name_of(thing)] = thing
    assert len(found) == len(things), "a name twice"
    return found


def settings(text):
    """A configuration without comments, and with one kind of space."""
    text = re.sub(r'("(?:[^"\\]|\\.)*")|#.*', lambda found: found[1] or "", text)
    return re.sub(r"\s*([=;(){},\[\]])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()


@pytest.mark.skipif(not manifests.kubectls(), reason="no kubectl here: tests/run fetches it")
@pytest.mark.first
@pytest.mark.parametrize("folder", SAME)
def test_the_chart_equals_the_folder(folder):
    ours, theirs = comparable(chart({"image": {"tag": "VERSION"}, **SAME[folder]})), comparable(render(folder))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert ours[name] == theirs[name], name


@pytest.mark.skipif(not manifests.kubectls(), reason="no kubectl here: tests/run fetches it")
def test_clients_of_its_nats_are_those_of_the_folder():
    """Its own server has no cluster and no exporter, so the policy has the first rule alone."""
    (ours,), (theirs,) = of_kind(chart(ALL["nats"]), "NetworkPolicy"), of_kind(render("nats"), "NetworkPolicy")
    theirs["spec"]["ingress"] = theirs["spec"]["ingress"][:1]
    assert ours == theirs
    (workload,), (service,) = of_kind(chart(ALL["nats"]), "Deployment"), of_kind(chart(ALL["nats"]), "Service")
    assert manifests.selects({"matchLabels": service["spec"]["selector"]}, manifests.labels_of(workload))
    assert manifests.ports_of(workload)["nats"] == service["spec"]["ports"][0]["port"] == 4222


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ALL)
def test_each_object_fits_its_schema(name, version):
    for thing in chart(ALL[name]):
        validate(thing, version)


@pytest.mark.first
@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("more", [{}, {"nats": {"credentials": True, "tls": True, "url": "tls://nats:4222"}}], ids=["plain", "tls"])
def test_the_programs_accept_their_configurations(tmp_path, name, more):
    things = chart({**SAME[name], **more})
    for workload, container in manifests.ours(things):
        done = manifests.check(tmp_path, things, workload, container)
        assert done.returncode == 0 and done.stdout.endswith(f"{container['command'][0]}.cfg: ok\n"), done


def test_a_picker_needs_the_aggregators():
    with pytest.raises(helm.HelmError, match="gateway.enabled needs aggregator.enabled"):
        chart({**PICKER, **ALONE})


# ---- Values ----------------------------------------------------------------------------

CHANGED = {
    "image.pullPolicy": "Always", "image.pullSecrets": [{"name": "s"}], "nats.url": "nats://other:4222",
    "publish.formats": ["json"], "bridge.mode": "none", "bridge.selector": "app=x", "bridge.preset": "aibrix",
    "bridge.tolerations": [], "engine.args": ["--x"], "engine.modelsVolume": {"hostPath": {"path": "/m"}},
    "aggregator.readyExact": 0, "gateway.failureMode": "FailClose", "gateway.engineNetworks": ["10.9.0.0/16"],
    "gateway.from": [{"podSelector": {}}], "gateway.poolLabels": {"app": "x"}, "bridge.nodeSelector": {"gpu": "yes"},
    "bridge.resources": {"limits": {"memory": "9Gi"}}, "engine.resources": {"limits": {"memory": "9Gi"}},
    "aggregator.resources": {"limits": {"memory": "9Gi"}},
}


def leaves(schema, path=()):
    for key, inner in schema["properties"].items():
        if "properties" in inner:
            yield from leaves(inner, (*path, key))
        elif key != "global":  # of Helm
            yield (*path, key)


with open(CHART / "values.schema.json") as file:
    VALUES = list(leaves(json.load(file)))


def value_at(values, path):
    return value_at(values[path[0]], path[1:]) if path else values


def with_value(values, path, value):
    changed = copy.deepcopy(values)
    value_at(changed, path[:-1])[path[-1]] = value
    return changed


def defaults():
    return yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("path", VALUES, ids=".".join)
def test_each_value_has_a_default_and_does_something(path):
    base = with_value(defaults(), ("nats", "install"), True)
    base = with_value(base, ("gateway", "enabled"), path[0] == "gateway")
    now, other = value_at(base, path), CHANGED.get(".".join(path))
    if other is None:
        other = not now if isinstance(now, bool) else now + 1 if isinstance(now, int) else f"{now}x"
    bases = [with_value(base, ("bridge", "mode"), mode) for mode in ("daemonset", "sidecar")]
    assert any(chart(one) != chart(with_value(one, path, other)) for one in bases)


@pytest.mark.parametrize("values", [
    {"bridges": {}}, {"bridge": {"mode": "daemon"}}, {"nats": {"url": "nats:4222"}}, {"aggregator": {"replicas": 0}},
    {"gateway": {"poolPort": "8000"}}, {"publish": {"formats": ["xml"]}}, {"publish": {"namespace": "a.b"}},
    {"aggregator": {"readyExact": 95}}], ids=json.dumps)
def test_a_wrong_value_is_refused(values):
    with pytest.raises(helm.HelmError):
        chart(values)


def test_the_version_is_that_of_the_project():
    version = re.search(r"VERSION (\S+) LANGUAGES", (manifests.TREE / "CMakeLists.txt").read_text())[1]
    made = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert made["version"] == made["appVersion"] == version
    assert {container["image"] for _, container in manifests.ours(chart({}))} == {f"kvbridge:{version}"}
    found = helm.lint(CHART)
    assert found["errors"] == [] and all("icon" in one["error"] for one in found["messages"]), found
