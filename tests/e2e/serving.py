"""An engine that serves OpenAI's API as vLLM does, as far as a router can tell: it takes completions,
stores what it computes, publishes that, and says how much of a prompt it had already."""

import contextlib
import http.server
import json
import socket
import threading

import engine


class ServingEngine(engine.Engine):
    """block_size and model as it was started with; text is one token a character."""

    def __init__(self, model="m", block_size=16, **options):
        super().__init__(**options)
        self.model, self.block_size = model, block_size
        self.held = set()  # hashes
        self.served = []  # (path, prompt, tokens that were held)
        self.end = threading.Event()  # a streamed answer waits for it before its last piece
        self.end.set()
        self.has_tokenizer = True
        self.connections = []
        self.web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.web.daemon_threads = True
        self.port = self.web.server_port
        self.address = f"http://127.0.0.1:{self.port}"
        self.web_thread = threading.Thread(target=self.web.serve_forever, daemon=True)
        self.web_thread.start()

    def tokenize(self, request):
        messages = request.get("messages")
        text = "".join(one["content"] for one in messages) if messages else request["prompt"]
        return [ord(character) for character in text] if isinstance(text, str) else text

    def compute(self, prompt):
        """Stores the whole blocks that are new; returns how many tokens were held."""
        size, parent, held, new = self.block_size, None, 0, []
        for at in range(0, len(prompt) - size + 1, size):
            # 0 .. 2^62 - 1, and other prompts have others
            name = hash((parent, tuple(prompt[at:at + size]))) % (1 << 62)
            if name in self.held:
                held += size
                start = name
            else:
                new.append(name)
            parent = name
        if new:
            first = held if held else 0
            self.publish(engine.batch(engine.MapForm.stored(
                new, prompt[first:first + len(new) * size], size, parent=start if held else None)))
            self.held.update(new)
        return held

    def close(self):
        self.end.set()
        self.go_silent()
        super().close()

    def go_silent(self):
        """No more HTTP: nobody listens, and kept connections end."""
        if self.web_thread.is_alive():
            self.web.shutdown()
            self.web.server_close()
            self.web_thread.join()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)

    def _handler(served_by):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                served_by.connections.append(self.connection)

            def handle(self):
                with contextlib.suppress(ConnectionError):  # a client that left
                    super().handle()

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if request.get("model", served_by.model) != served_by.model:
                    self.answer(404, {"error": {"message": f"no model {request['model']}"}})
                elif self.path == "/tokenize" and served_by.has_tokenizer:
                    tokens = served_by.tokenize(request)
                    self.answer(200, {"count": len(tokens), "tokens": tokens})
                elif self.path in ("/v1/completions", "/v1/chat/completions"):
                    self.complete(request)
                else:
                    self.answer(404, {"error": {"message": "no such path"}})

            def complete(self, request):
                prompt = served_by.tokenize(request)
                held = served_by.compute(prompt)
                served_by.served.append((self.path, prompt, held))
                usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": held}}
                if not request.get("stream"):
                    self.answer(200, {"choices": [{"text": "ab"}], "usage": usage})
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.piece(f'data: {json.dumps({"choices": [{"text": "a"}]})}\n\n')
                served_by.end.wait(30)
                self.piece(f'data: {json.dumps({"choices": [{"text": "b"}], "usage": usage})}\n\n')
                self.piece("data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

            def piece(self, text):
                self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

            def answer(self, status, body):
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_words):
                pass

        return Handler
