"""Connections that occupy a server's places and never finish: half a header, or half a TLS
handshake."""

import selectors
import socket
import ssl

HEADER = b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nX: "


def client_hello(protocols=()):
    """The first flight of a TLS client; protocols: what it offers by ALPN."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(list(protocols))
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


class Slowloris:
    """Connections that each send one of `beginnings`, in turn, and with is_header an occasional
    further byte. A closed connection is opened again. They come from an address of their own."""

    def __init__(self, port, count, beginnings=(HEADER,), is_header=True):
        self.port, self.count, self.beginnings, self.is_header = port, count, beginnings, is_header
        self.waiting = selectors.DefaultSelector()
        self.opened = self.closed = 0

    def _open(self):
        one = socket.socket()
        one.bind(("127.0.0.2", 0))
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", self.port))
        self.waiting.register(one, selectors.EVENT_READ)
        self.opened += 1
        try:
            one.send(self.beginnings[self.opened % len(self.beginnings)])
        except OSError:
            pass  # not connected yet; the next byte follows

    def _take(self, one):
        """Reads the answer of the server; True when it has closed the connection."""
        try:
            return not one.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def work(self, drip):
        """Removes closed connections, opens up to 100 new ones, and lets some send a byte."""
        for key, _ in self.waiting.select(0):
            if self._take(key.fileobj):
                self.waiting.unregister(key.fileobj)
                key.fileobj.close()
                self.closed += 1
        for _ in range(min(100, self.count - len(self.waiting.get_map()))):
            self._open()
        if drip and self.is_header:
            for key in list(self.waiting.get_map().values())[:: max(1, self.count // 50)]:
                try:
                    key.fileobj.send(b"x")
                except OSError:
                    pass

    def leave(self):
        for key in list(self.waiting.get_map().values()):
            key.fileobj.close()
        self.waiting.close()
