#!/usr/bin/env python3
"""Slow ranks and links of real jobs, by the real controller, agents and ranks: when they are found,
what is blamed, what is done about it, and how much of what can be recovered that recovers.

Jobs of eight sim ranks take recorded noise (tests/fixtures/noise). From a random step on a random
place takes 1.5 or 3 times as long, or the link between two; [straggler] policy = "auto" does the
rest. What can be recovered says straggler_best, which simulates every split of layers, sharing of
micro-batches and place for what is slow; once in the order of the job, once in other families'
orders of the same actions as well. Its seconds are scaled by what steps took over what they were
simulated to take, of those that were healthy and those that were slow whichever is less. A rank of
two of the cpu device then gets a quota of its cores, and is probed.

Prints what it saw of each run, and rows of build/bench.json. --seeds 1 is how many runs of each
kind, --seed 1 the first of them, --only device-1.5 (-3, link-3, quota) one kind alone,
--write-noise makes the file of noise anew from the recordings.
"""

import argparse
import contextlib
import csv
import gzip
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DP_BIN", SOURCE / "build" / "release" / "bin"))
os.environ.update(DP_BIN=str(BIN), DP_SOURCE=str(SOURCE), OPENBLAS_NUM_THREADS="1")
sys.path.insert(0, str(SOURCE / "tests" / "system"))

from quota import quota  # noqa: E402  (needs the environment above)
from support import SIM_JOB, Cluster, wait_for  # noqa: E402

NOISE = SOURCE / "tests" / "fixtures" / "noise" / "recorded.txt"
FOUND_WITHIN, RECOVERED = 12, 0.85  # steps; share
PROBE_S = 0.2
LAYER_S, LAYERS = 0.002, 16  # a hop takes two layers' time
WINDOW = 20     # steps that are looked at
LATEST_S = 300  # of one run

# Sizes, the family that runs, others that have the same actions, micro-batches of a replica.
PIPELINE = (8, 1, "1f1b", ("zb-h1", "gpipe"), 16)
REPLICAS = (4, 2, "1f1b", ("zb-h1", "gpipe"), 16)
MIRROR = (8, 1, "dualpipe", (), 16)
# What is slow, its factor, the layouts that seeds go through.
KINDS = {"device-1.5": ("device", 1.5, (PIPELINE, REPLICAS, MIRROR)),
         "device-3": ("device", 3, (REPLICAS, MIRROR, PIPELINE)),
         "link-3": ("link", 3, (PIPELINE, REPLICAS, PIPELINE))}


def write_noise():
    """Of two recorded jobs (ByteDance-Seed/StragglerAnalysis, OSDI 2025): what each forward and
    backward took over the median of its kind on its rank, in the order of the recording."""
    folder = pathlib.Path(os.environ.get("DP_SHARED", SOURCE.parent / "shared"))
    factors = []
    for name, most in (("AR", 2100), ("ST", 901)):
        works = {}
        path = folder / "validation" / "stragglers" / f"trace-{name}.csv.gz"
        with gzip.open(path, "rt") as file:
            for row in csv.DictReader(file):
                if row["optype"] in ("forward-compute", "backward-compute"):
                    work = works.setdefault((row["dp_rank"], row["stage"], row["optype"]), [])
                    work.append((int(row["step"]), int(row["seq_id"]), float(row["duration"])))
        each = most // len(works) + 1
        taken = []
        for _, work in sorted(works.items()):
            median = statistics.median(duration for *_, duration in work)
            taken += [duration / median for *_, duration in sorted(work)[:each]]
        factors += [factor for factor in taken if 0.5 < factor < 2][:most]
    NOISE.parent.mkdir(exist_ok=True)
    NOISE.write_text("".join(f"{factor:.4f}\n" for factor in factors))
    print(f"{len(factors)} factors, from {min(factors):.3f} to {max(factors):.3f}, deviation "
          f"{statistics.pstdev(factors):.4f}")


def row(name, value, unit, peer, ratio, goal, met):
    print(json.dumps({"name": f"straggler runs, {name}", "value": round(value, 6), "unit": unit,
                      "peer": peer, "ratio": round(ratio, 4), "goal": goal, "met": bool(met)}),
          flush=True)


