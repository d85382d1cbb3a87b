#!/usr/bin/env python3
"""A reverse proxy for engines with OpenAI's API: each completion is sent to the worker that
kvaggregator chooses for its prompt.

    client --POST /v1/completions--> proxy --POST /route--------> kvaggregator
                                       |  <-- address, request_id
                                       +--- the request --------> that worker, unchanged
                                       +--- POST /first_token,
                                            POST /finished -----> kvaggregator

Each worker needs its `address` in kvbridge's configuration ("http://10.0.0.7:8000").  A prompt
of token ids is routed as it is.  A text, and the messages of a chat, are converted to token ids
by the first worker that answers POST /tokenize (vLLM, SGLang).  If none answers in time, the
request is routed by load alone, and the answer has the header x-kvbridge-tokens: none.

If the engine's answer has the number of prompt tokens that came from the cache (vLLM:
--enable-prompt-tokens-details, SGLang: --enable-cache-report; in streams only with
stream_options.include_usage), it is reported with the end of the request, and kvaggregator
compares it with what the lists promised.

If a worker cannot be reached, the request goes to the next best one, as long as nothing was sent
to the client.  If a worker has several ranks, the header X-data-parallel-rank has the chosen one
(vLLM).  This is an example, without TLS and rate limits.

    pip install aiohttp
    etc/examples/proxy.py --listen 127.0.0.1:8080 --aggregator http://127.0.0.1:9402
"""

import argparse
import asyncio
import json
import logging
import pathlib
import re
import time

import aiohttp
from aiohttp import web

TOKENIZE_S = 0.05  # a longer wait costs more than a cached prefix gains
ROUTE_S = 2.0
CONNECT_S = 2.0
WORKERS_S = 1.0  # how long a list of workers is used
MAX_BODY_BYTES = 64 << 20
MAX_TRIES = 3
CACHED_TOKENS = re.compile(rb'"cached_tokens":\s*(\d+)')  # in `usage`, at the end of an answer
USAGE_BYTES = 4096
DRAIN_S = 20.0  # how long running completions may take after SIGTERM
RANK = "x-data-parallel-rank"  # vLLM computes the request on this rank
HOP_BY_HOP = {
    "connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te",
    "trailer", "transfer-encoding", "upgrade",
}

log = logging.getLogger("proxy")


class Refusal(Exception):
    """The error that the client gets in place of a completion."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status

    def response(self):
        return web.json_response({"error": {"message": str(self), "type": "kvbridge_proxy"}}, status=self.status)


class Aggregator:
    """The three requests of a router to kvaggregator."""

    def __init__(self, session, url, token):
        self.session, self.url = session, url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.known, self.known_until = [], 0.0
        self.renewal = None

    async def _ask(self, method, path, body=None):
        timeout = aiohttp.ClientTimeout(total=ROUTE_S)
        try:
            async with self.session.request(
                    method, self.url + path, json=body, headers=self.headers, timeout=timeout) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            log.warning("kvaggregator does not answer %s: %s", path, error or "too late")
            raise Refusal(503, "kvaggregator does not answer") from error

    async def route(self, model, tokens):
        """The workers as (address, rank), the best first, and the request's id.  rank is None for a worker with one rank."""
        body = {"token_ids": tokens} | ({"model": model} if model else {})
        if not tokens:
            body["policy"] = "least_requests"
        status, text = await self._ask("POST", "/route", body)
        if status != 200:
            raise Refusal(404 if status == 404 else 503, f"kvaggregator routes to no worker: {text}")
        answer = json.loads(text)
        ranks = {}  # by address, the best first, like the addresses
        for row in [answer, *answer["scores"]]:
            if row.get("address"):
                ranks.setdefault(row["address"], {})[row["dp_rank"]] = None
        if not ranks:
            raise Refusal(503, "no worker has an address: set `address` of each in kvbridge.cfg")
        workers = [(address, next(iter(of)) if len(of) > 1 else None) for address, of in ranks.items()]
        return workers, answer["request_id"]

    async def workers(self):
        """Addresses and models of all streams."""
        if time.monotonic() >= self.known_until:
            if self.renewal is None or self.renewal.done():
                self.renewal = asyncio.ensure_future(self._renew())
            await asyncio.shield(self.renewal)  # so that it continues if this caller is cancelled
        return self.known

    async def _renew(self):
        try:
            status, text = await self._ask("GET", "/streams")
        except Refusal:
            return  # the old list is still used
        if status == 200:
            self.known = json.loads(text)["streams"]
            self.known_until = time.monotonic() + WORKERS_S

    async def report(self, path, request_id, **more):
        """Failures are only logged: kvaggregator drops a request after its ttl_ms."""
        try:
            await self._ask("POST", path, {"request_id": request_id, **more})
        except Refusal as refusal:
            log.warning("%s of %s was not reported: %s", path[1:], request_id, refusal)


def is_routed_by_all(body):
    """False: the engine's cache hits depend on more than the tokens that kvaggregator got."""
    texts = [message.get("content") for message in body.get("messages") or [] if isinstance(message, dict)]
    return not any(body.get(key) for key in ("prompt_logprobs", "cache_salt")) and all(
        text is None or isinstance(text, str) for text in texts)


