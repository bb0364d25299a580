"""Hosts with cables between them: what a node and the controller do when they cannot hear each
other, and what its ranks do."""

import os
import re
import signal
import unittest

from hosts import Hosts, why_not
from support import SIM_JOB, wait_for

REASON = why_not()
OFF = {"recovery_policy": "off", "retry_max": 0}


@unittest.skipIf(REASON is not None, f"no hosts: {REASON}")
class Cables(unittest.TestCase):
    def start(self, count=3, slots=1, lease_ms=2500, orphan_ms=4000):
        hosts = Hosts(count, slots, ("--lease-ms", lease_ms, "--orphan-ms", orphan_ms))
        self.addCleanup(hosts.close)
        return hosts.start()

    def run_job(self, hosts, **changes):
        job = hosts.submit(**{**SIM_JOB, "parallel_pipeline": 2, "parallel_schedule": "1f1b",
                              **changes})
        wait_for(f"{job} trains", lambda: hosts.job(job)["step"] >= 2)
        ranks = hosts.job(job)["ranks"]
        return job, [next(h for h in hosts.hosts if h.name == rank["node"]) for rank in ranks]

    def test_a_cable_that_is_out_for_less_than_the_lease_changes_nothing(self):
        hosts = self.start(lease_ms=60000, orphan_ms=60000)
        job, used = self.run_job(hosts)
        pids = hosts.processes("dp-rank")
        used[0].connect(False)
        wait_for("the node is LATE", lambda: hosts.nodes("LATE"), 30)
        used[0].connect(True)
        wait_for("the node is READY", lambda: len(hosts.nodes("READY")) == 3, 60)
        step = hosts.job(job)["step"]
        wait_for("the job goes on", lambda: hosts.job(job)["step"] > step + 5)
        self.assertEqual(hosts.processes("dp-rank"), pids)
        self.assertEqual((hosts.job(job)["attempt"], hosts.job(job)["epoch"]), (1, 1))

    def test_a_node_that_is_cut_off_has_ended_its_ranks_before_its_slots_are_given_away(self):
        hosts = self.start(count=2)
        first, used = self.run_job(hosts, **OFF)
        lost = used[0]
        lost.connect(False)
        second = hosts.submit(**{**SIM_JOB, "parallel_pipeline": 2, "train_steps": 3})
        # Whoever gives the slots away sees no rank on the node that was cut off.
        wait_for("the cut off node ends its ranks",
                 lambda: not hosts.processes("dp-rank", lost), 60)
        self.assertEqual(hosts.job(second)["state"], "JOB_QUEUED")
        lost.connect(True)
        self.assertEqual(hosts.wait_state(second, "COMPLETED", "FAILED")["state"],
                         "JOB_COMPLETED")
        ended = hosts.job(first)
        self.assertEqual(ended["state"], "JOB_FAILED")
        self.assertIn(ended["reason"], ("NodeLost", "NodeFailed"))
        self.assertIn(lost.name, ended["message"])

    def test_the_ranks_that_are_left_of_a_job_do_not_hang(self):
        hosts = self.start(count=2, slots=1)
        job, used = self.run_job(hosts, resources_device="cpu", train_steps=100000, **OFF)
        used[1].connect(False)
        ended = hosts.wait_state(job, "FAILED", "LOST", deadline_s=90)
        self.assertRegex(ended["message"], used[1].name)
        wait_for("no rank is left", lambda: not hosts.processes("dp-rank"), 90)

    def test_a_node_is_the_same_one_under_another_address(self):
        hosts = self.start(count=2)
        host = hosts.hosts[0]
        before = {n["name"]: n for n in hosts.json("nodes")["nodes"]}[host.name]
        os.kill(host.agent.pid, signal.SIGTERM)
        host.agent.wait(30)
        host.space.run("ip", "address", "del", f"{host.address}/24", "dev", "eth0")
        host.address = host.address.rsplit(".", 1)[0] + ".99"
        host.space.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.start()

        def moved():
            node = {n["name"]: n for n in hosts.json("nodes")["nodes"]}[host.name]
            there = node["state"] == "READY" and host.address in node["address"]
            return node if there else None
        after = wait_for("the node under its new address", moved, 60)
        self.assertNotEqual(after["address"], before["address"])
        self.assertEqual(len(hosts.json("nodes")["nodes"]), 2)
        job, _ = self.run_job(hosts, train_steps=20)
        self.assertEqual(hosts.wait_state(job, "COMPLETED", "FAILED")["state"], "JOB_COMPLETED")

    def test_a_partition_of_every_node_ends_with_all_of_them_ready(self):
        hosts = self.start(lease_ms=3000, orphan_ms=60000)
        job, _ = self.run_job(hosts)
        for host in hosts.hosts:
            host.connect(False)
        wait_for("all nodes are LOST", lambda: len(hosts.nodes("LOST")) == 3, 60)
        for host in hosts.hosts:
            host.connect(True)
        hosts.wait_ready()
        ended = hosts.job(job)
        self.assertNotEqual(ended["state"], "JOB_LOST", ended["message"])
        self.assertTrue(re.search(r"RUNNING|REASSIGNING|QUEUED|PLANNED|ASSIGNING|STOPPING|FAILED",
                                  ended["state"]), ended)


if __name__ == "__main__":
    unittest.main(verbosity=2)
