"""What is measured, by which program, and the goals. For a new row: its program prints the figure
(parts/bench.h says how), and a Goal is added here. For a new program: a Program here, and a
kvb_bench() in CMakeLists.txt."""

import dataclasses

# ---- Programs ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that is run with --seconds N [--corpus FILE]... [NAME...]."""

    path: str  # relative to the build folder; relative to tests/bench when is_script
    rows: tuple  # prefixes of its figures' names
    corpora: tuple = ()  # workers of each corpus that it gets ...
    corpus_rows: tuple = ()  # ... for these rows
    is_script: bool = False  # run by Debian's Python, or with needs_python by that of build/venv
    needs_python: bool = False  # build/venv, as KVB_PYTHON in its environment
    is_peer: bool = False  # only with --peers
    needs_trace: bool = False  # --trace FILE
    is_simulation: bool = False  # its figures do not depend on the machine


CORPUS_ROWS = ("index.conversation", "index.events", "index.query", "index.bytes_per_membership", "index.readers",
               "index.dump", "index.two", "index.own_names")
PEER_ROWS = ("index.conversation", "index.events", "index.query", "index.bytes_per_membership", "index.dump", "index.two",
             "index.own_names", "index.beside_hog")

PROGRAMS = [
    Program("tests/bench_index", (
        *CORPUS_ROWS, "index.wide", "index.clear", "index.staircase", "index.deep", "index.growth", "index.snapshot",
        "index.cost", "index.linear", "index.query.10000", "index.holes"), corpora=(128, 1000), corpus_rows=CORPUS_ROWS),
    Program("tests/bench_path", ("path",)),
    Program("tests/bench_intake", (
        "intake.decode", "intake.whole", "intake.allocations", "intake.nats", "query", "start.serving",
        "start.ready", "start.snapshot")),
    Program("tests/bench_mirror", ("mirror.conversation", "mirror.one_block_prompts")),
    Program("peers/peers.py", (*PEER_ROWS, "index.wide", "index.clear", "index.staircase", "index.deep", "index.growth",
                               "index.hostile"),
            corpora=(128, 1000), corpus_rows=PEER_ROWS, is_script=True, is_peer=True),
    Program("tests/bench_relay", ("relay.protobuf.1block", "relay.protobuf.8block", "relay.json.1block", "relay.json.8block",
                                  "relay.latency", "relay.beside_hostile", "relay.workers", "relay.memory",
                                  "scale.publishers", "republish.1block", "republish.8block", "republish.memory",
                                  "republish.snapshot"),
            needs_python=True),
    Program("tests/bench_scale", ("scale.streams", "scale.unshared")),
    Program("discovery/discovery.py", ("discovery.start", "discovery.burst", "discovery.idle", "discovery.resident",
                                       "discovery.files", "discovery.relist"), is_script=True, needs_python=True),
    Program("startup/startup.py", ("startup.sockets", "startup.exact", "startup.restored", "startup.idle"), is_script=True,
            needs_python=True),
    Program("strangers/strangers.py", ("strangers.http", "strangers.tls"), is_script=True, needs_python=True),
    Program("tests/bench_worth", ("worth",), needs_trace=True, is_simulation=True),
]

# Measured only when --only names them, and not part of the figures that --publish writes for a
# whole run: those of scale need gigabytes, those of discovery, startup and strangers thousands of sockets,
# those of republish half of the relay's time again, and those of worth come from a simulation.
APART = ("scale", "discovery", "startup", "strangers", "republish", "worth")

# ---- Goals ---------------------------------------------------------------------


MAX_SPREAD = 0.15  # of the value or ratio that a goal is about; above it the row does not count as met


@dataclasses.dataclass(frozen=True)
class Goal:
    name: str
    text: str  # with the unit of a value
    what: str  # "value" or "ratio"
    comparison: str  # ">=" or "<="
    bound: float
    is_peer: bool = False  # measured with --peers only

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


