"""Streams that are published on NATS without engine or bridge: the messages that a bridge would
send, made by the contract alone (proto/kvbridge.proto)."""

import collections
import os
import time

import bus
from matrix.heartbeats import STATES, WORKER, fields

SUBJECT = "namespace.dynamo.component.Visitors"
S = 1_000_000_000


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def fixed(value):
    return value.to_bytes(8, "little")


def message(*rows):
    """(number, value): bytes as they are, numbers as varints, ("fixed", number) as such."""
    out = b""
    for number, value in rows:
        if isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        elif isinstance(value, tuple):
            out += varint(number << 3 | 1) + fixed(value[1])
        else:
            out += varint(number << 3) + varint(value)
    return out


class Visitor:
    """One stream: it stores some blocks, removes some, and ends with or without a goodbye."""

    def __init__(self, client, worker_id, blocks=20):
        self.client = client
        self.worker_id = worker_id
        self.epoch = os.urandom(16)
        self.first_id = self.next_id = time.time_ns() // 1000
        self.names = [worker_id << 16 | at for at in range(1, blocks + 1)]

    def come(self):
        self._events([(3, [])])
        self._events([(1, self.names)])
        self.beat()

    def drop(self, count):
        gone, self.names = self.names[-count:], self.names[:-count]
        self._events([(2, gone)])
        self.beat()

    def beat(self, is_bye=False):
        # Without a digest seed only counts are compared.
        self.client.send(f"{SUBJECT}.kv_heartbeat", message(
            (1, self.epoch), (2, ("fixed", self.worker_id)), (4, ("fixed", self.first_id)),
            (5, ("fixed", self.next_id - 1)), (6, STATES.index("EXACT")), (8, 2), (9, 1), (10, b"fleet"), (11, 16),
            (13, int(is_bye)), (16, b"\0"), (17, varint(len(self.names))), (18, bytes(16)),
        ))

    def _events(self, events):
        forms = b"".join(varint(kind) for kind, _ in events)
        counts = b"".join(varint(len(names)) for _, names in events)
        hashes = b"".join(fixed(name) for _, names in events for name in names)
        tokens = b"".join(fixed(name ^ 1) for kind, names in events for name in names if kind == 1)
        self.client.send(f"{SUBJECT}.kv_events_pb", message(
            (1, self.epoch), (2, ("fixed", self.worker_id)), (4, ("fixed", self.next_id)), (5, forms), (6, counts),
            (8, hashes), (9, tokens),
        ))
        self.next_id += len(events)


def churn(nats_port, count, a_second, first_id, stay_s=1.0):
    """Adds and removes so many workers; every tenth leaves without a goodbye, except the last fifth. Returns their
    streams."""
    client = bus.Bus(f"nats://127.0.0.1:{nats_port}")
    there, came, began = collections.deque(), [], time.monotonic()
    try:
        while there or len(came) < count:
            now = time.monotonic()
            if len(came) < count and now - began >= len(came) / a_second:
                visitor = Visitor(client, first_id + len(came))
                visitor.come()
                came.append((visitor.worker_id, 0))
                there.append((now, len(came), visitor))
            elif there and (now - there[0][0] >= stay_s or len(came) == count):
                _, number, visitor = there.popleft()
                visitor.drop(5)
                if number % 10 or number > 0.8 * count:
                    visitor.beat(is_bye=True)
            else:
                time.sleep(0.002)
        client.flush()
    finally:
        client.close()
    return came


class Tape:
    """The messages about one worker, to be sent again."""

    def __init__(self, nats_port, worker_id):
        self.client = bus.Bus(f"nats://127.0.0.1:{nats_port}")
        self.worker_id = worker_id
        self.seen = self.client.watch("namespace.*.component.*.kv_events_pb")

    def recorded(self):
        """[(subject, payload)]"""
        return [(one.subject, one.data) for one in list(self.seen) if fields(one.data).get(WORKER) == self.worker_id]

    def say(self, row):
        self.client.send(*row)

    def close(self):
        self.client.close()
