"""dpctl whatif: what a slow or lost rank costs, every answer to it, and the best one."""

import json
import unittest

from support import SIM_JOB, SOURCE, ClusterTest

TINY = SOURCE / "examples" / "tiny-moe.toml"
SIM = SOURCE / "examples" / "deepseek-v3-sim.toml"
KINDS = ["ignore", "shift-microbatches", "move-layers", "change-order", "swap-ranks", "spare",
         "experts", "combined", "restart", "grow"]


class WhatIf(ClusterTest):
    nodes, slots = 2, 3

    def ask(self, *args, **kwargs):
        return self.cluster.json("whatif", *args, **kwargs)

    def holds_the_contract(self, answer):
        self.assertEqual(answer["schema"], "dp.whatif/1")
        self.assertEqual([a["answer"] for a in answer["answers"]], KINDS)
        chosen = [a for a in answer["answers"] if a["chosen"]]
        self.assertEqual([a["answer"] for a in chosen], [answer["best"]])
        self.assertAlmostEqual(answer["slower_share"],
                               answer["step_now_s"] / answer["step_healthy_s"] - 1)
        for one in answer["answers"]:
            self.assertTrue(one["reason"], one["answer"])
            self.assertAlmostEqual(one["step_before_s"], answer["step_now_s"])
            if one["possible"]:
                self.assertAlmostEqual(one["gain_s"], one["step_before_s"] - one["step_after_s"])
                self.assertLessEqual(one["net_gain_s"], chosen[0]["net_gain_s"] + 1e-9)
        if answer["plan"] is not None:
            self.assertAlmostEqual(answer["plan"]["chosen"]["step_time_s"],
                                   chosen[0]["step_after_s"])

    def test_a_job_file_is_asked_about_without_a_controller(self):
        answer = self.ask(TINY, "--slow", "rank=1:2", "--remaining", 1000)
        self.holds_the_contract(answer)
        self.assertGreater(answer["slower_share"], 0.3)
        self.assertNotEqual(answer["best"], "ignore")
        plan = self.cluster.root / "plan.json"
        plan.write_text(json.dumps(self.cluster.json("plan", TINY)))
        again = self.ask(TINY, "--slow", "rank=1:2", "--remaining", 1000, "--plan", plan)
        self.assertEqual([a["action"] for a in again["answers"]],
                         [a["action"] for a in answer["answers"]])
        self.assertAlmostEqual(again["step_now_s"], answer["step_now_s"], places=6)

    def test_what_is_slow_in_several_places_is_slower_than_in_one(self):
        def share(*args):
            return self.ask(SIM, *args)["slower_share"]
        one, two = share("--slow", "rank=3:1.5"), share("--slow", "rank=3:1.5,rank=9:2")
        self.assertGreater(two, one)
        self.assertAlmostEqual(share("--slow", "rank=3:1.5", "--slow", "rank=9:2"), two)
        self.assertAlmostEqual(share("--slow", "rank=3:1"), 0)
        self.assertGreater(share("--slow-link", "2-3:10000x"), 0)

    def test_the_loss_of_a_node_says_what_survives_and_what_runs_then(self):
        answer = self.ask(TINY, "--lose", "node=node-1")
        self.assertEqual((answer["recovery"], answer["survives"]), ("fewer", True))
        self.assertIn("any one node", answer["plan_survival"])
        self.assertEqual({rank["node"] for rank in answer["plan"]["ranks"]}, {"node-0"})
        # Without a mirror or a replica every stage is on one rank.
        answer = self.ask(TINY, "--lose", "rank=2", "--set", "schedule=1f1b")
        self.assertEqual((answer["recovery"], answer["survives"]), ("checkpoint", False))
        self.assertIn("no other copy", answer["reason"])
        self.assertIn("any one node", self.cluster.json("plan", TINY)["survival"]["text"])

    def test_a_job_that_runs_is_asked_about_by_its_id(self):
        self.cluster.up()
        job = self.cluster.submit(**{**SIM_JOB, "parallel_pipeline": 4,
                                     "parallel_schedule": "dualpipe", "parallel_microbatches": 8,
                                     "parallel_micro_batch_size": 1, "train_global_batch": 8})
        running = self.cluster.wait_step(job, 3)
        answer = self.ask(job, "--slow", "rank=1:2")
        self.holds_the_contract(answer)
        self.assertEqual(answer["job"], job)
        self.assertLess(abs(answer["step_healthy_s"] / running["step_s"] - 1), 0.5)
        spare = next(a for a in answer["answers"] if a["answer"] == "spare")
        self.assertTrue(spare["possible"])  # two of six slots are free
        # The spare may stand on the other node: hops take another time.
        self.assertLess(abs(spare["step_after_s"] / answer["step_healthy_s"] - 1), 0.02)
        answer = self.ask(job, "--lose", "rank=0")
        self.assertEqual(answer["recovery"], "spares")
        self.assertEqual(len(answer["plan"]["ranks"]), 4)

    def test_what_makes_no_sense_is_refused(self):
        for args, code, words in (
                ((TINY, "--slow", "rank=9:2"), 3, "ranks 0 to 3"),
                ((TINY, "--slow", "rank=1"), 3, "factor"),
                ((TINY, "--slow", "rank=1:0"), 3, "factor"),
                ((TINY, "--slow", "stage=1:2"), 3, "rank=NUMBER"),
                ((TINY, "--slow-link", "1-1:2"), 3, "two of the ranks"),
                ((TINY, "--lose", "node=moon"), 3, "moon"),
                ((TINY,), 2, "say what is slow"),
                ((TINY, "--slow", "rank=1:2", "--lose", "rank=1"), 2, "say what is slow"),
                (("--slow", "rank=1:2"), 2, "which job"),
                (("nowhere.toml", "--slow", "rank=1:2"), 4, "nowhere.toml"),
                ((TINY, "--slow", "rank=1:2", "--plan", TINY), 3, "")):
            done = self.cluster.dpctl("whatif", *args, check=code)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
