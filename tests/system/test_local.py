"""The local cluster under several hands: runs that share it, growth, calibration, Ctrl-C."""

import os
import pwd
import signal
import sqlite3
import subprocess
import unittest

from support import BIN, SIM_JOB, ClusterTest, wait_for


class Local(ClusterTest):
    def start_run(self, *args, **changes):
        process = subprocess.Popen([BIN / "dpctl", "run", self.cluster.job_file(**changes),
                                    *map(str, args)],
                                   env=self.cluster.env, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def wait_running(self, job):
        def running():
            done = self.cluster.dpctl("status", job, check=None)
            return "RUNNING" in done.stdout
        wait_for(f"{job} runs", running)

    def test_the_first_of_two_runs_leaves_the_cluster_to_the_other(self):
        cluster = self.cluster
        cluster.prepare()
        sim = {**SIM_JOB, "parallel_pipeline": 2}
        first = self.start_run(**{**sim, "train_steps": 40})
        self.wait_running("job-1")
        second = self.start_run(**{**sim, "train_steps": 80})
        self.wait_running("job-2")
        out, errors = first.communicate(timeout=180)
        self.assertEqual(first.returncode, 0, errors)
        self.assertIn("left running: job-2 is on it", errors)
        self.assertIn("next: `dpctl timeline job-1", errors)
        out, errors = second.communicate(timeout=180)
        self.assertEqual(second.returncode, 0, errors)
        self.assertIn("job-2  small  COMPLETED after 80 of 80 steps", out)
        self.assertIn("next: `dpctl local up`, then `dpctl timeline job-2", errors)
        self.assertEqual(cluster.processes(), [])
        with sqlite3.connect(next((cluster.state / "controller").glob("*.db"))) as database:
            requests = [row[0] for row in database.execute("SELECT request_id FROM jobs")]
        database.close()
        # Under an id of their own, so that a retry after a broken connection submits nothing twice.
        self.assertEqual(len(set(requests)), 2)
        self.assertTrue(all(r.startswith("dpctl-") for r in requests), requests)

    def stopped_keepers(self):
        """A running job whose keepers are all stopped, and its controller is gone."""
        cluster = self.cluster.up()
        cluster.wait_step(cluster.submit(parallel_pipeline=4, **SIM_JOB), 2)
        keepers = cluster.processes("dp-keeper")
        self.assertEqual(len(keepers), 2)
        for pid in keepers:
            os.kill(pid, signal.SIGSTOP)
        os.kill(cluster.pid("controller"), signal.SIGKILL)
        return keepers

    def test_stopped_keepers_end_with_the_cluster(self):
        self.stopped_keepers()
        self.leaves_nothing()

    def test_keepers_without_an_agent_end_with_the_cluster_stopped_or_not(self):
        os.kill(self.stopped_keepers()[0], signal.SIGCONT)
        for node in range(self.cluster.nodes):
            os.kill(self.cluster.pid(f"node-{node}"), signal.SIGKILL)
        self.leaves_nothing()

    def test_up_does_not_wait_for_a_node_that_is_set_down(self):
        cluster = self.cluster.up()
        # Without $USER it is asked for by whom the process belongs to.
        cluster.dpctl("nodes", "down", "node-1", "--reason", "smoke", env={"USER": ""})
        cluster.down()
        cluster.up()
        states = {node["name"]: node["state"] for node in cluster.json("nodes")["nodes"]}
        self.assertEqual(states["node-1"], "DOWN")
        (entry,) = cluster.json("audit", "--object", "node-1")["entries"]
        self.assertEqual((entry["user"], entry["after"]),
                         (pwd.getpwuid(os.geteuid()).pw_name, "DOWN"))

    def test_run_uses_a_larger_cluster_and_grows_an_idle_one(self):
        cluster = self.cluster.up(nodes=3, slots=3)
        agents = cluster.processes("dp-worker")
        short = {**SIM_JOB, "train_steps": 3, "parallel_schedule": "gpipe"}
        busy = cluster.submit(parallel_pipeline=2, **SIM_JOB)
        cluster.dpctl("run", cluster.job_file(**{**short, "parallel_pipeline": 4}))
        cluster.dpctl("run", "--nodes", 2, cluster.job_file(**{**short, "parallel_pipeline": 4}))
        self.assertEqual(cluster.processes("dp-worker"), agents)
        wide = {**short, "parallel_pipeline": 2, "parallel_data": 5, "parallel_microbatches": 1,
                "train_global_batch": 5}
        done = cluster.dpctl("run", cluster.job_file(**wide), check=6)
        self.assertIn(f"{busy} is on the local cluster", done.stderr)
        self.assertIn("3 nodes with 4 slots each are needed instead of 3 nodes with 3 slots",
                      done.stderr)
        done = cluster.dpctl("run", "--slots", 3, cluster.job_file(**wide), check=7)
        self.assertIn("10 ranks", done.stderr)
        cluster.dpctl("cancel", busy)
        cluster.wait_state(busy, "CANCELLED")
        cluster.dpctl("run", cluster.job_file(**wide))
        nodes = cluster.json("nodes")["nodes"]
        self.assertEqual([n["slots"] for n in nodes], [4, 4, 4])

    def test_expert_ranks_count_when_data_is_left_to_the_planner(self):
        cluster = self.cluster
        cluster.prepare()
        done = cluster.dpctl("run", cluster.job_file(
            **{**SIM_JOB, "train_steps": 2, "parallel_pipeline": 2, "parallel_expert": 4,
               "parallel_data": None, "parallel_microbatches": 2}))
        self.assertIn("pipeline 2, expert 4, data 4", done.stdout)
        self.assertEqual(cluster.processes(), [])

    def test_interrupt_while_starting_submits_nothing(self):
        cluster = self.cluster
        cluster.calibrated = False  # starting takes a while
        run = self.start_run()
        wait_for("the start", lambda: "starting" in run.stderr.readline())
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=180)
        self.assertEqual(run.returncode, 130, errors)
        self.assertIn("note: ", errors)
        self.assertNotIn("error: ", errors)
        self.assertIn("dpctl local down", errors)
        self.assertEqual(cluster.json("jobs")["jobs"], [])
        self.leaves_nothing()

    def test_calibration_again_needs_an_idle_cluster(self):
        cluster = self.cluster.up()
        profiles = [cluster.state / f"node-{i}" / "profile.json" for i in range(2)]
        for profile in profiles:
            os.utime(profile, (1, 1))
        job = cluster.submit(**SIM_JOB)
        done = cluster.dpctl("local", "up", "--recalibrate", check=6)
        self.assertIn(f"{job} is on", done.stderr)
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        cluster.dpctl("local", "up", "--recalibrate")
        for profile in profiles:
            self.assertGreater(profile.stat().st_mtime, 1)
        self.assertEqual([n["state"] for n in cluster.json("nodes")["nodes"]], ["READY"] * 2)

    def test_a_job_that_can_never_fit_exits_with_7(self):
        cluster = self.cluster.up()
        job = cluster.job_file(model_hidden=8192, model_heads=64, model_kv_heads=64,
                               model_head_dim=128, model_expert_ffn=32768, model_experts=64)
        done = cluster.dpctl("submit", "--wait", job, check=7)
        self.assertIn("Unschedulable", done.stderr)
        cluster.dpctl("status", "-f", check=7)


if __name__ == "__main__":
    unittest.main(verbosity=2)
