"""Planner.Plan and Planner.Simulate as outside clients see them: answers, refusals, the end of a
search whose caller has left, and a controller that goes on meanwhile."""

import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from service import Controller, planner_stubs
from support import BIN, wait_for

try:
    import prometheus_client  # noqa: F401
except ImportError:
    print("skipped: no python3-prometheus-client")
    sys.exit(77)

DIRECTORY = tempfile.TemporaryDirectory(prefix="dpp")
planner = planner_stubs(pathlib.Path(DIRECTORY.name))
if planner is None:
    print("skipped: no protoc or no python3-grpcio")
    sys.exit(77)
import grpc  # noqa: E402

# Long enough to be left in its midst.
LONG = {"model": "deepseek-v3", "gpu": "h800", "gpus": 16384, "global_batch": 131072}
SMALL = {"model": "deepseek-v3", "gpu": "h800", "gpus": 1024, "global_batch": 8192,
         "sets": ["pipeline=16", "expert=64", "schedule=dualpipe"]}
TASKS = "dp_planner_tasks_total"


class PlannerService(unittest.TestCase):
    def setUp(self):
        self.controller = Controller()
        self.addCleanup(self.controller.close)
        self.channel = grpc.insecure_channel(self.controller.address, options=[
            ("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)])
        self.addCleanup(self.channel.close)

    def tearDown(self):
        self.channel.close()
        self.assertEqual(self.controller.stop(), 0, msg=self.controller.text())

    def method(self, name, answer):
        return self.channel.unary_unary(f"/dp.v1.Planner/{name}",
                                        request_serializer=lambda m: m.SerializeToString(),
                                        response_deserializer=answer.FromString)

    def plan(self, **fields):
        return self.method("Plan", planner.PlanResponse)(planner.PlanRequest(**fields),
                                                         timeout=300)

    def refused(self, code, **fields):
        with self.assertRaises(grpc.RpcError) as caught:
            self.plan(**fields)
        self.assertEqual(caught.exception.code(), code, msg=caught.exception.details())
        return caught.exception.details()

    def tasks(self, result, kind="plan"):
        return self.controller.metrics()[(TASKS, ("kind", kind), ("result", result))]

    def wait_running(self, count):
        wait_for(f"{count} searches run",
                 lambda: self.controller.metrics()[("dp_planner_running",)] == count)

    def test_a_plan_is_what_dpctl_plans(self):
        response = self.plan(**SMALL)
        sets = [word for text in SMALL["sets"] for word in ("--set", text)]
        done = subprocess.run([BIN / "dpctl", "plan", "--model", "deepseek-v3", "--gpu", "h800",
                               "--gpus", "1024", "--global-batch", "8192", *sets, "-o", "json"],
                              capture_output=True, text=True, check=True, timeout=300)
        wanted = json.loads(done.stdout)["chosen"]
        plan = response.plan
        for field in ("pipeline", "expert", "data", "microbatches", "schedule"):
            self.assertEqual(getattr(plan, field), wanted[field], msg=field)
        self.assertAlmostEqual(plan.step_s / wanted["step_time_s"], 1, places=6)
        self.assertEqual(len(plan.ranks), 1024)
        self.assertEqual(plan.layer_begin[-1], 61)
        self.assertGreater(response.search_s, 0)
        self.assertGreater(len(plan.candidates), 0)
        self.assertEqual(self.tasks("ok"), 1)

    def test_dpctl_plan_shows_the_same_whoever_answers(self):
        question = ["plan", "--model", "deepseek-v3", "--gpu", "h800", "--gpus", "256",
                    "--global-batch", "2048", "--set", "pipeline=16"]
        for verb in ([], ["--all"], ["--explain", "3"], ["--compare", "1f1b,dualpipe"]):
            texts = [subprocess.run([BIN / "dpctl", *question, *verb, *asked], text=True,
                                    capture_output=True, check=True, timeout=300).stdout
                     for asked in ([], ["--controller", self.controller.address])]
            # How long the search took is another each time.
            here, there = ([line for line in text.splitlines() if "candidates" not in line]
                           for text in texts)
            self.assertEqual(here, there)
        self.assertGreaterEqual(self.tasks("ok"), 4)

    def test_grpc_and_http_answer_alike(self):
        over_grpc = self.plan(**SMALL)
        answer = self.controller.ask("POST", "/v1/plan", SMALL)
        self.assertEqual(answer.code, 200, msg=answer.body)
        over_http = answer.json()
        self.assertEqual(over_http["plan"]["step_s"], float(f"{over_grpc.plan.step_s:.12g}"))
        self.assertEqual(over_http["plan"]["schedule_hash"],
                         f"0x{over_grpc.plan.schedule_hash:016x}")
        self.assertEqual(over_http["plan"]["layer_begin"], list(over_grpc.plan.layer_begin))

    def test_impossible_questions_are_refused_with_the_reason(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.assertIn("give one of job_toml", self.refused(invalid))
        self.assertIn("not several", self.refused(invalid, model="deepseek-v3", job_toml=b"x"))
        self.assertIn("go together", self.refused(invalid, model="deepseek-v3", gpu="h800"))
        self.assertIn("deepseek-v3", self.refused(grpc.StatusCode.NOT_FOUND, model="deepsek-v3",
                                                  gpu="h800", gpus=8))
        self.assertIn("h800", self.refused(grpc.StatusCode.NOT_FOUND, model="deepseek-v3",
                                           gpu="h801", gpus=8))
        self.assertIn("pipelin", self.refused(invalid, model="deepseek-v3", gpu="h800", gpus=8,
                                              sets=["pipelin=4"]))
        self.assertIn("no node is connected", self.refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED, model="tiny-moe"))
        self.assertIn("a.toml:1:", self.refused(invalid, job_toml=b"[model\n", file="a.toml",
                                                gpu="h800", gpus=8))
        self.refused(invalid, model_config=b"{}", gpu="h800", gpus=8)

    def test_no_question_makes_the_controller_read_a_file(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        asked = {"model": "deepseek-v3", "gpu": "h800", "gpus": 256}
        self.assertIn("in a job file only",
                      self.refused(invalid, **asked, sets=["model.hf_config=/etc/passwd"]))
        self.assertIn("not at hand here", self.refused(
            invalid, model="deepseek-v3",
            cluster_toml=b'accelerator = "h800"\nnodes = 4\ntopology = "/etc/passwd"\n'))
        self.assertIn("not read here", self.refused(
            invalid, job_toml=b'[model]\nhf_config = "/etc/passwd"\n', gpu="h800", gpus=256))
        for field in ("model", "profile"):
            self.assertIn("/etc/passwd", self.refused(grpc.StatusCode.NOT_FOUND,
                                                      **{**asked, field: "/etc/passwd"}))

    def test_a_search_ends_soon_after_its_caller_has_left(self):
        call = self.method("Plan", planner.PlanResponse).future(planner.PlanRequest(**LONG),
                                                                timeout=300)
        self.wait_running(1)
        begin = time.monotonic()
        call.cancel()
        wait_for("the search has ended", lambda: self.tasks("cancelled") == 1)
        print(f"gRPC: the search ended {time.monotonic() - begin:.3f} s after the cancellation")
        self.wait_running(0)

    def test_a_search_ends_when_its_deadline_has_passed(self):
        self.plan(**SMALL)  # the controller is there
        call = self.method("Plan", planner.PlanResponse).future(planner.PlanRequest(**LONG),
                                                                timeout=3)
        self.assertEqual(call.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        wait_for("the search has ended", lambda: self.tasks("cancelled") == 1)

    def test_a_search_ends_when_its_http_client_has_left(self):
        host, port = self.controller.http.split(":")
        body = json.dumps(LONG)
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("POST", "/v1/plan", body, {"Content-Type": "application/json"})
        self.wait_running(1)
        begin = time.monotonic()
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        wait_for("the search has ended", lambda: self.tasks("cancelled") == 1)
        print(f"HTTP: the search ended {time.monotonic() - begin:.3f} s after its client")

    def test_a_stopping_controller_ends_its_searches(self):
        call = self.method("Plan", planner.PlanResponse).future(planner.PlanRequest(**LONG),
                                                                timeout=300)
        self.wait_running(1)
        self.assertEqual(self.controller.stop(), 0)
        self.assertEqual(call.code(), grpc.StatusCode.UNAVAILABLE)

    def test_more_searches_than_there_is_room_for_are_told_to_come_again(self):
        plan = self.method("Plan", planner.PlanResponse)
        calls = [plan.future(planner.PlanRequest(**LONG), timeout=300) for _ in range(18)]
        wait_for("the queue is full",
                 lambda: self.controller.metrics()[("dp_planner_queue",)] == 16)
        self.assertIn("try again", self.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, **LONG))
        answer = self.controller.ask("POST", "/v1/plan", LONG)
        self.assertEqual((answer.code, answer.json()["status"]), (429, "BUSY"))
        self.assertEqual(answer.headers["Retry-After"], "2")
        for call in calls:
            call.cancel()
        wait_for("all have ended", lambda: self.tasks("cancelled") == 18)
        self.assertEqual(self.controller.metrics()[("dp_planner_queue",)], 0)
        self.assertEqual(self.plan(**SMALL).plan.pipeline, 16)

    def test_the_controller_goes_on_while_it_searches(self):
        plan = self.method("Plan", planner.PlanResponse)
        calls = [plan.future(planner.PlanRequest(**LONG), timeout=300) for _ in range(2)]
        self.wait_running(2)
        took = []
        for _ in range(100):
            begin = time.monotonic()
            self.assertEqual(self.controller.ask("GET", "/v1/nodes").code, 200)
            took.append(time.monotonic() - begin)
        took.sort()
        searching = self.controller.metrics()[("dp_planner_running",)]
        for call in calls:
            call.cancel()
        print(f"while {searching:g} searches run, GET /v1/nodes takes {1e3 * took[50]:.1f} ms "
              f"(median of 100), at most {1e3 * took[-1]:.1f} ms")

    def simulate(self, **fields):
        return self.method("Simulate", planner.Simulation)(planner.SimulateRequest(**fields),
                                                           timeout=180)

    # 1F1B takes M + P - 1 slots of F and of B (Narayanan et al., arXiv 2104.04473, section 2.2);
    # DualPipe's bubble is (P/2 - 1)(FB + B - 3W) (DeepSeek's DualPipe repository).
    def test_simulated_bubbles_are_the_published_ones(self):
        one = self.simulate(schedule="1f1b", pipeline=4, microbatches=8, cost="F=1,B=2")
        self.assertEqual(one.makespan_s, (8 + 4 - 1) * 3)
        self.assertAlmostEqual(one.bubble_ratio, 3 / 11)
        dual = self.simulate(schedule="dualpipe", pipeline=8, microbatches=20,
                             cost="F=1,I=1,W=1,FB=3")
        for rank in dual.ranks:
            self.assertAlmostEqual(rank.bubble_s, (8 / 2 - 1) * (3 + 2 - 3 * 1))
            parts = (rank.warmup_s + rank.dependency_s + rank.imbalance_s + rank.comm_s
                     + rank.cooldown_s)
            self.assertAlmostEqual(parts, rank.bubble_s)

    def test_a_schedule_may_be_a_document(self):
        done = subprocess.run([BIN / "dpctl", "schedule", "export", "zb-h1", "-P", "4", "-M", "8",
                               "--format", "json"], capture_output=True, text=True, check=True)
        by_name = self.simulate(schedule="zb-h1", pipeline=4, microbatches=8, cost="F=1,I=1,W=1")
        by_text = self.simulate(schedule_json=done.stdout.encode(), cost="F=1,I=1,W=1")
        self.assertEqual(by_text, by_name)
        answer = self.controller.ask("POST", "/v1/simulate",
                                     {"schedule_json": json.loads(done.stdout)})
        self.assertEqual(answer.json()["makespan_s"], by_name.makespan_s)

    def test_a_slow_rank_shows_beside_the_unchanged_makespan(self):
        slow = self.simulate(schedule="1f1b", pipeline=4, microbatches=8, cost="F=1,B=2",
                             slow=["rank=2:2"], slow_links=["0-1:2x"])
        self.assertEqual(slow.unchanged_makespan_s, 33)
        self.assertGreater(slow.makespan_s, 48)
        self.assertEqual(len(slow.notes), 1)  # a link that costs nothing cannot get slower
        self.assertAlmostEqual(slow.path_computing_s, slow.makespan_s)

    def test_schedules_that_cannot_be_simulated_are_refused(self):
        for code, part, fields in (
                ("INVALID_ARGUMENT", "give schedule", {}),
                ("INVALID_ARGUMENT", "pipeline and microbatches", {"schedule": "1f1b"}),
                ("NOT_FOUND", "dualpipe", {"schedule": "dualpip", "pipeline": 4,
                                           "microbatches": 8}),
                ("INVALID_ARGUMENT", "dualpipe", {"schedule": "dualpipe", "pipeline": 3,
                                                  "microbatches": 8}),
                ("INVALID_ARGUMENT", "cost", {"schedule": "1f1b", "pipeline": 4,
                                              "microbatches": 8, "cost": "F=-1"}),
                ("INVALID_ARGUMENT", "free or blocking", {"schedule": "1f1b", "pipeline": 4,
                                                          "microbatches": 8, "p2p": "none"}),
                ("INVALID_ARGUMENT", "1:", {"schedule_json": b"{"}),
                ("OUT_OF_RANGE", "simulates at most", {"schedule": "1f1b", "pipeline": 256,
                                                       "microbatches": 65536})):
            with self.subTest(part), self.assertRaises(grpc.RpcError) as caught:
                self.simulate(**fields)
            self.assertEqual(caught.exception.code().name, code, msg=caught.exception.details())
            self.assertIn(part, caught.exception.details())

    def test_many_clients_at_once_get_their_own_answers(self):
        wrong = []

        def ask(pipeline):
            for microbatches in range(pipeline, 2 * pipeline):
                answer = self.controller.ask("POST", "/v1/simulate", {
                    "schedule": "1f1b", "pipeline": pipeline, "microbatches": microbatches,
                    "cost": "F=1,B=2"})
                if answer.code != 200 or answer.json()["makespan_s"] != 3 * (microbatches
                                                                             + pipeline - 1):
                    wrong.append((pipeline, microbatches, answer.code, answer.body))

        threads = [threading.Thread(target=ask, args=(p,)) for p in range(2, 18)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
