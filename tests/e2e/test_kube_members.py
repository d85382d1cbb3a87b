"""Are kvbridge's members the pods of a cluster, whatever happens there?  Random events from seeds (pods/pod_events.py); after
each 20 of them all settles, and the members must be those of an informer of kubernetes-asyncio, by the documented rules
(pods/members.py).

Not part of a plain run: `-m pods`, one seed with `-k '[17]'`. KVB_POD_SEEDS: how many seeds, of 1,000 events each."""

import collections
import contextlib
import os

import pytest

import kube_api
from kube_informer import Informer, key_of
from pod_store import Selection
from pods.members import Rules, differences
from pods.pod_events import Cluster
from programs import wait_for

pytestmark = pytest.mark.pods

SEEDS = range(1, 1 + int(os.environ.get("KVB_POD_SEEDS", "3")))
EVENTS, SETTLE_EVERY = 1000, 20
SELECTOR = "app=vllm"
LOG_SIZE = 300  # size of the API server's log: a bridge that was away for long has to list again
LABELS = ["zone", "model"]  # that are published with a worker
# What the bridge watches, and the model of pods that name none.
VIEWS = (("inference", "", "m"), (None, "", ""), (None, "spec.nodeName=node-1", "m"))


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.sanitize), *SEEDS[1:]])
def test_members_are_those_of_an_informer(scene, tmp_path, seed):
    namespace, fields, model = VIEWS[seed % len(VIEWS)]
    history = collections.deque(maxlen=3 * SETTLE_EVERY)
    with contextlib.ExitStack() as stack:
        kube = kube_api.Api(tmp_path / "kube", log_size=LOG_SIZE, seed=seed)
        stack.callback(kube.close)
        informer = Informer(kube, namespace, SELECTOR, fields, page=7)
        stack.callback(informer.close)
        bridge = scene.bridge(labels=LABELS, wait=False, limits=(
            f'kubernetes = {{ namespaces = ("{namespace or "*"}"); selector = "{SELECTOR}"; field_selector = "{fields}";'
            f' model_label = "model"; kubeconfig = "{kube.bridge_kubeconfig}";'
            f' }};\ndefaults = {{ model = "{model}"; }};\n'))
        wait_for("kvbridge answers", lambda: bridge.http("GET", "/state")[0] == 200)
        cluster = Cluster(kube, seed, f"127.{10 + seed % 100}.1", history.append)
        cluster.clear()
        rules, selection, compared = Rules(model=model, labels=LABELS), Selection(namespace, SELECTOR, fields), 0
        for number in range(1, EVENTS + 1):
            cluster.step()
            if number % SETTLE_EVERY == 0:
                cluster.calm()
                truth = {key_of(pod): pod for pod in kube.pods.all(selection)}
                wait_for("the informer has all pods", lambda: informer.check().pods() == truth)
                compared += settle(bridge, rules.members(informer.pods().values()), history)
        assert compared > 0


def settle(bridge, expected, said):
    """Waits until the members are these; returns how many."""
    trouble = []

    def is_equal():
        assert bridge.is_running()
        trouble[:] = differences(expected, bridge.get("/state"))
        return not trouble

    try:
        wait_for("the members are the informer's", is_equal)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *trouble, *said])) from None
    return len(expected)
