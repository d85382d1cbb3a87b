"""Reads NATS as a Dynamo router does (dynamo.py), from outside of the stack, and compares the
result with what the engines hold.

    outside.py NATS_URL

Each command is a line on stdin; its answer is a line on stdout, which begins with "ok" or "no":

    truth FILE...   The files contain the answers of all fleets' truth sockets, while the fleets are
                    stopped.  The index must become equal to them, the load of each worker must
                    be readable, and the hit rate of a routing decision must be correct.
"""

import asyncio
import json
import sys
import time

import nats

import ask
import dynamo

DEADLINE_S = 30
SCRAPE_S = 0.3
ROUTE = "namespace.dynamo.component.Router.kv_route"
LOAD = f"namespace.{dynamo.NAMESPACE}.component.{dynamo.COMPONENT}.load_metrics"


class NotYet(Exception):
    """A check failed that may succeed later."""


class Outside:
    def __init__(self, client):
        self.client = client
        self.indexer = dynamo.Indexer()
        self.undecodable = []
        self.hit_rates = []
        self.loads = {}  # worker -> its newest metrics on load_metrics

    async def listen(self):
        await self.client.subscribe(dynamo.EVENTS, cb=self.on_event, pending_msgs_limit=1 << 20)
        await self.client.subscribe(dynamo.HIT_RATES, cb=self.on_hit_rate)
        await self.client.subscribe(LOAD, cb=self.on_load)
        await self.client.flush()

    async def on_event(self, message):
        try:
            self.indexer.apply(dynamo.RouterEvent(message.data))
        except dynamo.Undecodable as error:
            self.undecodable.append(str(error))

    async def on_hit_rate(self, message):
        try:
            self.hit_rates.append(dynamo.read_hit_rate(message.data))
        except dynamo.Undecodable as error:
            self.undecodable.append(str(error))

    async def on_load(self, message):
        report = json.loads(message.data)
        self.loads[report["worker_id"]] = report["metrics"]

    # ---- Comparing ---------------------------------------------------------------------

    async def check_index(self, ranks):
        for rank in ranks:
            listed = set(self.indexer.lookup.get(int(rank.name[0]), {}))
            gone, missing = listed - rank.hashes, rank.hashes - listed
            if gone or missing:
                raise NotYet(
                    f"worker {rank.name[0]}: {len(gone)} blocks are listed that it does not hold; "
                    f"{len(missing)} of its {len(rank.hashes)} blocks are not listed")
        strangers = {worker for worker, blocks in self.indexer.lookup.items() if blocks}
        strangers -= {int(rank.name[0]) for rank in ranks}
        if strangers:
            raise NotYet(f"unknown workers are listed: {strangers}")

    async def scrape(self):
        """The answers to one request, within the time that Dynamo waits."""
        inbox, answers = self.client.new_inbox(), []
        subscription = await self.client.subscribe(inbox)
        await self.client.publish(dynamo.STATS, b"", reply=inbox)
        until = time.monotonic() + SCRAPE_S
        while (left := until - time.monotonic()) > 0:
            try:
                answers.append((await subscription.next_msg(timeout=left)).data)
            except asyncio.TimeoutError:
                break
        await subscription.unsubscribe()
        return dynamo.scrape(answers)

    async def check_load(self, ranks):
        figures = await self.scrape()
        workers = {int(rank.name[0]) for rank in ranks}
        if set(figures) != workers:
            raise NotYet(f"$SRV.STATS has the load of workers {sorted(figures)}, not of {sorted(workers)}")
        for worker, metrics in figures.items():
            if metrics != self.loads.get(worker):
                raise NotYet(
                    f"worker {worker}: $SRV.STATS has {metrics}, load_metrics has {self.loads.get(worker)}")
            if metrics["kv_total_blocks"] == 0:
                raise NotYet(f"worker {worker} has no blocks")

    async def check_route(self, ranks):
        """The hit rate that a decision publishes must be the share that its worker holds."""
        prompt, size = ask.best_prompt(ranks), ranks[0].block_size
        self.hit_rates.clear()
        question = json.dumps({"token_ids": prompt}).encode()
        chosen = json.loads((await self.client.request(ROUTE, question, timeout=5)).data)
        await self.client.flush()
        held = {int(rank.name[0]): rank.held_of(prompt) // size for rank in ranks}
        want = (chosen["worker_id"], len(prompt) // size, held.get(chosen["worker_id"]))
        if want not in self.hit_rates:
            raise NotYet(f"the published hit rates are {self.hit_rates}, expected is {want}")
        scores = self.indexer.find_matches(prompt, size)
        for worker, blocks in held.items():
            if scores.get(worker, 0) < blocks:
                raise NotYet(
                    f"worker {worker} holds {blocks} blocks of a prompt; the index finds {scores.get(worker, 0)}")

    async def check(self, ranks):
        for look in (self.check_index, self.check_load, self.check_route):
            await wait_for(look, ranks, self)
        return (f"{len(ranks)} workers with {sum(len(rank.hashes) for rank in ranks)} blocks are correct after "
                f"{self.indexer.events} events, and so is their load; the last hit rate is "
                f"{self.hit_rates[-1][2]} of {self.hit_rates[-1][1]} blocks")


async def wait_for(look, ranks, outside):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if outside.undecodable:
            raise NotYet(f"Dynamo cannot read {len(outside.undecodable)} messages: {outside.undecodable[0]}")
        try:
            return await look(ranks)
        except (NotYet, dynamo.Undecodable, nats.errors.Error, KeyError) as error:
            if time.monotonic() > deadline:
                raise NotYet(f"not within {DEADLINE_S} s: {error!r}") from error
        await asyncio.sleep(0.1)


async def answer(outside, line):
    word, *paths = line.split()
    if word != "truth" or not paths:
        return f"no: unknown command {line!r}"
    try:
        return "ok " + await outside.check(ask.read_truth(paths, has_own_ids=True))
    except NotYet as error:
        return f"no {error}"


async def main(url):
    outside = Outside(await nats.connect(
        url, allow_reconnect=True, reconnect_time_wait=0.1, max_reconnect_attempts=-1))
    await outside.listen()
    print("ok listening", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(await answer(outside, line), flush=True)
    await outside.client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
