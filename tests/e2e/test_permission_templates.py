"""Are the permissions that `kvctl permissions` prints enough for each program, and is each line of
them needed?"""

import copy
import json

import nats
import nats.errors
import pytest

import engine
import programs
from conftest import NAMESPACE, PUBLISH, ROUTER, SERVERS, SNAPSHOT, worker
from programs import DEADLINE_S, TREE, wait_for

pytestmark = pytest.mark.no_nats

PROMPT = list(range(48))


def kvctl(*words):
    done = programs.run("kvctl", *map(str, words))
    return done.returncode, done.stdout, done.stderr


def block_of(role, *words):
    """The printed block of nats-server's configuration."""
    status, block, trouble = kvctl("permissions", role, *words)
    assert status == 0, trouble
    return block


def jwt_of(role, *words):
    return json.loads(block_of(role, *words, "--format", "jwt"))


def write_server(scene, users):
    """users: {name: block of permissions}. All other users may do everything."""
    rows = "\n".join(f"  {{ user: {name}, password: p, {block} }}" for name, block in users.items())
    path = scene.folder / "nats.conf"
    path.write_text(
        f"authorization {{ users: [\n  {{ user: free, password: p }}\n{rows}\n] }}\nno_auth_user: free\n")
    return path


def bridge_config(scene, user, one, feed, format="protobuf", namespace=NAMESPACE):
    """The text, and the port of its HTTP."""
    port = programs.free_port()
    text = (
        f'nats = {{ url = "{scene.url_of(user)}"; }};\n'
        f'publish = {{ namespace = "{namespace}"; component = "VllmWorker"; formats = ["{format}"]; heartbeat_ms = 200;'
        f' refresh_s = 0; }};\n'
        "workers = ({ " + worker(one, more=f'load = {{ zmq = "{feed.endpoint}"; }};') + " });\n"
        f'http = "127.0.0.1:{port}";\n')
    return text, port


def denials(daemon):
    return {what: daemon.metric("kvb_nats_denied_total", what=what) for what in ("publish", "subscribe")}


