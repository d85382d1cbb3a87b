"""Renders etc/kubernetes with kubectl, and interprets its objects: which pods a selector selects,
where a container's configuration comes from, who may reach a port, what Prometheus makes of a
PodMonitor."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import yaml

import authority
import logins
import programs
from programs import TREE

KUBERNETES = TREE / "etc" / "kubernetes"
FOLDERS = sorted(str(path.parent.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("kustomization.yaml"))
EXAMPLES = [name for name in FOLDERS if name.startswith("examples/")]
NATS_CHART = {"app.kubernetes.io/name": "nats", "app.kubernetes.io/component": "nats"}


# ---- Rendering ---------------------------------------------------------------------

@functools.cache
def kubectls():
    """Debian's kubectl, and the one in PATH when that is another."""
    return [str(path) for path in (TREE / "build" / "kubectl", shutil.which("kubectl")) if path and pathlib.Path(path).is_file()]


@functools.cache
def is_old(kubectl):
    """Debian 12's kubectl 1.20 has kustomize 2.0, which calls folders `bases`; `resources` are files."""
    said = json.loads(subprocess.check_output([kubectl, "version", "--client", "-o", "json"], timeout=60))
    return int(said["clientVersion"]["minor"].rstrip("+")) < 21


@functools.cache
def rendered_text(folder, kubectl):
    with tempfile.TemporaryDirectory() as copy:
        source = KUBERNETES
        if is_old(kubectl):
            source = pathlib.Path(shutil.copytree(KUBERNETES, pathlib.Path(copy) / "kubernetes"))
            for path in source.rglob("kustomization.yaml"):
                with_bases(path)
        done = subprocess.run([kubectl, "kustomize", source / folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def with_bases(path):
    made = yaml.safe_load(path.read_text())
    # 2.0 has a key of its own for patches that are objects.
    made["patchesStrategicMerge"] = [one["path"] for one in made.pop("patches", [])]
    made["bases"] = [name for name in made["resources"] if (path.parent / name).is_dir()]
    made["resources"] = [name for name in made["resources"] if name not in made["bases"]]
    path.write_text(yaml.safe_dump(made))


def render(folder, kubectl=None):
    return [thing for thing in yaml.safe_load_all(rendered_text(folder, kubectl or kubectls()[0])) if thing]


def of_kind(things, *kinds):
    return [thing for thing in things if thing["kind"] in kinds]


def name_of(thing):
    return f"{thing['kind']}/{thing['metadata']['name']}"


# ---- Pods --------------------------------------------------------------------------

def workloads(things):
    return of_kind(things, "Deployment", "DaemonSet", "StatefulSet")


def containers(workload):
    spec = workload["spec"]["template"]["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def ours(things):
    """[(workload, container)] of kvbridge and kvaggregator."""
    found = [(w, c) for w in workloads(things) for c in containers(w) if c["image"].partition(":")[0] == "kvbridge"]
    assert found
    return found


def selects(selector, labels):
    """matchLabels and matchExpressions; an empty selector matches everything."""
    def holds(term):
        there = term["key"] in labels
        inside = there and labels[term["key"]] in term.get("values", [])
        return {"In": inside, "NotIn": not inside, "Exists": there, "DoesNotExist": not there}[term["operator"]]

    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        holds(term) for term in selector.get("matchExpressions", []))


def labels_of(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def selected(things, selector):
    return [workload for workload in workloads(things) if selects(selector, labels_of(workload))]


def ports_of(workload):
    """{name: number} of the ports of all its containers."""
    return {port["name"]: port["containerPort"] for one in containers(workload) for port in one.get("ports", [])}


# ---- Configurations ------------------------------------------------------------------

def mounts(workload, container):
    """{path in the container: volume}."""
    volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


def configuration(things, workload, container):
    """(program, text) of what the container reads, followed through mount, volume and ConfigMap."""
    program, option, path = container["command"]
    assert option == "--config"
    folder, _, key = path.rpartition("/")
    volume = mounts(workload, container)[folder]
    maps = {thing["metadata"]["name"]: thing["data"] for thing in of_kind(things, "ConfigMap")}
    return program, maps[volume["configMap"]["name"]][key]


FROM_FIELDS = {"spec.nodeName": "node-a", "metadata.name": "pod-a", "metadata.namespace": "inference", "status.podIP": "10.0.0.7"}


def environment(container):
    """The environment that the kubelet sets."""
    fields = {one["name"]: FROM_FIELDS[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container.get("env", [])}
    return {**fields, "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def secrets_of(folder, volume):
    """(name, content) of the files of the Secrets that a volume has."""
    made = authority.Authority(folder / "pki")
    if "projected" in volume:
        yield "nats.creds", logins.Operator().credentials()[0]
        yield "ca.crt", made.path.read_text()
    if "secret" in volume:  # of type kubernetes.io/tls
        for file, path in zip(("tls.crt", "tls.key"), made.sign("kvaggregator")):
            yield file, path.read_text()


def check(folder, things, workload, container):
    """The output of the program's --check for its configuration, where each mounted folder is there,
    with the files of its Secrets."""
    program, text = configuration(things, workload, container)
    for at, (path, volume) in enumerate(mounts(workload, container).items()):
        here = folder / f"mount{at}"
        here.mkdir()
        for file, secret in secrets_of(folder, volume):
            (here / file).write_text(secret)
            (here / file).chmod(0o440)
        text = text.replace(f'"{path}', f'"{here}')
    assert '"/' not in text.replace(f'"{folder}', ""), "a path that nothing is mounted at"
    (folder / f"{program}.cfg").write_text(text)
    return programs.run(program, "--config", f"{program}.cfg", "--check", cwd=folder, env={**os.environ, **environment(container)})


def value_of(text, key):
    """The first value of a key, as text, ignoring comments."""
    found = re.search(rf'^[^#\n]*\b{key} = "?([^";]*)"?;', text, re.M)
    assert found, key
    return found[1]


# ---- vLLM ----------------------------------------------------------------------------

def vllm_options(words):
    """Model, block size and events of a `vllm serve` command."""
    assert words[:2] == ["vllm", "serve"] and "--enable-prefix-caching" in words
    named = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    return {
        "model": words[2], "block_size": int(named["--block-size"]), "port": int(named["--port"]),
        "events": json.loads(words[words.index("--kv-events-config") + 1])}


def engines(things):
    """[(workload, container, options)]."""
    found = [(w, c) for w in workloads(things) for c in containers(w) if c["image"].startswith("vllm/")]
    return [(w, c, vllm_options(c["command"] + c["args"])) for w, c in found]


# ---- Network policies ----------------------------------------------------------------

def policies_for(things, labels):
    return [thing for thing in of_kind(things, "NetworkPolicy") if selects(thing["spec"]["podSelector"], labels)]


def admitted(things, workload, port):
    """The `from` entries that may reach a port of the pods; None: no policy restricts the port."""
    policies = policies_for(things, labels_of(workload))
    names = ports_of(workload)
    if not policies:
        return None
    rules = [rule for policy in policies for rule in policy["spec"]["ingress"]]
    return [
        term for rule in rules for term in rule["from"]
        if port in [names.get(one["port"], one["port"]) for one in rule["ports"]]]
