"""Does etc/quickstart, the first command of a new user, work to its end and when it is interrupted?"""

import os
import pathlib
import re
import signal
import subprocess
import uuid

import pytest
from programs import DEADLINE_S, TREE



class Run:
    """Processes started by one etc/quickstart have its mark in their environment, because other
    tests start programs too."""

    def __init__(self):
        self.mark = f"KVB_TEST_MARK={uuid.uuid4()}"
        name, value = self.mark.split("=")
        self.environment = {**os.environ, name: value}

    def programs(self):
        """{process id: name} of the running programs of this tree's release build."""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                program = pathlib.Path(os.readlink(folder / "exe"))
                if program.is_relative_to(TREE / "build/release") and self._bears_mark(folder):
                    found[int(folder.name)] = program.name
            except OSError:
                pass
        return found

    def _bears_mark(self, folder):
        return self.mark.encode() in (folder / "environ").read_bytes().split(b"\0")


def check_secured():
    """In this run no permission was denied, and no remaining file contains a secret."""
    logs = TREE / "build/quickstart"
    assert "TLS required for client connections" in (logs / "nats-server.log").read_text()
    for path in [*logs.glob("kv*"), logs / "nats-server.log"]:
        text = path.read_text()
        assert "no permission" not in text and "Violation" not in text, (path, text[-2000:])
    for path in logs.glob("kv*.cfg"):
        text = path.read_text()
        assert 'password_file = "' in text and "token_file" in text, text
        (secret,) = set(re.findall(r'"(/[^"]*)/[a-z]*\.password"', text))
        assert not pathlib.Path(secret).exists(), secret


@pytest.mark.quickstart
@pytest.mark.parametrize("options", [["--seconds", "8"], ["--seconds", "4", "--secure"]], ids=["plain", "secure"])
def test_quickstart_verifies_the_index_and_leaves_nothing_running(options):
    run = Run()
    done = subprocess.run(
        [TREE / "etc/quickstart", *options], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=10 * DEADLINE_S, env=run.environment,
    )  # it may have to build
    assert done.returncode == 0, done
    if "--secure" in options:
        check_secured()
    assert re.search(r"^index == truth: PHANTOM 0 MISSING 0( \(doubtful \d+\))?$", done.stdout, re.M), done
    assert re.search(r"^streams +16 of 16 in sync$", done.stdout, re.M), done
    assert int(re.search(r"^blocks held +(\d+)$", done.stdout, re.M)[1]) >= 10_000
    for word in ("mean hit tokens", "load_avg", "load_std", "match", "events "):
        assert word in done.stdout, (word, done)
    assert not run.programs()


@pytest.mark.quickstart
def test_quickstart_says_which_program_failed_and_stops_the_rest():
    run = Run()
    running = subprocess.Popen(
        [TREE / "etc/quickstart", "--seconds", "60"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=run.environment,
    )
    said = []
    for line in running.stdout:
        said.append(line)
        if "in sync" in line:
            break
    started = run.programs()
    if "kvaggregator" not in started.values():  # it ended by itself, so print why
        running.kill() if started else None
        assert False, (started, said, running.communicate(timeout=DEADLINE_S))
    for number, name in started.items():
        if name == "kvaggregator":
            os.kill(number, signal.SIGKILL)
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 1, (out, err)
    assert "kvaggregator ended" in err and "build/quickstart" in err, err
    assert not run.programs()
