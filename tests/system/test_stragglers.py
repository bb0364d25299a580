"""What slows a job down is found by real daemons, with its cause: ranks, links and hosts of the sim
device that are not as planned, and a rank of the cpu device under a quota of the kernel's."""

import os
import random
import unittest

from quota import quota
from support import SIM_JOB, ClusterTest, wait_for

FOUND_WITHIN = 12  # steps
SEED = int(os.environ.get("DP_SEED", "1"))

# Four stages, two replicas: eight ranks. Their noise is wider than that of recorded jobs.
JOB = {**SIM_JOB, "train_steps": 70, "model_layers": 8, "parallel_pipeline": 4, "parallel_data": 2,
       "train_global_batch": 16, "parallel_microbatches": 8, "parallel_schedule": "1f1b",
       "sim_noise": 0.05, "sim_hop_s": 0.002}


def alarms(job):
    return [v for v in job.get("stragglers", []) if v["state"] in ("suspected", "confirmed")]


class Stragglers(ClusterTest):
    nodes, slots = 2, 4

    def setUp(self):
        super().setUp()
        self.cluster.up()

    def events(self, job_id):
        return [(e["kind"], e["message"]) for e in self.cluster.json("events", job_id)["events"]
                if e["kind"].startswith("straggler.")]

    def run_job(self, **changes):
        job_id = self.cluster.submit(**{**JOB, **changes})
        return self.cluster.wait_state(job_id, "COMPLETED", "FAILED")

    def check(self, job, onset, cause, *ranks):
        """One verdict, of these ranks, in time; and the probe agrees."""
        self.assertEqual(job["state"], "JOB_COMPLETED", job)
        found = alarms(job)
        self.assertEqual([v["cause"] for v in found], [cause], found)
        verdict = found[0]
        self.assertEqual(verdict["state"], "confirmed", verdict)
        named = {verdict["rank"]} | ({verdict["peer"]} if verdict["has_peer"] else set())
        self.assertEqual(named, set(ranks), verdict)
        self.assertLessEqual(abs(verdict["onset_step"] - onset), FOUND_WITHIN, verdict)
        kinds = [kind for kind, _ in self.events(job["id"])]
        self.assertEqual(kinds, ["straggler.suspected", "straggler.confirmed"])
        # Suspected before the probe could answer: its step is at most a few later.
        self.assertLessEqual(verdict["step"], onset + FOUND_WITHIN + 2, verdict)

    def test_one_of_eight_ranks_that_becomes_slow_is_found(self):
        choice = random.Random(SEED)
        for factor in (1.5, 3):
            rank, onset = choice.randrange(8), choice.randrange(20, 40)
            with self.subTest(factor=factor, rank=rank, onset=onset):
                job = self.run_job(sim_slow=[f"rank={rank}:{factor}@{onset}"])
                self.check(job, onset, "device", rank)
                self.assertAlmostEqual(alarms(job)[0]["slowdown"], factor, delta=0.15 * factor)

    def test_a_link_that_becomes_slow_is_found(self):
        choice = random.Random(SEED)
        low, onset = choice.choice((0, 1, 2, 4, 5, 6)), choice.randrange(20, 40)
        job = self.run_job(sim_slow_link=[f"{low}-{low + 1}:3@{onset}"])
        self.check(job, onset, "link", low, low + 1)

    def test_a_host_that_starts_its_actions_late_is_found(self):
        choice = random.Random(SEED)
        rank, onset = choice.randrange(8), choice.randrange(20, 40)
        job = self.run_job(sim_gap=[f"rank={rank}:0.004@{onset}"])
        self.check(job, onset, "host", rank)

    def test_a_rank_of_a_bidirectional_pipeline_is_told_from_its_mirror(self):
        job = self.run_job(parallel_pipeline=8, parallel_data=1, parallel_microbatches=16,
                           parallel_schedule="dualpipe", sim_slow=["rank=6:1.5@25"])
        self.check(job, 25, "device", 6)

    def test_a_rank_that_recovers_is_no_longer_slow(self):
        job = self.run_job(sim_slow=["rank=3:2@22-40"])
        self.assertEqual(job["state"], "JOB_COMPLETED", job)
        self.assertEqual(alarms(job), [])
        self.assertEqual([v["state"] for v in job["stragglers"]], ["healthy"])
        self.assertEqual([kind for kind, _ in self.events(job["id"])][-1], "straggler.recovered")

    def test_nobody_is_suspected_in_a_healthy_job_and_scores_are_shown(self):
        job_id = self.cluster.submit(**{**JOB, "train_steps": 100000})
        job = self.cluster.wait_step(job_id, 60)
        self.assertEqual(alarms(job), [])
        for rank in job["ranks"]:
            self.assertAlmostEqual(rank["score"]["relative"], 1, delta=0.1)
            self.assertAlmostEqual(rank["score"]["individual"], 1, delta=0.1)
            self.assertEqual({k["kind"] for k in rank["score"]["kinds"]} - {"optimizer"},
                             {"F", "B"})
        self.cluster.dpctl("cancel", job_id)
        self.cluster.wait_state(job_id, "CANCELLED")
        self.assertEqual(self.events(job_id), [])

    def test_policy_off_asks_for_no_probe(self):
        job = self.run_job(sim_slow=["rank=1:3@25"], straggler_policy="off")
        self.assertEqual([kind for kind, _ in self.events(job["id"])], ["straggler.suspected"])


class Quota(ClusterTest):
    nodes, slots = 1, 2

    def test_a_rank_whose_cores_are_taken_away_is_found_as_the_hosts_fault(self):
        self.cluster.up()
        job_id = self.cluster.submit(train_steps=1000000, parallel_pipeline=1, parallel_data=2,
                                     parallel_microbatches=4, train_global_batch=8,
                                     model_hidden=128, model_ffn=256, train_sequence=64)
        job = self.cluster.wait_step(job_id, 40)
        slow = job["ranks"][1]
        with quota(slow["pid"], 0.03) as group:
            if group is None:
                self.skipTest("groups with a quota of cores cannot be made here")
            onset = self.cluster.job(job_id)["step"]

            def found():
                # The first suspicion may come before its steps without a core are the most; the
                # probe that follows settles the cause.
                return [v for v in alarms(self.cluster.job(job_id))
                        if v["step"] >= onset and v["rank"] == 1 and v["cause"] == "host"]

            verdict = wait_for("the host of rank 1 is found", found, 60)[0]
            print(f"quota from step {onset} on: {verdict['state']} at {verdict['step']}, "
                  f"{verdict['message']}")
        wait_for("it has recovered",
                 lambda: not [v for v in alarms(self.cluster.job(job_id)) if v["rank"] == 1])
        self.cluster.dpctl("cancel", job_id)
        self.cluster.wait_state(job_id, "CANCELLED")


if __name__ == "__main__":
    unittest.main(verbosity=2)
