"""A real nats-server and a real kvaggregator, with bench_bridges in the place of a fleet's bridges and of the routers that
query: events, queries meanwhile, starts, and 10,000 streams.  All share the machine's cores.

    aggregator.py --seconds N [--small] [NAME...]"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import measure  # noqa: E402
import programs  # noqa: E402
from measure import figure, progress  # noqa: E402

MATCH, ROUTE, ECHO = "namespace.dynamo.component.Router.kv_match", "namespace.dynamo.component.Router.kv_route", "bench.echo"
QUESTIONS_A_SECOND = 2000
BLOCKS_A_SECOND, BLOCKS_AT_ONCE = 100_000, 100
STARTS, NATS_ROUNDS, RATE_ROUNDS = 7, 5, 9
STREAMS, UNSHARED_STREAMS = 10_000, 2_500
HELD_PROMPTS = 72  # of 48 + 8 blocks, behind four prefixes of 16: 4,096
NOBODY_SHARES = 1 << 30  # a pool of which nobody draws a prompt that another one has
EXACT_S = 120


class Place(measure.Place):
    def begin(self):
        self.start_nats("max_pending: 512MB\n")
        self.start_aggregator()

    def start_aggregator(self):
        """Returns the seconds from its exec until it is ready."""
        self.grpc_port = programs.free_port()
        self.exec_s = time.monotonic()
        self.aggregator = self.daemon(f"aggregator{len(self.started)}", "kvaggregator", (
            f'{self.nats}limits = {{ max_index_blocks = 33554432; }};\ngrpc = {{ listen = "127.0.0.1:{self.grpc_port}"; }};\n'))
        self.pid = self.aggregator.process.pid
        while not self.is_ready():
            if not self.aggregator.is_running() or time.monotonic() > self.exec_s + 60:
                sys.exit(f"kvaggregator does not get ready: {self.aggregator.text()[-2000:]}")
            time.sleep(0.002)
        return time.monotonic() - self.exec_s

    def is_ready(self):
        try:
            return self.aggregator.is_ready()
        except OSError:
            return False

    def start_bridges(self, workers, held, pool, groups, message_events=0):
        """What the numbers mean is in fleet.h."""
        self.workers = workers
        self.bridges = self.keep("bridges", measure.Helper(
            programs.BIN / "tests/bench_bridges", self.nats_url, workers, held, pool, groups, message_events))

    def metric(self, name):
        """Without a look at the whole page: it is asked while events arrive.  0: there is none."""
        text = self.aggregator.http("GET", "/metrics")[1]
        _before, _name, value = text.partition(f"\n{name} ")
        return float(value.split("\n", 1)[0] or 0)

    def publish(self, blocks):
        """Publishes block operations, made before the measurement; returns (how many, seconds until all are applied)."""
        made = self.bridges.ask("make", blocks)
        before, began = measure.usage_of(self.pid), time.monotonic()
        self.bridges.ask("send")
        sent_s = time.monotonic() - began
        self.wait_applied(made["events"])
        took_s = time.monotonic() - began
        progress(f"sent after {sent_s:.2f} s, applied after {took_s:.2f} s")
        return made["blocks"], took_s, measure.kernel_percent(self.pid, before)

    def wait_applied(self, events):
        end = time.monotonic() + 60
        while self.metric("kvb_events_applied_total") < events:
            if time.monotonic() > end:
                sys.exit("not all events were applied")
            time.sleep(0.005)

    def ask(self, way, where, seconds, rate=QUESTIONS_A_SECOND):
        """Percentiles of the latency in us, and more."""
        return self.bridges.ask("ask", way, where, seconds, rate)


# ---- Starts and events -----------------------------------------------------------------


def measure_ready(options):
    ready_ms = []
    for _ in range(2 if options.small else STARTS):
        with Place() as place:
            place.start_nats("max_pending: 512MB\n")
            ready_ms.append(1e3 * place.start_aggregator())
            kernel = measure.kernel_percent(place.pid)
    figure("start.ready", "ms", ready_ms, kernel_percent=kernel)


def measure_intake(options):
    with Place() as place:
        place.begin()
        place.start_bridges(workers=128, held=300, pool=8192, groups=64)
        place.bridges.ask("heartbeats", 0)
        blocks, seconds, kernel = place.publish(100_000 if options.small else 8_000_000)
    figure("intake.nats", "M block operations/s", [blocks / seconds / 1e6], kernel_percent=kernel)


# ---- Queries: 1,000 workers ------------------------------------------------------------


class Echo:
    """Answers as long as the aggregator's, from a program that does no work for them."""

    def __init__(self, place, way, ours, where, *words):
        self.where = where
        size = int(place.ask(way, ours, 0.128)["answer_bytes"])  # each question is asked once
        self.program = place.start(f"echo-{way}", programs.BIN / "tests/bench_echo", way, *words, size)
        programs.wait_for("the echo listens", lambda: "ready" in self.program.text())
        self.pid = self.program.process.pid


