"""All known attacks, one or two at a time, for minutes, against one stack with a fleet under load.
The streams of the fleet must stay EXACT and correct, memory below its ceiling, and each refusal
must be counted.  soak.py runs it."""

import http.client
import random
import threading
import time

from matrix import attacks
from matrix.attacks.engines import HostileEngine
from matrix.attacks.host import TOKEN, Host
from matrix.attacks.http import HostileBrowser
from matrix.attacks.links import LinkedEngine
from matrix.attacks.nats import HostileClient
from matrix.case import Row
from matrix.oracle import S
from matrix.stage import MOST_RESIDENT_BYTES

FIRST_HOSTILE_WORKER = 9_000
HOSTILE_ENGINES = 2
PROBE_S = 0.05
COUNTED_S = 10.0  # time until a refusal shows on /metrics


def prepare(stage):
    for at in range(HOSTILE_ENGINES):
        stage.add_hostile(HostileEngine(), FIRST_HOSTILE_WORKER + at)
    linked = LinkedEngine(stage.seed)
    stage.add_hostile(linked, FIRST_HOSTILE_WORKER + HOSTILE_ENGINES, more=linked.load(), where=linked.where())
    stage.host = Host(stage, FIRST_HOSTILE_WORKER + HOSTILE_ENGINES + 1)
    token = stage.folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o640)
    stage.bridge_extra = f'register = {{ token_file = "{token.resolve()}"; }};\n'


class Prober(threading.Thread):
    """Another client, which measures how long answers take meanwhile, and which are missing."""

    def __init__(self, daemon, path):
        super().__init__(daemon=True)
        self.target, self.path = daemon, path
        self.taken = []  # (ns, seconds)
        self.failed = []  # (began, ended, what)
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.wait(PROBE_S):
            began, failure = time.monotonic_ns(), None
            connection = http.client.HTTPConnection("127.0.0.1", self.target.port, timeout=5)
            try:
                connection.request("GET", self.path)
                status = connection.getresponse().status
                failure = status if status != 200 else None
            except (OSError, http.client.HTTPException) as error:
                failure = type(error).__name__
            finally:
                connection.close()
            if failure:
                self.failed.append((began, time.monotonic_ns(), failure))
            self.taken.append((began, (time.monotonic_ns() - began) / S))

    def text(self):
        taken = sorted(seconds for _, seconds in self.taken) or [0.0]
        return (f"{self.target.name} {self.path}: {len(taken)} asked, p50 {taken[len(taken) // 2] * 1e3:.1f} ms, "
                f"p99 {taken[int(len(taken) * 0.99)] * 1e3:.0f} ms, most {taken[-1]:.2f} s, {len(self.failed)} not answered 200")


def all_attacks(stage, kinds):
    """Rows of attacks, each carried out by one thread; kinds: their names, or None for all."""
    fleet = sorted(stream for part in (0, 1) for stream in stage.streams_of_bridge(part))
    client = HostileClient(stage.nats_port, stage.seed, fleet, len(stage.aggregators))
    browser = HostileBrowser(lambda: [one for one in stage.bridges + stage.aggregators if one.is_running()], stage.seed)
    rows = attacks.nats.attacks(client) + attacks.http.attacks(browser)
    # In one row with them: who takes NATS away must not keep another from his attack on it.
    rows += attacks.host.attacks(stage.host, fleet)
    # Two engines side by side would wait for each other's ports.

    def metric(worker):
        return lambda name, **labels: stage.bridge_metric(name, pod_key=str(worker), **labels)

    linked = stage.hostile[HOSTILE_ENGINES]
    hands = [attacks.engines.attacks(engine, metric(worker)) for worker, engine in stage.hostile[:HOSTILE_ENGINES]] + [
        attacks.links.attacks(linked[1], metric(linked[0]), stage.bridge_metric), rows]
    unknown = set(kinds or ()) - {one.name for row in hands for one in row}
    assert not unknown, f"no such kinds: {sorted(unknown)}"
    chosen = [[one for one in row if not kinds or one.name in kinds] for row in hands]
    return [row for row in chosen if row]


class Counted:
    """By how much the counters of an attack have grown since. A rank that another attack has closed
    meanwhile takes its counters along."""

    def __init__(self, stage, attack):
        self.stage, self.counters = stage, attack.counters
        self.seen, self.grown = self._samples(), 0

    def _samples(self):
        return {(name, key): value for side, name, labels in self.counters
                for key, value in self.stage.samples(side, name, **labels).items()}

    def look(self):
        now = self._samples()
        for key, value in now.items():
            before = self.seen.get(key, 0)
            self.grown += value - before if value >= before else value
        self.seen = now
        return self.grown


