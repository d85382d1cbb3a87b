"""Does a person see the fleet as it is on the status page, on any screen, through the
deaths of workers, bridges and the aggregator itself; and what do 200 browsers cost?"""

import json
import select
import socket
import struct

import pytest

import browser
import engine
import programs
from conftest import PUBLISH, worker
from programs import TRACE, wait_for
from test_faults import BLOCK, tokens_of


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    one = browser.start(tmp_path_factory.mktemp("chromium"))
    yield one
    one.close()


@pytest.fixture
def tab(chromium):
    """A browser with a fresh profile."""
    chromium.open("about:blank")
    chromium.size(1280, 900)
    chromium.scheme("light")
    chromium.console.clear()
    return chromium


def show(tab, aggregator, rows=None):
    tab.open(f"http://127.0.0.1:{aggregator.port}/")
    wait_for("the page is live", lambda: tab.text("#pulse") == "live" and tab.text("#total") != "-")
    if rows is not None:
        wait_for(f"{rows} rows are shown", lambda: len(table(tab)) == rows)


def table(tab):
    """The rows shown, a list of the cells' texts each."""
    return tab.js("[...document.querySelectorAll('#rows tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))")


def totals(tab):
    return tab.js(
        "Object.fromEntries([...document.querySelectorAll('#totals button')]"
        ".map(b => [b.dataset.state, Number(b.querySelector('b').textContent)]))"
    )


def points(tab, plot, path="line"):
    return tab.js(f"document.querySelector('#{plot} .{path}').getAttribute('d').split(/[ML]/).length - 1")


def say_load(bus, worker_id, active):
    bus.publish(
        f"{PUBLISH}.load_metrics",
        json.dumps({
            "worker_id": worker_id, "dp_rank": 0, "endpoint_name": "generate",
            "metrics": {
                "request_active_slots": 2, "request_total_slots": 8, "kv_active_blocks": active,
                "kv_total_blocks": 100, "gpu_cache_usage_perc": 0.5, "gpu_prefix_cache_hit_rate": 0.5,
                "num_requests_waiting": 0,
            },
        }).encode(),
    )


def fleet(scene, workers=2):
    """Engines, their bridge and an aggregator; worker n holds n blocks."""
    engines = [scene.engine() for _ in range(workers)]
    aggregator = scene.aggregator()
    scene.bridge(*(worker(one, number) for number, one in enumerate(engines, 1)))
    for number, one in enumerate(engines, 1):
        for block in range(number):
            one.publish(engine.batch(engine.stored([block + 1], tokens_of(block), BLOCK)))
    wait_for(
        "all are in sync",
        lambda: [(s["state"], s["blocks"]["device"]) for s in aggregator.get("/streams")["streams"]]
        == [("EXACT", number) for number in range(1, workers + 1)],
    )
    return aggregator, engines


# ---- What is shown ------------------------------------------------------------------


@pytest.mark.first
def test_shows_the_fleets_numbers_and_their_past(scene, tab):
    aggregator, _ = fleet(scene)
    bus = scene.bus()
    show(tab, aggregator, rows=2)

    def is_drawn():
        say_load(bus, 1, 20)
        say_load(bus, 2, 60)
        routed = json.loads(aggregator.http("POST", "/route", {"token_ids": tokens_of(0) + tokens_of(7), "model": "m"})[1])
        aggregator.http("POST", "/finished", {
            "request_id": routed["request_id"], "cached_tokens": 16 * routed["overlap_blocks"]})
        return all(points(tab, plot) >= 3 for plot in ("events", "blocks", "hits", "load", "kept"))

    assert tab.js("document.querySelector('#kept').hidden"), "nobody has reported cached tokens"
    wait_for("all plots have points", is_drawn)
    assert points(tab, "load", "band") >= 6, "up one side of the band and down the other"
    wait_for("the table has what /streams says", lambda: [(row[0], *row[2:7]) for row in table(tab)] == [
        (s["state"], str(s["worker_id"]), str(s["dp_rank"]), f"{s['namespace']} / {s['component']}",
         s["model"], str(s["blocks"]["device"])) for s in aggregator.get("/streams")["streams"]])
    wait_for("both are EXACT", lambda: totals(tab) == {
        "EXACT": 2, "SYNCING": 0, "PARTIAL": 0, "UNVERIFIED": 0, "STALE": 0, "DOWN": 0})
    assert tab.text("#total") == "2"
    wait_for("the sum of the blocks", lambda: tab.text("#blocks .now") == "3")
    wait_for("loads of 20% and 60%", lambda: (tab.text("#load .now"), [row[8] for row in table(tab)]) == ("40%", ["20%", "60%"]))
    assert "28% standard deviation" in tab.text("#load .unit")
    wait_for("one block of two was a hit", lambda: tab.text("#hits .now") == "50%")
    wait_for("the promised hit was delivered", lambda: tab.text("#kept .now") == "100%" and "100%" in [row[9] for row in table(tab)])
    wait_for("and what was promised has a line", lambda: points(tab, "kept", "second") >= 3)
    assert not tab.console


