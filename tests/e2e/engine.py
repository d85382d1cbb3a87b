"""The messages of a vLLM: structs as vLLM declares them, a PUB socket and
a ROUTER that answers replays from its buffer."""

import collections
import threading
import time
from typing import Any, Optional, Union

import msgspec
import zmq

from programs import DEADLINE_S

END = b"\xff" * 8


# As in vllm/distributed/kv_events.py of vLLM 0.17 (array form).
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: Optional[int] = None


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[Union[bytes, int]]
    parent_block_hash: Optional[Union[bytes, int]]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str] = None
    extra_keys: Optional[list[Optional[list[Any]]]] = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[Union[bytes, int]]
    medium: Optional[str]


class AllBlocksCleared(KVCacheEvent):
    pass


# As in vLLM 0.24 and later (map form): the batch is still an array, its events are maps.
class MapEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class MapBlockStored(MapEvent, tag="BlockStored"):
    block_hashes: list[Union[bytes, int]]
    parent_block_hash: Optional[Union[bytes, int]]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[list[Optional[list[Any]]]] = None
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None
    kv_cache_spec_sliding_window: Optional[int] = None


class MapBlockRemoved(MapEvent, tag="BlockRemoved"):
    block_hashes: list[Union[bytes, int]]
    medium: Optional[str]
    group_idx: Optional[int] = None


class MapAllBlocksCleared(MapEvent, tag="AllBlocksCleared"):
    pass


def batch(*events, rank=0, ts=None):
    return msgspec.msgpack.encode(
        EventBatch(time.time() if ts is None else ts, list(events), rank)
    )


class ArrayForm:
    """vLLM 0.17."""

    @staticmethod
    def stored(hashes, tokens, block_size, parent=None, medium="GPU"):
        return BlockStored(list(hashes), parent, list(tokens), block_size, None, medium)

    @staticmethod
    def removed(*hashes, medium="GPU"):
        return BlockRemoved(list(hashes), medium)

    cleared = staticmethod(AllBlocksCleared)


class MapForm:
    """vLLM 0.31."""

    @staticmethod
    def stored(hashes, tokens, block_size, parent=None, medium="GPU"):
        return MapBlockStored(
            list(hashes), parent, list(tokens), block_size, None, medium, None,
            group_idx=0, kv_cache_spec_kind="full_attention",
        )

    @staticmethod
    def removed(*hashes, medium="GPU"):
        return MapBlockRemoved(list(hashes), medium, group_idx=0)

    @staticmethod
    def window_stored(hashes, tokens, block_size, window, parent=None, group=1):
        """A BlockStored of a sliding-window group."""
        return MapBlockStored(
            list(hashes), parent, list(tokens), block_size, None, "GPU", None,
            group_idx=group, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=window,
        )

    @staticmethod
    def window_removed(*hashes, group=1):
        return MapBlockRemoved(list(hashes), "GPU", group_idx=group)

    cleared = staticmethod(MapAllBlocksCleared)


stored, removed, cleared = ArrayForm.stored, ArrayForm.removed, ArrayForm.cleared


