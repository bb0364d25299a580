#!/usr/bin/python3
"""Two recorded training jobs (OSDI 2025, ByteDance-Seed/StragglerAnalysis) are given the causes that
were published for them, by their replay and by what their ranks would have reported step by step:
one has a slow worker, one a last stage with too much to do. Usage: traces.py PROGRAM.

The recordings are no part of this repository: validation/stragglers/ below $DP_SHARED or below
../shared beside the source tree. Without them the test is skipped."""

import gzip
import os
import subprocess
import sys
import tempfile


def folder():
    source = os.environ.get("DP_SOURCE", ".")
    shared = os.environ.get("DP_SHARED", os.path.join(source, "..", "shared"))
    return os.path.join(shared, "validation", "stragglers")


def verdicts(program, path):
    """[(source, state, cause, rank, stage, slowdown, text)]"""
    with tempfile.NamedTemporaryFile(suffix=".csv") as plain:
        with gzip.open(path) as packed:
            plain.write(packed.read())
        plain.flush()
        out = subprocess.run([program, plain.name], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line.split("|", 6) for line in out.splitlines()]


def main():
    path = folder()
    if not os.path.exists(os.path.join(path, "expected.json")):
        print("skipped: no recordings at %s; set DP_SHARED" % path)
        sys.exit(77)
    # A slow worker: replica 0, stage 0 (published: S of replica 0 and of stage 0 1.97, of all others
    # at most 1.02; fixing the slowest workers removes all of it).
    slow = verdicts(sys.argv[1], os.path.join(path, "trace-AR.csv.gz"))
    # An uneven stage: the last (published: S of stage 3 1.23, of all others under 1.00; M_S 1.22).
    uneven = verdicts(sys.argv[1], os.path.join(path, "trace-ST.csv.gz"))
    for name, rows in (("AR", slow), ("ST", uneven)):
        for row in rows:
            print(name, *row)
    by_replay, by_windows = slow[0], slow[1:]
    assert by_replay[:3] == ["replay", "suspected", "device"], by_replay
    assert by_replay[3] == "0", by_replay
    # The windows blame replica 0's stage 0, whose number there is 0, and nobody else.
    assert [row[1:4] for row in by_windows] == [["suspected", "device", "0"]], by_windows
    assert 2.2 < float(by_windows[0][5]) < 2.6, by_windows  # 0.546 s over 0.218 s, 0.869 over 0.383
    by_replay, by_windows = uneven[0], uneven[1:]
    assert by_replay[:3] == ["replay", "noted", "uneven stage"], by_replay
    assert by_replay[4] == "3", by_replay
    assert [row[1:5] for row in by_windows] == [["noted", "uneven stage", "-1", "3"]], by_windows
    assert 1.5 < float(by_windows[0][5]) < 1.75, by_windows  # 0.139 + 0.203 s over 0.067 + 0.143 s


main()
