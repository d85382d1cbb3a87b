"""Do Kubernetes clients that others wrote, kubectl and kubernetes-asyncio, accept the API server of
the tests, also when it misbehaves?"""

import asyncio
import json
import shutil
import subprocess

import pytest
from kubernetes_asyncio import client as kubernetes

import prometheus
from kube_informer import Informer, key_of
from pod_store import Selection, engine_pod
from programs import Program, wait_for

pytestmark = pytest.mark.no_nats
DEBIAN = prometheus.TREE / "build" / "kubectl"


def kubectls():
    """Debian's kubectl, and the one in PATH when that is another."""
    found = [str(DEBIAN)] if DEBIAN.is_file() else []
    return found + [path for path in [shutil.which("kubectl")] if path]


class Kubectl:
    def __init__(self, kube, folder, program):
        self.kube, self.folder, self.program = kube, folder, program
        self.watches = []

    def command(self, *words):
        return [self.program, "--kubeconfig", self.kube.kubeconfig, "--cache-dir", self.folder / "cache", *words]

    def attempt(self, *words, body=None):
        return subprocess.run(self.command(*words), input=body, capture_output=True, text=True, timeout=60)

    def run(self, *words, body=None):
        done = self.attempt(*words, body=body)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def list(self, page=500):
        return self.run("get", "pods", f"--chunk-size={page}", "-o", "jsonpath={.items[*].metadata.name}").split()

    def create(self, pod):
        assert "created" in self.run("create", "-f", "-", body=json.dumps(pod))

    def label(self, name, key, value):
        assert "labeled" in self.run("label", "--overwrite", "pod", name, f"{key}={value}")

    def delete(self, name):
        """Returns when the pod is gone."""
        assert "deleted" in self.run("delete", "pod", name)

    def watch(self, labels):
        words = ["get", "pods", "-w", "--output-watch-events", "-o", "json", "-l", labels]
        program = Program(self.folder, f"watch{len(self.watches)}", self.command(*words))
        self.watches.append(program)
        return lambda: [(event["type"], event["object"]["metadata"]["name"]) for event in documents(program.text())]

    def close(self):
        for program in self.watches:
            program.kill()


