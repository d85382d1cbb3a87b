"""Engines that attack the bridge which reads them: by their messages, by their replies, and by what
listens on their port."""

import random
import socket
import time

import msgspec
import zmq

import engine
from matrix.attacks import Attack
from matrix.liar import poisons
from programs import wait_for

MASK = (1 << 64) - 1
BLOCK_SIZE = 1
MOST_PAUSE_S = 45.0  # time until the bridge dials again
GREETED_S = 2.0
RECOVERED_S = 90.0  # an engine that has lied is requested after pauses that grow to 30 s
COUNTED_S = 5.0  # time until arrived messages are counted
PROTOCOL = ("bridge", "kvcache_zmq_errors_total", {"error_type": "protocol"})
# libzmq counts a greeting that ends before it is complete as a failed attempt.
RECONNECT = ("bridge", "kvcache_zmq_errors_total", {"error_type": "reconnect"})
# Of its own stream, as PROTOCOL and RECONNECT are asked for.
FRAMES = ("bridge", "kvcache_zmq_errors_total", {"error_type": "consume_events"})
REPLAY_FAILED = ("bridge", "kvcache_zmq_replay_failures_total", {})
GAPS = ("bridge", "kvb_gaps_total", {})
PAYLOAD = ("bridge", "kvb_batches_refused_total", {"reason": "payload"})


class ClearedTier(engine.KVCacheEvent, tag="AllBlocksCleared"):
    medium: str


def meeting_hashes(first, count):
    """Values whose mix by splitmix64's finaliser ends in the same 32 bits: a table that hashes
    without a secret puts them all into one line."""
    def unmix(y):
        y = (y ^ (y >> 31) ^ (y >> 62)) & MASK
        y = (y * pow(0x94D049BB133111EB, -1, 1 << 64)) & MASK
        y = (y ^ (y >> 27) ^ (y >> 54)) & MASK
        y = (y * pow(0xBF58476D1CE4E5B9, -1, 1 << 64)) & MASK
        return (y ^ (y >> 30) ^ (y >> 60)) & MASK

    return [unmix(((first + at + 1) << 32) | 0x12345678) for at in range(count)]


