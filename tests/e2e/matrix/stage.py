"""The programs of a row: nats-server, engines under load, two bridges, aggregators, the oracle."""

import collections
import dataclasses
import functools
import pathlib
import re
import signal

import programs
from conftest import SERVERS, Scene
from matrix.oracle import Oracle
from matrix.truth import Fleet
from programs import TRACE, wait_for
from proxy import Proxy

MOST_RESIDENT_BYTES = 512 << 20


@dataclasses.dataclass
class Load:
    workers: int = 8
    ranks: int = 2
    blocks: int = 1024
    rate: float = 160.0  # requests a second, all engines together
    scale: int = 16  # lengths of the trace are divided by this
    step_ms: int = 20
    aggregators: int = 2
    replay_buffer: int = 10_000
    processes: int = 1  # of engines
    keeps_ports: bool = False  # a process of engines can be started again at its addresses


BRIDGE_SUBJECTS = 'publish = { namespace = "dynamo"; component = "VllmWorker"; formats = ["protobuf"]; };\n'
AGGREGATOR_SUBJECTS = (
    'subscribe = { namespace = "*"; component = "*"; };\n'
    'router = { namespace = "dynamo"; component = "Router"; policy = "kv"; };\n')
CONFIGS = {  # permissions are printed for these
    "bridge": BRIDGE_SUBJECTS + 'workers = ({ id = 1; model = "m"; block_size = 16; events = "tcp://127.0.0.1:1"; });\n',
    "aggregator": AGGREGATOR_SUBJECTS,
}


