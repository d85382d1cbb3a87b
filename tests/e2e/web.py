"""A web server on loopback whose pages behave as a test wants. A page is a text, or a function that
gets the connection and may do anything with it."""

import http.server
import threading
import time


class Web:
    def __init__(self):
        self.pages = {}
        self.asked = {}  # path: number of requests
        self.stopping = threading.Event()
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if web.is_away:
                    self.close_connection = True
                    return None
                web.asked[self.path] = web.asked.get(self.path, 0) + 1
                page = web.pages.get(self.path)
                if callable(page):
                    self.close_connection = True
                    return page(self)
                body = (page or "").encode()
                self.send_response(404 if page is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

            def handle(self):
                try:
                    super().handle()
                except OSError:
                    pass  # the reader closed the connection

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self.kind = lambda port: Server(("127.0.0.1", port), Handler)
        self.start(0)

    def start(self, port):
        self.is_away = False
        self.server = self.kind(port)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def go_away(self):
        """Closes the port; open connections get no answers."""
        self.is_away = True
        self.server.shutdown()
        self.server.server_close()

    def close(self):
        self.stopping.set()
        if not self.is_away:
            self.go_away()

    # ---- Ways to misbehave ------------------------------------------------------

    def hangs(self, connection):
        self.stopping.wait(60)

    def endless(self, connection):
        connection.send_response(200)
        connection.end_headers()
        while not self.stopping.is_set():
            connection.wfile.write(b"vllm:num_requests_running{engine=\"0\"} 9\n" * 1000)

    def slow(self, text, seconds):
        """A page that arrives slowly."""

        def page(connection):
            connection.send_response(200)
            connection.send_header("Content-Length", str(len(text)))
            connection.end_headers()
            middle = len(text) // 2
            connection.wfile.write(text[:middle].encode())
            connection.wfile.flush()
            time.sleep(seconds)
            connection.wfile.write(text[middle:].encode())

        return page

    @staticmethod
    def says(body):
        """Sends any bytes, and closes."""

        def page(connection):
            connection.wfile.write(body)

        return page
