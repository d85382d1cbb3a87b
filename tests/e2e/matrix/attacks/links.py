"""Links between the bridge and an engine that lose, delay and flip bytes; and garbage on the
sockets on which that engine publishes its load."""

import random
import threading
import time

import msgspec
import zmq

import engine
from matrix.attacks.engines import MOST_PAUSE_S, HostileEngine, from_fresh_starts, follow
from matrix.liar import poisons
from programs import port_of, wait_for
from proxy import Proxy

PERIOD_S = 0.02
REFUSED = ("bridge", "kvb_load_samples_refused_total", {"reason": "message"})
ENDED = ("bridge", "kvb_load_samples_refused_total", {"reason": "protocol"})
ERRORS = ("bridge", "kvcache_zmq_errors_total", {})
FIGURES = {"request_active_slots": 1, "request_total_slots": 9, "num_requests_waiting": 0}
LEAST_FLIPPED = 20


class LoadSocket:
    """The socket of an engine or of its coordinator: an XPUB, which reports subscriptions."""

    def __init__(self):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self.socket.get(zmq.LAST_ENDPOINT).decode()
        self.has_subscriber = False

    def send(self, *frames):
        """False: nobody has subscribed, so the message was dropped."""
        while self.socket.poll(0):
            self.has_subscriber = self.socket.recv()[:1] == b"\1"
        if self.has_subscriber:
            self.socket.send_multipart(frames)
        return self.has_subscriber

    def close(self):
        self.socket.close()
        self.context.term()


class LinkedEngine(HostileEngine):
    """An engine that the bridge reaches over links of its own."""

    def __init__(self, seed):
        super().__init__()
        self.rng = random.Random(seed)
        self.links = [Proxy(port_of(one), seed=seed + at) for at, one in enumerate((self.events, self.replay))]
        self.feed, self.coordinator = LoadSocket(), LoadSocket()
        self.count = lambda counter: 0  # of the bridge

    def where(self):
        return " ".join(f'{key} = "tcp://127.0.0.1:{link.port}";' for key, link in zip(("events", "replay"), self.links))

    def load(self):
        return f'load = {{ zmq = "{self.feed.endpoint}"; coordinator = "{self.coordinator.endpoint}"; }}; '

    def close(self):
        for one in (*self.links, self.feed, self.coordinator):
            one.close()
        super().close()

    def begin_again(self):
        for link in self.links:
            link.heal()
            link.delay_s = link.jitter_s = link.flip_share = 0.0
        super().begin_again()

    # ---- links -----------------------------------------------------------------------

    def _publish_until(self, is_over):
        """Publishes a block each period; returns how many."""
        blocks = 0
        while not is_over():
            blocks += 1
            self.publish(engine.batch(engine.stored([blocks], [blocks], 1)))
            time.sleep(PERIOD_S)
        return blocks

    def _publish_for(self, seconds):
        ends = time.monotonic() + seconds
        return self._publish_until(lambda: time.monotonic() > ends)

    def lossy_link(self):
        """Lost packets delay everything behind them until they are sent again."""
        stopping = threading.Event()

        def lose():
            while not stopping.wait(self.rng.uniform(0.05, 0.3)):
                links = self.rng.choice((self.links, self.links[:1], self.links[1:]))
                ways = self.rng.choice(((True, True), (True, False), (False, True)))
                for link in links:
                    link.hush(*ways)
                stopping.wait(self.rng.choice((0.2, 0.2, 0.2, 0.4, 0.4, 0.8, 1.6)))
                for link in links:
                    link.heal()

        hand = threading.Thread(target=lose, daemon=True)
        hand.start()
        blocks = self._publish_for(8)
        stopping.set()
        hand.join()
        self.wait_until_listed(blocks)

    def slow_link(self):
        for link in self.links:
            link.delay_s, link.jitter_s = 0.1, 0.05
        blocks = self._publish_for(6)
        self.wait_until_listed(blocks)

    def flipped_bytes(self):
        """TCP's checksum does not detect every flip. A flip that makes a message undecodable is
        counted; one that leaves it decodable cannot be found before the engine restarts."""
        before, flipped = self.errors(ERRORS), self.links[0].flipped
        gives_up = time.monotonic() + MOST_PAUSE_S
        for link in self.links:
            link.flip_share = 0.3
        self._publish_until(lambda: time.monotonic() > gives_up or (
            self.links[0].flipped >= flipped + LEAST_FLIPPED and self.errors(ERRORS) > before))

    # ---- load ------------------------------------------------------------------------

    def _until_grown(self, what, counter, least, send):
        before = self.count(counter)
        wait_for(what, lambda: send() and None or self.count(counter) >= before + least, MOST_PAUSE_S)

    def _feed_garbage(self, socket, good, source):
        """Sends until some garbage was refused; then figures must be accepted again."""
        encode, noise = msgspec.msgpack.encode, self.rng.randbytes
        bodies = [
            *poisons(good), b"", noise(200), encode([]), encode([[1]] * 9), encode({"kv_stats": 5}), encode("x" * 2000),
            encode([[[1, 2, 0.5]] * 5000, -1, None]), encode({"worker_stats": {"data_parallel_rank": -1}, "kv_stats": []})]
        bodies = [one for one in bodies if len(one) < MOST_LOAD_BYTES]

        def send():
            for body in bodies:
                socket.send(*self.rng.choice(((body,), (b"", body), (b"", noise(8), body), (body,) * 5)))

        self._until_grown("garbage is refused", REFUSED, len(bodies), send)
        self._take_again(socket, good, source)

    def _take_again(self, socket, good, source):
        self._until_grown("figures are taken", SAMPLES[source], 1, lambda: socket.send(good))

    def load_of_garbage(self):
        self._feed_garbage(self.feed, msgspec.msgpack.encode(FIGURES), "zmq")

    def coordinator_of_garbage(self):
        self._feed_garbage(self.coordinator, msgspec.msgpack.encode(([[1, 2]], 0, False)), "coordinator")

    def oversized_load(self):
        """libzmq closes such a connection for good, so the bridge must open another."""
        def oversized():
            self.feed.send(bytes(2 * MOST_LOAD_BYTES))
            return not self.feed.has_subscriber

        good = msgspec.msgpack.encode(FIGURES)
        wait_for("a subscriber", lambda: self.feed.send(good), MOST_PAUSE_S)
        before = self.count(ENDED)
        wait_for("the connection ends", oversized, MOST_PAUSE_S)
        wait_for("that is counted", lambda: self.count(ENDED) > before, MOST_PAUSE_S)
        wait_for("the next subscriber", lambda: self.feed.send(good), MOST_PAUSE_S)
        self._take_again(self.feed, good, "zmq")


MOST_LOAD_BYTES = 1 << 16  # of one message
SAMPLES = {source: ("bridge", "kvb_load_samples_total", {"source": source}) for source in ("zmq", "coordinator")}


def attacks(one, metric, count):
    """metric: as in attacks.engines; count(name, **labels): of all streams."""
    follow(one, metric)
    one.count = lambda counter: count(counter[1], **counter[2])
    return from_fresh_starts(one, (
        (one.lossy_link, (), 0),
        (one.slow_link, (), 0),
        (one.flipped_bytes, (ERRORS,), 1),
        (one.load_of_garbage, (REFUSED,), 20),
        (one.coordinator_of_garbage, (REFUSED,), 20),
        (one.oversized_load, (ENDED,), 1),
    ))
