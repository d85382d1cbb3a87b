"""A name server on loopback that answers what a test wants, or nothing, and a program whose
/etc/resolv.conf names it."""

import collections
import random
import socket
import struct
import subprocess
import threading

import pytest

NO_NAME, SILENT, FAILS = "no name", "silent", "fails"
A, AAAA = 1, 28
LONGEST_DATAGRAM = 512


class NameServer:
    """A and AAAA records over UDP, and over TCP when they are too long for UDP. It has an
    address of its own, because /etc/resolv.conf implies port 53. A look-up of a silent name
    fails after `attempts` (5 at most) queries of `timeout_s` (30 at most)."""

    def __init__(self, folder):
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=60).returncode != 0:
            pytest.skip("a mount namespace needs root")
        # "engine.fleet": SILENT, FAILS, or (ttl in seconds, [address, ...])
        self.names = {}
        self.asked = collections.Counter()  # queries by name: A; AAAA if there is no A record
        self.file = folder / "resolv.conf"
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while True:
            self.address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
            try:
                self.socket.bind((self.address, 53))
                break
            except PermissionError:
                pytest.skip("port 53 needs root")
            except OSError:
                continue
        self.configure(timeout_s=2)
        self.listener = socket.create_server((self.address, 53))
        self.streams = 0  # connections
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._serve, self._serve_streams)]
        for thread in self.threads:
            thread.start()

    def configure(self, more="", timeout_s=2, attempts=2):
        """Programs that run read this before their next look-up."""
        self.file.write_text(f"nameserver {self.address}\n{more}\noptions attempts:{attempts} timeout:{timeout_s}\n")

    @property
    def prefix(self):
        """A command prefix: only a program that is run by it finds this name server."""
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, self.file]

    def close(self):
        self.socket.sendto(b"", (self.address, 53))
        self.listener.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.socket.close()
        self.listener.close()

    def _serve(self):
        while True:
            packet, peer = self.socket.recvfrom(4096)
            if not packet:
                return
            answer = self._answer(packet)
            if answer and len(answer) > LONGEST_DATAGRAM:
                answer = answer[:2] + struct.pack(">H", 0x8380) + answer[4:6] + bytes(6) + packet[12:]  # truncated
            if answer:
                self.socket.sendto(answer, peer)

    def _serve_streams(self):
        while True:
            try:
                stream, _ = self.listener.accept()
            except OSError:
                return
            self.streams += 1
            with stream, stream.makefile("rwb") as file:
                stream.settimeout(5)
                packet = file.read(int.from_bytes(file.read(2), "big"))
                answer = self._answer(packet) if packet else None
                if answer:
                    file.write(len(answer).to_bytes(2, "big") + answer)

    def _answer(self, packet):
        labels, at = [], 12
        while packet[at]:
            labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
            at += packet[at] + 1
        question, kind = packet[12 : at + 5], packet[at + 2]
        name = ".".join(labels).lower()
        self.asked[name] += 1
        what = self.names.get(name, NO_NAME)
        if what == SILENT:
            return None
        code = {NO_NAME: 0x8183, FAILS: 0x8182}.get(what if isinstance(what, str) else "", 0x8180)
        ttl, values = (0, []) if isinstance(what, str) else what
        records = [
            b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data
            for data in (record_data(kind, value) for value in values)
            if data
        ]
        return packet[:2] + struct.pack(">HHHHH", code, 1, len(records), 0, 0) + question + b"".join(records)


def record_data(kind, value):
    """The data of a record of this kind; None: the value is of another kind."""
    family = socket.AF_INET6 if ":" in value else socket.AF_INET
    return socket.inet_pton(family, value) if kind == (AAAA if ":" in value else A) else None
