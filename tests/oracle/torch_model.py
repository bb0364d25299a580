"""The model family in PyTorch, from the papers and the published configurations: losses of a batch.

Everything is in double precision, and nothing is shared with the program under test but the names
of its tensors. The sequence-wise balance loss and the bias of scores are DeepSeek-V3's (arXiv
2412.19437, section 2.1.2), multi-token prediction its section 2.2, latent attention DeepSeek-V2's
(arXiv 2405.04434, section 2.1); rotary scaling is YaRN (arXiv 2309.00071, section 3) and Llama
3.1's, with the constants of the `transformers` package.
"""

import math

import numpy
import torch
import torch.nn.functional as functional

LINEAR, LLAMA3, YARN = 1, 2, 3


def speeds(m, dim):
    """Radians a position by which each pair turns, [dim / 2]."""
    theta, factor, before = m["rope_theta"], m["rope_factor"], m["rope_original"]
    plain = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if m["rope_kind"] == LINEAR:
        return plain / factor
    if m["rope_kind"] == LLAMA3:
        waves = 2 * math.pi / plain
        smooth = (before / waves - 1) / (4 - 1)
        blend = (1 - smooth) * plain / factor + smooth * plain
        return torch.where(waves > before, plain / factor,
                           torch.where(waves < before / 4, plain, blend))
    if m["rope_kind"] == YARN:
        def pair(turns):
            return dim * math.log(before / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = pair(32), pair(1)
        if not m["rope_untruncated"]:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        high = high + 0.001 if low == high else high
        ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        return plain / factor * ramp + plain * (1 - ramp)
    return plain


def grown(m, mscale):
    return 0.1 * mscale * math.log(m["rope_factor"]) + 1 if m["rope_factor"] > 1 else 1.0


def amplitude(m):
    if m["rope_kind"] != YARN:
        return 1.0
    if m["rope_mscale"] and m["rope_mscale_all"]:
        return grown(m, m["rope_mscale"]) / grown(m, m["rope_mscale_all"])
    return grown(m, 1)


class Model:
    def __init__(self, manifest, flat):
        self.m = {k: int(v) if isinstance(v, float) and v.is_integer() else v
                  for k, v in manifest.items()}
        self.w, self.decayed = {}, []
        for tensor in manifest["tensors"]:
            count = tensor["rows"] * tensor["cols"]
            part = flat[tensor["offset"]: tensor["offset"] + count].astype(numpy.float64)
            is_vector = not tensor["decays"]
            shape = (count,) if is_vector else (tensor["rows"], tensor["cols"])
            w = torch.tensor(part.reshape(shape), requires_grad=True)
            self.w[tensor["name"]] = w
            if tensor["decays"]:
                self.decayed.append(w)

    def linear(self, x, name):
        return functional.linear(x, self.w[name], self.w.get(f"{name}.bias"))

    def norm(self, x, name):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.m["norm_eps"])
        return x * scale * self.w[name]

    def rotary(self, x, interleaved):
        """x [batch, heads, sequence, dim] as complex numbers: pairs are neighbours, or half a head
        apart."""
        dim, sequence = x.shape[-1], x.shape[-2]
        angle = torch.outer(torch.arange(sequence, dtype=torch.float64), speeds(self.m, dim))
        turn = torch.polar(torch.full_like(angle, amplitude(self.m)), angle)
        if interleaved:
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], dim // 2, 2).contiguous())
            return torch.view_as_real(pairs * turn).flatten(-2)
        turned = torch.complex(x[..., : dim // 2], x[..., dim // 2:]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    def turn_front(self, x):
        """Of each head the first part turns, as GLM-4's does (its "partial_rotary_factor")."""
        turned = self.m["rotary_dim"] or x.shape[-1]
        return torch.cat([self.rotary(x[..., :turned], False), x[..., turned:]], -1)

    def heads(self, x, count):
        return x.view(*x.shape[:2], count, -1).transpose(1, 2)

    def grouped(self, x, prefix):
        m = self.m
        q = self.heads(self.linear(x, f"{prefix}.q"), m["heads"])
        k = self.heads(self.linear(x, f"{prefix}.k"), m["kv_heads"])
        v = self.heads(self.linear(x, f"{prefix}.v"), m["kv_heads"])
        if m["qk_norm"]:
            q, k = self.norm(q, f"{prefix}.q_norm"), self.norm(k, f"{prefix}.k_norm")
        times = m["heads"] // m["kv_heads"]
        q, k = self.turn_front(q), self.turn_front(k)
        return q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), 1.0

    def latent(self, x, prefix):
        m = self.m
        nope, rope, heads = m["nope_dim"], m["rope_dim"], m["heads"]
        if m["q_rank"]:
            low = self.norm(self.linear(x, f"{prefix}.q_down"), f"{prefix}.q_norm")
            q = self.heads(self.linear(low, f"{prefix}.q_up"), heads)
        else:
            q = self.heads(self.linear(x, f"{prefix}.q"), heads)
        low, shared = self.linear(x, f"{prefix}.kv_down").split([m["kv_rank"], rope], -1)
        low = self.norm(low, f"{prefix}.kv_norm")
        k, v = self.heads(self.linear(low, f"{prefix}.kv_up"), heads).split([nope, m["v_dim"]], -1)
        shared = self.rotary(shared.unsqueeze(1), True).expand(-1, heads, -1, -1)
        q = torch.cat([q[..., :nope], self.rotary(q[..., nope:], True)], -1)
        growth = grown(m, m["rope_mscale_all"]) if m["rope_kind"] == YARN else 1.0
        return q, torch.cat([k, shared], -1), v, growth ** 2

    def attention(self, x, layer):
        m, prefix = self.m, f"layers.{layer}.attention"
        q, k, v, factor = (self.latent if m["kv_rank"] else self.grouped)(x, prefix)
        sequence = x.shape[1]
        scores = q @ k.transpose(-1, -2) * factor / math.sqrt(q.shape[-1])
        place = torch.arange(sequence)
        distance = place.unsqueeze(1) - place
        hidden = distance < 0
        if m["windows"][layer]:
            hidden = hidden | (distance >= m["windows"][layer])
        scores = scores.masked_fill(hidden, -math.inf)
        if m["sinks"]:
            sink = self.w[f"{prefix}.sinks"].view(1, -1, 1, 1)
            scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], -1)
            share = scores.softmax(-1)[..., :-1]
        else:
            share = scores.softmax(-1)
        y = (share @ v).transpose(1, 2).flatten(2)
        return self.linear(y, f"{prefix}.output")

    def swiglu(self, x, prefix):
        gate = functional.silu(self.linear(x, f"{prefix}.gate"))
        return self.linear(gate * self.linear(x, f"{prefix}.up"), f"{prefix}.down")

    def choose(self, score, layer):
        """Indices [.., top_k] of the experts that tokens go to."""
        m = self.m
        bias = m["router_bias"].get(str(layer))
        key = score.detach()
        if bias is not None:
            key = key + torch.tensor(bias, dtype=torch.float64)
        if m["groups"] > 1:
            groups = key.view(*key.shape[:-1], m["groups"], -1)
            worth = groups.topk(2, -1).values.sum(-1) if bias is not None else groups.amax(-1)
            best = worth.topk(m["top_groups"], -1).indices
            kept = functional.one_hot(best, m["groups"]).sum(-2).bool().unsqueeze(-1)
            key = groups.masked_fill(~kept, -math.inf).flatten(-2)
        return key.topk(m["top_k"], -1).indices

    def moe(self, x, layer):
        """The routed and shared experts, and the sum over sequences of the balance loss."""
        m, prefix = self.m, f"layers.{layer}"
        logits = self.linear(x, f"{prefix}.router")
        score = logits.sigmoid() if m["is_sigmoid"] else logits.softmax(-1)
        index = self.choose(score, layer)
        weight = score.gather(-1, index)
        if not m["raw_weights"]:
            weight = weight / weight.sum(-1, keepdim=True)
        chosen = functional.one_hot(index, m["experts"]).to(x.dtype)
        weight = (chosen * (weight * m["route_scale"]).unsqueeze(-1)).sum(-2)
        y = torch.zeros_like(x)
        if m["shared_experts"]:
            y = self.swiglu(x, f"{prefix}.shared")
            if m["shared_gate"]:
                y = y * self.linear(x, f"{prefix}.shared.gating").sigmoid()
        for expert in range(m["experts"]):
            y = y + weight[..., expert: expert + 1] * self.swiglu(x, f"{prefix}.experts.{expert}")
        fraction = chosen.sum(-2).mean(1) * m["experts"] / m["top_k"]
        share = score / score.sum(-1, keepdim=True)
        return y, (fraction * share.mean(1)).sum()

    def layer(self, x, layer):
        prefix = f"layers.{layer}"
        x = x + self.attention(self.norm(x, f"{prefix}.attention.norm"), layer)
        normed = self.norm(x, f"{prefix}.ffn.norm")
        if layer < self.m["dense_layers"] or not self.m["experts"]:
            return x + self.swiglu(normed, f"{prefix}.ffn"), 0
        y, balance = self.moe(normed, layer)
        return x + y, balance

    def logits(self, x, norm):
        head = "embedding" if self.m["tied"] else "head.output"
        return functional.linear(self.norm(x, norm), self.w[head])

    def predict_on(self, hidden, tokens):
        """Loss of the tokens after the next ones, and the layer's balance loss."""
        joined = torch.cat([self.norm(self.w["embedding"][tokens[:, 1:]], "mtp.embedding.norm"),
                            self.norm(hidden, "mtp.hidden.norm")], -1)
        x, balance = self.layer(self.linear(joined, "mtp.projection"), self.m["layers"])
        logits = self.logits(x, "mtp.head.norm")[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten(),
                                        reduction="sum")
        return loss / (tokens.shape[0] * (tokens.shape[1] - 1)), balance

    def losses(self, tokens):
        """Mean cross-entropy, and what is to be minimised: with the other losses."""
        x, balance = self.w["embedding"][tokens[:, :-1]], 0
        for layer in range(self.m["layers"]):
            x, part = self.layer(x, layer)
            balance = balance + part
        logits = self.logits(x, "head.norm")
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        objective = loss
        if self.m["mtp_layers"]:
            further, part = self.predict_on(x, tokens)
            objective = objective + self.m["mtp_loss_weight"] * further
            balance = balance + part
        return loss, objective + self.m["aux_loss_weight"] * balance / tokens.shape[0]

    def optimizer(self):
        decayed = {id(w) for w in self.decayed}
        vectors = [w for w in self.w.values() if id(w) not in decayed]
        groups = [
            {"params": vectors, "weight_decay": 0.0},
            {"params": self.decayed, "weight_decay": self.m["weight_decay"]},
        ]
        return torch.optim.AdamW(
            groups, lr=self.m["lr"], betas=(self.m["beta1"], self.m["beta2"]), eps=self.m["eps"]
        )
