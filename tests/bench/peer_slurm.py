#!/usr/bin/env python3
"""Jobs that do nothing, from submission to their end, beside Slurm on the same machine in turns: as
many processes submit, one node takes as many at once. A job of ours is one rank of one step, which
is a keeper and a rank in two phases; one of Slurm's is a shell script. Prints rows of
build/bench.json, and what it leaves out.

Slurm is Debian's (deploy/setup bench), with a configuration, a munge and a state of its own, under
the settings that its guide for high throughput names (no delays between submission and scheduling,
no accounting).
"""

import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DP_BIN", SOURCE / "build" / "release" / "bin"))
os.environ.update(DP_BIN=str(BIN), DP_SOURCE=str(SOURCE), OPENBLAS_NUM_THREADS="1")
sys.path.insert(0, str(SOURCE / "tests" / "system"))

from support import SIM_JOB, Cluster, wait_for  # noqa: E402  (needs the environment above)

JOBS, SLOTS, SUBMITTERS, ROUNDS = 200, 16, 4, 2
GOAL = 3

CONFIGURATION = """\
ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={root}/munge.sock
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1,default_queue_depth=2000
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/completed
MaxJobCount=20000
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs={slots} CoresPerSocket={slots} State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def row(name, value, unit, peer, ratio, goal, met):
    print(json.dumps({"name": name, "value": round(value, 6), "unit": unit, "peer": peer,
                      "ratio": round(ratio, 4), "goal": goal, "met": bool(met)}), flush=True)


def submit_all(command, environment, directory):
    subprocess.run(["xargs", "-P", str(SUBMITTERS), "-I{}", *map(str, command)],
                   input="\n".join(map(str, range(JOBS))), text=True, check=True,
                   stdout=subprocess.DEVNULL, env=environment, cwd=directory)


class Slurm:
    """A controller and a node of one's own; close() ends what open() started."""

    def __init__(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="dps"))
        self.root.chmod(0o755)
        self.environment = dict(os.environ, SLURM_CONF=str(self.root / "slurm.conf"))
        self.processes = []

    def start(self, *command):
        self.processes.append(subprocess.Popen(list(map(str, command)), env=self.environment,
                                               stdout=subprocess.DEVNULL,
                                               stderr=subprocess.DEVNULL, cwd=self.root))

    def open(self):
        for name in ("state", "spool"):
            (self.root / name).mkdir()
        (self.root / "slurm.conf").write_text(
            CONFIGURATION.format(root=self.root, port=17817, node_port=17818, slots=SLOTS))
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.start("munged", "--foreground", f"--key-file={key}",
                   f"--socket={self.root}/munge.sock", f"--pid-file={self.root}/munged.pid",
                   f"--log-file={self.root}/munged.log", f"--seed-file={self.root}/munge.seed",
                   "--force")
        wait_for("munge's socket", (self.root / "munge.sock").exists, 20)
        self.start("slurmctld", "-D", "-c")
        self.start("slurmd", "-D", "-N", "localhost")
        wait_for("an idle node of Slurm", lambda: "idle" in subprocess.run(
            ["sinfo", "-h", "-o", "%t"], env=self.environment, capture_output=True, text=True,
            check=False).stdout, 60)
        script = self.root / "nothing.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        return script

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def completed(self):
        path = self.root / "completed"
        text = path.read_text(errors="replace") if path.exists() else ""
        return [line for line in text.splitlines() if "JobState=COMPLETED" in line]

    def run(self, script):
        """Jobs per second, and the median from submission to start (in whole seconds, as it writes
        them)."""
        before = len(self.completed())
        started = time.monotonic()
        submit_all(["sbatch", "--parsable", "-o", "/dev/null", "-n", "1", script],
                   self.environment, self.root)
        wait_for("Slurm's jobs", lambda: len(self.completed()) >= before + JOBS, 240)
        took = time.monotonic() - started
        return JOBS / took, statistics.median(map(waited_s, self.completed()[before:]))


def waited_s(line):
    times = [datetime.datetime.fromisoformat(re.search(rf"{name}=(\S+)", line).group(1))
             for name in ("SubmitTime", "StartTime")]
    return (times[1] - times[0]).total_seconds()


def run_ours(cluster):
    nothing = cluster.job_file(**{**SIM_JOB, "train_steps": 1, "parallel_pipeline": 1,
                                  "parallel_microbatches": 1, "train_global_batch": 1,
                                  "sim_scale": 0.001})
    started = time.monotonic()
    submit_all([BIN / "dpctl", "submit", "-q", nothing], cluster.env, cluster.root)

    def ended():
        jobs = cluster.json("jobs", "--limit", JOBS)["jobs"]
        return jobs if all(job["ended_ns"] for job in jobs) else None
    jobs = wait_for("our jobs", ended, 240)
    took = time.monotonic() - started
    wrong = [job["id"] for job in jobs if not job["state"].endswith("COMPLETED")]
    if wrong or len(jobs) != JOBS:
        raise RuntimeError(f"{len(jobs)} jobs, of which these did not complete: {wrong}")
    return JOBS / took, statistics.median((job["started_ns"] - job["submitted_ns"]) / 1e9
                                          for job in jobs)


def main():
    if any(shutil.which(name) is None for name in ("slurmctld", "slurmd", "munged", "sbatch")):
        print("no comparison with Slurm: deploy/setup bench", flush=True)
        return
    slurm, cluster = Slurm(), Cluster(1, SLOTS)
    try:
        script = slurm.open()
        cluster.up()
        rounds = [(run_ours(cluster), slurm.run(script)) for _ in range(ROUNDS)]
    finally:
        slurm.close()
        cluster.close()
    ours, theirs = (max(pair[who][0] for pair in rounds) for who in (0, 1))
    row(f"{JOBS} jobs that do nothing", ours, "jobs/s", f"Slurm: {theirs:.1f} jobs/s",
        ours / theirs, f"at least {GOAL} x", ours >= GOAL * theirs)
    ours, theirs = (min(pair[who][1] for pair in rounds) for who in (0, 1))
    row("submission to start, median of these", ours, "s", f"Slurm: {theirs:.1f} s",
        ours / theirs if theirs > 0 else 0, "below Slurm's", ours < theirs)


if __name__ == "__main__":
    main()
