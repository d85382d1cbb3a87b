"""Secrets that the tests made, and whether a program shows one of them."""

import base64
import http.client
import json
import pathlib
import ssl
import urllib.parse

import programs

MIN_BYTES = 12  # anything shorter may be in a log by chance
PAGES = ("/state", "/streams", "/metrics", "/readyz", "/")

secrets = set()  # secrets of the running test


def mark(*texts):
    """Marks secrets: from now on no program may show them, or one line of them. Returns the first."""
    for text in texts:
        secrets.update(
            line for line in text.split("\n") if len(line) >= MIN_BYTES and not line.startswith("-----"))
    return texts[0]


def forms(secret):
    """The forms in which a log, a page or a command line might contain it."""
    return {secret, json.dumps(secret)[1:-1], urllib.parse.quote(secret, safe=""),
            base64.b64encode(secret.encode()).decode().rstrip("=")}


def is_in(text):
    return any(form in text for secret in secrets for form in forms(secret))


def shown(program):
    """The places where this program shows a secret; [] when it shows none."""
    if not secrets:
        return []
    places = {"the log": program.text}
    if program.is_ours and program.is_running():
        process = pathlib.Path("/proc") / str(program.process.pid)
        places["the command line"] = (process / "cmdline").read_text
        places["the environment"] = (process / "environ").read_text
        if hasattr(program, "port"):
            places |= {page: lambda page=page: page_of(program.port, page) for page in PAGES}
    return [place for place, read in places.items() if is_in(read_or_nothing(read))]


def read_or_nothing(read):
    try:
        return read()
    except (OSError, http.client.HTTPException):
        return ""  # the program has just ended, does not answer, or has no HTTP


def page_of(port, page):
    """Reads a page by HTTP or HTTPS; when a token is required, tries each secret that is one."""
    tokens = [None, *(secret for secret in secrets if secret.isascii() and secret.isprintable())]
    text = ""
    for token in tokens:
        status, text = get(port, page, {"Authorization": f"Bearer {token}"} if token else {})
        if status != 401:
            break
    return text


def get(port, page, headers):
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    for connection in (http.client.HTTPConnection("127.0.0.1", port, timeout=programs.DEADLINE_S),
                       http.client.HTTPSConnection("127.0.0.1", port, timeout=programs.DEADLINE_S, context=trusting)):
        try:
            connection.request("GET", page, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except http.client.HTTPException:
            pass  # the port speaks TLS
        finally:
            connection.close()
    return 0, ""
