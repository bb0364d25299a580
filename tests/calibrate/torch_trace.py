"""A trace that PyTorch's profiler really wrote, against what PyTorch itself says of it.

A small model runs on the CPU with ranges around its parts; the fit of the exported file must give
the same time of operators within each range as the profiler's own events do.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

EMIT = sys.argv[1]
STEPS = 5


def run(path):
    torch.set_num_threads(1)
    attention, ffn = torch.nn.Linear(64, 192), torch.nn.Linear(192, 64)
    x = torch.randn(128, 64)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in range(STEPS):
            with record_function("attn(F)"):
                y = attention(x)
            with record_function("mlp(F)"):
                z = ffn(torch.nn.functional.silu(y))
            loss = z.square().mean()
            with record_function("layer 0 mlp(B)"):
                loss.backward()
    prof.export_chrome_trace(path)
    return prof.events()


def outermost_us(events, name):
    """Sum of the operators that lie within a range and in no other operator, from event times."""
    total = 0.0
    for outer in (e for e in events if e.name == name):
        inside = sorted((e for e in events if e.name != name and e.thread == outer.thread and
                         e.time_range.start >= outer.time_range.start and
                         e.time_range.end <= outer.time_range.end),
                        key=lambda e: (e.time_range.start, -e.time_range.end))
        until = -1.0
        for event in inside:
            if event.time_range.start >= until:
                total += event.time_range.end - event.time_range.start
                until = event.time_range.end
    return total / STEPS


def main():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "trace.json")
        events = run(path)
        done = subprocess.run([EMIT, path, "1000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fit = json.loads(done.stdout)
    phases = {phase["phase"]: phase for phase in fit["phases"]}
    for phase, name in (("attn(F)", "attn(F)"), ("mlp(F)", "mlp(F)"),
                        ("mlp(B)", "layer 0 mlp(B)")):
        wanted = outermost_us(events, name)
        got = 1e6 * phases[phase]["compute_s"]
        print(f"{phase}: {got:.2f} us, by torch {wanted:.2f} us")
        assert phases[phase]["count"] == STEPS, phases[phase]
        # torch rounds its own times to a microsecond or less.
        assert abs(got - wanted) <= 0.01 * wanted + 3, (phase, got, wanted)
    products = phases["attn(F)"]["by_kind_s"]["gemm"]
    assert products >= 0.9 * phases["attn(F)"]["compute_s"], phases["attn(F)"]
    return 0


sys.exit(main())