def job_of(layout, seed, layer_s, **more):
    pipeline, data, schedule, _, batches = layout
    return {**SIM_JOB, "train_steps": 3000, "train_seed": seed,
            "train_global_batch": batches * data, "model_layers": LAYERS,
            "parallel_pipeline": pipeline, "parallel_data": data,
            "parallel_microbatches": batches, "parallel_schedule": schedule,
            "sim_forward_s": layer_s, "sim_input_grad_s": layer_s, "sim_weight_grad_s": layer_s,
            "sim_pair_s": None, "sim_hop_s": 2 * layer_s, "sim_noise_file": str(NOISE),
            "straggler_policy": "auto", **more}


def best_step(layout, layer_s, slow, links, families):
    pipeline, data, _, _, batches = layout
    problem = {"pipeline": pipeline, "data": data, "microbatches": batches, "layers": LAYERS,
               "layer": [layer_s] * 3, "hop": 2 * layer_s, "slow": slow, "slow_links": links,
               "families": families}
    return json.loads(subprocess.run([BIN / "straggler_best"], input=json.dumps(problem), text=True,
                                     capture_output=True, check=True, timeout=600).stdout)


def step_of(report, event):
    """The step that an event came with."""
    return max((s["step"] for s in report["steps"] if s["time_ns"] <= event["time_ns"]), default=0)


def gaps(report):
    """Seconds between steps: from one's end to the next one's beginning, by step."""
    steps = report["steps"]
    return {b["step"]: (b["time_ns"] - a["time_ns"]) / 1e9 - b["step_s"]
            for a, b in zip(steps, steps[1:])}


def probe_time(between, suspected):
    """The probe comes between two of the steps after a suspicion."""
    return max(between.get(suspected + i, 0) for i in range(1, 4))


