"""Many engines with full caches, and a router that reports cached tokens: does the audit raise no
false alarm about honest engines, and how soon does it detect those that lie? Not part of the tests;
run it by hand:

    KVB_BIN=build/release build/venv/bin/python tests/e2e/audit_soak.py --minutes 30

Engines evict what was used least recently, and say so, while requests wait. From the middle of the
time on, --liars of them drop the whole prompt of one request in twenty without an event.  Exit status:
0 if no honest stream was UNVERIFIED(audit), and each liar was."""

import argparse
import collections
import http.client
import json
import pathlib
import random
import sys
import tempfile
import time

import conftest
import engine
from programs import wait_for

BLOCK = 16
SHARED_BLOCKS, OWN_BLOCKS = 8, 12
PROMPTS = 40  # cache of each engine in blocks; together the prompts do not fit
CAPACITY = 300  # blocks
WAITING = 8  # requests that wait for each engine


class CachingEngine(engine.Engine):
    """A prefix cache of CAPACITY blocks. A block is named by all tokens up to its end."""

    def __init__(self, **options):
        super().__init__(**options)
        self.cache = collections.OrderedDict()  # the least recently used block is first
        self.publish(engine.batch(engine.AllBlocksCleared()))

    def names(self, prompt):
        names, parent = [], 0
        for at in range(0, len(prompt) - BLOCK + 1, BLOCK):
            parent = hash((parent, tuple(prompt[at:at + BLOCK]))) % (1 << 62) + 1
            names.append(parent)
        return names

    def compute(self, prompt):
        """Returns how many tokens were taken from the cache; never the last token."""
        names = self.names(prompt)
        held = next((n for n, name in enumerate(names) if name not in self.cache), len(names))
        hit = min(held, (len(prompt) - 1) // BLOCK)
        for name in reversed(names):  # the end of a prompt is evicted first
            self.cache[name] = None
            self.cache.move_to_end(name)
        events = []
        evicted = [self.cache.popitem(last=False)[0] for _ in range(len(self.cache) - CAPACITY)]
        if evicted:
            events.append(engine.removed(*evicted))
        if held < len(names):
            events.append(engine.stored(
                names[held:], prompt[held * BLOCK:len(names) * BLOCK], BLOCK, parent=names[held - 1] if held else None))
        if events:
            self.tell(events)
        return hit * BLOCK

    def tell(self, events):
        self.publish(engine.batch(*events))

    def drop(self, prompt):
        """Drops the prompt without publishing an event."""
        for name in self.names(prompt):
            self.cache.pop(name, None)


class Refused(Exception):
    """No worker could be chosen."""


class Router:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path, body):
        self.connection.request("POST", path, body=json.dumps(body), headers={"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status == 503:
            raise Refused(text)
        assert answer.status == 200, (path, answer.status, text)
        return json.loads(text)


def prompt_of(worker, number):
    shared = range(worker * 1_000_000, worker * 1_000_000 + SHARED_BLOCKS * BLOCK)
    first = worker * 1_000_000 + (number + 1) * 1000
    return [*shared, *range(first, first + OWN_BLOCKS * BLOCK + 5)]


class Soak:
    def __init__(self, scene, options):
        self.options = options
        self.engines = {number + 1: scene.engine_of(CachingEngine) for number in range(options.streams)}
        self.aggregator = scene.aggregator()
        scene.bridge(*(conftest.worker(one, number) for number, one in self.engines.items()))
        wait_for("all streams are exact", lambda: self.aggregator.is_exact(options.streams))
        self.router = Router(self.aggregator.port)
        self.random = random.Random(options.seed)
        self.waiting = {number: collections.deque() for number in self.engines}
        self.requests = collections.Counter()
        self.lied_at = {}  # when each liar began, and its requests until then
        self.found = {}  # of each liar: (seconds, requests since then)
        self.false_alarms = {}  # of each honest engine: seconds since the beginning

    def step(self, number):
        """Routes a request to the engine, and lets it execute the oldest one that waits there."""
        prompt = prompt_of(number, self.random.randrange(self.random.choice((4, PROMPTS))))
        routed = self.router.post("/route", {"token_ids": prompt, "model": "m", "candidates": [number]})
        queue = self.waiting[number]
        queue.append((routed["request_id"], prompt))
        if len(queue) <= WAITING:
            return
        request_id, prompt = queue.popleft()
        if number in self.lied_at and self.random.random() < 0.05:
            self.engines[number].drop(prompt)
        cached = self.engines[number].compute(prompt)
        self.router.post("/finished", {"request_id": request_id, "cached_tokens": cached})
        self.requests[number] += 1

    def look(self, now):
        for row in self.aggregator.get("/streams")["streams"]:
            number = row["worker_id"]
            if row["reason"] != "audit" or number in self.found or number in self.false_alarms:
                continue
            if number not in self.lied_at:
                self.false_alarms[number] = round(now - self.began)
                continue
            since, requests = self.lied_at[number]
            self.found[number] = (now - since, self.requests[number] - requests)

    def run(self):
        begin = self.began = time.monotonic()
        end, middle = begin + 60 * self.options.minutes, begin + 30 * self.options.minutes
        next_look, rounds = begin, 0
        while (now := time.monotonic()) < end:
            for number in self.engines:
                self.step(number)
            rounds += 1
            if now > middle and not self.lied_at:
                self.look(now)  # whoever is found up to here has not lied
                self.lied_at = {number: (now, self.requests[number]) for number in range(1, self.options.liars + 1)}
            if now > next_look:
                next_look = now + 1
                self.look(now)
            time.sleep(max(0, begin + rounds / self.options.rate - time.monotonic()))
        self.look(time.monotonic())
        return self.say(time.monotonic() - begin)

    def say(self, seconds):
        total = self.aggregator.metric
        left_out = {reason: total("kvb_audit_left_out_total", reason=reason) for reason in
                    ("no_promise", "evicted", "list_changed")}
        requests, short = total("kvb_audit_requests_total"), total("kvb_audit_short_requests_total")
        print(f"{len(self.engines)} streams, {seconds:.0f} s, {sum(self.requests.values()) / seconds:.0f} requests/s, "
              f"{requests:.0f} compared, {short:.0f} short, left out {left_out}; "
              f"RSS {self.rss_mib():.0f} MiB")
        honest = [row["audit"] for row in self.aggregator.get("/streams")["streams"]
                  if row["worker_id"] not in self.lied_at and "audit" in row]
        promised = sum(row["promised_tokens"] for row in honest)
        lost = promised - sum(row["delivered_tokens"] for row in honest)
        print(f"honest streams: {lost} of {promised} promised tokens lost, "
              f"highest evidence now {max(row['evidence'] for row in honest):.2f}")
        print(f"false alarms: {len(self.false_alarms)}, of worker, after s: {self.false_alarms}")
        for number in self.lied_at:
            print(f"liar {number}: " + ("not found" if number not in self.found else
                  "found after {:.1f} s, {} requests".format(*self.found[number])))
        return not self.false_alarms and all(number in self.found for number in self.lied_at)

    def rss_mib(self):
        status = pathlib.Path(f"/proc/{self.aggregator.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=8, help="requests a second for each stream")
    parser.add_argument("--liars", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scene = conftest.Scene(pathlib.Path(folder), conftest.SERVERS["debian"])
        scene.start_nats()
        try:
            is_good = Soak(scene, options).run()
        finally:
            trouble = scene.close()
    print(*trouble, sep="\n")
    return 0 if is_good and not trouble else 1


if __name__ == "__main__":
    sys.exit(main())
