"""Does the first thing that a newcomer runs work, to its end and when it is
interrupted?"""

import os
import pathlib
import re
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def own_processes():
    """Programs of this tree's release build that run now."""
    found = set()
    for link in pathlib.Path("/proc").glob("[0-9]*/exe"):
        try:
            if os.readlink(link).startswith(str(ROOT / "build/release")):
                found.add(link.parent.name)
        except OSError:
            pass
    return found


@pytest.mark.quickstart
def test_quickstart_proves_that_the_index_is_true_and_leaves_nothing_running():
    before = own_processes()
    done = subprocess.run(
        [ROOT / "etc/quickstart", "--seconds", "10"], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done
    assert re.search(r"^index == truth: PHANTOM 0 MISSING 0( \(doubtful \d+\))?$", done.stdout, re.M), done
    assert re.search(r"^streams +16 of 16 in sync$", done.stdout, re.M), done
    assert int(re.search(r"^blocks held +(\d+)$", done.stdout, re.M)[1]) >= 10_000
    for word in ("mean hit tokens", "load_avg", "load_std", "match", "events "):
        assert word in done.stdout, (word, done)
    assert own_processes() <= before


@pytest.mark.quickstart
def test_quickstart_says_which_program_failed_and_stops_the_rest():
    before = own_processes()
    running = subprocess.Popen(
        [ROOT / "etc/quickstart", "--seconds", "60"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    for line in running.stdout:
        if "in sync" in line:
            break
    for number in own_processes() - before:
        name = pathlib.Path(f"/proc/{number}/comm").read_text().strip()
        if name == "kvaggregator":
            os.kill(int(number), signal.SIGKILL)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 1, (out, err)
    assert "kvaggregator ended" in err and "build/quickstart" in err, err
    assert own_processes() <= before


def test_quickstart_refuses_what_it_does_not_know():
    done = subprocess.run([ROOT / "etc/quickstart", "--secods", "3"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and "--seconds N" in done.stderr, done
