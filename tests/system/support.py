"""A real local cluster for a test: dp-controller, dp-worker, dp-keeper and dp-rank on loopback.

Each cluster has a state directory of its own; what it started is found through that directory in
the environment of processes, so that a test can prove that nothing was left behind.
"""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BIN = pathlib.Path(os.environ["DP_BIN"])
SOURCE = pathlib.Path(os.environ["DP_SOURCE"])
DEADLINE_S = 240


def wait_for(what, predicate, deadline_s=DEADLINE_S):
    """Polls until predicate() is true and returns its value; fails with `what` at the deadline."""
    end = time.monotonic() + deadline_s
    pause = 0.02
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.25)


def measured_profile():
    """What calibration measures here; once for all clusters of this build."""
    path = BIN.parent / "test-profile.json"
    with open(BIN.parent / "test-profile.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            text = subprocess.run([BIN / "dp-rank", "--calibrate"], capture_output=True,
                                  timeout=DEADLINE_S, check=True).stdout
            path.write_bytes(text)
    return path


def processes_of(root):
    """(pid, program) of whatever runs for the cluster in this directory, zombies left out."""
    needle = f"XDG_STATE_HOME={root}".encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            comm = (entry / "comm").read_text().strip()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append((int(entry.name), comm))
    return sorted(found)


class Client:
    """dpctl, for a cluster whose files lie under `root`; `env` goes to all its processes."""
    timeout_s = 300

    def __init__(self, root, **env):
        self.root = pathlib.Path(root)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DPCTL_")}
        self.env.update(XDG_STATE_HOME=str(self.root), NO_COLOR="1", **env)

    def command(self):
        return [BIN / "dpctl"]

    def dpctl(self, *args, check=0, stdin=None, timeout=None, env=None):
        """Runs dpctl; `check` is the exit code that is expected, None = any."""
        done = subprocess.run([*self.command(), *map(str, args)], env={**self.env, **(env or {})},
                              input=stdin, capture_output=True, text=True,
                              timeout=timeout or self.timeout_s, cwd=self.root, check=False)
        if check is not None and done.returncode != check:
            raise AssertionError(f"dpctl {' '.join(map(str, args))}: exit {done.returncode}, not "
                                 f"{check}\n{done.stdout}\n{done.stderr}\n{self.logs()}")
        return done

    def json(self, *args, **kwargs):
        return json.loads(self.dpctl(*args, "-o", "json", **kwargs).stdout)

    def job(self, job_id):
        return self.json("status", job_id)

    def logs(self):
        tails = []
        for path in sorted(self.root.rglob("*.log")):
            text = path.read_text(errors="replace")[-1500:]
            if text:
                tails.append(f"--- {path.name}\n{text}")
        return "\n".join(tails)


class Cluster(Client):
    """calibrated: nodes find a profile and need not measure."""

    def __init__(self, nodes=2, slots=2, calibrated=True):
        # Short, because unix socket paths are.
        super().__init__(tempfile.mkdtemp(prefix="dpt"), OPENBLAS_NUM_THREADS="1")
        self.nodes, self.slots = nodes, slots
        self.calibrated = calibrated
        self.state = self.root / "dp" / "local"

    def prepare(self):
        """Lets the nodes of the first start find a profile."""
        if self.calibrated and not (self.state / "node-0" / "profile.json").exists():
            (self.state / "node-0").mkdir(parents=True, exist_ok=True)
            shutil.copy(measured_profile(), self.state / "node-0" / "profile.json")

    def up(self, nodes=None, slots=None):
        self.prepare()
        self.dpctl("local", "up", "--nodes", nodes or self.nodes, "--slots", slots or self.slots)
        return self

    def down(self):
        self.dpctl("local", "down")

    def close(self):
        try:
            self.dpctl("local", "down", check=None)
        finally:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.root, ignore_errors=True)

    def job_file(self, **changes):
        """A small job as a file; `section_key=value` changes or adds keys, None removes them."""
        path = self.root / f"job-{time.monotonic_ns()}.toml"
        path.write_text(job_text(**changes))
        return path

    def submit(self, **changes):
        return self.dpctl("submit", "-q", self.job_file(**changes)).stdout.strip()

    def wait_state(self, job_id, *states, deadline_s=DEADLINE_S):
        def reached():
            job = self.job(job_id)
            return job if job["state"].removeprefix("JOB_") in states else None
        try:
            return wait_for(f"{job_id} in {states}", reached, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.job(job_id)}\n{self.logs()}") from error

    def wait_step(self, job_id, step):
        return wait_for(f"{job_id} at step {step}",
                        lambda: (lambda job: job if job["step"] >= step else None)(
                            self.job(job_id)))

    def pid(self, part):
        return int((self.state / f"{part}.pid").read_text().split()[0])

    def processes(self, name=None):
        """Pids of this cluster's processes, by program name if given. Zombies do not count."""
        return [pid for pid, comm in processes_of(self.root)
                if pid != os.getpid() and name in (None, comm)]

    def sockets_in_state(self):
        return [p for p in self.root.rglob("*") if p.is_socket()]


