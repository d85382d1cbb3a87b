"""A client of NATS that may publish on every subject of the stack."""

import os
import random
import socket
import struct
import time

from matrix.attacks import Attack
from matrix.publisher import fixed, message, varint

COMPONENT = "namespace.dynamo.component.VllmWorker"
ROUTER = "namespace.dynamo.component.Router"
FIRST_FORGED_WORKER = 10_000_000
PROMPT_ROUNDS, PROMPTS_A_ROUND = 200, 40
QUESTIONS = tuple(("aggregator", "kvb_questions_total", {"kind": kind}) for kind in ("kv_match", "kv_route")) + (
    ("aggregator", "kvb_questions_refused_total", {}),)
REFUSED = ("aggregator", "kvb_messages_refused_total", {})


class RawClient:
    """The NATS protocol by hand: no client library prevents any message, and received messages are
    not read."""

    def __init__(self, port):
        self.door = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.door.recv(4096)
        self.door.sendall(b'CONNECT {"verbose":false,"pedantic":false,"lang":"x","version":"1"}\r\n')

    def send(self, rows):
        """[(subject, reply or "", payload)]"""
        out = bytearray()
        for subject, reply, payload in rows:
            out += f"PUB {subject} {reply + ' ' if reply else ''}{len(payload)}\r\n".encode() + payload + b"\r\n"
        self.door.sendall(out)

    def close(self):
        """Returns when the server has read everything: a connection closed earlier may be reset,
        and messages in flight would be lost."""
        self.door.settimeout(5)
        self.door.sendall(b"PING\r\n")
        words = b""
        while b"PONG\r\n" not in words:
            piece = self.door.recv(65536)
            assert piece, f"nats-server hung up: {words[-200:]}"
            words = words[-16:] + piece
        self.door.close()


def stored_json(worker, event_id, parent, blocks):
    rows = ",".join(f'{{"block_hash":{name},"tokens_hash":{name ^ 1}}}' for name in blocks)
    return (f'{{"worker_id":{worker},"event":{{"event_id":{event_id},"data":{{"stored":{{"parent_hash":{parent},'
            f'"blocks":[{rows}]}}}}}}}}').encode()


