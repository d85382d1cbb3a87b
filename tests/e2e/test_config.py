"""Are all of an operator's mistakes reported at once, with file and line, before anything starts?"""

import re

import pytest

import programs


def check(program, tmp_path, text):
    path = tmp_path / "bad.cfg"
    path.write_text(text)
    return path, programs.run(program, "--config", path, "--check")


BRIDGE = """nats = { url = "nats://127.0.0.1:4222"; colour = "blue"; };
publish = {
  namespace = "dynamo";
  component = "has a space";
  formats = ["yaml"];
  load_period_ms = "often";
};
workers = (
  { id = 1; model = "m"; block_size = 16; events = "tcp://127.0.0.1:5557";
    replay = "tcp://127.0.0.1:5558"; ranks = 2; },
  { id = 1; model = "m"; block_size = 16; events = "tcp://127.0.0.1:6557"; },
  { id = "9223372036854775808"; model = "m"; block_size = 16; events = "tcp://127.0.0.1:7557"; },
  { id = 3; model = "m"; block_size = 0; events = "tcp://127.0.0.1:8557"; }
);
checkpoint = "/nowhere/at/all";
"""
# Line in the configuration above: what its error must name.
MISTAKES = {
    1: "colour", 4: "component", 5: "formats", 6: "load_period_ms", 11: "id", 12: "id",
    13: "block_size", 15: "checkpoint",
}


@pytest.mark.first
def test_all_errors_of_a_bridge_are_reported_at_once_with_their_lines(tmp_path):
    path, done = check("kvbridge", tmp_path, BRIDGE)
    assert done.returncode == 78, done
    said = {}
    for line in done.stderr.splitlines():
        found = re.search(rf"{re.escape(str(path))}:(\d+): (.*)", line)
        if found:
            said.setdefault(int(found[1]), []).append(found[2])
    for line, word in MISTAKES.items():
        assert any(word in text for text in said.get(line, [])), (line, word, done.stderr)
    collision = [text for line in (9, 10) for text in said.get(line, [])]
    assert any("replay" in text for text in collision), ("colliding ports", done.stderr)


@pytest.mark.parametrize("program", ["kvbridge", "kvaggregator"])
def test_a_daemon_refuses_to_start_on_them_too(tmp_path, program):
    path = tmp_path / "bad.cfg"
    path.write_text('nats = { uri = "nats://127.0.0.1:4222"; };\n')
    done = programs.run(program, "--config", path)
    assert done.returncode == 78 and f"{path}:1: " in done.stderr and "uri" in done.stderr, done


@pytest.mark.parametrize("program", ["kvbridge", "kvaggregator"])
def test_a_file_that_is_no_configuration_or_missing_is_named(tmp_path, program):
    path, done = check(program, tmp_path, "nats = {\n;;\n")
    assert done.returncode == 78 and str(path) in done.stderr, done
    done = programs.run(program, "--config", tmp_path / "none.cfg", "--check")
    assert done.returncode == 78 and "none.cfg" in done.stderr, done


@pytest.mark.first
@pytest.mark.parametrize("program", ["kvbridge", "kvaggregator"])
def test_the_shipped_configuration_is_good(program):
    import pathlib

    shipped = pathlib.Path(__file__).resolve().parents[2] / "etc" / f"{program}.cfg"
    done = programs.run(program, "--config", shipped, "--check")
    assert done.returncode == 0, done


@pytest.mark.parametrize("program", ["kvbridge", "kvaggregator", "kvctl", "kvfleet"])
def test_every_program_prints_its_version_and_its_options(program):
    done = programs.run(program, "--version")
    assert done.returncode == 0 and re.search(r"\d+\.\d+\.\d+", done.stdout), done
    done = programs.run(program, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout, done


@pytest.mark.parametrize("program", ["kvbridge", "kvaggregator"])
@pytest.mark.parametrize("words, why", [
    (["--log-level", "loud"], 'expected error, warning, info or debug, got "loud"'),
    (["--nonsense"], "--nonsense"),
    (["a.cfg"], '"a.cfg": nothing may stand behind the options'),
    (["--config"], "requires an argument"),
])
def test_a_mistake_on_the_command_line_is_named(program, words, why):
    done = programs.run(program, *words)
    assert done.returncode == 64 and why in done.stderr and done.stdout == "", done
