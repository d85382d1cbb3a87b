"""Pods as a Kubernetes API server keeps them: resource versions, a bounded log of what happened,
selectors, lists in pages, graceful deletion.  No I/O.  kube_api.py serves it.

Follows the reference of the API ("Kubernetes API Concepts") and, where that is silent, the
behaviour of kube-apiserver's watch cache.
"""

import base64
import collections
import copy
import dataclasses
import datetime
import json
import random
import re
import threading
import uuid


class Refusal(Exception):
    """The answer of the API server to a request that fails: a Status object with this code."""

    def __init__(self, code, reason, message, headers=None, **status):
        super().__init__(message)
        self.code, self.reason, self.headers, self.more = code, reason, headers or {}, status

    def status(self):
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": self.more.get("metadata", {}), "status": "Failure",
            "message": str(self), "reason": self.reason, "code": self.code,
            **{key: value for key, value in self.more.items() if key != "metadata"},
        }


def timestamp(seconds_from_now=0):
    moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds_from_now)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- Selectors -------------------------------------------------------------------

FIELDS = {
    "metadata.name": lambda pod: pod["metadata"]["name"],
    "metadata.namespace": lambda pod: pod["metadata"]["namespace"],
    "spec.nodeName": lambda pod: pod["spec"].get("nodeName", ""),
    "spec.restartPolicy": lambda pod: pod["spec"].get("restartPolicy", "Always"),
    "status.phase": lambda pod: pod["status"].get("phase", ""),
    "status.podIP": lambda pod: pod["status"].get("podIP", ""),
}


def bad_request(message):
    return Refusal(400, "BadRequest", message)


def field_terms(selector):
    for term in filter(None, selector.split(",")):
        match = re.fullmatch(r"([\w.]+)(!=|==|=)(.*)", term)
        if not match:
            raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
        if match[1] not in FIELDS:
            raise bad_request(f"field label not supported: {match[1]}")
        yield lambda pod, m=match: (FIELDS[m[1]](pod) == m[3]) == (m[2] != "!=")


LABEL_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<key0>[\w./-]+)|(?P<key>[\w./-]+)\s*"
    r"(?:(?P<set>in|notin)\s*\((?P<values>[^)]*)\)|(?P<op>==|=|!=)\s*(?P<value>[\w.-]*))?)\s*(?:,|$)"
)


def label_terms(selector):
    """`a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, separated by commas."""
    at = 0
    while at < len(selector):
        match = LABEL_TERM.match(selector, at)
        if not match:
            raise bad_request(f"unable to parse requirement: found '{selector[at:]}'")
        yield lambda pod, m=match: label_matches(pod["metadata"].get("labels") or {}, m)
        at = match.end()


def label_matches(labels, m):
    if m["absent"]:
        return m["key0"] not in labels
    key = m["key"]
    if m["set"]:
        inside = key in labels and labels[key] in {word.strip() for word in m["values"].split(",")}
        return inside if m["set"] == "in" else not inside
    if m["op"] == "!=":
        return labels.get(key) != m["value"]
    return labels.get(key) == m["value"] if m["op"] else key in labels


class Selection:
    """namespace: None means all of them."""

    def __init__(self, namespace=None, labels="", fields=""):
        self.namespace = namespace
        self.terms = [*label_terms(labels or ""), *field_terms(fields or "")]

    def takes(self, pod):
        return (self.namespace is None or pod["metadata"]["namespace"] == self.namespace) and all(
            term(pod) for term in self.terms
        )


# ---- Patches -----------------------------------------------------------------------

