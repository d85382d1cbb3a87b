"""The parts of a Dynamo router 0.3.1 to 0.4 that read NATS: KvIndexer, KvMetricsAggregator,
and the hit rates that its metrics component counts.  Written from Dynamo's rules, without
code of this project or of its tests.

A message that Dynamo's typed decoders reject raises Undecodable: one such message stops a
KvIndexer for good."""

import json
import struct

import xxhash

NAMESPACE, COMPONENT = "dynamo", "VllmWorker"
EVENTS = f"namespace.{NAMESPACE}.component.{COMPONENT}.kv_events"
SERVICE = f"{NAMESPACE}_{COMPONENT}".lower()
STATS = f"$SRV.STATS.{SERVICE}"
HIT_RATES = f"namespace.{NAMESPACE}.kv-hit-rate"
HASH_SEED = 1337


class Undecodable(Exception):
    pass


# ---- Typed JSON ----------------------------------------------------------------------


def refuse_constant(name):
    raise Undecodable(f"{name} is no JSON number")


def read_object(pairs):
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Undecodable(f"a key is repeated: {[key for key, _ in pairs]}")
    return fields


def parse(payload):
    try:
        return json.loads(
            payload.decode("utf-8"), object_pairs_hook=read_object, parse_constant=refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Undecodable(f"no JSON: {error}") from error


def integer(value, bits, is_signed=False):
    # A typed reader rejects 7.0 and true.
    low, high = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
    if type(value) is not int or not low <= value < high:
        raise Undecodable(f"no {'i' if is_signed else 'u'}{bits}: {value!r}")
    return value


def number(value):
    if type(value) not in (int, float):
        raise Undecodable(f"no number: {value!r}")
    return value


def text(value):
    if not isinstance(value, str):
        raise Undecodable(f"no text: {value!r}")
    return value


def array(value):
    if not isinstance(value, list):
        raise Undecodable(f"no array: {value!r}")
    return value


def field(value, name):
    if not isinstance(value, dict) or name not in value:
        raise Undecodable(f"no field {name}: {value!r}")
    return value[name]


# ---- RouterEvent ---------------------------------------------------------------------


class Stored:
    def __init__(self, value):
        parent = value.get("parent_hash") if isinstance(value, dict) else None
        self.parent = None if parent is None else integer(parent, 64)
        self.blocks = [
            (integer(field(block, "block_hash"), 64), integer(field(block, "tokens_hash"), 64))
            for block in array(field(value, "blocks"))
        ]


class Removed:
    def __init__(self, value):
        self.blocks = [integer(block, 64) for block in array(field(value, "block_hashes"))]


class Cleared:
    pass


class RouterEvent:
    def __init__(self, payload):
        root = parse(payload)
        event = field(root, "event")
        self.worker = integer(field(root, "worker_id"), 64, is_signed=True)
        self.event_id = integer(field(event, "event_id"), 64)
        self.data = self.read_data(field(event, "data"))

    @staticmethod
    def read_data(data):
        """serde's form of an enum: "cleared", or an object with one key, "stored" or "removed"."""
        if data == "cleared":
            return Cleared()
        kinds = {"stored": Stored, "removed": Removed}
        if not isinstance(data, dict) or len(data) != 1 or next(iter(data)) not in kinds:
            raise Undecodable(f"no event: {data!r}")
        ((kind, value),) = data.items()
        return kinds[kind](value)


# ---- KvIndexer -----------------------------------------------------------------------


class Block:
    def __init__(self):
        self.children = {}  # tokens_hash -> Block
        self.workers = set()


class Indexer:
    """A tree of blocks, keyed by the hashes of their tokens; each block has the workers that
    hold it.  For each worker a table finds its blocks by name.  Ranks and tiers are ignored."""

    def __init__(self):
        self.root = Block()
        self.lookup = {}  # worker -> {block_hash: Block}
        self.events = 0
        self.ignored = 0  # stores with an unknown parent, removals of unknown blocks: Dynamo logs a warning

    def apply(self, event):
        self.events += 1
        known = self.lookup.setdefault(event.worker, {})
        if isinstance(event.data, Stored):
            self.store(event.worker, known, event.data)
        elif isinstance(event.data, Removed):
            for name in event.data.blocks:
                self.remove(event.worker, known, name)
        else:
            for name in list(known):
                self.remove(event.worker, known, name)

    def store(self, worker, known, data):
        at = self.root if data.parent is None else known.get(data.parent)
        if at is None:
            self.ignored += 1
            return
        for name, tokens in data.blocks:
            block = at.children.get(tokens)
            if block is None:
                block = at.children[tokens] = known.get(name) or Block()
            block.workers.add(worker)
            known[name] = block
            at = block

    def remove(self, worker, known, name):
        block = known.pop(name, None)
        if block is None:
            self.ignored += 1
            return
        block.workers.discard(worker)
        if not block.workers:
            block.children.clear()

    def find_matches(self, tokens, block_size):
        """{worker: matching blocks of the prompt}, as Dynamo's scheduler counts them."""
        scores, at = {}, self.root
        for start in range(0, len(tokens) - block_size + 1, block_size):
            at = at.children.get(tokens_hash(tokens[start:start + block_size]))
            if at is None:
                break
            for worker in at.workers:
                scores[worker] = scores.get(worker, 0) + 1
        return scores


def tokens_hash(tokens):
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(tokens)}I", *tokens), seed=HASH_SEED)


# ---- KvMetricsAggregator -------------------------------------------------------------

SLOTS = ("request_active_slots", "request_total_slots", "num_requests_waiting")
BLOCKS = ("kv_active_blocks", "kv_total_blocks")
SHARES = ("gpu_cache_usage_perc", "gpu_prefix_cache_hit_rate")


def read_metrics(data):
    """ForwardPassMetrics, in the nested form of Dynamo 0.3 and later."""
    worker, kv = field(data, "worker_stats"), field(data, "kv_stats")
    rank = field(worker, "data_parallel_rank")
    if rank is not None:
        integer(rank, 32)
    metrics = {name: integer(field(worker, name), 64) for name in SLOTS}
    metrics.update({name: integer(field(kv, name), 64) for name in BLOCKS})
    metrics.update({name: float(number(field(kv, name))) for name in SHARES})
    return metrics


def read_endpoint(endpoint):
    for name in ("name", "subject", "queue_group", "last_error"):
        text(field(endpoint, name))
    for name in ("num_requests", "num_errors", "processing_time", "average_processing_time"):
        integer(field(endpoint, name), 64)
    return endpoint


def scrape(payloads):
    """{worker: metrics} from the answers to one $SRV.STATS request.  An endpoint without data
    has no metrics yet.  Its subject ends with the worker id in hexadecimal."""
    seen = {}
    for payload in payloads:
        service = parse(payload)
        for name in ("name", "id", "version", "started"):
            text(field(service, name))
        for endpoint in map(read_endpoint, array(field(service, "endpoints"))):
            subject = endpoint["subject"]
            if subject.startswith(f"{SERVICE}.load_metrics") and endpoint.get("data") is not None:
                worker = integer(int(subject.rsplit("-", 1)[1], 16), 64, is_signed=True)
                seen[worker] = read_metrics(endpoint["data"])
    return seen


# ---- Hit rates -----------------------------------------------------------------------


def read_hit_rate(payload):
    """KVHitRateEvent: (worker, blocks of the prompt, blocks that the worker held)."""
    root = parse(payload)
    return (integer(field(root, "worker_id"), 64, is_signed=True),
            integer(field(root, "isl_blocks"), 64), integer(field(root, "overlap_blocks"), 64))
