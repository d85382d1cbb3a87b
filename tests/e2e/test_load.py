"""The load of engines from each kind of source: sockets, metrics pages, vLLM's coordinator; also
slow and silent sources, and ones with invalid messages."""

import json
import pathlib

import msgspec
import pytest
import zmq

import programs
from conftest import PUBLISH
from programs import wait_for

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
CAPTURE = DATA / "vllm-0.32"
SUBJECT = f"{PUBLISH}.load_metrics"
FIGURES = (
    "request_active_slots", "request_total_slots", "kv_active_blocks", "kv_total_blocks", "num_requests_waiting",
    "gpu_cache_usage_perc", "gpu_prefix_cache_hit_rate",
)


class Coordinator:
    """vLLM's coordinator, as far as front ends see it: an XPUB, which takes received bytes as
    commands."""

    def __init__(self):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self.socket.get(zmq.LAST_ENDPOINT).decode()
        self.heard = []

    def wait_for_listener(self):
        def has_one():
            while self.socket.poll(0):
                self.heard.append(self.socket.recv())
            return self.heard

        wait_for("somebody listens to the coordinator", has_one)

    def send(self, *frames):
        self.socket.send_multipart(frames)

    def say(self, counts, wave=0, running=False):
        self.send(msgspec.msgpack.encode((counts, wave, running)))

    def close(self):
        self.socket.close()
        self.context.term()


@pytest.fixture
def coordinator(scene):
    one = Coordinator()
    scene.engines.append(one)
    return one


def row(worker_id=7, ranks=1, first_rank=0, total_blocks=0, **load):
    """A worker of which only the load is read."""
    keys = " ".join(f"{key} = {json.dumps(value)};" for key, value in load.items())
    return (
        f'id = {worker_id}; model = "m"; block_size = 16; ranks = {ranks}; first_rank = {first_rank};'
        f' events = "tcp://127.0.0.1:{programs.free_port()}"; total_blocks = {total_blocks};'
        f" load = {{ {keys} }};"
    )


class Loads:
    """The load that the bridge publishes: the newest value of each rank, and how many messages
    there were."""

    def __init__(self, scene):
        self.seen = scene.bus().watch(SUBJECT)
        self.read = 0
        self.newest = {}
        self.counts = {}

    def look(self):
        for message in self.seen[self.read:]:
            self.read += 1
            report = json.loads(message.data)
            rank = (report["worker_id"], report.get("dp_rank", 0))
            self.newest[rank] = figures_of(report)
            self.counts[rank] = self.counts.get(rank, 0) + 1
        return self.newest

    def wait(self, rank, **figures):
        def is_so():
            load = self.look().get(rank)
            return load if load and all(load[key] == value for key, value in figures.items()) else None

        return wait_for(f"{rank} shows {figures}, not {self.newest.get(rank)}", is_so)

    def forget(self):
        self.look()
        self.newest.clear()
        self.counts.clear()


def figures_of(report):
    flat = {}

    def walk(value):
        for key, inside in value.items():
            if isinstance(inside, dict):
                walk(inside)
            else:
                flat[key] = inside

    walk(report)
    return flat


def sources(bridge):
    return {(one["worker_id"], one["kind"]): one for one in bridge.get("/state")["load_sources"]}


def page(active, waiting=0, usage=0.0, hits=0, queries=0, engine=0, blocks=101):
    label = f'{{engine="{engine}",model_name="m"}}'
    return (
        f"vllm:num_requests_running{label} {active}\nvllm:num_requests_waiting{label} {waiting}\n"
        f"vllm:kv_cache_usage_perc{label} {usage}\n"
        f"vllm:prefix_cache_hits_total{label} {hits}\nvllm:prefix_cache_queries_total{label} {queries}\n"
        f'vllm:cache_config_info{{engine="{engine}",num_gpu_blocks="{blocks}",block_size="16"}} 1.0\n'
    )


