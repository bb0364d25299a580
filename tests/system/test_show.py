"""What is shown of a job while it runs and afterwards: progress, top, logs, report, timeline."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from support import BIN, SIM_JOB, ClusterTest, wait_for


WRITE = "1"  # the system call's number


def rest_of(master):
    """What comes until the other end of the terminal is closed."""
    text = ""
    while True:
        try:
            part = os.read(master, 65536).decode()
        except OSError:
            return text
        text += part
        if not part:
            return text


class Show(ClusterTest):
    def popen(self, *args, **kwargs):
        process = subprocess.Popen([BIN / "dpctl", *map(str, args)], env=self.cluster.env,
                                   text=True, **kwargs)
        self.addCleanup(process.kill)
        return process

    def on_terminal(self, columns, *args, until, deadline_s=180):
        """What a terminal of so many columns gets, up to the first text that `until` matches."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = self.popen(*args, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.addCleanup(os.close, master)
        text, end = "", time.monotonic() + deadline_s
        while not re.search(until, text, re.S):
            self.assertLess(time.monotonic(), end, msg=text)
            if select.select([master], [], [], 0.2)[0]:
                text += os.read(master, 65536).decode()
        process.send_signal(signal.SIGINT)
        return text + rest_of(master), process.wait(timeout=180)

    def test_tables_fit_the_terminal_unless_they_are_to_be_wide(self):
        cluster = self.cluster.up()
        why = "the fan of its second accelerator has stopped " * 4
        cluster.dpctl("nodes", "quarantine", "node-1", "--reason", why)
        cluster.dpctl("cancel", cluster.submit(**SIM_JOB), "--reason", why)
        job = cluster.wait_state("job-1", "CANCELLED")["id"]
        waits = cluster.submit(**SIM_JOB, parallel_pipeline=4, parallel_schedule="1f1b")
        cluster.dpctl("hold", waits, "--reason", why)
        for name, newest, gone in ((["nodes"], "node-1", {"ACCELERATORS", "CALIBRATED"}),
                                   (["audit"], "Cancel", {"FROM"}),
                                   (["history"], job, {"DECISIONS"}),
                                   (["jobs", "--queued"], waits, set())):
            heads, *rows = cluster.dpctl(*name).stdout.splitlines()
            self.assertTrue(any(len(row) > 80 for row in rows), msg=rows)
            end = r"--wide shows .*, too" if gone else rf"{newest}[^\n]*\n"
            text, _ = self.on_terminal(80, *name, until=end)
            lines = text.splitlines()
            self.assertEqual({line for line in lines if len(line) > 80}, set())
            self.assertEqual(gone - (set(heads.split()) - set(lines[0].split())), set())
            self.assertIn(newest, text)
            if any(row.endswith(why.strip()) for row in rows):
                self.assertIn("\u2026", text)
            text, _ = self.on_terminal(80, *name, "--wide", until=rf"{newest}[^\n]*\n")
            self.assertEqual(text.splitlines()[0].split(), heads.split())

    def test_following_joins_at_the_present_step_and_fits_the_terminal(self):
        cluster = self.cluster.up()
        job = cluster.submit(**SIM_JOB)
        step = cluster.wait_step(job, 8)["step"]
        text, code = self.on_terminal(30, "status", "-f", job, until=r"(step \d+.*){3}")
        self.assertEqual(code, 130)
        lines = re.findall(r"\r\x1b\[K([^\r]*)", text)
        self.assertGreater(int(re.search(r"step (\d+)/", lines[0]).group(1)), step)
        for line in lines:
            self.assertLess(len(line.split("\x1b")[0]), 30)
        self.assertIn("note: stopped following", text)
        self.assertNotIn("error", text)
        # Elsewhere a line now and then, and the end.
        follow = self.popen("status", "-f", job, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertIn(f"{job} running: gpipe", follow.stderr.readline())
        self.assertRegex(follow.stderr.readline(), r"step \d+/100000 .* ETA \d+[hm]")
        cluster.dpctl("cancel", job)
        out, errors = follow.communicate(timeout=180)
        self.assertEqual(follow.returncode, 10, errors)
        self.assertIn("CANCELLED", out)

    def test_top_keeps_its_columns(self):
        cluster = self.cluster.up()
        job = cluster.submit(parallel_pipeline=4, parallel_schedule="dualpipe", **SIM_JOB)
        cluster.wait_step(job, 3)
        wait_for("utilisation", lambda: "MiB" in cluster.dpctl("top", "--once").stdout or
                 re.search(r"\d ms +-$", cluster.dpctl("top", "--once").stdout, re.M))
        tables = [cluster.dpctl("top", "--once").stdout.splitlines()[1:] for _ in range(2)]
        heads = tables[0][0].split()
        self.assertEqual(len(heads), len(set(heads)))
        self.assertEqual((heads[2], *heads[-2:]), ("STEP", "TIME", "SKEW"))
        self.assertEqual(tables[0][0], tables[1][0])
        for line in sum(tables, []):
            self.assertEqual(len(line), len(tables[0][0]))
            self.assertLessEqual(len(line), 112)
        text, code = self.on_terminal(120, "top", "--plain", until="RANK.*RANK")
        self.assertEqual(code, 130)
        self.assertIn(f"note: stopped watching; {job} goes on", text)
        top = self.popen("top", "-o", "json", "-d", 0.1, stdout=subprocess.PIPE)
        documents = [json.loads(top.stdout.readline()) for _ in range(3)]
        top.stdout.close()  # it ends when nobody reads any more
        self.assertEqual(top.wait(timeout=180), 0)
        self.assertEqual({d["schema"] for d in documents}, {"dp.job/1"})

    def test_an_interrupt_while_a_table_is_written_is_no_lost_output(self):
        cluster = self.cluster.up()
        cluster.wait_step(cluster.submit(**SIM_JOB), 1)
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        top = self.popen("top", "--plain", "-d", 0.1, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        call = pathlib.Path(f"/proc/{top.pid}/syscall")
        # The first ends a write that has brought something, the second one that has not.
        for number in (signal.SIGINT, signal.SIGTERM):
            looks = []

            def waits_for_the_reader():
                looks.append(call.read_text().split()[0] == WRITE)
                return len(looks) > 10 and all(looks[-10:])
            wait_for("nobody reads, and the terminal is full", waits_for_the_reader)
            top.send_signal(number)
        text = rest_of(master)
        self.assertEqual(top.wait(timeout=180), 130, text)
        self.assertIn("note: stopped watching", text)

    def test_logs_come_rank_by_rank_and_say_when_there_is_nothing(self):
        cluster = self.cluster.up()
        job = cluster.submit(parallel_pipeline=4)
        cluster.wait_state(job, "COMPLETED")
        ranks = [int(line.split()[1]) for line in cluster.dpctl("logs", job).stdout.splitlines()]
        self.assertEqual(ranks, sorted(ranks))
        self.assertEqual(set(ranks), {0, 1, 2, 3})
        lines = [json.loads(line) for line in
                 cluster.dpctl("logs", job, "-o", "json").stdout.splitlines()]
        self.assertEqual([line["rank"] for line in lines], ranks)
        self.assertEqual({line["node"] for line in lines}, {"node-0", "node-1"})
        self.assertTrue(all("\n" not in line["line"] for line in lines))
        for path in cluster.root.rglob("rank-*.log"):
            path.write_bytes(b"")
        done = cluster.dpctl("logs", job)
        self.assertEqual(done.stdout, "")
        self.assertIn(f"no rank of {job} has written anything yet", done.stderr)

    def test_each_ranks_parts_add_up_to_the_step(self):
        cluster = self.cluster.up()
        job = cluster.submit(train_steps=6, parallel_pipeline=2, parallel_data=2,
                             parallel_expert=2, parallel_microbatches=4, parallel_schedule="1f1b")
        cluster.wait_state(job, "COMPLETED")
        report = cluster.json("report", job)
        parts = ("busy", "exchange", "bubble", "grad_sync", "optimizer")
        for which in ("measured", "predicted"):
            for rank in report["ranks"]:
                step = sum(rank[f"{which}_{part}_s"] for part in parts)
                wanted = report[f"{which}_step_s"]
                self.assertAlmostEqual(step, wanted, delta=0.1 * wanted, msg=(which, rank))
        self.assertTrue(all(isinstance(r["measured_peak_bytes"], int) for r in report["ranks"]))
        text = cluster.dpctl("report", job).stdout
        self.assertRegex(text, r"at step 1, \d\.\d+ over the last 6 steps")
        self.assertRegex(text, r"data 2, 4 micro-batches of 1 sample; \d+\.\d\d k parameters")
        heads = re.findall(r"^RANK +NODE +BUSY +EXCHANGE +BUBBLE +SUMS +OPTIMIZER +STEP", text, re.M)
        self.assertEqual(len(heads), 2)
        self.assertLessEqual(max(map(len, text.splitlines()[-14:])), 100)

    def test_a_timeline_has_the_prediction_under_each_step_and_global_ranks(self):
        cluster = self.cluster.up()
        # Steps are traced once a second, and the last.
        job = cluster.submit(parallel_pipeline=2, parallel_data=2, parallel_microbatches=4,
                             **{**SIM_JOB, "train_steps": 30})
        cluster.wait_state(job, "COMPLETED")
        trace = json.loads(cluster.dpctl("timeline", job).stdout)
        self.assertEqual(trace["otherData"]["schema"], "dp.trace/1")
        names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"]
                 if e["name"] == "process_name"}
        threads = {(names[e["pid"]], e["tid"]): e["args"]["name"] for e in trace["traceEvents"]
                   if e["name"] == "thread_name"}
        for track in ("measured", "predicted"):
            self.assertEqual([threads[f"{track}, replica {d}", p] for d in range(2)
                              for p in range(2)], [f"rank {r}" for r in range(4)])
        starts = {}
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                key = names[event["pid"]].split(",")[0], event["args"]["step"]
                starts[key] = min(starts.get(key, event["ts"]), event["ts"])
        steps = sorted(step for track, step in starts if track == "measured")
        self.assertGreater(len(steps), 1)
        for step in steps:
            self.assertAlmostEqual(starts["measured", step], starts["predicted", step], delta=1)

    def test_a_timeline_shows_what_ranks_sent_each_other_next_to_what_they_did(self):
        cluster = self.cluster.up()
        job = cluster.submit(parallel_pipeline=2, parallel_data=2, parallel_expert=2,
                             parallel_microbatches=4, parallel_schedule="dualpipe",
                             train_steps=4)
        cluster.wait_state(job, "COMPLETED")
        trace = json.loads(cluster.dpctl("timeline", job).stdout)["traceEvents"]
        rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
        moves = [e for e in trace if e.get("cat") == "communication"]
        last = max(e["args"]["step"] for e in moves)
        seen = {}
        for event in moves:
            arguments = event["args"]
            self.assertAlmostEqual(arguments["total_us"],
                                   arguments["hidden_us"] + arguments["exposed_us"], delta=0.01)
            if arguments["step"] == last:
                seen[rows[event["pid"], event["tid"]], arguments["kind"]] = arguments["moves"]
        kinds = ["dispatch(F)", "combine(F)", "combine(B)", "dispatch(B)"]
        for rank in range(4):
            # One move of each kind for each micro-batch and layer with experts that a rank runs.
            counts = {seen[f"rank {rank}, communication", kind] for kind in kinds}
            self.assertEqual(len(counts), 1)
            self.assertIn((f"rank {rank}, communication", "hop(F)"), seen)
        text = cluster.dpctl("timeline", job, "--format", "text").stdout
        self.assertIn(f"{job}, step {last}\n", text)
        for (row, kind), count in seen.items():
            rank = row.split()[1].rstrip(",")
            self.assertRegex(text, rf"(?m)^ +{rank}  {re.escape(kind)} +{count} +\d.*s +.*\d.*s$")
        self.assertRegex(text, r"(?m)^ +0  FB +\d+ +\d.*s +- +-$")
        wrong = cluster.dpctl("timeline", job, "--format", "svg", check=2)
        self.assertIn("there are perfetto, text", wrong.stderr)

    def test_the_report_of_a_resumed_job_says_so(self):
        cluster = self.cluster.up()
        job = cluster.submit(train_steps=6)
        written = cluster.wait_state(job, "COMPLETED")["checkpoint"]
        again = cluster.submit(train_steps=9, checkpoint_resume=written)
        cluster.wait_state(again, "COMPLETED")
        text = cluster.dpctl("report", again).stdout
        self.assertIn("resumed     from a checkpoint at step 6\n", text)
        self.assertRegex(text, r"at step 7, \d\.\d+ over the last 3 steps")
        last = cluster.submit(train_steps=6, checkpoint_resume=written)
        cluster.wait_state(last, "COMPLETED")
        text = cluster.dpctl("report", last).stdout
        self.assertIn("at step 6, after which there was nothing to do", text)
        # Of what was measured: a prediction may well be 510 us.
        measured = text.partition("\npredicted\n")[0]
        self.assertNotRegex(measured, r"\b0 (us|ms|s|B)\b")
        self.assertNotIn("at step 1", text)
        self.assertRegex(text, r"(?s)measured, mean.* 0  node-\d +- +- +- +- +- +- ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
