"""An engine with OpenAI's API that looks at its requests: whether a body is the one that the client sent, by a header with
its SHA-256; which headers came; how each request ended.  It computes nothing; a text is one token a byte, as for kvfleet."""

import asyncio
import dataclasses
import hashlib
import json
import threading

import programs
from aiohttp import web

SHA = "x-sha"  # of a request: the SHA-256 of its body


def tokens_of(text, token_bytes=1):
    data = text.encode()
    return list(data) if token_bytes == 1 else [
        int.from_bytes(data[at:at + token_bytes], "big") % 100_000 for at in range(0, len(data), token_bytes)]


@dataclasses.dataclass
class Seen:
    path: str
    headers: dict
    body_bytes: int
    is_whole: bool  # the body is what the client has sent
    end: str = "open"  # done, aborted


class OpenAiEngine:
    """Threads: one of its own, with an event loop."""

    def __init__(self, name, port=0):
        self.name, self.seen, self.tokenized = name, [], []
        self.cached_tokens = 0  # what its answers say
        self.tokenize_manner = "good"  # silent, wrong, refuses
        self.token_bytes = 1
        self.status = 200
        self.loop = asyncio.new_event_loop()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()  # cleared: a stream stops after its first event, any other answer before its headers
        listening = threading.Event()

        async def serve():
            app = web.Application(client_max_size=1 << 30)
            app.router.add_post("/tokenize", self.tokenize)
            app.router.add_route("*", "/{path:.*}", self.answer)
            self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
            await self.runner.setup()
            await web.TCPSite(self.runner, "127.0.0.1", port).start()
            self.port = self.runner.addresses[0][1]
            listening.set()

        def run():
            asyncio.set_event_loop(self.loop)
            self.loop.run_until_complete(serve())
            self.loop.run_forever()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        assert listening.wait(programs.DEADLINE_S)
        self.endpoint = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.endpoint}"

    def close(self):
        if self.loop.is_closed():
            return

        async def end():
            await self.runner.cleanup()
            self.loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self.loop)
        self.thread.join()
        self.loop.close()

    def hold(self):
        self.loop.call_soon_threadsafe(self.may_go_on.clear)

    def go_on(self):
        self.loop.call_soon_threadsafe(self.may_go_on.set)

    def running(self):
        return [one for one in self.seen if one.end == "open"]

    def broken(self):
        """Requests whose body is not what their client has sent."""
        return [one for one in self.seen if not one.is_whole]

    # ---- On its thread --------------------------------------------------------

    async def tokenize(self, request):
        ask = await request.json()
        self.tokenized.append(ask)
        if self.tokenize_manner == "silent":
            await asyncio.Event().wait()
        if self.tokenize_manner == "refuses":
            return web.json_response({"error": "no"}, status=400)
        text = ask["prompt"] if "prompt" in ask else "".join(one["content"] for one in ask["messages"])
        tokens = tokens_of(text, self.token_bytes)
        return web.json_response({"tokens": tokens, "count": len(tokens) + (self.tokenize_manner == "wrong")})

    async def answer(self, request):
        body = await request.read()  # fails if the request ends before its body does
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.path, headers, len(body), headers.get(SHA) == hashlib.sha256(body).hexdigest())
        self.seen.append(seen)
        try:
            answer = await self.complete(request, body)
            seen.end = "done"
            return answer
        except BaseException:
            seen.end = "aborted"
            raise

    async def complete(self, request, body):
        try:
            ask = json.loads(body)
        except ValueError:
            ask = None
        if not isinstance(ask, dict):
            ask = {}
        usage = {"prompt_tokens": 48, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
        who = {"x-engine": self.name}
        if not ask.get("stream"):
            await self.may_go_on.wait()
            choice = {"index": 0, "message": {"role": "assistant", "content": "xx"}}
            return web.json_response({"choices": [choice], "usage": usage}, status=self.status, headers=who)
        answer = web.StreamResponse(status=self.status, headers={**who, "Content-Type": "text/event-stream"})
        await answer.prepare(request)
        more = b"x" * ask.get("answer_bytes", 0)
        for number in range(ask.get("max_tokens", 4)):
            await answer.write(b'data: {"choices":[{"index":0,"delta":{"content":"t%d%s"}}]}\n\n' % (number, more))
            await self.may_go_on.wait()
        if ask.get("stream_options", {}).get("include_usage"):
            await answer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer
