"""A reader of republished events (readers.py) in a process of its own, so that it can be killed.

    reader_process.py KIND EVENTS REPLAY BLOCK_SIZE     answers each line of its input with what it holds:
        "digest"    a line: the digest_of() its blocks
        "blocks"    a line: their hashes in JSON
        "hung"      a line: how often a request was never answered to its end, because the bridge was killed meanwhile

A reader that finds something wrong ends, and says why on stderr.  One whose request hung begins anew, with a new connection,
as an operator would let it: of the routers, Dynamo's waits without a limit.
"""

import hashlib
import json
import select
import subprocess
import sys

import zmq

import readers


def digest_of(held):
    """Equal for two readers that hold the same blocks with the same parents and tokens."""
    rows = sorted((name, parent or 0, tokens) for name, (parent, tokens) in held.items())
    return hashlib.sha256(repr(rows).encode()).hexdigest()


class ReaderProcess:
    def __init__(self, kind, events, replay, block_size, log):
        self.kind, self.log = kind, log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, kind.__name__, events, replay, str(block_size)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )

    def ask(self, what):
        try:
            self.process.stdin.write(what.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline().decode()
        assert line, f"{self.kind.__name__} has ended: {self.log.read_text()}"
        return line.strip()

    def digest(self):
        return self.ask("digest")

    def blocks(self):
        return set(json.loads(self.ask("blocks")))

    def kill(self):
        self.process.kill()
        self.process.communicate()


def main(kind, events, replay, block_size):
    def begin():
        return getattr(readers, kind)(events, replay, block_size=int(block_size))

    one, hung = begin(), 0
    while True:
        try:
            one.read(20)
        except zmq.Again:
            one.close()
            one, hung = begin(), hung + 1
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            answers = {
                "digest\n": lambda: digest_of(one.held),
                "blocks\n": lambda: json.dumps(list(one.held)),
                "hung\n": lambda: hung,
            }
            if line not in answers:
                return one.close()
            print(answers[line](), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
