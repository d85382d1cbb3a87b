r"""Rows of the matrix with more than one nats-server: a cluster of three, and a leaf node at another
site. All are real processes; programs that are connected through a proxy can be separated.

    observer (heartbeats) --- s0
                              | \     each route over a proxy of its own
    bridge 0 --------------- s1--s2 --------- aggregator 0

Bridge 0 and aggregator 0 are given one server and learn the others from it; bridge 1 and aggregator
1 are given all three, and begin with any of them.

What is done is done to the server that most of our programs use."""

import http.client
import json
import signal
import time

import bus
import programs
from matrix.case import ENGINE_SIDE, MISSED, REPAIRS
from matrix.oracle import S
from programs import wait_for
from proxy import LongLine, Proxy

GRACE_S = 5  # grace period of lame duck mode: clients that have not left by then are disconnected
SITE_DISTANCE_S = 0.05
MOVES = [(side, name, {}) for side in ("bridge", "aggregator") for name in (
    "kvb_nats_connects_total", "kvb_nats_lame_ducks_total")]


class Server:
    """One nats-server that keeps its ports over restarts."""

    def __init__(self, site, name, config):
        self.site = site
        self.name = name
        self.config = config
        self.port = programs.free_port()
        self.monitor = programs.free_port()
        self.program = None

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    def start(self):
        stage = self.site.stage
        path = stage.folder / f"{self.name}.conf"
        path.write_text(
            f'server_name: {self.name}\nhttp: "127.0.0.1:{self.monitor}"\n'
            f'lame_duck_grace_period: "{GRACE_S}s"\nlame_duck_duration: "30s"\n{self.config}')
        self.program = stage.start_server(self.port, path)

    def ask(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.monitor, timeout=programs.DEADLINE_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def clients(self):
        """The connections of this project's programs."""
        names = [one.get("name", "") for one in self.ask("/connz?limit=1000")["connections"]]
        return [name for name in names if name.startswith("kv")]

    def signal(self, number):
        self.program.process.send_signal(number)


class Site:
    def __init__(self, stage):
        self.stage = stage
        self.servers = []

    def urls(self, *numbers):
        return ",".join(self.servers[at].url for at in numbers)

    def begin(self):
        for server in self.servers:
            server.start()
        self.stage.nats, self.stage.nats_port = self.servers[0].program, self.servers[0].port

    def close(self):
        pass


class Cluster(Site):
    def __init__(self, stage, count=3):
        super().__init__(stage)
        ports = [programs.free_port() for _ in range(count)]
        # links[a][b]: from a to b.  A server names a port where nobody listens as its own, or the
        # others would tell each other of ways past the proxies.
        self.links = [[None if a == b else Proxy(ports[b]) for b in range(count)] for a in range(count)]
        stage.proxies += [link for row in self.links for link in row if link]
        for at, port in enumerate(ports):
            routes = ", ".join(f'"nats://127.0.0.1:{link.port}"' for link in self.links[at] if link)
            self.servers.append(Server(
                self, f"s{at}", f'cluster {{ name: kvb, listen: "127.0.0.1:{port}", '
                f'advertise: "127.0.0.1:{programs.free_port()}", routes: [ {routes} ] }}\n'))
        self.begin()
        self.wait_until_whole()
        stage.bridge_urls = {0: self.urls(1), 1: self.urls(0, 1, 2)}
        stage.aggregator_urls = {0: self.urls(2), 1: self.urls(0, 1, 2)}

    def is_whole(self):
        ids = [server.ask("/varz")["server_id"] for server in self.servers]
        return all(
            {route["remote_id"] for route in server.ask("/routez")["routes"]} == set(ids) - {own}
            for own, server in zip(ids, self.servers))

    def wait_until_whole(self):
        wait_for("each server has its routes", self.is_whole)

    def victim(self):
        """Not the first server: the observer uses that one."""
        return max(self.servers[1:], key=lambda server: len(server.clients()))

    def links_of(self, server):
        at = self.servers.index(server)
        return [link for a, row in enumerate(self.links) for b, link in enumerate(row) if link and at in (a, b)]


class Leaf(Site):
    """A hub where the bridges and one aggregator are, and a site of the other aggregator, 50 ms away."""

    def __init__(self, stage):
        super().__init__(stage)
        port = programs.free_port()
        self.line = LongLine(port, SITE_DISTANCE_S)
        stage.proxies.append(self.line)
        self.servers.append(Server(self, "hub", f'leafnodes {{ listen: "127.0.0.1:{port}", advertise: "127.0.0.1:{self.line.port}" }}\n'))
        self.servers.append(Server(
            self, "leaf", f'leafnodes {{ reconnect: 1, remotes: [ {{ url: "nats://127.0.0.1:{self.line.port}" }} ] }}\n'))
        self.begin()
        wait_for("the leaf is connected", self.is_joined)
        stage.aggregator_urls = {0: self.urls(1)}

    def is_joined(self):
        return self.servers[0].ask("/leafz")["leafnodes"] == 1


class Narrow(Site):
    """One server that keeps at most 8 MB for a client that does not read."""

    def __init__(self, stage):
        super().__init__(stage)
        self.servers.append(Server(self, "narrow", 'max_pending: 8MB\nwrite_deadline: "1s"\n'))
        self.begin()


# ---- Faults ------------------------------------------------------------------------------


def begin(case, server=None):
    """Remembers the counters, and which programs use the server."""
    case.note_metrics(*REPAIRS, *ENGINE_SIDE, MISSED, *MOVES)
    case.server = server
    case.users = len(server.clients()) if server else 0
    case.begin_fault()


def moved(case):
    return sum(case.grew(side, "kvb_nats_connects_total") for side in ("bridge", "aggregator"))


def wait_until_moved(case):
    wait_for(f"{case.users} programs use another server", lambda: moved(case) >= case.users)


def kill_one(case):
    """The repair is the move to another server, so the fault ends with the kill."""
    server = case.stage.site.victim()
    begin(case, server)
    case.stage.killed.append(server.program)
    server.program.kill()
    case.end_fault()
    wait_until_moved(case)


def check_killed(case):
    check_unharmed(case)
    case.server.start()
    case.stage.site.wait_until_whole()


def freeze_one(case):
    server = case.stage.site.victim()
    begin(case, server)
    server.signal(signal.SIGSTOP)
    wait_until_moved(case)
    case.wait_until_published()
    server.signal(signal.SIGCONT)
    case.end_fault()


def wait_until_missed(case):
    """Some lists do not say EXACT any more, and then something happens that they do not hear of."""
    wait_for("DOWN(silent)", lambda: ("DOWN", "silent") in case.states_seen())
    case.wait_until_published()


def part_one(case):
    site = case.stage.site
    server = site.victim()
    begin(case, server)
    for link in site.links_of(server):
        link.cut()
    wait_until_missed(case)
    for link in site.links_of(server):
        link.heal()
    site.wait_until_whole()  # a server looks for a lost route once a second
    case.end_fault()


def restart_all(case):
    """One after the other, as a rolling update does."""
    site = case.stage.site
    begin(case)
    case.left_s = []
    for server in site.servers:
        case.users = len(server.clients())
        signalled = time.monotonic_ns()
        server.signal(signal.SIGUSR2)
        wait_for(f"{case.users} programs have left {server.name}", lambda: not server.clients())
        case.left_s.append((time.monotonic_ns() - signalled) / S)
        case.stage.killed.append(server.program)
        server.program.process.wait(programs.DEADLINE_S)  # by itself, when all have left and the grace is over
        server.start()
        site.wait_until_whole()
    case.stage.nats = site.servers[0].program
    case.end_fault()


def cut_line(case):
    """The site is cut off; afterwards missed events come over the link, with 100 ms of
    round trip."""
    site = case.stage.site
    begin(case)
    site.line.cut()
    wait_until_missed(case)
    site.line.heal()
    wait_for("the leaf is connected", site.is_joined)
    case.end_fault()


def flood_a_sleeper(case):
    """An aggregator is frozen while more is published than nats-server keeps for it."""
    site, sleeper = case.stage.site, case.stage.aggregators[0]
    begin(case)
    client = bus.Bus(site.servers[0].url)
    sleeper.process.send_signal(signal.SIGSTOP)
    try:
        noise = b"{}" + b" " * 60_000
        while not site.servers[0].ask("/varz")["slow_consumers"] and case.age_s() < programs.DEADLINE_S:
            for _ in range(10):
                client.send("namespace.dynamo.component.Noise.kv_events", noise)
            client.flush()
            time.sleep(0.01)  # the other aggregator reads all of it
        case.last(max(3, case.age_s() + 1))
    finally:
        sleeper.process.send_signal(signal.SIGCONT)
        client.close()
    case.end_fault()
    wait_for("it has connected again", lambda: sleeper.metric("kvb_nats_connects_total") >= 2)


# ---- Checks --------------------------------------------------------------------------------


def longest_absence_s(case):
    """The longest time that a list was not EXACT."""
    longest = 0.0
    for watcher in case.oracle.watchers:
        since = {}
        for at, stream, state, _ in watcher.changes:
            if state != "EXACT" and at >= case.fault_ns:
                since.setdefault(stream, at)
            elif stream in since and state == "EXACT":
                longest = max(longest, (at - since.pop(stream)) / S)
    return longest


def check_unharmed(case):
    missed = case.grew("aggregator", "kvb_events_missed_total")
    case.figures = (
        f"{moved(case):.0f} connections moved; a list was not EXACT for {longest_absence_s(case):.2f} s at most; "
        f"{case.oracle.judged_exact} lists judged as EXACT meanwhile; {missed:.0f} events missed")
    case.expect_that(not case.new_epochs(), "streams began new epochs")
    case.expect_that(
        case.grew("bridge", "kvb_announcements_total") == 0, "streams were told anew to everybody")


def check_parted(case):
    check_unharmed(case)
    repaired = sum(case.grew(side, name, **labels) for side, name, labels in REPAIRS[:2])
    case.expect_that(repaired > 0, "no stream was repaired by its bridge (kvb_sync_repairs_total)")
    case.expect_that(case.grew("aggregator", "kvb_events_missed_total") > 0, "no event was missed (kvb_events_missed_total)")


def check_rolled(case):
    check_unharmed(case)
    ducks = sum(case.grew(side, "kvb_nats_lame_ducks_total") for side in ("bridge", "aggregator"))
    programs_running = len(case.stage.bridges) + len(case.stage.aggregators)
    case.figures += f"; left after {', '.join(format(s, '.2f') for s in case.left_s)} s"
    # Each stood on some server, and each server was one in lame duck mode.
    case.expect_that(ducks >= programs_running, f"{ducks:.0f} lame ducks were met by {programs_running} programs")
    case.expect_that(moved(case) >= ducks, f"{moved(case):.0f} moves after {ducks:.0f} announcements")


def check_slow(case):
    check_parted(case)
    case.expect_that(moved(case) == 1, f"{moved(case):.0f} programs lost their connections, not one")
    slow = case.stage.site.servers[0].ask("/varz")["slow_consumers"]
    case.expect_that(slow >= 1, "nats-server met no slow consumer (slow_consumers of /varz)")