PEER_RATIOS = {  # what, and how many times better
    "index.conversation.128": ("a fleet of 128", 2.5),
    "index.conversation.1000": ("a fleet of 1,000", 2.5),
    "index.events.128": ("a fleet of 128, events only", 1),
    "index.events.1000": ("a fleet of 1,000, events only", 1),
    "index.query.p50": ("a query, 128 workers, median", 1.1),
    "index.query.p99": ("a query, 128 workers", 1),
    "index.query.1000.p50": ("1,000 workers, median", 1),
    "index.query.1000.p99": ("1,000 workers", 1),
    "index.query.10000.p50": ("10,000 workers, median", 1),
    "index.query.10000.p99": ("10,000 workers", 1),
    "index.bytes_per_membership.resident": ("memory, 128 workers", 1),
    "index.bytes_per_membership.1000.resident": ("memory, 1,000 workers", 1),
    "index.own_names.128": ("128 workers, each with its own names for blocks", 1),
    "index.own_names.1000": ("1,000 such workers", 1),
    "index.wide.lose": ("10,000 workers lose tails of 64 blocks", 1),
    "index.wide.store": ("and store them again", 1),
    "index.wide_long.lose": ("the same with 512 blocks", 1),
    "index.wide_long.store": ("and stored again", 1),
    "index.clear.at_once": ("a worker of 16,384 blocks is cleared", 1),
    "index.clear.all": ("until nothing of it is left", 1),
    "index.staircase.p50": ("a query with 999 depths in its answer", 1),
    "index.deep.p50": ("a query of 6,250 blocks", 1),
    "index.growth.worst": ("the worst store up to 8 million blocks", 1),
    "index.growth.one_worker.worst": ("the same, all of them one worker's", 1),
}
# Not compared: it gives other answers there.
WRONG_ANSWERS = {"index.own_names.128.vs_crtc", "index.own_names.1000.vs_crtc"}


PEERS = ("chainindex", "crtc", "two_chainindex")


def is_of_peers(name):
    return name.rpartition(".vs_")[2] in PEERS


def peer_goals(peer, words):
    goals = [Goal(f"{name}.vs_{peer}", f"{text}, against {words}", "ratio", ">=", bound, True)
             for name, (text, bound) in PEER_RATIOS.items()]
    return [goal for goal in goals if goal.name not in WRONG_ANSWERS]


def worth_goals():
    """Cache-aware routing compared with policies that ignore caches, and with itself when its
    events are late or lost."""
    goals = []
    for workload in ("conversation", "heads", "agents"):
        for workers in (8, 64):
            for loop in ("open", "closed"):
                name, where = f"worth.{workload}.{workers}.{loop}.exact", f"{workload}, {workers} workers, {loop} loop"
                goals += [
                    Goal(f"{name}.kv_hit_rate", f"{where}: blocks that kv reuses, against round_robin", "ratio", ">=", 1),
                    Goal(f"{name}.kv_ttft_p50", f"{where}: median time to first token, against least_requests", "ratio",
                         ">=", 1),
                    Goal(f"{name}.kv_ttft_p50.of_blind", f"{where}: the same, against the best of the cache-blind", "ratio",
                         ">=", 1)]
            for worse, words in (("late_100ms", "100 ms late"), ("late_1000ms", "1 s late"), ("lossy_10", "10 % lost")):
                goals.append(Goal(f"worth.{workload}.{workers}.open.{worse}.kv_ttft_p50",
                                  f"{workload}, {workers} workers, events {words}: median, against exact", "ratio", ">=", 0.9))
    return goals


