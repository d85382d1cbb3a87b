"""What is measured: one table of rows, each with the question that it answers, its figures, their units and goals.
`run --list` and the table of README.md are made of it.

A new row: its program prints the figures (parts/bench.h or measure.py says how), and a Row is added here.  A new program: a
Program here, and in C a kvb_bench() in CMakeLists.txt."""

import dataclasses

MAX_SPREAD = 0.15  # of the value or ratio that a goal is about; above it the row does not count as met
PEERS = ("chainindex", "crtc", "radixtree", "two_chainindex")  # other prefix indexes


@dataclasses.dataclass(frozen=True)
class Goal:
    name: str  # of the figure
    what: str  # "value" or "ratio"
    comparison: str  # ">=" or "<="
    bound: float

    @property
    def is_peer(self):
        """Is it measured with --peers only?"""
        return is_of_peers(self.name)

    def reaches(self, figure):
        number = figure[self.what]
        if number is None:
            return False
        return number >= self.bound if self.comparison == ">=" else number <= self.bound

    def is_too_wide(self, figure):
        spread = figure.get("ratio_spread" if self.what == "ratio" else "spread")
        return spread is not None and spread > MAX_SPREAD

    def is_met(self, figure):
        return self.reaches(figure) and not self.is_too_wide(figure)


def is_of_peers(name):
    return name.rpartition(".vs_")[2] in PEERS


# ---- What a row is made of; the first name of a goal is added to that of its figure ----


def at_most(bound):
    return Goal("", "value", "<=", bound)


def at_least(bound):
    return Goal("", "value", ">=", bound)


def ratio(bound, against=""):
    """So many times as good as what the figure is measured against in turns; against: another one, by its own figure."""
    return Goal(f".vs_{against}" if against else "", "ratio", ">=", bound)


def peers(bound):
    return tuple(ratio(bound, peer) for peer in ("chainindex", "crtc", "radixtree"))


@dataclasses.dataclass(frozen=True)
class Figure:
    tail: str  # behind the row's name
    unit: str
    goals: tuple = ()


def figure(tail, unit, *goals):
    return Figure(tail, unit, goals)


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    question: str
    figures: tuple
    corpus: int = 0  # workers of the corpus that it replays; 0: none
    settings: tuple = ()  # that the * of its name stands for

    @property
    def names(self):
        return [self.name.replace("*", one) for one in self.settings] or [self.name]

    @property
    def figure_names(self):
        return [name + figure.tail for name in self.names for figure in self.figures]

    @property
    def goals(self):
        return [dataclasses.replace(goal, name=name + figure.tail + goal.name)
                for name in self.names for figure in self.figures for goal in figure.goals]


