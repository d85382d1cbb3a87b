"""Requests through all doors at once (HTTP, NATS, gRPC, and of text) while engines change what they hold and aggregators are
killed, stopped and added: is each one answered, with what the fleet holds?

KVB_DOOR_REQUESTS is how many there are; 1000000 is the long form.

What a client may see, and repeats:

    text         an answer with "tokens":"none"
    HTTP, text   503; and a connection that ends without an answer, if that aggregator was told to end
    NATS         nobody answers (no responders); {"error":"this aggregator is stopping..."} and those below; silence, if the
                 request was on its way when an aggregator was killed
    gRPC         UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED

Anything else is wrong. So is an answer that the fleet's lists cannot explain: of each worker it must say how many blocks it
held at some time between the last change that all aggregators had when the request was first sent, and the newest change
when the answer came. Lost is what was repeated PATIENCE_S long without an answer."""

import collections
import json
import os
import random
import re
import select
import signal
import socket
import string
import threading
import time
import urllib.request

import grpc
import pytest

import engine
import programs
from conftest import ROUTER, worker
from kv_indexer import Request, Response, Router, chain
from programs import wait_for
from test_tokenize import Tokenizer

REQUESTS = int(os.environ.get("KVB_DOOR_REQUESTS", "3000"))
ANSWERS_A_TURN = max(300, REQUESTS // 40)  # between two changes of the group
PATIENCE_S = programs.DEADLINE_S
BLOCK, BLOCKS, SHARED = 16, 12, 2  # all workers hold the first SHARED blocks
WORKERS = (1, 2, 3, 4)
LINES, CALLERS, TEXTERS, ON_NATS = 3, 2, 1, 24  # connections; requests under way over NATS
SILENT_S = 2 * programs.PATIENCE  # then a request over NATS is sent once more
FROZEN = 6  # requests that an aggregator must have when it is killed

REFUSALS = re.compile(r"busy|out of memory; try again|no answer within|this aggregator is stopping|the lists are not up to date"
                      r"|too many connections|no memory left|tokenize_(timeout|busy|unavailable)")
STATUSES = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}


# ---- What the fleet holds ----


class Fleet:
    """Each worker holds the first blocks of a prompt of its own; all prompts begin alike."""

    def __init__(self, seed=1):
        self.random = random.Random(seed)
        common = self.letters(SHARED * BLOCK)
        self.texts = {one: common + self.letters((BLOCKS - SHARED) * BLOCK) for one in WORKERS}
        self.tokens = {one: [ord(letter) for letter in text] for one, text in self.texts.items()}
        self.hashes = {one: chain(tokens, BLOCK) for one, tokens in self.tokens.items()}
        self.engines = {}
        # per worker: [blocks, when it was published, when all aggregators had it]
        self.versions = {one: [[0, 0.0, 0.0]] for one in WORKERS}

    def letters(self, count):
        return "".join(self.random.choices(string.ascii_letters, k=count))

    def held(self, one):
        return self.versions[one][-1][0]

    def change(self, one, blocks):
        """The worker holds so many blocks from now on."""
        before = self.held(one)
        hashes = self.hashes[one]
        event = engine.removed(*reversed(hashes[blocks:before])) if blocks < before else engine.stored(
            hashes[before:blocks], self.tokens[one][before * BLOCK:blocks * BLOCK], BLOCK,
            parent=hashes[before - 1] if before else None)
        self.versions[one].append([blocks, time.monotonic(), None])
        self.engines[one].publish(engine.batch(event))

    def settle(self, one):
        self.versions[one][-1][2] = time.monotonic()

    def possible(self, one, since):
        """The numbers of blocks of the worker that an answer to a request sent then may say now."""
        found, now = set(), time.monotonic()
        for blocks, published, settled in reversed(self.versions[one][:]):
            if published <= now:
                found.add(blocks)
                if settled is not None and settled <= since:
                    break
        return found

    def judge(self, question, said, doubted=()):
        """What is wrong with an answer, {worker: blocks}; None: nothing. doubted: workers whose lists it does not call EXACT."""
        for one in WORKERS:
            most = question.blocks if one == question.holder else min(question.blocks, SHARED)
            possible = {min(most, blocks) for blocks in self.possible(one, question.sent)}
            if said.get(one, 0) not in possible and one not in doubted:
                return f"of worker {one} {said.get(one, 0)} blocks, expected {sorted(possible)}"
        return f"unknown workers: {said}" if set(said) - set(WORKERS) else None


