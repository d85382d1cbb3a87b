"""A separate bridge with a memory limit that just suffices for one engine's list: the kernel kills
it when it needs more. Its engine keeps publishing while NATS is away."""

import os
import pathlib
import time

import engine
import programs
from matrix.attacks import Attack
from matrix.attacks.engines import MOST_PAUSE_S, HostileEngine
from programs import wait_for
from proxy import Proxy

GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
BLOCKS = 50_000
# 32 MiB, 1 MiB a connection, 64 bytes a block
MOST_BYTES = (32 << 20) + (1 << 20) + 64 * BLOCKS
AWAY_S = 5.0
CHANGED = 20  # blocks stored and removed with each batch


class Memory:
    def __init__(self, stage, worker_id):
        self.stage, self.worker_id = stage, worker_id
        self.group = GROUPS / f"kvb-hostile-{os.getpid()}"
        self.group.mkdir()
        (self.group / "memory.limit_in_bytes").write_text(str(MOST_BYTES))
        self.runs = 0

    def close(self):
        self.group.rmdir()

    def _start(self, one, link):
        self.runs += 1
        port = programs.free_port()
        row = (f'  {{ id = {self.worker_id}L; model = "fleet"; block_size = 1; '
               f'events = "{one.events}"; replay = "{one.replay}"; }}\n')
        config = (f'nats = {{ url = "nats://127.0.0.1:{link.port}"; }};\n'
                  'publish = { namespace = "dynamo"; component = "VllmWorker"; formats = ["protobuf"]; };\n'
                  f'workers = (\n{row});\nhttp = "127.0.0.1:{port}";\n')
        enter = ["sh", "-c", 'echo $$ >"$0" && exec "$@"', self.group / "cgroup.procs"]
        return programs.Daemon(self.stage.folder, f"small{self.runs}", "kvbridge", config, port, prefix=enter)

    @staticmethod
    def _is_exact(bridge):
        assert bridge.is_running(), f"it ended by itself: {bridge.process.returncode}"
        return (bridge.metric("kvb_stream_state", state="exact"), bridge.metric("kvb_stream_blocks")) == (1, BLOCKS)

    @staticmethod
    def _go_on(one, seconds):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            names = range(one.next_seq * CHANGED + BLOCKS + 1, (one.next_seq + 1) * CHANGED + BLOCKS + 1)
            one.publish(engine.batch(
                engine.stored(names, [name & 0x7FFFFFFF for name in names], 1), engine.removed(*names)))
            time.sleep(0.002)

    def bridge_with_little_memory(self):
        one, link = HostileEngine(), Proxy(self.stage.nats_port)
        one.publish(engine.batch(engine.stored(range(1, BLOCKS + 1), range(BLOCKS), 1, parent=None)))
        bridge = self._start(one, link)
        try:
            wait_for("the small bridge lists all", lambda: self._is_exact(bridge), MOST_PAUSE_S)
            self._go_on(one, 2)
            link.cut()
            self._go_on(one, AWAY_S)
            assert not bridge.is_ready(), "it does not miss NATS"
            link.heal()
            wait_for("it is ready again", bridge.is_ready, MOST_PAUSE_S)
            wait_for("it lists all again", lambda: self._is_exact(bridge), MOST_PAUSE_S)
            assert bridge.stop() == 0, f"exit status {bridge.process.returncode}"
        finally:
            bridge.kill()
            link.close()
            one.close()


def attacks(one):
    return [Attack("bridge_with_little_memory", one.bridge_with_little_memory)]
