#!/usr/bin/env python3
"""Dispatch and combine beside memcpy, a plain tcp stream, and MPI of MPICH and Open MPI carrying the
same tokens (mpi_alltoall.c), each built by its own compiler. Prints rows of build/bench.json, and
what it leaves out.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DP_BIN", SOURCE / "build" / "release" / "bin"))
TOKEN_BYTES = 4096 * 1024 * 4
GOAL = 1.3
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
MPIS = {
    "MPICH": ("mpicc.mpich", ["mpirun.mpich"]),
    "Open MPI": ("mpicc.openmpi", ["mpirun.openmpi", "--oversubscribe", "--mca", "btl",
                                   "self,vader"]),
}


def row(name, value, unit, peer, ratio, goal, met):
    print(json.dumps({"name": name, "value": round(value, 6), "unit": unit, "peer": peer,
                      "ratio": round(ratio, 4), "goal": goal, "met": bool(met)}), flush=True)


def ours(ranks, transport):
    done = subprocess.run([BIN / "alltoall_bench", str(ranks), transport], capture_output=True,
                          text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def mpi(name, ranks, scratch):
    """None, with the reason printed, where the MPI is not there or does not run."""
    compiler, launcher = MPIS[name]
    if shutil.which(compiler) is None or shutil.which(launcher[0]) is None:
        print(f"no comparison with {name}: {compiler} or {launcher[0]} is missing "
              "(deploy/setup test)", flush=True)
        return None
    program = pathlib.Path(scratch) / compiler
    if not program.exists():
        subprocess.run([compiler, "-O2", "-o", program, SOURCE / "tests/bench/mpi_alltoall.c"],
                       check=True)
    done = subprocess.run([*launcher, "-n", str(ranks), program], capture_output=True, text=True,
                          timeout=300, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"no comparison with {name} on {ranks} ranks: {reason}", flush=True)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def against_mpi(ranks, scratch):
    for name in MPIS:
        theirs = mpi(name, ranks, scratch)
        mine = ours(ranks, "shm")  # beside it, as the load of the machine changes
        if theirs is None:
            continue
        for form, how in (("slots", "MPI_Alltoallv of a row for each token and expert"),
                          ("padded", "MPI_Alltoall of as many rows for every expert")):
            for what, text in (("rows", "to rows by expert and back"), ("moves", "alone")):
                ratio = theirs[f"{form}_{what}_s"] / mine[f"{what}_s"]
                rate = 2 * ranks * TOKEN_BYTES / mine[f"{what}_s"] / 1e9
                row(f"dispatch and combine {text}, {ranks} ranks, shm, beside {name}'s {how}", rate,
                    "GB/s of tokens", f"{theirs[f'{form}_{what}_s'] * 1e3:.1f} ms; "
                    f"load {os.getloadavg()[0]:.1f}",
                    ratio, f"at least {GOAL}", ratio >= GOAL)


def against_bounds(ranks):
    mine = ours(ranks, "shm")
    rate = mine["bytes"] / mine["moves_s"]
    row(f"dispatch and combine, {ranks} ranks, bytes over shm", rate / 1e9, "GB/s",
        f"memcpy of the same bytes by as many processes: {mine['memcpy_s'] * 1e3:.1f} ms",
        mine["memcpy_s"] / mine["moves_s"], "reported", True)
    mine = ours(ranks, "tcp")
    rate = mine["bytes"] / mine["moves_s"]
    row(f"dispatch and combine, {ranks} ranks, bytes over tcp", rate / 1e9, "GB/s",
        f"one plain stream over loopback: {mine['stream_bytes_per_s'] / 1e9:.2f} GB/s",
        rate / mine["stream_bytes_per_s"], "reported", True)


def main():
    with tempfile.TemporaryDirectory(prefix="dpb") as scratch:
        for ranks in (2, 4):
            against_bounds(ranks)
            against_mpi(ranks, scratch)


if __name__ == "__main__":
    main()
