"""Are queries of text and of messages answered as queries of their tokens, over HTTP and NATS, and is an engine asked for
these once? Is each failure of an engine named, and the query answered in time by what is known, an earlier text or
nothing? Is the text shown nowhere?"""

import http.server
import json
import threading
import time

import pytest

import engine
import marked
from conftest import ROUTER, worker
from programs import DEADLINE_S, wait_for

BLOCK = 16
TEXT = "the marked prompt, whose tokens are one for each character, as the stub makes them"
TOKENS = [ord(character) for character in TEXT]


class Tokenizer:
    """Answers POST /tokenize; `manner` says how."""

    def __init__(self):
        self.bodies, self.paths = [], []
        self.manner = self.good
        self.stopping = threading.Event()
        self.may_answer = threading.Event()
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                stub.paths.append(self.path)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.bodies.append(body)
                stub.manner(self, body)

            def do_GET(self):
                stub.paths.append(self.path)
                self.send_error(404)

            def handle(self):
                try:
                    super().handle()
                except OSError:
                    pass  # the aggregator has closed the connection

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.stopping.set()
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()

    @staticmethod
    def send(handler, status, body, **headers):
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def good(self, handler, body):
        text = body["prompt"] if "prompt" in body else "".join(one["content"] for one in body["messages"])
        tokens = [ord(character) for character in text]
        self.send(handler, 200, json.dumps({"count": len(tokens), "max_model_len": 4096, "tokens": tokens}).encode())

    # ---- Ways to misbehave ----

    def silent(self, _handler, _body):
        self.stopping.wait(DEADLINE_S)

    def slow(self, handler, body):
        self.may_answer.wait(DEADLINE_S)
        self.good(handler, body)

    def dies(self, handler, _body):
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"tokens\":[1,2")

    def wrong(self, handler, _body):
        self.send(handler, 200, b'{"count":3,"tokens":[1,2]}')

    def text(self, handler, _body):
        self.send(handler, 200, b"<html>hello</html>")

    def huge(self, handler, _body):
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n{\"tokens\":[1")
        while not self.stopping.is_set():
            handler.wfile.write(b",1" * 50000)

    def redirects(self, handler, _body):
        self.send(handler, 302, b"", Location="/elsewhere")

    def refuses(self, handler, _body):
        self.send(handler, 400, b'{"error":"the marked prompt"}')


@pytest.fixture
def stubs():
    started = []

    def start():
        started.append(Tokenizer())
        return started[-1]

    yield start
    for one in started:
        one.close()


def permitting(networks='"127.0.0.0/8"', deadline_ms=1000):
    return f"tokenize = {{ networks = ({networks}); deadline_ms = {deadline_ms}; }};"


def follows(aggregator, count):
    states = [row["state"] for row in aggregator.get("/streams")["streams"]]
    return len(states) == count and "DOWN" not in states


def start(scene, *urls, extra=None):
    """An aggregator that follows an engine for each URL; the first engine holds the blocks of the
    text."""
    marked.mark(TEXT, json.dumps(TOKENS))
    engines = [scene.engine() for _ in urls]
    aggregator = scene.aggregator(extra=permitting() if extra is None else extra, wait=False)
    scene.bridge(*(
        worker(one, at, more=f'tokenize = "{url}";' if url else "")
        for at, (one, url) in enumerate(zip(engines, urls), 1)), heartbeat_ms=100, wait=False)
    blocks = len(TOKENS) // BLOCK
    engines[0].publish(engine.batch(engine.stored(list(range(1, blocks + 1)), TOKENS[:blocks * BLOCK], BLOCK)))
    wait_for("the blocks are there, and nobody is DOWN", lambda: follows(aggregator, len(urls)) and ask(
        aggregator, token_ids=TOKENS)[1]["scores"].get("1", {}).get("0") == blocks * BLOCK)
    return aggregator


def ask(aggregator, path="/query", **query):
    status, text = aggregator.http("POST", path, {"model": "m", **query})
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def without(answer, *keys):
    return {key: value for key, value in answer.items() if key not in keys}


