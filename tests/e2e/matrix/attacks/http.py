"""HTTP clients that use resources and never finish."""

import http.client
import random
import socket
import time

from matrix.attacks import Attack
from programs import wait_for


ADDRESS = ("127.66.0.1", 0)  # another source address than the probers': limits apply to each address
DENIED = ("bridge", "kvb_http_refused_total", {"reason": "denied"})
REFUSED, MALFORMED = (
    tuple((side, "kvb_http_refused_total", {"reason": reason}) for side in ("bridge", "aggregator"))
    for reason in ("request", "malformed"))
JSON = b"Content-Type: application/json\r\n"
CLOSED = tuple((side, "kvb_http_closed_total", {}) for side in ("bridge", "aggregator"))
TURNED_AWAY = CLOSED + tuple((side, "kvb_http_refused_total", {}) for side in ("bridge", "aggregator"))
# The first bytes of a TLS client.
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(32)) + bytes.fromhex("20") + bytes(160)


def request(line, body=b"", head=b""):
    return b"%s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (line, head, len(body), body)


class HostileBrowser:
    def __init__(self, daemons, seed):
        self.daemons = daemons  # (): those that run now
        self.random = random.Random(seed)

    def _doors(self, count, words):
        doors = []
        for daemon in self.daemons():
            for _ in range(count):
                try:
                    door = socket.create_connection(("127.0.0.1", daemon.port), timeout=2, source_address=ADDRESS)
                    door.sendall(words)
                except OSError:
                    continue
                doors.append(door)
        return doors

    @staticmethod
    def _drip(doors, seconds, period_s, words):
        ends = time.monotonic() + seconds
        try:
            while time.monotonic() < ends:
                for door in doors:
                    try:
                        door.setblocking(False)
                        door.send(words)
                    except OSError:
                        continue
                time.sleep(period_s)
        finally:
            for door in doors:
                door.close()

    def headers_without_end(self):
        self._drip(self._doors(300, b"GET /livez HTTP/1.1\r\nHost: x\r\n"), 15, 4, b"X: y\r\n")

    def bodies_without_end(self):
        size = 8 << 20
        head = (b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size)
        doors = self._doors(40, head)
        piece = b'{"model_name":"m","token_ids":[' + b"1," * (1 << 19)
        for _ in range(6):
            for door in doors:
                door.settimeout(0.05)
                try:
                    door.sendall(piece)
                except OSError:
                    continue
        self._drip(doors, 8, 2, b"1,")

    def readers_that_do_not_read(self):
        self._drip(self._doors(60, b"GET /dump?format=rows HTTP/1.1\r\nHost: x\r\n\r\n"), 10, 5, b"")

    def dumps_in_a_loop(self):
        ends = time.monotonic() + 6
        while time.monotonic() < ends:
            for daemon in self.daemons():
                connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20, source_address=ADDRESS)
                try:
                    connection.request("GET", "/dump?format=rows")
                    connection.getresponse().read()
                except (OSError, http.client.HTTPException):
                    continue
                finally:
                    connection.close()

    def _shoot_until_answered(self, words, rounds):
        """Each of them once a round at each daemon: again, where no answer came."""
        for _ in range(rounds):
            for said in words():
                for daemon in self.daemons():
                    wait_for("an answer", lambda: self._answer(daemon, said))

    @staticmethod
    def _answer(daemon, said):
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=5, source_address=ADDRESS) as door:
            door.sendall(said)
            return door.recv(4096)

    def _shoot(self, words, rounds):
        """Each of them once a round at each daemon, and the first words of its answer."""
        for _ in range(rounds):
            for said in words():
                for door in self._doors(1, said):
                    door.settimeout(0.5)
                    try:
                        door.recv(4096)
                    except OSError:
                        continue
                    finally:
                        door.close()

    def wrong_tokens(self):
        tokens = (b"", b"Bearer", b"Bearer ", b"Basic YTpi", b"Bearer " + b"A" * 4000, b"Bearer a-token-of-the-testx",
                  b"Bearer \xff\xff", b"bearer a-token", b"Bearer a-token-of-the-tests-")
        self._shoot_until_answered(lambda: [
            request(b"POST /" + path, b'{"instance_id":1}', JSON + b"Authorization: " + token + b"\r\n")
            for token in tokens for path in (b"register", b"unregister")], 10)

    def tls_greetings(self):
        self._shoot(lambda: [TLS_HELLO, TLS_HELLO[:40]], 30)

    def garbage_requests(self):
        nested = b"[" * 100_000
        whole = (  # each path is refused by both daemons, or by the one that has it
            request(b"POST /query", b'{"model_name":"m","token_ids":[4294967296]}', JSON),
            request(b"POST /query", nested, JSON), request(b"POST /query", b"\xff" * 99, JSON),
            request(b"POST /route", b'{"model_name":"m","token_ids":"x"}', JSON), request(b"PUT /query", b"{}", JSON),
            request(b"POST /register", nested, JSON), request(b"GET /nowhere"), request(b"DELETE /livez"))
        self._shoot_until_answered(lambda: whole, 3)

    def malformed_requests(self):
        broken = (
            b"GET /livez HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"H: x\r\n" * 5000 + b"\r\n", b"no request\r\n\r\n",
            b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551616\r\n\r\n",
            b"POST /query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\ng\r\n")
        strange = (
            b"POST /query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", b"\r\n" * 500,
            request(b"GET /streams") * 200, request(b"GET /overview?filter=" + b"%" * 300))
        self._shoot_until_answered(lambda: broken, 3)
        self._shoot(lambda: (*strange, self.random.randbytes(1500)), 3)

    def registrations(self):
        """Registers engines that do not exist; each is unregistered again."""
        head = JSON + b"Authorization: Bearer a-token-of-the-tests\r\n"

        def come_and_go():
            number = self.random.randrange(1 << 20)
            yield request(
                b"POST /register", b'{"instance_id":%d,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}'
                % (FIRST_REGISTERED + number), head)
            yield request(b"POST /unregister", b'{"instance_id":%d}' % (FIRST_REGISTERED + number), head)

        self._shoot(come_and_go, 60)


FIRST_REGISTERED = 20_000_000


def attacks(one):
    return [Attack(run.__name__, run) for run in (
        one.readers_that_do_not_read, one.dumps_in_a_loop, one.tls_greetings, one.registrations)] + [
        Attack("headers_without_end", one.headers_without_end, CLOSED, 100),
        Attack("bodies_without_end", one.bodies_without_end, TURNED_AWAY, 20),
        Attack("wrong_tokens", one.wrong_tokens, (DENIED,), 2 * 2 * 9 * 10),
        Attack("garbage_requests", one.garbage_requests, REFUSED, 3 * 4 * 4),
        Attack("malformed_requests", one.malformed_requests, MALFORMED, 3 * 4 * 6)]
