"""Everything that an engine does to its cache and does not tell, beside everything that it does tell,
for as long as wanted.  Not part of the tests; run it by hand:

    KVB_BIN=build/release build/venv/bin/python tests/e2e/whole_soak.py --minutes 60

64 engines with full caches serve requests and evict. They are audited by the cached tokens that the router
reports. --busy of them serve BUSY times as many
requests as the others. Every few seconds an engine has a fault of the table FAULTS. Every eighth engine
offloads to a tier whose removals it does not publish.

Every --judge seconds each list that says EXACT is compared with what its engine holds, block by block,
unless its engine has a fault that is not over. A stream that the audit or its metrics page contradicts
without such a fault is a false alarm. Each minute one line says how far it is; all lines are also in
--results. Exit status: 0 if there was no violation and no false alarm, each silent change was found in
time, each stream became EXACT again, memory stayed bounded, and all processes together took less than
half a core."""

import argparse
import collections
import json
import os
import pathlib
import random
import sys
import tempfile
import time

import audit_soak
import conftest
import contract
import engine
from audit_soak import BLOCK, CAPACITY, PROMPTS, Router
from programs import wait_for
from web import Web

OFFLOADS = 8  # every eighth engine
SWALLOWED = CAPACITY // 3  # blocks whose removals get lost: more than the slack of occupancy
SETTLES_S = 10.0  # after a fault that the stream itself shows
RIGHT_WITHIN_S = 3.0  # a list that says EXACT, while its engine does nothing
MAX_FAULTY = 12  # engines at a time
MAX_GROWTH_MIB = 8.0  # of a process, from the end of its warm-up on
MAX_CORES = 0.5

# Rings of events for readers that missed some double until they are full: here within the warm-up.
LIMITS = "limits = { sync_blocks = 1024; };"

# What happens; how it is found: the reasons of the stream, or "list" when the list is right again;
# within how many seconds; how many seconds nobody sends it requests.
FAULTS = {
    "restart": ({"list"}, 15, 0),  # another process, with an empty cache
    "gap": ({"list"}, 15, 0),  # some batches reach nobody, and are replayed
    "idle reset": ({"list"}, 15, 3),  # its event comes with the first step after it
    "sleep": ({"asleep"}, 5, 5),  # the metrics page says so; its event comes with the first step after it
    "silent reset": ({"audit", "occupancy"}, 240, 0),  # never published
    "lost removals": ({"audit", "occupancy"}, 240, 0),  # dropped before they are numbered
    "lie": ({"audit", "occupancy"}, 600, 0),  # one request in twenty finds nothing
    "busy lie": ({"audit", "occupancy"}, 30, 0),  # of an engine with BUSY times as many requests
}
LIES = ("lie", "busy lie")
SILENT = ("silent reset", "lost removals", *LIES)
BUSY = 10  # requests of a busy engine for one of the others


class Fault:
    def __init__(self, kind, now):
        self.kind = kind
        self.reasons, self.within_s, self.idle_s = FAULTS[kind]
        self.idle_until = now + self.idle_s
        self.shown_from = self.idle_until if "list" in self.reasons else now  # what the stream can show
        self.is_over = False  # the engine is honest again; its stream may not be EXACT yet
        self.over_at = None


