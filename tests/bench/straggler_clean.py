#!/usr/bin/env python3
"""Real jobs that nobody slows down, by the real controller, agents and ranks: what is said of them.

Eight sim ranks with recorded noise train for the whole time. Beside them, one after the other and
for half of it each, two replicas of the cpu device, and two ranks of it with experts that are
loaded unevenly: by its seed one has 1.7 times the mean's rows.

Prints every event of a slow rank, and a row of build/bench.json for each job; a device or a link
that is confirmed is a false alarm. A host may be true: here are as many cores as cpu ranks, and the
sim ranks and daemons want some, too. --minutes 20 is the whole time.
"""

import argparse
import collections
import json
import os
import pathlib
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DP_BIN", SOURCE / "build" / "release" / "bin"))
os.environ.update(DP_BIN=str(BIN), DP_SOURCE=str(SOURCE), OPENBLAS_NUM_THREADS="1")
sys.path[:0] = [str(SOURCE / "tests" / "system"), str(SOURCE / "tests" / "bench")]

from straggler_recovery import PIPELINE, job_of  # noqa: E402  (needs the environment above)
from support import Cluster  # noqa: E402

STEPS = 10000000
EVEN = {"train_steps": STEPS, "train_global_batch": 8, "train_sequence": 64, "model_hidden": 128,
        "model_ffn": 256, "parallel_pipeline": 1, "parallel_data": 2, "parallel_microbatches": 4,
        "straggler_policy": "advise"}
UNEVEN = {"train_steps": STEPS, "train_seed": 19, "model_layers": 2, "model_experts": 8,
          "model_top_k": 1, "model_shared_experts": 0, "model_hidden": 64, "model_ffn": 64,
          "model_expert_ffn": 512, "model_aux_loss_weight": 0, "optimizer_lr": 1e-5,
          "train_sequence": 64, "train_global_batch": 8, "parallel_pipeline": 1,
          "parallel_expert": 2, "parallel_data": 2, "parallel_microbatches": 4,
          "straggler_policy": "advise"}


def tell(cluster, job, what):
    """Ends the job, and says what was said of it."""
    steps = cluster.job(job)["step"]
    cluster.dpctl("cancel", job)
    cluster.wait_state(job, "CANCELLED")
    said = collections.Counter()
    for event in cluster.json("events", job)["events"]:
        kind, _, state = event["kind"].partition(".")
        if kind == "straggler":
            said[state, event["message"].partition(":")[0]] += 1
            print(f"{what}: {state} {event['message']}", flush=True)
    false = sum(count for (state, cause), count in said.items()
                if state == "confirmed" and cause in ("device", "link"))
    all_said = ", ".join(f"{state} {cause} {count}"
                         for (state, cause), count in sorted(said.items())) or "nothing"
    print(json.dumps({"name": f"clean running, {what}: devices and links confirmed", "value": false,
                      "unit": "verdicts",
                      "peer": f"of {steps} steps was said: {all_said}; "
                              f"load {os.getloadavg()[0]:.1f}",
                      "ratio": false, "goal": "none", "met": false == 0}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20)
    seconds = 60 * parser.parse_args().minutes
    simulating, computing = Cluster(nodes=8, slots=1), Cluster(nodes=1, slots=2)
    try:
        simulating.up()
        computing.up()
        sim = simulating.submit(**{**job_of(PIPELINE, 1, 0.002), "train_steps": STEPS,
                                   "straggler_policy": "advise"})
        for what, changes in (("two cpu ranks", EVEN), ("two cpu ranks, uneven experts", UNEVEN)):
            job = computing.submit(**changes)
            computing.wait_step(job, 1)
            time.sleep(seconds / 2)  # the time is what is measured
            tell(computing, job, what)
        tell(simulating, sim, "eight sim ranks")
    finally:
        computing.close()
        simulating.close()


if __name__ == "__main__":
    main()