class Run:
    """One job that becomes slow, until it was answered and measured, or nothing came of it."""

    def __init__(self, cluster, kind, seed, layer_s=LAYER_S):
        choice = random.Random(f"{kind} {seed}")
        self.cause, self.factor, layouts = KINDS[kind]
        self.layout = layouts[(seed - 1) % len(layouts)]
        self.onset = choice.randrange(24, 40)
        self.name, self.cluster = f"{kind}, seed {seed}", cluster
        self.changes = job_of(self.layout, seed, layer_s)
        pipeline, data = self.layout[:2]
        self.rank = choice.randrange(pipeline * data)
        if self.cause == "link":
            self.rank -= self.rank % pipeline == pipeline - 1  # and the next one
        nodes = self.places()
        self.nodes = [nodes[self.rank]]
        slow, links = [], []
        if self.cause == "link":
            self.nodes.append(nodes[self.rank + 1])
            links = [[self.rank, self.rank + 1, self.factor]]
            more = {"sim_slow_link": [f"{'~'.join(self.nodes)}:{self.factor}@{self.onset}"]}
        else:
            slow = [[self.rank, self.factor]]
            more = {"sim_slow": [f"node={self.nodes[0]}:{self.factor}@{self.onset}"]}
        family, others = self.layout[2], self.layout[3]
        self.best, self.best_orders = (best_step(self.layout, layer_s, slow, links, families)
                                       for families in ([family], [family, *others]))
        self.run({**self.changes, **more})

    def places(self):
        """Where such a job's ranks go."""
        job = self.cluster.submit(**{**self.changes, "train_steps": 1})
        return [r["node"] for r in self.cluster.wait_state(job, "COMPLETED")["ranks"]]

    def run(self, changes):
        job = self.cluster.submit(**changes)

        def measured():
            decisions = self.cluster.job(job).get("decisions") or [{}]
            return decisions[-1].get("state") in ("DECISION_MEASURED", "DECISION_FELL_BACK",
                                                  "DECISION_ABANDONED")
        with contextlib.suppress(AssertionError):
            wait_for("what was done has been measured", measured, LATEST_S)
        self.job = self.cluster.job(job)
        self.cluster.dpctl("cancel", job, check=None)
        self.cluster.wait_state(job, "CANCELLED", "FAILED", "COMPLETED")
        self.report = self.cluster.json("report", job)
        self.events = self.cluster.json("events", job)["events"]
        self.judge()

    def first(self, kind):
        found = [e for e in self.events if e["kind"] == kind]
        return found[0] if found else None

    def middle(self, begin, end):
        """Of these steps; those of a machine that others use, too, are longer by what these do, so
        the lower quartile has less of that than the median."""
        steps = sorted(s["step_s"] for s in self.report["steps"] if begin <= s["step"] < end)
        return steps[(len(steps) - 1) // 4] if steps else 0

    def judge(self):
        suspected, confirmed = (self.first(f"straggler.{kind}") for kind in
                                ("suspected", "confirmed"))
        # Steps that were slow before it was said; the first one counts.
        self.suspected, self.confirmed = (
            step_of(self.report, event) - self.onset + 1 if event else None
            for event in (suspected, confirmed))
        verdicts = [v for v in self.job.get("stragglers", []) if v["state"] == "confirmed"]
        self.named = sorted({(v["cause"], v["node"]) for v in verdicts})
        self.is_right = bool(self.named) and all(
            cause == self.cause and node in self.nodes for cause, node in self.named)
        decisions = [d for d in self.job.get("decisions") or [] if d["epoch"] > 0]
        self.decision = decisions[-1] if decisions else None
        switch = self.first("job.switch")
        done = self.decision is not None and self.decision["state"] == "DECISION_MEASURED"
        last = step_of(self.report, switch) if switch else self.report["job"]["step"]
        self.before_s = self.middle(self.onset - WINDOW, self.onset)
        self.slow_s = self.middle(max(self.onset, last - WINDOW), last)
        self.after_s = self.middle(last + 2, last + 2 + WINDOW) if done else self.slow_s
        scale = min(self.before_s / self.best["healthy_s"], self.slow_s / self.best["slow_s"])
        self.recovered, self.recovered_orders = (
            (self.slow_s - self.after_s) / (self.slow_s - scale * best["best_s"])
            for best in (self.best, self.best_orders))
        between = gaps(self.report)
        self.probe_s = probe_time(between, self.onset - 1 + (self.suspected or 0))
        self.usual_s = statistics.median(between.values())
        self.tell(scale)

    def tell(self, scale):
        pipeline, data, family = self.layout[:3]
        ms = [f"{1e3 * s:.0f}" for s in (self.before_s, self.slow_s, self.after_s,
                                         scale * self.best["best_s"],
                                         scale * self.best_orders["best_s"])]
        print(f"{self.name}: {family} P={pipeline} D={data}, rank {self.rank} from step "
              f"{self.onset} on: "
              f"suspected after {self.suspected} slow steps, confirmed after {self.confirmed}: "
              f"{self.named}; load {os.getloadavg()[0]:.1f}\n"
              f"    step {ms[0]} ms, slow {ms[1]}, answered {ms[2]}, best {ms[3]} (as "
              f"{self.best_orders['family']} {ms[4]}): recovered {self.recovered:.2f} "
              f"({self.recovered_orders:.2f}); between steps {1e3 * self.usual_s:.1f} ms, with the "
              f"probe {1e3 * self.probe_s:.1f} ms\n"
              "    " + ("{kind}: {answer}; {outcome}".format(**self.decision)
                        if self.decision else "nothing was done"), flush=True)
        if not (self.is_right and self.decision):
            for event in self.events:
                if event["kind"].startswith(("straggler", "job.decision")):
                    print(f"    {event['kind']}: {event['message']}", flush=True)


def sim_rows(kind, seeds):
    cluster = Cluster(nodes=8, slots=1).up()
    try:
        runs = [Run(cluster, kind, seed) for seed in seeds]
    finally:
        cluster.close()
    what = f"{kind.replace('-', ' x')}"
    found = max(run.suspected or 999 for run in runs)
    row(f"{what}: found", found, "steps", f"the most of {len(runs)} runs", found / FOUND_WITHIN,
        f"within {FOUND_WITHIN}", found <= FOUND_WITHIN)
    right = sum(run.is_right for run in runs)
    row(f"{what}: right cause and place", right, "runs", f"of {len(runs)}", right / len(runs),
        "all", right == len(runs))
    least = min(run.recovered_orders for run in runs)
    median = statistics.median(run.recovered_orders for run in runs)
    own = min(run.recovered for run in runs)
    row(f"{what}: recovered", least, "of what can be",
        f"exhaustive simulation in all families' orders; the least of {len(runs)} runs, median "
        f"{median:.2f}; in the order of the job {own:.2f}; load {os.getloadavg()[0]:.1f}",
        least / RECOVERED, f"at least {RECOVERED}", least >= RECOVERED)


class QuotaRun:
    """Two replicas on the cpu device, one of which gets a share of a core from some step on."""

    def __init__(self, cluster, share, batches):
        job = cluster.submit(train_steps=1000000, parallel_pipeline=1, parallel_data=2,
                             parallel_microbatches=batches, train_global_batch=2 * batches,
                             model_hidden=128, model_ffn=256, train_sequence=64,
                             straggler_policy="advise")
        slow = cluster.wait_step(job, 60)["ranks"][1]
        with quota(slow["pid"], share) as group:
            self.is_possible = group is not None
            self.onset = cluster.job(job)["step"]

            def confirmed():
                return [v for v in cluster.job(job).get("stragglers", [])
                        if v["state"] == "confirmed" and v["onset_step"] >= self.onset - 8]
            with contextlib.suppress(AssertionError):
                wait_for("it is confirmed", confirmed, 60 if self.is_possible else 0)
            self.named = [(v["cause"], v["rank"]) for v in confirmed()]
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        report = cluster.json("report", job)
        self.events = [(e["kind"].removeprefix("straggler."), step_of(report, e) - self.onset, e)
                       for e in cluster.json("events", job)["events"]
                       if e["kind"].startswith("straggler.")]
        self.events = [event for event in self.events if event[1] >= 0]
        self.suspected = self.after("suspected")
        between = gaps(report)
        self.probe_s = probe_time(between, self.onset + (self.suspected or 0))
        self.usual_s = statistics.median(between.values())
        print(f"a quota of {share} cores from step {self.onset} on: suspected after "
              f"{self.suspected} steps, confirmed after {self.after('confirmed')}: {self.named}; "
              f"between steps {1e3 * self.usual_s:.1f} ms, with the probe "
              f"{1e3 * self.probe_s:.1f} ms; load {os.getloadavg()[0]:.1f}", flush=True)
        for kind, step, event in self.events:
            print(f"    {step}: {kind} {event['message']}", flush=True)

    def after(self, kind):
        return next((step for what, step, _ in self.events if what == kind), None)


# Shares of a core, micro-batches, and the most steps until it is found: goals are of steps that are
# longer than the 0.1 s after which the kernel deals a quota out anew.
QUOTAS = (("3 % of a core", 0.03, 4, FOUND_WITHIN),
          ("half a core, steps of 0.1 s", 0.5, 32, FOUND_WITHIN),
          ("half a core, steps of 0.02 s", 0.5, 4, None))


def quota_rows(seeds):
    for what, share, batches, within in QUOTAS:
        cluster = Cluster(nodes=1, slots=2).up()
        try:
            runs = [QuotaRun(cluster, share, batches) for _ in seeds]
        finally:
            cluster.close()
        if not all(run.is_possible for run in runs):
            print("no quota: groups of processes cannot be made here", flush=True)
            return
        what = f"a CPU rank under a quota, {what}"
        found = max(run.suspected or 999 for run in runs)
        row(f"{what}: found", found, "steps",
            f"the most of {len(runs)} runs; load {os.getloadavg()[0]:.1f}",
            found / (within or found), f"within {within}" if within else "reported",
            within is None or found <= within)
        right = sum(run.named == [("host", 1)] for run in runs)
        row(f"{what}: right cause and rank", right, "runs", f"of {len(runs)}", right / len(runs),
            "all", right == len(runs))
        probed = max(runs, key=lambda run: run.probe_s)
        row(f"{what}: the longest probe", probed.probe_s, "s",
            f"between other steps {1e3 * probed.usual_s:.1f} ms", probed.probe_s / PROBE_S,
            f"under {PROBE_S} s", probed.probe_s < PROBE_S)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--write-noise", action="store_true")
    options = parser.parse_args()
    if options.write_noise:
        write_noise()
        return
    seeds = range(options.seed, options.seed + options.seeds)
    for kind in KINDS:
        if options.only in ("", kind):
            sim_rows(kind, seeds)
    if options.only in ("", "quota"):
        quota_rows(seeds)


if __name__ == "__main__":
    main()
