"""The queue with real daemons: attempts that begin again, priorities, drains, quotas, plans compared."""

import json
import os
import signal
import unittest

from support import SIM_JOB, ClusterTest, wait_for

LONG = {"train_steps": 100000, "checkpoint_every_steps": 10, "recovery_policy": "checkpoint",
        "retry_backoff_s": 1, "straggler_policy": "off"}


class Queue(ClusterTest):
    def node(self, name):
        return next(n for n in self.cluster.json("nodes")["nodes"] if n["name"] == name)

    def kill_rank(self, job, rank):
        os.kill(self.cluster.job(job)["ranks"][rank]["pid"], signal.SIGKILL)

    def test_a_killed_rank_begins_again_from_its_checkpoint_and_the_loss_is_the_same(self):
        cluster = self.cluster.up()
        shape = {**LONG, "train_steps": 300}
        whole = cluster.submit(**shape)
        cluster.wait_state(whole, "COMPLETED")
        job = cluster.submit(**shape)
        cluster.wait_step(job, 30)
        self.kill_rank(job, 1)
        done = cluster.wait_state(job, "COMPLETED", "FAILED")
        self.assertEqual(done["state"], "JOB_COMPLETED", done["message"])
        self.assertEqual(done["attempt"], 2)
        self.assertEqual(done["faults"], 1)
        first = done["attempts"][0]
        self.assertEqual((first["attempt"], first["reason"]), (1, "RankDied"))
        self.assertGreaterEqual(first["checkpoint_step"], 20)
        self.assertIn("SIGKILL", cluster.dpctl("status", job).stdout)
        reports = [cluster.json("report", j) for j in (whole, job)]
        self.assertGreaterEqual(reports[1]["resumed_step"], 20)
        self.assertAlmostEqual(reports[0]["last_loss"], reports[1]["last_loss"], delta=1e-4)
        self.assertAlmostEqual(reports[0]["holdout_loss"], reports[1]["holdout_loss"], delta=1e-4)
        # One more than [retry] max is the last.
        job = cluster.submit(**{**LONG, "retry_max": 0})
        cluster.wait_step(job, 12)
        self.kill_rank(job, 0)
        self.assertEqual(cluster.wait_state(job, "FAILED")["reason"], "RankDied")
        self.leaves_no_rank()

    def test_a_higher_priority_has_others_make_way_after_a_checkpoint(self):
        cluster = self.cluster.up()
        low = cluster.submit(**LONG, parallel_pipeline=4, parallel_schedule="1f1b")
        cluster.wait_step(low, 15)
        high = cluster.dpctl("submit", "-q", "--priority", 5,
                             cluster.job_file(**{**SIM_JOB, "train_steps": 20})).stdout.strip()
        cluster.wait_state(high, "COMPLETED")
        again = cluster.wait_state(low, "RUNNING")
        self.assertEqual((again["attempt"], again["preemptions"]), (2, 1))
        self.assertEqual(again["attempts"][0]["reason"], "Preempted")
        self.assertIn(f"made way for {high}", again["attempts"][0]["message"])
        # It wrote a checkpoint as it went, and lost no step.
        self.assertEqual(again["attempts"][0]["last_step"], again["attempts"][0]["checkpoint_step"])
        cluster.wait_step(low, again["attempts"][0]["last_step"] + 1)
        self.assertEqual(cluster.json("report", low)["resumed_step"],
                         again["attempts"][0]["checkpoint_step"])
        cluster.dpctl("cancel", low)
        cluster.wait_state(low, "CANCELLED")
        self.leaves_nothing()

    def test_a_drained_node_is_left_by_its_deadline_and_stays_drained(self):
        cluster = self.cluster.up()
        cluster.env["USER"] = "operator"
        job = cluster.submit(**{**SIM_JOB, **LONG}, parallel_pipeline=4, parallel_schedule="1f1b")
        cluster.wait_step(job, 3)
        cluster.dpctl("drain", "node-1", "--reason", "fan", "--deadline", "1s")
        drained = wait_for("node-1 is empty", lambda: (
            lambda node: node if node["state"] == "DRAINED" else None)(self.node("node-1")))
        self.assertEqual(drained["slots_used"], 0)
        self.assertIn("operator: fan", drained["reason"])
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        waits = cluster.submit(**SIM_JOB, parallel_pipeline=4, parallel_schedule="1f1b")
        said = wait_for("why it waits", lambda: cluster.job(waits)["message"])
        self.assertIn("1 of 2 nodes: node-1 drained (operator: fan)", said)
        # Whatever is started again.
        os.kill(cluster.pid("node-1"), signal.SIGKILL)
        os.kill(cluster.pid("controller"), signal.SIGKILL)
        wait_for("the controller is gone", lambda: not cluster.processes("dp-controller"))
        cluster.dpctl("local", "up", check=None)
        wait_for("node-1 is back", lambda: self.node("node-1")["state"] == "DRAINED")
        cluster.dpctl("undrain", "node-1")
        cluster.wait_state(waits, "RUNNING")
        self.assertIn("DrainNode", cluster.dpctl("audit").stdout)
        # Down has its jobs leave at once; what is connected cannot be forgotten.
        cluster.dpctl("nodes", "down", "node-1", "--reason", "smoke")
        wait_for("node-1 is down", lambda: self.node("node-1")["slots_used"] == 0)
        self.assertEqual(self.node("node-1")["state"], "DOWN")
        self.assertIn("connected", cluster.dpctl("nodes", "forget", "node-1", check=6).stderr)
        cluster.dpctl("nodes", "explode", "node-1", check=3)
        cluster.dpctl("drain", "node-9", check=4)
        cluster.dpctl("drain", check=2)
        cluster.dpctl("drain", "node-1", "--deadline", "soon", check=2)

    def test_quotas_hold_and_are_shown(self):
        cluster = self.cluster.up()
        cluster.dpctl("quota", "alice", 2)
        # Names are not cut: two long ones would be one user.
        self.assertIn("the limit is 63", cluster.dpctl(
            "submit", "--user", "a" * 64, cluster.job_file(**SIM_JOB), check=3).stderr)
        first, second = (cluster.dpctl("submit", "-q", "--user", "alice",
                                       cluster.job_file(**SIM_JOB)).stdout.strip()
                         for _ in range(2))
        cluster.wait_state(first, "RUNNING")
        waits = wait_for("the second waits", lambda: (
            lambda job: job if job["reason"] == "OverQuota" else None)(cluster.job(second)))
        self.assertIn("over quota: alice uses 2 of 2 ranks", waits["message"])
        self.assertEqual(cluster.json("quota")["quotas"][0]["ranks_used"], 2)
        # What runs is looked at before what is newer and waits.
        self.assertEqual(cluster.json("top", "--once")["id"], first)
        other = cluster.submit(**SIM_JOB)
        cluster.wait_state(other, "RUNNING")
        own = cluster.json("jobs", "--user", "alice")["jobs"]
        self.assertEqual([job["id"] for job in own], [second, first])
        # The newest events when nothing is said, the next ones after an index.
        every = [event["id"] for event in cluster.json("events")["events"]]
        newest = [event["id"] for event in cluster.json("events", "--limit", "2")["events"]]
        self.assertEqual(len(newest), 2)
        self.assertGreaterEqual(newest[-1], every[-1])
        after = cluster.json("events", "--after", "1", "--limit", "2")["events"]
        self.assertEqual([event["id"] for event in after], every[1:3])
        used = sorted(name for node in cluster.json("nodes")["nodes"] for name in node["jobs"])
        self.assertEqual(set(used), {first, other})
        cluster.dpctl("quota", "alice", "none")
        cluster.dpctl("cancel", first)
        cluster.wait_state(second, "RUNNING")
        self.assertEqual(cluster.json("quota").get("quotas", []), [])
        audit = cluster.json("audit", "--object", "alice")["entries"]
        self.assertEqual([(e["verb"], e["before"], e["after"]) for e in audit],
                         [("SetQuota", "any number", "2 ranks"),
                          ("SetQuota", "2 ranks", "any number")])

    def test_jobs_that_wait_are_shown_in_order_reordered_held_and_released(self):
        cluster = self.cluster.up()
        cluster.env["USER"] = "mo"
        first = cluster.submit(**{**SIM_JOB, **LONG}, parallel_pipeline=4, parallel_schedule="1f1b")
        cluster.wait_step(first, 12)
        cluster.dpctl("priority", first, 9)  # nobody below has it make way
        second, third = (cluster.submit(**{**SIM_JOB, **LONG}) for _ in range(2))

        def queue():
            return [(job["id"], job["queue"]) for job in
                    cluster.json("jobs", "--queued")["jobs"]]

        wait_for("both wait", lambda: len(queue()) == 2)
        self.assertEqual([(job, place["position"], place["jobs_ahead"], place["ranks_ahead"])
                          for job, place in queue()], [(second, 1, 0, 0), (third, 2, 1, 2)])
        # They start when the first one's steps are done, at which nobody has to guess.
        now_ns = cluster.job(first)["submitted_ns"]
        self.assertTrue(all(place["start_ns"] > now_ns for _, place in queue()))
        self.assertIn("1 job, 2 ranks", cluster.dpctl("jobs", "--queued").stdout)
        self.assertIn("2; ahead: 1 job, 2 ranks; start about", cluster.dpctl("status", third).stdout)
        cluster.dpctl("priority", second, "--", -2)
        cluster.dpctl("priority", second, -3)
        self.assertEqual([job for job, _ in queue()], [third, second])
        held = cluster.dpctl("hold", third, "--reason", "data is copied").stdout
        self.assertIn("held by mo (data is copied)", held)
        self.assertEqual([place["position"] for _, place in queue()], [0, 1])
        cluster.dpctl("cancel", first)
        cluster.wait_state(second, "RUNNING")
        self.assertEqual(cluster.job(third)["reason"], "Held")
        self.assertIn("can be held", cluster.dpctl("hold", second, check=6).stderr)
        cluster.dpctl("release", third)
        cluster.wait_state(third, "RUNNING")
        audit = [(e["verb"], e["user"], e["after"])
                 for e in cluster.json("audit", "--object", third)["entries"]]
        self.assertIn(("UpdateJob", "mo", "priority 0 held"), audit)
        cluster.dpctl("priority", third, check=2)
        cluster.dpctl("priority", third, "high", check=2)

    def test_a_plan_against_what_runs_names_what_would_change(self):
        cluster = self.cluster.up()
        file = cluster.job_file(**LONG)
        job = cluster.dpctl("submit", "-q", file).stdout.strip()
        cluster.wait_step(job, 2)
        same = cluster.json("plan", file, "--against", job)
        self.assertEqual(same["changes"], [])
        done = cluster.dpctl("plan", file, "--set", "optimizer.lr=0.01", "--set", "pipeline=4",
                             "--against", job, "-o", "json", check=20)
        keys = {c["key"]: (c["runs"], c["would"]) for c in json.loads(
            done.stdout)["changes"]}
        self.assertEqual(keys["optimizer.lr"], ("0.003", "0.01"))
        self.assertEqual(keys["plan.pipeline"], ("2", "4"))
        self.assertNotIn("train.steps", keys)
        # The index is the cluster's: while nothing has changed it may be relied on.
        index = cluster.json("plan", file, "--against", job)["index"]
        cluster.dpctl("submit", "-q", "--check-index", index, cluster.job_file(**SIM_JOB))
        refused = cluster.dpctl("submit", "--check-index", index, cluster.job_file(**SIM_JOB),
                                check=6)
        self.assertIn("the cluster has changed", refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
