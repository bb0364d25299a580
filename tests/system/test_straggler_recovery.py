"""Slow ranks and links of real jobs are found, blamed rightly, and answered by themselves so that
most of what can be recovered is. `tests/bench/straggler_recovery.py` has the same runs, more of
them and longer ones."""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

from straggler_recovery import FOUND_WITHIN, KINDS, Run  # noqa: E402
from support import ClusterTest  # noqa: E402

SEED = int(os.environ.get("DP_SEED", "1"))
LAYER_S = 0.001
# Of what can be recovered, by exhaustive simulation: 0.85 where nobody else has the machine.
LEAST = 0.5


class Recovery(ClusterTest):
    nodes, slots = 8, 1

    def check(self, kind):
        run = Run(self.cluster.up(), kind, SEED, LAYER_S)
        self.assertTrue(run.is_right, run.named)
        # Nothing is to be found before the first slow step.
        self.assertIn(run.suspected, range(1, FOUND_WITHIN + 3))
        self.assertIsNotNone(run.decision, run.events)
        self.assertEqual(run.decision["state"], "DECISION_MEASURED", run.decision)
        self.assertGreaterEqual(run.recovered, LEAST)


for each in KINDS:
    setattr(Recovery, f"test_{each.replace('-', '_').replace('.', '_')}_is_made_up_for",
            lambda self, kind=each: self.check(kind))


if __name__ == "__main__":
    unittest.main(verbosity=2)
