"""Readers of the tables of published runs: from a row to the same question for dpctl plan.

A case is a dict: name (unique, also used by profiles.json's fitted_on), group, figure, published,
and either command with read (plan -> predicted) or refused (why the model cannot price it).
"""
import csv
import json
import os
import re

# Errors to stay below, in percent.
GOALS = {
    "deepseek-v3 step": {"max": 3},
    "deepseek-v3 parts": {"max": 20},
    "zero-bubble throughput": {"median": 5},
    "nemo": {"median": 6, "p90": 15},
    "memory": {"median": 3},
}


def number(text, default=None):
    """The first number of a cell such as "31357 (29925)" or "597[^note]"; default when none."""
    found = re.match(r"\s*[-+]?\d+(\.\d+)?", text or "")
    return float(found.group()) if found else default


def integer(text, default=1):
    value = number(text)
    return default if value is None else int(value)


def step_of(plan):
    return plan["chosen"]["step_time_s"]


def allocated_of(plan):
    """What a framework's allocator counts: without the context, libraries and their buffers."""
    return max(rank["memory_bytes"] - rank["memory"]["runtime_bytes"]
               - rank["memory"]["exchange_bytes"] for rank in plan["chosen"]["per_rank"])


def state_of(plan):
    memory = plan["chosen"]["per_rank"][0]["memory"]
    return memory["weights_bytes"] + memory["gradients_bytes"] + memory["optimizer_bytes"]


def activations_of(plan):
    return plan["chosen"]["per_rank"][0]["memory"]["activations_bytes"]


def command(model, gpu, gpus, batch, sequence, sets, profile=None):
    line = ["plan", "--model", model, "--gpu", gpu, "--gpus", str(gpus), "--global-batch",
            str(batch), "--seq-len", str(sequence), "--ignore-memory"]
    if profile:
        line += ["--profile", profile]
    for key, value in sets.items():
        if value is not None:
            line += ["--set", f"{key}={value}"]
    return line


