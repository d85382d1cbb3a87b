"""What the engines hold, and since when: read in small parts from the fleet's control socket. The
fleet names blocks by tokens and salts; the canonical names are computed here by the contract
(e2e/contract.py)."""

import socket
import time

import msgspec

import contract
from programs import DEADLINE_S

S = 1_000_000_000


class Content:
    """One stream: name -> copies held, and when each name was last removed."""

    def __init__(self):
        self.held = {}
        self.gone = {}  # name -> ns of its last removal
        self.names = {}  # engine hash -> name
        self.next = 0

    def store(self, at_ns, engine_hash, parent, tokens, salt=None):
        own = contract.tokens_hash(tokens, contract.block_seed(salt=salt))
        name = contract.next_hash(None if parent == engine_hash else self.names[parent], own)
        self.names[engine_hash] = name
        self.hold(name)

    def hold(self, name):
        self.held[name] = self.held.get(name, 0) + 1

    def remove(self, at_ns, name):
        left = self.held.pop(name, 0) - 1
        if left > 0:
            self.held[name] = left
        else:
            self.gone[name] = at_ns

    def clear(self, at_ns):
        for name in self.held:
            self.gone[name] = at_ns
        self.held = {}

    def forget(self, before_ns):
        """Forgets removals of long ago, which count as never held."""
        self.gone = {name: at for name, at in self.gone.items() if at > before_ns}


class Door:
    """A client of one truth socket.  One thread at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(path))
        self.lines = self.socket.makefile("rb")
        self.rows = msgspec.json.Decoder()

    def close(self):
        self.lines.close()
        self.socket.close()

    def send(self, commands):
        self.socket.sendall("".join(f"{command}\n" for command in commands).encode())

    def answers(self):
        """The lines that answer the oldest command sent."""
        found = []
        while True:
            answer = self.rows.decode(self.lines.readline())
            if "end" in answer:
                return found
            if "error" in answer:
                raise RuntimeError(answer["error"])
            found.append(answer)


class Fleet:
    """All engines, of one process or several: each process has workers_each of them, with ids from
    1."""

    def __init__(self, paths, workers_each):
        self.doors = [Door(path) for path in paths]
        self.workers_each = workers_each
        self.streams = {}
        self.away = set()  # doors of processes that are frozen or dead: in their engines nothing happens

    def close(self):
        for door in self.doors:
            door.close()

    def door_of(self, worker):
        return self.doors[(worker - 1) // self.workers_each]

    def doors_of(self, command):
        """A command names one worker, or is for all that answer."""
        words = command.split()
        return [self.door_of(int(words[1]))] if len(words) > 1 else [door for door in self.doors if door not in self.away]

    def stop_asking(self, at):
        """Pauses a process of engines, and asks it nothing more: everything that happened in it is known."""
        self.doors[at].send(["pause"])
        self.doors[at].answers()
        self.follow()
        self.away.add(self.doors[at])

    def ask_again(self, at, path=None):
        """It goes on; path: a new process has taken its place, whose engines hold nothing yet."""
        self.away.discard(self.doors[at])
        if path is None:
            self.say("resume")
            return
        self.doors[at].close()
        self.doors[at] = Door(path)
        for (worker, _), content in self.streams.items():
            if self.door_of(worker) is self.doors[at]:
                content.clear(time.monotonic_ns())
                content.names, content.next = {}, 0

    def say(self, *commands):
        """The answers of all commands, in order."""
        for door in self.doors:
            if asked := [command for command in commands if door in self.doors_of(command)]:
                door.send(asked)
        return [answer for command in commands for door in self.doors_of(command) for answer in door.answers()]

    def stats(self):
        """{(worker, rank): row}"""
        return {(row["worker_id"], row["dp_rank"]): row for row in self.say("stats") if "worker_id" in row}

    def learn_streams(self):
        self.streams = {stream: Content() for stream in self.stats()}

    def follow(self):
        """Reads the additions and removals up to now, for every stream."""
        asked = [stream for stream in self.streams if self.door_of(stream[0]) not in self.away]
        while asked:
            answers = []
            for at in range(0, len(asked), 8):  # few enough for the socket's buffers
                answers += self.say(*(
                    f"changes {worker} {rank} {self.streams[worker, rank].next}"
                    for worker, rank in asked[at : at + 8]
                ))
            asked = [stream for stream, answer in zip(asked, answers) if self._take(stream, answer)]

    def _take(self, stream, answer):
        """True when there are more."""
        assert answer["lost"] == 0, f"{stream}: --log-changes is too small for this load"
        content = self.streams[stream]
        for change in answer["changes"]:
            if change[0] == "stored":
                content.store(*change[1:])
            elif change[0] == "removed":
                content.remove(change[1], content.names[change[2]])
            else:
                content.clear(change[1])
        content.next = answer["next"]
        return len(answer["changes"]) >= 10_000

    def forget(self, seconds=60):
        for content in self.streams.values():
            content.forget(time.monotonic_ns() - seconds * S)

    def whole_truth(self):
        """{(worker, rank): names}, read from the engines' pools and not from the log."""
        truth = {}
        for row in self.say("truth"):
            names, held = [], set()
            for block in row["blocks"]:
                parent = names[block["parent"]] if block["parent"] >= 0 else None
                seed = contract.block_seed(salt=block.get("salt"))
                names.append(contract.next_hash(parent, contract.tokens_hash(block["tokens"], seed)))
                if block["copies"] > 0:
                    held.add(names[-1])
            truth[row["worker_id"], row["dp_rank"]] = held
        return truth
