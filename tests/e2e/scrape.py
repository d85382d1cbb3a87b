"""The part of Dynamo's KvMetricsAggregator that the contract describes: a strict reader, which
skips an endpoint when a key is missing or has the wrong type."""

import json

INTEGER, FLOAT, TEXT = "integer", "float", "text"

SERVICE = {"name": TEXT, "id": TEXT, "version": TEXT, "started": TEXT}
ENDPOINT = {
    "name": TEXT, "subject": TEXT, "queue_group": TEXT, "num_requests": INTEGER, "num_errors": INTEGER,
    "processing_time": INTEGER, "average_processing_time": INTEGER, "last_error": TEXT,
}
WORKER_STATS = {"request_active_slots": INTEGER, "request_total_slots": INTEGER, "num_requests_waiting": INTEGER}
KV_STATS = {
    "kv_active_blocks": INTEGER, "kv_total_blocks": INTEGER,
    "gpu_cache_usage_perc": FLOAT, "gpu_prefix_cache_hit_rate": FLOAT,
}
FLAT = {**WORKER_STATS, **KV_STATS}


def is_a(value, kind):
    if kind == TEXT:
        return isinstance(value, str)
    # True is an int for Python; 7.0 is no integer for a typed reader.
    is_integer = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
    return is_integer if kind == INTEGER else is_integer or isinstance(value, float)


def has_all(item, keys):
    return isinstance(item, dict) and all(key in item and is_a(item[key], kind) for key, kind in keys.items())


def read_flat(data):
    """As in 0.2: seven flat figures; None when the endpoint is skipped."""
    return {key: data[key] for key in FLAT} if has_all(data, FLAT) else None


def read_nested(data):
    """As in 0.3 to 0.5. data_parallel_rank may be null but nothing else."""
    if not isinstance(data, dict) or "spec_decode_stats" not in data:
        return None
    worker, kv = data.get("worker_stats"), data.get("kv_stats")
    if not has_all(worker, WORKER_STATS) or not has_all(kv, KV_STATS):
        return None
    rank = worker.get("data_parallel_rank", "missing")
    if rank is not None and not is_a(rank, INTEGER):
        return None
    return {**{key: worker[key] for key in WORKER_STATS}, **{key: kv[key] for key in KV_STATS}}


def worker_id(subject):
    """The hexadecimal number after the last hyphen, as i64: a larger one stops the reader for ever."""
    number = int(subject.rsplit("-", 1)[1], 16)
    assert number < 1 << 63, subject
    return number


def scrape(payloads, service_name, read):
    """{worker_id: figures} of all answers; service_name as Dynamo makes it."""
    seen = {}
    for payload in payloads:
        service = json.loads(payload)
        if not has_all(service, SERVICE) or not isinstance(service.get("endpoints"), list):
            continue
        for endpoint in service["endpoints"]:
            if not has_all(endpoint, ENDPOINT) or "data" not in endpoint:
                continue
            if not endpoint["subject"].startswith(f"{service_name}.load_metrics"):
                continue
            figures = read(endpoint["data"])
            if figures is not None:
                seen[worker_id(endpoint["subject"])] = figures
    return seen
