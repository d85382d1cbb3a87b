"""Does each command of kvctl have a help of its own that fits a screen, is wrong usage named, and does bash complete what
there is and nothing else?"""

import re
import subprocess

import pytest

import programs

KVCTL = programs.BIN / "kvctl"
COMMANDS = "match route load state streams workers audit dump check decode watch verify top permissions completion help version"


def kvctl(*words, status=0):
    done = subprocess.run([KVCTL, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done
    assert not (done.stderr if status == 0 else done.stdout), done
    return done.stderr if status else done.stdout


def options_in(text):
    return re.findall(r"^ +(?:-., )?(--[a-z-]+)", text, re.MULTILINE)


# ---- Help ---------------------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.parametrize("command", COMMANDS.split())
def test_each_command_has_a_help_of_its_own_on_one_screen(command):
    said = kvctl("help", command)
    assert said.startswith(f"Usage: kvctl {command}") and len(said.splitlines()) < 30
    assert all(len(line) <= 80 for line in said.splitlines()), said
    assert kvctl(command, "--help") == said == kvctl("-h", command), "however it is asked for"


# ---- Wrong usage --------------------------------------------------------------------------


@pytest.mark.parametrize("words, said", [
    ([], "which command?"),
    (["dance"], 'no such command: "dance"'),
    (["explain"], "explain is gone: use match --blocks"),
    (["help", "dance"], 'no such command: "dance"'),
    (["match", "--dance"], 'no such option: "--dance"'),
    (["match", "-x"], "no such option: -x"),
    (["watch", "--dp-rank", "1"], "--dp-rank is gone: use --rank"),
    (["match", "--tokens"], "--tokens: expected a value"),
    (["match", "--blocks=1"], "--blocks takes no value"),
    (["load", "--tokens", "1"], "load has no option --tokens, which is for match route"),
    (["check"], "check: expected FILE"),
    (["load", "extra"], 'load: one word too many: "extra"'),
    (["check", "a", "b"], 'one word too many: "b"'),
    (["match"], "match: give one of --tokens, --tokens-file, --text and --messages"),
    (["route", "--text", "a", "--tokens", "1"], "route: give one of --tokens"),
    (["match", "--messages", "[]"], "--messages: expected a JSON array of messages, such as"),
    (["match", "--messages", '{"role":"user"}'], "--messages: expected a JSON array of messages, such as"),
    (["match", "--messages", '[{"role":"user"}] x'], "--messages: expected a JSON array of messages, such as"),
    (["match", "--text", b"\xff"], "--text: not UTF-8"),
    (["completion", "fish"], 'completion: expected bash, got "fish"'),
    (["load", "--timeout", "soon"], '--timeout: expected a number from 0 to 3600000, got "soon"'),
])
def test_wrong_usage_is_named(words, said):
    assert kvctl(*words, status=64).startswith(f"kvctl: {said}")


# ---- Completion ---------------------------------------------------------------------------


def completed(*words):
    """What bash offers in place of the last word, and whether names of files beside it.  COMP_WORDS is split as
    readline splits it: = and : are words."""
    split = [part for word in words for part in re.findall(r"[=:]|[^=:]+", word) or [""]]
    script = ("complete() { :; }; source <(\"$1\" completion bash); shift\n"
              "compopt() { echo nofiles; }\n"
              "COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _kvctl; printf '%s\\n' \"${COMPREPLY[@]}\"")
    done = subprocess.run(["bash", "--norc", "-c", script, "bash", KVCTL, "kvctl", *split], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done
    lines = [line for line in done.stdout.splitlines() if line]
    return [line for line in lines if line != "nofiles"], "nofiles" not in lines


def test_commands_are_completed():
    offered, files = completed("")
    assert not files and set(COMMANDS.split()) <= set(offered) and "--nats" in offered and "--text" not in offered
    assert completed("st") == (["state", "streams"], False)
    assert completed("--nats", "nats://127.0.0.1:4222", "ma") == (["match"], False)
    assert completed("--nats=nats://127.0.0.1:4222", "ma") == (["match"], False)
    assert completed("--component", "state", "ver") == (["verify", "version"], False), "state is a value there"
    assert completed("help", "ma") == (["match"], False)


@pytest.mark.parametrize("command", COMMANDS.split())
def test_the_options_of_a_command_are_completed_and_no_others(command):
    offered, files = completed(command, "--")
    of_help = set(options_in(kvctl("help", command)))
    login = set(options_in(kvctl("help").split("Login to NATS")[1])) - {"--version"}
    wanted = of_help | {"--help"} | (login if "--nats" in of_help else set())
    assert not files and len(offered) == len(set(offered)) and set(offered) == wanted


def test_values_are_completed():
    assert completed("watch", "--kind", "") == (["stored", "removed", "cleared"], False)
    assert completed("watch", "--kind=") == completed("watch", "--kind", "")
    assert completed("watch", "--kind=re") == (["removed"], False)
    assert completed("permissions", "--format", "j") == (["jwt"], False)
    assert completed("permissions", "op") == (["operator"], False)
    assert completed("match", "--model", "") == ([], False), "nobody knows"
    assert completed("match", "--tokens-file", "") == ([], True), "bash's own names of files"
    assert completed("check", "") == ([], True)


def test_the_completion_is_built_and_it_is_what_kvctl_prints():
    built = programs.BIN / "bash-completion/kvctl"
    if not built.exists():
        pytest.skip("KVB_BIN is no build folder with all targets")
    assert built.read_text() == kvctl("completion", "bash")
    subprocess.run(["bash", "--norc", "-ec", f"source {built}; complete -p kvctl"], check=True, timeout=60)