# ---- A real engine -------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.sanitize
def test_the_recorded_data_parallel_run_comes_out_by_rank(scene, web, coordinator):
    web.pages["/metrics"] = (CAPTURE / "metrics-dp2.txt").read_text()
    loads = Loads(scene)
    bridge = scene.bridge(row(
        ranks=2, total_blocks=64, prometheus=web.url("/metrics"), coordinator=coordinator.endpoint,
        total_slots=256, scrape_ms=100,
    ))
    for rank, active, used in ((0, 4, 42), (1, 3, 27)):
        load = loads.wait((7, rank), request_active_slots=active)
        assert {key: load[key] for key in FIGURES} == {
            "request_active_slots": active, "request_total_slots": 256, "kv_active_blocks": used, "kv_total_blocks": 64,
            "num_requests_waiting": 0, "gpu_cache_usage_perc": pytest.approx(used / 63), "gpu_prefix_cache_hit_rate": 0,
        }
    assert sources(bridge)[7, "coordinator"]["state"] == "waiting"

    # The page is removed; the coordinator repeats its recorded messages, frame by frame.
    web.pages["/metrics"] = None
    coordinator.wait_for_listener()
    for line in (CAPTURE / "coordinator-dp2.txt").read_text().splitlines():
        frame = bytes.fromhex(line.split()[1])
        counts, _, _ = msgspec.msgpack.decode(frame)
        coordinator.send(frame)
        for rank, (waiting, running, usage) in enumerate(counts):
            loads.wait((7, rank), num_requests_waiting=waiting, request_active_slots=running,
                       kv_active_blocks=round(usage * 63), kv_total_blocks=64)
    assert coordinator.heard == [b"\x01"], "only the subscription was sent"
    wait_for("the coordinator is fresh", lambda: sources(bridge)[7, "coordinator"]["state"] == "fresh")


# ---- Sources that fail -----------------------------------------------------------------


@pytest.mark.sanitize
def test_a_slow_page_delays_no_other_and_failures_are_distinguished(scene, web):
    web.pages.update({
        "/good": page(3), "/hangs": web.hangs, "/endless": web.endless, "/slow": web.slow(page(5), 1.2),
        "/html": "<html><body>welcome</body></html>", "/torn": web.says(b"HTTP/1.1 200 OK\r\nContent-Le"),
        "/bytes": web.says(bytes(range(256)) * 10), "/nan": page("NaN", 4, usage="NaN"),
    })
    paths = ["/good", "/hangs", "/endless", "/slow", "/html", "/torn", "/bytes", "/nan", "/missing"]
    rows = [row(i + 1, prometheus=web.url(path), scrape_ms=100) for i, path in enumerate(paths)]
    rows.append(row(99, prometheus=f"http://127.0.0.1:{programs.free_port()}/metrics", scrape_ms=100))
    loads = Loads(scene)
    bridge = scene.bridge(*rows)

    loads.wait((1, 0), request_active_slots=3)
    asked, hung = web.asked["/good"], web.asked["/hangs"]
    wait_for("the good page is read twenty times more", lambda: web.asked["/good"] >= asked + 20)
    # If it waited for the page that hangs, it would be read once each time that this one is.
    assert web.asked["/hangs"] < hung + 10, "it waits for nobody"
    loads.wait((4, 0), request_active_slots=5)
    broken = loads.wait((8, 0), num_requests_waiting=4)
    assert (broken["request_active_slots"], broken["gpu_cache_usage_perc"]) == (0, 0)

    why = {
        2: "gave no whole answer in 5000 ms", 3: "sent more than 8388608 bytes", 5: "names no load", 6: "", 7: "",
        9: "answered HTTP 404", 99: "onnect",
    }
    wait_for("each failing source is stale and has a reason", lambda: all(
        sources(bridge)[worker, "prometheus"]["state"] == "stale"
        and sources(bridge)[worker, "prometheus"]["why"]
        and words in sources(bridge)[worker, "prometheus"]["why"] for worker, words in why.items()))
    for outcome in ("ok", "late", "too_large", "foreign", "unreachable", "code"):
        assert bridge.metric("kvb_scrapes_total", outcome=outcome) > 0, outcome
    assert bridge.metric("kvb_load_samples_refused_total", reason="figure") > 0
    assert bridge.metric("kvb_load_sources", state="stale") == len(why)
    assert set(loads.look()) == {(1, 0), (4, 0), (8, 0)}
    for worker in why:  # failures are logged, but not each of some hundred
        lines = [line for line in bridge.text().splitlines() if f"worker={worker} " in line and "load" in line]
        assert 1 <= len(lines) <= 3, lines


def test_a_page_that_falls_silent_leaves_the_figures_and_comes_back(scene, web):
    web.pages["/metrics"] = page(3)
    loads = Loads(scene)
    aggregator = scene.aggregator(extra="load = { expire_ms = 600; };\n")
    bridge = scene.bridge(row(prometheus=web.url("/metrics"), scrape_ms=100))
    loads.wait((7, 0), request_active_slots=3)
    (endpoint,) = wait_for("the aggregator has the load", lambda: aggregator.get("/load")["endpoints"])
    assert endpoint["kv_block_size"] == 16  # of the page

    web.go_away()
    wait_for("the source is stale", lambda: sources(bridge)[7, "prometheus"]["state"] == "stale")
    wait_for("the aggregator has no load", lambda: not aggregator.get("/load")["endpoints"])
    loads.forget()
    bridge.wait_until_it_says("a load source")
    assert sources(bridge)[7, "prometheus"]["age_ms"] >= 3000

    web.pages["/metrics"] = page(4)
    web.start(web.port)
    loads.wait((7, 0), request_active_slots=4)
    wait_for("the source is fresh", lambda: sources(bridge)[7, "prometheus"]["state"] == "fresh")
    bridge.wait_until_it_says("sends again")


