"""A stream of requests at a steady rate, by the NATS protocol itself: nats-py is too slow for
thousands a second beside the servers.  Each answer is checked when it arrives."""

import json
import socket
import threading
import time

import programs


class Request:
    def __init__(self, number, subject, payload, truth):
        self.number, self.subject, self.payload, self.truth = number, subject, payload, truth
        self.sent = self.answered = None
        self.times = 0  # how often it was sent
        self.sender = None  # the id in the answer


class Requester:
    """ask(number) returns (subject, payload, truth) of the next request; judge(truth, answer)
    returns what is wrong with an answer, or None."""

    PATIENCE_S = 2 * programs.PATIENCE  # after this time a request is repeated; without responders at once

    def __init__(self, port, rate, ask, judge):
        self.rate, self.ask, self.judge = rate, ask, judge
        self.lock = threading.Lock()
        self.open = {}  # requests without an answer
        self.done = []
        self.repeated = []  # (request, what is wrong)
        self.wrong = []
        self.lost = []
        self.delays = []
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb", buffering=1 << 20)
        assert self.file.readline().startswith(b"INFO ")
        self.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.r.* 1\r\nPING\r\n')
        assert self.file.readline() == b"PONG\r\n"
        self.is_over = False
        self.threads = [threading.Thread(target=one, daemon=True) for one in (self.send_all, self.read_all)]
        for thread in self.threads:
            thread.start()

    def write(self, data):
        self.socket.sendall(data)

    # ---- Sending ----

    def encode(self, request):
        request.times += 1
        request.sent = time.monotonic()
        return b"PUB %s _INBOX.r.%d %d\r\n%s\r\n" % (
            request.subject.encode(), request.number, len(request.payload), request.payload)

    def send_all(self):
        begin, count = time.monotonic(), 0
        while not self.is_over:
            due = int((time.monotonic() - begin) * self.rate)
            data = b""
            with self.lock:
                for number in range(count, due):
                    request = Request(number, *self.ask(number))
                    self.open[number] = request
                    data += self.encode(request)
                count = max(count, due)
                data += self.repeat_late()
            if data:
                self.write(data)
            time.sleep(0.005)  # sets the pace

    def repeat_late(self):
        late = time.monotonic() - self.PATIENCE_S
        return b"".join(self.repeat(one, "late") for one in list(self.open.values()) if one.sent < late)

    def repeat(self, request, why):
        """Called under the lock. A second failure is a loss."""
        if request.times > 1:
            self.lost.append((request, why))
            del self.open[request.number]
            return b""
        self.repeated.append((request, why))
        return self.encode(request)

    # ---- Answers ----

    def read_all(self):
        while True:
            line = self.file.readline()
            if not line:
                return
            words = line.split()
            if words[0] == b"MSG":
                self.take(int(words[1].rpartition(b".")[2]), self.read_body(int(words[-1])))
            elif words[0] == b"HMSG":  # 503: no responders
                self.read_body(int(words[-1]))
                with self.lock:
                    request = self.open.get(int(words[1].rpartition(b".")[2]))
                    data = self.repeat(request, "nobody") if request else b""
                if data:
                    time.sleep(0.1)  # as kvctl does; rare
                    self.write(data)
            elif words[0] == b"PING":
                self.write(b"PONG\r\n")

    def read_body(self, count):
        return self.file.read(count + 2)[:count]

    def take(self, number, payload):
        answer = json.loads(payload)
        with self.lock:
            request = self.open.pop(number, None)
            if request is None:
                return  # the answer to the first attempt arrived late
            request.answered = time.monotonic()
            request.sender = answer.get("aggregator")
            self.delays.append(request.answered - request.sent)
            self.done.append(request)
            trouble = self.judge(request.truth, answer)
            if trouble:
                self.wrong.append((number, trouble, answer))

    # ---- For tests ----

    def waiting(self):
        with self.lock:
            return set(self.open)

    def sent_after(self, when):
        """The numbers of the requests that were last sent after a time."""
        with self.lock:
            return {one.number for one in list(self.open.values()) + self.done if one.sent > when}

    def count(self):
        with self.lock:
            return len(self.done)

    def shares(self, begin, end=None):
        """Answers by aggregator, of those completed at positions begin .. end."""
        counts = {}
        with self.lock:
            for one in self.done[begin:end]:
                counts[one.sender] = counts.get(one.sender, 0) + 1
        return counts

    def stop(self):
        self.is_over = True
        self.threads[0].join()

    def close(self):
        self.stop()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.threads[1].join()
        self.file.close()
        self.socket.close()
