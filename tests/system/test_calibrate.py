"""Calibration with real daemons: nodes measured when asked, traces read, runs that teach."""

import gzip
import json
import pathlib
import signal
import subprocess
import sys
import unittest

import support

sys.path.insert(0, str(pathlib.Path(support.SOURCE) / "tests" / "calibrate"))
import made_trace  # noqa: E402

# The rules under which a run must not teach; any of them may hold on a busy machine.
REASONS = ("not steady", "had a core for", "shared cores", "which no correction explains")
PHASES = ("attn(F)", "dispatch(F)", "mlp(F)", "combine(F)", "combine(B)", "mlp(B)", "dispatch(B)",
          "mlp(W)", "attn(B)", "attn(W)")


def phase_rows():
    """One layer after the other, each phase 1000 us of which it is busy 900."""
    rows = []
    for number, phase in enumerate(PHASES):
        exchange = phase in made_trace.DATA
        rows.append({"phase": phase, "start": 1000.0 * number, "end": 1000.0 * number + 1000,
                     "compute": 0 if exchange else 900, "beside": 0,
                     "comm": 900 if exchange else 0, "data": 600 if exchange else 0})
    return rows


class Nodes(support.ClusterTest):
    nodes, slots = 2, 2

    def test_a_node_is_measured_and_its_history_kept(self):
        self.cluster.up()
        done = self.cluster.dpctl("calibrate", "node-0")
        self.assertIn("node-0: measuring", done.stderr)
        self.assertIn("all-to-all of 4", done.stdout)
        self.assertIn("products", done.stdout)
        shown = self.cluster.json("calibrate", "--show", "node-0")
        self.assertEqual([row["source"] for row in shown["profiles"]], ["calibration"] * 2)
        newest = json.loads(shown["profile_json"]) if isinstance(shown["profile_json"], str) \
            else shown["profile_json"]
        self.assertEqual([point["ranks"] for point in newest["exchanges"]][:2], [2, 4])
        # Across a restart of everything.
        self.cluster.down()
        self.cluster.up()
        again = self.cluster.json("calibrate", "--show", "node-0")
        self.assertEqual(again["profiles"], shown["profiles"])

    def test_all_nodes_in_turn_and_a_file(self):
        self.cluster.up()
        path = self.cluster.root / "profile.json"
        answer = self.cluster.json("calibrate", "--all", "--out", path)
        self.assertEqual([(node["node"], node["outcome"]) for node in answer["nodes"]],
                         [("node-0", "measured"), ("node-1", "measured")])
        self.assertEqual(json.loads(path.read_text()), answer["nodes"][-1]["profile"])

    def test_a_node_whose_machine_runs_ranks_is_refused_with_the_job(self):
        self.cluster.up()
        job = self.cluster.submit(**support.SIM_JOB)
        self.cluster.wait_state(job, "RUNNING")
        refused = self.cluster.dpctl("calibrate", "node-1", check=6)
        self.assertIn(f"ranks of {job} run on", refused.stderr)
        waiting = subprocess.Popen([support.BIN / "dpctl", "calibrate", "--wait", "node-1"],
                                   env=self.cluster.env, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.assertIn(f"ranks of {job} run on", waiting.stderr.readline())
        self.cluster.dpctl("cancel", job)
        out, err = waiting.communicate(timeout=support.DEADLINE_S)
        self.assertEqual(waiting.returncode, 0, err)
        self.assertIn("products", out)

    def test_ctrl_c_ends_the_measurement_and_keeps_the_profile(self):
        self.cluster.up()
        before = self.cluster.json("calibrate", "--show", "node-0")
        asked = subprocess.Popen([support.BIN / "dpctl", "calibrate", "node-0"],
                                 env=self.cluster.env, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.assertIn("measuring", asked.stderr.readline())
        asked.send_signal(signal.SIGINT)
        _, err = asked.communicate(timeout=support.DEADLINE_S)
        self.assertEqual(asked.returncode, 130)
        self.assertIn("keeps the figures it had", err)
        support.wait_for("the node is free again",
                         lambda: self.cluster.json("nodes")["nodes"][0]["state"] == "READY")
        self.leaves_no_rank()
        self.assertEqual(self.cluster.json("calibrate", "--show", "node-0"), before)

    def test_names_that_are_not_there_are_said(self):
        self.cluster.up()
        self.assertIn("no node \"other\"", self.cluster.dpctl("calibrate", "other", check=4).stderr)
        self.assertIn("no node \"other\"",
                      self.cluster.dpctl("calibrate", "--show", "other", check=4).stderr)
        self.cluster.dpctl("calibrate", check=2)
        self.cluster.dpctl("calibrate", "node-0", "--all", check=2)


class Learning(support.ClusterTest):
    nodes, slots = 1, 2

    def teach(self):
        """Runs of one job until one taught something; the report of it."""
        for _ in range(10):
            job = self.cluster.submit(train_steps=60)
            self.cluster.wait_state(job, "COMPLETED")
            report = self.cluster.json("report", job)
            lesson = report["lesson"]
            self.assertGreater(report["predicted_step_s"], 0)
            self.assertIn("compute", [part["part"] for part in lesson["parts"]])
            if lesson["learned"]:
                return report
            self.assertTrue(any(reason in lesson["reason"] for reason in REASONS), lesson)
            self.assertIn("nothing was learned", self.cluster.dpctl("report", job).stdout)
        return None

    def test_the_second_plan_cites_the_first_run(self):
        self.cluster.up()
        report = self.teach()
        if report is None:
            self.skipTest("the machine is too busy: no run was steady, and each said so")
        job = report["job"]["id"]
        text = self.cluster.dpctl("report", job).stdout
        self.assertIn("PART", text)
        self.assertIn("learned: later plans on its nodes use", text)
        learned = report["lesson"]["correction"]
        second = self.cluster.submit(train_steps=60)
        self.cluster.wait_state(second, "COMPLETED")
        plan = self.cluster.json("status", second)["plan"]
        self.assertIn(f"corrected by {job}: {learned}", plan["provenance"].replace("\n", " "))
        shown = self.cluster.dpctl("calibrate", "--show", "node-0").stdout
        self.assertIn(learned, shown)

    def test_no_learn_and_sim_teach_nothing(self):
        self.cluster.up()
        path = self.cluster.job_file(train_steps=20)
        job = self.cluster.dpctl("submit", "-q", "--no-learn", path).stdout.strip()
        self.cluster.wait_state(job, "COMPLETED")
        self.assertIn("switched off", self.cluster.json("report", job)["lesson"]["reason"])
        sim = dict(support.SIM_JOB, train_steps=20)
        job = self.cluster.submit(**sim)
        self.cluster.wait_state(job, "COMPLETED")
        self.assertIn("sim device", self.cluster.json("report", job)["lesson"]["reason"])
        rows = self.cluster.json("calibrate", "--show", "node-0")["profiles"]
        self.assertEqual([row["source"] for row in rows], ["calibration"])


class Alone(unittest.TestCase):
    """Without a controller."""

    def setUp(self):
        self.cluster = support.Cluster()
        self.addCleanup(self.cluster.close)

    def test_this_machine_is_measured_for_plan(self):
        done = self.cluster.dpctl("calibrate", "--local")
        saved = self.cluster.root / "dp" / "profile.json"
        self.assertIn("dpctl plan uses it", done.stderr)
        profile = json.loads(saved.read_text())
        plan = self.cluster.json("plan", self.cluster.job_file())
        self.assertIn(profile["provenance"], json.dumps(plan))
        again = self.cluster.json("calibrate", "--local")
        figures = {change["figure"]: change for change in again["changes"]}
        self.assertAlmostEqual(figures["products"]["before"] * 1e9, profile["gemm_flops_per_s"],
                               delta=1e3)

    def test_a_trace_becomes_a_profile_that_plan_takes(self):
        trace = self.cluster.root / "train.json.gz"
        trace.write_bytes(gzip.compress(made_trace.kineto(phase_rows()).encode()))
        out = self.cluster.root / "mine.json"
        fit = self.cluster.json("calibrate", "--from-trace", trace, "--base", "h800", "--model",
                                "deepseek-v3", "--seq-len", "4096", "--expert", "64", "--out", out)
        self.assertEqual(fit["schema"], "dp.trace_fit/1")
        self.assertAlmostEqual(fit["layer"]["forward_s"], 1.8e-3, delta=2e-6)
        self.assertAlmostEqual(fit["layer"]["forward_data_s"], 1.2e-3, delta=2e-6)
        self.assertEqual(fit["exchange_units"], 20)
        plan = self.cluster.dpctl("plan", "--model", "deepseek-v3", "--gpu", "h800", "--gpus",
                                  "1024", "--set", "expert=64", "--profile", out, timeout=180)
        self.assertIn("fitted on a trace of 1 layers of deepseek-v3", plan.stdout)

    def test_bad_traces_are_refused_with_their_byte(self):
        text = made_trace.kineto(phase_rows())
        cases = [(text[:1000], "byte 1000: the file ends within a value"),
                 (text.replace('"dur": 900.0', '"dur": NaN', 1), "a number that is not finite"),
                 ("{}", "no kernel and no operator"), ("", "no kernel and no operator")]
        for wrong, message in cases:
            path = self.cluster.root / "wrong.json"
            path.write_text(wrong)
            self.assertIn(message,
                          self.cluster.dpctl("calibrate", "--from-trace", path, check=3).stderr)
        cut = self.cluster.root / "cut.json.gz"
        cut.write_bytes(gzip.compress(text.encode())[:500])
        self.assertIn("cut off", self.cluster.dpctl("calibrate", "--from-trace", cut,
                                                    check=3).stderr)
        self.cluster.dpctl("calibrate", "--from-trace", self.cluster.root / "none", check=4)

    def test_what_only_goes_together_is_a_usage_error(self):
        for arguments in (["--model", "deepseek-v3"], ["--from-trace", "x", "--model", "y"],
                          ["--from-trace", "x", "--out", "y"], ["--local", "--all"]):
            self.cluster.dpctl("calibrate", *arguments, check=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