def merged(target, patch):
    """JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


# ---- The store -----------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Change:
    """One line of the log.  after: None once the pod is gone; before: None when it is new."""

    version: int
    before: dict
    after: dict
    last: dict  # the pod as a DELETED event shows it

    def event_for(self, selection):
        """(type, pod) as a watch with this selection sees it, or None.  A pod that leaves the
        selection is DELETED, with the content that it had and the version of its leaving."""
        was = self.before is not None and selection.takes(self.before)
        is_now = self.after is not None and selection.takes(self.after)
        if is_now:
            return ("MODIFIED" if was else "ADDED", self.after)
        if not was:
            return None
        if self.after is None:
            return "DELETED", self.last
        return "DELETED", with_version(self.before, self.version)


def with_version(pod, version):
    return {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(version)}}


class Pods:
    """Threads: any; each call is atomic. A returned pod is never changed but replaced by a new one,
    so it may be borrowed for any time; do not write to it."""

    def __init__(self, log_size=1000, seed=None):
        self.changed = threading.Condition()
        self.log_size = log_size
        self.pods = {}  # (namespace, name): pod
        self.log = collections.deque()
        self.version = 100_000
        self.compacted = self.version  # versions below it cannot be watched
        self.random = random.Random(seed)

    # ---- Changes

    def create(self, pod, namespace=None, age_s=0):
        pod = copy.deepcopy(pod)
        meta = pod.setdefault("metadata", {})
        meta["namespace"] = namespace or meta.get("namespace") or "default"
        with self.changed:
            key = (meta["namespace"], meta["name"])
            if key in self.pods:
                raise Refusal(409, "AlreadyExists", f'pods "{key[1]}" already exists')
            meta.setdefault("uid", str(uuid.UUID(int=self.random.getrandbits(128), version=4)))
            meta["creationTimestamp"] = timestamp(-age_s)
            pod = {"kind": "Pod", "apiVersion": "v1", **pod}
            pod.setdefault("spec", {}).setdefault("containers", [])
            pod.setdefault("status", {}).setdefault("phase", "Pending")
            return self._write(key, pod)

    def get(self, namespace, name):
        with self.changed:
            return self._find(namespace, name)

    def patch(self, namespace, name, patch):
        """patch: an object (merge patch)."""
        with self.changed:
            return self._change(self._find(namespace, name), merged(self._find(namespace, name), patch))

    def delete(self, namespace, name, grace_s=None):
        """Graceful, as DELETE is: the pod is marked, and finish() removes it.  At once with a
        grace of 0 or when no node has it.  grace_s: None means the pod's own."""
        with self.changed:
            pod = self._find(namespace, name)
            meta = pod["metadata"]
            if grace_s is None:
                grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
            if grace_s == 0 or not pod["spec"].get("nodeName"):
                return self._remove(pod)
            if "deletionTimestamp" in meta:
                return pod
            marks = {"deletionTimestamp": timestamp(grace_s), "deletionGracePeriodSeconds": grace_s}
            return self._write((namespace, name), {**pod, "metadata": {**meta, **marks}})

    def finish(self, namespace, name, uid=None):
        """What the kubelet reports when all containers have ended: the pod is removed. Nothing
        happens when it is gone already or has been replaced."""
        with self.changed:
            pod = self.pods.get((namespace, name))
            if pod is not None and uid in (None, pod["metadata"]["uid"]):
                self._remove(pod)

    def compact(self):
        """Forgets the log: a watch from an older version than the newest must list again."""
        with self.changed:
            self.log.clear()
            self.compacted = self.version

    def skip_versions(self, count):
        """Other objects of the cluster change too, which uses up versions."""
        with self.changed:
            self.version += count
            self.changed.notify_all()

    def restore(self, older):
        """Restores the store from a backup: its versions begin lower by this many, and a watch from
        a newer one is refused. (The pods stay as they are.)"""
        with self.changed:
            self.log.clear()
            self.version = self.compacted = max(1, self.version - older)

    # ---- Reading

    def all(self, selection=Selection()):
        with self.changed:
            return [pod for _, pod in sorted(self.pods.items()) if selection.takes(pod)]

    def page(self, selection, limit=0, token="", exact_version=True):
        """(pods, version, token of the next page or "", how many remain)."""
        with self.changed:
            version, start = self.version, None
            if token:
                version, start = read_token(token)
                if version < self.compacted:
                    fresh = make_token(self.version, start)
                    raise Refusal(
                        410, "Expired", "The provided continue parameter is too old to display a consistent list "
                        "result. You can start a new list without the continue parameter, or use the continue token "
                        "in this response to retrieve the remainder of the results. Continuing with the provided "
                        "token results in an inconsistent list - objects that were created, modified, or deleted "
                        "between the time the first chunk was returned and now may show up in the list.",
                        metadata={"continue": fresh},
                    )
            pods = sorted(self._at(version).items())
        chosen = [pod for key, pod in pods if (start is None or key > start) and selection.takes(pod)]
        if not limit or len(chosen) <= limit:
            return chosen, version, "", 0
        last = chosen[limit - 1]["metadata"]
        return chosen[:limit], version, make_token(version, (last["namespace"], last["name"])), len(chosen) - limit

    def since(self, version):
        """The changes after that version; the caller holds `changed`."""
        if version < self.compacted:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.compacted})")
        new = []
        for change in reversed(self.log):
            if change.version <= version:
                break
            new.append(change)
        return new[::-1]

    # ---- Inside; the caller holds `changed`

    def _find(self, namespace, name):
        pod = self.pods.get((namespace, name))
        if pod is None:
            raise Refusal(
                404, "NotFound", f'pods "{name}" not found', details={"name": name, "kind": "pods"}
            )
        return pod

    def _change(self, was, pod):
        meta = pod.setdefault("metadata", {})
        for key in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"):
            if key in was["metadata"]:
                meta[key] = was["metadata"][key]
        if pod == was:
            return was  # a patch that changes nothing makes no event
        return self._write((meta["namespace"], meta["name"]), pod)

    def _write(self, key, pod):
        self.version += 1
        pod = with_version(pod, self.version)
        self._log(Change(self.version, self.pods.get(key), pod, None))
        self.pods[key] = pod
        return pod

    def _remove(self, pod):
        self.version += 1
        meta, before = pod["metadata"], pod
        del self.pods[meta["namespace"], meta["name"]]
        if "deletionTimestamp" not in meta:  # removed at once, which its last event shows
            pod = {**pod, "metadata": {**meta, "deletionTimestamp": timestamp(), "deletionGracePeriodSeconds": 0}}
        last = with_version(pod, self.version)
        self._log(Change(self.version, before, None, last))
        return last

    def _log(self, change):
        self.log.append(change)
        while len(self.log) > self.log_size:
            self.compacted = self.log.popleft().version
        self.changed.notify_all()

    def _at(self, version):
        """The pods as they were then."""
        pods = dict(self.pods)
        for change in reversed(self.log):
            if change.version <= version:
                break
            shown = change.before if change.after is None else change.after
            key = shown["metadata"]["namespace"], shown["metadata"]["name"]
            if change.before is None:
                pods.pop(key, None)
            else:
                pods[key] = change.before
        return pods


