"""A certificate authority made by the openssl program, and requests over TLS."""

import http.client
import os
import ssl
import subprocess
import time

from programs import DEADLINE_S

KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"


class Authority:
    """Files in its folder: its certificate NAME.pem and the certificates that it signs. Each file
    is moved into place when it is complete."""

    def __init__(self, folder, name="ca"):
        self.folder, self.name, self.path = folder, name, folder / f"{name}.pem"
        folder.mkdir(exist_ok=True)
        self._openssl(
            f"req -x509 {KEY} -keyout {name}.key -out part.pem -subj /CN={name} -days 3650"
            " -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign"
        )
        os.replace(folder / "part.pem", self.path)

    def sign(self, name, hosts="IP:127.0.0.1", purpose=None, days=30):
        """Returns (certificate, key): name.pem and name.key. days = -1 makes one that expired
        yesterday."""
        (self.folder / "extensions").write_text(
            f"subjectAltName={hosts}\n" + (f"extendedKeyUsage={purpose}\n" if purpose else ""))
        self._openssl(f"req -new {KEY} -keyout part.key -out part.csr -subj /CN={name}")
        self._openssl(
            f"x509 -req -in part.csr -CA {self.name}.pem -CAkey {self.name}.key -set_serial {time.time_ns()}"
            f" -days {days} -extfile extensions -out part.pem"
        )
        shown, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        os.chmod(self.folder / "part.key", 0o600)
        os.replace(self.folder / "part.key", key)
        os.replace(self.folder / "part.pem", shown)
        return shown, key

    def context(self):
        """A TLS context that trusts the authority."""
        return ssl.create_default_context(cafile=self.path)

    def _openssl(self, words):
        subprocess.run(["openssl", *words.split()], cwd=self.folder, check=True, capture_output=True)


def open_connection(port, context, seconds=DEADLINE_S):
    return http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=seconds)


def request(connection, path, token=None, method="GET", body=None):
    """(status, text)"""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")