@pytest.mark.parametrize("words, status, says", [
    (["bridge"], 64, "permissions bridge: give --config FILE, the file that it runs with"),
    (["aggregator"], 64, "permissions aggregator: give --config FILE"),
    (["engine"], 64, 'expected bridge, aggregator, router, reader or operator, got "engine"'),
    (["operator"], 64, "permissions operator: give --config FILE, the file that an aggregator runs with"),
    (["router", "--namespace", "a b"], 64, "--namespace, --component: 1 to 64 of A-Z a-z 0-9 _ -"),
    (["router", "--component", "r", "--config", "etc/kvaggregator.cfg"], 64, "--config names namespace and component"),
    (["router", "--format", "yaml"], 64, '--format: expected server or jwt, got "yaml"'),
    (["bridge", "--config", "/nowhere.cfg"], 78, "/nowhere.cfg:1: cannot read the file"),
    (["aggregator", "--config", "etc/kvbridge.cfg"], 78, "read as a kvaggregator configuration, has mistakes"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_a_wrong_call_is_refused(words, status, says):
    done = kvctl("permissions", *(TREE / word if word.startswith("etc/") else word for word in words))
    assert (done[0], done[1]) == (status, "") and says in done[2], done


# ---- the permissions suffice ------------------------------------------------------------------


class Fleet:
    """A bridge and two aggregators, each with a user of its own."""

    def __init__(self, scene, format):
        self.scene, self.format = scene, format
        self.engine, self.feed = scene.engine(), scene.load_feed()
        self.config = bridge_config(scene, "bridge:p@", self.engine, self.feed, format)
        # They dial before there is a server, because its configuration is made from theirs.
        self.bridge = scene.daemon("kvbridge", *self.config, "bridge")
        self.aggregators = [self.start_aggregator(at) for at in (0, 1)]
        blocks = {"bridge": block_of("bridge", "--config", scene.folder / "bridge.cfg")}
        for at in (0, 1):
            config = scene.folder / f"aggregator{at}.cfg"
            blocks[f"aggregator{at}"] = block_of("aggregator", "--config", config)
        blocks["router"] = block_of("router", "--config", scene.folder / "aggregator0.cfg")
        blocks["reader"] = block_of("reader", "--config", scene.folder / "bridge.cfg")
        blocks["operator"] = block_of("operator", "--config", scene.folder / "aggregator0.cfg")
        self.nats = scene.start_nats(port=scene.nats_port, config=write_server(scene, blocks))

    def start_aggregator(self, at):
        return self.scene.aggregator(
            f"aggregator{at}", wait=False, user=f"aggregator{at}:p@", router="hit_rate_alias = true;")

    def daemons(self):
        return [self.bridge, *self.aggregators]

    def none_is_denied(self):
        for daemon in self.daemons():
            wait_for(f"{daemon.name} is ready", daemon.is_ready)
            assert denials(daemon) == {"publish": 0, "subscribe": 0}, daemon.name

    def is_exact(self):
        wait_for("EXACT in both aggregators", lambda: all(one.is_exact() for one in self.aggregators))


def as_router(fleet, *words, user="router"):
    status, answer, trouble = kvctl("--nats", fleet.scene.url_of(f"{user}:p@"), "--json", *words)
    assert status == 0, trouble
    return json.loads(answer)


def feed_load(fleet, seen):
    def is_fed():
        fleet.feed.send({"num_requests_waiting": 1, "kv_active_blocks": 7, "kv_total_blocks": 100})
        return f"{PUBLISH}.load_metrics" in seen

    return is_fed


@pytest.mark.first
@pytest.mark.both_servers
def test_all_programs_work_with_their_permissions(scene):
    format = "protobuf" if scene.server == SERVERS["debian"] else "json"
    fleet = Fleet(scene, format)
    seen = set()

    async def note(message):
        seen.add(message.subject)

    free, reader = scene.bus(), scene.bus(user="reader:p@")
    free._wait(free.client.subscribe("namespace.>", cb=note))
    free.flush()
    read = reader.watch(f"{PUBLISH}.*")
    for daemon in fleet.daemons():
        wait_for(f"{daemon.name} is ready", daemon.is_ready)
    fleet.engine.publish(engine.batch(engine.stored([1, 2, 3], PROMPT, 16)))
    fleet.is_exact()
    wait_for("load is published", feed_load(fleet, seen))

    # A router in the queue group, and the reader.
    assert [row["worker_id"] for row in as_router(fleet, "match", "--tokens", ",".join(map(str, PROMPT)))["workers"]] == [7]
    assert as_router(fleet, "route", "--tokens", ",".join(map(str, PROMPT)))["worker_id"] == 7
    for words in (["streams"], ["load"], ["dump"], ["state"]):
        as_router(fleet, *words)
    for words in (["streams"], ["state"], ["workers"], ["match", "--tokens", "1,2"]):
        as_router(fleet, *words, user="operator")
    for subject in ("kv-hit-rate", "kv_routed"):
        wait_for(f"R.{subject}", lambda tail=subject: f"{ROUTER}.{tail}" in seen)
    wait_for("the alias", lambda: f"namespace.{NAMESPACE}.kv-hit-rate" in seen)
    events = f"{PUBLISH}.kv_events" if format == "json" else f"{PUBLISH}.kv_events_pb"
    wait_for("the reader's events", lambda: any(message.subject == events for message in read))

    # The services answer.
    names = [json.loads(one)["name"] for one in free.request_many("$SRV.PING", enough=3)]
    assert sorted(names) == ["dynamo_vllmworker"] + ["kvaggregator"] * 2

    # An aggregator that starts late requests the list.
    fleet.aggregators[1].kill()
    fleet.aggregators[1] = fleet.start_aggregator(1)
    fleet.is_exact()
    wait_for("the list was requested", lambda: fleet.aggregators[1].metric("kvb_sync_repairs_total") > 0)

    # Events missed while NATS was away are repaired.
    fleet.nats.kill()
    fleet.engine.publish(engine.batch(engine.stored([4], range(48, 64), 16, parent=3)))
    scene.start_nats(port=scene.nats_port, config=scene.folder / "nats.conf")
    fleet.is_exact()
    wait_for("all four blocks are listed", lambda: all(
        row["blocks"]["device"] == 4 for one in fleet.aggregators for row in one.get("/streams")["streams"]))

    # Blocks are stored again on request.
    if format == "json":
        before = len(read)
        free.publish(f"{PUBLISH}.kv_refresh", b"")
        wait_for("blocks are stored again", lambda: any(
            message.subject == f"{PUBLISH}.kv_events" for message in read[before:]))

    fleet.is_exact()
    fleet.none_is_denied()


def test_no_program_may_publish_for_another(scene):
    """A router may publish nothing on P, a reader nothing at all, and a bridge nothing for another
    component."""
    assert scene.nats_url
    config = scene.folder / "bridge.cfg"
    vllm, feed = scene.engine(), scene.load_feed()
    config.write_text(bridge_config(scene, "", vllm, feed)[0])
    scene.start_nats(port=scene.nats_port, config=write_server(scene, {
        "bridge": block_of("bridge", "--config", config), "router": block_of("router"),
        "operator": block_of("operator", "--config", TREE / "etc/kvaggregator.cfg"),
        "reader": block_of("reader", "--config", config)}))
    free = scene.bus()
    seen = free.watch("namespace.>")
    for user, subject in (
            ("router", f"{PUBLISH}.kv_events"), ("router", f"{PUBLISH}.kv_sync.7.0"), ("router", f"{ROUTER}.load_stats"),
            ("operator", f"{ROUTER}.kv_route"), ("operator", f"{PUBLISH}.kv_events"),
            ("operator", f"{ROUTER}.kv_finished"),
            ("reader", f"{PUBLISH}.kv_events"), ("reader", f"{PUBLISH}.kv_refresh"), ("reader", f"{ROUTER}.kv_match"),
            ("bridge", "namespace.dynamo.component.Other.kv_events"), ("bridge", f"{ROUTER}.kv_match")):
        scene.bus(user=f"{user}:p@").publish(subject, b"false")
    router = scene.bus(user="router:p@")
    router.publish(f"{ROUTER}.kv_match", b"true")
    wait_for("the permitted message arrives", lambda: any(message.data == b"true" for message in seen))
    assert [message.subject for message in seen if message.data == b"false"] == []


def test_a_requester_cannot_make_a_daemon_send_commands(scene):
    """allow_responses permits an answer to any subject that a requester names."""
    assert scene.nats_url
    vllm, feed = scene.engine(), scene.load_feed()
    text, port = bridge_config(scene, "bridge:p@", vllm, feed)
    bridge = scene.daemon("kvbridge", text, port, "bridge")
    scene.start_nats(port=scene.nats_port, config=write_server(
        scene, {"bridge": block_of("bridge", "--config", scene.folder / "bridge.cfg")}))
    wait_for("kvbridge is ready", bridge.is_ready)
    bus = scene.bus()
    seen = bus.watch("$JS.API.>")
    for at, (subject, payload) in enumerate(
            [("$SRV.PING", b""), (f"{PUBLISH}.kv_sync.7.0", SNAPSHOT), (f"{PUBLISH}.kv_refresh", b"")]):
        good = bus.watch(f"good.{at}")
        bus.publish(subject, payload, reply="$JS.API.STREAM.PURGE.x")
        bus.publish(subject, payload, reply=f"good.{at}")  # a request is answered after the one before it
        wait_for(f"the second request on {subject} is answered", lambda answers=good: answers)
    assert seen == []


# ---- each permission is needed ----------------------------------------------------------------

SIDES = {"pub": "publish", "sub": "subscribe"}


class Case:
    """A program without one line of its permissions; line None: with all of them."""

    def __init__(self, at, permissions, side=None, line=None):
        self.user, self.side, self.line = f"u{at}", side, line
        self.permissions = copy.deepcopy(permissions)
        if side == "resp":
            del self.permissions["resp"]
        elif side:
            self.permissions[side]["allow"].remove(line)

    def block(self):
        """In nats-server's configuration an empty list means no limit."""
        block = {name: self.permissions[side] if self.permissions[side].get("allow") else {"deny": [">"]}
                 for side, name in SIDES.items()}
        if "resp" in self.permissions:
            block["allow_responses"] = {"max": -1, "expires": "120s"}
        return f"permissions: {json.dumps(block)}"


def cases_of(make, permissions_of):
    """One program for each line, preceded by one with all of them. make(at) writes the program's
    configuration; permissions_of(at) reads the permissions that it needs."""
    make(0)
    whole = permissions_of(0)
    lines = [(side, i) for side in SIDES for i in range(len(whole[side].get("allow", [])))]
    lines += [("resp", 0)] if "resp" in whole else []
    cases = [Case(0, whole)]
    for at, (side, i) in enumerate(lines, 1):
        make(at)
        permissions = permissions_of(at)
        cases.append(Case(at, permissions, side, permissions[side]["allow"][i] if side != "resp" else None))
    return cases


class Listener:
    """A client with all permissions that sees which messages are published and which subjects have
    subscribers."""

    def __init__(self, scene):
        self.bus, self.seen, self.replies = scene.bus(), set(), set()

        async def note(message):
            self.seen.add(message.subject)
            self.replies.add((message.subject, message.reply))

        self.own = self.bus._wait(self.bus.client.subscribe("namespace.>", cb=note))
        self.bus.flush()

    def end(self):
        """From now on it has no subscriptions itself."""
        self.bus._wait(self.own.unsubscribe())
        self.bus.flush()

    def interest(self, subjects):
        """The subjects with subscribers: for the others nats-server answers that there are none, before it answers a
        PING."""
        inboxes = {subject: self.bus.client.new_inbox() for subject in subjects}
        answers = {subject: self.bus.watch(inbox) for subject, inbox in inboxes.items()}
        for subject, inbox in inboxes.items():
            self.bus.send(subject, b"", reply=inbox)
        self.bus.flush()
        self.bus.flush()  # what came before the first PONG has been noted
        return {subject for subject in subjects
                if not any((one.headers or {}).get("Status") == "503" for one in answers[subject])}

    def services(self, subject, enough):
        """namespace -> id, of the services that answer."""
        answers = [json.loads(one) for one in self.bus.request_many(subject, enough=enough)]
        return {one["metadata"]["namespace"]: one["id"] for one in answers}


def names_in_readyz(daemon, case):
    what = "publish on" if case.side == "pub" else "subscribe to"

    def is_named():
        status, text = daemon.http("GET", "/readyz")
        return status == 503 and f"no permission to {what} {case.line.split('*')[0]}" in text

    return is_named


def test_each_line_of_a_bridge_is_needed(scene):
    """Bridges of format json, which use every subject; each has a namespace of its own."""
    assert scene.nats_url
    vllm, feed = scene.engine(), scene.load_feed()
    configs = {}

    def make(at):
        configs[at] = bridge_config(
            scene, f"u{at}:p@", vllm, feed, format="json", namespace=f"n{at}")
        (scene.folder / f"bridge{at}.cfg").write_text(configs[at][0])

    cases = cases_of(make, lambda at: jwt_of("bridge", "--config", scene.folder / f"bridge{at}.cfg"))
    assert len(cases) == 1 + 7 + 6 + 1
    scene.start_nats(port=scene.nats_port, config=write_server(scene, {one.user: one.block() for one in cases}))
    listener = Listener(scene)
    bridges = [scene.daemon("kvbridge", *configs[at], f"bridge{at}") for at in configs]
    form = engine.MapForm
    for bridge in bridges:
        wait_for("the bridge answers", lambda one=bridge: one.http("GET", "/livez")[0] == 200)
    wait_for("the engine is subscribed to", lambda: bridges[0].get("/state")["streams"][0]["state"] != "DOWN")
    vllm.publish(engine.batch(form.stored([1, 2], range(32), 16), form.window_stored([1, 2], range(32), 16, 32)))

    def said(subject):
        def is_said():
            feed.send({"num_requests_waiting": 1, "kv_active_blocks": 7, "kv_total_blocks": 100})
            return subject in listener.seen

        return is_said

    # The bridge with all permissions uses every subject on which it may publish.
    for subject in cases[0].permissions["pub"]["allow"]:
        wait_for(subject, said(subject))

    for case, bridge in zip(cases, bridges):
        if case.side == "pub" and case.line.endswith(".bridge_streams"):
            wait_for("it is ready without", bridge.is_ready)
            wait_for("it was denied", lambda: denials(bridge)["publish"] > 0)
            assert case.line not in listener.seen
        elif case.side == "pub":
            wait_for(f"/readyz names {case.line}", names_in_readyz(bridge, case))
            assert case.line not in listener.seen

    listener.end()
    services = listener.services("$SRV.PING", enough=len(cases) - 2)
    assert "n0" in services
    for at, case in enumerate(cases):
        if case.side == "resp" or case.line == "$SRV.*":
            assert f"n{at}" not in services, case.line

    def instances(at, lines):
        plain = [line.replace(".*.*", ".7.0").replace("$SRV.*", "$SRV.PING") for line in lines]
        return [line.replace("*", services.get(f"n{at}", "")) for line in plain]

    whole = instances(0, cases[0].permissions["sub"]["allow"])
    assert listener.interest(whole) == set(whole)
    removed = [line for at, case in enumerate(cases) if case.side == "sub" and case.line != "$SRV.*"
               for line in instances(at, [case.line])]
    assert len(removed) == 5 and listener.interest(removed) == set()


def aggregator_config(scene, user, at):
    port = programs.free_port()
    return (
        f'nats = {{ url = "{scene.url_of(user)}"; inbox_prefix = "_INBOX_{user[:-3]}"; }};\n'
        'subscribe = { namespace = "w"; component = "VllmWorker"; };\n'
        f'router = {{ namespace = "r{at}"; component = "Router"; hit_rate_alias = true; }};\n'
        f'http = "127.0.0.1:{port}";\n', port)


def test_each_line_of_an_aggregator_is_needed(scene):
    """Aggregators of one component of workers, each with a router component of its own."""
    assert scene.nats_url
    vllm, feed = scene.engine(), scene.load_feed()
    configs = {}

    def make(at):
        configs[at] = aggregator_config(scene, f"u{at}:p@", at)
        (scene.folder / f"aggregator{at}.cfg").write_text(configs[at][0])

    cases = cases_of(make, lambda at: jwt_of("aggregator", "--config", scene.folder / f"aggregator{at}.cfg"))
    assert len(cases) == 1 + 9 + 20 + 1
    scene.start_nats(port=scene.nats_port, config=write_server(scene, {one.user: one.block() for one in cases}))
    listener = Listener(scene)
    bridge = scene.daemon("kvbridge", *bridge_config(scene, "", vllm, feed, namespace="w"), "bridge")
    wait_for("kvbridge is ready", bridge.is_ready)
    vllm.publish(engine.batch(engine.stored([1, 2, 3], PROMPT, 16)))
    wait_for("the bridge publishes", lambda: "namespace.w.component.VllmWorker.kv_events_pb" in listener.seen)
    aggregators = [scene.daemon("kvaggregator", *configs[at], f"aggregator{at}") for at in configs]
    wait_for("the aggregator with all permissions is ready", aggregators[0].is_ready)
    wait_for("EXACT", aggregators[0].is_exact)

    # The requests that each gets over HTTP make it publish.
    for at, one in enumerate(aggregators):
        wait_for("the aggregator answers", lambda daemon=one: daemon.http("GET", "/livez")[0] == 200)
        if cases[at].side != "sub":
            wait_for("the aggregator has the stream", lambda daemon=one: daemon.get("/streams")["streams"])
            wait_for("a decision", lambda daemon=one: daemon.http(
                "POST", "/route", {"token_ids": PROMPT, "request_id": "q"})[0] == 200)
            for path in ("/first_token", "/finished"):
                assert one.http("POST", path, {"request_id": "q"})[0] == 200
    whole = {line for line in cases[0].permissions["pub"]["allow"] if line.startswith("namespace.r0.")}
    assert len(whole) == 7
    wait_for("the aggregator with all permissions has published on every subject", lambda: whole <= listener.seen)
    vital = ("_INBOX", "namespace.w.")
    for case, one in zip(cases, aggregators):
        if case.side in SIDES and case.line.startswith(vital):
            wait_for(f"/readyz names {case.line}", names_in_readyz(one, case))
        elif case.side == "pub":
            others = {line for line in case.permissions["pub"]["allow"] if line.startswith("namespace.r")}
            wait_for("the others are published", lambda rest=others: rest <= listener.seen)
            assert case.line not in listener.seen
    stream = next(at for at, case in enumerate(cases) if "kv_sync" in (case.line or ""))
    assert not aggregators[stream].is_exact()

    listener.end()
    all_of_them = listener.services("$SRV.PING", enough=len(cases) - 2 + 1)
    by_kind = listener.services("$SRV.PING.kvaggregator", enough=len(cases) - 2)
    for at, case in enumerate(cases):
        assert (f"r{at}" in all_of_them) == (case.side != "resp" and case.line != "$SRV.*"), case.line
        assert (f"r{at}" in by_kind) == (case.side != "resp" and case.line != "$SRV.*.kvaggregator"), case.line

    def instance(at, line):
        for form, tail in ((".kv_get.*.*", ".kv_get.state.*"), (".kv_get.*", ".kv_get.state"), ("$SRV.*", "$SRV.PING")):
            line = line.replace(form, tail)
        return line.replace("*", by_kind.get(f"r{at}", ""))

    def asked(line):
        return line and not line.startswith(vital) and line not in ("$SRV.*", "$SRV.*.kvaggregator")

    whole = {instance(0, line) for line in cases[0].permissions["sub"]["allow"] if asked(line)}
    assert listener.interest(whole) == whole
    removed = [instance(at, case.line) for at, case in enumerate(cases) if case.side == "sub" and asked(case.line)]
    assert len(removed) == len(whole) == 11 and listener.interest(removed) == set()


def test_each_line_of_a_router_and_of_a_reader_is_needed(scene):
    assert scene.nats_url
    routers = cases_of(lambda at: None, lambda at: jwt_of("router", "--namespace", f"r{at}"))
    reader = jwt_of("reader")
    readers = [Case("reader0", reader), Case("reader1", reader, "sub", reader["sub"]["allow"][0])]
    assert len(routers) == 1 + 8 + 1 and reader["sub"]["allow"] == [f"{PUBLISH}.*"]
    scene.start_nats(port=scene.nats_port, config=write_server(
        scene, {one.user: one.block() for one in routers + readers}))
    listener = Listener(scene)

    async def answer(message):
        await message.respond(b"{}")

    listener.bus._wait(listener.bus.client.subscribe("namespace.*.component.Router.kv_match", cb=answer))
    listener.bus.flush()
    answered = []
    for case in routers:
        client = scene.bus(user=f"{case.user}:p@")
        permitted = case.permissions["pub"]["allow"]
        for subject in [*permitted, *([case.line] if case.side == "pub" else [])]:
            client.publish(subject.replace("*", "state"), b"", reply=f"to.{case.user}")
        published = {(subject.replace("*", "state"), f"to.{case.user}") for subject in permitted}
        wait_for("the others arrive", lambda these=published: these <= listener.replies)
        if case.side == "pub":
            assert (case.line.replace("*", "state"), f"to.{case.user}") not in listener.replies
        if case.side != "pub":
            try:
                answered.append(client.request(permitted[0], b"", timeout=1 if case.side else DEADLINE_S))
            except (nats.errors.TimeoutError, nats.errors.Error):
                answered.append(None)
    assert answered == [b"{}", None]

    lists = [scene.bus(user=f"{one.user}:p@").watch(f"{PUBLISH}.*") for one in readers]
    listener.bus.publish(f"{PUBLISH}.kv_events", b"x")
    wait_for("the reader with all permissions reads", lambda: lists[0])
    assert lists[1] == []


def test_each_line_of_an_operator_is_needed(scene):
    """kvctl match, state and workers fail without any of those that they use."""
    assert scene.nats_url
    operators = cases_of(lambda at: None, lambda at: jwt_of("operator", "--config", TREE / "etc/kvaggregator.cfg"))
    assert len(operators) == 1 + 4 + 2
    vllm, feed = scene.engine(), scene.load_feed()
    scene.start_nats(port=scene.nats_port, config=write_server(scene, {one.user: one.block() for one in operators}))
    bridge = scene.daemon("kvbridge", *bridge_config(scene, "", vllm, feed), "bridge")
    aggregator = scene.aggregator()
    wait_for("kvbridge is ready", bridge.is_ready)
    vllm.publish(engine.batch(engine.stored([1, 2, 3], PROMPT, 16)))
    wait_for("EXACT", aggregator.is_exact)
    listener = Listener(scene)
    for case in operators:
        words = ["--nats", scene.url_of(f"{case.user}:p@"), "--json", "--timeout", 700]
        status, answer, _ = kvctl(*words, "match", "--tokens", ",".join(map(str, PROMPT)))
        if not case.side:
            assert status == 0 and json.loads(answer)["workers"]
        elif case.line.endswith(".*") and case.side == "sub" and "_INBOX" not in case.line:
            assert kvctl(*words, "workers")[0] == 1  # the status of bridges
        elif case.line.endswith((".kv_match.*", ".kv_get.*.*")):  # requests to one aggregator
            client = scene.bus(user=f"{case.user}:p@")
            for subject in (case.line.replace("*", "state"), case.permissions["pub"]["allow"][0]):
                client.publish(subject, b"", reply=f"to.{case.user}")
            wait_for("the permitted one", lambda one=case: (
                one.permissions["pub"]["allow"][0], f"to.{one.user}") in listener.replies)
            assert (case.line.replace("*", "state"), f"to.{case.user}") not in listener.replies
        else:
            assert status == 1 or kvctl(*words, "state")[0] == 1, case.line
