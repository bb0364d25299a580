"""Bad input: one clear error with position and fix, the documented exit code, nothing lost."""

import shutil
import sqlite3
import subprocess
import unittest

from support import BIN, ClusterTest, job_text, wait_for


class JobFile(ClusterTest):
    """What needs no cluster: a job file that is wrong in itself."""

    def refused(self, text, code, *parts):
        path = self.cluster.root / "job.toml"
        path.write_text(text)
        done = self.cluster.dpctl("validate", path, check=code)
        self.assertEqual(done.stdout, "")
        for part in parts:
            self.assertIn(part, done.stderr)
        return done.stderr

    def test_an_unknown_key_gets_its_position_the_line_and_a_suggestion(self):
        text = job_text() + "[checkpoint]\nevery_step = 3\n"
        line = text.count("\n")
        self.refused(text, 3, f"job.toml:{line}:1", "every_step = 3", "^", "every_steps")

    def test_an_unknown_section_gets_a_suggestion(self):
        self.refused(job_text() + "[paralel]\npipeline = 2\n", 3, "paralel", "parallel")

    def test_a_wrong_type_names_both_types(self):
        self.refused(job_text(train_steps="many"), 3, "job.toml:", "steps", "integer", "string")

    def test_an_overflow_is_refused_not_wrapped(self):
        text = job_text().replace("steps = 4", "steps = 99999999999999999999")
        self.refused(text, 3, "job.toml:", "99999999999999999999")
        self.refused(job_text(model_layers=3000000000), 3, "layers", "3000000000")

    def test_a_syntax_error_has_its_position(self):
        self.refused("name = \"x\n", 3, "job.toml:1:")

    def test_every_problem_is_listed_at_once(self):
        errors = self.refused(job_text(train_steps=-1, model_layers="x", optimizer_lrr=1), 3)
        for word in ("steps", "layers", "lrr"):
            self.assertIn(word, errors)

    def test_a_missing_file_is_not_found(self):
        done = self.cluster.dpctl("submit", "/nowhere/job.toml", check=4)
        self.assertIn("/nowhere/job.toml", done.stderr)

    def test_stdin_is_a_job_file_too(self):
        self.cluster.dpctl("validate", "-", stdin=job_text())
        done = self.cluster.dpctl("validate", "-", stdin="x = 1\n", check=3)
        self.assertIn(":1:1", done.stderr)

    def test_expert_must_divide_data(self):
        self.refused(job_text(parallel_expert=2, parallel_data=3, train_global_batch=24), 3,
                     "expert", "data", "3")

    def test_more_ranks_than_layers_is_refused(self):
        done = self.cluster.dpctl("plan", self.cluster.job_file(
            parallel_pipeline=8, parallel_microbatches=16, train_global_batch=16), check=None)
        self.assertIn(done.returncode, (3, 7))
        self.assertIn("layers", done.stderr)
        self.assertIn("4", done.stderr)

    def test_a_pipeline_that_cannot_hold_its_microbatches_names_the_nearest_that_can(self):
        done = self.cluster.dpctl("plan", self.cluster.job_file(
            parallel_pipeline=4, parallel_schedule="dualpipe", parallel_microbatches=3,
            train_global_batch=3), check=None)
        self.assertIn(done.returncode, (3, 7))
        self.assertRegex(done.stderr, r"dualpipe")
        self.assertRegex(done.stderr, r"\b[68]\b")
        self.cluster.dpctl("schedule", "simulate", "dualpipe", "-P", 3, "-M", 12, check=3)

    def test_usage_errors_exit_with_2(self):
        for args in (["nonsense"], ["submit"], ["schedule", "show", "dualpipe"],
                     ["jobs", "--no-such-option"], ["plan", "-o", "yaml", "x.toml"]):
            self.cluster.dpctl(*args, check=2)

    def test_an_unknown_schedule_names_those_that_there_are(self):
        done = self.cluster.dpctl("schedule", "show", "dualpip", "-P", 4, "-M", 8, check=4)
        self.assertIn("dualpipe", done.stderr)