class Question:
    """The first blocks of a worker's prompt."""

    def __init__(self, fleet, rng):
        self.fleet, self.holder, self.blocks = fleet, rng.choice(WORKERS), rng.randint(1, BLOCKS)
        self.sent, self.times, self.draw = time.monotonic(), 0, rng.random()

    def tokens(self):
        return {"model": "m", "token_ids": self.fleet.tokens[self.holder][:self.blocks * BLOCK]}

    def text(self):
        """Sometimes one that no aggregator has tokens of yet."""
        tail = f"{self.draw:.9f}"[2:] if self.draw < 0.2 else ""
        return {"model": "m", "text": self.fleet.texts[self.holder][:self.blocks * BLOCK] + tail}

    def is_lost(self):
        return time.monotonic() > self.sent + PATIENCE_S


# ---- What answers say ----


def said_by_query(answer):
    said = {int(one): tokens // BLOCK for one, ranks in answer["scores"].items() for tokens in ranks.values()}
    return said, {int(one) for one in answer.get("states", {})}


def said_by_match(answer):
    return ({row["worker_id"]: row["blocks"] for row in answer["workers"]},
            {row["worker_id"] for row in answer["workers"] if row["state"] != "EXACT"})


def said_by_route(answer):
    said = {row["worker_id"]: row["overlap_blocks"] for row in answer["scores"]}
    assert answer["overlap_blocks"] == said[answer["worker_id"]], answer
    return said, ()


def why_unknown(answer):
    """An answer about a text whose tokens no engine gave in time is about nothing. None: all are known."""
    return answer["tokens_reason"].partition(":")[0] if answer.get("tokens", "whole") != "whole" else None


# ---- Who asks ----


class Wrong(Exception):
    """An answer, or the lack of one, that no client has to expect."""


class Again(Exception):
    """The client has to repeat its request."""


class Group:
    """The aggregators that clients ask: those that are ready, until they have ended."""

    def __init__(self, fleet):
        self.fleet, self.members, self.ending = fleet, [], set()
        self.kills = []  # [from, to]
        self.lock = threading.Lock()
        self.answers, self.again = collections.Counter(), collections.Counter()
        self.wrong, self.lost, self.is_over = [], [], threading.Event()

    def any(self, rng):
        return rng.choice(self.members)

    def total(self):
        return sum(self.answers.values())

    def take(self, door, question, said, doubted=()):
        trouble = self.fleet.judge(question, said, doubted)
        with self.lock:
            self.answers[door] += 1
            if trouble:
                self.wrong.append((door, trouble, question.holder, question.blocks, question.times))

    def note_again(self, door, why):
        with self.lock:
            self.again[door, why] += 1

    def ask_until_over(self, door, rng, attempt):
        """A client that asks one question after the other; attempt(question) returns what the answer says."""
        while not self.is_over.is_set():
            question = Question(self.fleet, rng)
            while True:
                question.times += 1
                try:
                    self.take(door, question, *attempt(question))
                    break
                except Again as why:
                    self.note_again(door, str(why))
                    self.is_over.wait(0.01)  # a client that is refused pauses
                except Exception as why:  # what the client did not expect, and mistakes of this file
                    self.wrong.append((door, repr(why)))
                    break
                if question.is_lost():
                    self.lost.append((door, question.times))
                    break


class Line:
    """A connection of HTTP to one of them, and then to another."""

    REQUESTS = 50  # over one connection

    def __init__(self, group, rng):
        self.group, self.rng, self.socket, self.member, self.left = group, rng, None, None, 0

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def post(self, path, body):
        """(status, JSON)"""
        try:
            if not self.left:
                self.close()
            if not self.socket:
                self.member, self.left = self.group.any(self.rng), self.REQUESTS
                self.socket = socket.create_connection(("127.0.0.1", self.member.port), PATIENCE_S)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.left -= 1
            body = json.dumps(body).encode()
            self.socket.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                                % (path.encode(), len(body), body))
            return self.read_answer()
        except OSError as why:
            self.close()
            if self.member not in self.group.ending:
                raise Wrong(f"{self.member.name} lives, and {why!r}") from None
            raise Again("connection") from None

    def read_answer(self):
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.receive()
        head, _, body = data.partition(b"\r\n\r\n")
        while len(body) < int(re.search(rb"(?i)content-length: *(\d+)", head)[1]):
            body += self.receive()
        if b"onnection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), json.loads(body)

    def receive(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("closed without an answer")
        return data


def ask_over_http(group, number, door="HTTP", query=Question.tokens):
    rng = random.Random(number)
    line = Line(group, rng)

    def attempt(question):
        path = rng.choice(("/query", "/route"))
        body = query(question)
        if path == "/route":
            body["dry_run"] = question.draw < 0.5
        status, answer = line.post(path, body)
        if status == 503 and REFUSALS.match(answer["error"]):
            raise Again(answer["error"])
        if status != 200:
            raise Wrong(f"{status} {answer}")
        if why_unknown(answer):
            raise Again(why_unknown(answer)) if REFUSALS.match(why_unknown(answer)) else Wrong(f"{answer}")
        return said_by_query(answer) if path == "/query" else said_by_route(answer)

    group.ask_until_over(door, rng, attempt)
    line.close()


def ask_over_grpc(group, number):
    rng, routers = random.Random(number), {}

    def attempt(question):
        member = group.any(rng)
        if member not in routers:
            routers[member] = Router(member.grpc_port, timeout=PATIENCE_S)
        body = Request(hashes=group.fleet.hashes[question.holder][:question.blocks]).SerializeToString()
        try:
            answer = Response.FromString(routers[member].call(body))
        except grpc.RpcError as error:
            if error.code().name not in STATUSES:
                raise Wrong(f"{member.name}: {error!r}") from None
            raise Again(error.code().name) from None
        said = {int(row.worker_id.partition("/")[0]): row.matched_prefix_blocks for row in answer.matches}
        assert all(row.worker_address == address_of(int(row.worker_id.partition("/")[0])) for row in answer.matches), answer
        return said, ()

    group.ask_until_over("gRPC", rng, attempt)
    for router in routers.values():
        router.close()


class OverNats:
    """ON_NATS requests under way at a time, by the protocol itself. Each attempt has a reply subject of its own, so that one
    that nobody has answered is known."""

    def __init__(self, group, port, number):
        self.group, self.rng = group, random.Random(number)
        self.attempts = 0
        self.open = {}  # attempt: (question, kind, when)
        self.silent = {}  # attempts that were repeated: (sent, given up)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.r.* 1\r\n')
        self.buffer = b""

    def run(self):
        while not self.group.is_over.is_set() or self.open:
            data = b""
            while len(self.open) < ON_NATS and not self.group.is_over.is_set():
                data += self.ask(Question(self.group.fleet, self.rng))
            self.socket.sendall(data + self.repeat_silent())
            self.read(0.05)

    def close(self):
        self.socket.close()

    def ask(self, question):
        kind = "kv_match" if question.draw < 0.5 else "kv_route"
        query = question.text() if question.blocks == 1 else question.tokens()
        body = json.dumps(query).encode()
        self.attempts += 1
        question.times += 1
        self.open[self.attempts] = question, kind, time.monotonic()
        return b"PUB %s.%s _INBOX.r.%d %d\r\n%s\r\n" % (ROUTER.encode(), kind.encode(), self.attempts, len(body), body)

    def ask_again(self, attempt, why):
        question, _, _ = self.open.pop(attempt)
        self.group.note_again("NATS", why)
        if question.is_lost():
            self.group.lost.append(("NATS", question.times))
            return b""
        return self.ask(question)

    def repeat_silent(self):
        now = time.monotonic()
        late = [(attempt, sent) for attempt, (_, _, sent) in self.open.items() if sent < now - SILENT_S]
        self.silent.update({attempt: (sent, now) for attempt, sent in late})
        return b"".join(self.ask_again(attempt, "silence") for attempt, _ in late)

    def read(self, seconds):
        if not select.select([self.socket], [], [], seconds)[0]:
            return
        data = self.socket.recv(1 << 18)
        assert data, "nats-server closed the connection"
        self.buffer += data
        at = 0
        while (end := self.buffer.find(b"\r\n", at)) >= 0:
            words = self.buffer[at:end].split()
            next_at = end + 2
            if words[0] in (b"MSG", b"HMSG"):
                next_at += int(words[-1]) + 2
                if len(self.buffer) < next_at:
                    break
                self.take(int(words[1].rpartition(b".")[2]), words[0] == b"HMSG", self.buffer[end + 2:next_at - 2])
            elif words[0] == b"PING":
                self.socket.sendall(b"PONG\r\n")
            at = next_at
        self.buffer = self.buffer[at:]

    def take(self, attempt, is_nobody, payload):
        self.silent.pop(attempt, None)  # it was slow
        if attempt not in self.open:
            return  # and its question is answered
        question, kind, _ = self.open[attempt]
        if is_nobody:
            self.socket.sendall(self.ask_again(attempt, "no responders"))
            return
        answer = json.loads(payload)
        refusal = answer.get("error") or why_unknown(answer)
        if refusal and REFUSALS.match(refusal):
            self.socket.sendall(self.ask_again(attempt, refusal))
            return
        del self.open[attempt]
        try:
            self.group.take("NATS", question, *(said_by_match(answer) if kind == "kv_match" else said_by_route(answer)))
        except (KeyError, AssertionError):
            self.group.wrong.append(("NATS", answer))

    def is_explained(self, attempt):
        """It was on its way when an aggregator was killed."""
        sent, given_up = self.silent[attempt]
        return any(sent <= to and given_up > since for since, to in self.group.kills)

    def unexplained(self):
        return [one for one in list(self.silent) if not self.is_explained(one)]

    def stuck(self, seconds):
        now = time.monotonic()
        return sum(sent < now - seconds for _, _, sent in list(self.open.values()))


# ---- The scene ----


def address_of(one):
    return f"http://10.0.0.{one}:30000"


class World:
    def __init__(self, scene, stub):
        self.scene, self.fleet, self.started, self.monitor = scene, Fleet(), 0, programs.free_port()
        config = scene.folder / "nats.conf"
        config.write_text(f'http: "127.0.0.1:{self.monitor}"\n')
        scene.start_nats(config=config)
        self.group = Group(self.fleet)
        self.fleet.engines = {one: scene.engine() for one in WORKERS}
        scene.bridge(*(
            worker(self.fleet.engines[one], one, block_size=BLOCK,
                   more=f'address = "{address_of(one)}"; tokenize = "{stub.url}";') for one in WORKERS),
            hashes="engine", heartbeat_ms=200, formats=["protobuf"])
        for one in WORKERS:
            self.fleet.change(one, BLOCKS // 2)
        self.add(), self.add()
        for one in WORKERS:
            self.settle(one)

    def add(self):
        self.started += 1
        port = programs.free_port()
        new = self.scene.aggregator(
            f"kvaggregator{self.started}", block_size=BLOCK,
            extra=f'grpc = {{ listen = "127.0.0.1:{port}"; }};\n'
                  'tokenize = { networks = ("127.0.0.0/8"); deadline_ms = 1000; };\n')
        new.grpc_port = port
        self.group.members.append(new)

    def kill(self):
        """When it has requests: it is frozen until some are stuck."""
        victim = self.group.members[0]
        kill = [time.monotonic(), float("inf")]
        self.group.kills.append(kill)
        self.group.ending.add(victim)
        victim.process.send_signal(signal.SIGSTOP)
        wait_for("the frozen aggregator has requests", lambda: self.nats.stuck(0.2) >= FROZEN)
        victim.kill()
        self.group.members.remove(victim)
        # until then nats-server may give it requests
        wait_for("nats-server has noticed it", lambda: self.connected() == len(self.group.members))
        kill[1] = time.monotonic()

    def connected(self):
        """The aggregators that nats-server has a connection to."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/connz", timeout=programs.DEADLINE_S) as page:
            return sum(one.get("name", "").startswith("kvaggregator") for one in json.load(page)["connections"])

    def stop(self):
        victim = self.group.members[0]
        self.group.ending.add(victim)
        assert victim.stop() == 0
        self.group.members.remove(victim)

    def settle(self, one):
        body = {"model": "m", "token_ids": self.fleet.tokens[one]}
        for member in self.group.members:
            wait_for(f"{member.name} has the change", lambda member=member: said_by_query(
                json.loads(member.http("POST", "/query", body)[1]))[0].get(one) == self.fleet.held(one))
        self.fleet.settle(one)

    def change_lists(self, count):
        for _ in range(count):
            one = self.fleet.random.choice(WORKERS)
            self.fleet.change(one, self.fleet.random.choice([
                blocks for blocks in range(SHARED, BLOCKS + 1) if blocks != self.fleet.held(one)]))
            self.settle(one)

    def run(self):
        group = self.group
        self.nats = OverNats(group, self.scene.nats_port, 1)
        clients = [threading.Thread(target=self.nats.run)]
        clients += [threading.Thread(target=ask_over_http, args=(group, 100 + n)) for n in range(LINES)]
        clients += [threading.Thread(target=ask_over_grpc, args=(group, 200 + n)) for n in range(CALLERS)]
        clients += [threading.Thread(target=ask_over_http, args=(group, 300 + n, "text", Question.text)) for n in range(TEXTERS)]
        turns = collections.Counter()
        for client in clients:
            client.start()
        try:
            while group.total() < REQUESTS or len(turns) < 3:
                action = (self.kill, self.add, self.stop, self.add)[sum(turns.values()) % 4]
                before = group.answers.copy()
                action()
                turns[action.__name__] += 1
                self.change_lists(3)
                wait_for("answers at all doors", lambda before=before: sum((group.answers - before).values()) >= ANSWERS_A_TURN
                         and len(group.answers - before) == 4, 4 * PATIENCE_S)
        finally:
            group.is_over.set()
            for client in clients:
                client.join()
        return turns


@pytest.fixture
def world(scene):
    stub = Tokenizer()
    yield World(scene, stub)
    stub.close()


@pytest.mark.first
@pytest.mark.sanitize
@pytest.mark.no_nats
def test_each_request_is_answered_with_what_the_fleet_holds(world, record_property):
    began = time.monotonic()
    turns = world.run()
    group = world.group
    wait_for("whoever was asked has answered, or was killed", lambda: (world.nats.read(0.01), not world.nats.unexplained())[1])
    world.nats.close()
    again = ", ".join(f"{door} {why}: {count}" for (door, why), count in sorted(group.again.items()))
    record_property("figures", f"{group.total()} requests in {time.monotonic() - began:.0f} s: {dict(group.answers)}; "
                    f"{dict(turns)}; {sum(map(len, world.fleet.versions.values()))} lists; repeated {again or 'none'}; "
                    f"{len(world.nats.silent)} were at a killed aggregator; {len(group.wrong)} wrong, {len(group.lost)} lost")
    assert not group.wrong, group.wrong[:3]
    assert not group.lost, group.lost[:3]
