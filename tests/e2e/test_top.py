"""Does kvctl top show the streams on any terminal, also while NATS or the aggregator is away, and does it restore the
terminal however it ends?"""

import contextlib
import json
import re
import signal
import subprocess

import pytest

import engine
import programs
from conftest import ROUTER, worker
from programs import PATIENCE, wait_for
from terminal import Terminal
from test_faults import BLOCK, tokens_of

KVCTL = programs.BIN / "kvctl"
TITLES = re.compile(r"LAST EVENT|[A-Z]+(?:<=)?")


def store(*numbers):
    return engine.batch(*(engine.stored([n], tokens_of(n), BLOCK) for n in numbers))


def stand_in(scene, *pages):
    """An aggregator that gives these pages of streams."""
    bus = scene.bus()

    async def reply(message):
        await message.respond(json.dumps(pages[json.loads(message.data)["from"]], ensure_ascii=False).encode())

    bus._wait(bus.client.subscribe(f"{ROUTER}.kv_get.streams", cb=reply))
    bus.flush()


def stream(number, **more):
    return {"worker_id": number, "dp_rank": 0, "state": "EXACT", "reason": "", **more}


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


def rows_of(text):
    """[{title: cell}] of a table of streams, on a screen or printed."""
    titles, found = None, []
    for line in text.splitlines():
        words = line.split()
        if words and words[0].startswith("WORKER"):
            titles = TITLES.findall(line)
        elif titles and words and words[0].isdecimal() and len(words) == len(titles):
            found.append(dict(zip(titles, words)))
    return found


def row_of(terminal, worker_id):
    """The cells of a worker's line by the titles above them; {} when there is no such line."""
    return next((row for row in rows_of(terminal.text()) if row["WORKER"] == str(worker_id)), {})


@contextlib.contextmanager
def costs_little(screen):
    """Checks that there is no busy loop, and that only changed cells are written."""
    cpu, written = screen.cpu_seconds(), len(screen.raw)
    yield
    assert screen.cpu_seconds() - cpu < 0.5 * PATIENCE
    assert len(screen.raw) - written < 2000 * PATIENCE


# ---- What is shown ------------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.sanitize
def test_it_shows_what_kvctl_streams_prints_and_what_changes(fleet, top):
    screen = top(columns=160)
    screen.wait("both workers", lambda _: row_of(screen, 7).get("STATE") == row_of(screen, 8).get("STATE") == "EXACT")
    printed = subprocess.run([KVCTL, "--nats", fleet.nats_url, "streams"], capture_output=True, text=True, timeout=60).stdout
    assert "MISSING<=" in printed
    screen.wait("the same table", lambda text: rows_of(text) == rows_of(printed))
    assert "2 streams  2 EXACT" in screen.text() and row_of(screen, 7)["DEVICE"] == "2"
    fleet.vllm7.publish(store(4, 5))
    screen.wait("two blocks more", lambda _: row_of(screen, 7).get("DEVICE") == "4")


def test_control_characters_of_peers_are_not_printed(scene, top):
    evil = "\033]0;owned\a\033[31m\u009b2J\r\n\u202e\u00fc"
    stand_in(scene, {"streams": [stream(5, reason=evil, model=evil), stream(6, state=evil)]})
    screen = top(columns=200)
    screen.see("?]0;owned??[31m??2J??????")
    assert b"\033]" not in screen.raw and b"\a" not in screen.raw and b"\xc2\x9b" not in screen.raw
    assert b"\xe2\x80" not in screen.raw, "nor marks of direction"


# ---- Keys -----------------------------------------------------------------------------------


def order(screen):
    return [int(row["WORKER"]) for row in rows_of(screen.text())]


def test_keys_sort_filter_and_quit(fleet, top):
    screen = top()
    screen.wait("both rows", lambda _: order(screen) == [7, 8])
    screen.press("r")
    screen.wait("the other way round", lambda text: "WORKERv" in text and order(screen) == [8, 7])
    screen.press("<")
    screen.see("by COMPONENT")
    screen.press("\033OC")
    screen.wait("from the last column to the first", lambda text: "WORKER^" in text and order(screen) == [7, 8])
    for _ in range(4):
        screen.press(">")
    screen.wait("fewest blocks first", lambda text: "DEVICE^" in text and order(screen) == [8, 7])

    screen.press("/8")
    screen.see("filter: 8_")
    screen.press("9\x7f eXact\r")
    screen.wait("worker 8 alone", lambda text: '1-1 of 1 "8 eXact" by' in text and order(screen) == [8])
    screen.press("/ nonsense\r")
    screen.see("none of this filter")
    screen.press("\033")
    screen.wait("no filter", lambda text: "1-2 of 2 by " in text)

    screen.press("q")
    assert screen.end() == 0 and screen.is_restored()


