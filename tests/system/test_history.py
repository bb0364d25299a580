"""What was and who did it, with real daemons: events that are followed, history, audit, backups."""

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import unittest

from support import BIN, SIM_JOB, ClusterTest, wait_for

LITTLE = {**SIM_JOB, "train_steps": 5, "sim_scale": 0.1}


class History(ClusterTest):
    def follow(self, *args):
        """`events -f` as a process whose lines are events."""
        cluster = self.cluster
        process = subprocess.Popen([str(BIN / "dpctl"), "events", "-f", *args, "-o", "json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=cluster.env)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def read_until(self, process, job, text):
        events = []
        for line in process.stdout:
            event = json.loads(line)
            self.assertEqual(event["schema"], "dp.event/1")
            events.append(event)
            if event["job"] == job and event["message"].startswith(text):
                return events
        self.fail(f"the stream ended before {text}: {process.stderr.read()}")

    def test_events_are_followed_and_resumed_without_gap_or_repetition(self):
        cluster = self.cluster.up()
        process = self.follow()
        first = cluster.submit(**LITTLE)
        events = self.read_until(process, first, "COMPLETED")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        last = events[-1]["id"]
        self.assertIn(f"--after {last}", process.stderr.read())
        second = cluster.submit(**LITTLE)
        more = self.read_until(self.follow("--after", str(last)), second, "COMPLETED")
        ids = [event["id"] for event in events + more]
        self.assertEqual(ids, list(range(ids[0], ids[0] + len(ids))))
        # Of one job alone; and what was, without -f, is the same.
        own = self.read_until(self.follow("--after", str(last), second), second, "COMPLETED")
        self.assertEqual({event["job"] for event in own}, {second})
        self.assertEqual([e for e in more if e["job"] == second], own)
        listed = cluster.json("events", second)["events"]
        self.assertEqual([e["id"] for e in listed][:len(own)], [e["id"] for e in own])

    def test_a_follower_outlives_a_controller_that_is_killed(self):
        cluster = self.cluster.up()
        process = self.follow()
        first = cluster.submit(**LITTLE)
        events = self.read_until(process, first, "COMPLETED")
        os.kill(cluster.pid("controller"), signal.SIGKILL)
        cluster.up()
        second = cluster.submit(**LITTLE)
        events += self.read_until(process, second, "COMPLETED")
        ids = [event["id"] for event in events]
        self.assertEqual(ids, list(range(ids[0], ids[0] + len(ids))))

    def test_history_and_audit_say_what_was_and_who_did_it(self):
        cluster = self.cluster.up()
        done = cluster.submit(**LITTLE)
        cluster.wait_state(done, "COMPLETED")
        cancelled = cluster.submit(**SIM_JOB)
        cluster.wait_state(cancelled, "RUNNING")
        http = cluster.json("local", "status")["http_address"]
        subprocess.run(["curl", "-fsS", "--noproxy", "*", "-X", "POST", "-d",
                        '{"user": "web", "reason": "enough"}', "-H",
                        "Content-Type: application/json",
                        f"http://{http}/v1/jobs/{cancelled}/cancel"], check=True,
                       capture_output=True)
        cluster.wait_state(cancelled, "CANCELLED")
        history = cluster.json("history")["entries"]
        self.assertEqual([(e["job"]["id"], e["job"]["state"]) for e in history],
                         [(cancelled, "JOB_CANCELLED"), (done, "JOB_COMPLETED")])
        self.assertEqual(cluster.json("history", "--user", "nobody-else")["entries"], [])
        self.assertEqual(cluster.json("history", "--since", "2095-01-01")["entries"], [])
        self.assertIn("enough", cluster.dpctl("history", "--since", "1h").stdout)
        self.assertIn(f"nothing was decided about the ranks of {done}",
                      cluster.dpctl("history", done).stdout)
        entries = cluster.json("audit", "--object", cancelled)["entries"]
        self.assertEqual([(e["verb"], e["door"], e["outcome"]) for e in entries],
                         [("SubmitJob", "grpc", "ok"), ("CancelJob", "http", "ok")])
        self.assertEqual(entries[1]["user"], "web")
        self.assertEqual((entries[1]["before"], entries[1]["after"]),
                         ("RUNNING 1.1", "STOPPING 1.1"))
        self.assertEqual(len(cluster.json("audit", "--user", "web")["entries"]), 1)
        cluster.dpctl("audit", "--since", "yesterday", check=2)

    def test_a_backup_brings_back_what_was(self):
        cluster = self.cluster.up()
        before = cluster.submit(**LITTLE)
        cluster.wait_state(before, "COMPLETED")
        file = str(cluster.root / "copy.db")
        made = cluster.json("backup", file)
        self.assertEqual(made["bytes"], pathlib.Path(file).stat().st_size)
        self.assertRegex(made["hash"], r"^0x[0-9a-f]{16}$")
        after = cluster.submit(**LITTLE)
        cluster.wait_state(after, "COMPLETED")
        state = next(pathlib.Path(cluster.root).rglob("controller.db")).parent
        self.assertIn("in use by", cluster.dpctl("restore", file, "--state", state,
                                                 check=6).stderr)
        known = cluster.json("events", "-n", "1")["events"][-1]["id"]
        cluster.down()
        kept = cluster.json("restore", file, "--state", state)["kept"]
        self.assertTrue(pathlib.Path(kept).is_file())
        cluster.up()
        self.assertEqual([j["id"] for j in cluster.json("jobs")["jobs"]], [before])
        cluster.dpctl("status", after, check=4)
        # Who followed the events of before does not wait until as many have happened again.
        self.assertIn("there is no event", cluster.dpctl("events", "-f", "--after", known + 1000,
                                                         check=6).stderr)
        # And the other way round.
        cluster.down()
        cluster.dpctl("restore", kept, "--state", state)
        cluster.up()
        self.assertEqual([j["id"] for j in cluster.json("jobs")["jobs"]], [after, before])

    def fill(self):
        """Makes the database larger than what is on its way to a caller that does not read."""
        cluster = self.cluster.up()
        cluster.down()
        state = next(pathlib.Path(cluster.root).rglob("controller.db")).parent
        with contextlib.closing(sqlite3.connect(state / "controller.db")) as database:
            database.execute("CREATE TABLE filler (bytes BLOB)")
            database.execute("INSERT INTO filler VALUES (zeroblob(48 << 20))")
            database.commit()
        cluster.up()
        return state

    def taker(self, target, descriptor):
        process = subprocess.Popen([str(BIN / "dpctl"), "backup", target], env=self.cluster.env,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   pass_fds=[] if descriptor is None else [descriptor])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_made(self, count):
        log = self.cluster.state / "controller.log"
        wait_for("a copy is made", lambda: log.read_text().count("backup.made") == count)

    def test_callers_that_do_not_take_their_backups_fill_no_disk(self):
        state = self.fill()
        reads, writes = os.pipe()
        with open(reads, "rb"), open(writes, "wb"):
            takers = []
            for number in range(1, 5):
                takers.append(self.taker(f"/dev/fd/{writes}", writes))
                self.wait_made(number)
            self.assertEqual(len(list(state.glob("backup-*.tmp"))), 4)
            file = self.cluster.root / "copy.db"
            refused = self.cluster.dpctl("backup", file, check=8)
            self.assertIn("4 backups are being taken", refused.stderr)
            self.assertEqual(list(self.cluster.root.glob("copy.db*")), [])
            for taker in takers:
                taker.kill()
            wait_for("no copy is left", lambda: not list(state.glob("backup-*.tmp")))
            self.cluster.dpctl("backup", file)

    def test_a_backup_that_is_told_to_end_leaves_nothing(self):
        state = self.fill()
        root = self.cluster.root

        def caught():
            """A dpctl that is stopped in the middle, or None when it was done before."""
            taker = self.taker(root / "copy.db", None)
            wait_for("the file is begun", lambda: list(root.glob("copy.db*")))
            taker.send_signal(signal.SIGSTOP)
            if list(root.glob("copy.db.part-*")):
                return taker
            taker.send_signal(signal.SIGCONT)
            taker.wait()
            (root / "copy.db").unlink()
            return None
        taker = wait_for("a backup in the middle", caught)
        taker.terminate()
        taker.send_signal(signal.SIGCONT)
        self.assertEqual(taker.wait(60), 130)
        self.assertEqual(list(root.glob("copy.db*")), [])
        wait_for("no copy is left", lambda: not list(state.glob("backup-*.tmp")))

    def test_backups_to_one_file_at_once_do_not_mix(self):
        self.fill()
        file = self.cluster.root / "copy.db"
        file.write_text("what was there")
        link = self.cluster.root / "latest.db"
        link.symlink_to(file)
        first = self.taker(str(link), 0)
        part = wait_for("the first is under way",
                        lambda: list(self.cluster.root.glob("copy.db.part-*")))[0]
        first.send_signal(signal.SIGSTOP)
        self.assertTrue(part.exists(), "it was done before it was stopped")
        self.wait_made(1)
        made = self.cluster.json("backup", file)
        self.assertEqual(file.stat().st_size, made["bytes"])
        self.cluster.submit(**LITTLE)
        first.send_signal(signal.SIGCONT)
        self.assertEqual(first.wait(timeout=60), 0)
        self.assertTrue(link.is_symlink())
        with contextlib.closing(sqlite3.connect(file)) as database:
            self.assertEqual(database.execute("PRAGMA integrity_check").fetchone(), ("ok",))
            self.assertEqual(database.execute("SELECT count(*) FROM jobs").fetchone(), (0,))
        self.assertEqual(list(self.cluster.root.glob("copy.db.part*")), [])

    def test_a_backup_leaves_what_is_no_file_as_it_is(self):
        cluster = self.cluster.up()
        fifo = cluster.root / "fifo"
        os.mkfifo(fifo)
        with open(os.open(fifo, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0) as pipe:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
            made = cluster.json("backup", fifo)
            self.assertEqual(len(pipe.read(1 << 20)), made["bytes"])
        self.assertTrue(fifo.is_fifo())
        self.assertIn("is a directory", cluster.dpctl("backup", cluster.root, check=3).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
