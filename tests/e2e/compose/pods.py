"""Pods that are real containers.  A bridge follows them through the Kubernetes API while they are
updated, replaced and drained under load, and while the API server is away or refuses the token.  This module
plays the cluster: the API server, the kubelet, which starts containers and reports their status, and the
controllers.

The oracle of the fault matrix checks all the time that no list of the aggregator has a block for long
after its engine dropped it or its pod went.  After each change, the workers of the bridge and
of the aggregator become those of the cluster; how late is printed."""

import dataclasses
import os
import time

import kube_api
from compose import ask
from compose.stack import run
from matrix import oracle, truth
from pod_store import container, engine_pod, pod_status
from pods.members import worker_id
from programs import wait_for

AWAY_S = 10
EVENTS_PORT, REPLAY_PORT = 20000, 20001
BLOCKS = 512
ENGINE = [
    "kvfleet", "--workers=1", "--ranks=1", "--bind=0.0.0.0", f"--base-port={EVENTS_PORT}", f"--blocks={BLOCKS}",
    "--scale=16", "--rate=8", f"--log-changes={16 * BLOCKS + 65536}",
    "--trace=/usr/local/share/kvbridge/conversation_trace.jsonl",
]
DIALECTS = ("vllm-0.11", "vllm-0.22", "vllm-0.31")


def wait_until(what, condition):
    """Returns how many seconds it took."""
    began = time.monotonic()
    wait_for(what, condition)
    return time.monotonic() - began


# ---- The engines ----------------------------------------------------------------------


@dataclasses.dataclass
class Pod:
    name: str
    uid: str
    address: str
    container: str
    door: truth.Door

    @property
    def stream(self):
        return worker_id(self.name), 0


class Engines(truth.Fleet):
    """What the engines in all containers hold, and what ended ones held. The caller holds the oracle's lock."""

    def __init__(self):
        super().__init__([], 1)
        self.pods = {}  # stream -> Pod, of the containers that run

    def doors_of(self, command):
        words = command.split()
        if len(words) > 1:
            return [self.pods[int(words[1]), int(words[2]) if len(words) > 2 else 0].door]
        return [pod.door for pod in self.pods.values()]

    def say(self, *commands):
        for command in commands:
            for door in self.doors_of(command):
                door.send([command])
        return [answer for command in commands for door in self.doors_of(command) for answer in door.answers()]

    def follow(self):
        for stream in list(self.pods):
            is_more = True
            while is_more:
                [answer] = self.say(f"changes {stream[0]} {stream[1]} {self.streams[stream].next}")
                is_more = self._take(stream, answer)

    def add(self, pod):
        self.pods[pod.stream] = pod
        self.streams[pod.stream] = truth.Content()

    def end(self, pod):
        """Makes the engine stop storing, so that its content at the end of its process is known. Until
        gone() is called, it counts as an engine that does not answer."""
        pod.door.send(["drain"])
        pod.door.answers()
        self.follow()
        del self.pods[pod.stream]
        pod.door.close()

    def gone(self, pod):
        self.streams[pod.stream].clear(time.monotonic_ns())

    def close(self):
        for pod in self.pods.values():
            pod.door.close()


# ---- The cluster ------------------------------------------------------------------------


class Aggregator:
    """The interface that the oracle uses."""

    name = "kvaggregator"

    def __init__(self, port):
        self.port = port

    def is_running(self):
        return True