BASE_JOB = {
    "": {"name": "small"},
    "model": {"layers": 4, "dense_layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1,
              "head_dim": 16, "ffn": 64, "experts": 4, "top_k": 2, "shared_experts": 1,
              "expert_ffn": 32, "vocabulary": 256},
    "data": {"path": "/usr/share/common-licenses/GPL-3"},
    "train": {"steps": 4, "global_batch": 8, "sequence": 32, "seed": 1},
    "optimizer": {"lr": 0.003},
    "parallel": {"pipeline": 2, "expert": 1, "data": 1, "microbatches": 8,
                 "micro_batch_size": 1, "schedule": "gpipe"},
    "resources": {"device": "cpu"},
}
# Two layouts, which sum in another order, stay within 3e-6 of each other on it (300 steps, 16
# seeds). Where a router chooses, a last bit sends a token elsewhere, and the rate above makes more
# of it: with both, layouts come up to 4e-2 apart (docs/executor.md).
CURVE_JOB = {"model_top_k": BASE_JOB["model"]["experts"], "optimizer_lr": 3e-4}
CURVE_SAME = 2e-5
# Ranks that take time and compute nothing: cheap, as long as one likes.
SIM_JOB = {"resources_device": "sim", "train_steps": 100000, "sim_forward_s": 0.002,
           "sim_input_grad_s": 0.002, "sim_weight_grad_s": 0.001, "sim_pair_s": 0.004,
           "sim_scale": 1.0}


def toml_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else str(value)


def job_text(**changes):
    job = {section: dict(keys) for section, keys in BASE_JOB.items()}
    for name, value in changes.items():
        section, _, key = name.partition("_")
        if section == "name":
            section, key = "", "name"
        job.setdefault(section, {})[key] = value
    lines = []
    for section, keys in job.items():
        if section:
            lines.append(f"[{section}]")
        lines += [f"{key} = {toml_value(value)}" for key, value in keys.items()
                  if value is not None]
    return "\n".join(lines) + "\n"


class ClusterTest(unittest.TestCase):
    """A cluster for each test, taken down afterwards; `leaves_nothing` proves that it is gone."""
    nodes, slots = 2, 2

    def setUp(self):
        self.cluster = Cluster(self.nodes, self.slots)
        self.addCleanup(self.cluster.close)

    def leaves_no_rank(self):
        wait_for("every rank and keeper is gone",
                 lambda: not self.cluster.processes("dp-rank") and
                 not self.cluster.processes("dp-keeper"))

    def leaves_nothing(self):
        self.cluster.down()
        self.assertEqual(self.cluster.processes(), [])
        self.assertEqual(self.cluster.sockets_in_state(), [])


class CurveTest(ClusterTest):
    """Jobs that something happens to, and whose losses are what they would have been."""

    def losses(self, job):
        return {s["step"]: s["loss"] for s in self.cluster.json("report", job)["steps"]}

    def undisturbed(self, **changes):
        job = self.cluster.submit(**changes)
        self.cluster.wait_state(job, "COMPLETED")
        return self.losses(job)

    def same_losses(self, losses, reference):
        for step, loss in losses.items():
            self.assertLess(abs(loss - reference[step]), CURVE_SAME, msg=f"step {step}")

    def same_curve(self, job, reference):
        """Every step is there once, and its loss is what it would have been."""
        losses = self.losses(job)
        self.assertEqual(sorted(losses), sorted(reference))
        self.same_losses(losses, reference)
