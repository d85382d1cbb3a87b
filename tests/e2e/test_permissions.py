"""Is a permission that nats-server denies named, and its return noticed? The server drops such messages and
reports it only in an asynchronous error."""

import signal

import pytest

import engine
from conftest import PUBLISH, ROUTER, worker
from programs import run, wait_for

pytestmark = pytest.mark.no_nats

ALL = 'publish: ">", subscribe: ">"'


def start(scene, bridge, aggregator=ALL):
    """A server with these permissions for the user of either daemon."""
    config = scene.folder / "nats.conf"
    config.write_text(
        "authorization { users = [\n"
        f"  {{ user: b, password: p, permissions: {{ {bridge} }} }}\n"
        f"  {{ user: a, password: p, permissions: {{ {aggregator} }} }}\n] }}\n")
    scene.start_nats(config=config)


def daemons(scene, format="protobuf"):
    vllm = scene.engine()
    aggregator = scene.aggregator(wait=False, user="a:p@")
    bridge = scene.bridge(worker(vllm), formats=[format], wait=False, user="b:p@")
    vllm.publish(engine.batch(engine.stored([1], list(range(16)), 16)))
    for daemon in (bridge, aggregator):
        wait_for(f"{daemon.name} answers", lambda one=daemon: one.http("GET", "/livez")[0] == 200)
    return bridge, aggregator


def says(daemon, what, subject):
    def is_said():
        status, text = daemon.http("GET", "/readyz")
        return status == 503 and f"no permission to {what} {subject}" in text

    return is_said


def test_a_new_permission_is_noticed(scene):
    """The server reloads its configuration and keeps the connection."""
    start(scene, f'publish: {{ allow: ">", deny: "{PUBLISH}.>" }}, subscribe: ">"')
    bridge, _ = daemons(scene)
    wait_for("/readyz names the subject", says(bridge, "publish on", PUBLISH))
    config = scene.folder / "nats.conf"
    config.write_text(config.read_text().replace(f', deny: "{PUBLISH}.>"', ""))
    scene.started[0].process.send_signal(signal.SIGHUP)
    wait_for("kvbridge is ready", bridge.is_ready)


def test_kvctl_watch_ends_when_it_may_not_subscribe(scene):
    """It would wait for ever for events that the server does not send."""
    start(scene, ALL, 'publish: ">", subscribe: { deny: "namespace.>" }')
    done = run("kvctl", "--nats", scene.url_of("a:p@"), "watch")
    assert done.returncode == 1 and done.stdout == "", done
    assert "subscribe to namespace.*" in done.stderr and "kvctl permissions operator" in done.stderr, done


def test_a_denied_answer_does_not_make_the_bridge_unready(scene):
    """The sender of a request names the subject of the answer."""
    start(scene, f'publish: "{PUBLISH}.>", subscribe: ">"')
    bridge, _ = daemons(scene)
    wait_for("kvbridge is ready", bridge.is_ready)
    bus = scene.bus(user="a:p@")
    for _ in range(20):
        bus.publish("$SRV.PING", b"", reply="elsewhere")
    wait_for("the metric counts the denials", lambda: bridge.metric("kvb_nats_denied_total", what="publish") >= 20)
    assert bridge.is_ready()


def test_statistics_are_vital_to_no_aggregator(scene):
    start(scene, ALL, f'publish: {{ allow: ">", deny: "{ROUTER}.>" }}, subscribe: ">"')
    _, aggregator = daemons(scene)
    wait_for("kvaggregator is ready", aggregator.is_ready)
    wait_for("the metric counts the denial", lambda: aggregator.metric("kvb_nats_denied_total", what="publish") > 0)
    assert aggregator.is_ready()
