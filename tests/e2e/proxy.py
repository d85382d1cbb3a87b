"""A TCP proxy on a free port that can be cut and healed: a link of its own for one
program, while everybody else's stands.

    cut()      what is connected breaks, what comes is refused
    hush()     nothing arrives any more, in one direction or both, but nobody is told: as
               packets that are lost, and sent again after heal()
"""

import queue
import socket
import threading
import time


class Proxy:
    def __init__(self, target, port=0):
        self.target = target
        self.is_cut = False
        self.to_server, self.to_client = threading.Event(), threading.Event()  # set: it flows
        self.to_server.set()
        self.to_client.set()
        self.pairs = set()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Breaks open connections and refuses new ones."""
        with self.lock:
            self.is_cut = True
            pairs, self.pairs = self.pairs, set()
        for pair in pairs:
            self._drop(pair)

    def hush(self, to_server=True, to_client=True):
        for flow, is_hushed in ((self.to_server, to_server), (self.to_client, to_client)):
            if is_hushed:
                flow.clear()

    def heal(self):
        with self.lock:
            self.is_cut = False
        self.to_server.set()
        self.to_client.set()

    def close(self):
        self.cut()
        self.heal()  # threads that wait for it end
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self.lock:
                is_cut = self.is_cut
                if not is_cut:
                    self.pairs.add(pair)
            if is_cut:
                self._drop(pair)
                continue
            for source, sink, flow in ((client, server, self.to_server), (server, client, self.to_client)):
                threading.Thread(target=self._pump, args=(source, sink, flow, pair), daemon=True).start()

    def _pump(self, source, sink, flow, pair):
        try:
            while data := source.recv(1 << 16):
                flow.wait()
                sink.sendall(data)
        except OSError:
            pass
        self._drop(pair)

    @staticmethod
    def _drop(pair):
        for one in pair:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


class LongLine(Proxy):
    """A link on which every byte takes distance_s in each direction, however many bytes are in
    flight, as to another site."""

    def __init__(self, target, distance_s, port=0):
        self.distance_s = distance_s
        super().__init__(target, port)

    def _pump(self, source, sink, flow, pair):
        under_way = queue.Queue(maxsize=4096)
        threading.Thread(target=self._deliver, args=(under_way, sink, flow, pair), daemon=True).start()
        try:
            while data := source.recv(1 << 16):
                under_way.put((time.monotonic() + self.distance_s, data))
        except OSError:
            pass
        under_way.put((0, b""))

    def _deliver(self, under_way, sink, flow, pair):
        is_open = True
        while True:
            due, data = under_way.get()
            if not data:
                break
            if is_open:
                time.sleep(max(0.0, due - time.monotonic()))
                flow.wait()
            try:
                sink.sendall(data)
            except OSError:
                is_open = False
        self._drop(pair)
