"""One stack of containers, by docker-compose.yml and more files of its kind, in a project of its own: nothing of it is
left after close()."""

import json
import os
import pathlib
import re
import subprocess

from programs import wait_for

TREE = pathlib.Path(__file__).resolve().parents[3]
SERVICES = ["nats", "engines", "engines2", "kvbridge", "kvbridge2", "kvaggregator"]
# Sends each command to a fleet's truth socket, and prints the answers. Each Debian image has Perl.
ASK_TRUTH = r"""
my $truth = IO::Socket::UNIX->new("/tmp/truth") or die "/tmp/truth: $!";
for my $command (@ARGV) {
    print $truth "$command\n";
    while (my $line = <$truth>) { last if $line =~ /"end"/; print $line }
}"""
HEALTH = "{{.State.Status}}, {{if .State.Health}}{{.State.Health.Status}}{{else}}no health check{{end}}"


def run(*words, seconds=60, env=None):
    done = subprocess.run(
        [str(word) for word in words], cwd=TREE, capture_output=True, text=True, timeout=seconds,
        env={**os.environ, **(env or {})})
    assert done.returncode == 0, f"{' '.join(map(str, words[:8]))} ...: {done.stderr.strip()[-2000:]}"
    return done.stdout.strip()


def compose_command():
    """None where no Docker engine answers, or it has no compose."""
    for words, rest in ((["docker"], ["version"]), (["docker", "compose"], ["version"]), (["docker-compose"], ["version"])):
        try:
            is_there = subprocess.run([*words, *rest], capture_output=True, timeout=60).returncode == 0
        except FileNotFoundError:
            is_there = False
        if words == ["docker"] and not is_there:
            return None
        if words != ["docker"] and is_there:
            return words
    return None


class Stack:
    def __init__(self, image, *files, services=()):
        self.services = [*SERVICES, *services]
        self.project = f"kvbtest{os.getpid()}"
        # The networks of gateway.yml have fixed addresses, so each run takes another one.
        self.network = f"10.213.{os.getpid() % 250}"
        self.env = {"KVB_IMAGE": image, "KVB_HTTP_PORT": "0", "KVB_HTTP2_PORT": "0", "KVB_NATS_PORT": "0",
                    "KVB_PODS": self.network, "KVB_SERVING": self.network, "KVB_GATEWAY_PORT": "0"}
        self.command = [*compose_command(), "--ansi", "never", "-p", self.project]
        for file in ("docker-compose.yml", *files):
            self.command += ["-f", file]
        self.ids = {}

    def compose(self, *words, seconds=120):
        return run(*self.command, *words, seconds=seconds, env=self.env)

    def up(self, *services):
        """Of all services when none is named; returns when they are healthy."""
        self.compose("up", "-d", "--no-build", *services, seconds=300)
        for service in services or self.services:
            self.ids[service] = self.compose("ps", "-q", service)
        self.wait_for_health(*services)

    def inspect(self, service, template):
        return run("docker", "inspect", "-f", template, self.ids[service])

    def wait_for_health(self, *services):
        sick = {}

        def are_healthy():
            sick.clear()
            sick.update({service: health for service in services or self.ids
                         if (health := self.inspect(service, HEALTH)) != "running, healthy"})
            return not sick

        try:
            wait_for("all are healthy", are_healthy)
        except AssertionError as error:
            raise AssertionError(f"{error}: {sick}") from None

    def execute(self, service, *words):
        return run("docker", "exec", self.ids[service], *words)

    def port(self, service, port):
        return int(self.compose("port", service, port).rsplit(":", 1)[1])

    def truth(self, service, *commands):
        """The rows with which a fleet's truth socket answers."""
        lines = self.execute(service, "perl", "-MIO::Socket::UNIX", "-e", ASK_TRUTH, *commands).splitlines()
        return [json.loads(line) for line in lines]

    def kill(self, service):
        """Its process: after docker kill the Docker engine would not restart the container."""
        pid = int(self.inspect(service, "{{.State.Pid}}"))
        assert pid > 1, f"{service} does not run"
        run(*([] if os.geteuid() == 0 else ["sudo"]), "kill", "-9", pid)
        return pid

    def wait_until_restarted(self, service, pid):
        wait_for(f"{service} is restarted", lambda: int(self.inspect(service, "{{.State.Pid}}")) not in (0, pid))
        self.wait_for_health()

    def logs(self):
        return self.compose("logs", "--no-color", "--tail", "40")

    def close(self):
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")
        label = f"label=com.docker.compose.project={self.project}"
        left = [found for kind in (["ps", "-aq"], ["network", "ls", "-q"], ["volume", "ls", "-q"])
                if (found := run("docker", *kind, "--filter", label))]
        assert not left, f"not removed: {left}"

    # ---- Permissions -------------------------------------------------------------------

    def members(self, network):
        return [service for service in self.services if f"{self.project}_{network}" in self.inspect(
            service, "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}").split()]

    def check_locks(self):
        """No root, no capabilities, read-only file systems; engines reach only their bridge; two ports, on loopback."""
        for service in self.services:
            have = self.inspect(
                service, "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.HostConfig.CapAdd}} "
                "{{.HostConfig.SecurityOpt}} {{if gt .HostConfig.Memory 0}}limited{{end}}")
            assert have == "65534:65534 true [ALL] [] [no-new-privileges:true] limited", (service, have)
        assert self.members("engines") == ["engines", "kvbridge"]
        assert self.members("engines2") == ["engines2", "kvbridge2"]
        hosts = " ".join(self.inspect(
            service, "{{range .NetworkSettings.Ports}}{{range .}}{{.HostIp}} {{end}}{{end}}") for service in self.services)
        assert re.findall(r"\S+", hosts) == ["127.0.0.1"] * 2
