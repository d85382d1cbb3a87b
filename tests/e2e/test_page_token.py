"""Does the status page work over TLS with the token, and show nothing without it?"""

import re

import pytest

import authority
import browser
from programs import wait_for
from test_http_access import OTHER, TOKEN, is_ready, put_token, start, tls_keys


@pytest.fixture
def served(scene, tmp_path):
    scene.start_nats()
    ca = authority.Authority(tmp_path)
    ca.sign("server")
    put_token(tmp_path / "token", TOKEN)
    daemon = start(scene, "kvaggregator", tls_keys(tmp_path, f'token_file = "{tmp_path}/token";'))
    wait_for("the aggregator is ready", lambda: is_ready(daemon, ca.context()))
    daemon.ca = ca
    return daemon


@pytest.fixture
def tab(tmp_path):
    one = browser.start(tmp_path)
    one.call("Security.setIgnoreCertificateErrors", ignore=True)  # trusts the test's authority
    yield one
    one.close()


def is_live(tab):
    return tab.text("#pulse") == "live"


def wants_token(tab):
    return tab.js("!document.querySelector('#token').hidden") and "requires a token" in tab.text("#notice-text")


def type_token(tab, token):
    tab.js(
        f"(() => {{ const at = document.querySelector('#token'); at.value = '{token}';"
        " at.dispatchEvent(new Event('change')); })()"
    )


def test_the_page_requests_the_token_and_keeps_it_for_the_tab(served, tab):
    page = f"https://127.0.0.1:{served.port}/"
    tab.open(page)
    wait_for("the page asks for the token", lambda: wants_token(tab))
    type_token(tab, OTHER)
    tab.js("document.querySelector('#notice-text').textContent = ''")
    wait_for("a wrong one does not do", lambda: wants_token(tab))
    assert not is_live(tab)
    type_token(tab, TOKEN)
    wait_for("the page is live", lambda: is_live(tab) and not wants_token(tab))
    tab.open(page)
    wait_for("the page is live without typing", lambda: is_live(tab))
    tab.js("sessionStorage.clear()")
    wait_for("the page asks for the token again", lambda: wants_token(tab))
    tab.js(f"location.hash = '#token={TOKEN}'")
    wait_for("the page is live with the token of the address", lambda: is_live(tab))
    assert tab.js("location.href") == page, "and holds it no more"


def test_the_page_allows_no_foreign_or_inline_code(served):
    connection = authority.open_connection(served.port, served.ca.context())
    connection.request("GET", "/")
    answer = connection.getresponse()
    text = answer.read().decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert not re.search(r"<[^>]+\son\w+=|<[^>]+\sstyle=|<script src|<link[^>]+stylesheet", text)
    assert TOKEN not in text