class Cluster:
    def __init__(self, stack, folder):
        self.stack, self.folder, self.project, self.prefix = stack, folder, stack.project, stack.network
        self.doors = self.folder / "doors"
        self.doors.mkdir(parents=True)
        self.api = None
        self.engines = Engines()
        self.oracle = None
        self.pods = {}  # by name
        self.expected = set()  # streams of the pods that the API reports
        self.count = 0
        # Durations in seconds, each from the report of the API on.
        self.added, self.left, self.marked, self.exact = [], [], [], []

    # ---- Everything but the engines

    def start(self):
        stack = self.stack
        stack.up("nats")  # first, so that the network exists where the API server listens
        gateway = f"{self.prefix}.1"
        self.api = kube_api.Api(self.folder / "api", listen=gateway, names=[gateway])
        stack.env.update(KVB_PODS_API=str(self.api.port), KVB_PODS_ACCOUNT=str(self.api.account))
        stack.up("kvaggregator", "kvbridge")
        self.aggregator = Aggregator(stack.port("kvaggregator", 9402))
        self.oracle = oracle.Oracle(self.engines, {}, [self.aggregator], stack.port("nats", 4222), self.is_gone)
        self.watcher = self.oracle.watchers[0]

    def close(self):
        if self.oracle:
            self.oracle.stop()
        self.engines.close()
        if self.api:
            self.api.close()
        names = run("docker", "ps", "-aq", "--filter", f"label=kvb.pods={self.project}").split()
        if names:
            run("docker", "rm", "-f", *names)

    # ---- Kubelet and controllers

    def create(self, address=None, node="node-a"):
        """Creates a pod and its container. The API reports the pod as Running as soon as the container
        runs. Does not wait for the bridge."""
        self.count += 1
        name = f"vllm-{self.count}-{self.project}"
        address = address or f"{self.prefix}.{10 + self.count}"
        ports = container(kv_events=EVENTS_PORT, kv_replay=REPLAY_PORT)
        ports["args"] = ["--served-model-name", "fleet", "--block-size", "16"]
        made = self.api.pods.create(engine_pod(name, containers=[ports], node=node))
        path = self.doors / str(self.count)
        id_ = run(
            "docker", "run", "-d", "--init", "--read-only", "--cap-drop=ALL", "--memory=256m",
            "--security-opt=no-new-privileges:true", "--log-driver=local", f"--user={os.getuid()}:{os.getgid()}",
            f"--label=kvb.pods={self.project}", f"--network={self.project}_pods", f"--ip={address}",
            f"--volume={self.doors}:/doors", self.stack.env["KVB_IMAGE"], *ENGINE, f"--first-id={worker_id(name)}",
            f"--seed={self.count}", f"--dialect={DIALECTS[self.count % 3]}", f"--truth=/doors/{self.count}")
        # The engine listens shortly after the file exists.
        door = wait_for(f"{name} opens its truth socket", lambda: truth.Door(path))
        pod = Pod(name, made["metadata"]["uid"], address, id_, door)
        self.pods[name] = pod
        with self.oracle.lock:
            self.engines.add(pod)
        # The bridge first replays the engine's history; meanwhile the list is SYNCING.
        self.oracle.begin_fault({pod.stream})
        self.api.pods.patch("inference", name, {"status": pod_status(address, "Running", ready=True)})
        self.expected.add(pod.stream)
        return pod

    def mark(self, pod):
        """Deletes the pod with a grace period: from now on it is draining."""
        self.api.pods.delete("inference", pod.name, grace_s=30)

    def end(self, pod):
        """Ends the container, then removes the pod. Does not wait."""
        with self.oracle.lock:
            self.engines.end(pod)
        run("docker", "rm", "-f", pod.container)
        self.forget(pod)
        self.api.pods.finish("inference", pod.name)

    def forget(self, pod):
        del self.pods[pod.name]
        with self.oracle.lock:
            self.engines.gone(pod)
        self.expected.discard(pod.stream)

    # ---- What the aggregator says

    def is_gone(self, stream):
        """Whether the stream is of a removed pod and DOWN: then its list is kept for a while, but is in no answer."""
        return stream not in self.engines.pods and self.watcher.states.get(stream, ("",))[0] == "DOWN"

    def members(self):
        return {stream for stream, row in self.watcher.states.items() if row[0] != "DOWN"}

    def are_members_right(self):
        return self.members() == self.expected and self.read_pods() == self.expected

    def read_pods(self):
        """The streams of the bridge, including those whose engine does not answer."""
        rows = ask.call(f"{self.prefix}.250:9401", "/state")["streams"]
        return {(row["worker_id"], row["dp_rank"]) for row in rows}

    def are_exact(self):
        return all(self.watcher.states.get(stream, ("",))[0] == "EXACT" for stream in self.expected)

    def wait_members(self):
        try:
            return wait_until("the pods are the members", self.are_members_right)
        except AssertionError as error:
            raise AssertionError(f"{error}: the pods are {self.expected}, the bridge has {self.read_pods()}, the "
                                 f"aggregator has {self.members()}") from None

    def rows(self, streams):
        """Rows of the aggregator's /streams, by stream."""
        rows = ask.call(f"127.0.0.1:{self.aggregator.port}", "/streams")["streams"]
        return {(row["worker_id"], row["dp_rank"]): row for row in rows if (row["worker_id"], row["dp_rank"]) in streams}

    def draining(self):
        return {stream for stream, row in self.rows(self.expected).items() if row.get("draining")}

    def blocks_of(self, streams):
        return [sum(row["blocks"].values()) for row in self.rows(streams).values()] or [0]

    def ask_for(self, pod, avoided):
        """A query must find a prompt in the draining pod that holds it; a request with that prompt must be
        routed to another worker."""
        [line] = self.oracle.command(f"truth {pod.stream[0]}")
        rank = ask.Rank(line)
        question = {"token_ids": rank.prompt}
        address = f"127.0.0.1:{self.aggregator.port}"

        def is_found():
            scores = ask.call(address, "/query", question)["scores"]
            return scores.get(str(pod.stream[0]), {}).get("0", 0) >= len(rank.prompt) > 0

        wait_until("a drained pod's blocks are found", is_found)
        for _ in range(20):
            chosen = ask.call(address, "/route", {**question, "dry_run": True})
            if (chosen["worker_id"], chosen["dp_rank"]) in avoided:
                raise AssertionError(f"{pod.name} is draining, but a request was routed there")
        return f"a prompt of {len(rank.prompt)} tokens was found there and routed elsewhere"

    def wait_exact(self):
        """Returns how many seconds it took."""
        took = wait_until("all members are EXACT", self.are_exact)
        self.oracle.end_fault()
        return took

    def compare(self):
        """Compares block by block, while nothing changes."""
        self.oracle.command("drain")
        wait_for("the index is what the engines hold", lambda: not self.oracle.compare(self.aggregator))
        with self.oracle.lock:
            blocks = sum(len(names) for names in self.engines.whole_truth().values())
        self.check_answers()
        self.oracle.command("resume")
        return blocks

    def check_answers(self):
        """Queries a prompt of each engine: the answer must have as many tokens as the engine holds, and only
        workers that are pods."""
        for line in self.oracle.command("truth"):
            rank = ask.Rank(line)
            scores = ask.call(f"127.0.0.1:{self.aggregator.port}", "/query", {"token_ids": rank.prompt})["scores"]
            found = {(int(worker), int(number)) for worker, ranks in scores.items() for number in ranks}
            if not found <= self.expected or scores.get(rank.name[0], {}).get("0", 0) < len(rank.prompt):
                raise AssertionError(f"a prompt of worker {rank.name[0]}: {scores}")

    # ---- Changes of the pods; each waits until bridge and aggregator follow

    def add(self, **where):
        pod = self.create(**where)
        self.added.append(self.wait_members())
        self.exact.append(self.added[-1] + self.wait_exact())
        return pod

    def remove(self, pod):
        self.end(pod)
        self.left.append(self.wait_members())

    def force(self, pod):
        """Deletes the pod without a grace period: it is gone while its container still runs."""
        with self.oracle.lock:
            self.engines.end(pod)
        self.forget(pod)
        self.api.pods.delete("inference", pod.name, grace_s=0)
        self.left.append(self.wait_members())
        run("docker", "rm", "-f", pod.container)