class SoakEngine(audit_soak.CachingEngine):
    def __init__(self, number, web, is_busy):
        self.number, self.web, self.is_busy = number, web, is_busy
        self.known = {}  # last token of a prompt: names of its blocks
        self.fleet_names = {}  # of a block: its name in the fleet
        self.fault = None
        self.queried = self.hits = self.starts = 0
        self.sleep_state = "awake"
        self.is_clear_due = False
        self.swallowed = None  # removals lost so far; None: none gets lost
        self.silent_batches = 0
        self.offloads = number % OFFLOADS == 3
        super().__init__()
        self.show()

    def names(self, prompt):
        found = self.known.get(prompt[-1])
        if found is None:
            found = self.known[prompt[-1]] = super().names(prompt)
            fleet = contract.prompt_hashes(prompt, BLOCK)
            self.fleet_names.update((own, name) for own, (name, _) in zip(found, fleet))
        return found

    def held(self):
        return {self.fleet_names[name] for name in self.cache}

    def compute(self, prompt):
        cached = super().compute(prompt)
        self.queried += len(prompt)
        self.hits += cached
        self.show()
        return cached

    def tell(self, events):
        if self.swallowed is not None and self.swallowed < SWALLOWED:
            lost = [event for event in events if isinstance(event, engine.BlockRemoved)]
            self.swallowed += sum(len(event.block_hashes) for event in lost)
            events = [event for event in events if event not in lost]
        if self.offloads:  # what leaves the device goes to the host, and leaves it untold
            events += [event for event in map(self.offloaded, events) if event]
        if self.is_clear_due:
            self.is_clear_due = False
            events.insert(0, engine.AllBlocksCleared())
        if not events:
            return
        if self.silent_batches == 1:
            self.fault.shown_from = time.monotonic()  # with this batch
        self.silent_batches -= self.silent_batches > 0
        self.publish(engine.batch(*events), live=self.silent_batches == 0)

    @staticmethod
    def offloaded(event):
        if not isinstance(event, engine.BlockStored):
            return None
        return engine.stored(event.block_hashes, event.token_ids, BLOCK, parent=event.parent_block_hash, medium="CPU")

    def show(self):
        label = 'engine="0",model_name="m"'
        self.web.pages[f"/{self.number}"] = "\n".join((
            f"process_start_time_seconds {1.7e9 + 100 * self.starts}",
            f"vllm:num_requests_running{{{label}}} 0",
            f"vllm:num_requests_waiting{{{label}}} 0",
            f"vllm:kv_cache_usage_perc{{{label}}} 0.0",
            f"vllm:prefix_cache_queries_total{{{label}}} {float(self.queried)}",
            f"vllm:prefix_cache_hits_total{{{label}}} {float(self.hits)}",
            f'vllm:cache_config_info{{{label},block_size="{BLOCK}",enable_prefix_caching="True",'
            f'num_gpu_blocks="{CAPACITY + 1}"}} 1.0',
            *(f'vllm:engine_sleep_state{{{label},sleep_state="{state}"}} {float(state == self.sleep_state)}'
              for state in ("awake", "weights_offloaded", "discard_all")),
            ""))

    # ---- faults ------------------------------------------------------------------

    def begin(self, kind, now):
        self.fault = Fault(kind, now)
        getattr(self, "begin_" + kind.replace(" ", "_"))()
        self.show()

    def begin_restart(self):
        self.cache.clear()
        self.queried = self.hits = 0
        self.starts += 1
        self.restart()

    def begin_gap(self):
        self.silent_batches = 3
        self.fault.shown_from += 60  # or with the batch after the gap

    def begin_idle_reset(self):
        self.cache.clear()
        self.is_clear_due = True

    def begin_sleep(self):
        self.begin_idle_reset()
        self.sleep_state = "weights_offloaded"

    def begin_silent_reset(self):
        self.cache.clear()

    def begin_lost_removals(self):
        self.swallowed = 0

    def begin_lie(self):
        pass

    begin_busy_lie = begin_busy_lie_in_sum = begin_lie

    def heal(self, now):
        """What an operator does when a stream is contradicted: POST /reset_prefix_cache."""
        if self.fault.kind in SILENT:
            self.cache.clear()
            self.publish(engine.batch(engine.AllBlocksCleared()))
        self.swallowed = None
        self.fault.is_over, self.fault.over_at = True, now