class Engine:
    """One publisher: one rank.  publish() goes to subscribers and into the replay
    buffer; `live=False` keeps it from the subscribers, as a full queue would.

    A bridge says EXACT only after a batch has arrived both live and by replay. To save scenes the
    wait for another batch, a request for the whole buffer also sends the newest batch live once
    more (`repeats`), as if it had just been published."""

    publisher = zmq.PUB  # or XPUB, for an engine that wants to know its subscribers

    def __init__(
        self, topic=b"kv-events", form="new", bind="tcp://127.0.0.1:*", bind_replay="tcp://127.0.0.1:*",
        repeats=True,
    ):
        self.repeats = repeats
        self.topic = topic
        self.form = form  # "new": topic in replies (0.26+); "old": without
        self.next_seq = 0
        self.buffer = collections.deque(maxlen=10_000)
        self.requests = []  # the first sequence number of each requested replay
        self.lock = threading.Lock()
        self.sending = threading.Lock()
        self.context = zmq.Context()
        self._open(bind, bind_replay)

    def _open(self, events, replay):
        self.pub = self.context.socket(self.publisher)
        self.pub.set(zmq.SNDHWM, 100_000)
        self.pub.set(zmq.LINGER, 0)
        self.pub.bind(events)
        self.events = self.pub.get(zmq.LAST_ENDPOINT).decode()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.set(zmq.LINGER, 0)
        self.router.bind(replay)
        self.replay = self.router.get(zmq.LAST_ENDPOINT).decode()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _close_sockets(self):
        self.stopping.set()
        self.thread.join()
        self.router.close()
        self.pub.close()

    def publish(self, payload, live=True, buffered=True, seq=None):
        with self.lock:
            if seq is None:
                seq = self.next_seq
            self.next_seq = seq + 1
            if buffered:
                self.buffer.append((seq, payload))
        if live:
            self.send_raw(self.topic, seq.to_bytes(8, "big"), payload)
        return seq

    def send_raw(self, *frames):
        """Sends any frames; they get no number and are not put into the replay buffer."""
        with self.sending:
            self.pub.send_multipart(frames)

    def forget(self, keep=0):
        """Makes the replay buffer wrap: only its newest batches are left."""
        with self.lock:
            while len(self.buffer) > keep:
                self.buffer.popleft()

    def restart(self):
        """A new process at the same addresses: connections break, the buffer is empty, and seq
        begins at 0."""
        self.go_away()
        self.forget()
        self.next_seq = 0
        self.come_back()

    def go_away(self):
        """Connections break; the engine keeps its blocks."""
        self._close_sockets()

    def come_back(self):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self._open(self.events, self.replay)
            except zmq.ZMQError as error:  # libzmq closes sockets in the background
                if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                    raise
                self.pub.close()
                self.router.close()
                time.sleep(0.02)

    def close(self):
        if not self.pub.closed:
            self._close_sockets()
        self.context.term()

    def _serve(self):
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        while not self.stopping.is_set():
            if not poller.poll(50):
                continue
            frames = self.request_of(self.router.recv_multipart())
            if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != 8:
                continue  # vLLM does not answer such a request either
            start = int.from_bytes(frames[2], "big")
            with self.lock:
                self.requests.append(start)
                kept = self.answer(start)
            if kept is None:
                continue
            for seq, payload in kept:
                self._reply(frames[0], seq.to_bytes(8, "big"), payload)
            self._reply(frames[0], END, b"")
            if self.repeats and kept and self.requests[-2:].count(0):  # a full replay was requested, now or just before
                seq, payload = kept[-1]
                self.send_raw(self.topic, seq.to_bytes(8, "big"), payload)

    def request_of(self, frames):
        """Parses a received request: [peer, "", start]."""
        return frames

    def answer(self, start):
        """The rows that a replay sends. A subclass may return others, or None for no answer."""
        return [row for row in self.buffer if row[0] >= start]

    def _reply(self, peer, seq, payload):
        middle = [self.topic] if self.form == "new" and seq != END else []
        if self.form == "new" and seq == END:
            middle = [b""]
        self.router.send_multipart([peer, b"", *middle, seq, payload])


class ConnectingEngine(Engine):
    """Connects its PUB socket to a bridge that listens."""

    def __init__(self, address, **options):
        self.address = address
        super().__init__(**options)

    def _open(self, events, replay):
        super()._open("tcp://127.0.0.1:*", replay)
        self.pub.unbind(self.events)
        self.events = self.address
        self.pub.connect(self.address)


class LoadFeed:
    """The PUB socket on which an engine publishes its load: maps as Dynamo's
    ForwardPassMetrics, nested when they name a rank."""

    IN_WORKER_STATS = ("request_active_slots", "request_total_slots", "num_requests_waiting")

    def __init__(self):
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.set(zmq.LINGER, 0)
        self.pub.bind("tcp://127.0.0.1:*")
        self.endpoint = self.pub.get(zmq.LAST_ENDPOINT).decode()

    def send(self, figures, rank=None):
        if rank is not None:
            inside = {key: figures[key] for key in self.IN_WORKER_STATS}
            outside = {key: figures[key] for key in figures if key not in inside}
            figures = {"worker_stats": {"data_parallel_rank": rank, **inside}, "kv_stats": outside}
        self.pub.send(msgspec.msgpack.encode(figures))

    def close(self):
        self.pub.close()
        self.context.term()


def model_list(root, names, adapters=()):
    """The body of /v1/models as vLLM 0.33 writes it: the names of the base model, then its adapters."""
    cards = [(name, root, None) for name in names] + [(name, f"/loras/{name}", names[0]) for name in adapters]
    return {"object": "list", "data": [
        {"id": name, "object": "model", "created": 1767225600, "owned_by": "vllm", "root": where, "parent": parent,
         "max_model_len": 4096 if parent is None else None,
         "permission": [{"id": "modelperm-1", "object": "model_permission", "allow_sampling": True, "group": None}]}
        for name, where, parent in cards]}