# ---- Scenes -------------------------------------------------------------------------------


def begin(cluster):
    for _ in range(8):
        cluster.create()
    cluster.wait_members()
    cluster.wait_exact()
    return f"{cluster.compare()} blocks, equal to what the engines hold"


def roll(cluster):
    """A rolling update with maxSurge 1 and maxUnavailable 0; every second old pod is deleted without grace."""
    for at, old in enumerate(list(cluster.pods.values())):
        cluster.add()
        if at % 2:
            cluster.force(old)
        else:
            cluster.mark(old)
            cluster.remove(old)
    return f"8 pods replaced one by one; {cluster.compare()} blocks"


def reuse(cluster):
    """A new pod gets the address of a removed pod at once."""
    for _ in range(3):
        old = next(iter(cluster.pods.values()))
        cluster.mark(old)
        cluster.end(old)
        new = cluster.add(address=old.address)
        if new.uid == old.uid or new.stream == old.stream:
            raise AssertionError(f"{new.name} has the UID or the worker id of the removed pod")
    return f"3 addresses were reused, each by a pod with another name and UID; {cluster.compare()} blocks"


def applied(cluster):
    return sum(row[2] for row in cluster.watcher.states.values())


def lose_api(cluster):
    """While the API server is away, one pod is created; no list may change its state."""
    kept, before = set(cluster.expected), time.monotonic_ns()
    cluster.api.go_away()
    began = time.monotonic()
    new = cluster.create()
    cluster.expected.discard(new.stream)
    ids = applied(cluster)
    while time.monotonic() - began < AWAY_S:
        if not cluster.are_members_right():
            raise AssertionError(f"members changed while the API server was away: {cluster.members() ^ kept}")
        time.sleep(0.05)
    moved = applied(cluster) - ids
    if moved <= 0:
        raise AssertionError("no event arrived while the API server was away")
    fell = [change for change in cluster.watcher.changes if change[0] > before and change[1] in kept and change[2] != "EXACT"]
    if fell:
        raise AssertionError(f"lists were no longer EXACT while the API server was away: {fell[:3]}")
    asked = len(cluster.api.requests)
    cluster.api.come_back()
    back = wait_until("the bridge sends a request again", lambda: len(cluster.api.requests) > asked)
    cluster.expected.add(new.stream)
    cluster.added.append(cluster.wait_members())
    cluster.wait_exact()
    return (f"away for {AWAY_S} s: {len(kept)} pods stayed EXACT, {moved} events arrived; the next request came {back:.1f} s "
            f"after the return, and the bridge had the new pod {cluster.added[-1]:.2f} s later; {cluster.compare()} blocks")


