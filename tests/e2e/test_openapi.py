"""Does each path of proto/openapi.yaml answer as written there, and is each path of the daemons in it?"""

import http.client
import json
import re

import jsonschema
import pytest
import yaml

import engine
from conftest import shared_scene, worker
from programs import DEADLINE_S, TREE, wait_for
from test_members import TOKEN, registering

DOCUMENT = yaml.safe_load((TREE / "proto/openapi.yaml").read_text())

# In this order: a report refers to the decision before it, a drain to the registration.
ORDER = (
    "POST /query", "POST /query_by_hash", "POST /route", "POST /first_token", "POST /finished", "GET /workers", "GET /streams",
    "GET /load", "GET /dump", "GET /health", "GET /", "GET /history", "GET /overview", "GET /livez", "GET /readyz", "GET /metrics",
    "GET /state", "POST /register", "POST /drain", "POST /undrain", "POST /unregister",
)


def operations():
    return {f"{method.upper()} {path}": operation
            for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()}


def resolve(part):
    """Follows a reference within the document."""
    while "$ref" in part:
        place = DOCUMENT
        for step in part["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        part = place
    return part


def check_schema(schema, value, where):
    """The schema as a part of the document, so that its references lead somewhere."""
    validator = jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    errors = [f"{where}: {error.json_path}: {error.message}" for error in validator.iter_errors(value)]
    assert not errors, errors


def check_answer(key, status, kind, text):
    declared = operations()[key]["responses"]
    assert str(status) in declared, (key, status, text)
    content = resolve(declared[str(status)]).get("content")
    if not content:
        assert text == "", (key, status, text)
        return
    assert kind in content, (key, status, kind)
    value = json.loads(text) if kind == "application/json" else text
    check_schema(content[kind]["schema"], value, f"{key} {status}")


def ask(daemon, key, body=None, token=None, query=""):
    method, path = key.split()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
        body = body if isinstance(body, str) else json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=DEADLINE_S)
    try:
        connection.request(method, path + query, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type"), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    with shared_scene(tmp_path_factory) as scene:
        one, other = scene.engine(), scene.engine()
        aggregator = scene.aggregator()
        bridge = registering(scene, worker(one, 1))
        one.publish(engine.batch(engine.stored([1], list(range(100, 116)), 16)))
        wait_for("the block is listed", lambda: aggregator.is_exact() and aggregator.rows())
        yield {"kvbridge": bridge, "kvaggregator": aggregator, "engine": other}


def example_of(operation, other):
    """The example of the request's body; its engine is one that exists."""
    body = operation.get("requestBody")
    if body is None:
        return None
    media = body["content"]["application/json"]
    check_schema(media["schema"], media["example"], "example")
    example = dict(media["example"])
    if "endpoint" in example:
        example |= {"endpoint": other.events, "replay_endpoint": other.replay}
    return example


@pytest.mark.first
def test_each_path_answers_as_written(daemons):
    assert sorted(ORDER) == sorted(operations()), "a path without a test, or a test without a path"
    for key in ORDER:
        operation = operations()[key]
        needs_register_token = "register_token" in operation.get("security", [{}])[0]
        for name in operation["tags"]:
            body = example_of(operation, daemons["engine"])
            status, kind, text = ask(daemons[name], key, body, TOKEN if needs_register_token else None)
            assert 200 <= status < 300, (name, key, status, text)
            check_answer(key, status, kind, text)


def test_what_is_refused_is_refused_as_written(daemons):
    aggregator, bridge = daemons["kvaggregator"], daemons["kvbridge"]
    cases = [
        (aggregator, "POST /query", "{", None, "", 400),
        (aggregator, "POST /query", {"token_ids": [1], "model": "zz"}, None, "", 404),
        (aggregator, "POST /query", "[" * 100_000, None, "", 413),
        (aggregator, "POST /query", {"token_ids": [-1]}, None, "", 422),
        (aggregator, "POST /query_by_hash", {"token_ids": [1]}, None, "", 422),
        (aggregator, "POST /query", {"text": "hello", "model": "m"}, None, "", 200),
        (aggregator, "POST /route", {"token_ids": [1], "policy": "zz"}, None, "", 422),
        (aggregator, "POST /route", {"token_ids": [1], "labels": {"zone": "zz"}}, None, "", 404),
        (aggregator, "POST /finished", {"request_id": "nobody"}, None, "", 404),
        (aggregator, "POST /first_token", {}, None, "", 422),
        (aggregator, "GET /dump", None, None, "?names=zz", 409),
        (aggregator, "GET /history", None, None, "?since=x", 400),
        (aggregator, "GET /overview", None, None, "?rows=x", 400),
        (aggregator, "GET /dump", None, None, "?format=rows", 200),
        (bridge, "POST /register", {}, None, "", 401),
        (bridge, "POST /register", "{", TOKEN, "", 400),
        (bridge, "POST /register", {"instance_id": 1}, TOKEN, "", 422),
        (bridge, "POST /unregister", {"instance_id": 1}, TOKEN, "", 409),
        (bridge, "POST /unregister", {"instance_id": 99}, TOKEN, "", 404),
        (bridge, "POST /drain", {"worker_id": 99}, TOKEN, "", 404),
    ]
    for daemon, key, body, token, query, expected in cases:
        status, kind, text = ask(daemon, key, body, token, query)
        assert status == expected, (key, body, status, text)
        check_answer(key, status, kind, text)


def test_each_path_of_the_daemons_is_written():
    """The tables of paths are data in the source: a row is "METHOD", "/path"."""
    tables = {"kvbridge": "kvbridge/http.c", "kvaggregator": "kvaggregator/answers/routes.c"}
    for name, source in tables.items():
        rows = re.findall(r'\{ "(GET|POST)", +"(/[a-z_]*)",', (TREE / "bridge" / source).read_text())
        assert len(rows) > 5, source
        written = {key for key, operation in operations().items() if name in operation["tags"]}
        assert {" ".join(row) for row in rows} == written, name
