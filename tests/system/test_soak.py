"""A job that trains for long: memory and descriptors of every process stay what they were.

DP_SOAK_SECONDS says how long, over all transports; DP_SOAK_SAMPLES is a file for the samples.
"""

import csv
import os
import pathlib
import re
import time
import unittest

from support import ClusterTest, wait_for

SECONDS = float(os.environ.get("DP_SOAK_SECONDS", "20"))
PROGRAMS = ("dp-rank", "dp-keeper", "dp-worker", "dp-controller")
# Growth of a process over the whole soak. What is fitted wavers by as much as allocators keep, and
# the controller's database fills its cache of pages, 2 MiB.
GROWTH_MIB = 4.0
# Until buffers have their sizes.
WARM_UP = 0.3
RANK_LOG = re.compile(r"/rank-\d+\.\d+\.log$")
# Freed memory is used again; by itself ASan keeps 256 MiB of it from being so.
ASAN = "quarantine_size_mb=1:thread_local_quarantine_size_kb=16"


def memory_mib(pid):
    """Anonymous and shared memory: pages of files are the kernel's to keep or drop."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines()
           if line.startswith(("RssAnon", "RssShmem"))}
    return (kib["RssAnon"] + kib["RssShmem"]) / 1024


def descriptors(pid):
    """Those of a process, less the logs of ranks: a keeper opens one with a rank's first words."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        count += not RANK_LOG.search(target)
    return count


def slope(points):
    """Of the straight line through (x, y) with the least squares."""
    n = len(points)
    mean_x, mean_y = (sum(p[i] for p in points) / n for i in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread > 0 else 0.0


class Soak(ClusterTest):
    def setUp(self):
        super().setUp()
        self.cluster.env["ASAN_OPTIONS"] = ASAN

    def watch(self, job, seconds):
        """[(pid, program, [(second, MiB, descriptors)])] of every process of the cluster."""
        cluster = self.cluster
        programs = {pid: name for name in PROGRAMS for pid in cluster.processes(name)}
        self.assertEqual(sorted(programs.values()),
                         sorted(["dp-controller"] + 2 * ["dp-keeper", "dp-worker"] +
                                4 * ["dp-rank"]))
        samples = {pid: [] for pid in programs}
        start = time.monotonic()
        pause = max(0.2, seconds / 600)
        while (now := time.monotonic() - start) < seconds:
            for pid in programs:
                samples[pid].append((now, memory_mib(pid), descriptors(pid)))
            wait_for("the next sample", lambda: time.monotonic() - start >= now + pause)
        self.assertEqual(cluster.job(job)["state"], "JOB_RUNNING")
        return [(pid, programs[pid], samples[pid]) for pid in programs]

    def check(self, transport, watched, seconds):
        rows = []
        for pid, program, samples in watched:
            late = [sample for sample in samples if sample[0] >= WARM_UP * seconds]
            # A leak goes on; what is taken once and kept, as for the first decision about a job,
            # shows in one half alone.
            growth = seconds * min(slope([(at, mib) for at, mib, _ in half])
                                   for half in (late[:len(late) // 2], late[len(late) // 2:]))
            files = [count for *_, count in late]
            print(f"{transport}: {program} {pid}: {late[0][1]:.1f} MiB, grows by {growth:+.2f} MiB "
                  f"in {seconds:.0f} s; {min(files)} to {max(files)} descriptors", flush=True)
            rows += [(transport, program, pid, *sample) for sample in samples]
            self.assertLess(growth, GROWTH_MIB, msg=f"{transport}: {program}")
            # A request of the moment may hold one; none is left behind.
            self.assertLessEqual(min(files[len(files) // 2:]), min(files[:len(files) // 2]),
                                 msg=f"{transport}: {program}: {files}")
        if "DP_SOAK_SAMPLES" in os.environ:
            with open(os.environ["DP_SOAK_SAMPLES"], "a", encoding="ascii") as out:
                csv.writer(out).writerows(rows)

    def train(self, transport, seconds):
        cluster = self.cluster
        job = cluster.submit(parallel_data=2, parallel_expert=2, parallel_microbatches=4,
                             parallel_schedule="dualpipe", parallel_transport=transport,
                             train_steps=100000000)
        cluster.wait_step(job, 5)
        watched = self.watch(job, seconds)
        step = cluster.job(job)["step"]
        self.check(transport, watched, seconds)
        cluster.wait_step(job, step + 1)
        cluster.dpctl("cancel", job)
        cluster.wait_state(job, "CANCELLED")
        print(f"{transport}: {step} steps", flush=True)
        self.leaves_no_rank()

    def test_memory_and_files_of_every_process_stay_flat(self):
        self.cluster.up()
        for transport in ("shm", "tcp"):
            self.train(transport, SECONDS / 2)
        self.leaves_nothing()


if __name__ == "__main__":
    unittest.main(verbosity=2)
