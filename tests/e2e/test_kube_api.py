"""Does the API server of the tests behave as the reference of the Kubernetes API says, and
misbehave on request? Tested with a plain HTTP client; test_kube_clients.py uses real ones."""

import contextlib
import http.client
import json
import ssl
import time

import pytest

from pod_store import Refusal, Selection, engine_pod
from programs import wait_for

PODS = "/api/v1/namespaces/inference/pods"
pytestmark = pytest.mark.no_nats


class Client:
    """One connection."""

    def __init__(self, kube):
        self.kube = kube
        context = ssl.create_default_context(cafile=kube.ca_file)
        self.connection = http.client.HTTPSConnection("127.0.0.1", kube.port, timeout=10, context=context)

    def ask(self, path, method="GET", body=None, token=None, kind="application/json"):
        headers = {"Authorization": f"Bearer {token or self.kube.token_file.read_text()}", "Content-Type": kind}
        self.connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        return self.connection.getresponse()

    def get(self, path, code=200, **more):
        answer = self.ask(path, **more)
        text = answer.read()
        assert answer.status == code, text
        return json.loads(text)


@pytest.fixture
def client(kube):
    return Client(kube)


def names(items):
    return [pod["metadata"]["name"] for pod in items]


def version_of(kube):
    return kube.pods.version


def watch(kube, **query):
    query = {"watch": "1", "resourceVersion": version_of(kube), "timeoutSeconds": 30, **query}
    words = "&".join(f"{key}={value}" for key, value in query.items())
    return Client(kube).ask(f"{PODS}?{words}")


def event(answer):
    line = answer.readline()
    assert line.endswith(b"\n"), line
    value = json.loads(line)
    return value["type"], value["object"]


def seen(answer):
    kind, thing = event(answer)
    return kind, thing["metadata"]["name"]


def test_a_list_in_pages_is_a_snapshot(kube, client):
    for name in "abcde":
        kube.pods.create(engine_pod(name))
    first = client.get(f"{PODS}?limit=2")
    assert names(first["items"]) == ["a", "b"] and first["metadata"]["remainingItemCount"] == 3
    kube.pods.finish("inference", "c")
    kube.pods.create(engine_pod("ca"))
    kube.pods.patch("inference", "d", {"metadata": {"labels": {"app": "other"}}})
    second = client.get(f"{PODS}?limit=2&continue={first['metadata']['continue']}")
    assert names(second["items"]) == ["c", "d"] and second["items"][1]["metadata"]["labels"] == {"app": "vllm"}
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    kube.pods.compact()
    third = client.get(f"{PODS}?limit=2&continue={second['metadata']['continue']}", code=410)
    assert third["reason"] == "Expired"
    rest = client.get(f"{PODS}?limit=2&continue={third['metadata']['continue']}")
    assert names(rest["items"]) == ["e"] and "continue" not in rest["metadata"]
    assert names(client.get("/api/v1/pods")["items"]) == ["a", "b", "ca", "d", "e"]


@pytest.mark.parametrize(
    "selector, chosen",
    [
        ("labelSelector=app%3Dvllm", "ab"), ("labelSelector=app!%3Dvllm", "cd"), ("labelSelector=app", "abc"),
        ("labelSelector=!app", "d"), ("labelSelector=app+in+(vllm,sglang),rank", "bc"),
        ("labelSelector=app+notin+(vllm)", "cd"), ("fieldSelector=spec.nodeName%3Dn2", "bd"),
        ("fieldSelector=status.phase!%3DRunning", "d"), ("fieldSelector=metadata.name%3Dc,spec.nodeName%3Dn1", "c"),
        ("labelSelector=app%3Dvllm&fieldSelector=spec.nodeName%3Dn2", "b"),
    ],
)
def test_selectors(kube, client, selector, chosen):
    kube.pods.create(engine_pod("a", ip="10.0.0.1", node="n1"))
    kube.pods.create(engine_pod("b", ip="10.0.0.2", node="n2", labels={"app": "vllm", "rank": ""}))
    kube.pods.create(engine_pod("c", ip="10.0.0.3", node="n1", labels={"app": "sglang", "rank": "1"}))
    kube.pods.create(engine_pod("d", node="n2", labels={}))
    assert "".join(names(client.get(f"{PODS}?{selector}")["items"])) == chosen


@pytest.mark.parametrize("query", ["labelSelector=a%3D%3D%3Db", "fieldSelector=spec.x%3D1", "limit=-1", "continue=x"])
def test_bad_queries_are_refused(client, query):
    assert client.get(f"{PODS}?{query}", code=400)["reason"] == "BadRequest"


def test_a_watch_sees_pods_enter_and_leave_its_selection(kube):
    answer = watch(kube, labelSelector="app%3Dvllm", allowWatchBookmarks="true")
    kube.pods.create(engine_pod("other", labels={}))
    kube.pods.create(engine_pod("a"))
    assert seen(answer) == ("ADDED", "a")
    kube.pods.patch("inference", "a", {"status": {"podIP": "10.0.0.1"}})
    assert seen(answer) == ("MODIFIED", "a")
    kube.pods.patch("inference", "a", {"metadata": {"labels": {"app": "other"}}})
    kind, pod = event(answer)
    assert kind == "DELETED" and pod["metadata"]["labels"] == {"app": "vllm"}
    assert pod["metadata"]["resourceVersion"] == str(version_of(kube))
    kube.pods.patch("inference", "other", {"metadata": {"labels": {"app": "vllm"}}})
    assert seen(answer) == ("ADDED", "other")
    kube.pods.delete("inference", "other", grace_s=30)
    kind, pod = event(answer)
    assert kind == "MODIFIED" and pod["metadata"]["deletionGracePeriodSeconds"] == 30
    kube.pods.finish("inference", "other")
    assert seen(answer) == ("DELETED", "other")
    kube.pods.skip_versions(7)
    kube.bookmark()
    kind, thing = event(answer)
    assert kind == "BOOKMARK" and thing["metadata"]["resourceVersion"] == str(version_of(kube))


