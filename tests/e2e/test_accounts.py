"""Do the printed permissions work in user JWTs, across accounts of an operator?"""

import json

import nkeys
import pytest

import engine
import marked
import programs
from conftest import PUBLISH, ROUTER, worker
from logins import jwt, make_key, public, seed_of, write_secret
from programs import wait_for
from test_permission_templates import PROMPT, denials, jwt_of

pytestmark = pytest.mark.no_nats

NO_LIMITS = {name: -1 for name in ("subs", "data", "payload")}


def user_claims(subject, permissions, **more):
    return {"sub": subject, "name": "u", "nats": {"type": "user", "version": 2, **NO_LIMITS, **permissions}, **more}


class Accounts:
    """An operator with one account for the bridges and one for their readers."""

    def __init__(self):
        self.operator = make_key(nkeys.PREFIX_BYTE_OPERATOR)
        self.bridges, self.routers = (make_key(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(2))

    def config(self):
        shared = [
            {"name": "events", "subject": f"{PUBLISH}.*", "type": "stream"},
            {"name": "sync", "subject": f"{PUBLISH}.kv_sync.*.*", "type": "service", "response_type": "Stream"},
        ]
        imports = [{**{key: one[key] for key in ("name", "subject", "type")}, "account": public(self.bridges)}
                   for one in shared]
        operator = jwt({"sub": public(self.operator), "nats": {"type": "operator", "version": 2}}, self.operator)
        return (f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n"
                f"  {public(self.bridges)}: {self.account(self.bridges, exports=shared)}\n"
                f"  {public(self.routers)}: {self.account(self.routers, imports=imports)}\n}}\n")

    def account(self, key, **claims):
        limits = {**NO_LIMITS, **{name: -1 for name in ("imports", "exports", "conn", "leaf")}, "wildcards": True}
        return jwt({"sub": public(key), "nats": {"type": "account", "version": 2, "limits": limits, **claims}},
                   self.operator)

    def credentials(self, path, account, permissions):
        user = make_key(nkeys.PREFIX_BYTE_USER)
        return write_secret(path, (
            f"-----BEGIN NATS USER JWT-----\n{jwt(user_claims(public(user), permissions), account)}\n"
            "------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{marked.mark(seed_of(user))}\n------END USER NKEY SEED------\n"))


class Daemons:
    """A bridge and an aggregator. login(name) is the text of each daemon's group nats, without the
    URL."""

    def __init__(self, scene, login, urls=None):
        self.urls = urls or {}  # name: its nats-server, when it is another one
        self.scene, self.engine = scene, scene.engine()
        self.texts = {
            "bridge": 'publish = { namespace = "dynamo"; component = "VllmWorker"; formats = ["protobuf"];'
                      f' heartbeat_ms = 200; }};\nworkers = ({{ {worker(self.engine)} }});\n',
            "aggregator": 'router = { namespace = "dynamo"; component = "Router"; };\n',
        }
        self.ports = {name: programs.free_port() for name in self.texts}
        for name in self.texts:
            self.path(name).write_text(self.config(name, login))
        self.login = login

    def path(self, name):
        return self.scene.folder / f"{name}.cfg"

    def config(self, name, login):
        return (f'nats = {{ url = "{self.urls.get(name, self.scene.nats_url)}"; {login(name)} }};\n{self.texts[name]}'
                f'http = "127.0.0.1:{self.ports[name]}";\n')

    def permissions(self, role):
        named = self.path("bridge" if role in ("bridge", "reader") else "aggregator")
        return jwt_of(role, "--config", named)

    def run(self):
        """The aggregator starts late, so it has to request the list from the bridge."""
        bridge = self.start("bridge")
        self.engine.publish(engine.batch(engine.stored([1, 2, 3], PROMPT, 16)))
        wait_for("EXACT at the bridge", lambda: bridge.get("/state")["streams"][0]["state"] == "EXACT")
        # 1.2 s after the bridge has connected; an earlier aggregator would receive it
        wait_for("the list is announced", lambda: bridge.metric("kvb_events_published_total") > 0)
        aggregator = self.start("aggregator")
        wait_for("EXACT", aggregator.is_exact)
        wait_for("the list was requested", lambda: aggregator.metric("kvb_sync_repairs_total") > 0)
        assert aggregator.get("/streams")["streams"][0]["blocks"]["device"] == 3
        for daemon in (bridge, aggregator):
            assert denials(daemon) == {"publish": 0, "subscribe": 0}, daemon.name
        return bridge, aggregator

    def start(self, name):
        daemon = self.scene.daemon(f"kv{name}", self.path(name).read_text(), self.ports[name], name)
        wait_for(f"{name} is ready", daemon.is_ready)
        return daemon


def is_asked_and_silent_elsewhere(router, events):
    """A router is answered, and messages that it publishes in place of a bridge reach nobody."""
    answer = json.loads(router.request(f"{ROUTER}.kv_match", json.dumps({"model": "m", "token_ids": PROMPT}).encode()))
    assert answer["workers"][0]["tokens"]["device"] == 48, answer
    for subject in ("kv_events", "kv_events_pb"):
        router.publish(f"{PUBLISH}.{subject}", b"forged")
    before = len(events)
    wait_for("two heartbeats later", lambda: len(events) > before + 2)
    assert b"forged" not in [message.data for message in events]


@pytest.mark.both_servers
def test_bridges_have_an_account_of_their_own(scene):
    """Exports to the other account what bridges publish, and imports requests for missed events."""
    accounts = Accounts()
    files = {name: scene.folder / f"{name}.creds" for name in ("bridge", "aggregator", "router", "reader")}
    daemons = Daemons(scene, lambda name: f'credentials = "{files[name]}";')
    for name, path in files.items():
        account = accounts.bridges if name == "bridge" else accounts.routers
        accounts.credentials(path, account, daemons.permissions(name))
    config = scene.folder / "nats.conf"
    config.write_text(accounts.config())
    scene.start_nats(port=scene.nats_port, config=config)
    events = scene.bus(credentials=files["reader"]).watch(f"{PUBLISH}.*")
    daemons.run()
    wait_for("the reader reads", lambda: any(
        message.subject == f"{PUBLISH}.kv_events_pb" for message in events))
    is_asked_and_silent_elsewhere(scene.bus(credentials=files["router"]), events)