# ---- The coordinator -----------------------------------------------------------------


def test_ranks_come_and_go_with_the_coordinators_list(scene, coordinator):
    loads = Loads(scene)
    bridge = scene.bridge(
        row(1, ranks=2, coordinator=coordinator.endpoint, total_blocks=101),
        row(2, first_rank=3, coordinator=coordinator.endpoint),
    )
    wait_for("both listen", lambda: coordinator.socket.poll(0) and coordinator.heard.append(coordinator.socket.recv())
             or coordinator.heard)
    coordinator.say([[1, 2]], running=True)
    loads.wait((1, 0), num_requests_waiting=1, request_active_slots=2)
    assert (1, 1) not in loads.newest

    coordinator.say([[1, 2, 0.5], [3, 4, 0.25], [9, 9, 0.9], [5, 6, 1.0]])
    loads.wait((1, 1), num_requests_waiting=3, request_active_slots=4, kv_active_blocks=25, kv_total_blocks=101)
    loads.wait((2, 3), num_requests_waiting=5, request_active_slots=6)

    coordinator.say([[0, 1, 0.5]])  # scaled down
    loads.wait((1, 0), num_requests_waiting=0, request_active_slots=1)
    loads.forget()
    wait_for("rank 0 goes on", lambda: loads.look() and loads.counts[1, 0] >= 5)
    assert set(loads.newest) == {(1, 0)}

    coordinator.say([[0, 1, 0.5], None, None, [2, None, None]])
    loads.wait((2, 3), num_requests_waiting=2, request_active_slots=0)
    coordinator.say(None, wave=1)
    coordinator.say([[7, 8], [9, 10, float("nan")]])
    loads.wait((1, 1), num_requests_waiting=9, request_active_slots=10)
    assert bridge.metric("kvb_load_samples_refused_total", reason="figure") == 2  # from both ranks
    for frames in ([b"\x01"], [b"garbage"], [b"a", msgspec.msgpack.encode(([[1, 1]], 0, True))]):
        coordinator.send(*frames)
    wait_for("nonsense is counted, by both", lambda: bridge.metric("kvb_load_samples_refused_total", reason="message") == 6)
    assert loads.wait((1, 1), num_requests_waiting=9)


# ---- Sockets, and several sources ----------------------------------------------------


def protocol_errors(bridge):
    return bridge.metric("kvb_load_samples_refused_total", reason="protocol")


def test_a_load_message_above_the_limit_is_counted_and_the_next_one_is_read(scene):
    """libzmq ends the connection at it, reports nothing and never connects again."""
    scene.start_nats()
    feed, loads = scene.load_feed(), Loads(scene)
    bridge = scene.bridge(row(zmq=feed.endpoint))

    def fed(waiting):
        feed.send({"num_requests_waiting": waiting, "kv_active_blocks": 7})
        return (7, 0) in loads.look() and loads.look()[7, 0]["num_requests_waiting"] == waiting

    wait_for("the figures are read", lambda: fed(1))
    for count in (1, 2):
        feed.pub.send(bytes(1 << 20))
        wait_for("the metric counts the error", lambda: protocol_errors(bridge) == count)
        wait_for("figures are read again", lambda: fed(count + 1))
    wait_for("the log says why", lambda: "a message above 64 KiB, bytes that are not ZMTP" in bridge.text())
    assert protocol_errors(bridge) == 2


def test_invalid_pages_and_endpoints_are_errors_of_check(scene):
    path = scene.folder / "bad.cfg"
    path.write_text(
        'publish = { namespace = "n"; component = "c"; };\nworkers = (\n  { '
        + row(prometheus="127.0.0.1:8000/metrics", coordinator="http://127.0.0.1:1", scrape_ms=10) + " });\n"
    )
    done = programs.run("kvbridge", "--config", path, "--check")
    assert done.returncode == 78
    assert "load.prometheus: expected http://host:port/path" in done.stderr + done.stdout
    assert "load.coordinator: expected tcp://host:port" in done.stderr + done.stdout
    assert "load.scrape_ms: 10 is out of range" in done.stderr + done.stdout
