"""Does kvctl top show the fleet on any terminal, also while NATS is away, and does it restore the
terminal however it ends?"""

import contextlib
import json
import os
import re
import signal
import subprocess

import pytest

import engine
import programs
from conftest import PUBLISH, ROUTER, worker
from programs import PATIENCE, wait_for
from terminal import Terminal
from test_faults import BLOCK, tokens_of

KVCTL = programs.BIN / "kvctl"


def store(*numbers):
    return engine.batch(*(engine.stored([n], tokens_of(n), BLOCK) for n in numbers))


def publish_load(bus, worker_id, active, waiting, used):
    bus.publish(f"{PUBLISH}.load_metrics", json.dumps({
        "worker_id": worker_id, "dp_rank": 0, "endpoint_name": "generate", "metrics": {
            "request_active_slots": active, "request_total_slots": 256, "kv_active_blocks": used,
            "kv_total_blocks": 100, "gpu_cache_usage_perc": used / 100,
            "gpu_prefix_cache_hit_rate": 0.5, "num_requests_waiting": waiting}}).encode())


@pytest.fixture
def fleet(scene):
    """Two workers: 7 holds two blocks, 8 holds one.  An aggregator knows both."""
    scene.vllm7, scene.vllm8 = scene.engine(), scene.engine()
    scene.agg = scene.aggregator()
    scene.bridge(worker(scene.vllm7, 7), worker(scene.vllm8, 8))
    scene.vllm7.publish(store(1, 2))
    scene.vllm8.publish(store(3))
    wait_for("three blocks are listed", lambda: scene.agg.metric("kvb_index_blocks") == 3)
    wait_for("both lists are EXACT", lambda: scene.agg.is_exact(2))
    return scene


@pytest.fixture
def top(request, scene):
    """Starts `kvctl top` on a terminal; all are ended with the test."""
    started = []

    def start(*options, argv=None, **terminal):
        argv = argv or [KVCTL, "--nats", scene.nats_url, "top", *options]
        started.append(Terminal(argv, **terminal))
        return started[-1]

    yield start
    reports = [one.raw for one in started if one.stop() and b"Sanitizer" in one.raw]
    assert not reports, b"\n".join(reports).decode(errors="replace")


def row_of(terminal, worker_id):
    """The cells of a worker's line by the titles above them; {} when there is no such line."""
    titles = None
    for line in terminal.lines:
        words = line.split()
        if words and words[0].startswith("WORKER"):
            titles = [word.rstrip("^v") for word in words]
        elif titles and words and words[0] == str(worker_id) and len(words) == len(titles):
            return dict(zip(titles, words))
    return {}


def see_seconds_pass(screen, count):
    """Compares with the clock on the screen."""
    clocks = set()

    def have_passed(text):
        clocks.update(re.findall(r"\d\d:\d\d:\d\d", text))
        return len(clocks) > count

    screen.wait("the clock goes on", have_passed)


@contextlib.contextmanager
def costs_little(screen):
    """Checks that there is no busy loop, and that only changed cells are written."""
    cpu, written = screen.cpu_seconds(), len(screen.raw)
    yield
    assert screen.cpu_seconds() - cpu < 0.5 * PATIENCE
    assert len(screen.raw) - written < 2000 * PATIENCE


