"""Pods that are real containers.  A bridge follows them through the Kubernetes API while they are
updated, replaced and drained under load, and while the API server is away or refuses the token.

    pods.py --image IMAGE --folder FOLDER -- COMPOSE...

COMPOSE is the compose command with its files (docker-compose.yml and pods.yml) and its project.
KVB_PODS, in the environment, is the first part of the addresses of the pods' network.  This program
plays the cluster: the API server, the kubelet, which starts containers and reports their status, and the
controllers.

The oracle of the fault matrix checks all the time that no list of the aggregator has a block for more
than LIMIT_S after its engine dropped it or its pod went.  After each change, the workers of the bridge and
of the aggregator must be those of the cluster within LIMIT_S after the API has reported it."""

import argparse
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS / "matrix"), str(TESTS / "kubernetes")]

import ask  # noqa: E402
import kube_api  # noqa: E402
import oracle  # noqa: E402
import truth  # noqa: E402
from worker_id import worker_id  # noqa: E402
from pod_store import container, engine_pod, pod_status  # noqa: E402

LIMIT_S = 2.0
AWAY_S = 30
# The bridge tries an unreachable server once a second, plus or minus 20 %.
COMES_BACK_S = 1.5
EVENTS_PORT, REPLAY_PORT = 20000, 20001
BLOCKS = 512
ENGINE = [
    "kvfleet", "--workers=1", "--ranks=1", "--bind=0.0.0.0", f"--base-port={EVENTS_PORT}", f"--blocks={BLOCKS}",
    "--scale=16", "--rate=8", f"--log-changes={16 * BLOCKS + 65536}",
    "--trace=/usr/local/share/kvbridge/conversation_trace.jsonl",
]
DIALECTS = ("vllm-0.11", "vllm-0.22", "vllm-0.31")


class Failed(Exception):
    pass


def say(text):
    print(f"         {text}", flush=True)


