"""What bridges publish about their streams on NATS: a state that lasts for less than a poll of
/streams is seen here."""

import socket
import threading
import time

STATES = ("?", "SYNCING", "EXACT", "PARTIAL", "UNVERIFIED", "STALE", "DOWN")
EPOCH, WORKER, RANK, STATE, REASON = 1, 2, 3, 6, 7  # fields of StreamHeartbeat
REASONS = (
    "", "connecting", "replaying", "gone", "hole", "poison", "skipped", "unrooted", "no_replay",
    "replay_failed", "unknown_event", "no_heartbeat", "missed_events", "joined_late", "differs",
    "silent", "engine_away", "bridge_stopped", "nats_away", "memory",
    "two_bridges", "groups", "no_base",
)


def fields(data):
    """{number: value} of a flat protobuf message; of a repeated field the last value."""
    at, found = 0, {}

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind, number = key & 7, key >> 3
        if kind == 0:
            found[number] = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            found[number] = data[at : at + size] if kind == 2 else int.from_bytes(data[at : at + size], "little")
            at += size
    return found


class Heartbeats:
    """One thread with one subscription, which is made again whenever the server comes back."""

    def __init__(self, nats_port):
        self.port = nats_port
        self.last = {}  # stream -> (state, reason, epoch)
        self.changes = []  # (ns, stream, state, reason)
        self.epochs = {}  # stream -> [(ns, epoch)]
        self.unreadable = 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopping.set()
        self.thread.join()

    def _run(self):
        while not self.stopping.wait(0.02):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as door:
                    door.sendall(b'CONNECT {"verbose":false}\r\nSUB namespace.*.component.*.kv_heartbeat 1\r\n')
                    door.settimeout(0.2)
                    self._read(door)
            except OSError:
                continue

    def _read(self, door):
        buffer = b""
        while not self.stopping.is_set():
            try:
                more = door.recv(1 << 16)
            except TimeoutError:
                continue
            if not more:
                return
            buffer = self._take_lines(door, buffer + more)

    def _take_lines(self, door, buffer):
        while b"\r\n" in buffer:
            line, rest = buffer.split(b"\r\n", 1)
            if line.startswith(b"MSG "):
                size = int(line.split()[-1])
                if len(rest) < size + 2:
                    return buffer
                self._read_heartbeat(rest[:size])
                rest = rest[size + 2 :]
            elif line == b"PING":
                door.sendall(b"PONG\r\n")
            buffer = rest
        return buffer

    def _read_heartbeat(self, data):
        try:
            self._note(fields(data))
        except (IndexError, KeyError, TypeError):
            self.unreadable += 1  # garbage published by an attacker

    def _note(self, heartbeat):
        now = time.monotonic_ns()
        stream = (heartbeat[WORKER], heartbeat.get(RANK, 0))
        state, reason = STATES[heartbeat.get(STATE, 0)], REASONS[heartbeat.get(REASON, 0)]
        before = self.last.get(stream)
        self.last[stream] = (state, reason, heartbeat[EPOCH])
        if before and before[:2] != (state, reason):
            self.changes.append((now, stream, state, reason))
        if not before or before[2] != heartbeat[EPOCH]:
            self.epochs.setdefault(stream, []).append((now, heartbeat[EPOCH]))