class Stage(Scene):
    def __init__(self, folder, load, seed):
        super().__init__(folder, SERVERS["debian"])
        self.load = load
        self.seed = seed
        self.bridges = []
        self.bridge_parts = []
        self.aggregators = []
        self.proxies = []
        self.aggregator_ports = []  # of NATS, for those that do not speak with it directly
        self.page_ports = {}  # of metrics pages, one for each process of engines
        self.base_ports = {}  # of processes of engines that keep theirs
        self.links = {}  # worker -> [proxies of events, proxies of replays]
        self.python_engines = []
        self.keeps_checkpoints = False
        self.host = None  # what the daemons run in, for rows about that: options_of(name), close()
        self.killed = []  # programs that the row itself ended
        self.fleet = None
        self.oracle = None
        self.nats = None
        self.nats_port = programs.free_port()
        self.site = None  # several nats-servers; then nats_port is that of the first
        self.bridge_urls = {}  # part -> servers, where it is not the one of nats_port
        self.aggregator_urls = {}  # number -> the same

    # ---- programs ----------------------------------------------------------------

    def start_server(self, port, config=None):
        """A nats-server, which need not be the one of nats_port."""
        kept = self.nats_port
        program = super().start_nats(port, config)
        self.nats_port = kept
        return program

    def start_nats(self):
        self.nats = self.start_server(self.nats_port, self.permissions)

    @functools.cached_property
    def permissions(self):
        """nats-server's configuration: users with their permissions as kvctl prints them; others may do
        everything."""
        path, users = self.folder / "nats.conf", []
        for role, text in CONFIGS.items():
            config = self.folder / f"permissions.{role}.cfg"
            config.write_text(text)
            block = programs.run("kvctl", "permissions", role, "--config", config, check=True).stdout
            users.append(f"  {{ user: {role}, password: p, {block} }}\n")
        path.write_text(
            f"authorization {{ users: [\n  {{ user: free, password: p }}\n{''.join(users)}] }}\nno_auth_user: free\n")
        return path

    def denials(self):
        """Messages that nats-server denied to running daemons."""
        return {daemon.name: denied for daemon in (*self.bridges, *self.aggregators)
                if daemon.is_running() and (denied := daemon.metric("kvb_nats_denied_total"))}

    def url_at(self, port=None, role=None):
        user = f"{role}:p@" if role and not self.site else ""
        return f"nats://{user}127.0.0.1:{port or self.nats_port}"

    def start_fleet(self):
        each = self.load.workers // self.load.processes
        truths = [self.start_engines(at) for at in range(self.load.processes)]
        wait_for("kvfleet is there", lambda: all(
            (self.folder / f"workers{at}.{part}").exists()
            for at in range(self.load.processes) for part in (0, 1)))
        self.fleet = Fleet(truths, each)
        # The bridges start together with the engines, while these have published little.
        self.fleet.say("pause")
        self.fleet.learn_streams()
        self.bridge_parts = [self.workers_of_bridge(part) for part in (0, 1)]

    def start_engines(self, at, life=0):
        """One process of them; returns the path of its truth. Each life has other content."""
        load, config = self.load, self.folder / f"workers{at}"
        workers = load.workers // load.processes
        truth = self.folder / f"truth{at}.{life}"
        if load.keeps_ports and at not in self.base_ports:
            self.base_ports[at] = programs.free_ports(workers * (2 * load.ranks + 1))
        if at not in self.page_ports:
            self.page_ports[at] = programs.free_port()
        self.start(f"kvfleet{at}.{life}", [
            programs.BIN / "kvfleet", "--workers", workers, "--first-id", at * workers + 1, "--ranks", load.ranks,
            "--blocks", load.blocks, "--rate", load.rate / load.processes, "--scale", load.scale,
            "--step-ms", load.step_ms, "--replay-buffer", load.replay_buffer, "--seed", self.seed + 1000 * (at + 10 * life),
            "--trace", TRACE, "--truth", truth, "--config-out", config, "--config-split", 2,
            "--log-changes", 16 * load.blocks + 65536, "--http", f"127.0.0.1:{self.page_ports[at]}",
            "--base-port", self.base_ports.get(at, 0),
        ])
        return truth

    def engines_of(self, at):
        """(its program, its streams) of a process of engines."""
        each = self.load.workers // self.load.processes
        program = [one for one in self.started if one.name.startswith(f"kvfleet{at}.")][-1]
        return program, {(at * each + worker, rank) for worker in range(1, each + 1) for rank in range(self.load.ranks)}

    def workers_of_bridge(self, part):
        """The section of its configuration: half of each process's engines."""
        texts = [(self.folder / f"workers{at}.{part}").read_text() for at in range(self.load.processes)]
        rows = [re.search(r"workers = \(\n(.*?)\n\);", text, re.S)[1] for text in texts]
        return "workers = (\n" + ",\n".join(rows) + "\n);\n"

    def read_pages(self, scrape_ms=500):
        """Lets the bridges also read the engines' metrics pages."""
        each = self.load.workers // self.load.processes

        def row(found):
            worker = int(found[1])
            url = f"http://127.0.0.1:{self.page_ports[(worker - 1) // each]}/workers/{worker}/metrics"
            return f'{found[0]} prometheus = "{url}"; scrape_ms = {scrape_ms};'

        self.bridge_parts = [
            re.sub(r"id = (\d+)L?;.*?load = {", row, text, flags=re.S) for text in self.bridge_parts]

    def start_daemon(self, program, name, config, port):
        return self.daemon(program, config, port, name, **(self.host.options_of(name) if self.host else {}))

    def start_bridge(self, part, url_port=None, wait=True):
        port = programs.free_port()
        bridge = self.start_daemon(
            "kvbridge", f"kvbridge{part}.{len(self.started)}",
            f'nats = {{ url = "{self.bridge_urls.get(part) or self.url_at(url_port, "bridge")}"; }};\n'
            f'{BRIDGE_SUBJECTS}{self.bridge_parts[part]}http = "127.0.0.1:{port}";\n{self.checkpoint_lines(part)}', port,
        )
        if part < len(self.bridges):
            self.bridges[part] = bridge
        else:
            self.bridges.append(bridge)
        if wait:
            wait_for("kvbridge is ready", bridge.is_ready)
        return bridge

    def checkpoints(self, part):
        """The folder of a bridge's checkpoints."""
        folder = self.folder / f"checkpoints{part}"
        folder.mkdir(exist_ok=True)
        return folder

    def checkpoint_lines(self, part):
        if not self.keeps_checkpoints:
            return ""
        return f'checkpoint = "{self.checkpoints(part).resolve()}";\ncheckpoint_s = 1;\n'

    def start_aggregator(self, at=None, url_port=None):
        port = programs.free_port()
        url = self.aggregator_urls.get(len(self.aggregators) if at is None else at)
        aggregator = self.start_daemon(
            "kvaggregator", f"kvaggregator{len(self.started)}",
            f'nats = {{ url = "{url or self.url_at(url_port, "aggregator")}"; }};\n'
            f'{AGGREGATOR_SUBJECTS}http = "127.0.0.1:{port}";\n', port,
        )
        if at is None:
            self.aggregators.append(aggregator)
        else:
            self.aggregators[at] = aggregator
        wait_for("kvaggregator is ready", aggregator.is_ready)
        return aggregator

    def link_engine(self, worker):
        """Puts a proxy before each port of one worker; returns the proxies of events and of
        replays."""
        pairs = []
        for part, text in enumerate(self.bridge_parts):
            row = re.search(rf"id = {worker};.*?load", text, re.S)
            if not row:
                continue
            for key in ("events", "replay"):
                port = int(re.search(rf'{key} = "tcp://127.0.0.1:(\d+)"', row[0])[1])
                base = programs.free_ports(self.load.ranks)  # they count up with the rank
                pairs.append([Proxy(port + rank, port=base + rank) for rank in range(self.load.ranks)])
                text = text.replace(f'{key} = "tcp://127.0.0.1:{port}"', f'{key} = "tcp://127.0.0.1:{base}"')
            self.bridge_parts[part] = text
        self.proxies += [link for links in pairs for link in links]
        return pairs

    def add_engine(self, engine, worker_id, part=0):
        """Adds a Python engine to those of a bridge that has not started."""
        self.engines.append(engine)
        row = (f'  {{ id = {worker_id}; model = "fleet"; block_size = {engine.block_size}; '
               f'events = "{engine.events}"; replay = "{engine.replay}"; }},\n')
        self.bridge_parts[part] = self.bridge_parts[part].replace("workers = (\n", "workers = (\n" + row, 1)
        self.python_engines.append((worker_id, engine))

    def bridge_of(self, worker):
        each = self.load.workers // self.load.processes
        return 0 if (worker - 1) % each < each // 2 else 1

    def streams_of_bridge(self, part):
        return {
            (worker, rank) for worker in range(1, self.load.workers + 1) for rank in range(self.load.ranks)
            if self.bridge_of(worker) == part
        } | {(worker, 0) for worker, _ in self.python_engines if part == 0}

    # ---- start and stop ---------------------------------------------------------------

    def begin(self, prepare=None, site=None, judges_exact=True):
        """Starts everything; every stream is EXACT, and the caches are full and evicting."""
        if site:
            self.site = site(self)
        else:
            self.start_nats()
        self.start_fleet()
        if prepare:
            prepare(self)
        for at in range(self.load.aggregators):
            self.start_aggregator(url_port=dict(enumerate(self.aggregator_ports)).get(at))
        for part in (0, 1):
            self.start_bridge(part, wait=False)
        for bridge in self.bridges:
            wait_for("kvbridge is ready", bridge.is_ready)
        self.oracle = Oracle(
            self.fleet, {(worker, 0): engine.content for worker, engine in self.python_engines}, self.aggregators,
            self.nats_port, judges_exact)
        streams = self.load.workers * self.load.ranks + len(self.python_engines)
        self.wait_for_states("all streams wait for a first batch", lambda: all(
            len(w.states) == streams and all(row[:2] in self.before_any for row in w.states.values())
            for w in self.oracle.watchers))
        wait_for("all streams have a heartbeat", lambda: len(self.oracle.heartbeats.last) == streams)
        self.oracle.command("resume")
        for _, engine in self.python_engines:
            engine.begin()
        wait_for("the caches are warm", self.is_warm)
        self.wait_for_states("all streams are EXACT", lambda: all(
            self.is_exact(w) for w in self.oracle.watchers))

    def wait_for_states(self, what, holds):
        try:
            wait_for(what, holds)
        except AssertionError as error:
            states = collections.Counter(row[:2] for _, _, row in self.oracle.all_states())
            raise AssertionError(f"{error}: {states}") from None

    # An engine that has published nothing is unknown; one that publishes earlier may be EXACT.
    before_any = (("UNVERIFIED", "no_base"), ("EXACT", ""))

    def is_warm(self):
        held = [row["held_blocks"] for row in self.oracle.stats().values()]
        return sum(held) > 0.85 * len(held) * self.load.blocks

    @staticmethod
    def is_exact(watcher):
        return bool(watcher.states) and all(row[0] == "EXACT" for row in watcher.states.values())

    def pause(self):
        """Stops the load; returns when everything is published."""
        for _, engine in self.python_engines:
            engine.pause()
        self.oracle.command("drain")

    def close(self):
        """Stops everything; returns what went wrong, as texts."""
        trouble = []
        if self.oracle:
            self.oracle.stop()
            trouble += self.oracle.trouble
        for program in self.started:
            if not program.is_running() and program not in self.killed and not program.name.startswith("nats"):
                trouble.append(f"{program.name} ended by itself: {program.process.returncode}")
            elif program.is_running():
                program.process.send_signal(signal.SIGCONT)  # a frozen one would not end
        trouble += super().close()
        if self.site:
            self.site.close()
        for one in self.proxies + [self.host] * bool(self.host):
            one.close()
        if self.fleet:
            self.fleet.close()
        return trouble

    # ---- figures ---------------------------------------------------------------------

    def bridge_metric(self, name, **labels):
        return sum(bridge.metric(name, **labels) for bridge in self.bridges if bridge.is_running())

    def aggregator_metric(self, name, **labels):
        return sum(one.metric(name, **labels) for one in self.aggregators if one.is_running())

    def resident(self):
        """{name: bytes} of the daemons that run."""
        sizes = {}
        for program in self.started:
            if program.is_ours and program.is_running() and not program.name.startswith("kvfleet"):
                text = pathlib.Path(f"/proc/{program.process.pid}/status").read_text()
                sizes[program.name] = int(re.search(r"VmRSS:\s+(\d+)", text)[1]) << 10
        return sizes