def ask_meanwhile(place, way, where, seconds):
    """Events arrive meanwhile, whoever answers."""
    place.bridges.ask("talk", BLOCKS_A_SECOND, BLOCKS_AT_ONCE, seconds + 0.5)
    asked = place.ask(way, where, seconds)
    place.bridges.ask("hush")
    return asked


def say_asked(name, asked, kernel=None):
    progress(f"{name}: p50 {asked['p50']:.0f} us, p99 {asked['p99']:.0f} us of {asked['count']}; "
             f"an answer has {asked['answer_bytes']:.0f} bytes")
    for tail in ("p50", "p99"):
        spread = {"rounds": 9, "spread": asked[f"{tail}_spread"]} if f"{tail}_spread" in asked else {}
        figure(f"{name}.{tail}", "us", [asked[tail]], kernel_percent=kernel, **spread)


def measure_alone(place, name, way, port, seconds):
    before = measure.usage_of(place.pid)
    asked = ask_meanwhile(place, way, port, seconds)
    say_asked(name, asked, measure.kernel_percent(place.pid, before))


def measure_nats(place, seconds):
    def take(subject):
        asked = ask_meanwhile(place, "nats", subject, seconds / NATS_ROUNDS)
        progress(f"query.nats, {subject}: p50 {asked['p50']:.0f} us, p99 {asked['p99']:.0f} us of {asked['count']}")
        return asked

    before = measure.usage_of(place.pid)
    taken = measure.take_turns((MATCH, ECHO), NATS_ROUNDS, take)
    kernel = measure.kernel_percent(place.pid, before)
    for tail in ("p50", "p99"):
        ours, echo = ([asked[tail] for asked in taken[subject]] for subject in (MATCH, ECHO))
        figure(f"query.nats.{tail}", "us", ours, "echo", echo, kernel_percent=kernel)


def pin(pid, cores):
    """All threads that the process has now; later ones inherit from whoever starts them."""
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            os.sched_setaffinity(int(task), cores)
        except ProcessLookupError:  # it has just ended
            pass


def measure_rate(place, name, way, ours, echo, seconds):
    """us of the responder's process for one answer.  It has the last core for itself, on a machine with several: requests are
    sent as fast as they are answered, 32 at a time, from the others.  No events arrive, only heartbeats."""
    pids = {ours: place.pid, echo.where: echo.pid}

    def take(where):
        before, each_s = measure.cpu_ns(pids[where]), seconds / 2 / RATE_ROUNDS
        answered = place.bridges.ask("load", way, where, each_s)
        us = (measure.cpu_ns(pids[where]) - before) / 1e3 / answered
        progress(f"{name}: {answered / each_s:.0f} answers a second, {us:.1f} us each")
        return us

    cores = os.sched_getaffinity(0)
    others = cores - {max(cores)} or cores
    clients = (place.bridges.process.pid, place.started["nats"].process.pid)
    place.bridges.ask("talk", 0, 1, seconds + 0.5)
    for pid in pids.values():
        pin(pid, {max(cores)})
    for pid in clients:
        pin(pid, others)
    before = measure.usage_of(place.pid)
    taken = measure.take_turns(pids, RATE_ROUNDS, take)
    for pid in (place.pid, *clients):
        pin(pid, cores)
    place.bridges.ask("hush")
    figure(name, "us", taken[ours], "echo", taken[echo.where], kernel_percent=measure.kernel_percent(place.pid, before))


def measure_queries(options):
    workers = 20 if options.small else 1000
    with Place() as place:
        place.begin()
        place.start_bridges(workers, held=64, pool=16384, groups=4)
        place.bridges.ask("heartbeats", 0)
        place.publish(workers * 64 * 56)
        place.bridges.ask("questions")
        port, echo_port = place.aggregator.port, programs.free_port()
        if options.wants("query.http.rate.cpu"):
            echo = Echo(place, "http", port, echo_port, echo_port)
            measure_rate(place, "query.http.rate.cpu", "http", port, echo, options.seconds)
        if any(options.wants(f"query.nats.{tail}") for tail in ("rate.cpu", "p50", "p99")):
            echo = Echo(place, "nats", MATCH, ECHO, place.nats_url, ECHO)
        if options.wants("query.nats.rate.cpu"):
            measure_rate(place, "query.nats.rate.cpu", "nats", MATCH, echo, options.seconds)
        if options.wants("query.http.p50") or options.wants("query.http.p99"):
            measure_alone(place, "query.http", "http", port, options.seconds)
        if options.wants("query.nats.p50") or options.wants("query.nats.p99"):
            measure_nats(place, options.seconds)
        if options.wants("query.grpc"):
            # The last: workers have addresses then, which makes other answers longer.
            place.bridges.ask("heartbeats", 1)
            measure_alone(place, "query.grpc", "grpc", place.grpc_port, options.seconds)


