"""Are load sources added and removed while a bridge runs, together with their workers and alone?"""

import json
import os

import pytest

from conftest import worker
from programs import wait_for
from test_load import Loads, coordinator, sources  # noqa: F401, one is a fixture
from test_members import reload, rewrite  # noqa: F401


def page(active):
    """Only this figure, because the newest value of each source counts; other tests have the other
    figures."""
    return f'vllm:num_requests_running{{engine="0",model_name="m"}} {active}\n'


def with_load(row, **load):
    keys = " ".join(f"{key} = {json.dumps(value)};" for key, value in load.items())
    return f"{row} load = {{ {keys} }};"


@pytest.mark.sanitize
def test_load_sources_are_added_and_removed_and_their_ranks_stay(scene, web, coordinator):
    """The first load source is added while the bridge runs, which starts the thread."""
    vllm, other, feed = scene.engine(), scene.engine(), scene.load_feed()
    loads = Loads(scene)
    web.pages.update({"/one": page(3), "/two": page(4), "/other": page(5)})
    bare, beside = worker(vllm, 7), with_load(worker(other, 9), prometheus=web.url("/other"), scrape_ms=50)
    bridge = scene.bridge(bare, worker(other, 9), formats=["protobuf"])
    unchanged = "added=0 removed=0 changed=0 unchanged=2 failed=0"

    rewrite(bridge, with_load(bare, prometheus=web.url("/one"), scrape_ms=50), beside)
    assert unchanged in reload(bridge)
    loads.wait((7, 0), request_active_slots=3)
    loads.wait((9, 0), request_active_slots=5)

    rewrite(bridge, with_load(bare, prometheus=web.url("/two"), scrape_ms=50, zmq=feed.endpoint,
                              coordinator=coordinator.endpoint), beside)
    assert unchanged in reload(bridge)
    loads.wait((7, 0), request_active_slots=4)
    asked = web.asked["/one"]
    coordinator.wait_for_listener()
    coordinator.say([[6, 4]])
    loads.wait((7, 0), num_requests_waiting=6)
    wait_for("the socket is read too", lambda: feed.send({"kv_active_blocks": 8}) or loads.look()[7, 0]["kv_active_blocks"] == 8)
    assert {kind for worker_id, kind in sources(bridge) if worker_id == 7} == {"zmq", "prometheus", "coordinator"}

    coordinator.say([])  # otherwise they would be valid for 15 s
    loads.wait((7, 0), num_requests_waiting=0)
    rewrite(bridge, bare, beside)
    assert unchanged in reload(bridge)
    assert set(sources(bridge)) == {(9, "prometheus")}

    def has_run_out():
        loads.forget()
        wait_for("the other has load", lambda: loads.look() and loads.counts.get((9, 0), 0) >= 3)
        return (7, 0) not in loads.newest

    wait_for("the removed worker's load expires", has_run_out)
    two, other_asked = web.asked["/two"], web.asked["/other"]
    wait_for("the other page is read on", lambda: web.asked["/other"] >= other_asked + 5)
    assert (web.asked["/one"], web.asked["/two"]) == (asked, two), "nobody reads theirs"
    wait_for("its rank did not notice", lambda: bridge.is_connected_once(pod_key="7"))

    def files():
        return len(os.listdir(f"/proc/{bridge.process.pid}/fd"))

    at_rest = files()
    for _ in range(10):
        rewrite(bridge, with_load(bare, prometheus=web.url("/one"), zmq=feed.endpoint, coordinator=coordinator.endpoint), beside)
        assert unchanged in reload(bridge)
        rewrite(bridge, bare, beside)
        assert unchanged in reload(bridge)
    wait_for("no file is left open", lambda: files() <= at_rest + 1)  # the page of the other worker
