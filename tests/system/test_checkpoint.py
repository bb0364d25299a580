"""Checkpoints of jobs while things go wrong, and their way to others and back."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from support import BASE_JOB, BIN, ClusterTest, wait_for

LONG = {"train_steps": 100000, "parallel_schedule": "1f1b", "checkpoint_every_steps": 10,
        "checkpoint_keep": 1}


class CheckpointTest(ClusterTest):
    def start(self, directory, **changes):
        return self.cluster.submit(checkpoint_directory=str(directory), **{**LONG, **changes})

    def events(self, job, kind):
        return [e["message"] for e in self.cluster.json("events", job)["events"]
                if e["kind"] == kind]

    def await_event(self, job, kind, seen=0):
        return wait_for(f"{kind} of {job}",
                        lambda: (lambda found: found[seen:] if len(found) > seen else None)(
                            self.events(job, kind)))

    def goes_on(self, job):
        step = self.cluster.job(job)["step"]
        self.cluster.wait_step(job, step + 25)
        self.assertEqual(self.cluster.job(job)["state"], "JOB_RUNNING")

    def is_whole(self, path):
        return self.cluster.json("checkpoint", "check", path)

    def resumes(self, path, more=3, **changes):
        """A job that goes on from there ends well; its report."""
        step = self.cluster.json("checkpoint", "show", path)["step"]
        job = self.cluster.submit(**{"train_steps": step + more, "checkpoint_resume": str(path),
                                     **changes})
        done = self.cluster.wait_state(job, "COMPLETED")
        self.assertEqual(done["step"], step + more)
        return self.cluster.json("report", job)


class Failing(CheckpointTest):
    def check_failure(self, job, directory, reason, mend, now=None, again=lambda: None):
        """After it became impossible to write; `mend` ends that. What stands is in `now`. `again`
        makes it impossible once more, should a checkpoint that was under way have made room."""
        cluster = self.cluster
        for message in self.await_event(job, "job.checkpoint_failed"):
            self.assertRegex(message, r"^step \d+: checkpoint of step \d+, rank \d: ")
            self.assertIn(reason, message)
            self.assertRegex(message, r"what stands is .*/step-\d+$")
        self.goes_on(job)

        def asked():
            again()
            done = cluster.dpctl("checkpoint", job, check=None)
            return done if done.returncode == 1 else None
        self.assertIn(reason, wait_for("a checkpoint that was asked for fails", asked).stderr)
        stands = cluster.job(job)["checkpoint"]
        self.is_whole((now or directory) / pathlib.Path(stands).name)
        mend()
        written = cluster.json("checkpoint", job)
        self.assertGreater(written["step"], int(stands.rsplit("-", 1)[1]))
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        self.leaves_no_rank()
        # Whatever a checkpoint was at when the job was cancelled.
        whole = [p for p in directory.iterdir() if p.name.removeprefix("step-").isdigit()]
        # By now the written one may have made way for a newer one.
        self.assertGreaterEqual(max(int(p.name.removeprefix("step-")) for p in whole),
                                written["step"])
        for path in whole:
            self.is_whole(path)
        self.resumes(directory, parallel_schedule="gpipe", parallel_pipeline=1)

    @unittest.skipUnless(os.geteuid() == 0, "mounts a small file system")
    def test_a_full_disk_fails_a_checkpoint_and_training_goes_on(self):
        cluster = self.cluster.up()
        disk = cluster.root / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "dp-test", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        job = self.start(disk / "saved")
        self.await_event(job, "job.checkpoint")
        filler = disk / "filler"

        def fill():
            with open(filler, "ab", buffering=0) as file:
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * 65536) == 65536:
                        pass
                file.truncate(file.tell() - 512 * 1024)  # room for the beginning of a checkpoint
            return self.events(job, "job.checkpoint_failed")
        # One that was under way may still be done, and make room as it takes its forerunner's place.
        wait_for("a checkpoint fails", fill)
        self.check_failure(job, disk / "saved", "No space left on device", filler.unlink,
                           again=fill)

    def test_a_directory_that_is_lost_fails_a_checkpoint_and_training_goes_on(self):
        cluster = self.cluster.up()
        directory, aside = cluster.root / "saved", cluster.root / "aside"
        job = self.start(directory)
        self.await_event(job, "job.checkpoint")
        os.rename(directory, aside)
        directory.write_text("not a directory")

        def mend():
            directory.unlink()
            os.rename(aside, directory)
        self.check_failure(job, directory, str(directory), mend, now=aside)

    def test_the_last_checkpoint_of_a_run_fails_the_job(self):
        cluster = self.cluster.up()
        directory = cluster.root / "saved"
        job = self.start(directory, train_steps=400, checkpoint_every_steps=0, retry_max=0)
        cluster.wait_step(job, 1)
        if directory.exists():
            directory.rename(cluster.root / "aside")
        directory.write_text("not a directory")
        done = cluster.wait_state(job, "FAILED")
        self.assertEqual(done["step"], 400)
        self.assertIn(str(directory), done["message"])
        # Where it is known before the first step, no step is made.
        job = self.start(directory, train_steps=400)
        done = cluster.wait_state(job, "FAILED")
        self.assertEqual(done["step"], 0)
        self.assertIn(str(directory), done["message"])


class Held(CheckpointTest):
    """The threads that write are held up in front of the disk, by a pipe that nobody opens."""

    def setUp(self):
        super().setUp()
        if "DP_HELD_LIBRARY" not in os.environ:
            self.skipTest("a sanitizer has to be loaded first")
        self.pipe = self.cluster.root / "pipe"
        self.cluster.env.update(LD_PRELOAD=os.environ["DP_HELD_LIBRARY"],
                                DP_TEST_HOLDS=str(self.pipe),
                                ASAN_OPTIONS="verify_asan_link_order=0")

    def hold(self, ranks=2):
        """Every rank is at the end of what it writes of a checkpoint. The pipe may come when some
        have ended: then those that it caught are let go, and all meet it at the next one."""
        reached = [pathlib.Path(f"{self.pipe}.r{rank}") for rank in range(ranks)]
        for _ in range(10):
            os.mkfifo(self.pipe)
            try:
                return wait_for("the ranks' writers are held up",
                                lambda: all(path.exists() for path in reached), deadline_s=10)
            except AssertionError:
                self.let_go()
        return self.fail("no checkpoint holds up all ranks")

    def let_go(self):
        with contextlib.suppress(OSError):  # where no rank has come to it
            writer = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
            self.addCleanup(os.close, writer)
            self.pipe.unlink()
            os.set_blocking(writer, True)
        self.pipe.unlink(missing_ok=True)
        for path in self.cluster.root.glob("pipe.*"):
            path.unlink()

    def partial(self, directory):
        names = [p.name for p in directory.iterdir() if p.name.endswith(".partial")]
        self.assertEqual(len(names), 1)
        return int(names[0].removeprefix("step-").removesuffix(".partial"))

    def test_steps_go_on_while_the_disk_does_not(self):
        cluster = self.cluster.up()
        directory = cluster.root / "saved"
        job = self.start(directory)
        self.await_event(job, "job.checkpoint")
        self.hold()
        step, known = self.partial(directory), len(self.events(job, "job.checkpoint"))
        # Up to where the next one is due, which waits for this one.
        cluster.wait_step(job, step + LONG["checkpoint_every_steps"])
        self.assertEqual(len(self.events(job, "job.checkpoint")), known)
        writer = os.open(self.pipe, os.O_WRONLY)
        self.assertIn(f"/step-{step}", self.await_event(job, "job.checkpoint", known)[0])
        self.pipe.unlink()
        os.close(writer)
        self.goes_on(job)
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        self.is_whole(directory)

    def test_ranks_that_are_moved_do_not_wait_for_a_disk_that_stands_still(self):
        cluster = self.cluster.up()
        job = self.start(cluster.root / "saved", checkpoint_every_steps=0)
        node = cluster.wait_step(job, 5)["ranks"][0]["node"]
        os.mkfifo(self.pipe)
        asks = subprocess.Popen([BIN / "dpctl", "checkpoint", job], env=cluster.env,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(asks.wait)
        self.addCleanup(asks.kill)
        wait_for("the ranks' writers are held up", lambda: all(
            pathlib.Path(f"{self.pipe}.r{rank}").exists() for rank in range(2)))
        self.pipe.unlink()  # who writes later is not
        cluster.dpctl("reassign", job, "--away", node)
        after = wait_for("others go on", lambda: (
            lambda j: j if j["state"] == "JOB_RUNNING" and (j["epoch"] > 1 or j["attempt"] > 1)
            else None)(cluster.job(job)))
        self.assertEqual((after["attempt"], after["epoch"]), (1, 2))
        self.goes_on(job)
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")

    def test_a_rank_killed_in_a_checkpoint_leaves_the_last_good_one(self):
        cluster = self.cluster.up()
        directory = cluster.root / "saved"
        for victim in range(2):
            job = self.start(directory, recovery_policy="off")
            self.await_event(job, "job.checkpoint")
            self.hold()
            step, stands = self.partial(directory), cluster.job(job)["checkpoint"]
            os.kill(cluster.job(job)["ranks"][victim]["pid"], signal.SIGKILL)
            self.pipe.unlink()
            cluster.wait_state(job, "FAILED")
            self.leaves_no_rank()
            self.assertEqual(self.partial(directory), step)  # left behind, taken for nothing
            self.assertEqual(self.is_whole(directory)["path"], stands)
            self.resumes(directory, checkpoint_directory=str(directory))
            self.assertEqual([p for p in directory.iterdir() if p.suffix == ".partial"], [])
            for reached in cluster.root.glob("pipe.*"):
                reached.unlink()
            shutil.rmtree(directory)


class Files(CheckpointTest):
    def trained(self, **changes):
        job = self.cluster.submit(**changes)
        done = self.cluster.wait_state(job, "COMPLETED")
        return done["checkpoint"], self.cluster.json("report", job)

    def test_weights_go_to_others_and_come_back(self):
        cluster = self.cluster.up()
        shape = {f"model_{key}": None for key in BASE_JOB["model"]}  # the preset's own
        for model in ({}, {**shape, "model_preset": "tiny-mla"}):
            saved, trained = self.trained(train_steps=12, **model)
            shown = cluster.json("checkpoint", "show", saved)
            self.assertEqual((shown["step"], shown["trained"]), (12, True))
            exported = cluster.root / f"exported-{shown['family']}"
            written = cluster.json("checkpoint", "export", saved, exported, "--dtype", "f32")
            self.assertEqual(written["schema"], "dp.checkpoint_export/1")
            files = {p.name: p.stat() for p in exported.iterdir()}
            self.assertEqual(set(files), {"config.json", "model.safetensors.index.json",
                                          "model-00001-of-00001.safetensors"})
            self.assertEqual(len({info.st_mode for info in files.values()}), 1)
            config = json.loads((exported / "config.json").read_text())
            self.assertEqual(config["model_type"], shown["family"])
            again = cluster.json("checkpoint", "show", exported)
            self.assertEqual((again["trained"], again["parameters"], again["weight_bytes"]),
                             (False, shown["parameters"], shown["weight_bytes"]))
            # What was learned is there: the first loss is near the last one, not the first.
            _, resumed = self.trained(train_steps=1, checkpoint_resume=str(exported), **model)
            self.assertLess(abs(resumed["first_loss"] - trained["last_loss"]),
                            0.2 * abs(trained["first_loss"] - trained["last_loss"]))
            half = cluster.root / f"half-{shown['family']}"
            self.assertLess(cluster.json("checkpoint", "export", saved, half)["bytes"],
                            0.6 * written["bytes"])
            self.trained(train_steps=1, checkpoint_resume=str(half), parallel_precision="bf16",
                         **model)

    def test_each_mistake_has_its_words_and_exit_code(self):
        cluster = self.cluster.up()
        saved, _ = self.trained(checkpoint_directory=str(cluster.root / "saved"))
        shown = cluster.dpctl("checkpoint", "--help").stdout
        for words in ("JOB", "show PATH", "check PATH", "export PATH DIRECTORY", "Exit codes"):
            self.assertIn(words, shown)
        self.assertIn("--dtype", cluster.dpctl("checkpoint", "show", "--help").stdout)
        damaged = cluster.root / "damaged"
        shutil.copytree(saved, damaged)
        victim = next(damaged.glob("model-*.safetensors"))
        data = bytearray(victim.read_bytes())
        data[-100] ^= 1
        victim.write_bytes(data)
        torn = cluster.root / "torn"
        shutil.copytree(saved, torn)
        next(torn.glob("optimizer-*.safetensors")).unlink()
        full = cluster.root / "full"
        full.mkdir()
        for code, words, *arguments in (
                (2, "say show PATH", "show"),
                (2, "say show PATH", "export", saved),
                (2, "f32 or bf16", "export", saved, "x", "--dtype", "f64"),
                (4, "nowhere", "show", "nowhere"),
                (4, "no checkpoint in", "check", full),
                (3, victim.name, "check", damaged),
                (3, "optimizer-", "check", torn),
                (6, "full", "export", saved, full),
                (4, "job-99", "job-99")):
            done = cluster.dpctl("checkpoint", *arguments, check=code)
            self.assertIn(words, done.stderr)
        # Nothing of an export that was refused stays behind.
        cluster.dpctl("checkpoint", "export", damaged, cluster.root / "none", check=3)
        self.assertFalse((cluster.root / "none").exists())
        job = cluster.submit(checkpoint_resume=str(damaged), train_steps=9)
        self.assertIn(victim.name, cluster.wait_state(job, "FAILED")["message"])
        cluster.dpctl("checkpoint", job, check=6)

    def test_what_a_job_goes_on_from_is_its_own_run(self):
        cluster = self.cluster.up()
        saved, _ = self.trained()
        for changes, words in (({"train_seed": 2}, "a seed of 1, this job has 2; set [train] seed"),
                               ({"train_sequence": 16}, "a sequence of 32, this job has 16"),
                               ({"data_shuffle": 0}, "shuffle = 1, this job has 0"),
                               ({"data_path": "/usr/share/common-licenses/GPL-2"}, "another text"),
                               ({"model_ffn": 96}, "its ffn is 64, this job's is 96"),
                               ({"train_steps": 3}, "has 4 steps; [train] steps = 3 is fewer")):
            job = cluster.submit(**{"train_steps": 9, "checkpoint_resume": saved, **changes})
            self.assertIn(words, cluster.wait_state(job, "FAILED")["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
