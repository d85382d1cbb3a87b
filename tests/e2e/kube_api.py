"""A Kubernetes API server for pods, on loopback: TLS with a CA of its own, bearer tokens, list in
pages, watch.  Misbehaves on request (see "Faults").  kubernetes-asyncio reads it, too (kube_informer.py).

    api = kube_api.Api(folder)                  # tests have it as the fixture `kube`
    api.url, api.ca_file, api.token_file        # what a client needs, one by one
    api.kubeconfig, api.account                 # the same as a kubeconfig, as a pod's service account folder
    api.pods.create(engine_pod("a", ip="127.0.0.7"))    # pod_store.py: changes by the cluster itself
    api.close()
"""

import collections
import contextlib
import dataclasses
import http.server
import json
import os
import pathlib
import re
import secrets
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from typing import Callable, Optional

import marked
import pod_store
from authority import Authority
from pod_store import Refusal, bad_request

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    409: "Conflict", 410: "Expired", 415: "UnsupportedMediaType", 429: "TooManyRequests", 500: "InternalError",
    503: "ServiceUnavailable", 504: "Timeout",
}
DEFAULT_TIMEOUT_S = 1800  # the time of a watch that names none


# ---- Certificates ------------------------------------------------------------------

class Certificates:
    """A CA and the API server's certificate."""

    def __init__(self, folder, names):
        self.folder = folder
        self.hosts = ",".join(("IP:" if is_address(name) else "DNS:") + name for name in names)
        self.new_authority()

    def new_authority(self):
        self.authority = Authority(self.folder)
        self.sign()

    def sign(self, days=365):
        """A new certificate; days: -1 is one that expired yesterday."""
        self.authority.sign("server", self.hosts, days=days)


def is_address(name):
    return re.fullmatch(r"[\d.]+", name) or ":" in name


# ---- The server ----------------------------------------------------------------------

@dataclasses.dataclass
class Token:
    user: str = "system:serviceaccount:inference:kvbridge"
    until: Optional[float] = None  # time.time()
    namespaces: Optional[frozenset] = None  # None: all
    verbs: Optional[frozenset] = None


@dataclasses.dataclass
class Fault:
    act: Callable  # (handler): answers in place of the server
    verb: Optional[str]
    times: int


@dataclasses.dataclass(frozen=True)
class Request:
    """A request. verb: list, watch, or "" for any other."""

    verb: str
    path: str
    query: dict
    namespace: Optional[str] = None


class Stream:
    """A running watch."""

    def __init__(self):
        self.orders = collections.deque()  # bytes to send; None: end the connection in the middle


