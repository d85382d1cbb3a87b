"""Are kvbridge's members those that an informer of kubernetes-asyncio has, after whatever happens
in a cluster?  Random events from seeds (pod_events.py); after each 20 of them all settles, and both
are compared (members.py)."""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import kube_api  # noqa: E402
import programs  # noqa: E402
from pod_events import Cluster  # noqa: E402
from kube_informer import Informer, key_of  # noqa: E402
from members import Rules, differences  # noqa: E402
from pod_store import Selection  # noqa: E402
from programs import wait_for  # noqa: E402

NATS = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
SETTLE_EVERY = 20
SETTLE_S = 30.0
SELECTOR = "app=vllm"
LOG_SIZE = 300  # size of the API server's log: a bridge that was away for long has to list again

# What the bridge watches, and the model of pods that name none; the jobs take turns.
VIEWS = (
    {"namespace": "inference", "fields": "", "model": "m"},
    {"namespace": None, "fields": "", "model": ""},
    {"namespace": None, "fields": "spec.nodeName=node-1", "model": "m"},
)
LABELS = ("zone", "model")  # labels that are published with a worker


class Difference(Exception):
    pass


class Place:
    """One API server, one informer, one bridge; many seeds run through them."""

    def __init__(self, folder, number):
        self.folder, self.number = folder, number
        self.view = VIEWS[number % len(VIEWS)]
        self.kube = kube_api.Api(folder / "kube", log_size=LOG_SIZE, seed=number)
        self.informer = Informer(self.kube, self.view["namespace"], SELECTOR, self.view["fields"], page=7)
        self.compared = collections.Counter()
        self.rules = Rules(model=self.view["model"], labels=LABELS)
        port = programs.free_port()
        self.bridge = None
        self.nats = programs.Program(folder, "nats", [NATS, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", folder])
        try:
            self.bridge = programs.Daemon(folder, "kvbridge", "kvbridge", self._config(port), port)
            wait_for("kvbridge answers", lambda: self.bridge.http("GET", "/state")[0] == 200, 30)
        except BaseException:
            self.close()
            raise

    def _config(self, port):
        namespaces = f'"{self.view["namespace"] or "*"}"'
        file = wait_for("nats-server writes its ports", lambda: next(self.folder.glob("*.ports"), None))
        url = wait_for("they are complete", lambda: json.loads(file.read_text())["nats"][0])
        return (
            f'nats = {{ url = "{url}"; }};\n'
            'publish = { namespace = "dynamo"; component = "VllmWorker"; labels = ("zone", "model"); };\n'
            f'http = "127.0.0.1:{port}";\n'
            f'kubernetes = {{ namespaces = ({namespaces}); selector = "{SELECTOR}";'
            f' field_selector = "{self.view["fields"]}"; model = "{self.view["model"]}"; model_label = "model";'
            f' api = "{self.kube.url}"; token_file = "{self.kube.token_file}"; ca_file = "{self.kube.ca_file}"; }};\n'
        )

    def close(self):
        self.informer.close()
        status = self.bridge.stop(30) if self.bridge else 0
        self.nats.stop()
        self.kube.close()
        text = self.bridge.text() if self.bridge else ""
        if status != 0 or "Sanitizer" in text or "runtime error:" in text:
            raise Difference(f"kvbridge exited {status}:\n{text[-6000:]}")

    # ---- A seed

    def run(self, seed, events):
        """{what happened: how often}."""
        history = collections.deque(maxlen=3 * SETTLE_EVERY)
        cluster = Cluster(self.kube, seed, f"127.{10 + self.number}.1", history.append)
        cluster.clear()
        try:
            for number in range(1, events + 1):
                cluster.step()
                if number % SETTLE_EVERY == 0 or number == events:
                    cluster.calm()
                    self.settle()
        except (AssertionError, Difference) as trouble:
            raise Difference(
                f"seed {seed}, event {number}: {trouble}\n" + "\n".join(history)
                + f"\nthe bridge's log ends with\n{self.bridge.text()[-3000:]}"
            ) from None
        finally:
            cluster.calm()
        return cluster.counts

    def settle(self):
        selection = Selection(self.view["namespace"], SELECTOR, self.view["fields"])
        truth = {key_of(pod): pod for pod in self.kube.pods.all(selection)}
        wait_for("the informer has all pods", lambda: self.informer.check().pods() == truth, SETTLE_S)
        expected = self.rules.members(self.informer.pods().values())
        self.compared["settles"] += 1
        self.compared["members"] += len(expected)
        lines = []

        def is_equal():
            assert self.bridge.is_running(), self.bridge.text()[-6000:]
            lines[:] = differences(expected, self.bridge.get("/state"))
            return not lines

        try:
            wait_for("the members are the informer's", is_equal, SETTLE_S)
        except AssertionError as trouble:
            raise Difference(f"{trouble}\n" + "\n".join(lines)) from None


# ---- Many seeds -------------------------------------------------------------------------

def run_job(number, seeds, events, folder):
    """Runs in a process of its own; returns (counts, [differences])."""
    programs.first_port = 10_000 + programs.PORTS_A_WORKER * (number % 4)
    place = Place(pathlib.Path(folder), number)
    counts, trouble = collections.Counter(), []
    began = time.monotonic()
    try:
        for done, seed in enumerate(seeds, 1):
            try:
                counts += place.run(seed, events)
            except Difference as difference:
                trouble.append(str(difference))
            seconds = time.monotonic() - began
            print(f"job {number}: seed {seed}, {done} of {len(seeds)}, {seconds:.0f} s, {len(trouble)} differ", flush=True)
            if len(trouble) >= 3:
                break
    finally:
        try:
            place.close()
        except Difference as difference:
            trouble.append(str(difference))
    return counts, trouble, place.compared, place.kube.counts


def main():
    parser = argparse.ArgumentParser(description="kvbridge's members and an informer's, after random events.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--events", type=int, default=1000, help="of a seed")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="bridges at a time")
    parser.add_argument("--keep", help="a folder for the logs")
    options = parser.parse_args()
    began = time.monotonic()
    jobs = min(options.jobs, options.seeds)
    folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="kubernetes-"))
    shares = [range(options.first + job, options.first + options.seeds, jobs) for job in range(jobs)]
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        running = []
        for job, seeds in enumerate(shares):
            (folder / f"job{job}").mkdir(parents=True, exist_ok=True)
            running.append(pool.submit(run_job, job, seeds, options.events, folder / f"job{job}"))
        results = [one.result() for one in running]
    counts = sum((row[0] for row in results), collections.Counter())
    trouble = [text for row in results for text in row[1]]
    for text in trouble:
        print(text)
    compared = sum((row[2] for row in results), collections.Counter())
    requests = sum((row[3] for row in results), collections.Counter())
    print(" ".join(f"{name}={count}" for name, count in sorted(counts.items())))
    print(" ".join(f"{name}={count}" for name, count in sorted(requests.items()) if " " in name))
    print(
        f"{options.seeds} seeds, {sum(counts.values())} events in seeds without a difference, "
        f"{compared['members']} members compared after {compared['settles']} settles, {len(trouble)} differences, {time.monotonic() - began:.0f} s"
    )
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if trouble else 0)


if __name__ == "__main__":
    main()