def test_a_watch_without_a_version_begins_with_all_and_one_with_a_version_after_it(kube):
    first = kube.pods.create(engine_pod("a"))["metadata"]["resourceVersion"]
    kube.pods.create(engine_pod("b"))
    answer = watch(kube, resourceVersion="")
    assert [seen(answer), seen(answer)] == [("ADDED", "a"), ("ADDED", "b")]
    assert seen(watch(kube, resourceVersion=first)) == ("ADDED", "b")


def test_the_time_of_a_watch_ends_with_a_bookmark_and_the_connection_goes_on(kube, client):
    answer = client.ask(f"{PODS}?watch=1&resourceVersion={version_of(kube)}&timeoutSeconds=1&allowWatchBookmarks=1")
    assert event(answer)[0] == "BOOKMARK" and answer.read() == b""
    assert client.get(PODS)["items"] == []


def test_a_version_that_is_no_longer_in_the_log_is_gone_in_both_forms(kube):
    kube.pods.log_size = 5
    old = version_of(kube)
    for number in range(6):
        kube.pods.create(engine_pod(f"a{number}"))
    answer = watch(kube, resourceVersion=old)
    kind, status = event(answer)
    assert answer.status == 200 and (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert answer.read() == b""
    kube.gone_as = "status"
    answer = watch(kube, resourceVersion=old)
    assert answer.status == 410 and json.loads(answer.read())["reason"] == "Expired"
    assert seen(watch(kube, resourceVersion=old + 1)) == ("ADDED", "a1")


def test_running_watches_expire_are_cut_frozen_and_split(kube):
    expires = watch(kube)
    kube.expire_watches()
    assert event(expires)[0] == "ERROR" and expires.read() == b""
    cut = watch(kube)
    kube.cut_watches()
    with pytest.raises((OSError, http.client.HTTPException)):
        assert not cut.read(), "an end is no reset"
        raise ConnectionResetError  # the connection is closed without TLS's close_notify
    frozen = watch(kube, timeoutSeconds=1)
    kube.split_bytes = 1
    kube.freeze()
    kube.pods.create(engine_pod("a"))
    until = time.monotonic() + 1.2
    wait_for("the time of the watch is over", lambda: time.monotonic() > until)
    assert len(kube.streams) == 1
    kube.thaw()
    assert seen(frozen) == ("ADDED", "a") and frozen.read() == b""


def test_tokens_expire_and_are_limited(kube, client):
    old = kube.token
    new = kube.new_token()
    assert client.get(PODS, token=old)["items"] == [] and kube.token_file.read_text() == new
    kube.expire()
    assert client.get(PODS, token=old, code=401)["reason"] == "Unauthorized"
    assert client.get(PODS, token=new)["items"] == []
    kube.new_token(namespaces=["elsewhere"])
    assert "cannot list resource" in client.get(PODS, code=403)["message"]
    assert client.get("/api/v1/pods", code=403) and client.get("/api/v1/namespaces/elsewhere/pods")


def test_requests_are_refused_as_often_as_asked(kube, client):
    kube.refuse(429, times=2, verb="list", retry_after=3)
    assert client.get(f"{PODS}/a", code=404)
    for _ in range(2):
        answer = client.ask(PODS)
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3") and answer.read()
    assert client.get(PODS) and kube.counts["list 429"] == 2


def test_the_server_goes_away_and_comes_back(kube):
    kube.pods.create(engine_pod("a"))
    running = watch(kube)
    port = kube.port
    kube.go_away()
    with contextlib.suppress(OSError, http.client.HTTPException):
        assert running.read() == b""
    with pytest.raises(OSError):
        Client(kube).get(PODS)
    kube.pods.create(engine_pod("b"))
    kube.come_back()
    assert kube.port == port and names(Client(kube).get(PODS)["items"]) == ["a", "b"]
    wait_for("the watch has ended", lambda: not kube.streams)


def test_certificates_change(kube, client):
    kube.new_certificate(days=-1)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        Client(kube).get(PODS)
    kube.new_certificate(new_authority=True)
    assert Client(kube).get(PODS)["items"] == []


def test_pods_are_created_patched_and_deleted_over_http(kube, client):
    made = client.get(PODS, 201, method="POST", body={"metadata": {"generateName": "e-"}, "spec": {"nodeName": "n"}})
    name = made["metadata"]["name"]
    where = f"{PODS}/{name}"
    assert client.get(PODS, 409, method="POST", body={"metadata": {"name": name}})["reason"] == "AlreadyExists"
    patch = {"metadata": {"labels": {"a": "b"}, "uid": "no"}}
    patched = client.get(where, method="PATCH", body=patch, kind="application/merge-patch+json")
    assert patched["metadata"]["labels"] == {"a": "b"} and patched["metadata"]["uid"] == made["metadata"]["uid"]
    add = [{"op": "add", "path": "/status/podIP", "value": "10.0.0.1"}]
    assert client.get(where + "/status", method="PATCH", body=add, kind="application/json-patch+json")
    assert client.get(where, 409, method="PUT", body=made)["reason"] == "Conflict"
    marked = client.get(where, method="DELETE", body={"gracePeriodSeconds": 5})
    assert "deletionTimestamp" in marked["metadata"]
    client.get(where, method="DELETE", body={"gracePeriodSeconds": 0})
    with pytest.raises(Refusal):
        kube.pods.get("inference", name)
    assert kube.pods.all(Selection("inference")) == []
