"""An engine that can lie, and the truth about it: an LRU cache of blocks of one size. A thread
publishes its events, with malformed payloads among the good ones on demand."""

import collections
import random
import threading
import time

import contract
import engine
from matrix.truth import Content
from programs import wait_for

S = 1_000_000_000


def poisons(good):
    """Kinds of invalid payloads, as a broken engine or a bad link makes them."""
    deep = b"\x91" * 100_000
    head = bytes.fromhex("93cb41d954fc40200000")
    return [
        b"\xc1", b"\xc1\xc1\xc1", b"\x00", b"\xff", b"\xc0", b"{}", b"plain text",
        bytes.fromhex("dd05f5e100"),  # an array with a false count
        bytes.fromhex("dfffffffff"),  # a map with a false count
        head + bytes.fromhex("dd05f5e10000"),  # a nested array with a false count
        head + bytes.fromhex("db7fffffff"),  # a string with a false length
        head + bytes.fromhex("c67fffffff"),  # bytes with a false length
        head + bytes.fromhex("c97fffffff01"),  # an extension with a false length
        bytes.fromhex("df7fffffff"), deep, b"\x81\xa1a" * 50_000, b"\x92" * 60_000,
        good[:-1], good[: len(good) // 2], good[:10], good[1:], good + b"\x00", good + good, b"\x90",
    ]


class LruEngine(engine.Engine):
    def __init__(self, seed, blocks=512, block_size=16, period_s=0.003, **options):
        super().__init__(**options)
        self.block_size = block_size
        self.blocks = blocks
        self.period_s = period_s
        self.rng = random.Random(seed)
        self.content = Content()
        self.lru = collections.OrderedDict()  # (engine hash, copy) -> name
        self.chains = collections.deque(maxlen=20)  # (hashes, tokens, names) stored last
        self.repeats = 0.0  # share of batches that store a chain again; every other one is a real copy
        self.repeated = 0
        self.next_hash = 1
        self.count = 0
        self.every = 0
        self.hidden = 0  # number of batches that are not sent
        self.lost = 0  # number of batches that are not even kept for replays
        self.duplicates = self.swaps = 0.0  # shares
        self.ancient = 0.0  # share of duplicates older than what a reader remembers
        self.duplicated = self.swapped = 0
        self.former = []  # rows of the previous incarnation
        self.former_share = 0.0  # share of batches repeated from that incarnation
        self.unseen = None  # number of batches of another incarnation that are sent before the next one
        self.waiting = None  # a batch that the next one overtakes
        self.lie = None  # (rows, start) -> the rows that a replay returns
        self.poisoned = 0
        self.first_poison_ns = 0
        self.kinds_of_poison = len(poisons(b"0" * 100))
        self.ending = threading.Event()
        self.running = threading.Event()
        self.idle = threading.Event()
        self.maker = threading.Thread(target=self._make, daemon=True)
        self.maker.start()

    def begin(self):
        self.running.set()

    def pause(self):
        self.running.clear()
        self.idle.wait(5)

    def be_born_again(self, unseen):
        """Another incarnation without a broken connection: its batches have the numbers of the old
        one and `unseen` more, and the next one published is the first that arrives. Returns the
        last number of the old incarnation."""
        last, self.unseen = self.next_seq - 1, unseen
        wait_for("another life", lambda: self.unseen is None)
        return last

    def poison_every(self, batches):
        self.every = batches

    def close(self):
        self.ending.set()
        self.running.set()
        self.maker.join()
        super().close()

    def _make(self):
        while not self.ending.is_set():
            if not self.running.is_set():
                self.idle.set()
                self.running.wait()
                self.idle.clear()
            self._step()
            time.sleep(self.period_s)

    def _begin_again(self, seqs):
        self.content.clear(time.monotonic_ns())
        self.lru.clear()
        self.chains.clear()
        self.waiting, self.former = None, list(self.buffer)
        rows = [(seq, engine.batch(*self._events())) for seq in range(seqs)]
        with self.lock:
            self.buffer.clear()
            self.buffer.extend(rows)
            self.next_seq = seqs

    def _step(self):
        if self.unseen is not None:
            self._begin_again(self.next_seq + self.unseen)
            self.unseen = None
        if self.former and self.rng.random() < self.former_share:
            self._again(self.rng.choice(self.former))
        self.count += 1
        payload = engine.batch(*self._events())
        if self.every and self.count % self.every == 0 and self.poisoned < self.kinds_of_poison:
            bad = poisons(payload)[self.poisoned]
            self.first_poison_ns = self.first_poison_ns or time.monotonic_ns()
            self.poisoned += 1
            self.publish(bad, buffered=bad != b"")
        self._send(payload)

    def _send(self, payload):
        if self.lost > 0:
            self.lost -= 1
            self.publish(payload, live=False, buffered=False)
            return
        is_swapped = self.waiting is None and self.rng.random() < self.swaps
        is_live = self.hidden == 0 and not is_swapped
        self.hidden = max(0, self.hidden - 1)
        seq = self.publish(payload, live=is_live)
        if is_swapped:
            self.waiting = (seq, payload)
            self.swapped += 1
            return
        if self.waiting:
            self._again(self.waiting)
            self.waiting = None
        if self.rng.random() < self.duplicates:
            self.duplicated += 1
            newest, is_ancient = len(self.buffer), self.rng.random() < self.ancient
            self._again(self.buffer[
                self.rng.randrange(max(1, newest - 1100)) if is_ancient else
                self.rng.randrange(max(0, newest - 900), newest)
            ])

    def _again(self, row):
        self.send_raw(self.topic, row[0].to_bytes(8, "big"), row[1])

    def answer(self, start):
        rows = super().answer(start)
        return self.lie(rows, start) if self.lie else rows

    def _events(self):
        """Stores a chain of five new blocks; evicts others first."""
        events, now = [], time.monotonic_ns()
        while len(self.lru) + 5 > self.blocks:
            (old, _), name = self.lru.popitem(last=False)
            self.content.remove(now, name)
            events.append(engine.MapForm.removed(old))
        tokens = [self.rng.randrange(1 << 17) for _ in range(5 * self.block_size)]
        names = [name for name, _ in contract.prompt_hashes(tokens, self.block_size)]
        hashes = list(range(self.next_hash, self.next_hash + 5))
        self.next_hash += 5
        self._hold(hashes, names, 0)
        events.append(engine.MapForm.stored(hashes, tokens, self.block_size))
        if self.chains and self.rng.random() < self.repeats:
            events.append(self._store_again(*self.rng.choice(self.chains)))
        self.chains.append((hashes, tokens, names))
        return events

    def _hold(self, hashes, names, copy):
        # The end of a chain is removed first, as by an engine that frees a request.
        for one, name in reversed(list(zip(hashes, names))):
            self.lru[one, copy] = name
            self.content.hold(name)

    def _store_again(self, hashes, tokens, names):
        """A repetition or a second copy: the bytes are the same."""
        self.repeated += 1
        if self.repeated % 2:
            self._hold(hashes, names, self.repeated)
        return engine.MapForm.stored(hashes, tokens, self.block_size)


class Shelf(engine.Engine):
    """Stores this many blocks in prompts of fifty, publishes that once, and does nothing else."""

    block_size = 16

    def __init__(self, number, blocks, **options):
        super().__init__(**options)
        self.content = Content()
        prompt, size = 50, self.block_size
        for first in range(number * blocks, (number + 1) * blocks, 20 * prompt):
            self.publish(engine.batch(*(
                self._store(range(at * size, (at + prompt) * size), range(at + 1, at + prompt + 1))
                for at in range(first, min(first + 20 * prompt, (number + 1) * blocks), prompt)
            )))

    def _store(self, tokens, hashes):
        for name, _ in contract.prompt_hashes(tokens, self.block_size):
            self.content.hold(name)
        return engine.MapForm.stored(hashes, tokens, self.block_size)

    def begin(self):
        pass

    def pause(self):
        pass
