"""A cluster of hosts that are network namespaces on veth pairs, joined by a bridge: partitions are
links that are down, nothing leaves the machine, and what a test made ends with it.

Needs the rights to make namespaces (`why_not()` says so where there are none).
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile

from support import BIN, Client, job_text, measured_profile, processes_of, wait_for

NETWORK = "10.213.77"
CONTROLLER = f"{NETWORK}.1"
PORT = 7600


def why_not():
    """Why there can be no such hosts here, or None."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"{program} is missing"
    done = subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True,
                          text=True, check=False)
    return None if done.returncode == 0 else f"no network namespaces: {done.stderr.strip()}"


def namespace_of(pid):
    """None when the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


class Namespace:
    """Held by a process of its own; programs enter it by that one's pid."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        wait_for("a namespace", lambda: self.link() not in (None, own), 10)
        self.run("ip", "link", "set", "lo", "up")

    def link(self):
        return namespace_of(self.holder.pid)

    def command(self, *arguments):
        return ["nsenter", "-t", str(self.holder.pid), "-n", *map(str, arguments)]

    def run(self, *arguments):
        subprocess.run(self.command(*arguments), check=True, capture_output=True, timeout=30)

    def close(self):
        self.holder.kill()
        self.holder.wait()


class Host:
    """One node: its namespace, its agent, and the state that outlives it."""

    def __init__(self, hosts, number, slots):
        self.hosts, self.number, self.slots = hosts, number, slots
        self.name, self.address = f"h{number}", f"{NETWORK}.{10 + number}"
        self.state = hosts.root / self.name
        self.state.mkdir()
        shutil.copy(measured_profile(), self.state / "profile.json")
        self.space = Namespace()
        self.agent = None
        self.cable = f"veth{number}"
        hosts.space.run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", "eth0",
                        "netns", str(self.space.holder.pid))
        hosts.space.run("ip", "link", "set", self.cable, "master", "br0", "up")
        self.space.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.space.run("ip", "link", "set", "eth0", "up")

    def connect(self, up):
        """The cable to the switch: plugged in or not."""
        self.hosts.space.run("ip", "link", "set", self.cable, "up" if up else "down")

    def start(self, *options):
        with open(self.hosts.root / f"{self.name}.log", "ab") as log:
            self.agent = subprocess.Popen(
                self.space.command(BIN / "dp-worker", "--controller", f"{CONTROLLER}:{PORT}",
                                   "--name", self.name, "--state-dir", self.state,
                                   "--slots", self.slots, "--data-host", self.address,
                                   *self.hosts.agent_options, *options),
                env=self.hosts.env, stderr=log, stdout=log)

    def is_up(self):
        return self.agent is not None and self.agent.poll() is None


class Hosts(Client):
    timeout_s = 60

    def __init__(self, count=3, slots=4, agent_options=("--lease-ms", "3000"),
                 controller_options=(), directory=None):
        super().__init__(directory or tempfile.mkdtemp(prefix="dph"), OPENBLAS_NUM_THREADS="1",
                         DPCTL_CONTROLLER=f"{CONTROLLER}:{PORT}")
        self.agent_options, self.controller_options = agent_options, controller_options
        self.space = Namespace()
        self.space.run("ip", "link", "add", "br0", "type", "bridge")
        self.space.run("ip", "address", "add", f"{CONTROLLER}/24", "dev", "br0")
        self.space.run("ip", "link", "set", "br0", "up")
        self.controller = None
        (self.root / "controller").mkdir(exist_ok=True)
        self.hosts = [Host(self, number, slots) for number in range(count)]

    def start(self):
        self.start_controller()
        for host in self.hosts:
            host.start()
        self.wait_ready()
        return self

    def start_controller(self):
        with open(self.root / "controller.log", "ab") as log:
            self.controller = subprocess.Popen(
                self.space.command(BIN / "dp-controller", "--listen", f"{CONTROLLER}:{PORT}",
                                   "--state-dir", self.root / "controller",
                                   *self.controller_options),
                env=self.env, stderr=log, stdout=log)

    def wait_ready(self, deadline_s=60):
        wait_for("all nodes READY", lambda: len(self.nodes("READY")) == len(self.hosts),
                 deadline_s)

    def command(self):
        return self.space.command(BIN / "dpctl")

    def nodes(self, *states):
        """Names of nodes in these states; none while the controller does not answer."""
        done = self.dpctl("nodes", "-o", "json", check=None)
        if done.returncode != 0:
            return []
        return [node["name"] for node in json.loads(done.stdout)["nodes"]
                if node["state"] in states]

    def submit(self, text=None, **changes):
        return self.dpctl("submit", "-q", "-", stdin=text or job_text(**changes)).stdout.strip()

    def wait_state(self, job_id, *states, deadline_s=120):
        def reached():
            done = self.dpctl("status", job_id, "-o", "json", check=None)
            if done.returncode == 8:
                return None
            job = json.loads(done.stdout)
            return job if job["state"].removeprefix("JOB_") in states else None
        return wait_for(f"{job_id} in {states}", reached, deadline_s)

    def processes(self, name=None, host=None):
        """Pids of the hosts' processes by program, of one host by its namespace."""
        space = host.space.link() if host is not None else None
        return [pid for pid, comm in processes_of(self.root)
                if comm.startswith("dp") and name in (None, comm) and
                (space is None or namespace_of(pid) == space)]

    def close(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in [self.controller, *(host.agent for host in self.hosts)]:
            if process is not None:
                process.kill()
                process.wait()
        for host in self.hosts:
            host.space.close()
        self.space.close()
        shutil.rmtree(self.root, ignore_errors=True)
