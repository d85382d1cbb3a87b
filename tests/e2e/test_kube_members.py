"""Are kvbridge's members the pods of a cluster, whatever happens there?  The differential of
tests/kubernetes, with few seeds here; and a run with engines, in which a listed block of a removed
pod would be noticed."""

import pathlib
import sys

import pytest

from pod_store import Selection
from programs import wait_for

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "kubernetes"))

from addresses import Addresses  # noqa: E402
from differential import Place  # noqa: E402
from members import Rules, differences  # noqa: E402


SANITIZED = pytest.mark.sanitize


@pytest.mark.no_nats
@pytest.mark.parametrize("seed", [pytest.param(1, marks=SANITIZED), 2, 3])
def test_members_are_those_of_an_informer(tmp_path, seed):
    place = Place(tmp_path, seed)
    try:
        place.run(seed, 1000)
    finally:
        place.close()


def test_no_block_of_a_removed_pod_is_listed(scene, kube, tmp_path):
    aggregator = scene.aggregator()
    bridge = scene.bridge(
        formats=["protobuf"],
        limits=f'kubernetes = {{ namespaces = ("inference"); selector = "app=vllm"; model = "m"; api = "{kube.url}";'
        f' token_file = "{kube.token_file}"; ca_file = "{kube.ca_file}"; }};\n',
    )
    rules = Rules(model="m")

    def settled(run):
        expected = rules.members(kube.pods.all(Selection("inference", "app=vllm")))
        trouble = []

        def is_so():
            trouble[:] = differences(expected, bridge.get("/state"))
            states = {row["worker_id"]: row["state"] for row in aggregator.get("/streams")["streams"]}
            listed = {worker for worker, state in states.items() if state != "DOWN"}
            if listed != expected.keys() or any(states[worker] != "EXACT" for worker in listed):
                trouble.append(f"listed: {states}, expected {sorted(expected)}")
            return not trouble

        try:
            wait_for("bridge and aggregator show the pods", is_so)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *trouble, *run.said])) from None

    run = Addresses(kube, aggregator, tmp_path, 1, "127.9.1", settled)
    try:
        run.run(20)
    finally:
        run.close()
    said = "\n".join([*map(str, run.judge.violations[:5]), *map(str, run.judge.violations[-5:]), *run.said])
    print(f"the oldest block that was gone was listed for {run.judge.oldest_s:.2f} s")
    assert not run.judge.violations, said
    assert run.judge.judged > 1000 and run.judge.samples > 20
