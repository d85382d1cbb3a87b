"""A whole gateway: clients, an Envoy, kvaggregator as its endpoint picker, and engines that look at what they get."""

import concurrent.futures
import dataclasses
import hashlib
import http.client
import json
import socket
import subprocess

import engine
import envoys
import programs
from conftest import worker
from openai_engine import SHA, OpenAiEngine
from programs import wait_for

BLOCK = 16
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    def engine(self):
        return self.headers.get("x-engine")

    def json(self):
        return json.loads(self.body)


def chat(*texts, **more):
    roles = ["user", "assistant"]
    return {"model": "m", "messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)], **more}


def as_bytes(body):
    return body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


def head_of(body, headers=None):
    return {"Content-Type": "application/json", SHA: hashlib.sha256(body).hexdigest(), **(headers or {})}


def pieces(body, size=8192):
    for at in range(0, len(body), size):
        yield body[at:at + size]


def send(port, body=None, path=CHAT, method="POST", headers=None, chunked=False):
    """One request over HTTP/1.1. Raises OSError or HTTPException when the connection breaks off."""
    body = as_bytes(body)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=programs.DEADLINE_S)
    try:
        connection.request(method, path, body=pieces(body) if chunked else body if body or method == "POST" else None,
                           headers=head_of(body, headers), encode_chunked=chunked)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def send_by_curl(folder, port, body, *options):
    """For HTTP/2, and for what http.client cannot do."""
    body = as_bytes(body)
    file = folder / "body"
    file.write_bytes(body)
    words = [word for name, value in head_of(body).items() for word in ("-H", f"{name}: {value}")]
    done = subprocess.run(
        ["curl", "-sS", "-i", "-X", "POST", "--max-time", str(int(programs.DEADLINE_S)), "--data-binary", f"@{file}",
         *words, *options, f"http://127.0.0.1:{port}{CHAT}"], capture_output=True, check=True)
    head, _, rest = done.stdout.partition(b"\r\n\r\n")
    while head.split()[1] == b"100":
        head, _, rest = rest.partition(b"\r\n\r\n")
    lines = head.decode().splitlines()
    return Answer(int(lines[0].split()[1]), {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}, rest)


class Stream:
    """A request whose answer is read event by event, or whose body is sent part by part."""

    def __init__(self, port, body, sent=None):
        """sent: the bytes of the body that are sent for now; the rest by send_more()."""
        body = as_bytes(body)
        self.rest = body[len(body) if sent is None else sent:]
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=programs.DEADLINE_S)
        head = "".join(f"{name}: {value}\r\n" for name, value in head_of(body).items())
        self.socket.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
                            + body[:len(body) - len(self.rest)])
        self.answer = None

    def send_more(self, count=None):
        """So many bytes more of the body, or the rest."""
        part = self.rest[:count]
        self.socket.sendall(part)
        self.rest = self.rest[len(part):]

    def begin(self):
        if self.answer is None:
            self.answer = http.client.HTTPResponse(self.socket)
            self.answer.begin()
            assert self.answer.status == 200, (self.answer.status, self.answer.read())
        return self.answer

    def events(self):
        for line in self.begin():
            if line.startswith(b"data: "):
                yield line[6:].strip().decode()

    def close(self):
        """Goes away, whatever there still is to read."""
        if self.answer:
            self.answer.close()
        self.socket.close()


class World:
    """An Envoy with these listeners (name -> options of envoys.listener(), or a function of the engines' endpoints that
    returns it), an aggregator, a bridge, and engines."""

    def __init__(self, scene, listeners, engines=2, gateway="", port=None, tls=None, clusters=()):
        """gateway: further keys of kvaggregator's list `gateway`; port: the picker's; tls: of Envoy's cluster "picker";
        clusters: further ones."""
        self.scene, self.gateway = scene, gateway
        self.engines = [scene.engine_of(OpenAiEngine, name=str(number)) for number in range(1, engines + 1)]
        self.events = [scene.engine() for _ in self.engines]
        self.picker_port = port or programs.free_port()
        self.bridge = scene.bridge(*(
            worker(events, number, more=f'address = "{one.url}"; tokenize = "{one.url}";')
            for number, (events, one) in enumerate(zip(self.events, self.engines), 1)), heartbeat_ms=200)
        self.start_picker()
        endpoints = [one.endpoint for one in self.engines]
        self.envoy = envoys.start(scene, listeners(endpoints) if callable(listeners) else listeners, [
            envoys.picker_cluster("picker", self.picker_port, tls),
            envoys.picker_cluster("checked", self.picker_port, health=True),
            envoys.override_host("pool", endpoints), envoys.original_dst("original_dst"), *clusters])

    def start_picker(self, wait=True):
        self.aggregator = self.scene.aggregator(
            name=f"kvaggregator{len(self.scene.started)}", wait=False, extra=
            f'gateway = ( {{ listen = "127.0.0.1:{self.picker_port}"; {self.gateway} }} );\n'
            'tokenize = { networks = ("127.0.0.0/8"); };\n')
        if wait:
            wait_for("the picker knows the engines", lambda: self.aggregator.metric("kvb_gateway_endpoints") == len(self.engines))

    def port(self, name):
        return self.envoy.ports[name]

    def send(self, name, body=None, **options):
        return send(self.port(name), body, **options)

    def publish(self, number, tokens):
        """Engine `number` (from 1) stores the full blocks of these tokens; waits until the aggregator lists them."""
        blocks = len(tokens) // BLOCK
        hashes = [hash((number, *tokens[:(at + 1) * BLOCK])) & (1 << 62) - 1 for at in range(blocks)]
        self.events[number - 1].publish(engine.batch(engine.stored(hashes, tokens[:blocks * BLOCK], BLOCK)))
        wait_for("the blocks are listed", lambda: json.loads(self.aggregator.http(
            "POST", "/query", {"model": "m", "token_ids": tokens})[1])["scores"].get(str(number), {}).get("0") == blocks * BLOCK)

    def metric(self, name, **labels):
        return self.aggregator.metric("kvb_gateway_" + name, **labels)

    def seen(self):
        return [one for each in self.engines for one in each.seen]

    def by(self, way):
        """Picks that were made in this way: tokens, text, prefix, load, none."""
        return self.metric("requests_total", by=way)

    def in_flight(self):
        return self.aggregator.metric("kvb_requests_in_flight")

    def wait_until_idle(self):
        wait_for("no stream is open", lambda: self.metric("streams") == 0)
        wait_for("nothing is held", lambda: self.metric("held_bytes") == 0)

    def expect_whole_bodies(self):
        """What must hold after everything: no engine got a request with another body than its client's."""
        for one in self.engines:
            assert one.broken() == [], (one.name, one.broken())


def in_parallel(calls, workers=32):
    """The results of the calls, or their exceptions."""
    def outcome(call):
        try:
            return call()
        except (OSError, http.client.HTTPException) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(outcome, calls))