class Api:
    def __init__(self, folder, log_size=1000, seed=None):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.account = self.folder / "serviceaccount"
        self.account.mkdir(exist_ok=True)
        self.pods = pod_store.Pods(log_size, seed)
        self.tokens = {}
        self.requests = collections.deque(maxlen=10_000)  # Request, newest last
        self.counts = collections.Counter()  # by verb, and by "verb status"
        self.faults = []
        self.streams = []
        self.connections = set()
        self.bookmark_s = 60.0
        self.split_bytes = None  # each line of a watch is sent in parts of this many bytes
        self.gone_as = "event"  # how a watch is told that its version is too old: "event" or "status"
        self.is_frozen = False
        self.server = None
        self.port = 0
        self.certificates = Certificates(self.folder, ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc"])
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_certificate()
        self.come_back()
        self.new_token()
        self._write_account()

    # ---- What clients need

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self):
        return self.account / "ca.crt"

    @property
    def token_file(self):
        return self.account / "token"

    @property
    def kubeconfig(self):
        return self.folder / "kubeconfig"

    @property
    def bridge_kubeconfig(self):
        """The same for a bridge: the token stays in its file, which is replaced."""
        path = self.folder / "bridge.kubeconfig"
        if not path.exists():
            content = json.loads(self._kubeconfig())
            content["users"][0]["user"] = {"tokenFile": str(self.token_file.resolve())}
            path.write_text(json.dumps(content))
            path.chmod(0o600)
        return path

    @property
    def environment(self):
        """What a pod has in its environment."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    def new_token(self, seconds=None, namespaces=None, verbs=None):
        """A new token in the token file; others stay valid.  seconds: how long it is valid."""
        token = marked.mark(secrets.token_urlsafe(24))
        self.tokens[token] = Token(
            until=time.time() + seconds if seconds is not None else None,
            namespaces=frozenset(namespaces) if namespaces is not None else None,
            verbs=frozenset(verbs) if verbs is not None else None,
        )
        self.token = token
        replace_text(self.token_file, token)
        replace_text(self.kubeconfig, self._kubeconfig())
        return token

    def expire(self, token=None):
        """Refuses that token, or all but the newest, from now on; running watches continue."""
        for each in [token] if token else [one for one in self.tokens if one != self.token]:
            self.tokens[each].until = 0

    def new_certificate(self, days=365, new_authority=False):
        """Replaces the certificate for later connections; -1 days: one that has expired."""
        if new_authority:
            self.certificates.new_authority()
        self.certificates.sign(days)
        self._load_certificate()
        self._write_account()

    # ---- Faults

    def refuse(self, code, times=1, verb=None, retry_after=None):
        """The next `times` requests (of that verb) are answered with this status."""
        headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}

        def act(handler):
            handler.refuse(Refusal(code, REASONS.get(code, "Unknown"), f"refused on request: {code}", headers))

        self.intercept(act, times, verb)

    def intercept(self, act, times=1, verb=None):
        """act(handler) answers the next `times` requests: handler.wfile takes any bytes."""
        self.faults.append(Fault(act, verb, times))

    def bookmark(self):
        """Sends a bookmark into each watch that allows them."""
        self._order(lambda stream: stream.bookmark_now())

    def expire_watches(self, code=410):
        """Each running watch gets an ERROR event and ends, although its version is in the log."""
        status = Refusal(code, REASONS[code], "too old resource version: 1 (2)").status()
        self._order(lambda stream: stream.orders.extend([event_line("ERROR", status), b""]))

    def say(self, line):
        """Sends any bytes into each running watch."""
        self._order(lambda stream: stream.orders.append(line))

    def cut_watches(self):
        """Resets the connections of running watches in the middle of the answer."""
        self._order(lambda stream: stream.orders.append(None))

    def freeze(self):
        """Watches stay open, send nothing, and do not end when their time is over."""
        self.is_frozen = True

    def thaw(self):
        with self.pods.changed:
            self.is_frozen = False
            self.pods.changed.notify_all()

    def go_away(self):
        """The port is closed; open connections are reset."""
        server, self.server = self.server, None
        server.shutdown()
        server.server_close()
        for connection in list(self.connections):
            reset(connection)
        with self.pods.changed:
            self.pods.changed.notify_all()

    def come_back(self):
        """Listens on the same port again, with the current pods."""
        api = self

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass  # the client has disconnected; its request is in api.requests

        self.server = Server(("127.0.0.1", self.port), lambda *words: Handler(api, *words))
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        if self.server:
            self.go_away()

    # ---- Inside

    def _order(self, give):
        with self.pods.changed:
            for stream in self.streams:
                give(stream)
            self.pods.changed.notify_all()

    def _load_certificate(self):
        self.context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")

    def _write_account(self):
        replace_text(self.ca_file, (self.folder / "ca.pem").read_text())
        replace_text(self.account / "namespace", "inference")
        replace_text(self.kubeconfig, self._kubeconfig())

    def _kubeconfig(self):
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file.resolve())}
        context = {"cluster": "test", "user": "test", "namespace": "inference"}
        return json.dumps({  # JSON is YAML
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": context}],
        }, indent=1)

    def authorize(self, header, request):
        scheme, _, token = (header or "").partition(" ")
        known = self.tokens.get(token.strip()) if scheme == "Bearer" else None
        if known is None or (known.until is not None and known.until <= time.time()):
            raise Refusal(401, "Unauthorized", "Unauthorized")
        outside = known.namespaces is not None and request.namespace not in known.namespaces
        if request.verb and (outside or (known.verbs is not None and request.verb not in known.verbs)):
            where = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
            raise Refusal(
                403, "Forbidden", f'pods is forbidden: User "{known.user}" cannot {request.verb} resource "pods" '
                f'in API group "" {where}', details={"kind": "pods"},
            )

    def fault_for(self, verb):
        for fault in self.faults:
            if fault.times > 0 and fault.verb in (None, verb):
                fault.times -= 1
                return fault
        return None


def replace_text(path, text):
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def reset(connection):
    """Closes without the TLS close_notify, from the thread that serves the connection or from
    another."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def event_line(kind, thing):
    return json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode() + b"\n"