def test_an_empty_page_says_where_it_listens_and_what_the_states_mean(scene, tab):
    aggregator = scene.aggregator()
    show(tab, aggregator, rows=0)
    wait_for("it says where it listens", lambda: "kv_heartbeat" in tab.text("#empty"))
    said = tab.text("#empty")
    assert scene.nats_url.split("@")[-1].removeprefix("nats://") in said and "kv_events" in said, said
    assert tab.js("[...document.querySelectorAll('#shares span')].every(share => share.getClientRects().length === 0)")
    assert tab.js("[...document.querySelectorAll('#totals button')].every(button => button.title.length > 20)")
    vllm = scene.engine()
    scene.bridge(worker(vllm))
    vllm.publish(engine.batch(engine.stored([1], tokens_of(0), BLOCK)))
    wait_for("its state is shown", lambda: [row[0] for row in table(tab)] == ["EXACT"])
    tab.js("document.querySelector('#rows .state a').click()")
    assert tab.js("document.querySelector('#meanings').open") and tab.js("location.hash") == "#meaning-EXACT"
    assert "what the engine holds" in tab.text("#meanings")
    assert not tab.console


def test_a_browser_opened_later_sees_the_past(scene, tab):
    aggregator, _ = fleet(scene)
    wait_for("three seconds of history", lambda: len(aggregator.get("/history")["samples"]) >= 3)
    show(tab, aggregator)
    assert points(tab, "blocks") >= 3
    tab.js("document.querySelector('#blocks svg').dispatchEvent(new PointerEvent('pointermove', {clientX: 0}))")
    assert tab.text("#blocks .spot").startswith(("3,", "0,")), "what the pointer is at is said in words"


# ---- What goes wrong -------------------------------------------------------------------


def start_fleet_of_one(scene):
    """A kvfleet that can be killed, its bridge, an aggregator."""
    config = scene.folder / "workers"
    killed = scene.start(
        "kvfleet",
        [programs.BIN / "kvfleet", "--workers", "1", "--ranks", "1", "--trace", TRACE, "--config-out", config],
    )
    wait_for("kvfleet is up", config.exists)
    aggregator = scene.aggregator()
    port = programs.free_port()
    bridge = scene.daemon(
        "kvbridge",
        f'nats = {{ url = "{scene.nats_url}"; }};\npublish = {{ namespace = "dynamo"; component = "VllmWorker"; }};\n'
        f'http = "127.0.0.1:{port}";\n{config.read_text()}',
        port,
    )
    return aggregator, {"engine_away": killed, "silent": bridge}


@pytest.mark.parametrize("reason", ["engine_away", "silent"])
def test_marks_a_killed_worker_or_bridge(scene, tab, reason):
    aggregator, programs_by_reason = start_fleet_of_one(scene)
    show(tab, aggregator)
    wait_for("the stream is in sync", lambda: [row[0] for row in table(tab)] == ["EXACT"])
    programs_by_reason[reason].kill()
    wait_for("the page marks it", lambda: [row[0] for row in table(tab)] == ["DOWN"])
    assert table(tab)[0][1].startswith(reason + ":"), "with the reason, and what it means"
    assert totals(tab)["DOWN"] == 1
    assert "1 down" in tab.js("document.title")


