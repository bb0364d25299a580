"""What dpctl says and takes, without a cluster: help, JSON, arguments, units, closed pipes."""

import json
import os
import re
import subprocess
import unittest

from support import BIN, SOURCE, Cluster, job_text

# Each command, and whether it asks a controller.
COMMANDS = {"run": False, "local": False, "plan": True, "schedule": False, "model": False,
            "cluster": True, "validate": False, "submit": True, "jobs": True, "status": True,
            "cancel": True, "hold": True, "release": True, "priority": True, "checkpoint": True,
            "logs": True, "top": True, "report": True, "timeline": True, "experts": True,
            "events": True, "history": True, "audit": True, "backup": True, "restore": False,
            "nodes": True, "drain": True, "undrain": True, "quota": True, "whatif": True,
            "reassign": True, "calibrate": True, "doctor": True, "version": True}
SIZES = ("-P", 4, "-M", 8)


class Cli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def dpctl(self, *args, **kwargs):
        return self.cluster.dpctl(*args, **kwargs)

    def document(self, *args, check=0, **kwargs):
        """What -o json prints: one document, with a schema."""
        document = json.loads(self.dpctl(*args, "-o", "json", check=check, **kwargs).stdout)
        self.assertRegex(document["schema"], r"^dp\.\w+/1$")
        return document

    def test_help_names_exit_codes_and_no_option_that_means_nothing(self):
        listed = re.findall(r"^  (\w+) ", self.dpctl("help").stdout, re.M)
        self.assertEqual(sorted(listed), sorted(COMMANDS))
        for command, asks in COMMANDS.items():
            text = self.dpctl(command, "--help").stdout
            self.assertIn("Exit codes: 0 ", text, msg=command)
            self.assertEqual("--controller" in text, asks, msg=command)
            self.assertNotIn("Mandatory or optional", text, msg=command)
            self.assertLessEqual(max(map(len, text.splitlines())), 80, msg=command)

    def test_every_command_answers_in_json(self):
        job = SOURCE / "examples" / "tiny-moe.toml"
        path = self.cluster.root / "s.json"
        self.dpctl("schedule", "export", "dualpipe", *SIZES, "--out", path)
        self.assertIn("tiny-moe", self.document("model", "list")["models"])
        model = self.document("model", "show", "tiny-moe")
        self.assertGreater(model["parameters"], 6_000_000)
        valid = self.document("validate", job)
        self.assertEqual((valid["valid"], valid["parameters"]), (True, model["parameters"]))
        self.assertTrue(self.document("schedule", "list")["schedules"])
        self.assertTrue(self.document("schedule", "compare", *SIZES)["schedules"])
        shown = self.document("schedule", "show", "1f1b", *SIZES)
        self.assertEqual([len(spans) for spans in shown["ranks"]], [16] * 4)
        self.assertEqual(shown["ranks"][0][0], {"action": "F0@0", "start_s": 0, "end_s": 1,
                                                 "slack_s": 0})
        checked = self.document("schedule", "check", path)
        plan = self.document("plan", job)["chosen"]
        self.assertEqual(checked["schedule_hash"], plan["schedule_hash"])
        self.assertRegex(plan["schedule_hash"], r"^0x[0-9a-f]{16}$")
        self.assertIn(plan["schedule_hash"], self.dpctl("schedule", "check", path).stdout)
        self.document("version")
        self.document("doctor", check=None)
        self.document("local", "status", check=8)
        self.document("local", "down")
        self.assertEqual(json.loads(self.dpctl("schedule", "export", "dualpipe", *SIZES,
                                               "--format", "perfetto").stdout)
                         ["otherData"]["schema"], "dp.trace/1")

    def test_bytes_are_whole_and_seconds_are_not_rounding_noise(self):
        def numbers(value, key=""):
            if isinstance(value, dict):
                for name, inner in value.items():
                    yield from numbers(inner, name)
            elif isinstance(value, list):
                for inner in value:
                    yield from numbers(inner, key)
            elif not isinstance(value, (str, bool)) and value is not None:
                yield key, value
        documents = [self.document("plan", SOURCE / "examples" / "tiny-moe.toml")]
        for family in ("gpipe", "1f1b", "dualpipe", "dualpipev"):
            documents.append(self.document("schedule", "simulate", family, *SIZES, "--cost",
                                           "F=0.1,I=0.3,W=0.7"))
        for key, number in numbers(documents):
            if key.endswith("_bytes"):
                self.assertIsInstance(number, int, msg=key)
            if key.endswith("_s"):
                self.assertFalse(0 < abs(number) < 1e-12, msg=f"{key} {number}")

    def test_what_is_not_valid_is_an_answer_with_positions(self):
        path = self.cluster.root / "wrong.toml"
        path.write_text(job_text() + "[paralel]\npipeline = 2\n")
        done = self.document("validate", path, check=3)
        self.assertFalse(done["valid"])
        line = path.read_text().count("\n") - 1
        self.assertEqual([(p["line"], p["column"]) for p in done["problems"]], [(line, 2)])
        self.assertIn("paralel", done["problems"][0]["message"])
        self.assertIn("[parallel]", done["problems"][0]["help"])
        done = self.document("validate", SOURCE / "examples" / "tiny-moe.toml", "--set",
                             "pipeline=99", check=3)
        self.assertIn("99", done["problems"][0]["message"])
        schedule = json.loads(self.dpctl("schedule", "export", "gpipe", *SIZES).stdout)
        schedule["ranks"][0].pop()
        done = self.document("schedule", "check", "-", stdin=json.dumps(schedule), check=3)
        self.assertFalse(done["valid"])
        self.assertTrue(done["problems"][0]["message"])

    def test_a_model_is_shown_with_its_parts_and_operations(self):
        shown = self.document("model", "show", "DeepSeek-V3/R1")
        self.assertEqual(shown["total_params"], 671026419200)  # the published tensors
        self.assertAlmostEqual(shown["flops_per_token"]["causal"] / 1e9, 250.4, delta=0.1)
        self.assertAlmostEqual(shown["flops_per_token"]["noncausal"] / 1e9, 281.1, delta=0.1)
        self.assertEqual([layer["index"] for layer in shown["layers"]], list(range(61)))
        self.assertEqual([layer["kind"] for layer in shown["layers"]], ["dense"] * 3 + ["moe"] * 58)
        for layer in shown["layers"]:
            parts = sum(layer[part] for part in
                        ("attention", "router", "shared", "experts", "norms"))
            self.assertEqual(parts, layer["params"])
        whole = sum(layer["params"] for layer in shown["layers"])
        whole += shown["embedding_params"] + shown["head_params"]
        self.assertEqual(whole, shown["total_params"])
        config = SOURCE / "tests" / "fixtures" / "hf" / "deepseek-v3.json"
        read = self.document("model", "show", config)
        self.assertEqual({**read, "name": "deepseek-v3"}, shown)
        longer = self.document("model", "show", "deepseek-v3", "--seq-len", 8192)
        self.assertGreater(longer["flops_per_token"]["causal"], shown["flops_per_token"]["causal"])
        own = self.document("model", "show", SOURCE / "examples" / "own-shape.toml")
        self.assertEqual((own["name"], own["shape"]["window_layers"]), ("own-30b", 20))
        directory = SOURCE / "examples" / "qwen3-30b-a3b"
        self.assertEqual(self.document("model", "show", directory)["total_params"], 30532122624)
        for model, code, words in (("deepsek-v3", 4, 'did you mean "deepseek-v3"'),
                                   ("/nowhere/config.json", 4, "/nowhere/config.json"),
                                   (SOURCE / "tests/fixtures/hf/nemotron-h-8b.json", 3, "Mamba"),
                                   (SOURCE / "examples" / "trace.csv", 3, "trace.csv")):
            self.assertIn(words, self.dpctl("model", "show", model, check=code).stderr)
        self.assertIn("at most 1024", self.dpctl("model", "show", "gpt-1.5b", "--seq-len", 2048,
                                                 check=3).stderr)

    def test_a_failure_is_a_document_too(self):
        for args, code, status in ((("jobs",), 8, "UNAVAILABLE"),
                                   (("top",), 8, "UNAVAILABLE"),
                                   (("logs", "job-1"), 8, "UNAVAILABLE"),
                                   (("validate", "/nowhere.toml"), 4, "NOT_FOUND"),
                                   (("model", "show", "gpt"), 4, "NOT_FOUND"),
                                   (("schedule", "show", "dualpipe"), 2, "USAGE")):
            failed = self.document(*args, check=code)
            self.assertEqual((failed["schema"], failed["status"], failed["exit_code"]),
                             ("dp.error/1", status, code))
            self.assertIn(failed["message"], self.dpctl(*args, check=code).stderr)

    def test_no_argument_is_ignored(self):
        path = self.cluster.root / "g.json"
        self.dpctl("schedule", "export", "gpipe", *SIZES, "--out", path)
        job = SOURCE / "examples" / "tiny-moe.toml"
        for args, word in (
                (("schedule", "list", "extra"), "extra"),
                (("schedule", "list", "-P", 4), "-P"),
                (("schedule", "show", path, "-P", 8, "-M", 9), "-P"),
                (("schedule", "show", "gpipe", *SIZES, "--out", "x"), "--out"),
                (("schedule", "simulate", "gpipe", *SIZES, "--table"), "--table"),
                (("schedule", "compare", *SIZES, "--schedules", ","), "--schedules"),
                (("schedule", "compare", "gpipe", *SIZES), "gpipe"),
                (("schedule", "show", "gpipe", "1f1b", *SIZES), "1f1b"),
                (("model", "list", "x"), "show MODEL"),
                (("model", "show", "tiny-moe", "x"), "x"),
                (("local",), "up, down or status"),
                (("local", "status", "--nodes", 3), "--nodes"),
                (("local", "up", "down"), "down"),
                (("run",), "job file"),
                (("run", job, "--controller", "x:1"), "--controller"),
                (("plan", job, "--gpu", "h800", "--gpus", 8, "--cluster", "x"), "--cluster"),
                (("plan", job, "--explain", 0, "--map"), "--explain"),
                (("plan", job, "--export", "yaml"), "yaml"),
                (("plan", job, "--compare", "1f1b", "--rank-file", "x"), "--rank-file"),
                (("doctor", "x"), "x"),
                (("jobs", "job-1"), "job-1")):
            self.assertIn(word, self.dpctl(*args, check=2).stderr, msg=args)

    def test_a_place_that_nobody_could_be_told_is_refused_by_the_agent(self):
        long, empty = "--place has at most 63", "--place has a part without a name"
        for place, why in (("x" * 64, long), ("rack 7", long), ("rack\n7", long), ("/", empty),
                           ("/rack", empty), ("switch/", empty), ("switch//rack", empty)):
            done = subprocess.run([BIN / "dp-worker", "--controller", "127.0.0.1:1", "--state-dir",
                                   self.cluster.root / "agent", "--place", place],
                                  capture_output=True, text=True, timeout=10, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)

    def test_a_file_that_is_no_schedule_is_read_as_a_file(self):
        done = self.dpctl("schedule", "check", SOURCE / "README.md", check=3)
        self.assertIn("README.md:1:1", done.stderr)
        self.assertIn("/nowhere.json", self.dpctl("schedule", "check", "/nowhere.json",
                                                  check=4).stderr)

    def test_numbers_have_units_that_people_read(self):
        self.assertIn("671.03 B parameters", self.dpctl("model", "show", "deepseek-v3").stdout)
        small = SOURCE / "examples" / "tiny-moe.toml"
        self.assertIn("6.86 M parameters", self.dpctl("validate", small).stdout)
        plan = self.dpctl("plan", self.cluster.job_file(parallel_microbatches=1,
                                                        parallel_micro_batch_size=8)).stdout
        self.assertIn("1 micro-batch of 8 samples", plan)
        self.assertIn("MiB", plan)
        self.assertNotRegex(plan, r"\d [kMG]B\b")
        plan = self.dpctl("plan", self.cluster.job_file()).stdout
        self.assertIn("8 micro-batches of 1 sample; layers", plan)

    def test_a_strategy_for_a_config_json_and_a_cluster_file(self):
        config = self.cluster.root / "config.json"
        config.write_text(json.dumps({
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
            "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 32000}))
        cluster = ("--cluster", SOURCE / "examples" / "h800-cluster.toml", "--set", "data=64")
        own = self.document("plan", "--model", config, *cluster)
        named = self.document("plan", "--model", "mixtral-8x7b", *cluster)
        self.assertEqual(own["chosen"], named["chosen"])
        self.assertEqual(own["ranks"][-1]["slot"], 7)

    def test_a_reader_that_leaves_is_no_error(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([BIN / "dpctl", "schedule", "list"], env=self.cluster.env,
                              stdout=writer, stderr=subprocess.PIPE, text=True, timeout=180,
                              check=False)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([BIN / "dpctl", "schedule", "list"], env=self.cluster.env,
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=180,
                                  check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr)

    def test_doctor_looks_at_load_and_space(self):
        checks = {c["check"]: c["text"] for c in self.document("doctor", check=None)["checks"]}
        self.assertIn("load average", checks["load"])
        directory = self.cluster.root / "dp" / "local" / "controller" / "checkpoints" / "job-1"
        directory.mkdir(parents=True)
        (directory / "weights").write_bytes(b"x" * (3 << 20))
        checks = {c["check"]: c["text"] for c in self.document("doctor", check=None)["checks"]}
        self.assertRegex(checks["space"], r"3\.\d MiB in it, 3\.\d MiB of that checkpoints")


if __name__ == "__main__":
    unittest.main(verbosity=2)
