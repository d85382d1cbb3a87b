#!/usr/bin/env python3
"""Registers the sockets on which a kvbridge republishes events at Dynamo's services, and keeps them
registered: at a select_service (port 8092) or at the stand-alone indexer (port 8090).

    kvbridge --GET /state--> announce.py --GET /workers, POST, DELETE--> the service

Each round compares what the bridge republishes with what the service lists.  So a service that
has restarted gets its workers again, and this program finds what it registered before it was
killed.  On SIGTERM it takes everything back.  A registration that leaves the bridge while this
program does not run stays: remove it by hand.

select_service chooses only workers with a URL: give them an `address` in kvbridge.cfg.  It takes a
replay socket only of a worker with one rank, so each rank is a worker there: rank 0 under the
worker's id, each other under a hash of id and rank.

    etc/examples/announce.py --bridge http://127.0.0.1:9401 --indexer http://10.0.0.9:8090
"""

import argparse
import hashlib
import json
import logging
import signal
import socket
import threading
import urllib.error
import urllib.request

log = logging.getLogger("announce")


def request(method, url, body=None):
    """Returns status and value.  OSError: there is no answer."""
    data = None if body is None else json.dumps(body).encode()
    one = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(one, timeout=5) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, error.read(300).decode(errors="replace")


def seen_from_outside(endpoint, host):
    """A socket that listens on all interfaces is reached under the host's name."""
    for everywhere in ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:"):
        if endpoint.startswith(everywhere):
            return f"tcp://{host}:{endpoint.removeprefix(everywhere)}"
    return endpoint


def republished(bridge, host):
    """(worker, rank) -> the stream, of all whose sockets listen."""
    status, state = request("GET", f"{bridge}/state")
    if status != 200:
        raise OSError(f"{bridge}/state answers {status}: {state}")
    wanted = {}
    for stream in state["streams"]:
        sockets = stream.get("republish", {"why": "not republished"})
        if "why" not in sockets:
            for name in ("events", "replay"):
                stream[name] = seen_from_outside(sockets.get(name, ""), host)
            wanted[stream["worker_id"], stream["dp_rank"]] = stream
    return wanted


class SelectService:
    """POST replaces the worker of that id."""

    def __init__(self, url, max_batched_tokens):
        self.url, self.max_batched_tokens = url, max_batched_tokens

    @staticmethod
    def id_of(key):
        return key[0] if key[1] == 0 else int.from_bytes(hashlib.sha256(b"%d %d" % key).digest()[:8], "big") >> 11

    def body(self, key, stream):
        body = {
            "worker_id": self.id_of(key), "model_name": stream["model"], "endpoint": stream.get("address"),
            "kv_events_endpoint": stream["events"], "replay_endpoint": stream["replay"], "block_size": stream["block_size"],
            "data_parallel_start_rank": key[1], "data_parallel_size": 1,
            "max_num_batched_tokens": self.max_batched_tokens,
        }
        return {name: value for name, value in body.items() if value} | {"data_parallel_start_rank": key[1]}

    def has(self, listed, key, stream):
        body = self.body(key, stream)
        return any(body.items() <= one.items() for one in listed if one["worker_id"] == body["worker_id"])

    def add(self, key, stream):
        return request("POST", f"{self.url}/workers", self.body(key, stream))

    def remove(self, key, stream):
        return request("DELETE", f"{self.url}/workers/{self.id_of(key)}")


class Indexer:
    """An instance has ranks.  What is there must be removed before it is replaced."""

    def __init__(self, url):
        self.url = url
        self.replays = {}  # it does not list them

    def has(self, listed, key, stream):
        listens = any(
            one["endpoints"].get(str(key[1])) == stream["events"] for one in listed if one["instance_id"] == key[0])
        return listens and self.replays.setdefault(key, stream["replay"]) == stream["replay"]

    def add(self, key, stream):
        body = {"instance_id": key[0], "dp_rank": key[1], "endpoint": stream["events"],
                "replay_endpoint": stream["replay"] or None, "model_name": stream["model"], "block_size": stream["block_size"]}
        answer = request("POST", f"{self.url}/register", body)
        if answer[0] == 409:
            self.remove(key, stream)
            answer = request("POST", f"{self.url}/register", body)
        self.replays[key] = stream["replay"]
        return answer

    def remove(self, key, stream):
        self.replays.pop(key, None)
        body = {"instance_id": key[0], "dp_rank": key[1], "model_name": stream["model"]}
        return request("POST", f"{self.url}/unregister", body)


class Announcer:
    """One service, and what was registered there."""

    def __init__(self, service):
        self.service, self.ours = service, {}

    def update(self, wanted):
        try:
            status, listed = request("GET", f"{self.service.url}/workers")
            if status != 200:
                raise OSError(f"GET /workers answers {status}")
            for key in self.ours.keys() - wanted.keys():
                self.say("removed", key, self.service.remove(key, self.ours[key]), (200, 404))
                del self.ours[key]
            for key, stream in wanted.items():
                self.ours[key] = stream
                if not self.service.has(listed, key, stream):
                    self.say("registered", key, self.service.add(key, stream), (200, 201))
        except OSError as error:
            log.warning("%s: %s; trying again", self.service.url, error)

    def say(self, what, key, answer, good):
        if answer[0] in good:
            log.info("%s: %s worker %d rank %d", self.service.url, what, *key)
        else:
            log.error("%s: worker %d rank %d is not %s: %s %s", self.service.url, *key, what, *answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridge", default="http://127.0.0.1:9401", help="kvbridge's HTTP (%(default)s)")
    parser.add_argument("--select-service", action="append", default=[], metavar="URL", help="may be given again")
    parser.add_argument("--indexer", action="append", default=[], metavar="URL", help="may be given again")
    parser.add_argument("--host", default=socket.gethostname(), help="of sockets on all interfaces (%(default)s)")
    parser.add_argument("--max-batched-tokens", type=int, default=0, help="of a step of the engines, for select_service")
    parser.add_argument("--period", type=float, default=2, help="seconds between rounds (%(default)s)")
    options = parser.parse_args()
    if not options.select_service and not options.indexer:
        parser.error("give --select-service or --indexer")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    announcers = [Announcer(SelectService(url, options.max_batched_tokens)) for url in options.select_service]
    announcers += [Announcer(Indexer(url)) for url in options.indexer]

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    while not stopping.is_set():
        try:
            wanted = republished(options.bridge, options.host)
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s: %s; what is registered stays", options.bridge, error)
        else:
            for one in announcers:
                one.update(wanted)
        stopping.wait(options.period)
    for one in announcers:
        one.update({})


if __name__ == "__main__":
    main()