def run(*words, seconds=60, env=None):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=seconds, env={**os.environ, **(env or {})})
    if done.returncode:
        raise Failed(f"{' '.join(map(str, words[:6]))} ...: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def wait_until(what, condition, seconds):
    """Returns how many seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise Failed(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)
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
    def __init__(self, options):
        self.image, self.folder, self.compose = options.image, options.folder, options.compose
        self.project = self.compose[self.compose.index("-p") + 1]
        self.prefix = os.environ["KVB_PODS"]
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
        self.up("nats")
        gateway = f"{self.prefix}.1"
        self.api = kube_api.Api(self.folder / "api", listen=gateway, names=[gateway])
        env = {"KVB_PODS_API": str(self.api.port), "KVB_PODS_ACCOUNT": str(self.api.account)}
        os.environ.update(env)
        self.up("kvaggregator", "kvbridge")
        self.aggregator = Aggregator(self.port("kvaggregator", 9402))
        self.oracle = oracle.Oracle(self.engines, {}, [self.aggregator], self.port("nats", 4222), LIMIT_S, self.is_gone)
        self.watcher = self.oracle.watchers[0]

    def up(self, *services):
        run(*self.compose, "up", "-d", "--no-build", *services, seconds=120)

    def port(self, service, port):
        return int(run(*self.compose, "port", service, port).rsplit(":", 1)[1])

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
            f"--volume={self.doors}:/doors", self.image, *ENGINE, f"--first-id={worker_id(name)}",
            f"--seed={self.count}", f"--dialect={DIALECTS[self.count % 3]}", f"--truth=/doors/{self.count}")
        wait_until(f"{name} opens its truth socket", path.exists, 20)
        pod = Pod(name, made["metadata"]["uid"], address, id_, self.open_door(path))
        self.pods[name] = pod
        with self.oracle.lock:
            self.engines.add(pod)
        # The bridge first replays the engine's history; meanwhile the list is SYNCING.
        self.oracle.begin_fault({pod.stream})
        self.api.pods.patch("inference", name, {"status": pod_status(address, "Running", ready=True)})
        self.expected.add(pod.stream)
        return pod

    @staticmethod
    def open_door(path):
        """The engine listens shortly after the file exists."""
        deadline = time.monotonic() + 5
        while True:
            try:
                return truth.Door(path)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

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

    def expect_members(self, times, seconds=10):
        """Waits longer than LIMIT_S, so that the report shows how late the change was."""
        times.append(self.wait_members(seconds))

    def wait_members(self, seconds):
        began = time.monotonic()
        while not self.are_members_right():
            if time.monotonic() - began > seconds:
                raise Failed(f"after {seconds} s the pods are {self.expected}, the bridge has {self.read_pods()}, the "
                             f"aggregator has {self.members()}")
            time.sleep(0.005)
        return time.monotonic() - began

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
        rank = ask.Rank(line, False)
        question = {"token_ids": rank.prompt}
        address = f"127.0.0.1:{self.aggregator.port}"

        def is_found():
            scores = ask.call(address, "/query", question)["scores"]
            return scores.get(str(pod.stream[0]), {}).get("0", 0) >= len(rank.prompt) > 0

        wait_until("a drained pod's blocks are found", is_found, 10)
        for _ in range(20):
            chosen = ask.call(address, "/route", {**question, "dry_run": True})
            if (chosen["worker_id"], chosen["dp_rank"]) in avoided:
                raise Failed(f"{pod.name} is draining, but a request was routed there")
        return f"a prompt of {len(rank.prompt)} tokens was found there and routed elsewhere"

    def wait_exact(self, seconds=15):
        """Returns how many seconds it took."""
        took = wait_until("all members are EXACT", self.are_exact, seconds)
        self.oracle.end_fault()
        return took

    def compare(self):
        """Compares block by block, while nothing changes."""
        self.oracle.command("drain")
        wrong, deadline = [""], time.monotonic() + 15
        while wrong and time.monotonic() < deadline:
            wrong = self.oracle.compare(self.aggregator)
        if wrong:
            raise Failed(f"the index differs from the engines: {'; '.join(wrong)}")
        with self.oracle.lock:
            blocks = sum(len(names) for names in self.engines.whole_truth().values())
        self.check_answers()
        self.oracle.command("resume")
        return blocks

    def check_answers(self):
        """Queries a prompt of each engine: the answer must have as many tokens as the engine holds, and only
        workers that are pods."""
        for line in self.oracle.command("truth"):
            rank = ask.Rank(line, False)
            scores = ask.call(f"127.0.0.1:{self.aggregator.port}", "/query", {"token_ids": rank.prompt})["scores"]
            found = {(int(worker), int(number)) for worker, ranks in scores.items() for number in ranks}
            if not found <= self.expected or scores.get(rank.name[0], {}).get("0", 0) < len(rank.prompt):
                raise Failed(f"a prompt of worker {rank.name[0]}: {scores}")

    # ---- Changes of the pods; each waits until bridge and aggregator follow

    def add(self, **where):
        pod = self.create(**where)
        self.expect_members(self.added)
        self.exact.append(self.added[-1] + self.wait_exact())
        return pod

    def remove(self, pod):
        self.end(pod)
        self.expect_members(self.left)

    def force(self, pod):
        """Deletes the pod without a grace period: it is gone while its container still runs."""
        with self.oracle.lock:
            self.engines.end(pod)
        self.forget(pod)
        self.api.pods.delete("inference", pod.name, grace_s=0)
        self.expect_members(self.left)
        run("docker", "rm", "-f", pod.container)


# ---- Scenes -------------------------------------------------------------------------------


def begin(cluster):
    for _ in range(8):
        cluster.create()
    cluster.wait_members(20)
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
            raise Failed(f"{new.name} has the UID or the worker id of the removed pod")
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
            raise Failed(f"members changed while the API server was away: {cluster.members() ^ kept}")
        time.sleep(0.05)
    moved = applied(cluster) - ids
    if moved <= 0:
        raise Failed("no event arrived while the API server was away")
    fell = [change for change in cluster.watcher.changes if change[0] > before and change[1] in kept and change[2] != "EXACT"]
    if fell:
        raise Failed(f"lists were no longer EXACT while the API server was away: {fell[:3]}")
    asked = len(cluster.api.requests)
    cluster.api.come_back()
    back = wait_until("the bridge sends a request again", lambda: len(cluster.api.requests) > asked, COMES_BACK_S)
    cluster.expected.add(new.stream)
    cluster.expect_members(cluster.added)
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
    wait_until("the bridge sends a request again", lambda: len(cluster.api.requests) > asked, 5)
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
    wait_until("the new pods hold 64 blocks each", lambda: min(cluster.blocks_of(streams)) >= 64, 20)
    for pod in drained:
        cluster.mark(pod)
    took = wait_until("the aggregator shows them as draining", lambda: cluster.draining() == streams, 10)
    cluster.oracle.command("pause")
    asked = [cluster.ask_for(pod, streams) for pod in drained]
    cluster.oracle.command("resume")
    if not cluster.are_members_right() or min(cluster.blocks_of(streams)) == 0:
        raise Failed("a drained pod has lost its blocks")
    for pod in drained:
        cluster.remove(pod)
    cluster.marked.append(took)
    return f"2 pods were shown as draining after {took:.2f} s; {', '.join(asked)}; {cluster.compare()} blocks"


SCENES = {"begin": begin, "roll": roll, "reuse": reuse, "api": lose_api, "token": rotate_token, "drain": drain_node}


def judge(cluster):
    found = cluster.oracle
    if found.trouble:
        raise Failed("; ".join(found.trouble))
    if found.violations:
        raise Failed(f"{len(found.violations)} blocks were listed for too long after their removal, such as {found.violations[0]}")
    say(f"checked {found.judged} blocks in {found.samples} lists; the longest time that a block was listed after its removal: "
        f"{found.oldest_s:.2f} s")
    late = {"new pods": cluster.added, "removed pods": cluster.left, "pods marked for deletion": cluster.marked}
    for what, times in late.items():
        say(f"{len(times)} {what}: bridge and aggregator followed within {max(times, default=0):.2f} s")
    say(f"new pods were EXACT within {max(cluster.exact, default=0):.2f} s; {len(cluster.api.requests)} requests to the API")
    worst = max((seconds for times in late.values() for seconds in times), default=0)
    if worst > LIMIT_S:
        raise Failed(f"bridge or aggregator followed a change only after {worst:.2f} s; allowed are {LIMIT_S} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("compose", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster = Cluster(options)
    try:
        cluster.start()
        for name in options.scenes.split(","):
            began = time.monotonic()
            words = SCENES[name](cluster)
            say(f"{name}, {time.monotonic() - began:.0f} s: {words}")
        judge(cluster)
    except Failed as error:
        sys.exit(f"pods: {error}")
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
