"""Fixtures: real nats-servers, the programs of this project, a fake engine.  Each test has its own
of everything; on failure all logs are printed."""

import contextlib
import json
import pathlib
import re
import shutil
import sys

import pytest

import bus
import engine
import kube_api
import marked
import name_server
import probes
import programs
import web as web_pages

NAMESPACE, COMPONENT = "dynamo", "VllmWorker"
PUBLISH = f"namespace.{NAMESPACE}.component.{COMPONENT}"
ROUTER = f"namespace.{NAMESPACE}.component.Router"
SNAPSHOT = b"\x08\x02\x12\x10" + bytes(16)  # a SyncRequest for the whole list

# Debian's nats-server is 2.9; the other is a current one, from a Python package.
SERVERS = {
    "debian": shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin"),
    "current": str(pathlib.Path(sys.executable).parent / "nats-server"),
}


class Scene:
    """Everything that one test has started, in order, and the folder of its logs."""

    def __init__(self, folder, server):
        self.folder = folder
        self.server = server
        self.started = []
        self.clients = []
        self.engines = []
        self.nats_port = None

    # ---- nats-server -------------------------------------------------------

    def start_nats(self, port=None, config=None):
        """Starts it on a free port, or on the given one (for a server that is absent at first)."""
        ports = self.folder / f"ports{len(self.started)}"
        ports.mkdir()
        nats = programs.Program(
            self.folder, f"nats{len(self.started)}",
            [self.server, "-a", "127.0.0.1", "-p", port or -1, "--ports_file_dir", ports]
            + (["-c", config] if config else []),
        )
        self.started.append(nats)

        def read_ports():
            assert nats.is_running(), nats.text()
            for file in ports.glob("*.ports"):
                return json.loads(file.read_text())["nats"][0]
            return None

        url = programs.wait_for("nats-server writes its ports", read_ports)
        self.nats_port = int(url.rsplit(":", 1)[1])
        return nats

    @property
    def nats_url(self):
        if self.nats_port is None:
            self.nats_port = programs.free_port()
        return f"nats://127.0.0.1:{self.nats_port}"

    def url_of(self, user):
        """user: "name:password@", or ""."""
        return self.nats_url.replace("//", f"//{user}")

    def bus(self, user="", credentials=None):
        client = bus.Bus(self.url_of(user), credentials)
        self.clients.append(client)
        return client

    def kvctl(self, *words, **options):
        return programs.run("kvctl", "--nats", self.nats_url, *words, **options)

    # ---- engines -----------------------------------------------------------

    def engine(self, **options):
        return self.engine_of(engine.Engine, **options)

    def engine_of(self, kind, **options):
        one = kind(**options)
        self.engines.append(one)
        return one

    def load_feed(self):
        one = engine.LoadFeed()
        self.engines.append(one)
        return one

    # ---- our programs --------------------------------------------------------

    def start(self, name, argv, **options):
        program = programs.Program(self.folder, name, argv, **options)
        self.started.append(program)
        return program

    def daemon(self, program, config, port, name=None, **options):
        daemon = programs.Daemon(self.folder, name or program, program, config, port, **options)
        self.started.append(daemon)
        return daemon

    def bridge(
        self, *workers, name="kvbridge", component=COMPONENT, wait=True, limits="", prefix=(), user="", hashes=None,
        **publish
    ):
        port = programs.free_port()
        # no refreshes for late readers: only test_refresh.py wants those
        settings = {"formats": ["json"], "refresh_s": 0, **publish}
        defaults = f'defaults = {{ hashes = "{hashes}"; }};\n' if hashes else ""
        extra = "".join(f' {key} = {json.dumps(value)};' for key, value in settings.items())
        rows = ",\n  ".join("{ " + row + " }" for row in workers)
        bridge = self.daemon(
            "kvbridge",
            f'nats = {{ url = "{self.url_of(user)}"; }};\n'
            f'publish = {{ namespace = "{NAMESPACE}"; component = "{component}";{extra} }};\n'
            f"{defaults}workers = (\n  {rows}\n);\n"
            f'http = "127.0.0.1:{port}";\n{limits}',
            port, name, prefix=prefix,
        )
        if wait:
            programs.wait_for("kvbridge is ready", bridge.is_ready)
        return bridge

    def aggregator(self, name="kvaggregator", model="m", block_size=16, wait=True, extra="", router="", user=""):
        port = programs.free_port()
        aggregator = self.daemon(
            "kvaggregator",
            f'nats = {{ url = "{self.url_of(user)}"; }};\n'
            f'subscribe = {{ namespace = "*"; component = "*";'
            f' default = {{ model = "{model}"; block_size = {block_size}; }}; }};\n'
            f'router = {{ namespace = "{NAMESPACE}"; component = "Router"; policy = "kv"; {router} }};\n'
            f'http = "127.0.0.1:{port}";\n{extra}',
            port, name,
        )
        if wait:
            programs.wait_for("kvaggregator is ready", aggregator.is_ready)
        return aggregator

    # ---- the end -------------------------------------------------------------

    def close(self):
        """Stops everything, newest first. Fails when a daemon does not exit 0 on SIGTERM, or when a
        program shows a secret (marked.py)."""
        trouble = [f"{program.name} shows a secret in {place}"
                   for program in self.started for place in marked.shown(program)]
        for client in self.clients:
            client.close()
        for program in reversed(self.started):
            try:
                # nats-server 2.9 exits 1 on SIGTERM; the programs of this project must exit 0.
                if program.is_running() and program.stop() != 0 and program.is_ours:
                    trouble.append(f"{program.name} exited {program.process.returncode}")
            except AssertionError as error:
                trouble.append(str(error))
        for one in self.engines:
            one.close()
        for program in self.started:
            if "Sanitizer" in program.text() or "runtime error:" in program.text():
                trouble.append(f"{program.name}: a sanitizer report")
        return trouble

    def logs(self):
        return "\n".join(f"---- {p.name} ({p.process.args}) ----\n{p.text()[-6000:]}" for p in self.started)


