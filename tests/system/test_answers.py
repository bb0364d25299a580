"""Answers to a slow rank of the cpu device, one by one: asked for by name, or chosen by the policy
"auto" alone, carried out while the job trains, and the loss of every step is what it would have
been."""

import json
import os
import signal
import unittest

from quota import quota
from support import CURVE_JOB, SIM_JOB, CurveTest, wait_for

SLOW_SHARE = 0.05  # of a core, for the slow rank
STEPS = 20000      # of jobs that are watched until what they are about has been seen
JOB = {**CURVE_JOB, "train_steps": 300, "checkpoint_every_steps": 0, "parallel_pipeline": 2,
       "parallel_schedule": "1f1b", "straggler_policy": "off"}


class Answers(CurveTest):
    nodes, slots = 3, 2

    def wait_decision(self, job, what, reached):
        """As wait_for; says what happened to the job when it does not come."""
        try:
            return wait_for(what, reached, 150)
        except AssertionError as error:
            events = "\n".join(f"{e['kind']}: {e['message']}"
                               for e in self.cluster.json("events", job)["events"])
            weighed = "\n".join(
                self.cluster.dpctl("history", job, "--decision", str(d["number"])).stdout
                for d in self.cluster.job(job).get("decisions") or [])
            raise AssertionError(f"{error}\n{events}\n{weighed}\n{self.cluster.logs()}") from error

    def decision(self, job, *states, after=0):
        """The newest decision, of a number beyond this, once it is in one of these states."""
        def reached():
            decisions = self.cluster.job(job).get("decisions") or [{}]
            state = decisions[-1].get("state", "").removeprefix("DECISION_")
            is_new = decisions[-1].get("number", 0) > after
            return decisions[-1] if is_new and state in states else None
        return self.wait_decision(job, f"{job} has decided: {states}", reached)

    def suspected(self, job, rank, *causes):
        return [v for v in self.cluster.job(job).get("stragglers", [])
                if v["rank"] == rank and v["cause"] in causes
                and v["state"] in ("suspected", "confirmed")]

    def answered(self, job, rank, kind):
        """The rank gets too little of a core, is found, and this is done about it."""
        cluster = self.cluster
        ranks = cluster.wait_step(job, 20)["ranks"]
        with quota(ranks[rank]["pid"], SLOW_SHARE) as group:
            if group is None:
                self.skipTest("groups with a quota of cores cannot be made here")
            decision = {"number": 0, "kind": ""}
            # Others may be short of cores, too, for a moment in which nothing is better.
            for _ in range(3):
                wait_for(f"rank {rank} is suspected",
                         lambda: self.suspected(job, rank, "host", "device"), 120)
                cluster.dpctl("reassign", job, "--answer", kind)
                decision = self.decision(job, "RUNNING", "MEASURED", "ADVISED", "ABANDONED",
                                         "FELL_BACK", after=decision["number"])
                if decision["kind"] == kind:
                    break
        self.assertEqual(decision["kind"], kind, decision)
        self.assertIn(decision["state"], ("DECISION_RUNNING", "DECISION_MEASURED"), decision)
        return decision

    def completes(self, job, attempt=1):
        done = self.cluster.wait_state(job, "COMPLETED", "FAILED")
        self.assertEqual(done["state"], "JOB_COMPLETED", done)
        self.assertEqual(done["attempt"], attempt)
        return done

    def left_out(self, job, node):
        """Shown of the job, and why."""
        shown = self.cluster.job(job)
        self.assertEqual(shown["left_out"], [node])
        self.assertEqual(shown["left_out_why"], "asked for: restart")
        self.assertIn(f"without    {node}: asked for: restart\n",
                      self.cluster.dpctl("status", job).stdout)

    def weighed(self, job, number):
        """What was weighed for a decision can be read when it has long been carried out."""
        cluster = self.cluster
        [decision] = cluster.json("history", job, "--decision", str(number))["decisions"]
        document = json.loads(decision["document"])
        self.assertEqual(document["best"], decision["kind"])
        table = cluster.dpctl("history", job, "--decision", str(number)).stdout
        for answer in document["answers"]:
            self.assertRegex(table, rf"(?m)^. {answer['answer']} ")
        self.assertRegex(table, rf"(?m)^\* {decision['kind']} ")
        cluster.dpctl("history", job, "--decision", "99", check=4)

    def test_micro_batches_go_to_the_other_replica(self):
        changes = {**JOB, "parallel_data": 2, "parallel_microbatches": 8,
                   "train_global_batch": 16}
        self.cluster.up()
        reference = self.undisturbed(**changes)
        job = self.cluster.submit(**changes)
        decision = self.answered(job, 1, "shift-microbatches")
        self.assertRegex(decision["answer"], r"micro-batches")
        done = self.completes(job)
        self.assertEqual(done["epoch"], 2)
        self.same_curve(job, reference)

    def test_layers_go_to_the_other_stages(self):
        changes = {**JOB, "model_layers": 6, "parallel_microbatches": 8}
        self.cluster.up()
        reference = self.undisturbed(**changes)
        job = self.cluster.submit(**changes)
        decision = self.answered(job, 1, "move-layers")
        self.assertRegex(decision["answer"], r"layers of the stages")
        done = self.completes(job)
        self.assertEqual(done["epoch"], 2)
        self.same_curve(job, reference)

    def test_a_restart_goes_on_from_a_checkpoint_without_the_slow_node(self):
        changes = {**JOB, "parallel_microbatches": 8}
        self.cluster.up(nodes=3, slots=1)
        reference = self.undisturbed(**changes)
        job = self.cluster.submit(**changes)
        slow = self.cluster.wait_step(job, 1)["ranks"][1]["node"]
        decision = self.answered(job, 1, "restart")
        self.assertIn(f"without {slow}", decision["answer"])
        done = self.completes(job, attempt=2)
        self.assertNotIn(slow, [rank["node"] for rank in done["ranks"]])
        self.left_out(job, slow)
        self.weighed(job, decision["number"])
        self.same_curve(job, reference)
        self.assertGreater(self.decision(job, "MEASURED")["measured_step_s"], 0)

    def test_of_slow_links_the_end_at_fault_is_left_out(self):
        """Its peers are not: a restart without one of those would take the fault along."""
        changes = {**SIM_JOB, "parallel_pipeline": 4, "parallel_schedule": "1f1b",
                   "sim_hop_s": 0.002, "straggler_policy": "off"}  # nobody else asks
        cluster = self.cluster.up(nodes=5, slots=1)
        before = cluster.submit(**{**changes, "train_steps": 2})
        nodes = [r["node"] for r in cluster.wait_state(before, "COMPLETED")["ranks"]]
        job = cluster.submit(**changes, sim_slow_link=[f"{nodes[1]}~{nodes[0]}:6@20",
                                                       f"{nodes[1]}~{nodes[2]}:6@20"])
        cluster.wait_step(job, 2)
        self.assertEqual([r["node"] for r in cluster.job(job)["ranks"]], nodes)
        wait_for("links of rank 1 are found", lambda: self.suspected(job, 1, "link"), 120)
        cluster.dpctl("reassign", job, "--answer", "restart")
        decision = self.decision(job, "MEASURED", "ADVISED", "FELL_BACK", "ABANDONED")
        self.assertIn(f"without {nodes[1]} on", decision["answer"])
        self.assertEqual((decision["kind"], decision["state"]), ("restart", "DECISION_MEASURED"))
        self.assertLess(decision["measured_step_s"], 0.8 * decision["before_step_s"])
        after = cluster.job(job)
        self.assertEqual(after["attempt"], 2)
        self.assertNotIn(nodes[1], [rank["node"] for rank in after["ranks"]])

    def rebalanced(self, **changes):
        """Experts are placed anew by order; the job, its reference and its only decision."""
        changes = {**JOB, "model_top_k": 2, "parallel_pipeline": 1, "parallel_expert": 2,
                   "parallel_data": 2, "parallel_microbatches": 4, "train_steps": 100, **changes}
        reference = self.undisturbed(**changes)
        job = self.cluster.submit(**changes)
        self.cluster.wait_step(job, 20)
        self.cluster.dpctl("reassign", job, "--answer", "experts")
        done = self.completes(job)
        self.assertEqual(done["epoch"], 1)
        self.same_curve(job, reference)
        self.assertEqual(len(done["decisions"]), 1, done["decisions"])
        moves = [e["message"] for e in self.cluster.json("events", job)["events"]
                 if e["kind"] == "job.experts"]
        return job, done["decisions"][0], moves

    def test_experts_are_placed_by_their_loads_while_the_job_trains(self):
        self.cluster.up()
        job, decision, moves = self.rebalanced()
        self.assertEqual((decision["kind"], decision["state"]), ("experts", "DECISION_MEASURED"))
        self.assertGreater(decision["measured_step_s"], 0)
        self.assertEqual(len(moves), 1, moves)
        self.assertRegex(moves[0], r"slots in \d of 3 layers got other experts")
        placed = [layer["placement"] for layer in self.cluster.json("experts", job)["layers"]]
        self.assertTrue(any(layer != [0, 1, 2, 3] for layer in placed), placed)
        # With slots for copies, busy experts get them.
        job, decision, moves = self.rebalanced(parallel_expert_copies=1)
        self.assertEqual(decision["state"], "DECISION_MEASURED", decision)
        for layer in self.cluster.json("experts", job)["layers"]:
            self.assertEqual(len(layer["placement"]), 6)
        # What the job says about its experts holds.
        job, decision, moves = self.rebalanced(parallel_expert_placement="advise",
                                               parallel_rebalance_every=100000)
        self.assertEqual((decision["kind"], decision["state"]), ("experts", "DECISION_ADVISED"))
        self.assertEqual(moves, [])

    # What policy "auto" does by itself.

    def chosen(self, job, kind):
        """The decision of this kind, once its steps have been measured."""
        def found():
            return [d for d in self.cluster.job(job).get("decisions") or []
                    if d["kind"] == kind and d["state"] == "DECISION_MEASURED"]
        return self.wait_decision(job, f"{kind} has been chosen and measured", found)[0]

    def cut(self, job, step=0):
        """Ends the job, from some step on, and has the losses of the steps that it took."""
        self.cluster.wait_step(job, step)
        self.cluster.dpctl("cancel", job)
        self.cluster.wait_state(job, "CANCELLED")
        return self.losses(job)

    def begins_as_undisturbed(self, job, decision, **changes):
        """Until it is well over what was done each step's loss is what it is in a job that nobody
        disturbs. Much later sums in another order have led elsewhere."""
        losses = self.cut(job)
        self.assertEqual(sorted(losses), list(range(1, max(losses) + 1)))
        last = min(max(losses), decision["step"] + 40)
        reference = self.cut(self.cluster.submit(**changes), last)
        self.same_losses({step: losses[step] for step in range(1, last + 1)}, reference)

    def test_loads_of_experts_that_slow_a_job_down_have_them_placed_by_the_policy(self):
        """By its seed the two busiest of eight experts, of half of all tokens, are on one of two
        ranks, and a low rate leaves it so: it has 1.7 times the mean, 1.02 at best."""
        changes = {**JOB, "train_steps": STEPS, "train_seed": 19, "model_layers": 2,
                   "model_experts": 8, "model_top_k": 1, "model_shared_experts": 0,
                   "model_hidden": 64, "model_ffn": 64, "model_expert_ffn": 512,
                   "model_aux_loss_weight": 0, "optimizer_lr": 1e-5, "train_sequence": 64,
                   "train_global_batch": 8,
                   "parallel_pipeline": 1, "parallel_expert": 2, "parallel_data": 2,
                   "parallel_microbatches": 4}
        self.cluster.up(nodes=1)
        job = self.cluster.submit(**{**changes, "straggler_policy": "auto"})
        decision = self.chosen(job, "experts")
        # On a crowded machine ranks that lack cores may be found first.
        self.assertRegex(decision["cause"], "no rank is slow|no core")
        self.assertEqual(self.cluster.job(job)["epoch"], 1)
        self.begins_as_undisturbed(job, decision, **changes)

    def test_a_node_that_is_worse_than_none_is_left_by_a_restart_of_the_policy(self):
        """There is no place to go to, and one rank alone is faster than with the slow one."""
        changes = {**JOB, "train_steps": STEPS, "checkpoint_every_steps": 10, "model_hidden": 128,
                   "model_ffn": 256, "model_expert_ffn": 16, "train_sequence": 128,
                   "train_global_batch": 16,
                   "parallel_pipeline": None, "parallel_data": None, "parallel_expert": None,
                   "parallel_microbatches": None, "parallel_micro_batch_size": None}
        self.cluster.up(nodes=2, slots=1)
        job = self.cluster.submit(**{**changes, "straggler_policy": "auto"})
        ranks = self.cluster.wait_step(job, 30)["ranks"]
        self.assertEqual(len(ranks), 2)
        with quota(ranks[1]["pid"], SLOW_SHARE) as group:
            if group is None:
                self.skipTest("groups with a quota of cores cannot be made here")
            decision = self.chosen(job, "restart")
        self.assertIn(f"without {ranks[1]['node']} on 1 ranks", decision["answer"])
        self.assertLess(decision["measured_step_s"], decision["before_step_s"])
        after = self.cluster.job(job)
        self.assertEqual((after["attempt"], [r["node"] for r in after["ranks"]]),
                         (2, [ranks[0]["node"]]))
        self.begins_as_undisturbed(job, decision, **changes)

    def test_a_job_that_lost_a_node_is_as_large_again_when_there_is_one(self):
        changes = {**JOB, "train_steps": STEPS, "parallel_data": 2, "parallel_microbatches": 4,
                   "optimizer_lr": 1e-5}
        self.cluster.up(nodes=2)
        job = self.cluster.submit(**changes)
        before = self.cluster.wait_step(job, 20)["ranks"]
        lost = before[3]["node"]
        for pid in [self.cluster.pid(lost)] + [r["pid"] for r in before if r["node"] == lost]:
            os.kill(pid, signal.SIGKILL)
        wait_for("it goes on with fewer ranks", lambda: (
            lambda now: len(now["ranks"]) == 2 and now["state"] == "JOB_RUNNING")(
                self.cluster.job(job)), 90)
        self.cluster.up(nodes=2)
        decision = self.chosen(job, "grow")
        self.assertIn("2 ranks become 4", decision["answer"])
        after = self.cluster.job(job)
        self.assertEqual((after["attempt"], after["epoch"]), (1, 3))
        self.assertEqual({rank["node"] for rank in after["ranks"]},
                         {rank["node"] for rank in before})
        self.begins_as_undisturbed(job, decision, **changes)


if __name__ == "__main__":
    unittest.main(verbosity=2)
