"""Do etc/prometheus.yml, the alert rules and the dashboard use only metrics and labels that exist?
Each name in them is looked up on the live metrics pages of both daemons."""

import json
import pathlib
import re
import shutil
import subprocess

import promql_parser as promql
import pytest
import yaml

import engine
import prometheus
from conftest import shared_scene, worker
from programs import TREE, wait_for

ETC = TREE / "etc"
DASHBOARD = json.loads((ETC / "grafana-dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load((ETC / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
# Series that Prometheus itself adds to whatever it scrapes.
SCRAPED = {"job", "instance"}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """{name: [labels]} of both programs, with an engine connected."""
    with shared_scene(tmp_path_factory) as scene:
        vllm = scene.engine()
        aggregator = scene.aggregator()
        bridge = scene.bridge(worker(vllm))
        vllm.publish(engine.batch(engine.stored([1], list(range(16)), 16)))
        wait_for("a block is listed", lambda: aggregator.metric("kvb_index_blocks") == 1)
        found = {"up": [{}]}
        for daemon in (bridge, aggregator):
            for name, labels in prometheus.Page.of(daemon).samples:
                found.setdefault(name, []).append(dict(labels))
        yield found


def parse(text):
    """Grafana's own variable for a range is any range."""
    return promql.parse(text.replace("$__rate_interval", "5m"))


def selectors(text):
    """[(metric, [(label, operator, value)])] of an expression."""
    found = []

    def visit(node):
        if isinstance(node, promql.VectorSelector):
            found.append((node.name, [(m.name, str(m.op).rpartition(".")[2], m.value) for m in node.matchers.matchers]))
        elif isinstance(node, promql.MatrixSelector):
            visit(node.vector_selector)
        else:
            for child in ("expr", "lhs", "rhs", "param"):
                if getattr(node, child, None) is not None and not isinstance(node, promql.MatrixSelector):
                    visit(getattr(node, child))
            for argument in getattr(node, "args", None) or []:
                visit(argument)

    visit(parse(text))
    return found


def fits(labels, label, operator, value):
    if label in SCRAPED or "$" in value:
        return True
    if label not in labels:
        return False
    is_pattern, is_negated = operator in ("Re", "NotRe"), operator in ("NotEqual", "NotRe")
    same = re.fullmatch(value, labels[label]) is not None if is_pattern else value == labels[label]
    return same != is_negated


def missing(text, samples):
    """Selectors of an expression that match no sample of these pages."""
    return [
        (name, matchers)
        for name, matchers in selectors(text)
        if not any(all(fits(labels, *m) for m in matchers) for labels in samples.get(name, []))
    ]


@pytest.mark.first
@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_uses_existing_metrics_and_says_what_to_do(samples, rule):
    assert missing(rule["expr"], samples) == []
    assert rule["labels"]["severity"] in ("critical", "warning")
    summary, description = (rule["annotations"][key] for key in ("summary", "description"))
    assert 10 < len(summary) < 120 and "\n" not in summary
    assert len(description) > 80 and description.count(". ") + description.count("? ") >= 1, "what, and what to do"
    known = set().union(*(labels for name, _ in selectors(rule["expr"]) for labels in samples[name]))
    used = set(re.findall(r"\$labels\.(\w+)", summary + description))
    assert used <= known | SCRAPED, "a label that the alert does not have"


@pytest.mark.parametrize(
    "panel, target", TARGETS, ids=[f"{panel['title']}-{target['refId']}" for panel, target in TARGETS]
)
def test_a_panel_uses_existing_metrics(samples, panel, target):
    assert missing(target["expr"], samples) == []
    filtered = [{label for label, _, value in matchers if "$" in value} for _, matchers in selectors(target["expr"])]
    assert any({"job", "instance"} <= labels for labels in filtered), "not filtered by job and instance"
    known = set().union(*(labels for name, _ in selectors(target["expr"]) for labels in samples[name]))
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known | SCRAPED


def test_the_dashboard_shows_each_name_that_operators_know():
    shown = {name for _, target in TARGETS for name, _ in selectors(target["expr"])}
    names = {name for _, _, name in prometheus.table("kvbridge/rank_metrics.h")}
    assert [name for name in sorted(names) if not any(s.startswith(name) for s in shown)] == []


def test_the_dashboard_is_one_that_grafana_can_draw():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"] and panel["description"], panel["id"]
        assert [t["refId"] for t in panel["targets"]] == list("ABCDEFG"[: len(panel["targets"])])
        assert all(t["datasource"] == panel["datasource"] for t in panel["targets"])
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "pod_key"], "each may use those before it"
    assert variables["datasource"]["type"] == "datasource"
    asked = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert asked - {"__rate_interval", "__all"} <= set(variables)


def test_the_variables_of_the_dashboard_can_be_looked_up(samples):
    for variable in DASHBOARD["templating"]["list"][1:]:
        query, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
        assert missing(query, samples) == []
        (name, _), = selectors(query)
        assert label in SCRAPED or all(label in labels for labels in samples[name])


def test_prometheus_scrapes_both_programs_where_they_listen_by_default():
    config = yaml.safe_load((ETC / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    for program in ("kvbridge", "kvaggregator"):
        listens = re.search(r'^http = "(.+)";', (ETC / f"{program}.cfg").read_text(), re.M)[1]
        assert targets.pop(program) == [listens]
    assert not targets
    assert [(ETC / name).is_file() for name in config["rule_files"]] == [True]
    jobs = {name for rule in RULES for name in re.findall(r'job=~"([^"]+)"', rule["expr"])}
    assert jobs == {"kvbridge|kvaggregator"}


@pytest.mark.parametrize("command", [
    ["check", "config", "etc/prometheus.yml"],
    ["check", "rules", "etc/alerts.yml"],
    ["test", "rules", "tests/data/alerts_test.yml"],
], ids=lambda words: "-".join(words[:2]))
def test_prometheus_takes_the_files_and_alerts_when_it_should(command):
    promtool = shutil.which("promtool") or TREE / "build" / "promtool"
    if not pathlib.Path(promtool).is_file():
        pytest.skip("no promtool here: tests/run fetches it")
    done = subprocess.run([promtool, *command], cwd=TREE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
