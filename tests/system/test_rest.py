"""The HTTP door of a real cluster: jobs by curl, streams, metrics as Prometheus reads them, the
OpenAPI document, and clients that mean harm."""

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest

from service import Controller
from support import BIN, SIM_JOB, ClusterTest, job_text, wait_for

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("skipped: no python3-prometheus-client")
    sys.exit(77)
if shutil.which("curl") is None:
    print("skipped: no curl")
    sys.exit(77)

TOML = ("-H", "Content-Type: application/toml", "--data-binary", "@-")


class Rest(ClusterTest):
    def setUp(self):
        super().setUp()
        self.cluster.up()
        self.http = self.cluster.json("local", "status")["http_address"]
        self.assertRegex(self.http, r"^127\.0\.0\.1:\d+$")

    def curl(self, path, *args, stdin=None):
        """The HTTP code and what JSON came."""
        done = subprocess.run(["curl", "-sS", "--noproxy", "*", "-w", "\n%{http_code}", *args,
                               f"http://{self.http}{path}"], input=stdin, capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, msg=done.stderr)
        body, code = done.stdout.rsplit("\n", 1)
        return int(code), json.loads(body)

    def submit(self, **changes):
        code, job = self.curl("/v1/jobs", *TOML, stdin=job_text(**changes))
        self.assertEqual(code, 200, msg=job)
        return job["id"]

    def test_a_job_is_submitted_followed_and_cancelled_by_curl(self):
        job = self.submit(**SIM_JOB)
        self.assertEqual(self.cluster.job(job)["id"], job)  # dpctl sees the same
        self.cluster.wait_step(job, 2)
        stream = subprocess.Popen(["curl", "-sSN", "--noproxy", "*",
                                   f"http://{self.http}/v1/jobs/{job}/watch"],
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(stream.stdout.close)
        self.addCleanup(stream.kill)
        steps = []
        while len(steps) < 5:
            event = json.loads(stream.stdout.readline())
            steps += [event["step"]["step"]] if "step" in event else []
        self.assertEqual(steps, list(range(steps[0], steps[0] + 5)))
        code, answer = self.curl(f"/v1/jobs/{job}/cancel", "-X", "POST")
        self.assertEqual((code, answer["id"]), (200, job))
        last = [json.loads(line) for line in stream.stdout][-1]
        self.assertEqual(last["job"]["state"], "JOB_CANCELLED")
        self.assertEqual(stream.wait(timeout=180), 0)
        code, answer = self.curl(f"/v1/jobs/{job}/cancel", "-X", "POST")
        self.assertEqual((code, answer["status"]), (409, "CONFLICT"))
        _, jobs = self.curl("/v1/jobs?active=true")
        self.assertEqual(jobs, {"jobs": []})
        self.leaves_no_rank()

    def test_what_dpctl_shows_of_a_job_is_there_as_json(self):
        job = self.submit()
        self.cluster.wait_state(job, "COMPLETED")
        for path, command in ((f"/v1/jobs/{job}", ("status", job)),
                              (f"/v1/jobs/{job}/report", ("report", job))):
            code, answer = self.curl(path)
            self.assertEqual(code, 200)
            shown = self.cluster.json(*command)
            for key in ("loss", "step", "measured_step_s", "predicted_step_s", "parameters"):
                if key in shown and key in answer:
                    self.assertEqual(answer[key], shown[key], msg=key)
        code, timeline = self.curl(f"/v1/jobs/{job}/timeline")
        self.assertEqual((code, timeline["job"]["id"]), (200, job))
        self.assertTrue(timeline["predicted"])
        _, events = self.curl(f"/v1/events?job={job}&limit=2")
        self.assertEqual(len(events["events"]), 2)
        _, nodes = self.curl("/v1/nodes")
        self.assertEqual([node["name"] for node in nodes["nodes"]], ["node-0", "node-1"])
        done = subprocess.run(["curl", "-sS", f"http://{self.http}/v1/jobs/{job}/logs?rank=0"],
                              capture_output=True, text=True, check=True, timeout=180)
        text = "".join(json.loads(line)["data"] for line in done.stdout.splitlines())
        self.assertEqual(text, self.cluster.dpctl("logs", job, "--rank", 0).stdout)

    def test_a_job_file_with_problems_is_refused_with_their_places(self):
        code, answer = self.curl("/v1/validate?file=wrong.toml", *TOML, stdin="[modell]\n")
        self.assertEqual((code, answer["status"]), (400, "INVALID"))
        self.assertIn("wrong.toml:1:", answer["message"])
        self.assertIn("model", answer["message"])
        # Nobody here knows where the file lies that came in a body.
        code, answer = self.curl("/v1/jobs", *TOML, stdin=job_text(data_path="corpus.txt"))
        self.assertEqual((code, answer["status"]), (400, "INVALID"))
        self.assertIn('"path" in [data] must be absolute', answer["message"])
        code, answer = self.curl("/v1/jobs/nothing")
        self.assertEqual((code, answer["code"], answer["status"]), (404, 404, "NOT_FOUND"))

    def test_metrics_are_what_prometheus_reads(self):
        job = self.submit(**SIM_JOB)
        self.cluster.wait_step(job, 2)

        def families():
            done = subprocess.run(["curl", "-sSi", f"http://{self.http}/metrics"],
                                  capture_output=True, text=True, check=True, timeout=180)
            head, text = done.stdout.replace("\r", "").split("\n\n", 1)
            self.assertIn("Content-Type: text/plain; version=0.0.4", head)
            return text, {f.name: f for f in text_string_to_metric_families(text)}

        wait_for("both ranks have figures",
                 lambda: len(families()[1]["dp_rank_busy_ratio"].samples) == 2)
        text, found = families()
        for family in found.values():
            self.assertIn(family.type, ("counter", "gauge", "histogram"), msg=family.name)
            self.assertNotEqual(family.documentation, "", msg=family.name)
        states = {s.labels["state"]: s.value for s in found["dp_jobs"].samples}
        self.assertEqual(states["RUNNING"], 1)
        self.assertEqual(sum(states.values()), 1)
        self.assertEqual({s.labels["state"]: s.value for s in found["dp_nodes"].samples}["READY"],
                         2)
        busy = found["dp_rank_busy_ratio"].samples
        self.assertEqual([(s.labels["job"], s.labels["rank"]) for s in busy],
                         [(job, "0"), (job, "1")])
        self.assertTrue(all(0 <= s.value <= 1.5 for s in busy), msg=busy)
        buckets = [s for s in found["dp_store_commit_seconds"].samples
                   if s.name.endswith("_bucket")]
        self.assertEqual(buckets[-1].labels["le"], "+Inf")
        self.assertEqual([b.value for b in buckets], sorted(b.value for b in buckets))
        self.assertGreater(buckets[-1].value, 0)
        submits = [s.value for s in found["dp_http_requests"].samples
                   if s.labels["path"] == "/v1/jobs" and s.labels["method"] == "POST"]
        self.assertEqual(submits, [1])
        if shutil.which("promtool") is not None:
            done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                                  capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, msg=done.stderr + done.stdout)

    def test_the_openapi_document_is_valid_and_tells_the_truth(self):
        code, document = self.curl("/openapi.json")
        self.assertEqual((code, document["openapi"]), (200, "3.1.0"))
        if importlib.util.find_spec("openapi_spec_validator") is not None:
            from openapi_spec_validator import validate
            validate(document)
        schemas = document["components"]["schemas"]
        used = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
        self.assertEqual(used - set(schemas), set())
        ids = [o["operationId"] for p in document["paths"].values() for o in p.values()
               if "operationId" in o]
        self.assertEqual(len(ids), len(set(ids)))
        for path, operations in document["paths"].items():
            for verb, operation in operations.items():
                named = set(re.findall(r"{(\w+)}", path))
                told = {p["name"] for p in operation.get("parameters", ())
                        if p["in"] == "path" and p["required"]}
                self.assertEqual(named, told, msg=path)
                if verb == "get" and not named:
                    self.assertEqual(self.curl_code(path), 200, msg=path)
        # Answers hold what their schema has, and nothing else.
        _, nodes = self.curl("/v1/nodes")
        self.assertEqual(set(nodes["nodes"][0]) - set(schemas["Node"]["properties"]), set())
        for name in ("/v1/plan", "/v1/simulate"):
            self.assertIn("post", document["paths"][name])

    def curl_code(self, path):
        # A stream goes on for ever; its first line says enough.
        stream = path.endswith("/watch")
        done = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-m",
                               "3" if stream else "170", f"http://{self.http}{path}"],
                              capture_output=True, text=True, check=False, timeout=180)
        self.assertIn(done.returncode, (0, 28) if stream else (0,), msg=path + done.stderr)
        return int(done.stdout)


