"""Running engines in pods that are created, end, return under their name, and take over addresses,
at random from a seed: is no removed block listed, and everything else again?"""

import random
import time

from pod_store import container, engine_pod
from pods.engines import EVENTS_PORT, REPLAY_PORT, Engine, Judge
from pods.members import worker_id

NAMESPACE = "inference"
PODS = 5
NAMES = 8
ADDRESSES = 7
LABELS = {"app": "vllm"}


class Addresses:
    """settled: called after each event; returns when bridge and aggregator show the current pods."""

    def __init__(self, kube, aggregator, folder, seed, net, settled):
        self.kube, self.pods, self.folder, self.net = kube, kube.pods, folder, net
        self.random = random.Random(seed)
        self.judge = Judge(aggregator, lambda: bool(kube.streams))
        self.engines = {}  # by the pod's name
        self.started = 0
        self.settled = settled
        self.said = []

    def run(self, events):
        for _ in range(PODS):
            self.come()
        self.settled(self)
        for number in range(events):
            happens = self.random.choice(HAPPENS)
            self._say(f"event {number}: {happens.__name__}")
            happens(self)
            self.settled(self)

    def close(self):
        self.judge.stop()
        for engine in self.engines.values():
            engine.kill()

    # ---- Events

    def come(self):
        """Adds a pod; when there are too many, removes one."""
        if len(self.engines) >= PODS + 1:
            return self.go()
        self._start(self._free_name(), self._free_ip())

    def go(self):
        if len(self.engines) > 1:
            self._end(self._any())

    def inherited(self):
        """Another pod gets the address of one that has ended, immediately."""
        engine, name = self._any(), self._free_name()
        self._end(engine)
        self._start(name, engine.ip)

    def reborn(self):
        """The same name and address, another UID."""
        engine = self._any()
        self._end(engine)
        self._start(engine.name, engine.ip)

    def moved(self):
        """The same name with another UID, and a third pod at the old address."""
        engine = self._any()
        self._end(engine)
        self.come()
        if engine.name not in self.engines:
            self._start(engine.name, self._free_ip())

    def unseen(self):
        """Several of these while the API is away, so that only a list shows them."""
        self.kube.go_away()
        self.reborn()
        self.inherited()
        if self.random.random() < 0.5:
            self.pods.compact()
        self.kube.come_back()

    def deselected(self):
        """A pod leaves the selector and comes back; its engine keeps running."""
        engine = self._any()
        self.pods.patch(NAMESPACE, engine.name, {"metadata": {"labels": {"app": "other"}}})
        self.settled(self)
        self.pods.patch(NAMESPACE, engine.name, {"metadata": {"labels": LABELS}})

    # ---- Inside

    def _say(self, line):
        self.said.append(f"{time.monotonic():.2f} {line}")

    def _any(self):
        return self.engines[self.random.choice(sorted(self.engines))]

    def _free_name(self):
        names = [f"engine-{number}" for number in range(NAMES)]
        return self.random.choice([name for name in names if name not in self.engines])

    def _free_ip(self):
        taken = {engine.ip for engine in self.engines.values()}
        addresses = [f"{self.net}.{number}" for number in range(1, ADDRESSES + 1)]
        return self.random.choice([ip for ip in addresses if ip not in taken])

    def _start(self, name, ip):
        self.started += 1
        self._say(f"  {name} starts at {ip}, worker {worker_id(name)}")
        engine = Engine(self.folder, name, ip, self.started)
        self.engines[name] = engine
        self.judge.add(engine)
        ports = container(kv_events=EVENTS_PORT, kv_replay=REPLAY_PORT)
        self.pods.create(engine_pod(name, NAMESPACE, ip=ip, labels=LABELS, containers=[ports]))

    def _end(self, engine):
        """Half of the pods drain first."""
        if self.random.random() < 0.5:
            self.pods.delete(NAMESPACE, engine.name)
        self._say(f"  {engine.name} ends at {engine.ip}")
        self.judge.kill(engine)
        del self.engines[engine.name]
        self.pods.finish(NAMESPACE, engine.name)


HAPPENS = (
    Addresses.come, Addresses.go, Addresses.inherited, Addresses.inherited, Addresses.reborn, Addresses.reborn,
    Addresses.moved, Addresses.unseen, Addresses.deselected,
)