class Proxy:
    def __init__(self, session, aggregator):
        self.session, self.aggregator = session, aggregator
        self.reports = {}  # the newest running report, by request; asyncio itself keeps no reference

    def report(self, path, request_id, **more):
        """Sent after the previous report: kvaggregator does not know a request any more after its end."""
        before = self.reports.get(request_id)
        task = self.reports[request_id] = asyncio.ensure_future(self._report(path, request_id, before, more))
        task.add_done_callback(lambda done: self.reports.get(request_id) is done and self.reports.pop(request_id))

    async def _report(self, path, request_id, before, more):
        if before:
            await before
        await self.aggregator.report(path, request_id, **more)

    async def tokens_of(self, body):
        """Token ids of the prompt.  None: no engine answered in time."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return prompt
        wanted = {key: body[key] for key in ("model", "messages", "tools", "chat_template_kwargs") if key in body}
        if "messages" not in wanted:
            wanted["prompt"] = prompt[0] if isinstance(prompt, list) and prompt else prompt
        try:
            return await asyncio.wait_for(self._tokenize(body.get("model"), wanted), TOKENIZE_S)
        except (asyncio.TimeoutError, Refusal):
            return None

    async def _tokenize(self, model, wanted):
        for worker in await self.aggregator.workers():
            if not worker.get("address") or worker["state"] == "DOWN" or model not in (None, worker["model"]):
                continue
            try:
                async with self.session.post(worker["address"] + "/tokenize", json=wanted) as answer:
                    if answer.status == 200:
                        return (await answer.json())["tokens"]
            except (aiohttp.ClientError, KeyError, TypeError, ValueError):
                continue  # try the next one
        return None

    async def complete(self, request):
        """POST /v1/completions, /v1/chat/completions."""
        payload = await request.read()
        try:
            body = json.loads(payload)
            if not isinstance(body, dict):
                raise ValueError("the body is not an object")
        except ValueError as error:
            raise Refusal(400, f"not JSON: {error}") from error
        tokens = await self.tokens_of(body)
        workers, request_id = await self.aggregator.route(body.get("model"), tokens or [])
        served = {}  # the address that served it, and the end of its answer
        try:
            return await self._forward(request, payload, workers[:MAX_TRIES], request_id, tokens, served)
        finally:
            is_chosen = served.get("by") == workers[0][0]
            cached = CACHED_TOKENS.findall(served["end"]) if is_chosen and is_routed_by_all(body) else []
            self.report("/finished", request_id, **({"cached_tokens": int(cached[-1])} if cached else {}))

    async def _forward(self, request, payload, workers, request_id, tokens, served):
        # aiohttp has decompressed the body
        dropped = HOP_BY_HOP | {"content-encoding", RANK}
        headers = {key: value for key, value in request.headers.items() if key.lower() not in dropped}
        for address, rank in workers:
            if rank is not None:
                headers[RANK] = str(rank)
            else:
                headers.pop(RANK, None)
            try:
                upstream = await self.session.post(address + request.path_qs, data=payload, headers=headers)
            except (aiohttp.ClientConnectionError, asyncio.TimeoutError) as error:
                log.warning("%s cannot be reached: %s", address, error)
                continue
            served.update(by=address, end=b"")
            async with upstream:
                return await self._pass_on(request, upstream, request_id, tokens, served)
        raise Refusal(502, f"no worker can be reached: {', '.join(address for address, _ in workers)}")

    async def _pass_on(self, request, upstream, request_id, tokens, served):
        response = web.StreamResponse(status=upstream.status)
        for key, value in upstream.headers.items():
            if key.lower() not in HOP_BY_HOP | {"content-encoding"}:
                response.headers.add(key, value)
        response.headers["x-kvbridge-worker"] = served["by"]
        if tokens is None:
            response.headers["x-kvbridge-tokens"] = "none"
        await response.prepare(request)
        is_first = True
        async for chunk in upstream.content.iter_any():
            if is_first:
                self.report("/first_token", request_id)
                is_first = False
            served["end"] = (served["end"] + chunk)[-USAGE_BYTES:]
            await response.write(chunk)
        await response.write_eof()
        return response

    async def models(self, _request):
        names = sorted({worker["model"] for worker in await self.aggregator.workers() if worker["model"]})
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


@web.middleware
async def say_why(request, handler):
    try:
        return await handler(request)
    except Refusal as refusal:
        log.warning("%s %s: %s", request.method, request.path, refusal)
        return refusal.response()


async def make_app(options):
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[say_why])
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
    session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
    token = options.token_file.read_text().strip() if options.token_file else ""
    proxy = Proxy(session, Aggregator(session, options.aggregator.rstrip("/"), token))
    app.router.add_post("/v1/completions", proxy.complete)
    app.router.add_post("/v1/chat/completions", proxy.complete)
    app.router.add_get("/v1/models", proxy.models)

    async def close(_app):
        if proxy.reports:
            await asyncio.wait(proxy.reports.values(), timeout=ROUTE_S)
        await session.close()

    app.on_cleanup.append(close)
    return app


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT")
    parser.add_argument("--aggregator", default="http://127.0.0.1:9402", metavar="URL")
    parser.add_argument("--token-file", type=pathlib.Path, metavar="FILE", help="the aggregator's http.token_file")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    if not port.isdigit():
        parser.error(f"--listen: expected HOST:PORT, got {options.listen}")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    web.run_app(
        make_app(options), host=host.strip("[]"), port=int(port), shutdown_timeout=DRAIN_S, access_log=None,
        print=lambda _text: log.info("listening at %s", options.listen))


if __name__ == "__main__":
    main()
