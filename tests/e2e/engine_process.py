"""An engine (engine.py) in a process of its own, so that it can be killed.

    engine_process.py EVENTS REPLAY     publishes each line of its input, a payload in hex
"""

import subprocess
import sys

import zmq

import engine
import programs


class EngineProcess:
    """Has the methods of engine.Engine that its users need."""

    def __init__(self):
        self.events, self.replay = (f"tcp://127.0.0.1:{programs.free_port()}" for _ in range(2))
        self.begin()

    def begin(self):
        self.process = subprocess.Popen(
            [sys.executable, __file__, self.events, self.replay], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline() == b"bound\n"

    def publish(self, payload):
        self.process.stdin.write(payload.hex().encode() + b"\n")
        self.process.stdin.flush()

    def close(self):
        self.process.kill()
        self.process.communicate()

    def restart(self):
        """Kills it with SIGKILL: batches published but not sent yet are lost too."""
        self.close()
        self.begin()


def main(events, replay):
    one = engine.Engine(bind=events, bind_replay=replay)
    one.router.set(zmq.SNDHWM, 0)  # otherwise libzmq drops replies above 1,000, and the held blocks are unknown
    print("bound", flush=True)
    for line in sys.stdin:
        one.publish(bytes.fromhex(line))
    one.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
