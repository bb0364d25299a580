#!/usr/bin/env python3
"""Jobs that train while everything around them dies: kill -9, STOP and CONT of controller, agents,
keepers and ranks, hosts that crash, cables that are out, a disk that is full; then calm. Every job
has to end COMPLETED with the losses of an undisturbed run, or FAILED with a cause that was really
there; and nothing may be left.

    DP_BIN=build/release/bin DP_SOURCE=. tests/torture/torture.py [--seconds 60] [--seed 1]

Needs root, for namespaces and a disk of its own; says so and ends with 77 where it has none.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("DP_SOURCE", str(SOURCE))
os.environ.setdefault("DP_BIN", str(SOURCE / "build" / "release" / "bin"))
sys.path.insert(0, str(SOURCE / "tests" / "system"))

from hosts import BIN, Hosts, why_not  # noqa: E402  (needs the environment above)
from support import CURVE_JOB, CURVE_SAME, SIM_JOB, job_text, wait_for  # noqa: E402

SKIPPED = 77
DISK_BYTES = 96 << 20
CALM_S = 420  # for what was begun to end

STEADY = {"retry_max": 50, "retry_backoff_s": 1, "retry_no_progress": 50}
LAYOUTS = {
    "1f1b on 2 x 2 ranks": dict(parallel_pipeline=2, parallel_data=2, parallel_microbatches=4,
                                parallel_schedule="1f1b"),
    "dualpipe on 2 ranks": dict(parallel_pipeline=2, parallel_schedule="dualpipe"),
    "2 replicas that share experts": dict(parallel_pipeline=1, parallel_data=2, parallel_expert=2,
                                          parallel_microbatches=4),
    "one rank": dict(parallel_pipeline=1, parallel_schedule="1f1b"),
}
STEPS = 150

# What may lose rows of steps: a node that does not come back, or nowhere to write to.
ROWS_LOST_BY = {"cable out", "crash host", "kill agent", "stop agent", "kill keeper", "full disk"}

# What may have ended a job that FAILED, by its reason.
CAUSES = {
    "RankDied": {"kill rank", "crash host", "kill keeper"},
    "RankFailed": {"kill rank", "stop rank", "crash host", "cable out", "stop agent"},
    "KeeperLost": {"kill keeper", "crash host"},
    "NodeLost": {"crash host", "cable out", "kill agent", "stop agent", "kill keeper"},
    "NodeFailed": {"crash host", "cable out", "kill agent", "stop agent", "kill keeper",
                   "full disk"},
    "AssignmentLost": {"crash host", "kill agent"},
    "PrepareFailed": {"full disk", "crash host", "kill rank", "kill keeper", "kill agent"},
    "PrepareTimeout": {"crash host", "stop rank", "stop agent", "cable out", "kill agent"},
    "PeerLost": {"kill rank", "stop rank", "crash host", "cable out", "kill keeper"},
    "NoProgress": {"kill rank", "crash host", "kill keeper", "stop rank", "cable out"},
}


class Torture:
    def __init__(self, seconds, seed):
        self.seconds, self.random = seconds, random.Random(seed)
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="dpx"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", self.disk],
                       check=True)
        self.hosts = Hosts(3, 4, ("--lease-ms", "3000", "--orphan-ms", "8000"),
                           directory=self.disk)
        # Checkpoints have room of their own.
        self.saved = pathlib.Path(tempfile.mkdtemp(prefix="dpx"))
        self.jobs = {}       # id -> name of its layout
        self.begun = {}      # id -> when
        self.promises = set()  # names of daemons that will be started again
        self.later = []      # (when, what to do): what a fault ends with
        self.faults = []     # (when, kind)
        self.references = {}
        self.submitted = self.steps = self.steps_unseen = self.taken_back = 0

    def close(self):
        self.hosts.close()
        subprocess.run(["umount", "-l", self.disk], check=False)
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.rmtree(self.saved, ignore_errors=True)

    def text(self, layout):
        self.submitted += 1
        changes = {**CURVE_JOB, **STEADY, **LAYOUTS[layout], "train_steps": STEPS,
                   "checkpoint_directory": str(self.saved / f"run-{self.submitted}"),
                   "checkpoint_every_steps": 25, "checkpoint_keep": 2}
        return job_text(**changes)

    def sim_text(self):
        self.submitted += 1
        return job_text(**{**SIM_JOB, **STEADY, "train_steps": 60, "parallel_pipeline": 4,
                           "parallel_schedule": "dualpipe"})

    def losses(self, job):
        report = self.hosts.json("report", job)
        return {step["step"]: step["loss"] for step in report["steps"]}

    def measure_references(self):
        for layout in LAYOUTS:
            job = self.hosts.submit(self.text(layout))
            ended = self.hosts.wait_state(job, "COMPLETED", "FAILED")
            assert ended["state"] == "JOB_COMPLETED", f"undisturbed, {layout}: {ended['message']}"
            losses = self.losses(job)
            assert len(losses) == STEPS and ended["holdout_known"]
            self.references[layout] = (losses, ended["holdout_loss"])

    # Faults: each does something now, and may promise to end it later.

    def signal_one(self, pids, *signals):
        """The first now, the second (CONT) some time later."""
        if not pids:
            return None
        pid = self.random.choice(pids)

        def send(number):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        send(signals[0])
        if len(signals) > 1:
            self.after(self.random.uniform(0.2, 6), lambda: send(signals[1]))
        return pid

    def after(self, delay_s, action):
        self.later.append((time.monotonic() + delay_s, action))

    def kill_rank(self):
        return self.signal_one(self.hosts.processes("dp-rank"), signal.SIGKILL)

    def stop_rank(self):
        return self.signal_one(self.hosts.processes("dp-rank"), signal.SIGSTOP, signal.SIGCONT)

    def kill_keeper(self):
        return self.signal_one(self.hosts.processes("dp-keeper"), signal.SIGKILL)

    def kill_agent(self):
        return self.signal_one(self.hosts.processes("dp-worker"), signal.SIGKILL)

    def stop_agent(self):
        return self.signal_one(self.hosts.processes("dp-worker"), signal.SIGSTOP, signal.SIGCONT)

    def kill_controller(self):
        return self.signal_one(self.hosts.processes("dp-controller"), signal.SIGKILL)

    def stop_controller(self):
        return self.signal_one(self.hosts.processes("dp-controller"), signal.SIGSTOP,
                               signal.SIGCONT)

    def crash_host(self):
        host = self.random.choice(self.hosts.hosts)
        for pid in self.hosts.processes(host=host):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return host.name

    def cable_out(self):
        host = self.random.choice(self.hosts.hosts)
        host.connect(False)
        self.after(self.random.uniform(0.5, 12), lambda: host.connect(True))
        return host.name

    def fill_disk(self):
        ballast = self.disk / "ballast"
        if ballast.exists():
            return None
        try:
            with open(ballast, "wb") as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError:
            pass
        self.after(self.random.uniform(0.5, 5), lambda: ballast.unlink(missing_ok=True))
        return "full"

    FAULTS = (("kill rank", kill_rank, 4), ("stop rank", stop_rank, 2),
              ("kill keeper", kill_keeper, 1), ("kill agent", kill_agent, 3),
              ("stop agent", stop_agent, 2), ("kill controller", kill_controller, 3),
              ("stop controller", stop_controller, 2), ("crash host", crash_host, 1),
              ("cable out", cable_out, 2), ("full disk", fill_disk, 1))

    def supervise(self):
        """What a machine's init does: starts again what has died."""
        now = time.monotonic()
        for when, action in [item for item in self.later if item[0] <= now]:
            action()
        self.later = [item for item in self.later if item[0] > now]
        if self.hosts.controller.poll() is not None and not self.promised("controller"):
            self.promise("controller", self.hosts.start_controller)
        for host in self.hosts.hosts:
            if not host.is_up() and not self.promised(host.name):
                self.promise(host.name, host.start)

    def wait(self, until):
        """Until a daemon dies, something that was promised is due, or that moment."""
        until = min([until, *(when for when, _ in self.later)])
        watched = []
        try:
            for process in (self.hosts.controller, *(host.agent for host in self.hosts.hosts)):
                if process.poll() is None:
                    watched.append(os.pidfd_open(process.pid))
            select.select(watched, [], [], max(0, until - time.monotonic()))
        finally:
            for descriptor in watched:
                os.close(descriptor)

    def promised(self, name):
        return name in self.promises

    def promise(self, name, action):
        self.promises.add(name)

        def act():
            self.promises.discard(name)
            action()
        self.after(self.random.uniform(0.05, 2), act)

    def operate(self):
        """What an operator does: nodes that failed too often are looked at, and taken back."""
        done = self.hosts.dpctl("nodes", "-o", "json", check=None)
        for node in json.loads(done.stdout)["nodes"] if done.returncode == 0 else []:
            if node["state"] == "QUARANTINED":
                assert "suspected" in node["reason"], node
                self.hosts.dpctl("undrain", node["name"], check=None)
                self.taken_back += 1

    def active(self):
        done = self.hosts.dpctl("jobs", "--active", "-o", "json", check=None)
        return json.loads(done.stdout)["jobs"] if done.returncode == 0 else None

    def feed(self):
        active = self.active()
        if active is None or len(active) >= 3:
            return
        layout = self.random.choice([*LAYOUTS, "sim"])
        text = self.sim_text() if layout == "sim" else self.text(layout)
        done = self.hosts.dpctl("submit", "-q", "-", stdin=text, check=None)
        if done.returncode == 0:
            job = done.stdout.strip()
            self.jobs[job], self.begun[job] = layout, time.time()

    def storm(self):
        end = time.monotonic() + self.seconds
        kinds = [(name, action) for name, action, weight in self.FAULTS for _ in range(weight)]
        next_fault = next_feed = next_look = time.monotonic()
        while time.monotonic() < end:
            self.supervise()
            now = time.monotonic()
            if now >= next_feed:
                self.feed()
                next_feed = now + 0.5
            if now >= next_look:
                self.operate()
                next_look = now + 10
            if now >= next_fault:
                name, action = self.random.choice(kinds)
                if action(self) is not None:
                    self.faults.append((time.time(), name))
                next_fault = now + self.random.expovariate(1 / 1.5)
            self.wait(min(end, next_feed, next_fault, next_look))

    def calm(self):
        while self.later or not all(host.is_up() for host in self.hosts.hosts) or \
                self.hosts.controller.poll() is not None:
            self.supervise()
            self.wait(time.monotonic() + 1)

        def ended():
            self.supervise()
            self.operate()
            return self.active() == []
        try:
            wait_for("the end of every job after the last fault", ended, CALM_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.active(), indent=1)}\n"
                                 f"{self.hosts.logs()}") from error

    # What has to be true then.

    def check_completed(self, job):
        layout = self.jobs[job["id"]]
        if layout == "sim":
            assert job["step"] == job["steps_total"], job
            return
        losses, (reference, holdout) = self.losses(job["id"]), self.references[layout]
        assert job["step"] == STEPS and set(losses) <= set(reference), job
        self.steps += len(reference)
        self.check_unseen(job, sorted(set(reference) - set(losses)))
        for step, loss in losses.items():
            assert math.isclose(loss, reference[step], abs_tol=CURVE_SAME), \
                f"{job['id']} ({layout}), step {step}: loss {loss}, undisturbed {reference[step]}"
        assert job["holdout_known"] and \
            math.isclose(job["holdout_loss"], holdout, abs_tol=CURVE_SAME), \
            f"{job['id']} ({layout}): held-out loss {job['holdout_loss']}, undisturbed {holdout}"

    def met(self, job):
        """The faults while the job was there."""
        begun, ended = self.begun[job["id"]], job["ended_ns"] / 1e9
        return {name for when, name in self.faults if begun - 1 <= when <= ended + 1}

    def check_unseen(self, job, steps):
        """What a node reported while it was cut off for good, or the disk full, may lack its
        row."""
        if steps:
            there = self.met(job)
            firsts = [step for step in steps if step - 1 not in steps]
            lasts = [step for step in steps if step + 1 not in steps]
            ranges = ", ".join(f"{a}-{b}" for a, b in zip(firsts, lasts))
            print(f"{job['id']} ({self.jobs[job['id']]}) has no rows of steps {ranges}; it met "
                  f"{sorted(there)}",
                  flush=True)
            assert there & ROWS_LOST_BY, f"{job['id']} lacks rows for no fault of ours"
            self.steps_unseen += len(steps)

    def check_failed(self, job):
        there = self.met(job)
        wanted = CAUSES.get(job["reason"])
        assert wanted is not None, f"{job['id']} failed for no fault of ours: {job['reason']}: " \
                                   f"{job['message']}"
        assert there & wanted, f"{job['id']} failed with {job['reason']} ({job['message']}), but " \
                               f"there was only {there}"

    def check(self):
        outcomes = collections.Counter()
        for job_id, layout in self.jobs.items():
            job = self.hosts.job(job_id)
            state = job["state"].removeprefix("JOB_")
            outcomes[state] += 1
            assert state in ("COMPLETED", "FAILED"), f"{job_id} ({layout}) ended {state}"
            if state == "COMPLETED":
                self.check_completed(job)
            else:
                self.check_failed(job)
        wait_for("no rank and no keeper is left", lambda: not self.hosts.processes("dp-rank") and
                 not self.hosts.processes("dp-keeper"), 60)
        self.hosts.wait_ready()
        used = {node["name"]: node["slots_used"] for node in self.hosts.json("nodes")["nodes"]}
        assert not any(used.values()), f"slots are still taken: {used}"
        self.hosts.controller.terminate()
        self.hosts.controller.wait(60)
        subprocess.run([BIN / "dp-controller", "--state-dir", self.hosts.root / "controller",
                        "--check"], check=True)
        return outcomes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        reason = why_not()
        if reason is not None:
            print(f"skipped: {reason}")
            sys.exit(SKIPPED)
        os.execvp("unshare", ["unshare", "-m", "--propagation", "private", sys.executable,
                              *sys.argv, "--inside", "--seed", str(arguments.seed)])
    print(f"seed {arguments.seed}, {arguments.seconds:g} s", flush=True)
    torture = Torture(arguments.seconds, arguments.seed)
    try:
        torture.hosts.start()
        torture.measure_references()
        torture.storm()
        torture.calm()
        outcomes = torture.check()
    except BaseException:
        kept = pathlib.Path(tempfile.mkdtemp(prefix="dp-torture-"))
        for path in torture.hosts.root.glob("*.log"):
            shutil.copy(path, kept)
        print(f"logs are in {kept}; faults: {torture.faults}", flush=True)
        raise
    finally:
        torture.close()
    counts = collections.Counter(name for _, name in torture.faults)
    print(f"{len(torture.jobs)} jobs: {dict(outcomes)}; {len(torture.faults)} faults: "
          f"{dict(counts)}; {torture.taken_back} quarantines; "
          f"{torture.steps_unseen} of {torture.steps} steps have no row")


if __name__ == "__main__":
    main()