def test_says_that_the_aggregator_is_gone_and_recovers(scene, tab):
    aggregator, _ = fleet(scene)
    show(tab, aggregator, rows=2)
    assert tab.text("#notice") == "" and not tab.console
    aggregator.kill()
    wait_for("the page shows the error", lambda: "does not answer" in tab.text("#notice"))
    assert tab.text("#pulse") == "no answer"
    said = tab.text("#notice-more")
    hour = tab.js("known.answered.toLocaleTimeString('en-GB')")
    assert f"Last answer at {hour}" in said, said
    assert len(table(tab)) == 2, "what was known last stays"
    started = tab.js("known.startedMs")
    again = scene.daemon("kvaggregator", (scene.folder / "kvaggregator.cfg").read_text(), aggregator.port, "again")
    wait_for("the aggregator is ready again", again.is_ready)
    wait_for("the page is live again", lambda: tab.text("#pulse") == "live" and tab.text("#notice") == "")
    wait_for("of the new life", lambda: tab.js("known.startedMs") != started)
    wait_for("only the new life's samples are kept", lambda: tab.js("known.samples.length <= newestSecond()"))
    wait_for("the page shows the streams again", lambda: len(table(tab)) == 2)
    assert {source for source, _ in tab.console} <= {"network"}, tab.console


# ---- Text from outside --------------------------------------------------------------------

EVIL = "<img src=x onerror=hit()><script>hit()</script>&lt;b&gt;'m'"


