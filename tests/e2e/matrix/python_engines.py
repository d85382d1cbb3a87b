"""Engines of the tests' own beside those of kvfleet, and the truth about them."""

import collections
import random
import threading
import time

import contract
import engine
from matrix.truth import Content
from programs import DEADLINE_S, wait_for


class LruEngine(engine.Engine):
    """An LRU cache of blocks of one size; a thread publishes what it does."""

    block_size = 16

    def __init__(self, seed, blocks=512, period_s=0.003, **options):
        super().__init__(**options)
        self.blocks = blocks
        self.period_s = period_s
        self.rng = random.Random(seed)
        self.content = Content()
        self.lru = collections.OrderedDict()  # engine hash -> name
        self.next_hash = 1
        self.unseen = None  # number of batches of another incarnation that are sent before the next one
        self.ending = threading.Event()
        self.running = threading.Event()
        self.idle = threading.Event()
        self.maker = threading.Thread(target=self._make, daemon=True)
        self.maker.start()

    def begin(self):
        self.running.set()

    def pause(self):
        self.running.clear()
        assert self.idle.wait(DEADLINE_S)

    def be_born_again(self, unseen):
        """Another incarnation without a broken connection: its batches have the numbers of the old
        one and `unseen` more, and the next one published is the first that arrives. Returns the
        last number of the old incarnation."""
        last, self.unseen = self.next_seq - 1, unseen
        wait_for("another life", lambda: self.unseen is None)
        return last

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
            if self.unseen is not None:
                self._begin_again(self.next_seq + self.unseen)
                self.unseen = None
            self.publish(engine.batch(*self._events()))
            time.sleep(self.period_s)

    def _begin_again(self, seqs):
        self.content.clear(time.monotonic_ns())
        self.lru.clear()
        rows = [(seq, engine.batch(*self._events())) for seq in range(seqs)]
        with self.lock:
            self.buffer.clear()
            self.buffer.extend(rows)
            self.next_seq = seqs

    def _events(self):
        """Stores a chain of five new blocks; evicts others first."""
        events, now = [], time.monotonic_ns()
        while len(self.lru) + 5 > self.blocks:
            old, name = self.lru.popitem(last=False)
            self.content.remove(now, name)
            events.append(engine.MapForm.removed(old))
        tokens = [self.rng.randrange(1 << 17) for _ in range(5 * self.block_size)]
        names = [name for name, _ in contract.prompt_hashes(tokens, self.block_size)]
        hashes = list(range(self.next_hash, self.next_hash + 5))
        self.next_hash += 5
        # The end of a chain is removed first, as by an engine that frees a request.
        for one, name in reversed(list(zip(hashes, names))):
            self.lru[one] = name
            self.content.hold(name)
        events.append(engine.MapForm.stored(hashes, tokens, self.block_size))
        return events


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
