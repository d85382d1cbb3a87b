"""The captures of tests/data/probes: the messages of an engine, and what its own lookup returned
for prompts at points between them.  README.md there says how they were made."""

import collections
import dataclasses
import gzip
import http.client
import itertools
import json
import pathlib

import msgspec

from programs import DEADLINE_S

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "probes"


@dataclasses.dataclass(frozen=True)
class Capture:
    name: str
    block_size: int
    topic: bytes
    frames: list  # payloads; the position is the sequence number
    points: list  # [(after_seq, [probe])]


def lines(name, file):
    with gzip.open(DATA / name / f"{file}.gz", "rt") as text:
        return text.read().splitlines()


def as_window_first(payload):
    """The same of a model whose first layer has a window: vLLM numbers groups in the order of the
    layers, and what a request stores it says group by group."""
    batch = msgspec.msgpack.decode(payload)
    for event in batch[1]:
        if "group_idx" in event:
            event["group_idx"] = 1 - event["group_idx"]
    events = []
    for event in batch[1]:
        is_behind_its_own = event["type"] == "BlockStored" and event["group_idx"] == 0 and (
            events and events[-1]["type"] == "BlockStored" and events[-1]["group_idx"] == 1)
        events.insert(len(events) - 1 if is_behind_its_own else len(events), event)
    batch[1] = events
    return msgspec.msgpack.encode(batch)


def load(name):
    """A capture by NAME, or by NAME/window-first."""
    if name.endswith("/window-first"):
        capture = load(name.removesuffix("/window-first"))
        frames = [as_window_first(payload) for payload in capture.frames]
        return dataclasses.replace(capture, name=name.replace("/", "-"), frames=frames)
    meta = json.loads((DATA / name / "meta.json").read_text())
    topic = meta["topic"].encode()
    frames = []
    for line in lines(name, "frames.hex"):
        sent, seq, payload = line.split()
        assert bytes.fromhex(sent) == topic and int(seq, 16) == len(frames), (name, seq)
        frames.append(bytes.fromhex(payload))
    probes = [json.loads(line) for line in lines(name, "probes.jsonl")]
    points = [(seq, list(those)) for seq, those in itertools.groupby(probes, lambda p: p["after_seq"])]
    assert len(points) >= 14 and points == sorted(points, key=lambda point: point[0])
    return Capture(name, meta["block_size"], topic, frames, points)


class Asker:
    """POST /query over one connection, made again where the aggregator has closed it as idle: a busy
    machine may not ask for longer than an idle connection is kept."""

    def __init__(self, aggregator):
        self.connection = http.client.HTTPConnection("127.0.0.1", aggregator.port, timeout=DEADLINE_S)

    def ask(self, probe, model):
        body = {"token_ids": probe["token_ids"], "model_name": model}
        body |= {key: probe[key] for key in ("lora_name", "cache_salt") if probe[key] is not None}
        try:
            answer, text = self.post(json.dumps(body))
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            self.connection.close()
            answer, text = self.post(json.dumps(body))
        assert answer.status == 200, (answer.status, text)
        return json.loads(text)

    def post(self, body):
        self.connection.request("POST", "/query", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        return answer, answer.read()

    def close(self):
        self.connection.close()


def tokens_of(answer, field, worker_id):
    """Answers for rank 0; workers that hold nothing are left out."""
    return answer[field].get(str(worker_id), {}).get("0", 0)


class Count:
    """Answers of one kind, compared with the truth."""

    def __init__(self):
        self.kinds = collections.Counter()
        self.examples = []  # (kind, after_seq, kind of probe, answer, truth)

    def add(self, given, truth, probe, is_exact):
        kind = self.kind_of(given, truth, probe.get("bounds"), is_exact)
        self.kinds[kind] += 1
        if kind != "right" and len(self.examples) < 20:
            self.examples.append((kind, probe["after_seq"], probe["kind"], given, truth))

    @staticmethod
    def kind_of(given, truth, bounds, is_exact):
        if given == truth:
            return "right"
        if given > truth:
            return "over" if is_exact else "over_flagged"
        # Too low, but not below what the events prove.
        return "short_in_bounds" if bounds and given >= bounds[0] else "short"

    def row(self):
        return [self.kinds[kind] for kind in ("right", "over", "over_flagged", "short", "short_in_bounds")]


class Tally:
    """The results of the probes of one capture."""

    def __init__(self, capture):
        self.capture = capture
        self.probes = 0
        self.states = collections.Counter()  # state of the stream at each probe
        self.held = Count()
        self.hits = Count()
        self.host = Count()  # the device's prefix and what the host's tier continues, where recorded
        self.has_hits = True

    def add(self, probe, answer, worker_id, state):
        held = tokens_of(answer, "scores", worker_id)
        self.has_hits = self.has_hits and "hits" in answer
        hit = tokens_of(answer, "hits", worker_id) if "hits" in answer else 0
        self.probes += 1
        self.states[state] += 1
        self.held.add(held, probe["held_tokens"], probe, state == "EXACT")
        self.hits.add(hit, probe["hit_tokens"], probe, state == "EXACT")
        if "host_tokens" in probe:
            cpu = answer["instances"].get(str(worker_id), {}).get("cpu", 0)
            self.host.add(cpu, probe["host_tokens"], probe, state == "EXACT")

    def row(self, title):
        states = " ".join(f"{name}:{count}" for name, count in sorted(self.states.items()))
        counts = [*self.held.row(), *self.hits.row(), *self.host.row()]
        return [title, self.probes, *counts, "yes" if self.has_hits else "no", states]


HEAD = [
    "capture", "probes",
    *(f"{what} {kind}" for what in ("held", "hit", "host") for kind in ("exact", "over", "flag", "short", "bound")),
    "hits said", "states",
]


def table(rows):
    """Lines; `flag`: too high while the stream was not EXACT; `bound`: short, within bounds."""
    rows = [[str(cell) for cell in row] for row in [HEAD, *rows]]
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
