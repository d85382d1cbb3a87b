"""Does Dynamo's own stand-alone indexer, reading republished events, know what the engine holds, through a late start, an
eviction and restarts of the bridge?

Needs the package ai-dynamo-runtime (75 MB), so it runs only where KVB_DYNAMO_PYTHON names a Python that has it:

    python3 -m venv build/dynamo && build/dynamo/bin/pip install --no-deps ai-dynamo-runtime==1.6.1
    KVB_DYNAMO_PYTHON=build/dynamo/bin/python KVB_BIN=build/release build/venv/bin/python -m pytest tests/e2e/test_dynamo_indexer.py
"""

import http.client
import json
import os

import pytest

import programs
from test_republish import SIZE, World

PYTHON = os.environ.get("KVB_DYNAMO_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON, reason="KVB_DYNAMO_PYTHON names no Python with ai-dynamo-runtime")


class Indexer:
    def __init__(self, scene, name):
        self.port = programs.free_port()
        self.program = scene.start(name, [PYTHON, "-m", "dynamo.indexer", "--port", self.port, "--threads", "1"])
        self.program.is_ours = False
        programs.wait_for("the indexer answers", lambda: self.ask("GET", "/health")[0] == 200, 30)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return None, b""
        finally:
            connection.close()

    def register(self, world):
        status, text = self.ask("POST", "/register", {
            "instance_id": 7, "endpoint": world.events, "replay_endpoint": world.replay,
            "model_name": "m", "block_size": SIZE,
        })
        assert status == 201, text

    def matched(self, tokens):
        """How many of the tokens worker 7 holds on the device."""
        status, text = self.ask("POST", "/query", {"token_ids": tokens, "model_name": "m"})
        assert status == 200, text
        return json.loads(text).get("scores", {}).get("7", {}).get("0", 0)

    def wait(self, tokens, expected):
        programs.wait_for(f"{expected} of {len(tokens)} tokens", lambda: self.matched(tokens) == expected, 30)


def test_dynamos_indexer_knows_what_is_held(scene, tmp_path):
    directory = tmp_path / "checkpoints"
    directory.mkdir(mode=0o750)
    world = World(scene, directory=directory)
    names = world.store(6)
    tokens = [token for name in names for token in world.truth[name][1]]
    first = Indexer(scene, "indexer1")
    first.register(world)
    first.wait(tokens, 6 * SIZE)
    world.remove(names[5])
    first.wait(tokens, 5 * SIZE)
    second = Indexer(scene, "indexer2")  # comes late, and the first one loses nothing by it
    second.register(world)
    second.wait(tokens, 5 * SIZE)
    first.wait(tokens, 5 * SIZE)
    for is_killed in (False, True):
        world.restart_bridge(is_killed)
        world.remove(list(world.truth)[-1])
        for one in (first, second):
            one.wait(tokens, len(world.truth) * SIZE)
    world.store(2, parent=list(world.truth)[-1])
    for one in (first, second):
        one.wait(tokens, (len(world.truth) - 2) * SIZE)
        assert "dropped" not in one.program.text().lower()
