"""The model again, in PyTorch: same weights, same batches, same losses and gradients.

Usage: torch_oracle.py TRACE_PROGRAM

Runs the trace program into a temporary directory and trains the same model with autograd and
torch.optim.AdamW in double precision. Losses must agree within 1e-5 relative for every step, the
gradients of step 1 within 1e-4 of each tensor's norm. Exits with 77 where torch is missing.
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
    import torch.nn.functional as functional
except ImportError as missing:
    print(f"skipped: {missing} (Debian package python3-torch)")
    sys.exit(77)

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4


class Model:
    def __init__(self, manifest, flat):
        self.m = manifest
        self.w = {}
        for tensor in manifest["tensors"]:
            count = tensor["rows"] * tensor["cols"]
            part = flat[tensor["offset"] : tensor["offset"] + count].astype(numpy.float64)
            is_norm = tensor["name"].endswith("norm")
            shape = (count,) if is_norm else (tensor["rows"], tensor["cols"])
            self.w[tensor["name"]] = torch.tensor(part.reshape(shape), requires_grad=True)

    def norm(self, x, name):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.m["norm_eps"])
        return x * scale * self.w[name]

    def rotary(self, x):
        """x [batch, heads, sequence, dim]: complex rotation of (first half, second half)."""
        dim, sequence = x.shape[-1], x.shape[-2]
        speed = self.m["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angle = torch.outer(torch.arange(sequence, dtype=torch.float64), speed)
        turned = torch.complex(x[..., : dim // 2], x[..., dim // 2 :]) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.cat([turned.real, turned.imag], -1)

    def attention(self, x, prefix):
        batch, sequence, _ = x.shape
        heads, kv_heads, dim = self.m["heads"], self.m["kv_heads"], self.m["head_dim"]

        def project(name, count):
            y = functional.linear(x, self.w[f"{prefix}.{name}"])
            return y.view(batch, sequence, count, dim).transpose(1, 2)

        q = self.rotary(project("q", heads))
        k = self.rotary(project("k", kv_heads)).repeat_interleave(heads // kv_heads, 1)
        v = project("v", kv_heads).repeat_interleave(heads // kv_heads, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(dim)
        future = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return functional.linear(
            y.transpose(1, 2).reshape(batch, sequence, heads * dim), self.w[f"{prefix}.output"]
        )

    def swiglu(self, x, prefix):
        gate = functional.silu(functional.linear(x, self.w[f"{prefix}.gate"]))
        return functional.linear(
            gate * functional.linear(x, self.w[f"{prefix}.up"]), self.w[f"{prefix}.down"]
        )

    def moe(self, x, prefix):
        """The routed and shared experts, and the sum over sequences of the balance loss."""
        experts, top_k = self.m["experts"], self.m["top_k"]
        p = functional.linear(x, self.w[f"{prefix}.router"]).softmax(-1)
        best, index = p.topk(top_k, -1)
        chosen = functional.one_hot(index, experts).to(p.dtype)
        weight = (chosen * (best / best.sum(-1, keepdim=True)).unsqueeze(-1)).sum(-2)
        y = self.swiglu(x, f"{prefix}.shared")
        for expert in range(experts):
            y = y + weight[..., expert : expert + 1] * self.swiglu(x, f"{prefix}.experts.{expert}")
        fraction = chosen.sum(-2).mean(1) * experts / top_k
        balance = (fraction.detach() * p.mean(1)).sum()
        return y, balance

    def losses(self, tokens):
        """Mean cross-entropy, and what is to be minimised: that plus the mean balance loss."""
        x = self.w["embedding"][tokens[:, :-1]]
        balance = 0
        for layer in range(self.m["layers"]):
            prefix = f"layers.{layer}"
            x = x + self.attention(
                self.norm(x, f"{prefix}.attention.norm"), f"{prefix}.attention"
            )
            normed = self.norm(x, f"{prefix}.ffn.norm")
            if layer < self.m["dense_layers"]:
                x = x + self.swiglu(normed, f"{prefix}.ffn")
            else:
                y, part = self.moe(normed, prefix)
                x = x + y
                balance = balance + part
        logits = functional.linear(self.norm(x, "head.norm"), self.w["head.output"])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        return loss, loss + self.m["aux_loss_weight"] * balance / tokens.shape[0]

    def optimizer(self):
        norms = [w for w in self.w.values() if w.dim() == 1]
        rest = [w for w in self.w.values() if w.dim() > 1]
        groups = [
            {"params": norms, "weight_decay": 0.0},
            {"params": rest, "weight_decay": self.m["weight_decay"]},
        ]
        return torch.optim.AdamW(
            groups, lr=self.m["lr"], betas=(self.m["beta1"], self.m["beta2"]), eps=self.m["eps"]
        )


def worst_gradient(model, flat):
    """(relative error, name) of the tensor whose gradient is furthest off."""
    errors = []
    for tensor in model.m["tensors"]:
        expected = model.w[tensor["name"]].grad.numpy().ravel()
        got = flat[tensor["offset"] : tensor["offset"] + expected.size]
        size = max(numpy.linalg.norm(expected), 1e-12)
        errors.append((numpy.linalg.norm(got - expected) / size, tensor["name"]))
    # NaN sorts anywhere; it must not pass.
    return next((e for e in errors if not e[0] < math.inf), max(errors))


def check(directory):
    manifest = json.loads((directory / "manifest.json").read_text())
    model = Model(manifest, numpy.fromfile(directory / "weights.f32", numpy.float32))
    batches = numpy.fromfile(directory / "batches.i32", numpy.int32).astype(numpy.int64)
    shape = (manifest["steps"], manifest["samples"], manifest["sequence"] + 1)
    batches = torch.tensor(batches.reshape(shape))
    traced = [float(line) for line in (directory / "losses.txt").read_text().split()]
    gradients = numpy.fromfile(directory / "gradients.f32", numpy.float32)
    optimizer = model.optimizer()
    failed = len(traced) != manifest["steps"]
    for step, tokens in enumerate(batches):
        optimizer.zero_grad()
        loss, objective = model.losses(tokens)
        objective.backward()
        if step == 0:
            error, name = worst_gradient(model, gradients)
            failed |= not error <= GRADIENT_TOLERANCE
            print(f"gradients of step 1: worst {error:.2e} in {name}")
        error = abs(traced[step] - loss.item()) / loss.item()
        failed |= not error <= LOSS_TOLERANCE
        print(f"step {step + 1}: {traced[step]:.7f}, torch {loss.item():.7f}, off by {error:.1e}")
        optimizer.step()
    return 1 if failed else 0


def main():
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], directory], check=True)
        return check(pathlib.Path(directory))


sys.exit(main())