def run_attack(case, attack):
    counted = Counted(case.stage, attack)
    if attack.touched:
        case.oracle.begin_fault(attack.touched)
    began = time.monotonic_ns()
    attack.run()
    ended = time.monotonic_ns()
    if attack.touched:
        case.oracle.end_fault_of(attack.touched)
    case.attacks.append((began, ended, attack))
    deadline = time.monotonic() + COUNTED_S
    while (grown := counted.look()) < attack.refusals and attack.counters:
        if time.monotonic() > deadline:
            case.wrong.append(f"{attack.name}: {grown:.0f} refusals were counted, at least {attack.refusals} there were")
            break
        time.sleep(0.1)
    with open(case.stage.folder / "attacks.txt", "a") as out:
        out.write(f"{(began - case.fault_ns) / S:7.1f} s  took {(ended - began) / S:5.1f} s  {attack.name}: "
                  f"{grown:.0f} counted\n")


def attack_in_turn(case, rows, ends, seed):
    """Each attack once, in random order, until the time is over; the first round is always
    complete."""
    rng, done = random.Random(seed), 0
    while done == 0 or time.monotonic() < ends:
        for attack in rng.sample(rows, len(rows)):
            if done and time.monotonic() >= ends:
                return
            try:
                run_attack(case, attack)
            except Exception as error:  # the row fails with it
                case.wrong.append(f"{attack.name}: {type(error).__name__}: {error}")
        done += 1


def inject(case, minutes, kinds):
    stage = case.stage
    case.attacks, case.peaks = [], {}
    case.probers = [Prober(one, path) for one in stage.bridges + stage.aggregators for path in ("/livez", "/readyz")]
    case.fault_ns = time.monotonic_ns()
    ends = time.monotonic() + minutes * 60
    hands = [
        threading.Thread(target=attack_in_turn, args=(case, rows, ends, stage.seed + at), daemon=True)
        for at, rows in enumerate(all_attacks(stage, kinds))
    ]
    for thread in case.probers + hands:
        thread.start()
    while any(hand.is_alive() for hand in hands):
        for name, size in stage.resident().items():
            case.peaks[name] = max(case.peaks.get(name, 0), size)
        time.sleep(0.5)
    for prober in case.probers:
        prober.stopping.set()
        prober.join()
    case.end_ns = time.monotonic_ns()


def is_under(row, at):
    """(began, ended, attack) for attacks after which something is not well again."""
    began, ended, attack = row
    return began <= at <= ended + int(attack.heal_s * S)


def is_excused(case, at, stream):
    return any(stream in row[2].touched and is_under(row, at) for row in case.attacks)


def may_be_unready(case, began, ended):
    """An attack may begin while a probe waits for its answer."""
    return any(row[2].is_unready and (is_under(row, began) or is_under(row, ended)) for row in case.attacks)


def under_way(case, at):
    return [attack.name for began, ended, attack in case.attacks if began <= at <= ended + S]


def check(case):
    fleet = {stream for part in (0, 1) for stream in case.stage.streams_of_bridge(part)}
    for at, who, stream, state, reason in case.changes(fleet, since=case.fault_ns):
        if state != "EXACT" and not is_excused(case, at, stream):
            case.wrong.append(
                f"{who} {stream} {state}({reason}) {(at - case.fault_ns) / S:.1f} s after the beginning, during "
                f"{under_way(case, at)}")
    case.wrong = case.wrong[:20]
    for prober in case.probers:
        if prober.path == "/readyz":
            prober.failed = [row for row in prober.failed if not may_be_unready(case, *row[:2])]
        case.expect_that(
            not prober.failed, f"{prober.target.name} {prober.path} answered {prober.failed[:1]} during "
            f"{under_way(case, prober.failed[0][0]) if prober.failed else ''}")
    peaks = ", ".join(f"{name} {size >> 20} MiB" for name, size in case.peaks.items())
    resent = sum(engine.resent for _, engine in case.stage.hostile)
    case.figures = "; ".join(
        [f"{len(case.attacks)} attacks of {len({attack.name for _, _, attack in case.attacks})} kinds, "
         f"{resent} messages sent again", peaks]
        + [f"left out: {words}" for words in case.stage.host.left_out] + [prober.text() for prober in case.probers])


def row(minutes, kinds=None):
    """kinds: names of attacks with commas between, or None for all."""
    names = kinds.split(",") if kinds else None
    return Row(
        "HOSTILE", f"{minutes:g} minutes of hostile peers", lambda case: inject(case, minutes, names),
        "the fleet's streams EXACT and true throughout, memory within its ceiling, refusals counted", check,
        prepare=prepare, max_growth_bytes=MOST_RESIDENT_BYTES, shows=False, judges_exact=False, load={"workers": 4, "rate": 80.0})
