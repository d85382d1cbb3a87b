"""What it costs to bring events from an engine's socket to a subscriber on NATS:

    engines --> a relay, in a process of its own --> nats-server --> subscriber

The same bytes go through our bridge, in both formats, and through the relays that it is measured against: one in C that
passes bytes on unread, and one in Python.  All of a comparison run at once, each with engines and a subject of its own,
and are measured in turns; the others wait in poll().  bench_engines has the engines and the subscriber.

    relay.py --seconds N [--small] [NAME...]"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import measure  # noqa: E402
import programs  # noqa: E402
from measure import figure, progress  # noqa: E402

ROUNDS = 9  # odd: the median is one of the values
MOST_IN_A_ROW = 3  # a relay, and the two that it is compared with
POOL = 1 << 16
SUBSCRIBE_S = 30


class Relay:
    """One relay and its engines; it has subscribed to each.  Workers have so many ranks."""

    def __init__(self, place, kind, engines=1, ranks=1):
        self.place, self.kind, self.group = place, kind, place.relays
        place.relays = (place.relays + 1) % 8  # of bench_engines
        subject = f"namespace.bench.component.{kind}.{'kv_events' if kind == 'json' else 'kv_events_pb'}"
        endpoints = self.ask("open", engines, ranks, subject)
        name, path = f"{kind}-{len(place.started)}", place.folder / f"{kind}-{len(place.started)}.in"
        progress(f"starting {kind}")
        if kind in ("pass-through", "python"):
            path.write_text("".join(f"{one}\n" for one in endpoints))
            program = ([programs.BIN / "tests/bench_pass_through"] if kind == "pass-through" else
                       [sys.executable, pathlib.Path(__file__).parent / "python_relay.py"])
            self.program = place.start(name, *program, path, place.nats_url, subject)
        else:
            path.write_text(self.config(endpoints, ranks))
            self.program = place.start(name, programs.BIN / "kvbridge", "--config", path)
        self.pid = self.program.process.pid
        began = time.monotonic()
        while not self.ask("subscribed", 50):
            if not self.program.is_running() or time.monotonic() > began + SUBSCRIBE_S:
                sys.exit(f"{kind} does not start: {self.program.text()[:2000]}")
        if kind == "republish":
            self.ask("republished", self.events)

    def config(self, endpoints, ranks):
        more = ""
        if self.kind == "republish":  # its first engine
            self.events, self.replay = (f"tcp://127.0.0.1:{programs.free_port()}" for _ in range(2))
            more = f'republish = {{ events = "{self.events}"; replay = "{self.replay}"; style = "vllm"; }};'
        workers = ",\n".join(
            f'  {{ id = {i * ranks + 1}L; model = "m"; block_size = 16; events = "{one}"; ranks = {ranks}; {more if i == 0 else ""} }}'
            for i, one in enumerate(endpoints))
        # A reader that subscribes gets no announcement, because it would be counted twice.
        return (f'{self.place.nats}publish = {{ namespace = "bench"; component = "{self.kind}"; '
                f'formats = ["{"json" if self.kind == "json" else "protobuf"}"]; refresh_s = 0; }};\n'
                f'http = "";\nworkers = (\n{workers}\n);\n')

    def ask(self, command, *words):
        return self.place.engines.ask(command, self.group, *words)

    def run(self, script, seconds, rate=0, is_once=False):
        """Numbers of run.h."""
        return self.ask("run", script, rate, int(is_once), seconds, self.pid)

    def store_once(self, script, blocks, rate=0):
        """Every block of the script, 8 a batch, once."""
        result = self.run(script, 120, rate, is_once=True)
        if result["lost"] > 0 or result["batches"] != 1 + blocks // 8:
            sys.exit(f"{self.kind}: {result['batches']} batches of {blocks} blocks arrived, {result['lost']} were lost")

    def resident_bytes(self):
        return measure.resident_bytes(self.pid)

    def stop(self):
        """Killed: a bridge that stops at SIGTERM first publishes that nothing is held any more, which nobody reads."""
        self.program.kill()
        self.ask("close")


class Place(measure.Place):
    def begin(self):
        self.start_nats()
        self.engines = self.keep("engines", measure.Helper(
            programs.BIN / "tests/bench_engines", programs.port_of(self.nats_url)))
        self.relays = 0

    def script(self, number, blocks, pool, seed):
        """What engines send again and again: batches of so many blocks.  Scripts of two seeds have no block in common."""
        return self.engines.ask("script", number, blocks, pool, seed)

    def start_all(self, kinds, script=0):
        relays = {}
        for kind in kinds:
            relays[kind] = Relay(self, kind)
            relays[kind].ask("warm", script)
        return relays


class Field:
    """Relays in turns: of each number of run.h, by relay, its values in all rounds."""

    def __init__(self, options, relays, what, script, rate=0):
        def take(kind):
            result = relays[kind].run(script, options.seconds / MOST_IN_A_ROW / ROUNDS, rate)
            progress(f"{what}: {kind:12} {result['batches_a_second']:9.0f} batches/s, {result['cpu_ns']:6.0f} ns CPU, "
                     f"{result['bytes']:4.0f} bytes, p50 {result['p50_us']:.0f} us, p99 {result['p99_us']:.0f} us")
            if result["lost"]:
                progress(f"  LOST {result['lost']} of them: it counts as 0")
                result["batches_a_second"] = 0
            return result

        # The kernel counts processor time in ticks of 10 ms, too few in one turn; relays that have no turn wait in
        # poll() and add nothing.
        before = {kind: measure.usage_of(relay.pid) for kind, relay in relays.items()}
        self.taken = measure.take_turns(relays, ROUNDS, take)
        self.kernel = {kind: measure.kernel_percent(relay.pid, before[kind]) for kind, relay in relays.items()}

    def figure(self, name, number, unit, kind, against):
        ours, theirs = ([result[number] for result in self.taken[side]] for side in (kind, against))
        figure(name, unit, ours, against, theirs, kernel_percent=self.kernel[kind])


def stop_all(relays):
    for relay in relays.values():
        relay.stop()


# ---- Rows ----------------------------------------------------------------------------


def measure_rates(place, options):
    names = {(kind, blocks): f"relay.{kind}.{blocks}block" for blocks in (1, 8) for kind in ("protobuf", "json")}
    names = {key: name for key, name in names.items() if options.wants(name)}
    if not names:
        return
    place.script(0, 1, POOL, 1)
    place.script(1, 8, POOL, 2)
    wanted = {kind for kind, _blocks in names} | {"pass-through"}
    wanted |= {"python"} if any(options.wants(name + ".vs_python") for name in names.values()) else set()
    relays = place.start_all([kind for kind in ("pass-through", "protobuf", "json", "python") if kind in wanted])
    for script, blocks in enumerate((1, 8)):
        of_shape = {kind: name for (kind, its), name in names.items() if its == blocks}
        field = Field(options, relays, f"{blocks}-block", script) if of_shape else None
        for kind, name in of_shape.items():
            field.figure(name, "batches_a_second", "batches/s", kind, "pass-through")
            field.figure(name + ".cpu", "cpu_ns", "ns/batch", kind, "pass-through")
            if "python" in relays:
                field.figure(name + ".vs_python", "batches_a_second", "batches/s", kind, "python")
    stop_all(relays)


def measure_latency(place, options):
    if options.wants("relay.latency.p50") or options.wants("relay.latency.p99"):
        place.script(0, 1, POOL, 3)
        relays = place.start_all(("pass-through", "protobuf"))
        field = Field(options, relays, "relay.latency", 0, rate=10000)
        for tail in ("p50", "p99"):
            field.figure(f"relay.latency.{tail}", f"{tail}_us", "us", "protobuf", "pass-through")
        stop_all(relays)


def measure_publishers(place, options):
    """As many workers as a bridge takes, each with two ranks; every rank is a PUB socket of bench_engines, which spends
    little on each: libzmq's thread answers the bridge's pings, and one thread sends."""
    publishers = options.size(2048) // 2 * 2
    if not options.wants("scale.publishers"):
        return
    place.script(0, 1, 1 << 10, 6)
    relay = Relay(place, "protobuf", publishers, ranks=2)
    relay.ask("warm", 0)
    before = measure.usage_of(relay.pid)
    idle = relay.ask("rest", options.seconds, relay.pid)
    run = relay.run(0, options.seconds, rate=5 * publishers)
    kernel = measure.kernel_percent(relay.pid, before)
    progress(f"{publishers} publishers: {run['batches_a_second']:.0f} batches/s, {run['cpu_ns']:.0f} ns of the bridge for each, "
             f"p99 {run['p99_us']:.0f} us; {relay.resident_bytes() / 1e6:.0f} MB")
    if run["lost"]:
        sys.exit(f"scale.publishers: {run['lost']} batches were lost")
    figure("scale.publishers.idle", "% of a core", [idle], kernel_percent=kernel)
    figure("scale.publishers.intake", "% of a core", [run["cpu_ns"] * run["batches_a_second"] / 1e7], kernel_percent=kernel)
    relay.stop()


def measure_republished(place, options):
    """What is counted is what a reader of the republished events has."""
    names = {blocks: f"republish.{blocks}block" for blocks in (1, 8) if options.wants(f"republish.{blocks}block")}
    if names:
        place.script(0, 1, POOL, 7)
        place.script(1, 8, POOL, 14)
        relays = place.start_all(("pass-through", "protobuf", "republish"))
        for blocks, name in names.items():
            field = Field(options, relays, "republished", 0 if blocks == 1 else 1)
            field.figure(name, "batches_a_second", "batches/s", "republish", "pass-through")
            field.figure(name + ".vs_protobuf", "batches_a_second", "batches/s", "republish", "protobuf")
        stop_all(relays)
    if options.wants("republish.memory") or options.wants("republish.snapshot"):
        measure_million(place, options)


def measure_million(place, options):
    """An engine stores a million blocks; then readers that know nothing ask for all of them."""
    progress("republish: a million blocks")
    blocks = place.script(0, 8, options.size(1_000_000 // 8) * 8, 8)
    place.script(1, 1, 1 << 10, 9)
    relay = Relay(place, "republish")
    relay.ask("warm", 1)
    idle_bytes = relay.resident_bytes()
    relay.store_once(0, blocks)
    full_bytes = relay.resident_bytes()
    before, seconds = measure.usage_of(relay.pid), []
    for _ in range(1 if options.small else 3):
        # Readers may send many requests, but blocks are announced at most every 10 s; and a little.
        relay.ask("rest", 10.2, relay.pid)
        seconds.append(relay.ask("snapshot", 0, relay.replay))
    kernel = measure.kernel_percent(relay.pid, before)
    figure("republish.memory.block", "bytes", [(full_bytes - idle_bytes) / blocks], kernel_percent=kernel)
    figure("republish.snapshot", "s", seconds, kernel_percent=kernel)
    relay.stop()


def measure_memory(place, options):
    """One engine that stores a script without an end, and 256 engines that hold next to nothing: the growth of the
    resident memory is theirs."""
    blocks_a_second, engines = 1 << 18, 256
    if not options.wants("relay.memory"):
        return
    blocks = place.script(0, 8, min(1 << 20, int(options.seconds * blocks_a_second)) // 8 * 8, 5)
    progress(f"memory: {blocks} blocks")
    one = Relay(place, "protobuf")
    one.ask("warm", 0)
    one_bytes, before = one.resident_bytes(), measure.usage_of(one.pid)
    # No faster than it reads: the batches that wait in its sockets would count as memory of the blocks.
    one.store_once(0, blocks, rate=blocks_a_second // 8)
    figure("relay.memory.block", "bytes", [(one.resident_bytes() - one_bytes) / blocks],
           kernel_percent=measure.kernel_percent(one.pid, before))
    one.stop()
    progress(f"memory: {engines} engines")
    many = Relay(place, "protobuf", engines)
    many.ask("warm", 0)
    figure("relay.memory.connection", "bytes", [(many.resident_bytes() - one_bytes) / (engines - 1)],
           kernel_percent=measure.kernel_percent(many.pid))
    many.stop()


def main():
    options = measure.begin(__doc__)
    with Place() as place:
        place.begin()
        for row in (measure_rates, measure_latency, measure_publishers, measure_republished, measure_memory):
            row(place, options)


if __name__ == "__main__":
    main()
