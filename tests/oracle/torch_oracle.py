"""Models again, in PyTorch: same weights, same batches, same losses and gradients.

Usage: torch_oracle.py TRACE_PROGRAM

Runs the trace program into a temporary directory and trains each of its models with autograd and
torch.optim.AdamW in double precision. Where the program computed in float, losses must agree within
1e-5 relative for every step and the gradients of step 1 within 1e-4 of each tensor's norm; where it
computed in double, both within 1e-9. Exits with 77 where torch is missing.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch

    from torch_model import Model
except ImportError as missing:
    print(f"skipped: {missing} (Debian package python3-torch)")
    sys.exit(77)

# Of losses and of gradients.
TOLERANCES = {0: (1e-5, 1e-4), 1: (1e-9, 1e-9)}


def worst_gradient(model, flat):
    """(relative error, name) of the tensor whose gradient is furthest off."""
    errors = []
    for tensor in model.m["tensors"]:
        weight = model.w[tensor["name"]]
        grad = weight.grad if weight.grad is not None else torch.zeros_like(weight)
        expected = grad.numpy().ravel()
        got = flat[tensor["offset"] : tensor["offset"] + expected.size]
        size = max(numpy.linalg.norm(expected), 1e-12)
        errors.append((numpy.linalg.norm(got - expected) / size, tensor["name"]))
    # NaN sorts anywhere; it must not pass.
    return next((e for e in errors if not e[0] < math.inf), max(errors))


def check(directory):
    manifest = json.loads((directory / "manifest.json").read_text())
    loss_tolerance, gradient_tolerance = TOLERANCES[manifest["is_double"]]
    model = Model(manifest, numpy.fromfile(directory / "weights.f64", numpy.float64))
    batches = numpy.fromfile(directory / "batches.i32", numpy.int32).astype(numpy.int64)
    shape = (manifest["steps"], manifest["samples"], manifest["sequence"] + 1)
    batches = torch.tensor(batches.reshape(shape))
    traced = [float(line) for line in (directory / "losses.txt").read_text().split()]
    gradients = numpy.fromfile(directory / "gradients.f64", numpy.float64)
    optimizer = model.optimizer()
    failed = len(traced) != manifest["steps"]
    worst = 0.0
    for step, tokens in enumerate(batches):
        optimizer.zero_grad()
        loss, objective = model.losses(tokens)
        objective.backward()
        if step == 0:
            error, name = worst_gradient(model, gradients)
            failed |= not error <= gradient_tolerance
            print(f"{directory.name}: gradients of step 1: worst {error:.1e} in {name}", end="; ")
        off = abs(traced[step] - loss.item()) / loss.item()
        failed |= not off <= loss_tolerance
        worst = off if not off <= worst else worst
        optimizer.step()
    print(f"losses of {len(traced)} steps: worst {worst:.1e}, last {traced[-1]:.4f}"
          f"{' FAILED' if failed else ''}")
    return failed


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], directory], check=True)
        found = sorted(pathlib.Path(directory).iterdir())
        failed = [variant.name for variant in found if check(variant)]
        print(f"{len(found)} models, {len(failed)} differ {failed}")
        return 1 if failed or not found else 0


sys.exit(main())