def test_text_from_the_wire_is_inert(scene, tab):
    vllm = scene.engine()
    aggregator = scene.aggregator()
    scene.bridge(worker(vllm, 1 << 62, model=EVIL))
    show(tab, aggregator, rows=1)
    wait_for("the model is shown as it was sent", lambda: table(tab)[0][5] == EVIL)
    assert table(tab)[0][2] == str(1 << 62), "to its last digit"
    assert tab.js("document.querySelectorAll('main script, main img, main b b').length") == 0
    assert not tab.console, "nothing was even tried"
    page = aggregator.http("GET", "/")[1]
    assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(") if word in page]


# ---- Screens -----------------------------------------------------------------------------

# Every text that is seen, its colour, and the colour behind it, blended from all that
# lies under it.
CONTRAST = """(() => {
    const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
    const over = ([r, g, b, a = 1], below) => [r, g, b].map((c, i) => c * a + below[i] * (1 - a));
    const behind = (node) => {
        if (!node) return [255, 255, 255];
        const colour = parse(getComputedStyle(node).backgroundColor);
        return over(colour, colour[3] === undefined ? [0, 0, 0] : behind(node.parentElement));
    };
    const light = (colour) => {
        const [r, g, b] = colour.map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !node.getClientRects().length || node.closest("script, style, template")) continue;
        const style = getComputedStyle(node);
        const colour = parse(node.closest("svg") ? style.fill : style.color);
        const below = behind(node);
        found.push([walker.currentNode.data.trim(), ratio(over(colour, below), below)]);
    }
    const input = document.querySelector("#filter");
    found.push(["placeholder", ratio(parse(getComputedStyle(input, "::placeholder").color), behind(input))]);
    return found;
})()"""


def a_stream_of_each_kind(scene):
    """EXACT, UNVERIFIED (a publisher without heartbeats), DOWN (an engine that left)."""
    aggregator, engines = fleet(scene)
    event = {"worker_id": 9, "event": {"event_id": 1, "data": "cleared", "dp_rank": 0}}
    scene.bus().publish(f"{PUBLISH}.kv_events", json.dumps(event).encode())
    engines.pop().close()
    scene.engines.pop()
    wait_for(
        "three kinds",
        lambda: {s["state"] for s in aggregator.get("/streams")["streams"]} == {"EXACT", "UNVERIFIED", "DOWN"},
    )
    return aggregator


def test_both_colour_schemes_can_be_read_on_any_width(scene, tab):
    aggregator = a_stream_of_each_kind(scene)
    backgrounds = set()
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        for width in (1280, 390, 360):
            tab.size(width, 900)
            show(tab, aggregator, rows=3)
            found = tab.js(CONTRAST)
            assert {"DOWN", "UNVERIFIED", "EXACT", "Hit rate", "now"} <= {text for text, _ in found}
            weak = [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5]
            assert not weak, (scheme, width, weak)
            assert tab.js("document.documentElement.scrollWidth") <= width
            if width < 600:  # labels stand beside their values there
                assert not tab.js("[...document.querySelectorAll('#rows td[data-label]')].filter(cell => "
                                  "cell.getClientRects().length && !cell.innerText.trim()).map(cell => cell.dataset.label)")
        backgrounds.add(tab.js("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2, "the scheme is followed"
    # The notice has colours of its own, and comes last: the aggregator is gone then.
    aggregator.kill()
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        wait_for("the notice", lambda: "does not answer" in tab.text("#notice"))
        weak = [(text, round(ratio, 2)) for text, ratio in tab.js(CONTRAST) if ratio < 4.5]
        assert not weak, (scheme, weak)


def test_has_names_for_who_cannot_see_it(scene, tab):
    aggregator, _ = fleet(scene)
    show(tab, aggregator, rows=2)
    heads = tab.js("[...document.querySelectorAll('th')].map(head => [head.scope, head.innerText])")
    assert [scope for scope, _ in heads] == ["col"] * 10
    assert heads[0][1] == "State" and heads[1][1] == "Reason"
    named = tab.js("[...document.querySelectorAll('svg[role=img], input, table, main > section')].map(n => n.getAttribute('aria-label'))")
    assert len(named) == 11 and all(named), named
    assert tab.js("document.documentElement.lang") == "en"
    assert tab.js("document.querySelector('#notice-text').getAttribute('role')") == "alert"


# ---- Many --------------------------------------------------------------------------------


def test_thousands_of_streams_do_not_freeze_it(scene, tab):
    aggregator = scene.aggregator()
    bus = scene.bus()
    for number in range(3000):
        event = {"worker_id": 1000 + number, "event": {"event_id": 1, "data": "cleared", "dp_rank": 0}}
        bus.publish(f"{PUBLISH}.kv_events", json.dumps(event).encode())
    wait_for("all are known", lambda: aggregator.metric("kvb_streams") == 3000)
    show(tab, aggregator, rows=100)
    assert "2,900 left out" in tab.text("#foot")
    tab.js("document.querySelector('#more').click()")
    wait_for("more are shown", lambda: len(table(tab)) == 300)
    tab.js("(() => { const f = document.querySelector('#filter'); f.value = '2777/0 unverified'; f.dispatchEvent(new Event('input')); })()")
    wait_for("one is found among those left out", lambda: [row[2] for row in table(tab)] == ["2777"])
    assert "1 of 3,000 match" in tab.text("#shown")
    tab.js("document.querySelector('#totals [data-state=DOWN]').click()")
    wait_for("none is down", lambda: "No stream matches" in tab.text("#empty"))
    assert not tab.console


class Poller:
    """A browser as the server sees it: one connection that sends requests repeatedly."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.answers = 0
        self.pending = b""

    def ask(self):
        path = "/overview?rows=100&filter=" if self.answers % 2 else f"/history?since={self.answers}"
        self.socket.send(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())

    def take(self):
        """True when an answer is complete."""
        self.pending += self.socket.recv(1 << 16)
        head, gap, body = self.pending.partition(b"\r\n\r\n")
        if not gap:
            return False
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return False
        self.pending = b""
        self.answers += 1
        return True

    def leave(self):
        """With a reset, whatever was on its way."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def query_beside(aggregator, pollers, rounds):
    """Queries while all pollers send `rounds` requests."""
    by_fd = {poller.socket.fileno(): poller for poller in pollers}
    waiting = select.poll()
    for poller in pollers:
        waiting.register(poller.socket, select.POLLIN)
        poller.ask()

    def have_answers():
        for fd, _ in waiting.poll(100):
            if by_fd[fd].take() and by_fd[fd].answers < rounds:
                by_fd[fd].ask()
        status, text = aggregator.http("POST", "/query", {"token_ids": tokens_of(0), "model": "m"})
        assert status == 200, text
        return min(poller.answers for poller in pollers) >= rounds

    wait_for("all pollers have their answers", have_answers)


@pytest.mark.sanitize
def test_two_hundred_browsers_and_some_that_leave_hold_up_no_router(scene):
    aggregator, _ = fleet(scene)
    pollers = [Poller(aggregator.port) for _ in range(200)]
    try:
        query_beside(aggregator, pollers, rounds=10)
        for poller in pollers[:100]:
            poller.ask()
            poller.leave()
        stayed = pollers[100:]
        for poller in stayed:
            poller.answers = 0
        query_beside(aggregator, stayed, rounds=4)
    finally:
        for poller in pollers:
            poller.socket.close()