class HostileClient:
    def __init__(self, port, seed, streams, aggregators):
        self.port = port
        self.aggregators = aggregators  # how many: each answers each request
        self.random = random.Random(seed)
        self.streams = streams  # existing streams: (worker, dp_rank)

    def _so_often(self, rounds, period_s, rows):
        client = RawClient(self.port)
        for _ in range(rounds):
            client.send(rows())
            time.sleep(period_s)
        client.close()

    def _for_a_while(self, seconds, period_s, rows):
        """rows() returns what is sent each period."""
        client = RawClient(self.port)
        try:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                client.send(rows())
                time.sleep(period_s)
        finally:
            client.close()

    def garbage_everywhere(self):
        worker, rank = self.streams[0]
        subjects = [f"{COMPONENT}.{last}" for last in (
            "kv_events", "kv_events_pb", "kv_window_events", "kv_heartbeat", "load_metrics", "bridge_status", "bridge_streams", f"kv_sync.{worker}.{rank}",
            "kv_sync.99999999999999999999.0", "kv_sync.1.x", "kv_refresh")] + [
            f"{ROUTER}.{last}" for last in ("kv_match", "kv_route", "kv_get.state", "kv_get.dump", "kv_get.zzz")] + [
            "namespace.a*b.component.W.kv_events", f"namespace.{'x' * 65}.component.W.kv_events"]

        def rows():
            return [(
                self.random.choice(subjects), self.random.choice(("", "_INBOX.h.1", f"{COMPONENT}.kv_events")),
                self.random.choice((b"", b"{", b"\xff" * 9, b"[" * 20_000, self.random.randbytes(200),
                                    message((1, os.urandom(16)), (2, ("fixed", 7)), (5, b"\1\2\3"))))
            ) for _ in range(30)]

        self._for_a_while(5, 0.02, rows)

    def orphans(self):
        """Blocks below unknown parents, some MB a second."""
        state = {"next": 1}

        def rows():
            first = state["next"] = state["next"] + 10_000
            return [(f"{COMPONENT}.kv_events", "", stored_json(
                FIRST_FORGED_WORKER + 1, first, first << 20, range(first << 20 | 1, (first << 20) + 2000)))]

        self._for_a_while(8, 0.02, rows)

    def orphans_that_meet(self):
        from attacks.engines import meeting_hashes

        names = meeting_hashes(0, 40_000)
        parts = [names[at : at + 4000] for at in range(0, len(names), 4000)]
        state = {"at": 0}

        def rows():
            at = state["at"] % len(parts)
            state["at"] += 1
            return [(f"{COMPONENT}.kv_events", "", stored_json(
                FIRST_FORGED_WORKER + 2, state["at"], parts[at - 1][-1] if at else 1, parts[at]))]

        self._for_a_while(6, 0.05, rows)

    def flood_of_small_events(self):
        """Events of one worker, one block a message."""
        state = {"next": 1}

        def rows():
            first = state["next"]
            state["next"] += 400
            return [(f"{COMPONENT}.kv_events", "", stored_json(FIRST_FORGED_WORKER + 3, at, "null", (at,)))
                    for at in range(first, first + 400)]

        self._for_a_while(5, 0.02, rows)

    def flood_of_prompts(self):
        """Requests as routers send them, most of them short, some with a hundred thousand tokens."""
        def prompt(tokens):
            return b'{"model_name":"fleet","token_ids":[%s]}' % b",".join(b"%d" % (at & 1023) for at in range(tokens))

        prompts = [prompt(size) for size in (16, 16, 16, 64, 500)]
        longest = prompt(100_000)
        state = {"asked": 0}

        def rows():
            out = []
            for at in range(PROMPTS_A_ROUND):
                state["asked"] += 1
                body = longest if at == 0 and state["asked"] % (20 * PROMPTS_A_ROUND) == 1 else self.random.choice(prompts)
                out.append((f"{ROUTER}.{self.random.choice(('kv_match', 'kv_route'))}", f"_INBOX.p.{state['asked']}", body))
            return out

        self._so_often(PROMPT_ROUNDS, 0.02, rows)

    def streams_without_heartbeat(self):
        state = {"next": FIRST_FORGED_WORKER + 1000}

        def rows():
            first = state["next"]
            state["next"] += 400
            return [(f"{COMPONENT}.kv_events", "", stored_json(worker, 1, "null", (worker,)))
                    for worker in range(first, first + 400)]

        self._for_a_while(5, 0.02, rows)

    def sync_requests_of_ever_new_askers(self):
        ask = message((1, 2), (2, bytes(16)))
        state = {"asked": 0}

        def rows():
            out = []
            for _ in range(40):
                state["asked"] += 1
                worker, rank = self.random.choice(self.streams)
                out.append((f"{COMPONENT}.kv_sync.{worker}.{rank}", f"_INBOX.f{state['asked']}.1", ask))
            return out

        self._for_a_while(6, 0.02, rows)

    def last_page_of_the_dump(self):
        def rows():
            return [(f"{ROUTER}.kv_get.dump", "_INBOX.d.1", b'{"stream":%d,"row":1000}' % at) for at in range(4)]

        self._for_a_while(6, 0.02, rows)

    def forged_cleared(self):
        worker, rank = self.streams[0]
        for event_id in (MOST_ID, MOST_ID - 1, time.time_ns() // 1000 + 10**9):
            forged = f'{{"worker_id":{worker},"event":{{"event_id":{event_id},"data":"cleared","dp_rank":{rank}}}}}'
            client = RawClient(self.port)
            client.send([(f"{COMPONENT}.kv_events", "", forged.encode())])
            client.close()
            time.sleep(1)

    def forged_heartbeats(self):
        worker, rank = self.streams[0]

        def rows():
            return [(f"{COMPONENT}.kv_heartbeat", "", message(
                (1, os.urandom(16)), (2, ("fixed", worker)), (3, rank), (4, ("fixed", 1)),
                (5, ("fixed", self.random.choice((0, 5, MOST_ID)))), (6, 2), (8, 2), (9, 1), (10, b"fleet"), (11, 16)))]

        self._for_a_while(3, 0.5, rows)


MOST_ID = (1 << 64) - 1


def attacks(one):
    forged = frozenset((one.streams[0],))
    return [
        Attack("garbage_everywhere", one.garbage_everywhere, (REFUSED,), 100),
        Attack("orphans", one.orphans),
        Attack("orphans_that_meet", one.orphans_that_meet),
        Attack("flood_of_small_events", one.flood_of_small_events),
        Attack("flood_of_prompts", one.flood_of_prompts, QUESTIONS,
               PROMPT_ROUNDS * PROMPTS_A_ROUND * one.aggregators),
        Attack("streams_without_heartbeat", one.streams_without_heartbeat),
        Attack("sync_requests_of_ever_new_askers", one.sync_requests_of_ever_new_askers),
        Attack("last_page_of_the_dump", one.last_page_of_the_dump),
        Attack("forged_cleared", one.forged_cleared, touched=forged),
        Attack("forged_heartbeats", one.forged_heartbeats, touched=forged),
    ]
