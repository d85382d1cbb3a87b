"""2,000 pods at once: what it costs a bridge to find them and to continue watching them.

    discovery.py --seconds N [--small] [NAME...]

The API server is that of the end-to-end tests (tests/e2e/kube_api.py), in this process; so are the
engines, one XPUB socket that listens at an address of 127.0.0.0/8 for each pod and receives every
subscription.  nats-server and kvbridge (in the folder KVB_BIN) are processes of their own.  Prints the rows
discovery.*, one JSON object a line; ../README.md says what they mean."""

import argparse
import contextlib
import json
import pathlib
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS / "matrix")]

import zmq  # noqa: E402

import bus  # noqa: E402
import heartbeats  # noqa: E402
import kube_api  # noqa: E402
import programs  # noqa: E402
from pod_store import container, engine_pod  # noqa: E402

PODS = 2000
RELISTS = 5
WATCH_THREAD = "kvb-kubernetes"
DEADLINE_S = 60
BYE = 13  # of a StreamHeartbeat


def progress(text):
    print(text, file=sys.stderr, flush=True)


def figure(name, value, unit):
    row = {"name": name, "value": round(value, 6), "unit": unit, "against": None, "against_value": None, "ratio": None}
    print(json.dumps(row), flush=True)


class Engines:
    """One socket that listens at many addresses and records when each number of subscriptions was
    reached."""

    def __init__(self, count):
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 64)
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.set(zmq.XPUB_VERBOSE, 1)
        self.socket.set(zmq.LINGER, 0)
        self.addresses = [f"127.77.{at // 250}.{at % 250 + 1}" for at in range(count)]
        self.port = self._bind()
        self.lock = threading.Lock()
        self.subscribed = 0
        self.newest = 0.0
        self.is_stopping = False
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _bind(self):
        port = self.socket.bind_to_random_port(f"tcp://{self.addresses[0]}")
        for address in self.addresses[1:]:
            self.socket.bind(f"tcp://{address}:{port}")
        return port

    def _follow(self):
        while not self.is_stopping:
            if not self.socket.poll(100):
                continue
            message = self.socket.recv()
            with self.lock:
                self.subscribed += 1 if message[:1] == b"\1" else -1
                self.newest = time.monotonic()

    def close(self):
        self.is_stopping = True
        self.thread.join()
        self.socket.close()
        self.context.term()


class Place:
    """Everything that runs, for one scene."""

    def __init__(self, folder, count):
        self.folder, self.count = folder, count
        self.engines = Engines(count)
        self.api = kube_api.Api(folder / "api", log_size=4 * count)
        self.nats = programs.Program(folder, "nats", [
            shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin"), "-a", "127.0.0.1", "-p", -1,
            "--ports_file_dir", folder])
        ports = programs.wait_for("nats-server listens", lambda: list(folder.glob("*.ports")))
        self.nats_url = programs.wait_for("nats-server writes its ports", lambda: json.loads(ports[0].read_text())["nats"][0])
        self.bridge = None

    def start_bridge(self):
        port = programs.free_port()
        self.bridge = programs.Daemon(self.folder, "kvbridge", "kvbridge", (
            f'nats = {{ url = "{self.nats_url}"; }};\n'
            'publish = { namespace = "bench"; component = "Worker"; formats = ["protobuf"]; };\n'
            f'kubernetes = {{ namespaces = ("inference"); selector = "app=vllm"; model = "bench"; api = "{self.api.url}";\n'
            f'    token_file = "{self.api.token_file}"; ca_file = "{self.api.ca_file}";\n'
            f'    replay_port = 0; metrics_port = 0; }};\nhttp = "127.0.0.1:{port}";\n'), port)

    def create_pods(self):
        containers = [container(kv_events=self.engines.port)]
        for at, address in enumerate(self.engines.addresses):
            self.api.pods.create(engine_pod(f"vllm-7d9c6bb5f4-{at:05}", ip=address, containers=containers, ready=True))

    def wait_open(self, began):
        """Seconds until the last subscription arrived."""
        programs.wait_for(f"{self.count} sockets are open", lambda: self.engines.subscribed >= self.count, DEADLINE_S)
        return self.engines.newest - began

    def is_watching(self):
        return self.bridge.is_ready() and len(self.api.streams) == 1

    # ---- The bridge's process

    def resident_bytes(self):
        text = pathlib.Path(f"/proc/{self.bridge.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmRSS"))

    def cpu_ns(self, thread=None):
        total = 0
        for task in pathlib.Path(f"/proc/{self.bridge.process.pid}/task").iterdir():
            if thread in (None, (task / "comm").read_text().strip()):
                total += int((task / "schedstat").read_text().split()[0])
        return total

    def files(self):
        return sum(1 for _ in pathlib.Path(f"/proc/{self.bridge.process.pid}/fd").iterdir())

    def close(self):
        for program in (self.bridge, self.nats):
            if program:
                program.stop(30)
        self.api.close()
        self.engines.close()


