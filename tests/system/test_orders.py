"""One model under every kind of schedule, trained by real daemons: the losses are the same."""

import unittest

from support import SOURCE, ClusterTest

STEPS = 12
KINDS = [["schedule=dualpipe"], ["schedule=zb-h1"], ["schedule=zb-v"], ["schedule=chimera"],
         ["schedule=interleaved", "virtual=2"], ["schedule=interleaved", "pipeline=2", "virtual=4"],
         ["schedule=hanayo"], ["schedule=auto"],
         ["schedule=auto", "pipeline=3"]]


def settings(pairs):
    return [word for pair in pairs for word in ("--set", pair)]


class Orders(ClusterTest):
    def example(self):
        text = (SOURCE / "examples" / "tiny-moe.toml").read_text(encoding="utf-8")
        path = self.cluster.root / "tiny-moe.toml"
        text = text.replace("steps = 70", f"steps = {STEPS}").replace("sequence = 128",
                                                                      "sequence = 32")
        path.write_text(text, encoding="utf-8")
        return path

    def test_the_example_has_the_same_losses_under_every_kind_of_schedule(self):
        cluster = self.cluster.up()
        example = self.example()
        losses = {}
        for kind in KINDS:
            job = cluster.dpctl("submit", "-q", *settings(kind), example).stdout.strip()
            done = cluster.wait_state(job, "COMPLETED", "FAILED")
            self.assertEqual(done["step"], STEPS, (kind, done))
            chunks = [pair.replace("virtual=", " v") for pair in kind if "virtual" in pair]
            self.assertIn(f"{done['plan']['schedule']}{''.join(chunks)}",
                          cluster.dpctl("report", job).stdout)
            report = cluster.json("report", job)
            for rank in report["ranks"]:
                self.assertEqual(rank["measured_peak_chunks"], rank["predicted_peak_chunks"], kind)
            losses[" ".join(kind)] = (report["first_loss"], report["last_loss"])
        wanted = losses["schedule=dualpipe"]
        self.assertLess(wanted[1], wanted[0])
        for kind, got in losses.items():
            for one, other in zip(got, wanted):
                self.assertLess(abs(one - other), 2e-5 * other, kind)

    def test_run_takes_the_schedule_of_its_command_line(self):
        done = self.cluster.dpctl("run", "--set", "schedule=zb-v", self.example())
        self.assertIn(f"COMPLETED after {STEPS} of {STEPS} steps", done.stdout)
        self.assertIn("zb-v", done.stdout + done.stderr)
        self.leaves_nothing()


if __name__ == "__main__":
    unittest.main(verbosity=2)