@pytest.mark.first
def test_a_text_is_answered_as_its_tokens_and_tokenized_once(scene, stubs):
    stub = stubs()
    aggregator, bus = start(scene, stub.url), scene.bus()
    wait_for("the aggregator is in the queue group", aggregator.is_ready)
    want = ask(aggregator, token_ids=TOKENS)[1]
    status, answer = ask(aggregator, text=TEXT)
    assert (status, without(answer, "prompt_tokens", "tokens")) == (200, want)
    assert (answer["prompt_tokens"], answer["tokens"]) == (len(TOKENS), "whole")
    assert stub.bodies == [{"model": "m", "prompt": TEXT}] and stub.paths == ["/tokenize"]

    def request(kind, **query):
        return json.loads(bus.request(f"{ROUTER}.{kind}", json.dumps(query).encode()))

    for query in ({"model": "m"}, {}):  # there is only one model
        assert without(request("kv_match", text=TEXT, **query), "prompt_tokens", "tokens") == request("kv_match", token_ids=TOKENS, **query)
    routed = request("kv_route", model="m", text=TEXT)
    assert (routed["worker_id"], routed["overlap_blocks"], routed["prompt_tokens"]) == (1, len(TOKENS) // BLOCK, len(TOKENS))
    status, routed = ask(aggregator, "/route", text=TEXT, dry_run=True)
    assert (status, routed["overlap_blocks"]) == (200, len(TOKENS) // BLOCK)
    assert len(stub.bodies) == 1, "the cache had them"
    assert aggregator.metric("kvb_tokenize_texts_total", source="cache") == 4
    assert aggregator.metric("kvb_tokenize_texts_total", source="engine") == 1

    chat = {"messages": [{"role": "user", "content": TEXT}], "tools": [{"type": "function"}], "add_generation_prompt": False}
    status, answer = ask(aggregator, **chat, max_tokens=5)
    assert (status, without(answer, "prompt_tokens", "tokens")) == (200, want)
    assert stub.bodies[1:] == [{"model": "m", **chat}]
    assert ask(aggregator, **{**chat, "tools": []})[0] == 200 and len(stub.bodies) == 3, "other tools are another text"

    # many at once
    stub.manner = stub.slow
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask(aggregator, text="another")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for("one of them is sent", lambda: len(stub.bodies) == 4)
    stub.may_answer.set()
    for thread in threads:
        thread.join()
    assert found == [200] * 8 and len(stub.bodies) == 4
    assert aggregator.metric("kvb_tokenize_waiting") == 0 and aggregator.metric("kvb_tokenize_cache_bytes") > 0

    # a bad query is refused as in other queries, and no engine is asked
    for query, status, words in (
        ({"text": TEXT, "token_ids": [1]}, 422, "text: only one of token_ids"),
        ({"text": TEXT, "messages": [{"role": "user"}]}, 422, "only one of"),
        ({"text": ""}, 422, "text: expected a string that is not empty"),
        ({"text": TEXT, "model": "other"}, 404, "other"),
    ):
        got, answer = ask(aggregator, **query)
        assert got == status and words in str(answer), answer
    got, answer = ask(aggregator, "/query_by_hash", text=TEXT)
    assert got == 422 and "missing field `block_hashes`" in answer
    assert len(stub.bodies) == 4


def is_unknown(answer, reason):
    return (answer["tokens"], answer["prompt_tokens"]) == ("none", 0) and answer["tokens_reason"].startswith(reason)


def test_each_failure_of_an_engine_is_named_and_ends_in_time(scene, stubs):
    stub = stubs()
    aggregator, bus = start(scene, stub.url, extra=permitting()), scene.bus()
    wait_for("the aggregator is in the queue group", aggregator.is_ready)
    for number, (manner, reason) in enumerate((
        (stub.silent, "timeout"), (stub.dies, "unavailable"), (stub.wrong, "invalid"), (stub.text, "invalid"),
        (stub.redirects, "refused"), (stub.refuses, "refused"), (stub.slow, "timeout"),
    )):
        stub.manner = manner
        query = {"text": f"{TEXT} {number}"}
        before = aggregator.metric("kvb_tokenize_failures_total", reason=reason)
        status, answer = ask(aggregator, "/route", **query)
        assert status == 200 and answer["worker_id"] == 1, (manner, answer)
        assert is_unknown(answer, f"tokenize_{reason}: "), (manner, answer)
        if manner == stub.slow:
            stub.may_answer.set()  # after the deadline, and while an answer is still taken
        else:
            over_nats = json.loads(bus.request(f"{ROUTER}.kv_match", json.dumps(query).encode()))
            assert is_unknown(over_nats, "tokenize_"), over_nats
        assert aggregator.metric("kvb_tokenize_failures_total", reason=reason) > before
    assert set(stub.paths) == {"/tokenize"}, "no redirect is followed"
    wait_for("the slow answer is in the cache", lambda: ask(aggregator, text=f"{TEXT} 6")[1]["tokens"] == "whole")
    stub.manner = stub.huge
    status, answer = ask(aggregator, text="huge")
    assert status == 200 and is_unknown(answer, ("tokenize_invalid", "tokenize_timeout")), answer
    assert answer["scores"] == {}
    stub.manner = stub.good
    assert ask(aggregator, text=TEXT)[1]["tokens"] == "whole"
    aggregator.wait_until_it_says("an engine gave no tokens of a text")


class Conversation:
    """A chat whose turns grow: a long first message, then an answer and a short question a turn."""

    def __init__(self, name):
        self.messages = [{"role": "system", "content": f"{name}: {TEXT} " * 8}]

    def turn(self, number, words=3):
        if number > 0:
            self.messages.append({"role": "assistant", "content": f"answer {number}"})
        self.messages.append({"role": "user", "content": f"question {number} " * words})
        return {"messages": list(self.messages)}


@pytest.mark.first
def test_a_growing_chat_gets_a_worker_whatever_the_engine_does(scene, stubs):
    stub = stubs()
    aggregator = start(scene, stub.url, extra=permitting(deadline_ms=50))
    chat = Conversation("slow")
    stub.manner = stub.slow
    for number in range(5):
        status, answer = ask(aggregator, "/route", **chat.turn(number))
        assert status == 200 and answer["worker_id"] == 1, answer
        assert is_unknown(answer, "tokenize_timeout: "), answer
    asked = len(stub.bodies)
    assert asked <= 5, "once for each text"
    # The engine answers at last: the next turns begin with what it said, and nobody waits for it.
    stub.may_answer.set()
    wait_for("the late answers are kept",
             lambda: ask(aggregator, messages=chat.messages)[1]["tokens"] == "whole")
    stub.may_answer.clear()
    known = sum(len(one["content"]) for one in chat.messages)
    answer = ask(aggregator, "/route", **chat.turn(5))[1]
    assert answer["tokens"] == "prefix" and answer["tokens_reason"].startswith("tokenize_not_asked: "), answer
    assert answer["prompt_tokens"] == known - BLOCK, "all but the last block"
    assert ask(aggregator, **chat.turn(6))[1]["prompt_tokens"] == known - BLOCK
    # A turn that has grown much is asked for, and not waited for: any beginning is better than nothing.
    answer = ask(aggregator, "/route", **chat.turn(7, words=200))[1]
    assert (answer["tokens"], answer["prompt_tokens"]) == ("prefix", known - BLOCK), answer
    assert answer["tokens_reason"].startswith("tokenize_timeout: "), answer
    # The tokenizer is gone.
    stub.manner = stub.dies
    stub.close()
    answer = ask(aggregator, "/route", **chat.turn(8))[1]
    assert answer["worker_id"] == 1 and answer["tokens"] in ("prefix", "whole"), answer
    status, answer = ask(aggregator, "/route", **Conversation("another").turn(0))
    assert status == 200 and answer["worker_id"] == 1 and answer["tokens"] == "none", answer
    assert aggregator.metric("kvb_tokenize_texts_total", source="prefix") >= 4
    assert aggregator.metric("kvb_tokenize_texts_total", source="none") >= 6


@pytest.mark.first
def test_a_template_that_rewrites_earlier_turns_is_found_out(scene, stubs):
    stub = stubs()
    aggregator = start(scene, stub.url)

    def rewrites(handler, body):
        """Each turn changes what stands first."""
        tokens = [len(body["messages"])] + [ord(c) for one in body["messages"] for c in one["content"]]
        stub.send(handler, 200, json.dumps({"tokens": tokens}).encode())

    # A chat that grows little is only found out by a sample, one in sixteen.
    stub.manner, chat = rewrites, Conversation("rewritten")
    assert ask(aggregator, **chat.turn(0))[1]["tokens"] == "whole"

    def is_found_out():
        ask(aggregator, messages=[*chat.messages, {"role": "user", "content": f"question {time.monotonic_ns()}"}])
        return aggregator.metric("kvb_tokenize_rewriting_models") == 1

    wait_for("a sample shows it", is_found_out)
    assert aggregator.metric("kvb_tokenize_beginnings_total", result="rewritten") >= 1
    wait_for("it is logged", lambda: "the model's template rewrites earlier turns of a chat" in aggregator.text())
    assert ask(aggregator, **chat.turn(1))[1]["tokens"] == "whole", "each turn is asked for"
    stub.manner = stub.refuses
    answer = ask(aggregator, "/route", **chat.turn(2))[1]
    assert is_unknown(answer, "tokenize_refused: "), answer
    assert "rewrites earlier turns" in answer["tokens_reason"], "and the answer says why nothing is known"


def test_texts_that_wait_hold_no_thread_of_http(scene, stubs):
    stub, waiting = stubs(), 12  # three for each thread
    aggregator = start(scene, stub.url)
    stub.manner = stub.slow
    found = []

    def ask_text(number):
        found.append(ask(aggregator, text=f"{TEXT} {number}")[1]["tokens"])

    def all_wait():
        """Of one round of texts: their deadline ends it."""
        threads = [threading.Thread(target=ask_text, args=[number]) for number in range(waiting)]
        for thread in threads:
            thread.start()
        while len(found) < waiting:
            if aggregator.metric("kvb_tokenize_waiting") == waiting and aggregator.http("GET", "/livez")[0] == 200 and not found:
                stub.may_answer.set()
                break
        for thread in threads:
            thread.join()
        is_shown = stub.may_answer.is_set()
        statuses, found[:] = set(found), []
        return is_shown and statuses == {"whole"}

    wait_for("/metrics and /livez are answered while all texts wait", all_wait)


def test_only_permitted_engines_are_requested(scene, stubs):
    stub = stubs()
    aggregator = start(scene, stub.url, extra="")
    strict = scene.aggregator(name="strict", extra=permitting('"10.0.0.0/8"'), wait=False)
    none = scene.aggregator(name="metadata", extra=permitting('"0.0.0.0/0"'), wait=False)
    for daemon in (strict, none):
        wait_for("the aggregator follows the engine", lambda: follows(daemon, 1))
    status, answer = ask(aggregator, text=TEXT)
    assert status == 200 and is_unknown(answer, "tokenize_off: ")
    status, answer = ask(strict, text=TEXT)
    assert status == 200 and is_unknown(answer, "tokenize_unavailable: ")
    strict.wait_until_it_says("the address 127.0.0.1 is not allowed: it is not in the list of networks")
    assert stub.paths == []
    assert ask(none, text=TEXT)[0] == 200
    other = scene.engine()
    scene.bridge(worker(other, 9, model="cloud", more='tokenize = "http://169.254.169.254/latest";'), worker(
        scene.engine(), 10, model="plain"), name="other", component="Other", heartbeat_ms=100, wait=False)
    wait_for("the aggregator follows all engines", lambda: follows(none, 3))
    status, answer = ask(none, text=TEXT, model="cloud")
    assert status == 200 and is_unknown(answer, "tokenize_unavailable: ")
    none.wait_until_it_says("the address 169.254.169.254 is not allowed")
    status, answer = ask(none, text=TEXT, model="plain")
    assert status == 200 and is_unknown(answer, "tokenize_no_engine: ")
