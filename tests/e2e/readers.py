"""Readers of engines' events over real sockets.  Each has the rules of an existing router for numbers and replays,
and is as strict as the strictest of these routers.

    Dynamo      its stand-alone indexer: requests from 0 at its first live batch, and at gaps; batches whose number is
                not above the last one are dropped
    LlmD        llm-d-router: requests from 0 when it connects, and at gaps; a reply must have the requested number
    LlmDLater   the same; while it knows nothing it accepts a later first number
    Conductor   Mooncake's: begins with its first live batch; a gap that is not filled makes it stale for ever
    Tree        sgl-router's own tree: no replays; batches with lower numbers are skipped
    Plain       AIBrix and vLLM's example: ignores numbers

All of them skip a child of an unknown block. For the first three, whose numbers say exactly what they have, such a child
is an error after the first `cleared`, and so are a block stored twice and a removal of an unknown block. The others miss
batches while they connect again, or apply batches a second time that a snapshot contains.
"""

import msgspec
import zmq

import engine
from programs import DEADLINE_S

END = b"\xff" * 8
EVENTS = engine.MapBlockStored | engine.MapBlockRemoved | engine.MapAllBlocksCleared


class Strict(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A batch of exactly three elements: a float, events, a number."""

    ts: float
    events: list[EVENTS]
    rank: int


DECODER = msgspec.msgpack.Decoder(Strict, strict=True)


class Reader:
    """held: hash -> (parent, tokens)."""

    replays = True
    is_exact = False  # it receives each batch once
    topic = b""

    def __init__(self, events, replay, rank=0, block_size=4, lose=lambda: False):
        self.events, self.replay_at, self.rank, self.block_size, self.lose = events, replay, rank, block_size, lose
        self.held = {}
        self.has_cleared = False  # until this number it may have missed earlier events
        self.batches = []  # numbers of live batches
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.set(zmq.LINGER, 0)
        self.sub.set(zmq.RCVHWM, 1000)
        self.sub.subscribe(self.topic)
        self.sub.connect(events)
        self.begin()

    def begin(self):
        pass

    def close(self):
        self.context.destroy(linger=0)

    # ---- Events ----

    def must_fit(self):
        return self.is_exact and self.has_cleared

    def apply(self, payload):
        batch = DECODER.decode(payload)
        assert payload[0] == 0x93 and batch.rank == self.rank
        for event in batch.events:
            if isinstance(event, engine.MapAllBlocksCleared):
                self.held.clear()
                self.has_cleared = True
            elif isinstance(event, engine.MapBlockStored):
                self.store(event)
            else:
                self.remove(event)

    def store(self, event):
        size = self.block_size
        assert event.block_size == size and event.medium == "GPU" and event.extra_keys is None
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert (event.group_idx, event.kv_cache_spec_kind) == (0, "full_attention")
        parent = event.parent_block_hash
        for at, name in enumerate(event.block_hashes):
            known = parent is None or parent in self.held
            assert known and name not in self.held or not self.must_fit(), (name, parent)
            if known:
                self.held[name] = (parent, tuple(event.token_ids[at * size : at * size + size]))
            parent = name

    def remove(self, event):
        for name in event.block_hashes:
            assert name in self.held or not self.must_fit(), name
            self.held.pop(name, None)

    # ---- Sockets ----

    def request(self, start):
        """(number, payload) of each reply, up to the end mark."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.RCVTIMEO, int(1000 * DEADLINE_S))
        dealer.connect(self.replay_at)
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        try:
            while True:
                frames = dealer.recv_multipart()
                assert len(frames) == 4 and frames[0] == b"" and len(frames[2]) == 8, frames
                if frames[2] == END:
                    assert frames[1] == b"" and frames[3] == b""
                    return
                yield int.from_bytes(frames[2], "big"), frames[3]
        finally:
            dealer.close()

    def read(self, wait_ms=0):
        """Reads the messages that have arrived; True when there were some."""
        some = False
        while self.sub.poll(0 if some else wait_ms):
            topic, number, payload = self.sub.recv_multipart()
            assert len(number) == 8 and topic.startswith(self.topic)
            some = True
            if not self.lose():
                self.batches.append(int.from_bytes(number, "big"))
                self.live(self.batches[-1], payload)
        return some

    def live(self, number, payload):
        self.apply(payload)


class Plain(Reader):
    replays = False


class Tree(Reader):
    replays, last = False, -1

    def live(self, number, payload):
        if number > self.last:
            self.apply(payload)
            self.last = number


class Dynamo(Reader):
    is_exact = True
    last = None

    def live(self, number, payload):
        if (self.last is None and number > 0) or (self.last is not None and number > self.last + 1):
            for got, old in self.request(0 if self.last is None else self.last + 1):
                self.apply(old)
                self.last = got
        if self.last is None or number > self.last:
            self.apply(payload)
            self.last = number


class Conductor(Reader):
    last, is_stale = None, False

    def live(self, number, payload):
        if self.is_stale or (self.last is not None and number <= self.last):
            return
        if self.last is not None and number > self.last + 1 and not self.fill(number):
            self.is_stale = True
            return
        self.apply(payload)
        self.last = number

    def fill(self, number):
        wanted = self.last + 1
        for got, old in self.request(wanted):
            if wanted <= got < number:
                if got > wanted:
                    return False
                self.apply(old)
                wanted = got + 1
        return wanted == number


class LlmD(Reader):
    """After a failed replay it drops live batches for a while; in the original for 30 s."""

    topic = b"kv@"
    is_exact = True
    is_strict, cool_batches = True, 30

    def begin(self):
        self.last = self.last_live = None
        self.cool = 0
        self.repair(0, True)

    def forget(self):
        self.held.clear()
        self.has_cleared = False
        self.last = None

    def fail(self):
        self.forget()
        self.cool = self.cool_batches
        return False

    def repair(self, start, is_fresh):
        wanted, count = start, 0
        for got, payload in self.request(start):
            if got != wanted:
                if self.is_strict or not is_fresh or count or got < wanted:
                    return self.fail()
                wanted = got
            self.apply(payload)
            self.last, wanted, count = got, got + 1, count + 1
        if not count and start:
            return self.fail()
        self.cool = 0
        return True

    def is_ready_for(self, number):
        """Applies a batch, after a replay if one is needed first."""
        if self.last is not None and number > self.last + 1:
            if self.cool:
                return False
            if not self.repair(self.last + 1, False):
                if self.is_strict:
                    return False
                self.forget()
                self.cool = 0
                return self.repair(0, True)
        elif self.last is None and number > 0:
            return not self.cool and self.repair(0, True)
        return True

    def live(self, number, payload):
        self.cool -= self.cool > 0
        if self.last_live is not None and number < self.last_live:
            self.forget()
            self.cool = 0
            self.repair(0, True)
        if number == self.last_live:
            return
        self.last_live = number
        if self.last is not None and number <= self.last:
            return
        if self.is_ready_for(number) and (self.last is None or number == self.last + 1):
            self.apply(payload)
            self.last = number


class LlmDLater(LlmD):
    is_strict = False
