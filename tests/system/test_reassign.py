"""Ranks of a job change while it trains: moved on purpose, or because some were lost."""

import contextlib
import os
import pathlib
import signal
import unittest

from support import CURVE_JOB, SIM_JOB, CurveTest, wait_for

# Slow enough to be caught in the middle, quick enough to end.
CPU_JOB = {**CURVE_JOB, "parallel_microbatches": 4, "train_steps": 60,
           "checkpoint_every_steps": 0, "straggler_policy": "off"}
REPLICAS = {**CPU_JOB, "parallel_pipeline": 2, "parallel_data": 2}


def parent(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[1])


def wake(*pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class Reassign(CurveTest):
    nodes, slots = 3, 2

    def events(self, job):
        return self.cluster.json("events", job)["events"]

    def saw(self, job, kind):
        return any(event["kind"] == kind for event in self.events(job))

    def decision(self, job):
        decisions = self.cluster.job(job).get("decisions") or [{}]
        return decisions[-1]

    def wait_decision(self, job, state):
        return wait_for(f"{job} has decided: {state}", lambda: (
            lambda d: d if d.get("state") == f"DECISION_{state}" else None)(self.decision(job)))

    def recovers(self, job, kill, ranks=4):
        """The ranks that kill() is given are ended; the job completes in its first attempt."""
        cluster = self.cluster
        cluster.wait_step(job, 10)
        kill(cluster.job(job)["ranks"])
        done = cluster.wait_state(job, "COMPLETED", "FAILED")
        # What a lost node may still run is named behind that.
        self.assertEqual((done["state"], done["message"].split(";")[0]),
                         ("JOB_COMPLETED", f"all {ranks} ranks finished"))
        self.assertEqual(done["attempt"], 1)
        self.assertGreater(done["epoch"], 1)
        self.assertTrue(self.saw(job, "job.recovered"))
        return done

    def kill_rank(self, number):
        return lambda ranks: os.kill(ranks[number]["pid"], signal.SIGKILL)

    # Moved on purpose.

    def start_sim(self):
        cluster = self.cluster.up()
        job = cluster.submit(parallel_pipeline=4, parallel_schedule="dualpipe",
                             straggler_policy="off", **SIM_JOB)
        cluster.wait_step(job, 3)
        return job, cluster.job(job)["ranks"]

    def reassign(self, job, ranks):
        self.cluster.dpctl("reassign", job, "--away", ranks[3]["node"])

    def settles_elsewhere(self, job, ranks):
        """The job goes on elsewhere, and of the ranks before none is left."""
        cluster = self.cluster
        before = {rank["pid"] for rank in ranks}
        step = cluster.job(job)["step"]
        try:
            after = wait_for("the job goes on elsewhere", lambda: (
                lambda j: j if j["state"] == "JOB_RUNNING" and j["epoch"] > 1 and
                j["step"] > step + 3 else None)(cluster.job(job)), 120)
        except AssertionError as error:
            events = "\n".join(f"{e['kind']}: {e['message']}" for e in self.events(job))
            raise AssertionError(f"{error}\n{events}\n{cluster.logs()}") from error
        self.assertEqual(after["attempt"], 1)
        wait_for("the old ranks are gone",
                 lambda: not before & set(cluster.processes("dp-rank")))
        self.assertEqual(len(cluster.processes("dp-rank")), 4)
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        steps = [s["step"] for s in cluster.json("report", job)["steps"]]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.leaves_no_rank()
        used = sum(n["slots_used"] for n in cluster.json("nodes")["nodes"])
        self.assertEqual(used, 0)
        self.leaves_nothing()
        return after

    def test_ranks_leave_a_node_and_the_job_trains_on(self):
        job, ranks = self.start_sim()
        self.reassign(job, ranks)
        decision = self.wait_decision(job, "MEASURED")
        self.assertEqual(decision["kind"], "leave-node")
        self.assertGreater(decision["measured_step_s"], 0)
        self.assertGreater(decision["measured_pause_s"], 0)
        text = self.cluster.dpctl("status", job).stdout
        self.assertIn("MEASURED  leave-node at step", text)
        self.assertRegex(text, r"\n +pause +[0-9.]+ ms\n")
        listed = self.cluster.json("status", job)["decisions"]
        self.assertEqual([d["number"] for d in listed], [1])
        after = self.settles_elsewhere(job, ranks)
        self.assertNotIn(ranks[3]["node"], [rank["node"] for rank in after["ranks"]])

    def test_a_drained_node_is_left_while_the_job_trains(self):
        job, ranks = self.start_sim()
        node = ranks[3]["node"]
        self.cluster.dpctl("drain", node, "--reason", "fan")
        self.wait_decision(job, "MEASURED")
        wait_for(f"{node} is drained", lambda: next(
            n["state"] for n in self.cluster.json("nodes")["nodes"]
            if n["name"] == node) == "DRAINED")
        self.cluster.dpctl("undrain", node)
        after = self.settles_elsewhere(job, ranks)
        self.assertNotIn(node, [rank["node"] for rank in after["ranks"]])

    def test_a_job_that_does_not_run_or_a_node_that_it_has_not_is_refused(self):
        job, ranks = self.start_sim()
        used = {rank["node"] for rank in ranks}
        free = next(n["name"] for n in self.cluster.json("nodes")["nodes"]
                    if n["name"] not in used)
        refused = self.cluster.dpctl("reassign", job, "--away", free, check=6).stderr
        self.assertIn(f"no rank on node {free}", refused)
        self.cluster.dpctl("cancel", job)
        self.cluster.wait_state(job, "CANCELLED")
        self.cluster.dpctl("reassign", job, check=6)

    def test_the_loss_curve_is_the_same_when_ranks_are_moved(self):
        cluster = self.cluster.up()
        changes = {**REPLICAS, "train_steps": 200}  # so many that it is not over before
        reference = self.undisturbed(**changes)
        job = cluster.submit(**changes)
        cluster.wait_step(job, 10)
        self.reassign(job, cluster.job(job)["ranks"])
        cluster.wait_state(job, "COMPLETED")
        self.assertTrue(self.saw(job, "job.reassigned"))
        self.same_curve(job, reference)
        decided = cluster.json("history")["entries"][0]["decisions"]
        self.assertEqual([d["kind"] for d in decided], ["leave-node"])
        self.assertTrue(decided[0]["answer"])
        self.assertEqual(decided[0]["state"], cluster.job(job)["decisions"][0]["state"])

    def test_a_drain_takes_no_size_from_a_job_that_the_job_sets(self):
        self.cluster.up(nodes=2)
        job = self.cluster.submit(**{**REPLICAS, "train_steps": 150})
        ranks = self.cluster.wait_step(job, 10)["ranks"]
        self.cluster.dpctl("drain", ranks[3]["node"], "--reason", "fan")
        done = self.cluster.wait_state(job, "COMPLETED", "FAILED")
        self.assertEqual((done["state"], done["attempt"]), ("JOB_COMPLETED", 1))
        self.assertEqual((done["epoch"], len(done["ranks"])), (1, 4))
        self.assertTrue(self.saw(job, "job.no_answer"))

    # Ranks that are slow.

    def start_slow(self, policy):
        """A node takes three times as long from step 20 on."""
        cluster = self.cluster.up()
        changes = {"parallel_pipeline": 4, "parallel_schedule": "1f1b", "model_layers": 8,
                   "straggler_policy": policy, **SIM_JOB}
        # Where such a job's ranks go.
        before = cluster.submit(**{**changes, "train_steps": 2})
        node = cluster.wait_state(before, "COMPLETED")["ranks"][1]["node"]
        path = cluster.job_file(**changes)
        path.write_text(path.read_text() + f'slow = ["node={node}:3@20"]\nnoise = 0.02\n')
        return cluster.dpctl("submit", "-q", path).stdout.strip()

    def test_a_job_leaves_a_slow_node_by_itself_and_is_as_fast_as_predicted(self):
        job = self.start_slow("auto")
        decision = self.wait_decision(job, "MEASURED")
        self.assertLess(decision["measured_step_s"], 0.7 * decision["before_step_s"])
        self.assertLess(abs(decision["measured_step_s"] / decision["predicted_step_s"] - 1), 0.3)
        self.assertGreater(decision["trust_after"], 0.7)
        self.assertEqual(self.cluster.job(job)["attempt"], 1)

    def test_what_would_help_is_told_and_not_done_by_advice(self):
        job = self.start_slow("advise")
        decision = wait_for("advice", lambda: (
            lambda d: d if d.get("kind") not in (None, "ignore") else None)(self.decision(job)))
        self.assertEqual(decision["state"], "DECISION_ADVISED")
        self.assertLess(decision["predicted_step_s"], decision["before_step_s"])
        self.assertEqual(self.cluster.job(job)["epoch"], 1)
        # Who is told may have it done.
        self.cluster.dpctl("reassign", job)
        carried = self.wait_decision(job, "MEASURED")
        self.assertEqual(carried["kind"], decision["kind"])
        self.assertLess(carried["measured_step_s"], 0.7 * carried["before_step_s"])
        refused = self.cluster.dpctl("reassign", job, "--answer", "wait", check=3).stderr
        self.assertIn("move-layers", refused)

    # Ranks that are lost.

    def test_a_replica_makes_up_for_a_killed_rank(self):
        self.cluster.up()
        reference = self.undisturbed(**REPLICAS)
        job = self.cluster.submit(**REPLICAS)
        done = self.recovers(job, self.kill_rank(1))
        self.same_curve(job, reference)
        self.assertEqual(done["decisions"][-1]["kind"], "recover")
        self.assertIn("SIGKILL", done["decisions"][-1]["cause"])

    def test_the_mirror_of_a_bidirectional_pipeline_makes_up_for_a_killed_rank(self):
        changes = {**CPU_JOB, "parallel_pipeline": 4, "parallel_data": 1,
                   "parallel_schedule": "dualpipe", "parallel_microbatches": 8}
        self.cluster.up()
        reference = self.undisturbed(**changes)
        job = self.cluster.submit(**changes)
        self.recovers(job, self.kill_rank(2))
        self.same_curve(job, reference)

    def kill_node(self, ranks):
        self.lost = ranks[3]["node"]
        parents = {parent(rank["pid"]) for rank in ranks if rank["node"] == self.lost}
        os.kill(self.cluster.pid(self.lost), signal.SIGKILL)
        for pid in parents:
            os.kill(pid, signal.SIGKILL)

    def test_a_lost_node_is_replaced_by_a_spare_one(self):
        self.cluster.up()
        reference = self.undisturbed(**REPLICAS)
        job = self.cluster.submit(**REPLICAS)
        done = self.recovers(job, self.kill_node)
        self.assertNotIn(self.lost, [rank["node"] for rank in done["ranks"]])
        self.same_curve(job, reference)

    def test_without_a_spare_node_the_job_goes_on_with_fewer_ranks(self):
        self.cluster.up(nodes=2)
        reference = self.undisturbed(**REPLICAS)
        job = self.cluster.submit(**REPLICAS)
        done = self.recovers(job, self.kill_node, ranks=2)
        self.assertNotIn(self.lost, [rank["node"] for rank in done["ranks"]])
        self.same_curve(job, reference)

    def test_without_a_copy_the_job_goes_on_from_its_checkpoint(self):
        changes = {**CPU_JOB, "parallel_pipeline": 2, "parallel_schedule": "1f1b",
                   "parallel_microbatches": 8, "checkpoint_every_steps": 5, "retry_backoff_s": 1}
        self.cluster.up()
        reference = self.undisturbed(**changes)
        job = self.cluster.submit(**changes)
        self.cluster.wait_step(job, 12)
        self.kill_rank(1)(self.cluster.job(job)["ranks"])
        done = self.cluster.wait_state(job, "COMPLETED", "FAILED")
        self.assertEqual(done["state"], "JOB_COMPLETED")
        self.assertEqual(done["attempt"], 2)
        self.same_curve(job, reference)

    # The controller dies in the middle.

    def restart_controller(self):
        os.kill(self.cluster.pid("controller"), signal.SIGKILL)
        self.cluster.up()

    def new_ranks(self, ranks):
        old = {rank["pid"] for rank in ranks}
        return wait_for("the new ranks are there", lambda: (
            lambda new: sorted(new) if len(new) == 4 else None)(
                set(self.cluster.processes("dp-rank")) - old))

    def test_a_controller_that_dies_while_ranks_are_prepared_leaves_none(self):
        cluster = self.cluster
        job, ranks = self.start_sim()
        # Some of the new ranks start, and the others are never ready.
        used = {rank["node"] for rank in ranks}
        free = next(n["name"] for n in cluster.json("nodes")["nodes"] if n["name"] not in used)
        os.kill(cluster.pid(free), signal.SIGSTOP)
        self.reassign(job, ranks)
        old = {rank["pid"] for rank in ranks}
        wait_for("new ranks are there", lambda: set(cluster.processes("dp-rank")) - old)
        self.assertEqual(self.decision(job)["state"], "DECISION_PREPARING")
        os.kill(cluster.pid("controller"), signal.SIGKILL)
        wake(cluster.pid(free))
        cluster.up()
        wait_for("the new ranks are gone", lambda: set(cluster.processes("dp-rank")) == old)
        step = cluster.job(job)["step"]
        cluster.wait_step(job, step + 3)
        self.assertEqual(cluster.job(job)["epoch"], 1)
        self.assertEqual(set(cluster.processes("dp-rank")), old)
        self.reassign(job, ranks)
        self.settles_elsewhere(job, ranks)

    def hold_up(self, job, ranks):
        """One old rank stands still, so that the others hold and the job waits for it."""
        os.kill(ranks[0]["pid"], signal.SIGSTOP)
        self.reassign(job, ranks)
        new = self.new_ranks(ranks)
        self.wait_decision(job, "SWITCHING")
        return new

    def test_a_controller_that_dies_while_ranks_hold_goes_on_with_them(self):
        job, ranks = self.start_sim()
        self.hold_up(job, ranks)
        self.restart_controller()
        wake(ranks[0]["pid"])
        self.settles_elsewhere(job, ranks)

    def test_a_controller_that_dies_while_ranks_take_over_lets_them(self):
        job, ranks = self.start_sim()
        new = self.hold_up(job, ranks)
        os.kill(new[0], signal.SIGSTOP)
        wake(ranks[0]["pid"])
        wait_for("the switch", lambda: self.saw(job, "job.switch"))
        self.restart_controller()
        wake(new[0])
        after = self.settles_elsewhere(job, ranks)
        self.assertEqual(after["epoch"], 2)
        self.assertEqual({rank["pid"] for rank in after["ranks"]}, set(new))


if __name__ == "__main__":
    unittest.main(verbosity=2)
