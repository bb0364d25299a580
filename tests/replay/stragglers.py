#!/usr/bin/python3
"""Replays two recorded training jobs and compares every answer with the published ones (OSDI 2025,
ByteDance-Seed/StragglerAnalysis): one with uneven stages, one with a slow worker. Usage:
stragglers.py EMIT, a program that prints dp.replay/1 of a CSV trace.

The recordings are no part of this repository: validation/stragglers/ below $DP_SHARED or below
../shared beside the source tree. Without them the test is skipped."""

import gzip
import json
import os
import subprocess
import sys
import tempfile

# The published analyzer keeps times in single precision, so its sixth digit is noise.
TOLERANCE = 1e-5


def folder():
    source = os.environ.get("DP_SOURCE", ".")
    shared = os.environ.get("DP_SHARED", os.path.join(source, "..", "shared"))
    return os.path.join(shared, "validation", "stragglers")


def replay(emit, path):
    with tempfile.NamedTemporaryFile(suffix=".csv") as plain:
        with gzip.open(path) as packed:
            plain.write(packed.read())
        plain.flush()
        return json.loads(subprocess.run([emit, plain.name], check=True, stdout=subprocess.PIPE).stdout)


def pairs(got, wanted):
    """(name, ours, published) of every published figure."""
    yield "S", got["S"], wanted["blocking_slowdown"]
    yield "launch", got["launch_slowdown"], wanted["launch_slowdown"]
    yield "M_W", got["M_W"], wanted["M_W"]
    yield "M_S", got["M_S"], wanted["M_S"]
    yield "T", got["replayed_s"], wanted["t_ori_s"]
    yield "T_ideal", got["ideal_s"], wanted["t_ideal_s"]
    for ours, published in (("S_optype", "optype"), ("S_dp", "dp_rank"), ("S_stage", "stage")):
        figures = wanted["blocking_decompose_by_" + published]
        assert set(figures) == set(got[ours]), (published, sorted(got[ours]))
        for key, value in figures.items():
            yield ours + " " + key, got[ours][key], value
    steps = {str(step["step"]): step for step in got["steps"]}
    assert set(steps) == set(wanted["step_t_base"])
    for ours, published in (("measured_s", "step_t_base"), ("ideal_s", "step_t_noblk")):
        for step, value in wanted[published].items():
            yield "step %s %s" % (step, ours), steps[step][ours], value


def main():
    path = folder()
    if not os.path.exists(os.path.join(path, "expected.json")):
        print("skipped: no recordings at %s; set DP_SHARED" % path)
        sys.exit(77)
    with open(os.path.join(path, "expected.json")) as file:
        expected = json.load(file)
    verdicts = {"ST": "uneven-stage", "AR": "bad-worker"}
    for name, wanted in expected.items():
        got = replay(sys.argv[1], os.path.join(path, "trace-%s.csv.gz" % name))
        figures = list(pairs(got, wanted))
        for figure, ours, published in figures:
            if abs(ours - published) > TOLERANCE:
                sys.exit("%s: %s is %.9g; published %.9g" % (name, figure, ours, published))
        assert got["verdict"] == verdicts[name], got["verdict"]
        worst = max(abs(ours - published) for _, ours, published in figures)
        print("%s: %d figures, worst difference %.1e" % (name, len(figures), worst))


if __name__ == "__main__":
    main()
