"""Readers of the tables of published runs: from a row to the same question for dpctl plan.

A case is a dict: name (unique, also used by profiles.json's fitted_on), group, figure, published,
and either command with read (plan -> predicted) or refused (why the model cannot price it).
"""
import json

from nemo import nemo
from tables_common import (activations_of, allocated_of, command, integer, read_csv, state_of,
                           step_of)
from tables_parts import (bubble_rates, by_others, deepep, hardware, model_shapes, modelzoo,
                          primus, profile_phases)

# Errors to stay below, in percent.
GOALS = {
    "deepseek-v3 step": {"max": 3},
    "deepseek-v3 parts": {"max": 20},
    "zero-bubble throughput": {"median": 5},
    "nemo": {"median": 6, "p90": 15},
    "memory": {"median": 3},
}


def profile_names(path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    profiles = document["profiles"]
    return [p["name"] for p in profiles] if isinstance(profiles, list) else list(profiles)


# Of the pipeline ranks between the ends and the middle; table 4 names none.
NAMED_RANK = 4


def rank_part(key):
    """A B is an I and a W in one: each is counted with its kind, as table 4 has no other row."""
    return lambda plan: plan["chosen"]["per_rank"][NAMED_RANK][key]


def deepseek_v3(data, _names):
    """DeepSeek-V3 in production: arXiv 2505.09343, table 4; 2412.19437 3.2.3 and 3.3.3 say what
    it computes again."""
    parts = {"F_s": "forward_s", "bubble_s": "bubble_s", "B_input_s": "backward_input_s",
             "W_s": "weight_s", "F_and_B_overlapped_s": "overlapped_s",
             "optimizer_s": "optimizer_s"}
    for row in read_csv(data, "deepseek_v3_step_metrics.csv"):
        sets = {"pipeline": row["pp"], "expert": row["ep"], "data": row["dp"],
                "tensor": row["tp"], "schedule": row["schedule"].lower(),
                "micro_batch_size": row["mbs_derived"], "recompute": "norm+up+activation"}
        line = command("deepseek-v3", row["gpu"], row["gpus"], row["gbs_sequences"],
                       row["seq_len"], sets)
        name = f"deepseek-v3/{row['gpus']}x{row['gpu']}/{row['network']}"
        yield {"name": name, "group": "deepseek-v3 step", "figure": "step s",
               "published": float(row["step_s"]), "command": line, "read": step_of}
        for column, key in parts.items():
            yield {"name": f"{name}/rank{NAMED_RANK}/{key}", "group": "deepseek-v3 parts",
                   "figure": "s", "published": float(row[column]),
                   "command": line, "read": rank_part(key)}
        for column, key in {"mfu_noncausal_pct": "mfu_noncausal",
                            "mfu_causal_pct": "mfu_causal"}.items():
            yield {"name": f"{name}/{key}", "group": "deepseek-v3 mfu", "figure": "%",
                   "published": float(row[column]), "command": line,
                   "read": lambda plan, key=key: 100 * plan["chosen"][key]}


ZERO_BUBBLE = {"1F1B": ("1f1b", None), "1F1B-I": ("interleaved", "chunks"), "ZB-1p": ("zb-h1", None),
               "ZB-2p": ("zb-h2", None), "ZB-V": ("zb-v", None),
               "ZB-2p*(b/2,2m)": ("zb-h2", "halved")}
# Chunks per rank of the interleaved rows: layers (with the two end stages' gap) over ranks.
ZERO_BUBBLE_CHUNKS = {"1.5B": 3, "6.2B": 4, "14.6B": 3, "28.3B": 2}


def zero_bubble_layers(row, chunks):
    """A layer less on the first and the last stage."""
    stages = int(row["pp"]) * chunks
    each, rest = divmod(int(row["layers"]) + 2, stages)
    if rest:
        return None
    return ",".join(str(each - (s in (0, stages - 1))) for s in range(stages))


def zero_bubble(data, names):
    for row in read_csv(data, "zero_bubble_throughput.csv"):
        if row["schedule"] not in ZERO_BUBBLE or row["model"] not in ZERO_BUBBLE_CHUNKS:
            yield {"name": f"zero-bubble/{row['model']}/pp{row['pp']}/{row['schedule']}",
                   "group": "zero-bubble throughput", "figure": "step s",
                   "published": number(row["samples_per_gpu_per_s"], 0),
                   "refused": "which schedule or model that is is not known here"}
            continue
        schedule, note = ZERO_BUBBLE[row["schedule"]]
        mbs, m = integer(row["mbs"]), integer(row["num_microbatches"])
        if note == "halved":
            mbs, m = mbs // 2, 2 * m
        gpus = integer(row["gpus"])
        name = f"zero-bubble/{row['model']}/pp{row['pp']}/{row['schedule']}/m{m}.mbs{mbs}"
        chunks = ZERO_BUBBLE_CHUNKS[row["model"]] if note == "chunks" else None
        sets = {"pipeline": row["pp"], "data": 1, "micro_batch_size": mbs, "microbatches": m,
                "schedule": schedule, "precision": "bf16", "recompute": "none", "virtual": chunks,
                "layers_per_stage": zero_bubble_layers(row, chunks or 1 + (schedule == "zb-v"))}
        profile = "a100-80gb@zero-bubble" if "zero-bubble" in names else None
        line = command(f"gpt-{row['model'].lower()}", "a100-80gb", gpus, mbs * m, row["seq_len"],
                       sets, profile)
        rate = float(row["samples_per_gpu_per_s"])
        yield {"name": name, "group": "zero-bubble throughput", "figure": "step s",
               "published": mbs * m / (rate * gpus), "command": line, "read": step_of}
        # Decimal: 1F1B of the 6.2B model is 39.2e9 bytes by the paper's own formulas, "39 GB".
        yield {"name": f"{name}/memory", "group": "memory", "figure": "bytes",
               "published": float(row["memory_GB"]) * 1e9, "command": line,
               "read": allocated_of}


def simumax(data, names):
    for row in read_csv(data, "simumax_b200_v1.2.csv"):
        model = ("deepseek-v3" if row["case"].startswith("deepseekv3") else
                 "deepseek-v2" if row["case"].startswith("deepseekv2") else
                 "llama-3.1-405b" if "405b" in row["case"] else "llama-3-70b")
        sizes = {key: integer(row[key]) for key in ("tp", "pp", "dp", "ep", "cp", "microbatches")}
        sets = {"pipeline": sizes["pp"], "tensor": sizes["tp"], "data": sizes["dp"],
                "expert": sizes["ep"], "context": sizes["cp"], "micro_batch_size": 1,
                "microbatches": sizes["microbatches"], "schedule": "1f1b", "precision": "bf16",
                "recompute": "none", "shard": "zero1", "model.layers": row["layers"],
                "model.mtp_layers": 0}
        if sizes["pp"] > 1:
            each = int(row["layers"]) // sizes["pp"]
            sets["layers_per_stage"] = ",".join([str(each)] * sizes["pp"])
        if model.startswith("deepseek"):
            sets["model.dense_layers"] = 1
        elif "405b" in model:
            sets["model.kv_heads"] = 16  # run_pretrain_llama3.sh
        if sizes["tp"] > 1:
            sets["sequence_parallel"] = 1
        profile = "b200@megatron-simumax" if "b200@megatron-simumax" in names else None
        line = command(model, "b200", 8, sizes["dp"] * sizes["microbatches"], row["seq_len"], sets,
                       profile)
        name = f"simumax/{row['case']}"
        yield {"name": name, "group": "simumax step", "figure": "step s",
               "published": float(row["real_ms"]) / 1e3, "command": line, "read": step_of}
        yield {"name": f"{name}/memory", "group": "memory", "figure": "bytes",
               "published": float(row["real_alloc_GiB"]) * 2**30, "command": line,
               "read": allocated_of}


def mbridge(data, names):
    """GB are 2**30: 1,250,961,408 parameters of 7.5 bytes are "8.74 GB"."""
    for row in read_csv(data, "mbridge_memory_estimator_measured.csv"):
        tensor, mbs = integer(row["tp"]), integer(row["mbs"])
        # The shape follows from the parameters that its README lists for each layer.
        sets = {"pipeline": 1, "tensor": tensor, "expert": 1, "expert_tensor": tensor,
                "sequence_parallel": 1 if tensor > 1 else None, "micro_batch_size": mbs,
                "microbatches": 4, "schedule": "1f1b", "precision": "bf16", "recompute": "none",
                "shard": "zero1", "model.layers": row["layers"], "model.hidden": 2048, "model.heads": 16,
                "model.kv_heads": 8, "model.head_dim": 128, "model.expert_ffn": 5440}
        profile = "h100@megatron-2024" if "h100@megatron-2024" in names else None
        line = command("mixtral-8x7b", "h100", 8, 8 // tensor * mbs * 4, row["seq_len"], sets,
                       profile)
        yield {"name": f"mbridge/tp{tensor}.mbs{mbs}/memory", "group": "memory",
               "figure": "bytes", "published": float(row["real_GB"]) * 2**30, "command": line,
               "read": allocated_of}


def korthikanti(data, names):
    for row in read_csv(data, "korthikanti2022_a100.csv"):
        chunks = integer(row["vpp_chunks"])
        for how, recompute, sequence_parallel in (("none", "none", -1),
                                                  ("seqpar_selective", "selective", 1)):
            sets = {"pipeline": row["pp"], "tensor": row["tp"], "data": 1,
                    "micro_batch_size": row["mbs"], "precision": "bf16", "recompute": recompute,
                    "sequence_parallel": sequence_parallel, "shard": "none",
                    "schedule": "interleaved" if chunks > 1 else "1f1b",
                    "virtual": chunks if chunks > 1 else None}
            profile = "a100-80gb@megatron-2022"
            line = command(f"gpt-{row['model'].lower()}", "a100-80gb", row["gpus"], row["gbs"],
                           2048, sets, profile if profile in names else None)
            name = f"korthikanti/{row['model']}/{how}"
            if how != "none":
                yield {"name": f"{name}/step", "group": "korthikanti step", "figure": "step s",
                       "published": float(row[f"iter_s_{how}"]), "command": line, "read": step_of}
            yield {"name": f"{name}/activations", "group": "memory", "figure": "bytes",
                   "published": float(row[f"act_mem_{how}_GiB"]) * 2**30, "command": line,
                   "read": activations_of}
            if how == "none":
                again = {**sets, "recompute": "full"}
                yield {"name": f"korthikanti/{row['model']}/full_recompute/step",
                       "group": "korthikanti step", "figure": "step s",
                       "published": float(row["iter_s_full_recompute"]), "read": step_of,
                       "command": command(f"gpt-{row['model'].lower()}", "a100-80gb", row["gpus"],
                                          row["gbs"], 2048, again,
                                          profile if profile in names else None)}
                yield {"name": f"{name}/state", "group": "memory", "figure": "bytes",
                       "published": float(row["param_opt_mem_GiB"]) * 2**30, "command": line,
                       "read": state_of}


def read_all(data, profiles, wanted):
    names = profile_names(profiles)
    readers = {"deepseek-v3": deepseek_v3, "profile-data": profile_phases, "nemo": nemo,
               "zero-bubble": zero_bubble, "bubble-rates": bubble_rates, "by-others": by_others,
               "simumax": simumax, "mbridge": mbridge, "korthikanti": korthikanti,
               "modelzoo": modelzoo, "primus": primus, "deepep": deepep,
               "model-shapes": model_shapes, "hardware": hardware}
    unknown = set(wanted or []) - set(readers)
    if unknown:
        raise SystemExit(f"no table is called {', '.join(sorted(unknown))}; "
                         f"they are {', '.join(readers)}")
    return [case for key, reader in readers.items() if not wanted or key in wanted
            for case in reader(data, names)]
