#!/usr/bin/python3
"""The mixture-of-experts training step of the benchmark, written as well as plain PyTorch goes.

    torch_moe.py THREADS STEPS      prints the tokens per second of its best step

4 layers of width 256 with 4 heads, 8 experts of which each token takes 2 (SwiGLU of width 512),
vocabulary 8192, 4 sequences of 256 tokens, float, AdamW with fused lists and gradient clipping.
Routed rows are sorted by expert, so each expert is two products, as in any grouped implementation.
"""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, EXPERTS, TOP_K, HIDDEN, VOCABULARY = 4, 256, 4, 8, 2, 512, 8192
SAMPLES, SEQUENCE = 4, 256


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        size = WIDTH // HEADS
        angle = torch.outer(torch.arange(SEQUENCE), 1e4 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        mask = torch.full((SEQUENCE, SEQUENCE), -math.inf).triu(1)
        self.register_buffer("mask", mask)

    def turn(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)

    def forward(self, x):
        qkv = self.qkv(x).view(SAMPLES, SEQUENCE, 3 * HEADS, -1).transpose(1, 2)
        q, k, v = qkv.chunk(3, 1)
        scores = self.turn(q) @ self.turn(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
        mixed = torch.softmax(scores + self.mask, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(SAMPLES, SEQUENCE, WIDTH))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN, WIDTH) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.02)

    def forward(self, x):
        rows = x.view(-1, WIDTH)
        weight, chosen = torch.softmax(self.router(rows), -1).topk(TOP_K)
        weight = weight / weight.sum(-1, keepdim=True)
        order = chosen.view(-1).argsort(stable=True)
        token = order // TOP_K
        counts = torch.bincount(chosen.view(-1), minlength=EXPERTS).tolist()
        parts = []
        for expert, part in enumerate(rows[token].split(counts)):
            gate, up = (part @ self.gate_up[expert].t()).chunk(2, -1)
            parts.append((F.silu(gate) * up) @ self.down[expert].t())
        out = torch.cat(parts) * weight.view(-1)[order].unsqueeze(-1)
        return torch.zeros_like(rows).index_add(0, token, out).view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.experts_norm, self.experts = Norm(), Experts()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.experts(self.experts_norm(x))


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *(Layer() for _ in range(LAYERS)),
                          Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    text = torch.randint(0, 256, (SAMPLES, SEQUENCE + 1))
    best = math.inf
    for _ in range(int(sys.argv[2])):
        start = time.perf_counter()
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        best = min(best, time.perf_counter() - start)
    print(SAMPLES * SEQUENCE / best)


if __name__ == "__main__":
    main()
