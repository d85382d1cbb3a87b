"""Does Dynamo's own stand-alone indexer, reading republished events, answer as the aggregator does and know what the engine
holds, through a late start, an eviction, and SIGKILL of engine, bridge and itself?

Needs the package ai-dynamo-runtime (75 MB, 250 MB installed), so it runs only where KVB_DYNAMO_PYTHON names a Python that
has it:

    python3 -m venv build/dynamo
    build/dynamo/bin/pip install --no-deps ai-dynamo-runtime==1.6.1 && build/dynamo/bin/pip install pydantic==2.13.5
    KVB_DYNAMO_PYTHON=build/dynamo/bin/python KVB_BIN=build/release build/venv/bin/python -m pytest tests/e2e/test_dynamo_indexer.py
"""

import http.client
import json
import os

import pytest

import programs
from engine_process import EngineProcess
from test_republish import SIZE, World

PYTHON = os.environ.get("KVB_DYNAMO_PYTHON")

pytestmark = pytest.mark.skipif(not PYTHON, reason="KVB_DYNAMO_PYTHON names no Python with ai-dynamo-runtime")


class Indexer:
    def __init__(self, scene, name):
        self.port = programs.free_port()
        self.program = scene.start(name, [PYTHON, "-m", "dynamo.indexer", "--port", self.port, "--threads", "1"])
        self.program.is_ours = False
        programs.wait_for("the indexer answers", lambda: self.ask("GET", "/health")[0] == 200)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
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

    def scores(self, tokens):
        """{worker: {rank: tokens}}, on the device."""
        status, text = self.ask("POST", "/query", {"token_ids": tokens, "model_name": "m"})
        assert status == 200, text
        return json.loads(text).get("scores", {})


class DynamoWorld(World):
    def __init__(self, scene, directory):
        super().__init__(scene, directory=directory, source=scene.engine_of(EngineProcess))
        self.ever = {}  # tokens of all blocks that were ever held
        self.indexers = []
        self.aggregator = scene.aggregator(block_size=SIZE)

    def join(self):
        self.indexers.append(Indexer(self.scene, f"indexer{len(self.scene.started)}"))
        self.indexers[-1].register(self)

    def store_prompts(self):
        """Two prompts that share their first blocks."""
        head = self.store(3)
        self.store(4, parent=head[-1])
        self.store(2, parent=head[-1])

    def evict_a_leaf(self):
        parents = {parent for parent, _ in self.truth.values()}
        self.remove(next(name for name in reversed(self.truth) if name not in parents))

    def prompts(self):
        """The tokens from the root to each block that was ever held, and how many of these blocks
        are held now."""
        self.ever.update(self.truth)
        for name in self.ever:
            path = []
            while name is not None:
                path.insert(0, name)
                name = self.ever[name][0]
            held = [one in self.truth for one in path] + [False]
            yield [token for one in path for token in self.ever[one][1]], held.index(False) * SIZE

    def compare(self):
        """Waits until each indexer and the aggregator give the right answer for each prompt."""
        for tokens, held in self.prompts():
            right = {"7": {"0": held}} if held else {}
            programs.wait_for(f"{right} of the aggregator", lambda: self.answer(tokens) == right)
            for one in self.indexers:
                programs.wait_for(f"{right} of {one.program.name}", lambda: one.scores(tokens) == right)

    def answer(self, tokens):
        status, text = self.aggregator.http("POST", "/query", {"token_ids": tokens, "model_name": "m"})
        assert status == 200, text
        return json.loads(text)["scores"]


def test_dynamos_indexer_answers_as_the_aggregator_does_through_kills(scene, tmp_path):
    directory = tmp_path / "checkpoints"
    directory.mkdir(mode=0o750)
    world = DynamoWorld(scene, directory)
    world.store_prompts()
    world.join()
    world.compare()
    world.evict_a_leaf()
    world.join()  # starts late; the first indexer is not affected
    world.compare()

    for is_killed in (False, True):
        world.restart_bridge(is_killed)
        world.evict_a_leaf()
        world.store_prompts()
        world.compare()

    world.restart_engine()  # SIGKILL: it comes back empty
    world.compare()
    world.store_prompts()
    world.compare()

    world.indexers.pop(0).program.kill()
    world.evict_a_leaf()  # while only the other indexer reads
    world.join()
    world.compare()

    world.restart_engine()  # all three at once
    world.restart_bridge(True)
    world.indexers.pop(0).program.kill()
    world.join()
    world.store_prompts()
    world.compare()
    for one in world.indexers:
        assert "dropped" not in one.program.text().lower()
