"""Reads NATS as a Dynamo router does (dynamo.py), from outside of the stack, and compares the result with what the
engines hold.  It begins before the bridges publish, because a Dynamo router cannot request earlier events."""

import json

import dynamo
from bus import Bus
from compose import ask
from programs import wait_for

ROUTE = "namespace.dynamo.component.Router.kv_route"
LOAD = f"namespace.{dynamo.NAMESPACE}.component.{dynamo.COMPONENT}.load_metrics"
BRIDGES = 2


class Outside:
    def __init__(self, url):
        self.bus = Bus(url)
        self.indexer, self.applied = dynamo.Indexer(), 0
        self.events, self.loads = self.bus.watch(dynamo.EVENTS), self.bus.watch(LOAD)
        self.hit_rates = self.bus.watch(dynamo.HIT_RATES)

    def close(self):
        self.bus.close()

    def check(self, ranks):
        """Within a minute: index, load, and the hit rate of a routing decision. What Dynamo cannot decode fails at once."""
        for one in (self.check_index, self.check_load, self.check_route):
            wait_for(f"outside: {one.__name__}", lambda: one(ranks) is None)

    def check_index(self, ranks):
        while self.applied < len(self.events):
            self.indexer.apply(dynamo.RouterEvent(self.events[self.applied].data))
            self.applied += 1
        for rank in ranks:
            listed = set(self.indexer.lookup.get(int(rank.name[0]), {}))
            if listed != rank.hashes:
                raise ValueError(
                    f"worker {rank.name[0]}: {len(listed - rank.hashes)} blocks are listed that it does not hold; "
                    f"{len(rank.hashes - listed)} of its {len(rank.hashes)} blocks are not listed")
        strangers = {worker for worker, blocks in self.indexer.lookup.items() if blocks}
        strangers -= {int(rank.name[0]) for rank in ranks}
        if strangers:
            raise ValueError(f"unknown workers are listed: {strangers}")

    def check_load(self, ranks):
        figures = dynamo.scrape(self.bus.request_many(dynamo.STATS, enough=BRIDGES))
        newest = {row["worker_id"]: row["metrics"] for row in (json.loads(one.data) for one in list(self.loads))}
        workers = {int(rank.name[0]) for rank in ranks}
        if set(figures) != workers:
            raise ValueError(f"$SRV.STATS has the load of workers {sorted(figures)}, not of {sorted(workers)}")
        for worker, metrics in figures.items():
            if metrics != newest.get(worker) or metrics["kv_total_blocks"] == 0:
                raise ValueError(f"worker {worker}: $SRV.STATS has {metrics}, load_metrics has {newest.get(worker)}")

    def check_route(self, ranks):
        """The hit rate that a decision publishes must be the share that its worker holds."""
        prompt, size = ask.best_prompt(ranks), ranks[0].block_size
        before = len(self.hit_rates)
        chosen = json.loads(self.bus.request(ROUTE, json.dumps({"token_ids": prompt}).encode()))
        self.bus.flush()
        held = {int(rank.name[0]): rank.held_of(prompt) // size for rank in ranks}
        want = (chosen["worker_id"], len(prompt) // size, held.get(chosen["worker_id"]))
        seen = [dynamo.read_hit_rate(one.data) for one in self.hit_rates[before:]]
        if want not in seen:
            raise ValueError(f"the published hit rates are {seen}, expected is {want}")
        scores = self.indexer.find_matches(prompt, size)
        for worker, blocks in held.items():
            if scores.get(worker, 0) < blocks:
                raise ValueError(f"worker {worker} holds {blocks} blocks of a prompt; the index finds {scores.get(worker, 0)}")