def profile_names(path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    profiles = document["profiles"]
    return [p["name"] for p in profiles] if isinstance(profiles, list) else list(profiles)


def read_csv(data, name):
    path = os.path.join(data, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# DeepSeek-V3 in production: arXiv 2505.09343, table 4.
def deepseek_v3(data, _names):
    parts = {"F_s": "forward_s", "bubble_s": "bubble_s", "B_input_s": "backward_input_s",
             "W_s": "weight_s", "F_and_B_overlapped_s": "overlapped_s",
             "optimizer_s": "optimizer_s"}
    for row in read_csv(data, "deepseek_v3_step_metrics.csv"):
        sets = {"pipeline": row["pp"], "expert": row["ep"], "data": row["dp"],
                "tensor": row["tp"], "schedule": row["schedule"].lower(),
                "micro_batch_size": row["mbs_derived"]}
        line = command("deepseek-v3", row["gpu"], row["gpus"], row["gbs_sequences"],
                       row["seq_len"], sets)
        name = f"deepseek-v3/{row['gpus']}x{row['gpu']}/{row['network']}"
        yield {"name": name, "group": "deepseek-v3 step", "figure": "step s",
               "published": float(row["step_s"]), "command": line, "read": step_of}
        for column, key in parts.items():
            # The table does not say whose sums these are; the last rank of a half pipeline has the
            # head, the first the embedding.
            yield {"name": f"{name}/{key}", "group": "deepseek-v3 parts", "figure": "s",
                   "published": float(row[column]), "command": line,
                   "read": lambda plan, key=key: plan["chosen"][key]}
        for column, key in {"mfu_noncausal_pct": "mfu_noncausal",
                            "mfu_causal_pct": "mfu_causal"}.items():
            yield {"name": f"{name}/{key}", "group": "deepseek-v3 mfu", "figure": "%",
                   "published": float(row[column]), "command": line,
                   "read": lambda plan, key=key: 100 * plan["chosen"][key]}


NEMO_MODELS = {
    "deepseekv3": "deepseek-v3", "gptoss120b": "gpt-oss-120b", "llama3_8b": "llama-3-8b",
    "llama3_70b": "llama-3-70b", "llama3.1_405b": "llama-3.1-405b",
    "qwen3_30b_a3b": "qwen3-30b-a3b", "qwen3_235b_a22b": "qwen3-235b-a22b", "kimi_k2": "kimi-k2",
    "kimik2": "kimi-k2", "mixtral_8x7b": "mixtral-8x7b", "mixtral_8x22b": "mixtral-8x22b",
}


def nemo_precision(text):
    # The 25.09 page has no column for it: its figures are FP8 with per-tensor scales, those in
    # parentheses with finer ones, but for a row that says otherwise.
    words = text.upper()
    if words.startswith("BF16") and "PARENS" not in words:
        return "bf16"
    if "FP4" in words:
        return "nvfp4"
    if "MXFP8" in words or words.startswith("FP8-MX"):
        return "mxfp8"
    return "fp8-block" if "BLK" in words or "-SC" in words else "fp8"


def stack_profile(gpu, container, names):
    """The profile of the newest software that is not newer than the container."""
    mine = [name for name in names if name.startswith(f"{gpu}@megatron-bridge-")]
    version = [int(part) for part in re.findall(r"\d+", container)]

    def key(name):
        return [int(part) for part in re.findall(r"\d+", name.rsplit("-", 1)[1])]

    older = [name for name in mine if key(name) <= version]
    if older:
        return max(older, key=key)
    return min(mine, key=key) if mine else None


def nemo(data, names):
    for row in read_csv(data, "nemo_megatron_bridge_perf.csv"):
        gpu = row["system"].replace("DGX-", "").lower()
        sizes = f"tp{row['tp']}.pp{row['pp']}.cp{row['cp']}.vp{row['vp']}.ep{row['ep']}"
        name = (f"nemo/{row['nemo_container']}/{row['model']}/{gpu}x{row['gpus']}/"
                f"{row['precision'].split('(')[0].strip()}/{sizes}.mbs{row['mbs']}")
        name = name.replace(" ", "-")
        case = {"name": name, "group": "nemo", "figure": "step s"}
        tokens = number(row["tokens_per_s_per_gpu"])
        batch, sequence, gpus = (integer(row[key], 0) for key in ("gbs", "seq_len", "gpus"))
        case["published"] = batch * sequence / (tokens * gpus) if tokens and gpus else None
        model = NEMO_MODELS.get(re.sub(r"\(.*", "", row["model"]).strip().lower().replace(" ", ""))
        if row["section"].startswith("LoRA"):
            case["refused"] = "LoRA: frozen weights are not modelled"
        elif row["section"].startswith("SFT"):
            case["refused"] = "fine-tuning: packed sequences of unknown lengths"
        elif model is None:
            case["refused"] = f"{row['model']}: its layers are not modelled"
        elif case["published"] is None:
            case["refused"] = "no throughput"
        else:
            case["command"] = nemo_command(row, model, gpu, gpus, batch, sequence, names)
            case["read"] = step_of
        yield case


def nemo_command(row, model, gpu, gpus, batch, sequence, names):
    pipeline, chunks = integer(row["pp"]), integer(row["vp"])
    shards = integer(row["tp"]) * integer(row["cp"])
    sets = {
        "pipeline": pipeline, "tensor": integer(row["tp"]), "context": integer(row["cp"]),
        "expert": integer(row["ep"]), "data": gpus // (pipeline * shards),
        "micro_batch_size": integer(row["mbs"]),
        "schedule": "interleaved" if pipeline > 1 and chunks > 1 else "1f1b",
        "virtual": chunks if pipeline > 1 and chunks > 1 else None,
        "precision": nemo_precision(row["precision"]),
        "shard": "fsdp" if number(row["fsdp"], 0) > 0 else "zero1",
    }
    if "w/o MTP" in row["model"]:
        sets["model.mtp_layers"] = 0
    return command(model, gpu, gpus, batch, sequence, sets,
                   stack_profile(gpu, row["nemo_container"], names))


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
        profile = "a100-80gb@zero-bubble" if "a100-80gb@zero-bubble" in names else None
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
            yield {"name": f"{name}/activations", "group": "memory", "figure": "bytes",
                   "published": float(row[f"act_mem_{how}_GiB"]) * 2**30, "command": line,
                   "read": activations_of}
            if how == "none":
                yield {"name": f"{name}/state", "group": "memory", "figure": "bytes",
                       "published": float(row["param_opt_mem_GiB"]) * 2**30, "command": line,
                       "read": state_of}


def primus_memory(data, _names):
    for row in read_csv(data, "primus_pp_schedules_measured.csv"):
        yield {"name": f"primus/{row['model']}/{row['schedule']}/memory", "group": "memory",
               "figure": "bytes", "published": float(row["max_memory_GB"]) * 1e9,
               "refused": "micro-batch, sequence, recomputation and optimizer formats are not "
                          "published with the row"}


def read_all(data, profiles, wanted):
    names = profile_names(profiles)
    readers = {"deepseek-v3": deepseek_v3, "nemo": nemo, "zero-bubble": zero_bubble,
               "simumax": simumax, "mbridge": mbridge, "korthikanti": korthikanti,
               "primus": primus_memory}
    unknown = set(wanted or []) - set(readers)
    if unknown:
        raise SystemExit(f"no table is called {', '.join(sorted(unknown))}; "
                         f"they are {', '.join(readers)}")
    return [case for key, reader in readers.items() if not wanted or key in wanted
            for case in reader(data, names)]