class HostileEngine(engine.Engine):
    """Between attacks it is an ordinary engine that starts again."""

    block_size = BLOCK_SIZE
    publisher = zmq.XPUB

    def __init__(self, **options):
        super().__init__(**options)
        self.lie = None  # (start) -> rows; None: no reply
        self.errors = lambda counter: 1  # number that the bridge has counted for this stream
        self.state = lambda: (True, 0)  # what the bridge reports about this stream: whether it is EXACT, and its blocks
        self.rng = random.Random(1)
        self.resent = 0  # messages lost with a broken connection
        self.publish(engine.batch(engine.cleared()))

    def answer(self, start):
        return self.lie(start) if self.lie else super().answer(start)

    def _open(self, events, replay):
        super()._open(events, replay)
        self.has_subscriber = False

    def is_subscribed(self):
        """Messages published before this are dropped."""
        with self.sending:
            while self.pub.poll(0):
                self.has_subscriber = self.pub.recv()[:1] == b"\1"
        return self.has_subscriber

    def wait_until_subscribed(self):
        wait_for("the bridge has subscribed", self.is_subscribed, MOST_PAUSE_S)

    def wait_until_listed(self, blocks):
        """Waits until the bridge lists this many blocks and says EXACT."""
        wait_for(f"EXACT with {blocks} blocks", lambda: self.state() == (True, blocks), RECOVERED_S)

    def recover(self):
        """Waits until the bridge lists what the engine publishes from now on."""
        self.begin_again()
        self.wait_until_subscribed()
        blocks = self.rng.randrange(1000, 2000)
        self._store_many(blocks)
        self.wait_until_listed(blocks)

    def _until_counted(self, counter, least, send):
        """A connection may break by itself while the message is in flight; then it is sent again."""
        before, ends = self.errors(counter), time.monotonic() + MOST_PAUSE_S
        while True:
            self.wait_until_subscribed()
            send()
            counted = time.monotonic() + COUNTED_S
            while time.monotonic() < counted:
                if self.errors(counter) >= before + least:
                    return
                time.sleep(0.05)
            assert time.monotonic() < ends, f"{counter[2]} of {least} messages: {self.errors(counter) - before:.0f} counted"
            self.resent += 1

    def begin_again(self):
        self.lie = None
        self.restart()
        self.publish(engine.batch(engine.cleared()))

    # ---- messages -----------------------------------------------------------------

    def oversized_message(self):
        self._until_counted(PROTOCOL, 1, lambda: self.publish(bytes(17 << 20), buffered=False))

    def oversized_message_kept(self):
        self._until_counted(PROTOCOL, 1, lambda: self.publish(bytes(17 << 20)))
        time.sleep(3)  # it is in each replay

    def poisoned_batches(self):
        good = engine.batch(engine.stored([1], [1], 1))
        for bad in poisons(good):
            self.publish(bad, buffered=bad != b"")
            self.publish(good)
        time.sleep(2)

    def wrong_frames(self):
        seq, nothing, noise = bytes(8), engine.batch(), self.rng.randbytes
        messages = [
            (b"kv",), (b"",), (self.topic, seq), (self.topic, nothing), (self.topic, seq, nothing, b""), (self.topic,) * 9,
            (seq, nothing, self.topic), (noise(3000), noise(7), noise(3000)), *(
                (self.topic, bytes(size), nothing) for size in (0, 1, 7, 9, 16, 100_000))]

        def send():
            for one in messages:
                self.send_raw(*one)

        self._until_counted(FRAMES, len(messages), send)

    def wrong_sequence_numbers(self):
        """Numbers far ahead, far back, at both ends of the range, and repeated; with correct ones
        in between."""
        ends = time.monotonic() + 4
        while time.monotonic() < ends:
            seq = self.rng.choice((
                0, 1, self.next_seq - 1, self.next_seq + 3, self.next_seq + 10**6, 1 << 31, 1 << 32, 1 << 63,
                MASK - 1, MASK, self.rng.getrandbits(64)))
            name = self.rng.randrange(1 << 20) + 1
            wrong = engine.batch(engine.stored([name], [name], 1))
            for _ in range(self.rng.randrange(1, 3)):
                self.send_raw(self.topic, seq.to_bytes(8, "big"), wrong)
            self.publish(engine.batch())
            time.sleep(0.01)

    def flood_of_small_batches(self):
        """Publishes as fast as it can, so the buffer wraps many times."""
        ends = time.monotonic() + 4
        while time.monotonic() < ends:
            name = self.next_seq + 1
            self.publish(engine.batch(engine.stored([name], [name & 0x7FFFFFFF], 1)))

    def _store_many(self, count, a_batch=100_000):
        for first in range(0, count, a_batch):
            ids = range(first + 1, first + min(a_batch, count - first) + 1)
            self.publish(engine.batch(engine.stored(ids, [one & 0x7FFFFFFF for one in ids], 1)))

    def tier_clears(self):
        self._store_many(400_000)
        self.publish(engine.batch(*[ClearedTier("CPU")] * 60_000))
        time.sleep(3)

    def children_of_one_unknown(self):
        for first in range(0, 300_000, 60_000):
            self.publish(engine.batch(*(
                engine.stored([first + at + 100], [(first + at) & 0x7FFFFFFF], 1, parent=7) for at in range(60_000))))
        time.sleep(3)

    def conversations_below_unknown(self):
        self.publish(engine.batch(*(
            engine.stored([at * 4 + 100 + i for i in range(4)], [at & 0xFFFF] * 4, 1, parent=7) for at in range(60_000))))
        time.sleep(2)

    def hashes_that_meet(self):
        for first in range(0, 300_000, 100_000):
            hashes = meeting_hashes(first, 100_000)
            self.publish(engine.batch(engine.stored(hashes, [at % 120 for at in range(len(hashes))], 1)))
        time.sleep(3)

    # ---- replies --------------------------------------------------------------------

    def _with_lie(self, lie, seconds=4.0, counter=None):
        """Gaps make the bridge send requests. counter: what must grow before the lie ends."""
        self.lie = lie
        before = self.errors(counter) if counter else 0
        ends, gives_up = time.monotonic() + seconds, time.monotonic() + MOST_PAUSE_S
        while time.monotonic() < ends or (
                counter and self.errors(counter) <= before and time.monotonic() < gives_up):
            self.publish(engine.batch(), live=False)
            self.publish(engine.batch())
            time.sleep(0.2)

    def silent_replay(self):
        self._with_lie(lambda start: None, counter=REPLAY_FAILED)

    def empty_replay(self):
        self._with_lie(lambda start: [])

    def replay_of_another(self):
        other = engine.batch(engine.stored([5], [5], 1))
        self._with_lie(lambda start: [(seq, other) for seq in range(self.next_seq)])

    def endless_replay(self):
        nothing = engine.batch()
        self._with_lie(lambda start: [(seq & MASK, nothing) for seq in range(start, start + 200_000)])

    # ---- what listens on its port ------------------------------------------------------

    def _away(self, stand_in, counter=PROTOCOL):
        """Runs until the bridge has connected: after other errors it waits up to 30 s."""
        before, ends = self.errors(counter), time.monotonic() + MOST_PAUSE_S
        self.go_away()
        port = int(self.events.rsplit(":", 1)[1])
        try:
            stand_in(port, lambda: self.errors(counter) > before or time.monotonic() > ends)
        finally:
            self.come_back()
        self.publish(engine.batch())
        time.sleep(2)

    @staticmethod
    def _greet(port, is_over, words):
        """Closes after a while, as servers do: libzmq takes an H for the length of a ZMTP 1.0
        message and waits for the rest of it."""
        def listener():
            return socket.create_server(("127.0.0.1", port))

        kept, is_met = [], False  # (end time, connection)
        ends = time.monotonic() + MOST_PAUSE_S
        with wait_for("the port is free", listener) as door:
            door.settimeout(0.1)
            while not (is_met and is_over()) and time.monotonic() < ends:
                try:
                    kept.append((time.monotonic() + GREETED_S, door.accept()[0]))
                    is_met = True
                    kept[-1][1].sendall(words)
                except OSError:
                    pass
                while kept and kept[0][0] < time.monotonic():
                    kept.pop(0)[1].close()
        for _, one in kept:
            one.close()

    def web_server_at_the_port(self):
        answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
        self._away(lambda port, is_over: self._greet(port, is_over, answer), RECONNECT)

    def garbage_at_the_port(self):
        words = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00NULL" + bytes(48) + b"\x04\x05XXXXX" + b"\x04\xff" * 50
        self._away(lambda port, is_over: self._greet(port, is_over, words))

    def other_socket_at_the_port(self):
        def stand_in(port, is_over):
            context = zmq.Context()
            socket_ = context.socket(zmq.REP)
            socket_.set(zmq.LINGER, 0)
            bind_soon(socket_, f"tcp://127.0.0.1:{port}")
            while not is_over():
                time.sleep(0.1)
            socket_.close()
            context.term()

        self._away(stand_in)


