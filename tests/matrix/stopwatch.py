"""Measures continuously from outside how long an aggregator's answers take."""

import http.client
import threading
import time

import msgspec


class Stopwatch:
    def __init__(self, aggregator, tokens=256, period_s=0.01):
        self.port = aggregator.port
        self.body = msgspec.json.encode({"token_ids": list(range(tokens)), "model_name": "fleet"})
        self.period_s = period_s
        self.times = []  # seconds
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        while not self.stopping.wait(self.period_s):
            began = time.monotonic()
            connection.request("POST", "/query", self.body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            self.times.append(time.monotonic() - began)
        connection.close()

    def stop(self):
        self.stopping.set()
        self.thread.join()

    def take(self):
        """The times since the last take."""
        times, self.times = self.times, []
        return times


def p99(times):
    return sorted(times)[int(len(times) * 0.99)]
