"""2,000 connections of strangers beside one client that has the token: what becomes of its requests.

    strangers.py --seconds N [--small] [NAME...]

The strangers are a process of their own, open at most 1,000 connections a second, and never finish: half a
header over HTTP (strangers.http), half of a TLS handshake or all of its first flight over HTTPS (strangers.tls).
nats-server, kvbridge and kvaggregator (in the folder KVB_BIN) are further processes.  The client sends one query
after the other, in turns without and with the strangers.  Prints one JSON object a line; ../README.md says what
the rows mean."""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import pathlib
import resource
import shutil
import statistics
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS / "bench")]

import authority  # noqa: E402
import engine  # noqa: E402
import programs  # noqa: E402
import rounds  # noqa: E402
import slowloris  # noqa: E402

STRANGERS = 2000
TURNS = 4
PERIOD_S = 0.1  # 100 connections
TOKEN = "bench-token-0123456789"
QUERY = json.dumps({"token_ids": [1, 2, 3], "model": "m"})


def progress(text):
    print(text, file=sys.stderr, flush=True)


def figure(name, pick, beside, alone):
    """A figure of several turns: the values are of all requests together, the ratio is the median of the turns."""
    of_turns = rounds.turns([pick(turn) for turn in beside], [pick(turn) for turn in alone], is_less_better=True)
    row = {"name": name, "value": round(pick(sum(beside, [])), 6), "unit": "ms", "against": "without strangers",
           "against_value": round(pick(sum(alone, [])), 6), **of_turns}
    print(json.dumps(row), flush=True)


def p99(values):
    return statistics.quantiles(values, n=100)[98]


# ---- The strangers ---------------------------------------------------------------------------


def be_strangers(port, count, is_tls, opened, closed, is_over):
    """In a process of its own."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    hello = slowloris.client_hello()
    one = slowloris.Slowloris(port, count, (hello, hello[: len(hello) // 2]) if is_tls else (slowloris.HEADER,), not is_tls)
    while not is_over.wait(PERIOD_S):
        one.work(True)
        opened.value, closed.value = one.opened, one.closed
    one.leave()


@contextlib.contextmanager
def strangers_at(port, count, is_tls):
    """Yields (opened, closed) when each connection has been open once."""
    opened, closed, is_over = multiprocessing.Value("q"), multiprocessing.Value("q"), multiprocessing.Event()
    process = multiprocessing.Process(target=be_strangers, args=(port, count, is_tls, opened, closed, is_over))
    process.start()
    try:
        programs.wait_for("all strangers came", lambda: opened.value >= count, 60)
        yield opened, closed
    finally:
        is_over.set()
        process.join()


# ---- The client ------------------------------------------------------------------------------


class Place:
    """An aggregator that knows one model, with a token, and with TLS or without."""

    def __init__(self, folder, is_tls):
        self.ca = authority.Authority(folder) if is_tls else None
        self.context = self.ca.context() if is_tls else None  # made once, as by a client that sends several requests
        security = f'token_file = "{folder}/token"; '
        if is_tls:
            self.ca.sign("server")
            security += f'cert_file = "{folder}/server.pem"; key_file = "{folder}/server.key"; '
        (folder / "token").touch(0o600)
        (folder / "token").write_text(TOKEN + "\n")
        self.engine = engine.Engine()
        self.nats = programs.Program(folder, "nats", [
            shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin"), "-a", "127.0.0.1", "-p", -1,
            "--ports_file_dir", folder])
        ports = programs.wait_for("nats-server listens", lambda: list(folder.glob("*.ports")))
        url = programs.wait_for("nats-server writes its ports", lambda: json.loads(ports[0].read_text())["nats"][0])
        self.port = programs.free_port()
        self.daemons = [
            programs.Daemon(folder, "kvaggregator", "kvaggregator", (
                f'nats = {{ url = "{url}"; }};\nhttp = "127.0.0.1:{self.port}";\n'
                f"http_security = {{ {security} }};\n"), self.port),
            programs.Daemon(folder, "kvbridge", "kvbridge", (
                f'nats = {{ url = "{url}"; }};\npublish = {{ namespace = "bench"; component = "Worker"; }};\n'
                'workers = ( { id = 1; model = "m"; block_size = 16; '
                f'events = "{self.engine.events}"; replay = "{self.engine.replay}"; }} );\nhttp = "";\n'), 0),
        ]
        programs.wait_for("the model is known", lambda: self.request(self.connect()) == 200, 30)

    def connect(self):
        if self.ca:
            return authority.open_connection(self.port, self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def request(self, connection):
        return authority.request(connection, "/query", TOKEN, "POST", QUERY)[0]

    def close(self):
        for program in (*self.daemons, self.nats):
            program.stop(30)
        self.engine.close()


def ask_for(place, connection, seconds):
    """Milliseconds of each request."""
    took, until = [], time.monotonic() + seconds
    while time.monotonic() < until or len(took) < 2:
        began = time.perf_counter()
        status = place.request(connection)
        took.append(1000 * (time.perf_counter() - began))
        assert status == 200, status
    return took


def come_anew(place, seconds):
    """Milliseconds from a new connection to its answer, refused attempts included."""
    took, until = [], time.monotonic() + seconds
    while time.monotonic() < until or len(took) < 2:
        began = time.perf_counter()
        while True:
            connection = place.connect()
            try:
                if place.request(connection) == 200:
                    break
            except (OSError, http.client.HTTPException):
                pass  # its place was taken: once more
            finally:
                connection.close()
        took.append(1000 * (time.perf_counter() - began))
    return took


def measure(name, folder, seconds, count):
    is_tls = name.endswith(".tls")
    place = Place(folder, is_tls)
    alone, beside, new_alone, new_beside = [], [], [], []
    opened = closed = 0
    try:
        connection = place.connect()
        for _ in range(TURNS):
            alone.append(ask_for(place, connection, seconds / TURNS))
            new_alone.append(come_anew(place, seconds / TURNS / 4))
            kept = connection.sock
            with strangers_at(place.port, count, is_tls) as counts:
                beside.append(ask_for(place, connection, seconds / TURNS))
                new_beside.append(come_anew(place, seconds / TURNS / 4))
                opened, closed = opened + counts[0].value, closed + counts[1].value
            assert connection.sock is kept, "the connection that has shown the token was closed"
    finally:
        place.close()
    figure(f"{name}.p50", statistics.median, beside, alone)
    figure(f"{name}.p99", p99, beside, alone)
    figure(f"{name}.new.p50", statistics.median, new_beside, new_alone)
    figure(f"{name}.new.p99", p99, new_beside, new_alone)
    progress(f"{name}: {opened} connections of strangers, {closed} of them closed by the server; {sum(map(len, alone))} requests "
             f"without them, {sum(map(len, beside))} with them; {sum(map(len, new_beside))} new connections beside them")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in ("strangers.http", "strangers.tls"):
        if not options.names or any(name.startswith(one) or one.startswith(name) for one in options.names):
            with tempfile.TemporaryDirectory(prefix="kvb-strangers.") as folder:
                measure(name, pathlib.Path(folder), options.seconds, STRANGERS // 100 if options.small else STRANGERS)


if __name__ == "__main__":
    main()
