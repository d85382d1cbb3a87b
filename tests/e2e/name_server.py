"""A name server on loopback that says what a test wants, or nothing, and a program whose
/etc/resolv.conf names it."""

import collections
import random
import socket
import struct
import subprocess
import threading

import pytest

NO_NAME, SILENT = "no name", "silent"


class NameServer:
    """UDP, A records; at an address of its own, for port 53 is what /etc/resolv.conf means."""

    def __init__(self, folder):
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=30).returncode != 0:
            pytest.skip("a mount namespace needs root")
        self.names = {}  # "engine.fleet": SILENT, or (ttl in seconds, [address, ...])
        self.asked = collections.Counter()  # questions by name; A and AAAA are two
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
        self.file.write_text(f"nameserver {self.address}\n")
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def prefix(self):
        """A program that is run by this finds this name server, and no other does."""
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, self.file]

    def close(self):
        self.socket.sendto(b"", (self.address, 53))
        self.thread.join()
        self.socket.close()

    def _serve(self):
        while True:
            packet, peer = self.socket.recvfrom(4096)
            if not packet:
                return
            answer = self._answer(packet)
            if answer:
                self.socket.sendto(answer, peer)

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
        ttl, addresses = (0, []) if what == NO_NAME else what
        records = [
            b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, ttl, 4) + socket.inet_aton(address)
            for address in (addresses if kind == 1 else [])
        ]
        code = 0x8183 if what == NO_NAME else 0x8180
        return packet[:2] + struct.pack(">HHHHH", code, 1, len(records), 0, 0) + question + b"".join(records)
