"""Which pods are workers, and what is known of each, by the documented rules alone (etc/kubernetes/README.md):
the simple second opinion that kvbridge's members are compared with."""

from pods.pod_events import is_ready

MASK = (1 << 64) - 1


def rotated(value, bits):
    return (value << bits | value >> (64 - bits)) & MASK


def round_of(v):
    v0, v1, v2, v3 = v
    v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
    v1, v3 = rotated(v1, 13) ^ v0, rotated(v3, 16) ^ v2
    v0 = rotated(v0, 32)
    v2, v0 = (v2 + v1) & MASK, (v0 + v3) & MASK
    v1, v3 = rotated(v1, 17) ^ v2, rotated(v3, 21) ^ v0
    return v0, v1, rotated(v2, 32), v3


def siphash_1_3(data):
    """With a key of zeros."""
    v = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v = round_of((v[0], v[1], v[2], v[3] ^ word))
        v = (v[0] ^ word, *v[1:])
    v = (v[0], v[1], v[2] ^ 0xFF, v[3])
    for _ in range(3):
        v = round_of(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def worker_id(pod_name):
    """As Dynamo computes it: Rust's DefaultHasher over a string, which is SipHash-1-3 with zero keys over the bytes and
    0xff, of which the low 53 bits count."""
    return siphash_1_3(pod_name.encode() + b"\xff") & ((1 << 53) - 1)


ROLES = ("prefill", "decode", "both")


class Rules:
    """Of preset `ports`, with the values of a configuration.  model: of pods whose label names none;
    "": such pods are not taken."""

    def __init__(self, events_port=5557, http_port=8000, model="", labels=()):
        self.events_port, self.http_port, self.model, self.labels = events_port, http_port, model, labels

    def member(self, pod):
        """What kvbridge should show for that pod; None when it is no worker."""
        meta, status = pod["metadata"], pod["status"]
        ip, labels = status.get("podIP"), meta.get("labels", {})
        model = labels.get("model") or self.model
        if status["phase"] != "Running" or not ip or not model:
            return None
        ports = {}
        for one in pod["spec"]["containers"]:
            for port in one.get("ports", []):
                ports.setdefault(port.get("name"), port["containerPort"])
        role = labels.get("llm-d.ai/role")
        return {
            "worker_id": worker_id(meta["name"]), "model": model,
            "endpoint": f"tcp://{ip}:{ports.get('kv-events', self.events_port)}",
            "address": f"http://{ip}:{ports.get('http', self.http_port)}",
            "pod": meta["name"], "namespace_k8s": meta["namespace"], "node": pod["spec"]["nodeName"],
            "ready": is_ready(pod), "draining": "deletionTimestamp" in meta,
            "role": role if role in ROLES else None,
            "labels": {key: labels[key] for key in self.labels if labels.get(key)},
        }

    def members(self, pods):
        """{worker id: what should be shown}. Pods with one name in several namespaces have one id,
        and the oldest of them is used."""
        found = {}
        by_age = sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["uid"]))
        for member in filter(None, map(self.member, by_age)):
            found.setdefault(member["worker_id"], member)
        return found


DEFAULTS = {"draining": False, "labels": {}}  # default of a fact that is not written then


def differences(expected, state):
    """Lines that describe the differences; state: the answer of /state."""
    found, lines = {}, []
    for row in state["streams"]:
        if row["origin"] == "kubernetes":
            found.setdefault(row["worker_id"], []).append(row)
    for key in sorted(found.keys() - expected.keys()):
        lines.append(f"{key} is a member and should not be: {found[key][0]}")
    for key, member in sorted(expected.items()):
        rows = found.get(key, [])
        shown = [{name: row.get(name, DEFAULTS.get(name)) for name in member} for row in rows]
        if shown != [member]:
            lines.append(f"{key} should be\n  {member}, and is\n  {shown}")
    return lines