def requests_of(api):
    return api.counts["list"] + api.counts["watch"]


# ---- The rows ------------------------------------------------------------------------------


def measure_start(place):
    """The pods are there when the bridge starts."""
    place.create_pods()
    began = time.monotonic()
    place.start_bridge()
    took = place.wait_open(began)
    programs.wait_for("the bridge watches", place.is_watching)
    figure("discovery.start", took, "s")
    figure("discovery.start.requests", requests_of(place.api), "requests")
    progress(f"discovery.start: {place.count} sockets open {took:.2f} s after exec, {dict(place.api.counts)}")


def measure_burst(place):
    """The pods are created while the bridge watches."""
    place.start_bridge()
    programs.wait_for("the bridge watches", place.is_watching)
    before = place.resident_bytes()
    began = time.monotonic()
    place.create_pods()
    created = time.monotonic() - began
    took = place.wait_open(began)
    figure("discovery.burst", took, "s")
    figure("discovery.burst.requests", requests_of(place.api), "requests")
    progress(f"discovery.burst: {took:.2f} s, of which the API server took {created:.2f} s to make the pods")
    return before


def measure_idle(place, seconds, resident_before):
    """Memory is measured after these seconds, when the first watch is over."""
    time.sleep(min(seconds, 3))
    watch, whole, began = place.cpu_ns(WATCH_THREAD), place.cpu_ns(), time.monotonic()
    time.sleep(seconds)
    took_ns = (time.monotonic() - began) * 1e9
    watch, whole = place.cpu_ns(WATCH_THREAD) - watch, place.cpu_ns() - whole
    figure("discovery.idle", 100 * watch / took_ns, "% of a core")
    figure("discovery.idle.bridge", 100 * whole / took_ns, "% of a core")
    grown = place.resident_bytes() - resident_before
    figure("discovery.resident", grown / 1e6, "MB")
    figure("discovery.resident.pod", grown / place.count, "bytes")
    figure("discovery.files", place.files(), "files")


def relist(place):
    """Milliseconds of the watching thread. A line is sent first, so that the watch has received one
    and the list is due at once."""
    used, watches = place.cpu_ns(WATCH_THREAD), place.api.counts["watch"]
    place.api.bookmark()
    place.api.expire_watches()
    programs.wait_for("the bridge watches again", lambda: place.api.counts["watch"] > watches and len(place.api.streams) == 1, 30)
    time.sleep(0.3)  # a list for the bridge's ingest thread would be due 50 ms after the last page
    return (place.cpu_ns(WATCH_THREAD) - used) / 1e6


def measure_relist(place):
    """A closed member says goodbye. A socket that is opened again may also have been lost."""
    client = bus.Bus(place.nats_url)
    beats = client.watch("namespace.bench.component.Worker.kv_heartbeat")
    before, requests = place.engines.subscribed, requests_of(place.api)
    times = [relist(place) for _ in range(RELISTS)]
    requests, reopened = requests_of(place.api) - requests, place.engines.subscribed - before
    client.close()
    goodbyes = sum(1 for message in beats if BYE in heartbeats.fields(message.data))
    figure("discovery.relist", statistics.median(times), "ms")
    figure("discovery.relist.requests", requests / RELISTS, "requests")
    figure("discovery.relist.closed", goodbyes, "members")
    progress(f"discovery.relist: {', '.join(f'{ms:.1f}' for ms in times)} ms of the thread that watches; {goodbyes} goodbyes "
             f"in {len(beats)} heartbeats; meanwhile {reopened} sockets were lost and opened again")


@contextlib.contextmanager
def place_of(count):
    with tempfile.TemporaryDirectory(prefix="kvb-discovery.") as folder:
        place = Place(pathlib.Path(folder), count)
        try:
            yield place
        except BaseException:
            if place.bridge:
                progress(place.bridge.text()[-3000:])
            raise
        finally:
            place.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    count = PODS // 100 if options.small else PODS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    def wants(row):
        return not options.names or any(row.startswith(name) or name.startswith(row) for name in options.names)

    if wants("discovery.start"):
        with place_of(count) as place:
            measure_start(place)
    rest = ("discovery.burst", "discovery.idle", "discovery.resident", "discovery.files", "discovery.relist")
    if any(wants(row) for row in rest):
        with place_of(count) as place:
            before = measure_burst(place)
            measure_idle(place, options.seconds, before)
            measure_relist(place)


if __name__ == "__main__":
    main()