class Soak:
    def __init__(self, scene, options, say):
        self.options, self.say, self.scene = options, say, scene
        web = Web()
        scene.engines.append(web)
        numbers = range(1, options.streams + 1)
        self.engines = {number: scene.engine_of(SoakEngine, number=number, web=web, is_busy=number <= options.busy) for number in numbers}
        self.aggregator = scene.aggregator()
        self.bridge = scene.bridge(*(
            conftest.worker(one, number, more=f'load = {{ prometheus = "{web.url(f"/{number}")}"; }};')
            for number, one in self.engines.items()), formats=["protobuf"], limits=LIMITS)
        wait_for("all streams are exact", lambda: self.aggregator.is_exact(options.streams))
        self.router = Router(self.aggregator.port)
        self.random = random.Random(options.seed)
        self.waiting = {number: collections.deque() for number in self.engines}
        self.requests = self.refused = self.healed = self.judged = self.unjudged = 0
        self.kinds = []
        self.found = {kind: [] for kind in FAULTS}
        self.late, self.violations, self.false_alarms, self.slow = [], [], [], []
        self.alarmed = set()
        self.rss = {"kvbridge": [], "kvaggregator": []}

    def note(self, what, rows, text):
        rows.append(text)
        self.say(f"  {what}: {text}")

    # ---- load --------------------------------------------------------------------

    def step(self, number, now):
        one = self.engines[number]
        if one.fault and now < one.fault.idle_until:
            return
        if one.fault and one.fault.kind == "sleep" and one.sleep_state != "awake":
            one.sleep_state = "awake"
            one.show()
        prompt = audit_soak.prompt_of(number, self.random.randrange(self.random.choice((4, PROMPTS))))
        try:
            routed = self.router.post("/route", {"token_ids": prompt, "model": "m", "candidates": [number]})
        except audit_soak.Refused:  # the stream is DOWN while its engine restarts
            self.refused += 1
            return
        queue = self.waiting[number]
        queue.append((routed["request_id"], prompt))
        if len(queue) > audit_soak.WAITING:
            self.execute(number, *queue.popleft())

    def execute(self, number, request_id, prompt):
        one = self.engines[number]
        if one.fault and one.fault.kind in LIES and not one.fault.is_over and self.random.random() < 0.05:
            one.drop(prompt)
        cached = one.compute(prompt)
        self.router.post("/finished", {"request_id": request_id, "cached_tokens": cached})
        self.requests += 1

    def lie_of(self, one):
        return "busy lie" if one.is_busy else "lie"

    def begin_fault(self, now):
        honest = [one for one in self.engines.values() if not one.fault]
        if len(self.engines) - len(honest) >= MAX_FAULTY or not honest:
            return
        if not self.kinds:
            self.kinds = list(FAULTS)
            self.random.shuffle(self.kinds)
        kind = self.kinds.pop()
        fit = [one for one in honest if kind not in LIES or self.lie_of(one) == kind]
        if fit:
            self.random.choice(fit).begin(kind, now)

    # ---- what the streams say ------------------------------------------------------

    def look(self, now):
        for row in self.aggregator.get("/streams")["streams"]:
            one = self.engines[row["worker_id"]]
            if one.fault:
                self.look_at_fault(one, row, now)
            elif row["reason"] in ("audit", "occupancy", "asleep"):
                if one.number not in self.alarmed:
                    self.alarmed.add(one.number)
                    self.note("FALSE ALARM", self.false_alarms,
                              f'{one.number} {row["state"]}({row["reason"]}) {row.get("audit")}')
            else:
                self.alarmed.discard(one.number)

    def is_found(self, one, row):
        if row["reason"] in one.fault.reasons:
            return True
        return "list" in one.fault.reasons and row["state"] == "EXACT" and not one.is_clear_due and (
            row["blocks"]["device"] == len(one.cache) and one.silent_batches == 0)

    @staticmethod
    def is_healed(one, row):
        """All blocks whose removals were lost have been stored again, and removed again."""
        return one.fault.kind == "lost removals" and one.swallowed >= SWALLOWED and (
            row["blocks"]["device"] == len(one.cache))

    def look_at_fault(self, one, row, now):
        fault = one.fault
        if not fault.is_over:
            if now < fault.shown_from:
                return
            if self.is_found(one, row):
                self.found[fault.kind].append(now - fault.shown_from)
                one.heal(now)
            elif self.is_healed(one, row):
                self.healed += 1
                one.heal(now)
            elif now > fault.shown_from + fault.within_s:
                self.note("NOT FOUND", self.late,
                          f'{one.number} {fault.kind}: {row["state"]}({row["reason"]}) {row.get("audit")}')
                one.heal(now)
        elif row["state"] == "EXACT" and now > fault.over_at + SETTLES_S:
            one.fault = None
        elif now > fault.over_at + self.options.back_within:
            self.note("NOT EXACT AGAIN", self.slow,
                      f'{one.number} after {fault.kind}: {row["state"]}({row["reason"]}) {row.get("audit")}')
            one.fault = None

    # ---- what the lists hold -------------------------------------------------------

    def differences(self, numbers):
        """{worker: (phantoms, missing)} of those lists that say EXACT and are wrong; the load is paused."""
        listed = collections.defaultdict(set)
        for worker, _, tier, name in self.aggregator.rows():
            if tier == "device":
                listed[int(worker)].add(int(name))
        exact = {row["worker_id"] for row in self.aggregator.get("/streams")["streams"] if row["state"] == "EXACT"}
        self.unjudged += len(numbers - exact)
        self.judged += len(numbers & exact)
        wrong = {}
        for number in numbers & exact:
            held = self.engines[number].held()
            if listed[number] != held:
                wrong[number] = (len(listed[number] - held), len(held - listed[number]))
        return wrong

    def judge(self):
        numbers = {number for number, one in self.engines.items() if not one.fault}
        deadline = time.monotonic() + RIGHT_WITHIN_S
        while wrong := self.differences(numbers):
            if time.monotonic() > deadline:
                for number, (phantoms, missing) in wrong.items():
                    self.note("VIOLATION", self.violations, f"{number}: {phantoms} phantoms, {missing} missing")
                return
            numbers = set(wrong)
            time.sleep(0.05)

    # ---- processes -----------------------------------------------------------------

    def sample(self, now):
        for program in (self.bridge, self.aggregator):
            status = pathlib.Path(f"/proc/{program.process.pid}/status").read_text()
            self.rss[program.name].append((now, int(status.split("VmRSS:")[1].split()[0]) / 1024))

    def growth(self, name):
        """MiB, by the line that fits best through the samples after the warm-up."""
        samples = self.rss[name][len(self.rss[name]) // 3:]
        mean_t = sum(t for t, _ in samples) / len(samples)
        mean_m = sum(m for _, m in samples) / len(samples)
        spread = sum((t - mean_t) ** 2 for t, _ in samples)
        slope = sum((t - mean_t) * (m - mean_m) for t, m in samples) / spread if spread else 0.0
        return slope * (samples[-1][0] - samples[0][0])

    def cores(self, seconds):
        """Of this process and of all that it started, over the whole time."""
        ticks = sum(self.ticks(pid) for pid in (os.getpid(), *(p.process.pid for p in self.scene.started)))
        return ticks / os.sysconf("SC_CLK_TCK") / seconds

    @staticmethod
    def ticks(pid):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    # ---- the whole -----------------------------------------------------------------

    def run(self):
        begin = time.monotonic()
        end = begin + 60 * self.options.minutes
        calm = end - self.options.calm  # no fault begins from here on
        rows = [[begin, 1, self.look], [begin, 5, self.sample],
                [begin + self.options.judge, self.options.judge, lambda now: self.judge()],
                [begin + 60, 60, lambda now: self.progress(now - begin)],
                [begin + self.options.warm, self.options.every, lambda now: now < calm and self.begin_fault(now)]]
        rounds, self.behind = 0, 0.0
        while (now := time.monotonic()) < end:
            for number, one in self.engines.items():
                for _ in range(BUSY if one.is_busy else 1):
                    self.step(number, time.monotonic())
            rounds += 1
            for row in rows:
                if time.monotonic() >= row[0]:
                    row[0] = max(row[0] + row[1], time.monotonic())
                    row[2](time.monotonic())
            left = begin + rounds / self.options.rate - time.monotonic()
            self.behind = max(self.behind, -left)
            time.sleep(max(0, left))
        self.finish(time.monotonic())
        return self.summary(time.monotonic() - begin)

    def finish(self, now):
        """Nothing is under way: each stream without an open fault must be EXACT and right."""
        for queue_of, queue in self.waiting.items():
            while queue:
                self.execute(queue_of, *queue.popleft())
        self.look(now)
        self.judge()
        for row in self.aggregator.get("/streams")["streams"]:
            one = self.engines[row["worker_id"]]
            if one.offloads and "host" not in row.get("unverified_tiers", {}) and not one.fault:
                self.violations.append(f"{one.number}: its offload tier is claimed: {row}")
            if not one.fault and row["state"] != "EXACT":
                self.slow.append(f'{one.number} at the end: {row["state"]}({row["reason"]})')

    def progress(self, seconds):
        total = self.aggregator.metric
        rss = " ".join(f"{name} {samples[-1][1]:.1f} MiB" for name, samples in self.rss.items() if samples)
        faulty = sum(one.fault is not None for one in self.engines.values())
        self.say(
            f"{seconds / 60:5.1f} min: {self.requests / seconds:.0f} requests/s, compared "
            f"{total('kvb_audit_requests_total'):.0f}; "
            f"faults found {sum(map(len, self.found.values()))}, open {faulty}, late {len(self.late)}; "
            f"lists judged {self.judged}, violations {len(self.violations)}, false alarms {len(self.false_alarms)}; "
            f"{rss}, {self.cores(seconds):.2f} cores")

    def summary(self, seconds):
        total = self.aggregator.metric
        growth = {name: self.growth(name) for name in self.rss}
        cores = self.cores(seconds)
        self.progress(seconds)
        for kind, found in self.found.items():
            ordered = sorted(found)
            self.say(f"{kind}: {len(found)} found" + (
                f", median {ordered[len(found) // 2]:.1f} s, longest {ordered[-1]:.1f} s" if found else ""))
        self.say(f"lost removals that were made up for before anybody could notice: {self.healed}")
        still = [f"{one.number} {one.fault.kind}" for one in self.engines.values() if one.fault]
        self.say(f"open at the end: {still}")
        self.say(f"audit: {total('kvb_audit_short_requests_total'):.0f} short requests, "
                 f"{total('kvb_audit_alarms_total'):.0f} alarms, {total('kvb_audit_returns_total'):.0f} returns")
        honest = [row["audit"] for row in self.aggregator.get("/streams")["streams"]
                  if "audit" in row and row["audit"]["verdict"] == "kept"]
        self.say(f"highest evidence against a kept stream now: {max((row['evidence'] for row in honest), default=0):.2f}")
        self.say(f"memory: grew by {', '.join(f'{name} {mib:+.2f} MiB' for name, mib in growth.items())} after the warm-up")
        self.say(f"{cores:.2f} cores; the load was at most {self.behind:.1f} s late; {self.refused} requests found their "
                 f"worker DOWN; lists judged {self.judged}, not EXACT without a fault {self.unjudged}")
        verdicts = {"violations": self.violations, "false alarms": self.false_alarms, "not found in time": self.late,
                    "not EXACT again in time": self.slow,
                    "memory that grew": [name for name, mib in growth.items() if mib > MAX_GROWTH_MIB],
                    "cores": [f"{cores:.2f}"] if cores > MAX_CORES else []}
        for name, rows in verdicts.items():
            self.say(f"{name}: {len(rows)} {rows[:10] or ''}")
        return not any(verdicts.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1.6, help="requests a second for each stream")
    parser.add_argument("--busy", type=int, default=8, help=f"streams with {BUSY} times that")
    parser.add_argument("--every", type=float, default=4, help="seconds between faults")
    parser.add_argument("--judge", type=float, default=10, help="seconds between comparisons of all lists")
    parser.add_argument("--warm", type=float, default=20, help="seconds before the first fault")
    parser.add_argument("--calm", type=float, default=45, help="seconds without a new fault at the end")
    parser.add_argument("--back-within", type=float, default=600, help="seconds until a stream is EXACT again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("build/whole_soak.txt"))
    options = parser.parse_args()
    with options.results.open("w") as results, tempfile.TemporaryDirectory() as folder:
        def say(line):
            print(line, flush=True)
            print(line, file=results, flush=True)

        say(json.dumps({key: str(value) for key, value in vars(options).items()}))
        scene = conftest.Scene(pathlib.Path(folder), conftest.SERVERS["debian"])
        scene.start_nats()
        is_good = False
        try:
            is_good = Soak(scene, options, say).run()
        except Exception as error:
            say(f"{type(error).__name__}: {error}")
            say(scene.logs())
        finally:
            trouble = scene.close()
        for line in trouble:
            say(line)
        is_good = is_good and not trouble
        say("good" if is_good else "NOT GOOD")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
