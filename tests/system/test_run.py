"""The way of a first user: run, and the same by hand."""

import array
import json
import os
import re
import signal
import struct
import subprocess
import unittest

from support import BASE_JOB, BIN, SIM_JOB, ClusterTest, wait_for


class Run(ClusterTest):
    def test_run_trains_reports_and_leaves_nothing(self):
        job = self.cluster.job_file(parallel_pipeline=4, parallel_schedule="dualpipe",
                                    train_steps=12)
        done = self.cluster.dpctl("run", job, timeout=180)
        self.assertIn("COMPLETED after 12 of 12 steps", done.stdout)
        self.assertIn("unigram entropy 3.17 nats/byte", done.stdout)
        self.assertRegex(done.stdout, r"held out")
        self.assertRegex(done.stdout, r"predicted .* measured")
        self.assertIn("step 12/12", done.stderr)
        self.assertEqual(self.cluster.processes(), [])
        self.assertEqual(self.cluster.sockets_in_state(), [])

    def test_by_hand_each_command_shows_the_job(self):
        self.cluster.calibrated = False  # so that the nodes do it
        cluster = self.cluster.up()
        cluster.up()  # a second up changes nothing
        self.assertEqual(len(cluster.processes("dp-worker")), 2)
        nodes = cluster.json("nodes")["nodes"]
        self.assertEqual([n["state"] for n in nodes], ["READY", "READY"])
        self.assertTrue(all(n["calibrated"] for n in nodes))
        job = cluster.submit(train_steps=6, parallel_schedule="1f1b")
        done = cluster.wait_state(job, "COMPLETED")
        self.assertEqual(done["step"], 6)
        self.assertIn(job, cluster.dpctl("jobs").stdout)
        report = cluster.json("report", job)
        self.assertGreater(report["first_loss"], report["last_loss"])
        self.assertAlmostEqual(report["unigram_entropy"], 3.170, places=3)
        self.assertEqual(len(report["ranks"]), 2)
        for rank in report["ranks"]:
            self.assertEqual(rank["measured_peak_chunks"], rank["predicted_peak_chunks"])
        trace = json.loads(cluster.dpctl("timeline", job).stdout)
        names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
        self.assertTrue(any("measured" in n for n in names))
        self.assertTrue(any("predicted" in n for n in names))
        self.assertRegex(cluster.dpctl("logs", job).stdout, r"rank 1  ")
        self.assertRegex(cluster.dpctl("top", job, "--once").stdout, r"RANK +NODE +STEP +BUSY")
        self.assertIn("COMPLETED", cluster.dpctl("events", job).stdout)
        self.leaves_no_rank()
        self.leaves_nothing()

    def test_a_file_of_tokens_is_trained_on_evaluated_and_its_loads_are_shown(self):
        cluster = self.cluster.up()
        tokens = array.array("H", (i * i % 97 for i in range(9000)))
        path = cluster.root / "part.of-tokens"  # llm.c's header says so, not the name
        path.write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + tokens.tobytes())
        job = cluster.submit(data_path=str(path), model_vocabulary=256, model_bias_update=0.001,
                             train_steps=6, train_evaluate_every=2, parallel_data=2,
                             parallel_expert=2, parallel_microbatches=4, parallel_shard="zero1",
                             optimizer_schedule="wsd", optimizer_moments="bf16")
        done = cluster.wait_state(job, "COMPLETED")
        self.assertTrue(done["holdout_known"])
        self.assertRegex(cluster.dpctl("status", job).stdout, r"held out \d")
        report = cluster.json("report", job)
        self.assertEqual(report["corpus_bytes"], 18000)
        self.assertTrue(report["corpus_of_tokens"])
        for rank in report["ranks"]:
            self.assertGreaterEqual(rank["load"]["skew"], 1)
            self.assertIn(rank["load"]["layer"], (1, 2, 3))
        shown = cluster.dpctl("report", job).stdout
        self.assertIn("nats/token", shown)
        self.assertRegex(shown, r"RANK +LAYER +EXPERT +FULLEST +RANK LOAD")
        self.assertRegex(cluster.dpctl("top", job, "--once").stdout, r"SKEW\n")

    def test_models_with_latent_attention_and_tied_ends_are_planned_and_trained(self):
        cluster = self.cluster.up()
        shape = {f"model_{key}": None for key in BASE_JOB["model"]}  # the preset's own
        for preset, more in (("tiny-mla", {"parallel_data": 2, "parallel_expert": 2,
                                           "parallel_microbatches": 4}),
                             ("tiny-tied", {"parallel_schedule": "1f1b"})):
            job = cluster.submit(**shape, model_preset=preset, **more)
            self.assertEqual(cluster.wait_state(job, "COMPLETED")["step"], 4)
            report = cluster.json("report", job)
            self.assertGreater(report["first_loss"], report["last_loss"])

    def test_a_corpus_that_is_damaged_fails_the_job_with_file_and_offset(self):
        cluster = self.cluster.up()
        path = cluster.root / "torn.bin"
        path.write_bytes(struct.pack("<256i", 20240520, 1, 500, *[0] * 253) + b"\0" * 999)
        job = cluster.submit(data_path=str(path))
        self.assertRegex(cluster.wait_state(job, "FAILED")["message"],
                         r"torn\.bin, offset 8: the header says 500 tokens")

    def test_a_searched_order_runs_as_planned(self):
        cluster = self.cluster.up()
        plan = cluster.json("plan", cluster.job_file(parallel_schedule="auto",
                                                     parallel_pipeline=4))
        self.assertEqual(plan["chosen"]["schedule"], "auto")
        self.assertIn("auto: stages placed", " ".join(plan["explanation"]))
        job = cluster.submit(train_steps=4, parallel_schedule="auto", parallel_pipeline=4)
        self.assertEqual(cluster.wait_state(job, "COMPLETED")["step"], 4)
        report = cluster.json("report", job)
        self.assertGreater(report["first_loss"], report["last_loss"])
        self.assertEqual(len(report["ranks"]), 4)
        for rank in report["ranks"]:
            self.assertEqual(rank["measured_peak_chunks"], rank["predicted_peak_chunks"])

    def test_submit_wait_mirrors_the_job(self):
        cluster = self.cluster.up()
        cluster.dpctl("submit", "--wait", "-q", cluster.job_file())
        same = [cluster.dpctl("submit", "-q", "--request-id", "once", cluster.job_file()).stdout
                for _ in range(2)]
        self.assertEqual(same[0], same[1])
        cluster.dpctl("submit", "--request-id", "once", cluster.job_file(train_steps=5), check=6)

    def test_a_pending_job_says_what_it_waits_for(self):
        cluster = self.cluster.up()
        first = cluster.submit(parallel_pipeline=4, **SIM_JOB)
        cluster.wait_state(first, "RUNNING")
        second = cluster.submit(parallel_pipeline=2, **SIM_JOB)
        job = wait_for("a reason", lambda: (lambda j: j if j["reason"] else None)(
            cluster.job(second)))
        self.assertEqual(job["state"], "JOB_QUEUED")
        self.assertRegex(job["message"], r"2.*0")
        cluster.dpctl("cancel", first)
        cluster.wait_state(second, "RUNNING")

    def test_interrupt_while_following_leaves_the_job_running(self):
        cluster = self.cluster.up()
        follow = subprocess.Popen([BIN / "dpctl", "submit", "--wait",
                                   cluster.job_file(**SIM_JOB)],
                                  env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True)
        job = re.search(r"job-\d+", follow.stdout.readline()).group()
        cluster.wait_step(job, 1)
        follow.send_signal(signal.SIGINT)
        _, errors = follow.communicate(timeout=180)
        self.assertEqual(follow.returncode, 130)
        self.assertIn(f"dpctl status -f {job}", errors)
        step = cluster.job(job)["step"]
        cluster.wait_step(job, step + 2)
        self.assertEqual(cluster.job(job)["state"], "JOB_RUNNING")

    def test_utilisation_is_live_per_rank(self):
        cluster = self.cluster.up()
        job = cluster.submit(parallel_pipeline=4, parallel_schedule="dualpipe", **SIM_JOB)
        cluster.wait_step(job, 3)

        def all_ranks_seen():
            ranks = cluster.job(job)["ranks"]
            return len(ranks) == 4 and all((r.get("utilisation") or {}).get("period_ns", 0) > 0
                                           for r in ranks) and ranks
        for rank in wait_for("utilisation of four ranks", all_ranks_seen):
            use = rank["utilisation"]
            busy = sum(use[k] for k in ("forward_ns", "backward_ns", "weight_ns", "pair_ns"))
            self.assertGreater(busy, 0)
            self.assertLessEqual(busy, use["period_ns"] * 1.2)
            self.assertGreaterEqual(use["peak_chunks"], use["live_chunks"])

    def test_a_checkpoint_on_demand_can_be_resumed(self):
        cluster = self.cluster.up()
        job = cluster.submit(train_steps=400)
        cluster.wait_step(job, 2)
        written = cluster.json("checkpoint", job)
        self.assertTrue(os.path.isdir(written["path"]))
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        again = cluster.submit(train_steps=written["step"] + 3, checkpoint_resume=written["path"],
                               parallel_schedule="1f1b")
        done = cluster.wait_state(again, "COMPLETED")
        self.assertEqual(done["step"], written["step"] + 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