def make_token(version, start):
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start})
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_token(token):
    try:
        value = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return value["rv"], tuple(value["start"])
    except (ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid") from None


# ---- Pods as engines have them ----------------------------------------------------------

IMAGE = "vllm/vllm-openai:v0.32.0"


def container(name="engine", image=IMAGE, **ports):
    """ports: kv_events=5557 makes a port with the name kv-events."""
    rows = [{"name": key.replace("_", "-"), "containerPort": port, "protocol": "TCP"} for key, port in ports.items()]
    return {"name": name, "image": image, **({"ports": rows} if rows else {})}


def engine_pod(
    name, namespace="inference", ip=None, node="node-a", labels=None, annotations=None, containers=None,
    phase=None, ready=False, restarts=0, uid=None, grace_s=30,
):
    """A pod as the API shows it. ip: None makes a pod without an address, which is Pending unless
    `phase` says otherwise."""
    containers = containers or [container(kv_events=5557, kv_replay=6557, http=8000)]
    phase = phase or ("Running" if ip else "Pending")
    meta = {"name": name, "namespace": namespace, "labels": {"app": "vllm"} if labels is None else labels}
    if annotations:
        meta["annotations"] = annotations
    if uid:
        meta["uid"] = uid
    return {
        "kind": "Pod", "apiVersion": "v1", "metadata": meta,
        "spec": {
            "containers": containers, "restartPolicy": "Always", "terminationGracePeriodSeconds": grace_s,
            **({"nodeName": node} if node else {}),
        },
        "status": pod_status(ip, phase, ready, restarts, [one["name"] for one in containers]),
    }


def pod_status(ip, phase, ready=False, restarts=0, names=("engine",)):
    word = "True" if ready else "False"
    state = {"running": {"startedAt": timestamp()}} if phase == "Running" else {"waiting": {"reason": "Creating"}}
    addresses = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
    return {
        "phase": phase, **addresses,
        "conditions": [
            {"type": "Initialized", "status": "True"}, {"type": "Ready", "status": word},
            {"type": "ContainersReady", "status": word}, {"type": "PodScheduled", "status": "True"},
        ],
        "containerStatuses": [
            {"name": name, "image": IMAGE, "imageID": "", "ready": ready, "restartCount": restarts, "started": ready,
             "state": state}
            for name in names
        ],
    }
