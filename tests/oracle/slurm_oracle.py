#!/usr/bin/python3
"""Host lists against Slurm's own parser: scontrol show hostnames expands what a cluster file says
and what dpctl makes of it, and both must be the same hosts in the same order.

scontrol comes from $DP_SCONTROL or the path (package slurm-client); without one the test is
skipped. $DP_SLURM_PLUGINS: where its plugins are, when they are not installed."""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

BIN = pathlib.Path(os.environ["DP_BIN"])
CLUSTER = 'accelerator = "h100"\nhosts = "{}"\n'


def random_list(rng):
    """What an administrator may write: names, ranges, paddings, several brackets."""
    def brackets():
        ranges = []
        for _ in range(rng.randint(1, 4)):
            low = rng.randint(0, 120)
            width = rng.choice([1, 1, 2, 3, 4])
            high = low + rng.randint(0, 12)
            ranges.append(f"{low:0{width}d}" if rng.random() < 0.3 else
                          f"{low:0{width}d}-{high:0{rng.choice([1, width])}d}")
        return "[" + ",".join(ranges) + "]"

    names = []
    for index in range(rng.randint(1, 4)):
        name = rng.choice(["node", "n", "gpu-a", "r2c", "x"]) + "abcdefgh"[index]
        kind = rng.random()
        if kind < 0.2:
            names.append(name + str(rng.randint(0, 30)))
        elif kind < 0.8:
            names.append(name + brackets())
        else:
            names.append(name + brackets() + "s" + brackets())
    return ",".join(names)


class Slurm:
    def __init__(self, program, directory):
        self.program = program
        self.conf = directory / "slurm.conf"
        plugins = os.environ.get("DP_SLURM_PLUGINS")
        self.conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n"
                             "PartitionName=p Nodes=n1\n"
                             + (f"PluginDir={plugins}\n" if plugins else ""))

    def expand(self, hosts):
        done = subprocess.run([self.program, "show", "hostnames", hosts], capture_output=True,
                              text=True, env={**os.environ, "SLURM_CONF": str(self.conf)},
                              timeout=60, check=False)
        if done.returncode != 0 or "Invalid" in done.stdout + done.stderr:
            return None
        return done.stdout.split()


def ours(hosts, directory):
    """The canonical list and how many hosts it means, or None when it is refused."""
    path = directory / "cluster.toml"
    path.write_text(CLUSTER.format(hosts))
    done = subprocess.run([BIN / "dpctl", "cluster", "show", path], capture_output=True, text=True,
                          timeout=60, check=False)
    if done.returncode != 0:
        return None
    lines = dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
    return lines["hosts"].strip('"'), int(lines["nodes"])


def main():
    program = os.environ.get("DP_SCONTROL") or shutil.which("scontrol")
    if program is None:
        print("skipped: no scontrol (package slurm-client, or $DP_SCONTROL)")
        return 77
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        slurm = Slurm(program, directory)
        if slurm.expand("a[1-2]") != ["a1", "a2"]:
            print("skipped: scontrol does not run here")
            return 77
        compared = 0
        for _ in range(int(os.environ.get("DP_FUZZ_RUNS", "60"))):
            hosts = random_list(rng)
            theirs = slurm.expand(hosts)
            if theirs is None:
                continue  # a form that this Slurm does not have
            made = ours(hosts, directory)
            if len(set(theirs)) < len(theirs):
                assert made is None, f"{hosts}: Slurm names a host twice, dpctl takes it"
                continue
            assert made is not None, f"{hosts}: refused, Slurm expands it to {theirs}"
            assert made[1] == len(theirs), f"{hosts}: {made[1]} hosts, Slurm has {len(theirs)}"
            again = slurm.expand(made[0])
            assert again == theirs, f"{hosts}: {made[0]} means {again}, not {theirs}"
            compared += 1
        for wrong in ("n[3-1]", "n[a-b]", "n[1-2]]", "n[1-1000000]"):
            assert slurm.expand(wrong) is None and ours(wrong, directory) is None, wrong
    print(f"{compared} host lists as Slurm expands them")
    return 0 if compared > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