def rotate_token(cluster):
    """The file has a new token; the bridge reads it when the old one is refused."""
    cluster.api.new_token()
    cluster.api.expire()
    refused = cluster.api.counts["watch 401"] + cluster.api.counts["list 401"]
    asked = len(cluster.api.requests)
    cluster.api.cut_watches()
    wait_until("the bridge sends a request again", lambda: len(cluster.api.requests) > asked)
    cluster.add()
    refused = cluster.api.counts["watch 401"] + cluster.api.counts["list 401"] - refused
    old = next(iter(cluster.pods.values()))
    cluster.mark(old)
    cluster.remove(old)
    return f"{refused} requests were refused; {cluster.compare()} blocks"


def drain_node(cluster):
    """The pods of a node are marked for deletion: they keep their blocks, but no request is routed to
    them."""
    drained = [cluster.add(node="node-b") for _ in range(2)]
    streams = {pod.stream for pod in drained}
    wait_until("the new pods hold 64 blocks each", lambda: min(cluster.blocks_of(streams)) >= 64)
    for pod in drained:
        cluster.mark(pod)
    took = wait_until("the aggregator shows them as draining", lambda: cluster.draining() == streams)
    cluster.oracle.command("pause")
    asked = [cluster.ask_for(pod, streams) for pod in drained]
    cluster.oracle.command("resume")
    if not cluster.are_members_right() or min(cluster.blocks_of(streams)) == 0:
        raise AssertionError("a drained pod has lost its blocks")
    for pod in drained:
        cluster.remove(pod)
    cluster.marked.append(took)
    return f"2 pods were shown as draining after {took:.2f} s; {', '.join(asked)}; {cluster.compare()} blocks"


def judge(cluster):
    found = cluster.oracle
    assert not found.trouble, found.trouble
    assert not found.violations, f"{len(found.violations)} blocks were listed that should not be, such as {found.violations[0]}"
    late = {"new pods": cluster.added, "removed pods": cluster.left, "pods marked for deletion": cluster.marked}
    return [
        f"checked {found.judged} blocks in {found.samples} lists; the longest time that a block was listed after its removal: "
        f"{found.oldest_s:.2f} s",
        *(f"{len(times)} {what}: bridge and aggregator followed within {max(times, default=0):.2f} s" for what, times in late.items()),
        f"new pods were EXACT within {max(cluster.exact, default=0):.2f} s; {len(cluster.api.requests)} requests to the API"]


def run_all(stack, folder):
    """Returns what was measured."""
    cluster = Cluster(stack, folder)
    try:
        cluster.start()
        said = [f"{scene.__name__}: {scene(cluster)}" for scene in (begin, roll, reuse, lose_api, rotate_token, drain_node)]
        return "\n".join(said + judge(cluster))
    finally:
        cluster.close()