def worker(one, worker_id=7, model="m", block_size=16, replay=True, more=""):
    """A row of `workers` for a fake engine."""
    row = f'id = {worker_id}L; model = "{model}"; block_size = {block_size}; events = "{one.events}";'
    if replay:
        row += f' replay = "{one.replay}";'
    return row + " " + more


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    scene = item.funcargs.get("scene")
    if report.failed and scene is not None:
        report.sections.append(("logs of the programs", scene.logs()))
    return report


def pytest_terminal_summary(terminalreporter):
    """Prints the table of test_probes.py and the figures of other tests, also for tests that
    passed."""
    reports = [report for those in terminalreporter.stats.values() for report in those]
    called = [report for report in reports if getattr(report, "when", None) == "call"]
    rows = [row for report in called for name, row in report.user_properties if name == "probes"]
    if rows:
        terminalreporter.section("answers to probes")
        for line in probes.table(rows):
            terminalreporter.write_line(line)
    for report in called:
        for name, line in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(f"{report.nodeid}: {line}")


@pytest.fixture(autouse=True)
def forget_secrets():
    """Runs before the fixtures that make some."""
    marked.secrets.clear()


@contextlib.contextmanager
def shared_scene(tmp_path_factory):
    """A scene with a nats-server for a fixture of a whole module. When the fixture fails, all logs
    are printed."""
    one = Scene(tmp_path_factory.mktemp("shared"), SERVERS["debian"])
    one.start_nats()
    try:
        yield one
    except BaseException:
        print(one.logs())
        raise
    finally:
        trouble = one.close()
    assert not trouble, trouble


@pytest.fixture
def scene(request, tmp_path):
    """A nats-server, and what a test adds to it. Tests that must pass with a current server too are
    marked `both_servers`."""
    one = Scene(tmp_path, SERVERS[getattr(request, "param", "debian")])
    if "no_nats" not in request.keywords:
        one.start_nats()
    yield one
    trouble = one.close()
    assert not trouble, "\n".join(trouble)


@pytest.fixture
def web(scene):
    return scene.engine_of(web_pages.Web)


@pytest.fixture
def names(scene):
    return scene.engine_of(name_server.NameServer, folder=scene.folder)


@pytest.fixture
def kube(tmp_path):
    """A Kubernetes API server without pods."""
    api = kube_api.Api(tmp_path / "kube")
    yield api
    api.close()


def pytest_generate_tests(metafunc):
    if metafunc.definition.get_closest_marker("both_servers") and "scene" in metafunc.fixturenames:
        metafunc.parametrize("scene", ["debian", "current"], indirect=True)


# Such tests need long, or a Docker engine. They run when -m names one of their marks, or the command line their file.
ASKED_FOR = {"matrix", "compose", "pods"}


def pytest_collection_modifyitems(config, items):
    said = set(re.findall(r"\w+", config.option.markexpr or ""))
    files = {pathlib.Path(argument.partition("::")[0]).name for argument in config.args}
    left_out = [item for item in items if (marks := {mark.name for mark in item.iter_markers()}) & ASKED_FOR
                and not marks & said and item.path.name not in files]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_configure(config):
    config.addinivalue_line("markers", "both_servers: run with Debian's and with a current nats-server")
    config.addinivalue_line("markers", "no_nats: the test starts nats-server itself, or not at all")
    config.addinivalue_line("markers", "sanitize: also run on sanitized programs")
    config.addinivalue_line("markers", "first: a scene of what tests/run answers with")
    config.addinivalue_line("markers", "matrix: a fault against real programs, judged by an oracle")
    config.addinivalue_line("markers", "compose: the stacks of containers")
    config.addinivalue_line("markers", "pods: random events in a simulated Kubernetes cluster")
    config.addinivalue_line("markers", "quickstart: builds and runs etc/quickstart")