def documents(text):
    """JSON values one after the other, the last one perhaps incomplete."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        found.append(value)
    return found


class Asyncio:
    def __init__(self, kube, folder, _):
        self.kube = kube
        self.informers = []

    def call(self, name, *words, **options):
        async def once():
            configuration = kubernetes.Configuration(host=self.kube.url, ssl_ca_cert=str(self.kube.ca_file))
            configuration.api_key["BearerToken"] = "Bearer " + self.kube.token
            async with kubernetes.ApiClient(configuration) as connection:
                return await getattr(kubernetes.CoreV1Api(connection), name)(*words, **options)

        return asyncio.run(once())

    def list(self, page=500):
        found, token = [], {}
        while True:
            part = self.call("list_namespaced_pod", "inference", limit=page, **token)
            found += [pod.metadata.name for pod in part.items]
            if not part.metadata._continue:
                return found
            token = {"_continue": part.metadata._continue}

    def create(self, pod):
        assert self.call("create_namespaced_pod", "inference", pod).metadata.uid

    def label(self, name, key, value):
        changed = self.call("patch_namespaced_pod", name, "inference", {"metadata": {"labels": {key: value}}})
        assert changed.metadata.labels[key] == value

    def delete(self, name):
        assert self.call("delete_namespaced_pod", name, "inference").metadata.deletion_timestamp

    def watch(self, labels):
        informer = Informer(self.kube, labels=labels)
        self.informers.append(informer)
        return lambda: list(informer.events)

    def close(self):
        for informer in self.informers:
            informer.close()


CLIENTS = [pytest.param((Asyncio, None), id="kubernetes-asyncio")] + [
    pytest.param((Kubectl, program), id="debian" if program == str(DEBIAN) else "kubectl") for program in kubectls()
]


@pytest.fixture
def client(request, kube, tmp_path):
    kind, program = request.param
    one = kind(kube, tmp_path, program)
    yield one
    one.close()


@pytest.fixture
def kubectl(kube, tmp_path):
    if not kubectls():
        pytest.skip("no kubectl here: tests/run fetches it")
    one = Kubectl(kube, tmp_path, kubectls()[0])
    yield one
    one.close()


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_a_client_sees_the_life_of_a_pod(kube, client):
    kube.kubelet_s = 0.05
    kube.split_bytes = 1
    others = [kube.pods.create(engine_pod(f"other-{number}", labels={}))["metadata"]["name"] for number in range(5)]
    kube.pods.create(engine_pod("elsewhere", namespace="default"))
    assert client.list(page=2) == others and kube.counts["list"] == 3
    events = client.watch("app=vllm")
    wait_for("the client watches", lambda: kube.streams)
    client.create(engine_pod("engine-0", labels={"app": "vllm"}))
    assert client.list() == ["engine-0", *others]
    kube.pods.patch("inference", "engine-0", engine_pod("engine-0", ip="10.0.0.1"))
    client.label("engine-0", "app", "other")
    assert kube.pods.get("inference", "engine-0")["status"]["podIP"] == "10.0.0.1"
    client.label("engine-0", "app", "vllm")
    client.delete("engine-0")
    wait_for("the pod is gone", lambda: client.list() == others)
    kinds = ["ADDED", "MODIFIED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
    wait_for("all has been seen", lambda: events() == [(kind, "engine-0") for kind in kinds])


def test_kubectl_shows_a_table_of_pods(kube, kubectl):
    kube.pods.create(engine_pod("engine-0", ip="10.0.0.1", ready=True, restarts=2))
    rows = [line.split() for line in kubectl.run("get", "pods", "-o", "wide").splitlines()]
    assert rows[1] == ["engine-0", "1/1", "Running", "2", "1s", "10.0.0.1", "node-a"]
    assert "engine-0" in kubectl.run("get", "pods", "-A", "--field-selector", "spec.nodeName=node-a", "-o", "name")
    assert kubectl.run("get", "pods", "--field-selector", "status.phase!=Running", "-o", "name") == ""


def test_kubectl_understands_refusals(kube, kubectl):
    kube.refuse(429, verb="list", retry_after=1)
    assert kubectl.run("get", "pods", "-o", "name") == "" and kube.counts["list"] == 2, "asked once more"
    assert 'pods "x" not found' in kubectl.attempt("get", "pod", "x").stderr
    kube.new_token(namespaces=["elsewhere"])
    assert "cannot list resource" in kubectl.attempt("get", "pods").stderr
    kube.expire(kube.token)
    assert "Unauthorized" in kubectl.attempt("get", "pods").stderr
    kube.new_token()
    kubectl.watch("app=vllm")
    wait_for("the client watches", lambda: kube.streams)
    kube.expire_watches()
    assert kubectl.watches[0].process.wait(20) is not None
    kube.new_certificate(days=-1)
    assert "certificate has expired" in kubectl.attempt("get", "pods").stderr


@pytest.fixture
def informer(kube):
    one = Informer(kube, labels="app=vllm", page=2)
    yield one
    one.close()


def watches(kube):
    wait_for("the client watches", lambda: kube.streams)
    return kube


def agrees(kube, informer):
    """The informer has everything that the API has, and nothing else."""
    version = kube.pods.version
    kube.bookmark()
    wait_for("the informer has this version", lambda: informer.has_version(version))
    expected = {key_of(pod): pod for pod in kube.pods.all(Selection("inference", "app=vllm"))}
    assert informer.pods() == expected


def test_an_informer_continues_through_all_faults(kube, informer):
    watches(kube)
    for number in range(5):
        kube.pods.create(engine_pod(f"engine-{number}"))
    agrees(kube, informer)
    assert informer.counts["lists"] == 1

    kube.cut_watches()
    kube.pods.finish("inference", "engine-0")
    agrees(kube, informer)
    assert informer.counts["lists"] == 1, "it went on from its version"

    kube.go_away()
    kube.pods.finish("inference", "engine-1")
    kube.pods.create(engine_pod("engine-1"))
    wait_for("the informer has noticed the losses", lambda: informer.counts["lost"] >= 2)
    kube.come_back()
    agrees(kube, informer)

    for way in ("event", "status"):
        lists = informer.counts["lists"]
        kube.gone_as = way
        kube.go_away()
        kube.pods.patch("inference", "engine-2", {"metadata": {"labels": {"app": way}}})
        kube.pods.create(engine_pod(f"engine-{way}"))
        kube.pods.compact()
        kube.come_back()
        agrees(kube, informer)
        assert informer.counts["lists"] == lists + 1

    lists = informer.counts["lists"]
    watches(kube).expire_watches()
    wait_for("the informer lists again", lambda: informer.counts["lists"] > lists)
    old = kube.token
    kube.new_token()
    kube.expire(old)
    watches(kube).cut_watches()
    wait_for("the old token is refused", lambda: informer.counts[401])
    agrees(kube, informer)
    kube.refuse(503, times=2)
    watches(kube).cut_watches()
    wait_for("the informer was refused twice", lambda: informer.counts[503] == 2)
    agrees(kube, informer)


def test_a_bookmark_spares_a_list_after_compaction(kube, informer):
    watches(kube)
    kube.pods.create(engine_pod("engine-0"))
    kube.pods.skip_versions(1000)
    agrees(kube, informer)
    kube.pods.compact()
    kube.cut_watches()
    kube.pods.create(engine_pod("engine-1"))
    agrees(kube, informer)
    assert informer.counts["lists"] == 1 and informer.counts[410] == 0