def once(scene, *options, env=None):
    return subprocess.run(
        [KVCTL, "--nats", scene.nats_url, "top", "--once", *options], capture_output=True,
        text=True, timeout=30 * PATIENCE, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


# ---- What is shown ------------------------------------------------------------------------


@pytest.mark.sanitize
def test_the_fleet_s_numbers_are_shown(fleet, top):
    bus, screen = fleet.bus(), top()

    def loads_shown():
        publish_load(bus, 7, 12, 3, 40)
        publish_load(bus, 8, 1, 0, 60)
        row = row_of(screen, 7)
        return row.get("LOAD") == "0.40" and row.get("ACTIVE") == "12" and row["RECON"] != "-"

    wait_for("all of worker 7", loads_shown)
    row = row_of(screen, 7)
    assert (row["RANK"], row["STATE"], row["BLOCKS"]) == ("0", "EXACT", "2"), row
    assert (row["WAIT"], row["RECON"]) == ("3", "0"), row
    assert row_of(screen, 8)["BLOCKS"] == "1"
    text = screen.text()
    assert "NATS connected" in text and "aggregator 0" in text and "1 bridge" in text
    assert "2 streams  2 EXACT" in text and "3 blocks held" in text
    assert "load 0.500 std 0.141" in text and "13 active 3 waiting" in text
    assert "engines' 50%" in text and "reconnects 0 engines 0 NATS" in text


def test_rates_hits_and_reconnects_are_counted(fleet, top):
    bus, screen = fleet.bus(), top()
    screen.see("hit rate -")
    question = {"token_ids": tokens_of(1) + tokens_of(9), "model": "m"}
    bus.request(f"{ROUTER}.kv_route", json.dumps(question).encode())
    screen.see("hit rate 50% (1 routed)")

    def events_shown():
        fleet.vllm7.publish(store(5))
        fleet.vllm7.publish(engine.batch(engine.removed(5)))
        return float(row_of(screen, 7).get("EVENTS/S", "-").replace("-", "0")) > 0

    wait_for("events of worker 7", events_shown)
    fleet.vllm8.restart()
    wait_for("worker 8 has reconnected", lambda: row_of(screen, 8).get("RECON") == "1", 20)
    assert row_of(screen, 7)["RECON"] == "0"
    screen.see("reconnects 1 engines 0 NATS")


def test_terminal_escape_sequences_are_not_shown(scene, top):
    bus, screen = scene.bus(), top()
    evil = "\033]0;owned\a\033[31m\u009b2J\r\n"
    status = {"bridge_id": evil, "profile": "json", "streams": [
        {"worker_id": 5, "dp_rank": 0, "state": evil, "reason": evil, "blocks": {"device": 1}}]}

    def shown():
        bus.publish(f"{PUBLISH}.bridge_status", json.dumps(status, ensure_ascii=False).encode())
        return "1 bridge" in screen.text() and "?]0;owned" in screen.text()

    wait_for("the stream is listed", shown)
    assert b"\033]" not in screen.raw and b"\a" not in screen.raw and b"\xc2\x9b" not in screen.raw


# ---- Keys -----------------------------------------------------------------------------------


def order(screen):
    return [int(m[1]) for line in screen.lines if (m := re.match(r" +([78]) +0 ", line))]


def test_keys_sort_filter_pause_help_and_quit(fleet, top):
    screen = top()
    screen.wait("both rows", lambda _: order(screen) == [7, 8])
    screen.press("r")
    screen.wait("the other way round", lambda _: order(screen) == [8, 7])
    screen.press("B")
    screen.wait("most blocks first", lambda text: "BLOCKSv" in text and order(screen) == [7, 8])
    screen.press("B")
    screen.wait("fewest first", lambda text: "BLOCKS^" in text and order(screen) == [8, 7])
    screen.press("\033[C")
    screen.see("LOADv")

    screen.press("/8")
    screen.see("filter: 8_")
    screen.press(" exact\r")
    screen.wait("worker 8 alone", lambda text: '"8 exact"' in text and order(screen) == [8])
    screen.press("\033")
    screen.wait("no filter", lambda text: "1-2 of 2" in text)

    screen.press("h")
    screen.see("sort by EVENTS/S")
    screen.press("h")
    screen.see("WORKER")

    screen.press("p")
    screen.see("PAUSED")
    fleet.vllm8.publish(store(4, 5, 6))
    wait_for("the aggregator knows more", lambda: fleet.agg.metric("kvb_index_blocks") == 6)
    screen.press("r")  # keys still work on the paused picture
    screen.see("LOAD^")
    see_seconds_pass(screen, 2)
    assert "3 blocks held" in screen.text()
    screen.press("p")
    screen.see("6 blocks held")

    screen.press("q")
    assert screen.end() == 0 and screen.is_restored()


def test_more_streams_than_lines_are_scrolled(scene, top):
    bus, screen = scene.bus(), top(rows=12)
    status = {"bridge_id": "b", "profile": "json", "streams": [
        {"worker_id": n, "dp_rank": 0, "state": "EXACT", "reason": "", "events": 0} for n in range(1, 101)]}

    def shown():
        bus.publish(f"{PUBLISH}.bridge_status", json.dumps(status).encode())
        return "of 100" in screen.text()

    wait_for("a hundred streams", shown)
    page = int(re.search(r"1-(\d+) of 100", screen.text())[1])
    screen.press("\033[6~")
    screen.see(f"{page + 1}-{2 * page} of 100")
    screen.press("\033[A")
    screen.see(f"{page}-{2 * page - 1} of 100")
    screen.press("G")
    screen.see(f"{101 - page}-100 of 100")
    screen.press("g")
    screen.see(f"1-{page} of 100")
    # For each TERM: xterm, its application mode, rxvt, the Linux console.
    for down, up in [("\033[B", "\033[A"), ("\033OB", "\033OA")]:
        screen.press(down)
        screen.see(f"2-{page + 1} of 100")
        screen.press(up)
        screen.see(f"1-{page} of 100")
    for end, home in [("\033[F", "\033[H"), ("\033OF", "\033OH"), ("\033[4~", "\033[1~"), ("\033[8~", "\033[7~")]:
        screen.press(end)
        screen.see(f"{101 - page}-100 of 100")
        screen.press(home)
        screen.see(f"1-{page} of 100")


# ---- Terminals --------------------------------------------------------------------------------


@pytest.mark.sanitize
def test_any_size_and_every_change_of_it(fleet, top):
    screen = top(columns=20, rows=10)
    screen.wait("worker and state", lambda _: row_of(screen, 7) == {"WORKER": "7", "STATE": "EXACT"})
    for columns, rows in [(80, 5), (80, 4), (80, 3), (80, 2), (80, 1), (1, 1), (20, 3), (200, 50), (8, 24)]:
        screen.resize(columns, rows)
        # Pictures are told apart by their bytes, because a small screen may have no clock.
        before = len(screen.raw)
        wait_for("a picture of that size", lambda: screen.pump() or screen.raw[before:].count(b"\033[2J"))
    screen.resize(100, 30)
    screen.wait("all of it again", lambda _: row_of(screen, 8).get("BLOCKS") == "1")
    screen.wait("keys on the last line", lambda _: screen.lines[29].startswith("1-2 of 2"))


def test_colours_are_for_terminals_that_want_them(fleet, top):
    screen = top()
    screen.see("EXACT")
    assert b"\033[32m" in screen.raw
    screen = top(env={"NO_COLOR": "1"})
    screen.see("EXACT")
    assert not re.search(rb"\033\[\d*[1-9]m", screen.raw)


def test_a_terminal_that_no_list_has_is_driven_as_xterm_is(fleet, top):
    screen = top(env={"TERM": "unheard-of"})
    screen.wait("worker 7", lambda _: row_of(screen, 7).get("STATE") == "EXACT")
    screen.press("q")
    assert screen.end() == 0 and screen.is_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_it_and_restores_the_terminal(scene, top, number):
    screen = top()
    screen.see("no streams yet")
    screen.process.send_signal(number)
    assert screen.end() == 0 and screen.is_restored()


def test_ctrl_c_ends_it_and_restores_the_terminal(scene, top):
    screen = top()
    screen.see("no streams yet")
    screen.press("\x03")
    assert screen.end() == 0 and screen.is_restored()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_restores_the_terminal_too(scene, top, number):
    screen = top()
    screen.see("no streams yet")
    screen.process.send_signal(number)
    assert screen.end() == -number and screen.is_restored()


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_back(scene, top):
    screen = top(argv=["bash", "--norc", "--noprofile", "--noediting", "-i"], env={"PS1": "shell> "})
    screen.see("shell>")
    screen.press(f"{KVCTL} --nats {scene.nats_url} top\n")
    screen.see("no streams yet")
    screen.press("\x1a")
    screen.see("Stopped")
    screen.wait("restored", lambda _: screen.is_restored())
    screen.stream.feed(b"\033[2J\033[H")
    screen.press("fg\n")
    screen.see("no streams yet")
    screen.press("q")
    screen.wait("restored again", lambda _: screen.is_restored())
    screen.press("exit\n")
    assert screen.end() == 0


def test_foreign_output_is_drawn_over(scene, top):
    screen = top()
    screen.see("no streams yet")
    screen.process.send_signal(signal.SIGSTOP)
    os.write(screen.slave, b"\033[?1049l\033[2J\033[Hnot ours")
    screen.see("not ours")
    screen.process.send_signal(signal.SIGCONT)
    screen.wait("all of it again", lambda text: "no streams yet" in text and "not ours" not in text)
    assert screen.raw.rfind(b"\033[?1049h") > screen.raw.find(b"not ours")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.end() == 0 and screen.is_restored()


def test_a_terminal_that_goes_away_ends_it(scene, top):
    screen = top()
    screen.see("no streams yet")
    os.close(screen.master)
    screen.master = os.open(os.devnull, os.O_RDWR)
    assert screen.end() in (0, 1)  # either SIGHUP or the failed write comes first


def test_without_keys_it_still_draws(scene, top):
    screen = top(stdin=subprocess.DEVNULL)
    screen.see("no streams yet")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.end() == 0 and screen.is_restored()


# ---- Scripts ------------------------------------------------------------------------------------


@pytest.mark.sanitize
def test_once_prints_one_picture_without_escapes(fleet):
    done = once(fleet)
    assert done.returncode == 0, done.stderr
    assert "\033" not in done.stdout and "\r" not in done.stdout and done.stderr == ""
    assert done.stdout.count("kvctl top") == 1 and "2 streams  2 EXACT" in done.stdout
    assert re.search(r"^ *7 +0 EXACT +- +0\.0 ", done.stdout, re.M), done.stdout
    done = once(fleet, "--sort", "blocks", "--filter", "exact 8")
    assert "BLOCKSv" in done.stdout and not re.search(r"^ *7 ", done.stdout, re.M)
    assert once(fleet, "--sort", "nonsense").returncode == 64


def test_once_as_json_is_one_object(fleet):
    done = once(fleet, "--json")
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stderr
    said = json.loads(done.stdout)
    assert said["nats_connected"] and said["aggregator_answers"]
    assert said["totals"]["states"]["EXACT"] == 2 and said["totals"]["blocks"] == 3
    assert [(row["worker_id"], row["state"], row["blocks"]) for row in said["streams"]] == [
        (7, "EXACT", 2), (8, "EXACT", 1)]
    assert said["streams"][0]["events_per_s"] == 0 and said["streams"][0]["reconnects"] == 0


def test_once_without_an_aggregator_fails_with_the_reason(scene):
    scene.bridge(worker(scene.engine(), 7))
    done = once(scene)
    assert done.returncode == 1
    assert "nobody answers for dynamo/Router: is it running?" in done.stderr
    assert re.search(r"^ *7 +0 ", done.stdout, re.M), "what the bridge says is shown"


@pytest.mark.no_nats
def test_no_terminal_is_a_clear_error(scene):
    argv = [KVCTL, "--nats", "nats://127.0.0.1:1", "top"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (64, "") and "give --once" in done.stderr
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and "--json needs --once" in done.stderr


def test_a_dumb_terminal_is_a_clear_error(scene, top):
    screen = top(env={"TERM": "dumb"})
    assert screen.end() == 64 and b"\033" not in screen.raw
    screen = top("--once", env={"TERM": "dumb"})
    assert screen.end() == 1 and b"\033" not in screen.raw
    screen.see("no streams yet")


# ---- Absences --------------------------------------------------------------------------------------


def test_an_absence_of_nats_is_shown_and_ends_by_itself(fleet, top):
    screen = top()
    screen.wait("worker 7", lambda _: row_of(screen, 7).get("STATE") == "EXACT")
    nats = fleet.started[0]
    nats.stop()
    screen.see("NATS is away, trying again")
    screen.see("STALE")
    with costs_little(screen):
        screen.wait("the age grows", lambda text: int(re.search(r"STALE (\d+) s", text)[1]) >= 4, 15)
    assert row_of(screen, 7).get("STATE") == "EXACT", "the last picture stays"
    fleet.start_nats(fleet.nats_port)
    screen.see("NATS connected", 20)
    screen.wait("worker 7 again", lambda text: "STALE" not in text and "away" not in text
                and row_of(screen, 7).get("STATE") == "EXACT", 20)
    screen.see("1 NATS", 20)  # the bridge has reconnected too, and its messages show it


def test_an_idle_screen_costs_next_to_nothing(fleet, top):
    screen = top()
    screen.wait("worker 7", lambda _: row_of(screen, 7))
    with costs_little(screen):
        see_seconds_pass(screen, 4)


def test_a_silent_aggregator_is_shown_and_its_successor_used(fleet, top):
    screen = top()
    screen.wait("worker 7", lambda _: row_of(screen, 7))
    fleet.agg.stop()
    screen.see("aggregator silent for")
    screen.see("nobody answers for dynamo/Router")
    assert row_of(screen, 7), "bridges still say what they know"
    fleet.aggregator(name="another")
    screen.wait("answers again", lambda text: "silent" not in text and "aggregator 0" in text, 20)


def test_a_stuck_aggregator_does_not_stop_the_keys(fleet, top):
    screen = top()
    screen.wait("worker 7", lambda _: row_of(screen, 7))
    fleet.agg.process.send_signal(signal.SIGSTOP)
    try:
        screen.see("within 2000 ms", 15)
        screen.press("h")
        screen.see("sort by EVENTS/S", 1)
        screen.press("q")
        wait_for("the terminal is restored at once", screen.is_restored, 1)
        assert screen.end() == 0
    finally:
        fleet.agg.process.send_signal(signal.SIGCONT)