GOALS = [
    # 2.5 times ChainIndex on the machine that it was measured on; --peers compares for real.
    Goal("index.conversation.128", "a fleet of 128 replayed, one thread, M/s", "value", ">=", 57),
    Goal("index.conversation.1000", "a fleet of 1,000 replayed, one thread, M/s", "value", ">=", 36),
    Goal("index.events.128", "the same fleet of 128, events only, M/s", "value", ">=", 38),
    Goal("index.query.p99", "a query on a quiet index, 128 workers, us", "value", "<=", 2.5),
    Goal("index.query.1000.p99", "the same, 1,000 workers, us", "value", "<=", 9.6),
    Goal("index.query.10000.p50", "the median among 10,000 workers, us", "value", "<=", 10),
    # What ChainIndex took, the least of the others.
    Goal("index.bytes_per_membership", "memory for each (worker, block), 128 workers, bytes", "value", "<=", 59),
    Goal("index.bytes_per_membership.1000", "the same, 1,000 workers, bytes", "value", "<=", 52),
    Goal("index.readers.p99", "a query while 100,000 block operations/s arrive, us", "value", "<=", 1000),
    Goal("index.own_names.128", "128 workers, each with its own names for blocks, M/s", "value", ">=", 25),
    Goal("index.wide.lose", "10,000 workers hold 64 blocks; each loses a tail, ns a block", "value", "<=", 100),
    Goal("index.wide.store", "and stores it again, ns a block", "value", "<=", 60),
    Goal("index.wide_long.lose", "the same with 512 blocks, ns a block", "value", "<=", 100),
    Goal("index.wide_long.store", "and stored again, ns a block", "value", "<=", 60),
    Goal("index.clear.at_once", "one of 1,000 workers of 16,384 blocks is cleared, us", "value", "<=", 500),
    Goal("index.clear.slice", "the worst slice of the sweep after it, us", "value", "<=", 1000),
    Goal("index.staircase.p50", "a query that 999 workers answer with 999 depths, us", "value", "<=", 10),
    Goal("index.deep.p50", "a query of 6,250 blocks, us", "value", "<=", 3.5),
    Goal("index.growth.worst", "CPU time of the worst store while it grows to 8 million blocks, ms", "value", "<=", 1),
    Goal("index.growth.one_worker.worst", "the same, all of them one worker's, ms", "value", "<=", 1),
    Goal("index.snapshot.load", "10 million blocks from one index into an empty one, s", "value", "<=", 2),
    Goal("index.cost.100", "an event among 100 workers against one among 10", "ratio", ">=", 0.67),
    Goal("index.cost.1000", "among 1,000", "ratio", ">=", 0.67),
    Goal("index.cost.10000", "among 10,000", "ratio", ">=", 0.5),
    Goal("index.linear.4096", "a block of an event of 4,096 against one of 64", "ratio", ">=", 0.67),
    Goal("path.decode.1block", "an engine's batch of a block of 16 tokens decoded, ns", "value", "<=", 190),
    Goal("path.decode.8block", "of 8 blocks, ns", "value", "<=", 1100),
    Goal("path.allocations.protobuf", "what a bridge allocates in 10 million events", "value", "<=", 0),
    Goal("path.allocations.json", "the same, as JSON", "value", "<=", 0),
    Goal("path.allocations.sockets.protobuf.ours", "from a publisher's socket to NATS", "value", "<=", 0),
    Goal("path.allocations.sockets.json.ours", "the same, as JSON", "value", "<=", 0),
    Goal("intake.decode", "an aggregator's decoding, ns a block", "value", "<=", 20),
    Goal("intake.whole", "from bytes of NATS to the index, one thread, M/s", "value", ">=", 3),
    Goal("intake.nats", "published, and applied by a kvaggregator, M/s", "value", ">=", 3),
    Goal("intake.allocations", "allocations for 10 million events", "value", "<=", 0),
    Goal("query.http.p99", "64 blocks over HTTP, 1,000 workers, while 100,000 block operations/s arrive, us", "value",
         "<=", 1000),
    Goal("query.nats.p99", "the same over NATS, us", "value", "<=", 1000),
    Goal("query.http.burst.p99", "over HTTP, while they arrive 50,000 at once, us", "value", "<=", 1000),
    Goal("query.nats.burst.p99", "over NATS, us", "value", "<=", 1000),
    Goal("query.nats.p99", "the same, against an echo of the same size: at most 1.2 times", "ratio", ">=", 0.83),
    Goal("query.nats.burst.p99", "50,000 at once, against that echo: at most 1.2 times", "ratio", ">=", 0.83),
    Goal("query.http.rate", "64 blocks over HTTP, answers/s with one core, against an echo", "ratio", ">=", 0.60),
    Goal("query.http.rate.cpu", "CPU time of one, against the echo's", "ratio", ">=", 0.60),
    Goal("query.nats.rate", "the same over NATS, answers/s with one core", "ratio", ">=", 0.60),
    Goal("query.nats.rate.cpu", "CPU time of one, against the echo's", "ratio", ">=", 0.60),
    # The large message itself delays the echo's small ones, too.
    Goal("query.http.long.rise", "p99 beside prompts of 131,072 tokens against without, against an echo's: at most 1.3 times",
         "ratio", ">=", 0.77),
    Goal("query.nats.long.rise", "the same over NATS", "ratio", ">=", 0.77),
    Goal("query.grpc.p99", "the same over gRPC, as sgl-router requests it, us", "value", "<=", 2000),
    Goal("start.serving", "an aggregator: from exec to its first answer, ms", "value", "<=", 100),
    Goal("start.ready", "from exec to ready; heartbeats of all bridges take 1,200 of it, ms", "value", "<=", 1500),
    Goal("start.snapshot", "10 million blocks from bridges' answers into the index, s", "value", "<=", 2),
    Goal("mirror.conversation.bytes_per_block", "memory of the bridge for a block that an engine holds, bytes", "value",
         "<=", 64),
    Goal("mirror.one_block_prompts.bytes_per_block", "the same where each prompt is one block", "value", "<=", 64),
    *peer_goals("chainindex", "ChainIndex"),
    *peer_goals("crtc", "CRTC"),
    Goal("index.beside_hog.128.vs_chainindex", "a fleet of 128 while another core copies memory, against ChainIndex", "ratio",
         ">=", 2, True),
    Goal("index.beside_hog.1000.vs_chainindex", "the same of 1,000", "ratio", ">=", 1.5, True),
    Goal("index.holes.wrong", "wrong answers of 6.5 million on prompts with holes", "value", "<=", 0),
    # Against the relay that passes bytes on unread; .vs_python against the one in Python.
    Goal("relay.protobuf.1block", "bridge, protobuf, batches of one block", "ratio", ">=", 0.85),
    Goal("relay.protobuf.1block.vs_python", "the same, against Python", "ratio", ">=", 15),
    Goal("relay.protobuf.8block", "bridge, protobuf, batches of 8 blocks", "ratio", ">=", 0.85),
    Goal("relay.protobuf.8block.vs_python", "the same, against Python", "ratio", ">=", 15),
    Goal("relay.json.1block", "bridge, json, batches of one block", "ratio", ">=", 0.75),
    Goal("relay.json.8block", "bridge, json, batches of 8 blocks", "ratio", ">=", 0.65),
    Goal("relay.latency.p50", "from engine to subscriber, 10,000 batches/s: at most 1.3 times", "ratio", ">=", 0.77),
    Goal("relay.latency.p99", "the same: at most 1.5 times", "ratio", ">=", 0.67),
    Goal("relay.beside_hostile.tierclear.p99", "an engine's batch while another sends 60,000 clears of a tier a second, ms",
         "value", "<=", 50),
    Goal("relay.beside_hostile.waiting.p99", "while it stores 300,000 children of an unknown parent a second, ms",
         "value", "<=", 50),
    Goal("relay.beside_hostile.collide.p99", "while it stores 300,000 blocks a second whose hashes collide, ms",
         "value", "<=", 50),
    Goal("relay.workers.100", "cost of a batch, 100 engines against 10", "ratio", ">=", 0.67),
    Goal("relay.workers.1000", "the same, 1,000 engines", "ratio", ">=", 0.67),
    Goal("relay.memory.block", "the bridge's memory for each block held, bytes", "value", "<=", 64),
    Goal("relay.memory.connection", "and for each engine that holds next to nothing, bytes", "value", "<=", 32 << 10),
    Goal("scale.streams.intake", "an aggregator of 10,000 streams, 20,000 events/s, % of a core", "value", "<=", 30),
    Goal("scale.streams.bytes_per_copy", "its memory for each (worker, block), prompts of 44 workers, bytes", "value",
         "<=", 16),
    Goal("scale.unshared.bytes_per_copy", "the same where no two workers hold the same, bytes", "value", "<=", 64),
    Goal("scale.streams.query.http.p99", "64 blocks over HTTP meanwhile, us", "value", "<=", 5000),
    Goal("scale.streams.query.nats.p99", "over NATS, us", "value", "<=", 5000),
    Goal("scale.streams.route.nats.p99", "a worker of 10,000 chosen, over NATS, us", "value", "<=", 5000),
    Goal("scale.streams.not_exact", "streams that did not stay EXACT", "value", "<=", 0),
    Goal("scale.streams.exact", "a new aggregator: from exec to 10,000 EXACT streams, s", "value", "<=", 30),
    Goal("scale.publishers.idle", "a bridge of 2,048 silent publishers, % of a core", "value", "<=", 10),
    Goal("scale.publishers.intake", "the same, each with 5 batches/s, % of a core", "value", "<=", 25),
    Goal("scale.publishers.resident", "its memory, MB", "value", "<=", 512),
    Goal("scale.publishers.lost", "batches lost", "value", "<=", 0),
    Goal("discovery.start", "from a bridge's exec to the sockets of 2,000 pods open, s", "value", "<=", 5),
    Goal("discovery.start.requests", "requests to the Kubernetes API until then", "value", "<=", 10),
    Goal("discovery.burst", "2,000 pods come at once to a bridge that runs, s", "value", "<=", 5),
    Goal("discovery.burst.requests", "requests to the Kubernetes API until then", "value", "<=", 10),
    Goal("discovery.idle", "the thread that watches 2,000 pods, % of a core", "value", "<=", 1),
    Goal("discovery.resident.pod", "the bridge's memory for each pod, bytes", "value", "<=", 256 << 10),
    Goal("discovery.relist", "2,000 pods listed again, nothing changed, ms of that thread", "value", "<=", 250),
    Goal("discovery.relist.closed", "members that such a list closed", "value", "<=", 0),
    Goal("startup.sockets", "1,000 ranks with checkpoints of 4,096 blocks: from exec to all sockets connected, s", "value",
         "<=", 1),
    Goal("startup.exact", "from exec to 1,000 EXACT streams, s", "value", "<=", 3),
    Goal("startup.restored", "share of the checkpoints that were used, %", "value", ">=", 100),
    Goal("startup.idle.bridge", "1,000 ranks silent for four minutes, % of a core", "value", "<=", 1),
    Goal("startup.idle.aggregator", "the aggregator that follows them, % of a core", "value", "<=", 1),
    Goal("strangers.http.p99", "a request with the token beside 2,000 strangers, ms", "value", "<=", 5),
    Goal("strangers.tls.p99", "the same over HTTPS, the strangers' handshakes stalled, ms", "value", "<=", 5),
    # Against the relay that reads nothing, and the bridge without this.
    Goal("republish.1block", "republished for readers of engines, batches of one block", "ratio", ">=", 0.60),
    Goal("republish.1block.vs_protobuf", "the same, against the bridge that publishes on NATS alone", "ratio", ">=", 0.60),
    Goal("republish.8block", "batches of 8 blocks", "ratio", ">=", 0.60),
    Goal("republish.8block.vs_protobuf", "the same, against the bridge that publishes on NATS alone", "ratio", ">=", 0.60),
    Goal("republish.memory.block", "the bridge's memory for each of a million blocks of 16 tokens, bytes", "value", "<=", 260),
    Goal("republish.memory.tokens", "tokens and tree of them, bytes", "value", "<=", 112),
    Goal("republish.snapshot", "a reader that knows nothing has a million blocks, s", "value", "<=", 2),
    Goal("republish.snapshot.beside_p99", "another engine's batches to NATS meanwhile, ms", "value", "<=", 50),
    *worth_goals(),
]