def row(name, question, *figures, **more):
    return Row(name, question, figures, **more)


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that is run with --seconds N [--small] [--input FILE]... [NAME...]: inputs are corpora, or a trace."""

    path: str  # relative to the build folder; a script's, relative to tests/bench
    rows: tuple
    needs_venv: bool = False  # a script of build/venv; others are of Debian's Python
    is_peer: bool = False  # only with --peers
    needs_trace: bool = False
    is_simulation: bool = False  # its figures do not depend on the machine

    @property
    def is_script(self):
        return self.path.endswith(".py")


# Measured only when --only names them, and not part of the figures that --publish writes for a whole run: those of
# scale need gigabytes, those of startup minutes of silence, those of republish half of the relay's time again, and those
# of worth come from a simulation.
APART = ("scale", "startup", "republish", "worth")
# Measured with --peers, or when --only names them: whole needs Dynamo's package of 250 MB, gateway Envoy and h2load.
WITH_PEERS = ("whole", "gateway")

# ---- The rows --------------------------------------------------------------------

M_OPS, CORE, BATCHES, NS = "M block operations/s", "% of a core", "batches/s", "ns/batch"

INDEX = (
    # 2.5 times ChainIndex on the machine that it was measured on; --peers compares for real.
    row("index.conversation.128", "How fast is the index: queries and events of 128 workers, one thread?",
        figure("", M_OPS, at_least(57), *peers(2.5)), corpus=128),
    row("index.conversation.1000", "The same of 1,000 workers?",
        figure("", M_OPS, at_least(36), *peers(2.5)), corpus=1000),
    row("index.query", "What does a query cost while no events arrive, its hashes in the cache?",
        figure(".p50", "us", *peers(1.1)), figure(".p99", "us", at_most(2.5), *peers(1)), corpus=128),
    # What ChainIndex took, the least of the others.
    row("index.bytes_per_membership", "How much does the process grow for each (worker, block)?",
        figure(".resident", "bytes", at_most(59), *peers(1)), corpus=128),
    row("index.growth", "How long does the worst store take (CPU) while the index grows to 8 million blocks?",
        figure(".worst", "ms", at_most(1), *(ratio(1, peer) for peer in ("chainindex", "radixtree")))),
)

PATH = (
    row("path.decode", "What does it cost a bridge to decode an engine's batch of 1 or 8 blocks of 16 tokens?",
        figure(".1block", NS, at_most(190)), figure(".8block", NS, at_most(1100))),
    row("path.whole.protobuf", "What does a batch cost between the bridge's sockets: decoded, applied, encoded?",
        figure(".1block", NS), figure(".8block", NS)),
    row("path.whole.json", "The same as JSON?", figure(".1block", NS), figure(".8block", NS)),
)

AGGREGATOR = (
    row("intake.whole", "How fast are messages decoded, ordered and indexed, one thread; against the index alone?",
        figure("", M_OPS, at_least(3))),
    row("intake.nats", "How fast does an aggregator apply 8 million block operations published at once?",
        figure("", M_OPS, at_least(3))),
    row("query.http", "How long does a query of 64 blocks take over HTTP: 1,000 workers, 2,000 queries and 100,000 block "
        "operations a second?", figure(".p50", "us"), figure(".p99", "us", at_most(1000))),
    row("query.nats", "The same over NATS; against an echo of the same bytes?",
        figure(".p50", "us"), figure(".p99", "us", at_most(1000), ratio(0.83))),
    row("query.grpc", "The same over gRPC, as sgl-router asks?", figure(".p50", "us"), figure(".p99", "us", at_most(2000))),
    row("query.http.rate.cpu", "What does an answer over HTTP cost the process, 32 at a time on one core; against an echo?",
        figure("", "us", ratio(0.60))),
    row("query.nats.rate.cpu", "The same over NATS?", figure("", "us", ratio(0.60))),
    row("start.ready", "How long from an aggregator's exec until it is ready, 1,200 of it for heartbeats?",
        figure("", "ms", at_most(1500))),
    row("start.snapshot", "How long until bridges' lists of 10 million blocks are in the index?",
        figure("", "s/10M blocks", at_most(2))),
)


def rate_row(what, question, *goals):
    return row(f"relay.{what}", question, figure("", BATCHES, *goals), figure(".cpu", NS))


RELAY = (
    # Against the relay that passes bytes on unread; .vs_python against the one in Python.
    rate_row("protobuf.1block", "How many batches of a block a second pass a bridge without a loss; against a relay in C that "
             "passes bytes on unread?", ratio(0.85), ratio(15, "python")),
    rate_row("protobuf.8block", "Batches of 8 blocks?", ratio(0.85), ratio(15, "python")),
    rate_row("json.1block", "Batches of a block, as JSON?", ratio(0.75)),
    rate_row("json.8block", "Batches of 8 blocks, as JSON?", ratio(0.65)),
    row("relay.latency", "How long from an engine's send to a NATS subscriber, 10,000 batches a second?",
        figure(".p50", "us", ratio(0.77)), figure(".p99", "us", ratio(0.67))),
    row("relay.memory", "How much memory does a bridge need for a block held, and for a further engine?",
        figure(".block", "bytes", at_most(64)), figure(".connection", "bytes", at_most(32 << 10))),
    # .vs_protobuf: against the bridge without this.
    row("republish.1block", "How many batches of a block a second are republished; against that relay, and a bridge that does not?",
        figure("", BATCHES, ratio(0.60), ratio(0.60, "protobuf"))),
    row("republish.8block", "Batches of 8 blocks?", figure("", BATCHES, ratio(0.60), ratio(0.60, "protobuf"))),
    row("republish.memory", "How much memory for each of a million blocks of 16 tokens republished?",
        figure(".block", "bytes", at_most(200))),
    row("republish.snapshot", "How long until a reader that knows nothing has a million blocks?",
        figure("", "s", at_most(2))),
    row("scale.publishers", "What does a bridge of 2,048 publishers cost: silent; with 5 batches a second each?",
        figure(".idle", CORE, at_most(10)), figure(".intake", CORE, at_most(25))),
)

SCALE = (
    row("scale.streams", "What does an aggregator of 10,000 streams cost: heartbeats; and loads once a second; or 20,000 events "
        "a second?", figure(".idle", CORE), figure(".load", CORE), figure(".intake", CORE, at_most(30))),
    row("scale.streams.bytes_per_copy", "How much memory for each (worker, block), 44 workers with the same prompts?",
        figure("", "bytes", at_most(16))),
    row("scale.unshared.bytes_per_copy", "The same of 2,500 streams, none with the same?", figure("", "bytes", at_most(64))),
    row("scale.streams.query.http", "How long does a query take meanwhile, 625 workers in an answer?",
        figure(".p50", "us"), figure(".p99", "us", at_most(5000))),
    row("scale.streams.route.nats", "How long does it take to choose one of 10,000 workers, over NATS?",
        figure(".p50", "us"), figure(".p99", "us", at_most(5000))),
    row("scale.streams.exact", "How long from a new aggregator's exec to 10,000 EXACT streams?", figure("", "s", at_most(30))),
)


def idle_row(what, question):
    return row(f"startup.idle.{what}", question, figure("", CORE, at_most(1)), figure(".threads", "threads"),
               figure(".wakeups", "wake-ups/s"))


STARTUP = (
    row("startup", "How long from a bridge's exec until 1,000 ranks with checkpoints of 4,096 blocks are connected, and EXACT?",
        figure(".sockets", "s", at_most(1)), figure(".exact", "s", at_most(3))),
    idle_row("bridge", "What does a bridge cost whose 1,000 ranks were silent for four minutes?"),
    idle_row("aggregator", "And the aggregator that follows them?"),
)

WHOLE = (
    row("whole.*", "What does the whole way cost, nats-server, bridge and aggregator, for 1, 16 or 64 engines; against Dynamo's "
        "stand-alone indexer, which reads the same engines; and with 200 queries of 1,024 tokens a second of each?",
        figure("", CORE, ratio(2)), *(figure(f".{part}", CORE) for part in ("nats", "bridge", "aggregator")),
        figure(".batches", BATCHES), figure(".asked", CORE, ratio(2)), figure(".query.p50", "us"), figure(".query.p99", "us"),
        figure(".memory", "MiB", ratio(1)), settings=("1", "16", "64")),
)

WORKLOADS = tuple(f"{workload}.{workers}" for workload in ("conversation", "heads", "agents") for workers in (8, 64))

WORTH = (
    row("worth.*.exact", "Is kv better than policies that ignore caches: blocks reused, and median time to first token?",
        figure(".kv_hit_rate", "of blocks", ratio(1)), figure(".kv_ttft_p50", "ms", ratio(1)),
        figure(".kv_ttft_p50.of_blind", "ms", ratio(1)),
        settings=tuple(f"{one}.{loop}" for one in WORKLOADS for loop in ("open", "closed"))),
    row("worth.*", "What does kv lose by events that are late or lost?",
        *(figure(f".{worse}.kv_ttft_p50", "ms", ratio(0.9)) for worse in ("late_100ms", "late_1000ms", "lossy_10")),
        settings=tuple(f"{one}.open" for one in WORKLOADS)),
)

GATEWAY = (
    row("gateway.request", "How long does a request of 4 KB take through Envoy, 1,000 a second, picked by kvaggregator; against a "
        "picker that picks at once; without one?",
        figure(".p50", "us"), figure(".p99", "us"), figure(".without.p50", "us"), figure(".without.p99", "us")),
    row("gateway.added", "How much longer than with that picker?",
        figure(".p50", "us", at_most(300)), figure(".p99", "us", at_most(2000))),
    row("gateway.chat", "How long does the pick of a chat of 77,000 to 100,000 tokens take, one after the other, from its second turn on?",
        figure(".p50", "us"), figure(".p95", "us"), figure(".p99", "us", at_most(3000))),
    row("gateway.stream", "How much memory does a request take whose answer runs, of 10,000?", figure(".bytes", "bytes")),
)

IN_MEMORY = ("intake.whole", "start.snapshot")

PROGRAMS = (
    Program("tests/bench_index", INDEX),
    Program("tests/bench_path", PATH),
    Program("tests/bench_intake", tuple(one for one in AGGREGATOR if one.name in IN_MEMORY)),
    Program("intake/aggregator.py", tuple(one for one in AGGREGATOR + SCALE if one.name not in IN_MEMORY)),
    Program("peers/peers.py", tuple(one for one in INDEX if any(goal.is_peer for goal in one.goals)), is_peer=True),
    Program("relay/relay.py", RELAY, needs_venv=True),
    Program("startup/startup.py", STARTUP, needs_venv=True),
    Program("whole/whole.py", WHOLE, needs_venv=True),
    Program("gateway/gateway.py", GATEWAY, needs_venv=True),
    Program("tests/bench_worth", WORTH, needs_trace=True, is_simulation=True),
)

ROWS = INDEX + PATH + AGGREGATOR + RELAY + SCALE + STARTUP + WHOLE + GATEWAY + WORTH
GOALS = [goal for one in ROWS for goal in one.goals]
