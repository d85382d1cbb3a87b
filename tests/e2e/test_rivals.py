"""Do two bridges that publish the same worker name each other, and no bridge its predecessor?"""

import json
import re

import pytest

from conftest import PUBLISH, worker
from programs import wait_for

FOUND, GONE = "another bridge publishes workers of this one", "the other bridge publishes workers of this one no more"


def bridge_id(bridge):
    return bridge.get("/state")["bridge_id"]


def lines(bridge, words):
    return [line for line in bridge.text().splitlines() if words in line]


def pairs(line):
    return dict(re.findall(r"(\w+)=(\S+)", line))


@pytest.mark.first
def test_both_bridges_of_a_worker_log_both_names_and_when_it_is_over(scene):
    lists = scene.bus().watch(f"{PUBLISH}.bridge_streams")
    vllm, other = scene.engine(), scene.engine()
    first = scene.bridge(worker(other, 6), worker(vllm), name="first")
    second = scene.bridge(worker(vllm), name="second")
    names = [bridge_id(first), bridge_id(second)]
    assert names[0] != names[1]
    for bridge, mine, its in ((first, *names), (second, *reversed(names))):
        (line,) = wait_for("it names the other", lambda: lines(bridge, FOUND))
        assert line.startswith("warning ")
        said = pairs(line)
        assert (said["bridge"], said["other"]) == (mine, its)
        assert (said["streams"], said["worker"], said["dp_rank"]) == ("1", "7", "0")
        assert "remove them from the configuration of one of the two" in line
        wait_for("it is counted", lambda: bridge.metric("kvb_rival_bridges") == 1)
    assert {message.subject for message in lists} == {f"{PUBLISH}.bridge_streams"}
    assert json.loads(lists[0].data) == {"bridge_id": names[0], "streams": [[6, 0], [7, 0]]}

    assert second.stop() == 0
    (line,) = wait_for("the first says that it is over", lambda: lines(first, GONE))
    assert pairs(line)["other"] == names[1]
    wait_for("and counts none", lambda: first.metric("kvb_rival_bridges") == 0)
    assert len(lines(first, FOUND)) == 1, "it is said once"
