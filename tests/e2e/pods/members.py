"""Which pods are workers, and what is known of each, by the documented rules alone (etc/kubernetes/README.md):
the simple second opinion that kvbridge's members are compared with."""

from pod_events import is_ready
from worker_id import worker_id


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
