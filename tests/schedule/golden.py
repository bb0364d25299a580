#!/usr/bin/python3
"""Compares generated DualPipe and DualPipeV with sequences recorded from the reference
implementation, action for action. Usage: golden.py EMIT, a program that prints dp.schedule/1.

The recording is no part of this repository: it is golden/schedules.json below $DP_SHARED or below
../shared beside the source tree. Without it the test is skipped."""

import json
import os
import subprocess
import sys

LETTERS = {"F": "F", "B": "B", "Bi": "I", "W": "W"}


def golden_path():
    source = os.environ.get("DP_SOURCE", ".")
    shared = os.environ.get("DP_SHARED", os.path.join(source, "..", "shared"))
    return os.path.join(shared, "golden", "schedules.json")


def single(case, rank, kind, slot, microbatch):
    """One recorded chunk as dp.schedule/1 writes it."""
    if case["algo"] == "dualpipe" and slot == 1:
        microbatch += case["mb_per_slot"]
    stage = case["stage_of_rank_slot"][rank][slot]
    return {"kind": LETTERS[kind], "stage": stage, "microbatch": microbatch}


def expected(case, rank, op):
    if op[0] != "FB":
        return single(case, rank, op[0], op[1], op[2])
    return {
        "kind": "FB",
        "forward": single(case, rank, "F", op[1], op[2]),
        "backward": single(case, rank, "B", op[3], op[4]),
    }


def compare(case, schedule):
    """The number of actions that are equal; fails loudly at the first that is not."""
    name = "%s P=%d M=%d" % (case["algo"], case["P"], case["M"])
    assert schedule["stages"] == case["num_stages"], name
    assert schedule["placement"] == case["stage_of_rank_slot"], name
    for rank, ops in enumerate(case["ranks"]):
        wanted = [expected(case, rank, op) for op in ops]
        got = schedule["ranks"][rank]
        for position, (a, b) in enumerate(zip(got, wanted)):
            if a != b:
                sys.exit("%s: rank %d, position %d: %s, recorded %s" % (name, rank, position, a, b))
        if len(got) != len(wanted):
            sys.exit("%s: rank %d: %d actions, recorded %d" % (name, rank, len(got), len(wanted)))
    return sum(len(ops) for ops in case["ranks"])


def main():
    path = golden_path()
    if not os.path.exists(path):
        print("skipped: no recording at %s; set DP_SHARED" % path)
        sys.exit(77)
    with open(path) as file:
        cases = json.load(file)["cases"]
    actions = 0
    for case in cases:
        command = [sys.argv[1], case["algo"], str(case["P"]), str(case["M"])]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        actions += compare(case, json.loads(printed.stdout.decode()))
    print("%d cases, %d actions equal" % (len(cases), actions))


main()
