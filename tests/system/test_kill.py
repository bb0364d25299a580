"""Processes that die by kill -9, and jobs cancelled at any moment: named, and nothing is left."""

import os
import pathlib
import random
import signal
import time
import unittest

from support import SIM_JOB, ClusterTest, wait_for


class Kill(ClusterTest):
    def start(self, **changes):
        self.cluster.up()
        job = self.cluster.submit(parallel_pipeline=4, parallel_schedule="dualpipe",
                                  **{"recovery_policy": "off", **SIM_JOB, **changes})
        self.cluster.wait_step(job, 2)
        return job

    def fails_naming(self, job, *words):
        done = self.cluster.dpctl("status", "-f", job, check=9)
        for word in words:
            self.assertIn(word, done.stderr + done.stdout)
        self.leaves_no_rank()
        self.leaves_nothing()

    def test_a_killed_controller_is_restarted_and_training_was_untouched(self):
        cluster, job = self.cluster, self.start()
        ranks = cluster.processes("dp-rank")
        step = cluster.job(job)["step"]
        os.kill(cluster.pid("controller"), signal.SIGKILL)
        gone = cluster.dpctl("status", job, check=8).stderr
        self.assertIn("controller is gone", gone)
        self.assertIn("dpctl local up", gone)
        cluster.up()
        started = time.monotonic()
        after = wait_for("a right status", lambda: (
            lambda j: j if j["state"] == "JOB_RUNNING" and j["step"] > step else None)(
                cluster.job(job)))
        print(f"a right status {time.monotonic() - started:.1f} s after the restart")
        self.assertEqual(cluster.processes("dp-rank"), ranks)
        self.assertEqual(after["attempt"], 1)
        cluster.wait_step(job, after["step"] + 3)
        # No step is missing from the history, though nobody listened for a while.
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        steps = [s["step"] for s in cluster.json("report", job)["steps"]]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.leaves_nothing()

    def test_a_killed_rank_fails_the_job_with_rank_node_and_signal(self):
        job = self.start()
        victim = self.cluster.job(job)["ranks"][2]
        os.kill(victim["pid"], signal.SIGKILL)
        self.fails_naming(job, "rank 2", victim["node"], "SIGKILL")

    def test_ranks_of_a_machine_share_memory_and_a_killed_one_leaves_none(self):
        def mappings(pid):
            lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
            return {(line.split()[3], line.split()[4]) for line in lines if "/memfd:dp-" in line}

        def local_sockets():
            lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
            return {tuple(line.split()[-2:]) for line in lines if "@dp-rank-" in line}

        def inodes(pid):
            links = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
            return {link[8:-1] for link in links if link.startswith("socket:[")}

        # Other jobs may come and go on this machine meanwhile.
        def files():
            return {name for name in os.listdir("/dev/shm") if "dp-" in name}

        before = files()
        job = self.start(resources_device="cpu")
        pids = [rank["pid"] for rank in self.cluster.job(job)["ranks"]]
        # Each has memory of every other one: the device and the inode are the same.
        for pid in pids[1:]:
            self.assertTrue(mappings(pids[0]) & mappings(pid), msg=f"ranks {pids[0]} and {pid}")
        own = set().union(*(inodes(pid) for pid in pids))
        sockets = {name for inode, name in local_sockets() if inode in own}
        self.assertTrue(sockets)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.fails_naming(job, "SIGKILL")
        self.assertLessEqual(files(), before)
        self.assertFalse(sockets & {name for _, name in local_sockets()})

    def test_a_killed_training_rank_is_named_not_the_peers_that_noticed(self):
        job = self.start(resources_device="cpu")
        victim = self.cluster.job(job)["ranks"][1]
        os.kill(victim["pid"], signal.SIGABRT)
        self.fails_naming(job, "rank 1", victim["node"], "SIGABRT")

    def test_a_killed_agent_fails_the_job_when_it_does_not_come_back(self):
        job = self.start()
        os.kill(self.cluster.pid("node-1"), signal.SIGKILL)
        wait_for("the node is LATE", lambda: any(
            n["state"] in ("LATE", "LOST") for n in self.cluster.json("nodes")["nodes"]))
        self.fails_naming(job, "node-1")

    def test_a_killed_agent_that_comes_back_finds_its_ranks(self):
        cluster, job = self.cluster, self.start()
        ranks = cluster.processes("dp-rank")
        os.kill(cluster.pid("node-1"), signal.SIGKILL)
        cluster.up()
        step = cluster.job(job)["step"]
        cluster.wait_step(job, step + 5)
        self.assertEqual(cluster.processes("dp-rank"), ranks)
        self.assertEqual(cluster.job(job)["state"], "JOB_RUNNING")

    def test_a_killed_keeper_takes_its_ranks_along_and_is_named(self):
        job = self.start()
        os.kill(self.cluster.processes("dp-keeper")[0], signal.SIGKILL)
        self.fails_naming(job, "keeper", "node-", "SIGKILL")

    def test_cancel_at_any_moment_leaves_nothing(self):
        cluster = self.cluster.up()
        rng = random.Random(int(os.environ.get("DP_SEED", "7")))
        for round_number in range(int(os.environ.get("DP_CANCEL_RUNS", "6"))):
            job = cluster.submit(parallel_pipeline=4, parallel_schedule="dualpipe",
                                 **{**SIM_JOB, "train_steps": 100000})
            until = time.monotonic() + rng.random() * 0.8
            wait_for("the moment", lambda: time.monotonic() >= until)
            cluster.dpctl("cancel", job)
            done = cluster.wait_state(job, "CANCELLED")
            self.assertIn("cancel", done["message"], msg=f"round {round_number}")
            self.leaves_no_rank()
            used = sum(n["slots_used"] for n in cluster.json("nodes")["nodes"])
            self.assertEqual(used, 0)
        self.leaves_nothing()

    def test_a_loss_that_is_not_a_number_names_rank_and_action(self):
        cluster = self.cluster.up()
        job = cluster.submit(optimizer_lr=1000.0, optimizer_lr_min=1000.0,
                             optimizer_weight_decay=1.0, train_steps=50)
        done = cluster.dpctl("status", "-f", job, check=9)
        self.assertRegex(done.stderr, r"rank \d+")
        self.assertRegex(done.stderr, r"action [FBI]\w*\(?\d+@\d+")
        self.assertEqual(cluster.job(job)["reason"], "NotFinite")
        self.leaves_no_rank()

    def test_local_down_in_mid_run_cancels_and_leaves_nothing(self):
        self.start()
        self.leaves_nothing()
        self.cluster.up()
        self.assertEqual(self.cluster.json("jobs")["jobs"][0]["state"], "JOB_CANCELLED")


if __name__ == "__main__":
    unittest.main(verbosity=2)