def bind_soon(socket_, endpoint):
    def bound():
        try:
            socket_.bind(endpoint)
        except zmq.ZMQError as error:
            raise OSError(str(error)) from None
        return True

    wait_for("the port is free", bound)


def attacks(one, metric):
    """metric(name, **labels): of this engine's stream; after errors of the protocol the bridge
    waits up to 30 s."""
    follow(one, metric)
    rows = (
        (one.oversized_message, (PROTOCOL,), 1),
        (one.oversized_message_kept, (PROTOCOL,), 1),
        (one.poisoned_batches, (PAYLOAD,), 15),
        (one.wrong_frames, (FRAMES,), 14),
        (one.wrong_sequence_numbers, (GAPS,), 1),
        (one.flood_of_small_batches, (), 0),
        (one.tier_clears, (), 0),
        (one.children_of_one_unknown, (), 0),
        (one.conversations_below_unknown, (), 0),
        (one.hashes_that_meet, (), 0),
        (one.silent_replay, (("bridge", "kvb_replays_total", {"step": "failed"}),), 1),
        (one.empty_replay, (), 0),
        (one.replay_of_another, (), 0),
        (one.endless_replay, (), 0),
        (one.web_server_at_the_port, (RECONNECT,), 1),
        (one.garbage_at_the_port, (PROTOCOL,), 1),
        (one.other_socket_at_the_port, (PROTOCOL,), 1),
    )

    return from_fresh_starts(one, rows)


def follow(one, metric):
    one.errors = lambda counter: metric(counter[1], **counter[2])
    one.state = lambda: (metric("kvb_stream_state", state="exact") == 1, int(metric("kvb_stream_blocks")))


def from_fresh_starts(one, rows):
    """rows: (run, counters, refusals).  After each the bridge must list the engine's blocks again."""
    def whole(run):
        one.begin_again()
        one.wait_until_subscribed()
        run()
        one.recover()

    return [Attack(run.__name__, lambda run=run: whole(run), counters, refusals) for run, counters, refusals in rows]