# ---- 10,000 streams ----------------------------------------------------------------------


def exact_streams(place):
    return place.metric('kvb_streams{state="exact"}')


def wait_exact(place):
    programs.wait_for("all streams are EXACT", lambda: exact_streams(place) == place.workers, EXACT_S)


def begin_streams(place, workers, pool):
    """Each holds all that it can, and its bridge says so every second."""
    place.begin()
    place.start_bridges(workers, HELD_PROMPTS, pool, groups=4, message_events=1)
    place.bridges.ask("begin")
    is_more = True
    while is_more:
        is_more = place.bridges.ask("fill")
        place.wait_applied(place.bridges.ask("count")["events"])
    wait_exact(place)


def say_memory(place, name):
    copies, held = place.bridges.ask("count")["copies"], place.metric("process_resident_memory_bytes")
    progress(f"{name}: {copies / 1e6:.1f} million copies of {place.metric('kvb_index_nodes') / 1e6:.1f} million blocks, "
             f"{held / 1e6:.0f} MB")
    figure(f"{name}.bytes_per_copy", "bytes", [held / copies])


def cpu_percent(place, seconds):
    """Of one core, in the next seconds; and the kernel's share."""
    usage, before, began = measure.usage_of(place.pid), measure.cpu_ns(place.pid), time.monotonic()
    time.sleep(seconds)
    percent = (measure.cpu_ns(place.pid) - before) / (time.monotonic() - began) / 1e7
    return percent, measure.kernel_percent(place.pid, usage)


def measure_streams_cpu(place, options):
    def say(name, percent_and_kernel):
        percent, kernel = percent_and_kernel
        figure(name, "% of a core", [percent], kernel_percent=kernel)

    say("scale.streams.idle", cpu_percent(place, options.seconds / 2))
    place.bridges.ask("rates", 0, place.workers)  # the load of each worker once a second, beside the heartbeats
    say("scale.streams.load", cpu_percent(place, options.seconds / 2))
    place.bridges.ask("rates", options.size(20_000), 0)
    began, before = time.monotonic(), place.bridges.ask("count")
    applied = place.metric("kvb_events_applied_total")
    measured = cpu_percent(place, options.seconds)
    # A short run on a busy machine may end before the first event.
    while place.metric("kvb_events_applied_total") <= applied and time.monotonic() < began + 60:
        measured = cpu_percent(place, options.seconds)
    took = time.monotonic() - began
    events = (place.metric("kvb_events_applied_total") - applied) / took
    now = place.bridges.ask("count")
    # The rate is what arrived: on a machine that cannot publish so much it is lower.
    progress(f"scale.streams: {events:.0f} events/s applied; on NATS " + ", ".join(
        f"{(now[what] - before[what]) / took / 1e6:.2f} MB/s of {what}" for what in ("event_bytes", "heartbeat_bytes")))
    if events <= 0:
        sys.exit("scale.streams: no event was applied")
    say("scale.streams.intake", measured)


def measure_streams(options):
    with Place() as place:
        begin_streams(place, options.size(STREAMS), 16384)
        say_memory(place, "scale.streams")
        measure_streams_cpu(place, options)
        place.bridges.ask("questions")
        for name, way, where in (("query.http", "http", place.aggregator.port), ("route.nats", "nats", ROUTE)):
            before = measure.usage_of(place.pid)
            asked = place.ask(way, where, options.seconds, rate=100)
            say_asked(f"scale.streams.{name}", asked, measure.kernel_percent(place.pid, before))
        # After all requests: or the figures would be of another work.
        if place.metric("kvb_streams_differ_total") > 0 or exact_streams(place) != place.workers:
            sys.exit("scale.streams: not every stream stayed EXACT")
        progress("a new aggregator")  # while events continue: it gets each stream by kv_sync
        place.aggregator.kill()
        place.start_aggregator()
        wait_exact(place)
        exact_s = time.monotonic() - place.exec_s
        figure("scale.streams.exact", "s", [exact_s], kernel_percent=measure.kernel_percent(place.pid))
        progress(f"{place.bridges.ask('count')['lists']} lists were sent")


def measure_unshared(options):
    with Place() as place:
        begin_streams(place, options.size(UNSHARED_STREAMS), NOBODY_SHARES)
        say_memory(place, "scale.unshared")


def main():
    options = measure.begin(__doc__)
    for name, row in (("intake.nats", measure_intake), ("query", measure_queries), ("start.ready", measure_ready),
                      ("scale.streams", measure_streams), ("scale.unshared", measure_unshared)):
        if options.wants(name):
            progress(name)
            row(options)


if __name__ == "__main__":
    main()
