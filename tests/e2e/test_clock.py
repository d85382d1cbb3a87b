"""Do daemons stay connected to NATS, and reconnect in time, when the realtime clock is set, as NTP
does on a host that boots?  The daemons run with a clock that the test sets (clock_shim.c)."""

import signal

import pytest

import engine
from clock import Clock, build_shim
from conftest import worker
from programs import wait_for

HOUR_S = 3600
jumps = pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S], ids=["back", "forward"])


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return build_shim(tmp_path_factory.mktemp("clock"))


class World:
    """A stream that is EXACT; both daemons run on a clock that the test sets."""

    def __init__(self, scene, clock):
        self.scene, self.clock = scene, clock
        self.vllm = scene.engine()
        self.stored = 0
        self.aggregator = scene.aggregator(block_size=4)
        self.bridge = scene.bridge(worker(self.vllm, block_size=4), formats=["protobuf"])
        self.daemons = (self.bridge, self.aggregator)
        self.store()
        self.await_exact()

    def store(self):
        self.stored += 1
        self.vllm.publish(engine.batch(engine.stored([self.stored], [self.stored] * 4, 4)))

    def is_exact(self):
        streams = self.aggregator.get("/streams")["streams"]
        return [(s["state"], s["blocks"]["device"]) for s in streams] == [("EXACT", self.stored)]

    def await_exact(self):
        wait_for("EXACT with all held blocks", self.is_exact)

    def connects(self):
        return [d.metric("kvb_nats_connects_total") for d in self.daemons]


@pytest.fixture
def world(scene, shim, tmp_path, monkeypatch):
    clock = Clock(tmp_path / "clock")
    with monkeypatch.context() as patch:
        for name, value in clock.environment(shim).items():
            patch.setenv(name, value)
        one = World(scene, clock)
    return one


@jumps
def test_a_jump_while_nats_is_away_prevents_no_reconnect(world, jump_s):
    world.scene.started[0].kill()
    for daemon in world.daemons:  # it pauses after the attempt of which it says this
        wait_for(f"{daemon.name} has tried again", lambda one=daemon: "not connected, trying again" in one.text())
    world.clock.jump(jump_s)
    world.store()
    world.scene.start_nats(world.scene.nats_port)
    for daemon in world.daemons:
        wait_for(f"{daemon.name} is back", daemon.is_ready)
    world.await_exact()


@jumps
def test_a_frozen_server_is_found_after_a_jump(world, jump_s):
    world.clock.jump(jump_s)
    world.store()
    world.await_exact()
    world.scene.started[0].process.send_signal(signal.SIGSTOP)
    try:
        for daemon in world.daemons:
            wait_for(f"{daemon.name} misses NATS", lambda one=daemon: not one.is_ready())
    finally:
        world.scene.started[0].process.send_signal(signal.SIGCONT)
    world.store()
    world.await_exact()
