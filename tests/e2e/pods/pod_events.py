"""Random events in a cluster, from a seed: pods are created, get addresses, become ready, change
labels, restart, drain, end, and return under their old name or with the address of another; the API
server goes away, forgets versions, refuses requests and cuts connections. Each call of step() is
one event.

No pods of one moment share an address, except a pod that has ended and keeps its own.
"""

import collections
import random

from pod_store import container, engine_pod, pod_status

NAMESPACES = ("inference", "inference", "batch")  # the first ones are more frequent
NODES = ("node-0", "node-1", "node-1")
NAMES = 30  # few, so that names are reused
ADDRESSES = 50  # few, so that addresses are reused
LABELS = ("llm-d.ai/role", "model", "zone")
VERSIONS_OF_A_SEED = 50_000


class Cluster:
    """address: "127.1.2" is the net of its pods.  say: called with a line for each event."""

    def __init__(self, kube, seed, address, say=lambda line: None, namespaces=NAMESPACES, make=None):
        self.kube, self.pods, self.say = kube, kube.pods, say
        self.random = random.Random(seed)
        self.address = address
        self.namespaces = namespaces
        self.make = make or self._any_pod
        self.counts = collections.Counter()
        self.is_away = False

    # ---- One event

    def step(self):
        while True:
            happens = self.random.choices([row[1] for row in EVENTS], [row[0] for row in EVENTS])[0]
            said = happens(self)
            if said:
                break  # otherwise there is no pod for this event
        name = happens.__name__
        self.counts[name] += 1
        self.say(f"{self.pods.version} {name} {said}")

    def calm(self):
        """Waits until the API answers and everything is on its way."""
        self.come_back()
        self.kube.thaw()
        self.kube.faults.clear()

    def clear(self):
        """Removes all pods. Versions begin so high that no restore() of a seed reaches the lowest
        one."""
        for pod in self.pods.all():
            self.pods.finish(*self._key(pod))
        self.pods.skip_versions(VERSIONS_OF_A_SEED)

    # ---- Pods

    def _key(self, pod):
        return pod["metadata"]["namespace"], pod["metadata"]["name"]

    def _some(self, takes=lambda pod: True):
        """A random pod, or None."""
        fitting = [pod for pod in self.pods.all() if takes(pod)]
        return self.random.choice(fitting) if fitting else None

    def _free_address(self):
        taken = {pod["status"].get("podIP") for pod in self.pods.all() if not has_ended(pod)}
        free = [one for one in self._addresses() if one not in taken]
        return self.random.choice(free) if free else None

    def _addresses(self):
        return [f"{self.address}.{number}" for number in range(1, ADDRESSES + 1)]

    def _any_pod(self, name, namespace, ip, node):
        chance = self.random.random
        ports = {}
        if chance() < 0.8:
            ports["kv_events"] = self.random.choice((5557, 5557, 7000))
        if chance() < 0.5:
            ports["kv_replay"] = self.random.choice((5558, 6557))
        if chance() < 0.5:
            ports["http"] = 8000
        containers = [container(**ports)]
        if chance() < 0.3:
            containers.insert(self.random.randrange(2), container("proxy", "envoy", admin=9901))
        labels = {"app": "vllm" if chance() < 0.85 else "other"}
        labels.update({key: self._word() for key in LABELS if chance() < 0.4})
        return engine_pod(
            name, namespace, ip=ip, node=node, labels=labels, containers=containers, ready=ip is not None and chance() < 0.3
        )

    def _word(self):
        return self.random.choice(("prefill", "decode", "both", "a", "b", ""))

    def _create(self, ip=None, node=None, key=None):
        taken = {self._key(pod) for pod in self.pods.all()}
        if key is None:
            free = [(place, f"engine-{n}") for place in self.namespaces for n in range(NAMES)]
            free = [one for one in free if one not in taken]
            if not free:
                return None
            key = self.random.choice(free)
        pod = self.pods.create(self.make(key[1], key[0], ip, node))
        return f"{'/'.join(key)} {pod['metadata']['uid'][:8]} {ip or ''} {node or ''}"

    def create(self):
        """A new pod: unplaced, on a node, or already running."""
        stage = self.random.randrange(3)
        node = self.random.choice(NODES) if stage else None
        return self._create(self._free_address() if stage == 2 else None, node)

    def place(self):
        pod = self._some(lambda pod: not pod["spec"].get("nodeName"))
        return pod and self._patch(pod, {"spec": {"nodeName": self.random.choice(NODES)}})

    def run(self):
        """The pod gets its address, with or before the phase."""
        pod = self._some(lambda pod: pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending")
        if pod is None:
            return None
        ip = pod["status"].get("podIP") or self._free_address()
        phase = "Running" if pod["status"].get("podIP") or self.random.random() < 0.8 else "Pending"
        return ip and self._patch(pod, {"status": pod_status(ip, phase, names=names_of(pod))})

    def ready(self):
        pod = self._some(is_running)
        if pod is None:
            return None
        rows, word = pod["status"]["containerStatuses"], "False" if is_ready(pod) else "True"
        rows = [{**row, "ready": word == "True"} for row in rows]
        others = [row for row in pod["status"]["conditions"] if row["type"] != "Ready"]
        conditions = [*others, {"type": "Ready", "status": word}]
        return self._patch(pod, {"status": {"conditions": conditions, "containerStatuses": rows}})

    def relabel(self):
        """Moves a pod out of the selector or, more often, into it."""
        outside = self.random.random() < 0.75
        pod = self._some(lambda pod: (pod["metadata"]["labels"].get("app") != "vllm") == outside)
        if pod is None:
            return None
        word = "other" if pod["metadata"]["labels"].get("app") == "vllm" else "vllm"
        return self._patch(pod, {"metadata": {"labels": {"app": word}}})

    def label(self):
        pod = self._some()
        if pod is None:
            return None
        key = self.random.choice(LABELS)
        word = None if key in pod["metadata"]["labels"] and self.random.random() < 0.4 else self._word()
        return self._patch(pod, {"metadata": {"labels": {key: word}}})

    def annotate(self):
        pod = self._some()
        note = {"example.com/note": str(self.random.random())}
        return pod and self._patch(pod, {"metadata": {"annotations": note}})

    def restart(self):
        """Restarts a container: the pod keeps its address and loses its readiness."""
        pod = self._some(is_running)
        if pod is None:
            return None
        rows = [dict(row) for row in pod["status"]["containerStatuses"]]
        row = self.random.choice(rows)
        row.update(restartCount=row["restartCount"] + 1, ready=False)
        return self._patch(pod, {"status": {"containerStatuses": rows}})

    def fail(self):
        """All containers of a pod have ended; the pod stays with its address, which another may
        get."""
        pod = self._some(is_running)
        return pod and self._patch(pod, {"status": {"phase": self.random.choice(("Failed", "Succeeded"))}})

    def drain(self):
        pod = self._some(lambda pod: "deletionTimestamp" not in pod["metadata"])
        if pod is None:
            return None
        self.pods.delete(*self._key(pod), grace_s=30)
        return "/".join(self._key(pod))

    def end(self):
        pod = self._some(lambda pod: "deletionTimestamp" in pod["metadata"])
        return pod and self._finish(pod)

    def kill(self):
        pod = self._some()
        return pod and self._finish(pod)

    def reborn(self):
        """Replaces a pod by one with the same name and another UID, as a StatefulSet does, with its
        old address or another one."""
        pod = self._some(is_running)
        if pod is None:
            return None
        ip = pod["status"]["podIP"]
        self._finish(pod)
        ip = ip if self.random.random() < 0.5 else self._free_address()
        return self._create(ip, pod["spec"]["nodeName"], self._key(pod))

    def inherited(self):
        """A pod ends, and another gets its address at once."""
        pod = self._some(is_running)
        if pod is None:
            return None
        self._finish(pod)
        return self._create(pod["status"]["podIP"], self.random.choice(NODES))

    def _finish(self, pod):
        self.pods.finish(*self._key(pod))
        return "/".join(self._key(pod))

    def _patch(self, pod, patch):
        key = self._key(pod)
        self.pods.patch(*key, patch)
        return f"{'/'.join(key)} {patch}"

    # ---- The API server

    def bookmark(self):
        self.kube.bookmark()
        return "."

    def others_change(self):
        self.pods.skip_versions(self.random.randrange(1, 50))
        return "."

    def compact(self):
        self.pods.compact()
        return "."

    def cut(self):
        self.kube.cut_watches()
        return "."

    def expire(self):
        self.kube.expire_watches()
        return "."

    def go_away(self):
        """Until some events later, at the latest until all settles."""
        if self.is_away:
            return None
        self.kube.gone_as = self.random.choice(("event", "status"))
        self.kube.go_away()
        self.is_away = True
        return self.kube.gone_as

    def restore(self):
        """The server goes away and comes back with older data; so much older that no known version
        is reached again before all settles, which no client could notice."""
        self.come_back()
        self.go_away()
        older = self.random.randrange(1500, 2000)
        assert older < self.pods.version, "versions from 1 on would be given out a second time"
        self.pods.restore(older)
        return str(older)

    def come_back(self):
        if not self.is_away:
            return None
        self.kube.come_back()
        self.is_away = False
        return "."

    def refuse(self):
        code = self.random.choice((429, 503, 500))
        self.kube.refuse(code, retry_after=self.random.choice((None, 0, 1)))
        return str(code)

    def rotate(self):
        old = self.kube.token
        self.kube.new_token()
        self.kube.expire(old)
        return "."

    def freeze(self):
        """Until all settles."""
        self.kube.freeze()
        return "."

    def split(self):
        self.kube.split_bytes = self.random.choice((None, None, 1, 7, 1000))
        return str(self.kube.split_bytes)


def is_running(pod):
    return pod["status"]["phase"] == "Running" and bool(pod["status"].get("podIP"))


def has_ended(pod):
    return pod["status"]["phase"] in ("Failed", "Succeeded")


def is_ready(pod):
    return any(row["type"] == "Ready" and row["status"] == "True" for row in pod["status"].get("conditions", []))


def names_of(pod):
    return [one["name"] for one in pod["spec"]["containers"]]


# How often each event occurs among about 1,000.
EVENTS = (
    (120, Cluster.create), (70, Cluster.place), (140, Cluster.run), (110, Cluster.ready), (80, Cluster.relabel),
    (120, Cluster.label), (30, Cluster.annotate), (60, Cluster.restart), (8, Cluster.fail), (40, Cluster.drain),
    (70, Cluster.end), (10, Cluster.kill), (35, Cluster.reborn), (35, Cluster.inherited),
    (15, Cluster.bookmark), (15, Cluster.others_change), (8, Cluster.compact), (5, Cluster.cut), (3, Cluster.expire),
    (4, Cluster.go_away), (2, Cluster.restore), (60, Cluster.come_back), (3, Cluster.refuse), (2, Cluster.rotate),
    (3, Cluster.freeze), (10, Cluster.split),
)
