"""Loads of experts: shown, placed from a file, and evened out while a job trains."""

import json
import unittest

from support import ClusterTest

# The example of deepseek-ai/EPLB's README and the placement that it prints.
LOADS = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
         [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]
PLACED = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
          [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]
JOB = {"parallel_pipeline": 1, "parallel_expert": 2, "parallel_data": 2,
       "parallel_microbatches": 4, "train_steps": 8}


def by_rank(slots, ranks):
    size = len(slots) // ranks
    return sorted(sorted(slots[r * size:(r + 1) * size]) for r in range(ranks))


class Experts(ClusterTest):
    def write(self, name, document):
        path = self.cluster.root / name
        path.write_text(json.dumps(document))
        return path

    def test_the_published_example_is_proposed_from_a_file(self):
        path = self.write("loads.json", LOADS)
        sizes = ("--ranks", 8, "--nodes", 2, "--groups", 4)
        shown = self.cluster.json("experts", path, *sizes)
        self.assertEqual(shown["schema"], "dp.experts/1")
        for layer, published in zip(shown["layers"], PLACED):
            self.assertEqual(by_rank(layer["proposed"], 8), by_rank(published, 8))
            self.assertLess(layer["proposed_rank_skew"], layer["rank_skew"])
        # What was printed is read again, with where experts lie now.
        again = self.cluster.json("experts", self.write("shown.json", shown), *sizes)
        self.assertEqual(again["layers"], shown["layers"])
        text = self.cluster.dpctl("experts", path, *sizes).stdout
        self.assertIn("12 experts on 8 ranks, 4 copies", text)
        self.assertRegex(text, r"predicted: experts take \d+% of their present time")

    def test_what_is_no_load_is_refused_with_its_place(self):
        for document, words in (([], "no list of 1 to"), ([[1, -2]], "expert 1 of layer 0"),
                                ([["a"]], "expert 0 of layer 0"), ([[]], "layer 0 has no list"),
                                ([[1, 1e308]], "expert 1 of layer 0 is no number from 0 to 1"),
                                ({"ranks": 1, "layers": [{"tokens": [1, 2], "placement": [0, 0]}]},
                                 "1 experts of layer 0 have no slot"),
                                ({"ranks": 1, "layers": [{"tokens": [1, 2],
                                                          "placement": ["a", 1]}]},
                                 "slot 0 of layer 0 holds expert -1")):
            done = self.cluster.dpctl("experts", self.write("bad.json", document), "--ranks", 1,
                                      check=3)
            self.assertIn(words, done.stderr)
        done = self.cluster.dpctl("experts", self.write("loads.json", LOADS), check=2)
        self.assertIn("give --ranks", done.stderr)

    def run_job(self, **changes):
        job = self.cluster.submit(**{**JOB, **changes})
        self.cluster.wait_state(job, "COMPLETED")
        report = self.cluster.json("report", job)
        events = self.cluster.json("events", job)["events"]
        return job, report, [e["message"] for e in events if e["kind"] == "job.experts"]

    def test_experts_move_while_a_job_trains_and_change_no_loss(self):
        def losses(report):
            return [step["loss"] for step in report["steps"]]
        self.cluster.up()
        _, still, events = self.run_job()
        self.assertEqual(events, [])
        job, moved, events = self.run_job(parallel_expert_placement="auto",
                                          parallel_rebalance_every=3)
        # Two ranks and two experts a token: no sum has another order.
        self.assertEqual(losses(moved), losses(still))
        self.assertRegex(events[0], r"^step 3: \d+ slots in \d of 3 layers got other experts")
        self.assertIn(events[-1], moved["notes"])
        shown = self.cluster.json("experts", job)
        self.assertEqual((shown["source"], shown["ranks"], shown["copies"]), (job, 2, 0))
        for layer in shown["layers"]:
            self.assertEqual(sorted(layer["placement"]), [0, 1, 2, 3])
            self.assertGreater(sum(layer["tokens"]), 0)
        self.assertTrue(any(l["placement"] != [0, 1, 2, 3] for l in shown["layers"]))
        _, advised, events = self.run_job(parallel_expert_placement="advise",
                                          parallel_rebalance_every=3)
        self.assertEqual(losses(advised), losses(still))
        self.assertRegex(events[0], r"should get other experts: .*; 0 bytes moved$")

    def test_a_checkpoint_of_experts_with_copies_is_resumed_without(self):
        self.cluster.up()
        job, _, _ = self.run_job(parallel_expert_placement="auto", parallel_rebalance_every=3,
                                 parallel_expert_copies=1)
        saved = self.cluster.json("status", job)["checkpoint"]
        again = {"train_steps": 10, "checkpoint_resume": saved}
        _, alone, _ = self.run_job(parallel_expert=1, parallel_data=1, parallel_microbatches=8,
                                   **again)
        _, copied, _ = self.run_job(parallel_expert_copies=1, **again)
        self.assertEqual(int(alone["resumed_step"]), 8)
        for one, other in zip(alone["steps"], copied["steps"]):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-5)


if __name__ == "__main__":
    unittest.main()