class Doors(ClusterTest):
    """What the controller and the nodes refuse."""

    def test_an_unreachable_controller_says_what_to_do(self):
        done = self.cluster.dpctl("jobs", check=8)
        self.assertIn("dpctl local up", done.stderr)
        done = self.cluster.dpctl("jobs", "--controller", "127.0.0.1:1", check=8)
        self.assertIn("127.0.0.1:1", done.stderr)

    def test_an_empty_corpus_fails_the_job_with_the_path(self):
        cluster = self.cluster.up()
        empty = cluster.root / "empty.txt"
        empty.write_bytes(b"")
        for path in (empty, cluster.root / "absent.txt", cluster.root):
            job = cluster.submit(data_path=str(path))
            done = cluster.dpctl("status", "-f", job, check=9)
            self.assertIn(str(path), done.stderr)
            self.assertIn("rank", done.stderr)
        self.leaves_nothing()

    def test_ranks_that_read_different_texts_do_not_start(self):
        cluster = self.cluster.up()
        for node, text in (("node-0", b"a b c d " * 2000), ("node-1", b"d c b a " * 2000)):
            (cluster.state / node / "corpus").write_bytes(text)
        # A rank's directory lies two levels below its node's.
        job = cluster.submit(parallel_pipeline=4, data_path="/proc/self/cwd/../../corpus")
        done = cluster.dpctl("status", "-f", job, check=9)
        for part in ("DataDiffers", "node-0", "node-1", "different texts"):
            self.assertIn(part, done.stderr)
        self.leaves_no_rank()

    def test_more_ranks_than_slots_waits_with_the_numbers(self):
        cluster = self.cluster.up()
        job = cluster.submit(parallel_pipeline=4, parallel_data=2, train_global_batch=16,
                             resources_device="sim", sim_forward_s=0.001, sim_input_grad_s=0.001,
                             sim_weight_grad_s=0.001, sim_pair_s=0.002)
        waiting = wait_for("a reason", lambda: (lambda j: j if j["reason"] else None)(
            cluster.job(job)))
        self.assertIn("8", waiting["message"])
        self.assertIn("4", waiting["message"])
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")

    def test_an_unknown_job_is_not_found(self):
        cluster = self.cluster.up()
        for verb in ("status", "cancel", "report", "timeline", "logs", "checkpoint"):
            done = cluster.dpctl(verb, "job-999", check=4)
            self.assertIn("job-999", done.stderr)

    def test_a_finished_job_is_not_cancelled_again(self):
        cluster = self.cluster.up()
        job = cluster.submit()
        cluster.wait_state(job, "COMPLETED")
        cluster.dpctl("cancel", job, check=6)
        self.assertEqual(cluster.job(job)["state"], "JOB_COMPLETED")

    def test_a_second_controller_on_the_state_directory_or_the_port_ends(self):
        cluster = self.cluster.up()
        address = (cluster.state / "controller.addr").read_text().strip()
        directory = cluster.state / "controller"
        same_directory = [BIN / "dp-controller", "--state-dir", directory, "--listen",
                          "127.0.0.1:0"]
        same_port = [BIN / "dp-controller", "--state-dir", cluster.root / "other", "--listen",
                     address]
        for argv, word in ((same_directory, str(directory)), (same_port, address)):
            done = subprocess.run(argv, env=cluster.env, capture_output=True, text=True,
                                  timeout=180, check=False)
            self.assertEqual(done.returncode, 6, done.stderr)
            self.assertIn(word, done.stderr)
        self.assertEqual(len(cluster.json("nodes")["nodes"]), 2)

    def test_a_second_agent_on_the_state_directory_ends(self):
        cluster = self.cluster.up()
        done = subprocess.run([BIN / "dp-worker", "--state-dir", cluster.state / "node-0", "--name",
                               "node-0", "--controller", f"@{cluster.state}/controller.addr"],
                              env=cluster.env, capture_output=True, text=True, timeout=180,
                              check=False)
        self.assertEqual(done.returncode, 6, done.stderr)


class Database(ClusterTest):
    def stopped_with_a_job(self):
        cluster = self.cluster.up()
        job = cluster.submit()
        cluster.wait_state(job, "COMPLETED")
        cluster.down()
        databases = [p for p in (cluster.state / "controller").iterdir()
                     if p.is_file() and p.read_bytes()[:15] == b"SQLite format 3"]
        self.assertEqual(len(databases), 1)
        return databases[0], job

    def controller(self, code):
        done = subprocess.run([BIN / "dp-controller", "--state-dir",
                               self.cluster.state / "controller", "--listen", "127.0.0.1:0"],
                              env=self.cluster.env, capture_output=True, text=True, timeout=180,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_a_truncated_database_is_refused_and_left_as_it_is(self):
        database, _ = self.stopped_with_a_job()
        whole = database.read_bytes()
        for size in (0x40, 5000, len(whole) // 2):
            database.write_bytes(whole[:size])
            errors = self.controller(3)
            self.assertIn(database.name, errors)
            self.assertEqual(database.read_bytes(), whole[:size])

    def test_a_newer_schema_is_refused_and_left_as_it_is(self):
        database, job = self.stopped_with_a_job()
        with sqlite3.connect(database) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.close()
        errors = self.controller(6)
        self.assertIn(str(version + 1), errors)
        with sqlite3.connect(database) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        self.cluster.up()
        self.assertEqual(self.cluster.job(job)["state"], "JOB_COMPLETED")

    def test_a_file_that_is_no_database_is_refused(self):
        database, _ = self.stopped_with_a_job()
        shutil.copy("/usr/share/common-licenses/GPL-3", database)
        self.controller(3)

    def test_history_outlives_the_cluster(self):
        _, job = self.stopped_with_a_job()
        self.cluster.up()
        self.assertEqual(len(self.cluster.json("report", job)["steps"]), 4)
        self.assertIn("rank 0", self.cluster.dpctl("logs", job).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