class Attacks(unittest.TestCase):
    def setUp(self):
        self.controller = Controller()
        self.addCleanup(self.controller.close)

    def tearDown(self):
        self.assertEqual(self.controller.stop(), 0, msg=self.controller.text())

    def dial(self):
        host, port = self.controller.http.split(":")
        connection = socket.create_connection((host, int(port)), timeout=180)
        self.addCleanup(connection.close)
        return connection

    def test_idle_connections_keep_nobody_out(self):
        # More than there is room for, some of them in the midst of their first line.
        held = [self.dial() for _ in range(600)]
        for connection in held[::2]:
            try:
                connection.sendall(b"GET /v1/ver")
            except ConnectionError:
                pass  # it had to make room
        begin = time.monotonic()
        self.assertEqual(self.controller.ask("GET", "/v1/version").code, 200)
        print(f"with 600 idle connections a request takes {time.monotonic() - begin:.3f} s")
        for connection in held:
            connection.close()

    def test_byte_by_byte_requests_are_cut_off_and_others_served(self):
        slow = self.dial()
        request = b"GET /v1/version HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10000
        end = time.monotonic() + 60
        sent = 0
        with self.assertRaises(OSError):
            while time.monotonic() < end:
                slow.sendall(request[sent:sent + 1])
                sent += 1
                self.assertEqual(self.controller.ask("GET", "/v1/version").code, 200)
                slow.settimeout(0.1)
                try:
                    if slow.recv(1) == b"":
                        raise ConnectionResetError
                except TimeoutError:
                    pass
        self.assertLess(sent, len(request))

    def test_headers_and_paths_over_the_limits_are_refused(self):
        self.assertEqual(self.controller.ask("GET", "/v1/" + "a" * 5000).code, 414)
        connection = self.dial()
        try:
            connection.sendall(b"GET /v1/version HTTP/1.1\r\nHost: localhost\r\nX: "
                               + b"a" * 200000 + b"\r\n\r\n")
            answer = connection.recv(4096)
        except ConnectionError:
            answer = b""
        self.assertTrue(answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")),
                        msg=answer)
        self.assertEqual(self.controller.ask("GET", "/v1/version").code, 200)

    def test_requests_that_never_become_whole_keep_nobody_out(self):
        # Some of them fill the room for what was not understood yet, so that it can only be tried
        # again and again.
        post = (b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n")
        for request in (post + b"\r\n2;" + b"a" * 200000, post + b"\r\n5\r\n{}",
                        post + b"\r\n" + b"0" * 200000, post + b"X: " + b"a" * 30000,
                        post + b"\r\n0\r\nX: " + b"a" * 200000,
                        b"GET /v1/jobs?" + b"a&" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                        b"\r\n" * 100000, b"\0" * 200000):
            connection = self.dial()
            try:
                connection.sendall(request)
            except ConnectionError:
                pass  # refused while it came
            self.assertEqual(self.controller.ask("GET", "/v1/version").code, 200)
            nodes = subprocess.run([BIN / "dpctl", "nodes", "--controller",
                                    self.controller.address], capture_output=True, timeout=180)
            self.assertEqual(nodes.returncode, 0, msg=(request[:200], nodes.stderr))

    def test_deep_and_odd_json_is_refused(self):
        for body in (b"[" * 100000, b'{"schedule":' * 3000, b'{"schedule":"a","schedule":"b"}',
                     b'{"schedule":"\\u0000"}', b'{"schedule":"\xff"}', b'{"pipeline":1e999}',
                     b'{"pipeline":-1}', b'{"pipeline":4294967296}', b'{"slow":"rank=1:2"}',
                     b'{"slow":[1]}', b'{"nothing":1}', b"\x00", b"nul", b'{"hop_s":"NaN"}'):
            answer = self.controller.ask("POST", "/v1/simulate", body,
                                         {"Content-Type": "application/json"})
            self.assertEqual(answer.code, 400, msg=(body[:40], answer.body))
            self.assertEqual(answer.json()["status"], "INVALID")

    def test_another_address_than_loopback_is_refused(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            with self.assertRaisesRegex(AssertionError, "loopback"):
                Controller("--http-port", address)
        with self.assertRaisesRegex(AssertionError, "in use"):
            Controller("--http-port", self.controller.http)


if __name__ == "__main__":
    unittest.main()