def test_more_streams_than_lines_are_scrolled(scene, top):
    stand_in(scene, {"streams": [stream(n) for n in range(1, 101)]})
    screen = top(rows=12)
    screen.see("of 100")
    page = int(re.search(r"1-(\d+) of 100", screen.text())[1])
    assert page == 8
    screen.press("\033[6~")
    screen.see(f"{page + 1}-{2 * page} of 100")
    screen.press("\033OA")
    screen.see(f"{page}-{2 * page - 1} of 100")
    screen.press("\033[5~")
    screen.see(f"1-{page} of 100")
    screen.press("\033OB")
    screen.see(f"2-{page + 1} of 100")
    screen.press("\033OF")
    screen.see(f"{101 - page}-100 of 100")
    screen.press("\033OH")
    screen.see(f"1-{page} of 100")


# ---- Terminals --------------------------------------------------------------------------------


@pytest.mark.sanitize
def test_any_size_and_every_change_of_it(fleet, top):
    screen = top(columns=20, rows=10)
    screen.wait("worker, rank and state", lambda _: row_of(screen, 7) == {"WORKER": "7", "RANK": "0", "STATE": "EXACT"})
    for columns, rows in [(80, 5), (80, 4), (80, 3), (80, 2), (80, 1), (1, 1), (20, 3), (200, 50), (8, 24)]:
        screen.resize(columns, rows)
        # Pictures are told apart by their bytes, because a small screen may have no clock.
        before = len(screen.raw)
        wait_for("a picture of that size", lambda: screen.pump() or screen.raw[before:].count(b"\033[2J"))
    screen.resize(100, 30)
    screen.wait("all of it again", lambda _: row_of(screen, 8).get("DEVICE") == "1")
    screen.wait("keys on the last line", lambda _: screen.lines[29].startswith("1-2 of 2"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_it_and_restores_the_terminal(scene, top, number):
    screen = top()
    screen.see("no streams yet")
    screen.process.send_signal(number)
    assert screen.end() == 0 and screen.is_restored()


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


@pytest.mark.no_nats
def test_no_terminal_is_a_clear_error():
    argv = [KVCTL, "--nats", "nats://127.0.0.1:1", "top"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (64, "") and "which stdout is not (or TERM is dumb): use `kvctl streams`" in done.stderr
    done = subprocess.run([*argv, "--once"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and "--once is gone: use the command `streams`" in done.stderr


@pytest.mark.parametrize("name", ["dumb", "unheard-of", ""])
def test_a_terminal_that_cannot_be_drawn_on_is_a_clear_error(scene, top, name):
    screen = top(env={"TERM": name}, columns=120)
    assert screen.end() in (1, 64) and b"\033" not in screen.raw
    screen.see("use `kvctl streams`")


# ---- Absences --------------------------------------------------------------------------------------


def test_an_absence_of_nats_is_shown_and_ends_by_itself(fleet, top):
    screen = top()
    screen.wait("worker 7", lambda _: row_of(screen, 7).get("STATE") == "EXACT")
    nats = fleet.started[0]
    nats.stop()
    screen.see("NATS is away, trying again; what stands below is")
    with costs_little(screen):
        screen.wait("the age grows", lambda text: int(re.search(r"below is (\d+) s old", text)[1]) >= 4)
    assert row_of(screen, 7).get("STATE") == "EXACT", "the last picture stays"
    fleet.start_nats(fleet.nats_port)
    screen.wait("worker 7 again", lambda text: " old" not in text and row_of(screen, 7).get("STATE") == "EXACT")


def test_a_silent_aggregator_is_shown_and_its_successor_used(fleet, top):
    screen = top()
    screen.wait("worker 7", lambda _: row_of(screen, 7))
    fleet.agg.stop()
    screen.see("nobody answers for dynamo/Router: is kvaggregator running?; what stands below is")
    assert row_of(screen, 7), "the last picture stays"
    fleet.aggregator(name="another")
    screen.wait("answers again", lambda text: "nobody answers" not in text and row_of(screen, 7).get("STATE") == "EXACT")