# ---- One connection --------------------------------------------------------------------

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "kube-apiserver"

    def __init__(self, api, *words):
        self.api = api
        super().__init__(*words)

    def setup(self):
        self.request.settimeout(20)  # of the handshake
        self.request = self.api.context.wrap_socket(self.request, server_side=True)
        self.request.settimeout(None)
        self.api.connections.add(self.request)
        super().setup()

    def finish(self):
        self.api.connections.discard(self.request)
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        self.request.close()

    def handle(self):
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answered = None
        asked = request_of(self.path)
        self.api.requests.append(asked)
        self.api.counts[asked.verb or asked.path] += 1
        fault = self.api.fault_for(asked.verb)
        try:
            if fault:
                fault.act(self)
            else:
                self.api.authorize(self.headers.get("Authorization"), asked)
                ROUTES[asked.verb](self, asked)
        except Refusal as refusal:
            self.refuse(refusal)
        if self.answered is None:
            self.close_connection = True  # a fault that has written an answer of its own
        else:
            self.api.counts[f"{asked.verb or asked.path} {self.answered}"] += 1

    # ---- Answers

    def answer(self, thing, code=200, headers=None):
        body = thing if isinstance(thing, bytes) else json.dumps(thing, separators=(",", ":")).encode()
        self.answered = code
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, refusal):
        self.answer(refusal.status(), refusal.code, refusal.headers)

    # ---- Verbs

    def other(self, asked):
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def list(self, asked):
        query = asked.query
        self._check_version(query)
        limit = 0 if query.get("resourceVersion") == "0" else number(query, "limit")  # as the watch cache does
        pods, version, token, remaining = self.api.pods.page(selection_of(asked), limit, query.get("continue", ""))
        meta = {"resourceVersion": str(version)}
        if token:
            meta["continue"] = token
        if token and not query.get("labelSelector") and not query.get("fieldSelector"):
            meta["remainingItemCount"] = remaining
        bare = [{key: value for key, value in pod.items() if key not in ("kind", "apiVersion")} for pod in pods]
        self.answer({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": bare})

    def watch(self, asked):
        if asked.query.get("sendInitialEvents"):
            raise Refusal(422, "Invalid", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch "
                          "unless the WatchList feature gate is enabled")
        self._check_version(asked.query)
        Watching(self, asked).run()

    def _check_version(self, query):
        version = number(query, "resourceVersion")
        with self.api.pods.changed:
            newest = self.api.pods.version
        if version > newest:
            raise Refusal(
                504, "Timeout", f"Too large resource version: {version}, current: {newest}", {"Retry-After": "1"},
                details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                         "retryAfterSeconds": 1},
            )


def number(query, key):
    word = query.get(key) or "0"
    if not word.isdigit():
        raise bad_request(f"{key}: Invalid value: \"{word}\"")
    return int(word)


def selection_of(asked):
    return pod_store.Selection(
        asked.namespace, asked.query.get("labelSelector", ""), asked.query.get("fieldSelector", ""))


PLACE = re.compile(r"/api/v1(?:/namespaces/(?P<namespace>[^/]+))?/pods/?")


def request_of(target):
    path, _, words = target.partition("?")
    query = dict(urllib.parse.parse_qsl(words, keep_blank_values=True))
    match = PLACE.fullmatch(path)
    if not match:
        return Request("", path, query)
    verb = "watch" if query.get("watch") in ("1", "true", "True") else "list"
    return Request(verb, path, query, match["namespace"] and urllib.parse.unquote(match["namespace"]))


ROUTES = {"": Handler.other, "list": Handler.list, "watch": Handler.watch}


# ---- Watch -------------------------------------------------------------------------------

class Watching(Stream):
    """Sends changes until the client's time is over; then ends the answer, and the connection
    serves the next request."""

    def __init__(self, handler, asked):
        super().__init__()
        self.handler, self.api, self.asked = handler, handler.api, asked
        self.selection = selection_of(asked)
        self.pods = self.api.pods
        self.allows_bookmarks = asked.query.get("allowWatchBookmarks") in ("1", "true", "True")
        self.ends = time.monotonic() + (number(asked.query, "timeoutSeconds") or DEFAULT_TIMEOUT_S)
        self.next_bookmark = time.monotonic() + self.api.bookmark_s

    def run(self):
        version = number(self.asked.query, "resourceVersion")
        with self.pods.changed:
            if version:
                first = []
                refusal = self._is_gone(version)
            else:
                first, refusal = [("ADDED", pod) for pod in self.pods.all(self.selection)], None
                version = self.pods.version
            if refusal and self.api.gone_as == "status":
                raise refusal
            self.version = version
            self.api.streams.append(self)
        try:
            self._begin()
            if refusal:
                self._send(event_line("ERROR", refusal.status()))
            else:
                for event in first:
                    self._send(event_line(*event))
                self._follow()
            self._end()
        except OSError:
            self.handler.close_connection = True
            reset(self.handler.request)
        finally:
            with self.pods.changed:
                self.api.streams.remove(self)

    def bookmark_now(self):
        """The caller holds pods.changed."""
        self.next_bookmark = 0

    def _is_gone(self, version):
        try:
            self.pods.since(version)
        except Refusal as refusal:
            return refusal
        return None

    def _follow(self):
        while True:
            lines, is_over = self._next()
            for line in lines:
                if line == b"":
                    return
                if line is None:
                    raise ConnectionResetError
                self._send(line)
            if is_over:
                return

    def _next(self):
        """Waits for something to send; returns (lines, whether the time is over)."""
        with self.pods.changed:
            while True:
                now = time.monotonic()
                if self.api.server is None:
                    return [None], True
                if self.orders and (not self.api.is_frozen or None in self.orders):
                    orders, self.orders = list(self.orders), collections.deque()
                    return orders, False
                if not self.api.is_frozen:
                    lines = self._changes()
                    is_over = now >= self.ends
                    if self.allows_bookmarks and (now >= self.next_bookmark or is_over):
                        self.next_bookmark = now + self.api.bookmark_s
                        lines.append(event_line("BOOKMARK", bookmark(self.version)))
                    if lines or is_over:
                        return lines, is_over
                self.pods.changed.wait(None if self.api.is_frozen else min(self.ends, self.next_bookmark) - now)

    def _changes(self):
        try:
            changes = self.pods.since(self.version)
        except Refusal as refusal:  # a client that was too slow
            return [event_line("ERROR", refusal.status()), b""]
        self.version = self.pods.version
        events = [change.event_for(self.selection) for change in changes]
        return [event_line(*event) for event in events if event]

    # ---- The answer, in chunks

    def _begin(self):
        self.handler.answered = 200
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "application/json")
        self.handler.send_header("Transfer-Encoding", "chunked")
        self.handler.end_headers()

    def _send(self, line):
        size = self.api.split_bytes or len(line)
        for at in range(0, len(line), size):
            part = line[at : at + size]
            self.handler.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))

    def _end(self):
        self.handler.wfile.write(b"0\r\n\r\n")


def bookmark(version):
    """A bookmark as the API server sends it: an object of the kind with only a version."""
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": None}, "status": {}}
