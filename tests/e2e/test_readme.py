"""Does "Your own vLLM in five minutes" of README.md work as it is printed?  Its commands, its
configuration and its answer are taken from there; only port numbers are replaced.  Do the links of
all documents lead somewhere?"""

import json
import pathlib
import re
import shlex
import subprocess
import textwrap

import pytest

import programs
from programs import TREE, port_of, wait_for

BLOCK = 16


def blocks_of(title):
    """The texts between ``` in the section with this title."""
    section = (TREE / "README.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return [textwrap.dedent(text).strip("\n") for text in re.findall(r"^ *```\n(.*?)^ *```$", section, re.M | re.S)]


VLLM, CONFIG, START, REQUESTS, ANSWER = blocks_of("Your own vLLM in five minutes")


def vllm_options():
    words = shlex.split(VLLM)
    assert words[:2] == ["vllm", "serve"] and "--enable-prefix-caching" in words
    return {
        "model": words[2], "block_size": int(words[words.index("--block-size") + 1]),
        "events": json.loads(words[words.index("--kv-events-config") + 1])}


def replaced(text, ports):
    """Replaces ports in the text; a port that does not occur in it is an error."""
    for old, new in ports.items():
        assert f":{old}" in text, (old, text)
        text = text.replace(f":{old}", f":{new}")
    return text


def start_vllm(scene, options):
    """A simulated engine with these options, and its ports by kvbridge's configuration keys."""
    config = scene.folder / "workers"
    scene.start("kvfleet", [
        programs.BIN / "kvfleet", "--workers", 1, "--ranks", 1, "--dialect", "vllm-0.31", "--model", options["model"],
        "--block-size", options["block_size"], "--serve", 0, "--config-out", config])
    text = wait_for("kvfleet serves", lambda: config.exists() and config.read_text())
    return {key: port_of(re.search(rf'{key} = "(.*?)"', text)[1]) for key in ("events", "replay", "address")}


@pytest.mark.first
def test_your_own_vllm_answers_as_printed(scene):
    options = vllm_options()
    assert options["block_size"] == BLOCK and options["events"]["topic"] == "kv-events"  # kvfleet's defaults
    ports = start_vllm(scene, options)

    started = [shlex.split(line) for line in START.splitlines()]
    assert [pathlib.Path(words[0]).name for words in started] == ["nats-server", "kvbridge", "kvaggregator"]
    assert started[1][1:] == ["--config", "kvbridge.cfg"]
    aggregator_config = (TREE / started[2][2]).read_text()

    bridge_port, aggregator_port = programs.free_port(), programs.free_port()
    bridge = scene.daemon("kvbridge", replaced(CONFIG, {
        4222: scene.nats_port,
        port_of(options["events"]["endpoint"]): ports["events"],
        port_of(options["events"]["replay_endpoint"]): ports["replay"],
    }) + f'\nhttp = "127.0.0.1:{bridge_port}";\n', bridge_port)
    aggregator = scene.daemon("kvaggregator", replaced(
        aggregator_config, {4222: scene.nats_port, 9402: aggregator_port}), aggregator_port)
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} is ready", daemon.is_ready)

    wait_for("the bridge has connected", lambda: aggregator.states())
    prompt, completion, query = replaced(REQUESTS, {8000: ports["address"], 9402: aggregator_port}).splitlines()
    subprocess.run(["bash", "-ec", f"{prompt}\n{completion} --fail"], check=True, timeout=60)

    def answer():
        done = subprocess.run(
            ["bash", "-ec", f"{prompt}\n{query} --fail --silent"], check=True, timeout=60, stdout=subprocess.PIPE)
        return json.loads(done.stdout)

    wait_for(f"{ANSWER}, not {answer()}", lambda: answer() == json.loads(ANSWER))


def test_its_configuration_is_free_of_mistakes(tmp_path):
    (tmp_path / "kvbridge.cfg").write_text(CONFIG)
    done = programs.run("kvbridge", "--config", "kvbridge.cfg", "--check", cwd=tmp_path)

    assert done.returncode == 0 and done.stdout + done.stderr == "kvbridge.cfg: ok\n", done


# ---- Links -------------------------------------------------------------------------

SKIPPED = ("build", ".git", "data")  # external or generated targets


def documents():
    found = TREE.rglob("*.md")
    return sorted(path.relative_to(TREE) for path in found if not set(path.relative_to(TREE).parts) & set(SKIPPED))


def anchors(path):
    """The anchors that GitHub makes from titles."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", documents(), ids=str)
def test_links_lead_somewhere(document):
    text = (TREE / document).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (TREE / document).parent / name if name else TREE / document
        assert path.exists(), f"{document}: {target}"
        assert not anchor or anchor in anchors(path), f"{document}: {target}"


# ---- Files -------------------------------------------------------------------------

OF_OTHERS = {"/etc/resolv.conf"}  # of the machine


def is_file(document, name):
    folders = [TREE, TREE / "bridge", TREE / "tests", (TREE / document).parent]
    return any((folder / name).exists() for folder in folders) or any(
        next((TREE / top).rglob(name), None) for top in ("bridge", "tests", "etc", "proto") if "/" not in name)


@pytest.mark.parametrize("document", documents())
def test_files_are_where_documents_say(document):
    text = (TREE / document).read_text()
    named = set(re.findall(r"`([\w./-]+\.(?:c|h|py|sh|cfg|proto|patch|txt|yml|html))`", text)) - OF_OTHERS
    assert not [name for name in sorted(named) if not is_file(document, name)]


def test_the_suite_that_newcomers_build_exists():
    text = (TREE / "tests/README.md").read_text()
    for room, suite in re.findall(r"unit\.(\w+)\.(\w+)", text):
        assert (TREE / f"tests/unit/{room}/test_{suite}.c").exists(), suite
