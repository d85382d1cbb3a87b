"""Network namespaces for tests, and a capture of what crosses the line between two of them.  Needs
root, and `ip` of iproute2."""

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import threading

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(status, what):
    if status != 0:
        raise OSError(ctypes.get_errno(), what)


def _own():
    """The network namespace of this thread."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class Namespace:
    """A network namespace that lives until close(). In `with namespace.entered():` sockets and
    programs made by this thread are in it, and threads started there stay in it."""

    def __init__(self):
        home = _own()
        try:
            _checked(LIBC.unshare(CLONE_NEWNET), "unshare")
            self.fd = _own()
        finally:
            _checked(LIBC.setns(home, CLONE_NEWNET), "setns")
            os.close(home)
        self.ip("link", "set", "lo", "up")

    @property
    def path(self):
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextlib.contextmanager
    def entered(self):
        home = _own()
        _checked(LIBC.setns(self.fd, CLONE_NEWNET), "setns")
        try:
            yield self
        finally:
            _checked(LIBC.setns(home, CLONE_NEWNET), "setns")
            os.close(home)

    def ip(self, *words):
        with self.entered():
            subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)

    def close(self):
        os.close(self.fd)


def join(one, address, other, other_address):
    """A link between two namespaces; its end in each is lan0."""
    one.ip("link", "add", "lan0", "type", "veth", "peer", "name", "lan1")
    one.ip("link", "set", "lan1", "netns", other.path)
    other.ip("link", "set", "lan1", "name", "lan0")
    for namespace, own in ((one, address), (other, other_address)):
        namespace.ip("address", "add", f"{own}/24", "dev", "lan0")
        namespace.ip("link", "set", "lan0", "up")


class Capture:
    """Records what crosses the link: for each direction of each TCP connection, its bytes in order.
    The link loses nothing; retransmitted bytes appear twice."""

    def __init__(self, namespace):
        with namespace.entered():
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            self.socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            self.socket.bind(("lan0", 0))
        self.socket.settimeout(0.1)
        self.flows = {}
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while not self.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                self._take(self.socket.recv(1 << 17))

    def _take(self, frame):
        if frame[12:14] != b"\x08\x00" or frame[23] != 6:
            return  # not IPv4, or not TCP
        tcp = 14 + 4 * (frame[14] & 15)
        end = 14 + struct.unpack(">H", frame[16:18])[0]
        data = frame[tcp + 4 * (frame[tcp + 12] >> 4):end]
        self.flows.setdefault(frame[26:34] + frame[tcp:tcp + 4], bytearray()).extend(data)

    def stop(self):
        """The bytes of all flows so far."""
        self.stopping.set()
        self.thread.join()
        self.socket.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(self.socket.recv(1 << 17))
        lost = struct.unpack("II", self.socket.getsockopt(263, 6, 8))[1]  # PACKET_STATISTICS
        assert lost == 0, "the capture has holes"
        return [bytes(flow) for flow in self.flows.values()]

    def close(self):
        self.stopping.set()
        self.thread.join()
        self.socket.close()
