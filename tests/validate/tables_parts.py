"""Readers of tables of parts: kernels of traces and libraries, schedules, shapes, devices."""
import json
import os
import re

from tables_common import command, integer, number, read_csv, step_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Balanced routing: above 1, so that it is taken as said.
BALANCED = 1.000001


def figures_of(name):
    """A built-in profile's figures by name, with those of what it builds on."""
    path = os.path.join(ROOT, "scheduler", "cost", "data", "profiles.json")
    with open(path, encoding="utf-8") as file:
        entries = {entry["name"]: entry for entry in json.load(file)["profiles"]}
    figures = {}
    while name is not None and name in entries:
        mine = entries[name].get("figures", {})
        figures = {**{key: figure["value"] for key, figure in mine.items()}, **figures}
        name = entries[name].get("base")
    return figures


def layers_command(layers, expert, sequence, extra):
    """Some MoE layers of DeepSeek-V3 alone on the bare device, with hardly a vocabulary."""
    pipeline = extra.get("pipeline", 1)
    sets = {"pipeline": pipeline, "expert": expert, "data": expert, "tensor": 1, "context": 1,
            "micro_batch_size": 1, "microbatches": 1, "shard": "zero1", "schedule": "zb-h1",
            "model.layers": layers, "model.dense_layers": 0, "model.mtp_layers": 0,
            "model.vocabulary": 256, "imbalance": BALANCED, **extra}
    gpu = sets.pop("gpu", "h800")
    return command("deepseek-v3", gpu, expert * pipeline, expert * sets["microbatches"], sequence,
                   sets, gpu)


def first_rank(plan, key):
    return plan["chosen"]["per_rank"][0][key]


# Products ran on the 112 multiprocessors that the exchange left them.
BESIDE = 132 / 112


def trace_part(part):
    """Seconds of four layers' part, beside the exchange, from a plan of them alone."""
    figures = figures_of("h800")

    def read(plan):
        exchange = first_rank(plan, "exchange_s") / 2
        alone = {"F": first_rank(plan, "forward_s") - exchange,
                 "I": first_rank(plan, "input_s") - exchange,
                 "W": first_rank(plan, "weight_s")}
        if part in alone:
            return alone[part] * BESIDE / 4
        return exchange * figures["exchange_contention"] / 4

    return read


PHASES = {"F": (("attn(F)", "mlp(F)"), "compute_stream_busy_us"),
          "I": (("attn(B)", "mlp(B)"), "compute_stream_busy_us"),
          "W": (("attn(W)", "mlp(W)"), "gpu_span_us"),
          "exchange-F": (("dispatch(F)", "combine(F)"), "comm_stream_busy_us"),
          "exchange-B": (("dispatch(B)", "combine(B)"), "comm_stream_busy_us")}


def profile_phases(data, _names):
    """The trace that the H800's figures are fitted on: in the list, not among what is reported."""
    rows = read_csv(data, "deepseek_profile_train_phases.csv")
    line = layers_command(4, 64, 4096, {"recompute": "norm+up+activation"})
    for slot in dict.fromkeys(row["layer_slot"] for row in rows):
        mine = {row["phase"]: row for row in rows if row["layer_slot"] == slot}
        for part, (phases, column) in PHASES.items():
            if all(phase in mine for phase in phases):
                yield {"name": f"profile-data/train.json/phases/layer{slot}/{part}",
                       "group": "profile-data phases", "figure": "s", "command": line,
                       "published": sum(float(mine[phase][column]) for phase in phases) / 1e6,
                       "read": trace_part(part)}
    if rows:
        pair = layers_command(8, 64, 4096, {"recompute": "norm+up+activation", "pipeline": 2,
                                            "schedule": "dualpipe", "microbatches": 20,
                                            "comm_units": 20}) + ["--explain", "0"]
        yield {"name": "profile-data/train.json/phases/pair", "group": "profile-data phases",
               "figure": "s", "command": pair,
               "published": max(float(row["gpu_end_us"]) for row in rows) / 1e6,
               "read": lambda plan: plan["parts"]["overlapped_s"] / plan["actions"]["FB"]}


def deepep(data, _names):
    """Seconds of a dispatch and a combine. "Logical" bytes are those of the nodes (in one node:
    the ranks) that a token visits: of groups, as many as there are nodes, at most four, chosen by
    their best expert, which is then nearly always among the eight."""
    for row in read_csv(data, "deepep_bandwidth.csv"):
        expert = int(row["ep"])
        units = f".sms{row['num_sms']}" if row["deepep_version"] != "V1" else ""
        name = f"deepep/{row['deepep_version']}/{row['kernel']}/{row['gpu']}/ep{expert}{units}"
        tokens = 4096 if row["deepep_version"] == "V1" else 8192
        if row["kernel"] != "normal":
            yield {"name": name, "group": "deepep", "figure": "s", "published": None,
                   "refused": "latency kernels of decoding: training's exchange is priced"}
            continue
        nodes = max(1, expert // 8)
        places = min(nodes, 4) if nodes > 1 else expert
        visited = places if nodes > places else places * (1 - (1 - 1 / places) ** 8)
        bytes_each = tokens * visited * 7168
        published = (bytes_each * (1 + 4 / 128) / (float(row["dispatch_GBps"]) * 1e9)
                     + 2 * bytes_each / (float(row["combine_GBps"]) * 1e9))
        gpu = {"SM90": "h100", "SM100": "b200"}.get(row["gpu"], row["gpu"])
        groups = {"model.expert_groups": nodes, "model.top_groups": min(nodes, 4)}
        line = layers_command(1, expert, tokens, {"gpu": gpu.lower(), "precision": "fp8-block",
                                                  **(groups if nodes > 4 else
                                                     {"model.expert_groups": 1,
                                                      "model.top_groups": 1})})
        yield {"name": name, "group": "deepep", "figure": "s", "published": published,
               "command": line, "read": lambda plan: first_rank(plan, "exchange_s") / 2}


# Chunks per rank of the interleaved column, which the closed form of the table tells.
RATE_CHUNKS = {("1.5B", "8"): 3, ("6.2B", "8"): 4, ("14.6B", "16"): 3, ("28.3B", "32"): 2}
RATE_SCHEDULES = {"bubble_1F1B": "1f1b", "bubble_1F1B_I": "interleaved", "bubble_ZB_H1": "zb-h1",
                  "bubble_ZB_H2": "zb-h2", "bubble_ZB_1p": "zb-h1", "bubble_ZB_2p": "auto"}


def bubble_rates(data, _names):
    """ZB-1p's rates are ZB-H1's; ZB-2p's are of a search that knows no barrier between steps."""
    for row in read_csv(data, "zero_bubble_bubble_rates.csv"):
        times = [float(row[key]) / 1e3 for key in ("T_F_ms", "T_B_ms", "T_W_ms")]
        for column, schedule in RATE_SCHEDULES.items():
            chunks = 1
            if schedule == "interleaved":
                chunks = RATE_CHUNKS.get((row["model"], row["pp"]), 2)
            costs = ",".join(f"{key}={value / chunks:.9g}" for key, value in zip("FIW", times))
            line = ["schedule", "simulate", schedule, "-P", row["pp"], "-M",
                    row["num_microbatches"], f"--cost={costs}",
                    f"--hop={float(row['T_comm_ms']) / 1e3:.9g}"]
            line += ["-v", str(chunks)] if chunks > 1 else []
            if schedule == "auto":
                line += ["--activation-bytes=1", f"--memory-cap={2 * int(row['pp'])}",
                         "--placement=straight", "--objective=span", "--moves=200"]
            work = int(row["num_microbatches"]) * sum(times)
            yield {"name": f"bubble/{row['model']}/pp{row['pp']}/m{row['num_microbatches']}/"
                           f"{column.removeprefix('bubble_')}",
                   "group": "bubble rates", "figure": "step s",
                   "published": work / (1 - float(row[column])), "command": line,
                   "read": span_of if schedule == "auto" else lambda sim: sim["makespan"]}


def span_of(simulation):
    busy = max(rank["busy"] for rank in simulation["ranks"])
    return busy / (1 - simulation["own_span_bubble_ratio"])


H800_SCHEDULES = {"1F1B": ("1f1b", {}), "ZB-2p": ("zb-h2", {}), "ZB-V": ("zb-v", {}),
                  "Interleaved-1F1B(max chunks)": ("interleaved", {"virtual": 4})}


def by_others(data, names):
    """Sizes of the 6.2B runs are those of its authors' own table: micro-batches of 3, 32 a step."""
    for row in read_csv(data, "dualpipe_zb_measurements_by_others.csv"):
        source = row["source"].split(" @")[0]
        name = f"by-others/{source}/{row['model']}/{row['schedule']}/{row['metric']}"
        name = re.sub(r"[^\w/.+-]+", "-", name)
        case = {"name": name, "group": "by others", "figure": row["metric"],
                "published": number(row["value"])}
        if row["metric"] == "samples_per_s_8gpu" and row["schedule"] in H800_SCHEDULES:
            schedule, more = H800_SCHEDULES[row["schedule"]]
            stages = 8 * more.get("virtual", 2 if schedule == "zb-v" else 1)
            each = 32 // stages
            layers = [each - (s in (0, stages - 1)) for s in range(stages)]
            sets = {"pipeline": 8, "data": 1, "micro_batch_size": 3, "microbatches": 32,
                    "schedule": schedule, "precision": "bf16", "recompute": "none",
                    "layers_per_stage": ",".join(map(str, layers)), **more}
            profile = "h800@zero-bubble" if "zero-bubble" in names else None
            case["command"] = command("gpt-6.2b", "h800", 8, 96, 1024, sets, profile)
            case["read"] = lambda plan: 96 / step_of(plan)
        else:
            case["refused"] = "model, sizes or micro-batches are not published with the row"
        yield case
        if row["metric2"]:
            yield {"name": re.sub(r"[^\w/.+-]+", "-", f"{name}/{row['metric2']}"),
                   "group": "by others", "figure": row["metric2"],
                   "published": number(row["value2"]),
                   "refused": "micro-batch size and what is kept are not published with the row"}


def model_shapes(data, _names):
    names = {"deepseek-v3/r1": "deepseek-v3", "deepseek-v2": "deepseek-v2",
             "deepseekmoe-16b": "deepseek-moe-16b"}
    for row in read_csv(data, "model_shapes.csv"):
        plain = row["model"].split(" / ")[0].lower()
        model = names.get(plain, plain)
        for column, key, unit in (("computed_total_B", "total_params", 1e9),
                                  ("computed_active_no_input_embedding_B", "active_params", 1e9)):
            published = number(row[column])
            yield {"name": f"shapes/{model}/{key}", "group": "model shapes", "figure": key,
                   "published": published * unit,
                   "command": ["model", "show", model],
                   "read": lambda shown, key=key: shown[key]}


DEVICES = {"A100-SXM-40": "a100-40gb", "A100-SXM-80": "a100-80gb", "H100-SXM": "h100",
           "H800-SXM": "h800", "H200-SXM": "h200", "B200-HGX": "b200", "GB200-NVL72": "gb200",
           "GB300-NVL72": "gb300"}
SPECS = {"bf16_dense_tflops": ("bf16_flops_peak", 1e12), "fp8_dense_tflops": ("fp8_flops_peak", 1e12),
         "hbm_TBps": ("memory_bytes_per_s", 1e12),
         "scaleup_GBps_per_direction": ("up_bytes_per_s", 1e9), "sm_or_cu": ("units", 1),
         "typical_nic_GBps_per_gpu": ("out_bytes_per_s", 1e9)}


def hardware(data, _names):
    """Presets: the profile's figures, and what a plan on the preset has to its disposal."""
    for row in read_csv(data, "hardware_specs.csv"):
        gpu = DEVICES.get(row["gpu"], row["gpu"].lower())
        figures = figures_of(gpu)
        for column, (key, unit) in SPECS.items():
            # "12.5-25": the faster; "50 (CX7) or 100 (CX8)": the first; "~500 (..)".
            cell = row[column].lstrip("~").split("-")[-1]
            if number(cell) is None:
                continue
            yield {"name": f"hardware/{row['gpu']}/{key}", "group": "hardware", "figure": key,
                   "published": number(cell) * unit, "predicted": figures.get(key)}
        line = ["plan", "--model", "llama-3-8b", "--gpu", gpu, "--gpus", "8", "--global-batch",
                "64", "--seq-len", "4096", "--set", "pipeline=1", "--set", "tensor=8"]
        yield {"name": f"hardware/{row['gpu']}/memory", "group": "hardware", "figure": "bytes",
               "published": float(row["hbm_GB"]) * 1e9, "command": line,
               "read": lambda plan: plan["chosen"]["memory_limit_bytes"]}
        yield {"name": f"hardware/{row['gpu']}/peak-of-mfu", "group": "hardware",
               "figure": "bf16", "published": number(row["bf16_dense_tflops"].lstrip("~")) * 1e12,
               "command": line,
               "read": lambda plan: (plan["chosen"]["tflops_per_gpu_causal"] * 1e12
                                     / plan["chosen"]["mfu_causal"])}


def modelzoo(data, names):
    for row in read_csv(data, "megatron_moe_modelzoo_h100.csv"):
        name = (f"modelzoo/{row['model']}/{row['gpus']}x{row['system'].lower()}/"
                f"tp{row['tp']}.pp{row['pp']}.ep{row['ep']}.vp{row['vpp']}.mbs{row['mbs']}/"
                f"{row['dispatcher']}{'+overlap' if 'overlap' in row['notes'].split('no ')[0] else ''}")
        case = {"name": name, "group": "modelzoo", "figure": "step s",
                "published": float(row["step_s"])}
        model = {"Qwen3-235B-A22B": "qwen3-235b-a22b"}.get(row["model"])
        if model is None:
            case["refused"] = f"{row['model']}: its layers are not modelled"
            yield case
            continue
        pipeline, chunks, tensor = (integer(row[key]) for key in ("pp", "vpp", "tp"))
        interleaved = pipeline > 1 and chunks > 1
        stages = pipeline * (chunks if interleaved else 1)
        each, rest = divmod(96, stages)
        layers = [each - (s in (0, stages - 1)) for s in range(stages)]
        parts = {"norm": "norm", "act": "activation", "full": "full"}
        recompute = "+".join(parts[part] for part in row["recompute"].split(",") if part) or "none"
        sets = {"pipeline": pipeline, "tensor": tensor, "context": integer(row["cp"]),
                "expert": integer(row["ep"]), "expert_tensor": integer(row["etp"]),
                "data": int(row["gpus"]) // (pipeline * tensor), "sequence_parallel": 1,
                "micro_batch_size": integer(row["mbs"]), "precision": "bf16",
                "schedule": "interleaved" if interleaved else "1f1b",
                "virtual": chunks if interleaved else None, "recompute": recompute,
                "shard": "fsdp" if row["fsdp"] else "zero1",
                "layers_per_stage": None if rest or stages == 1 else ",".join(map(str, layers))}
        software = ["megatron-bridge-26.02", "dgx-h100"]
        software += ["plain"] if row["dispatcher"] == "A2A" else []
        software += ["overlap"] if name.endswith("+overlap") else []
        profile = "h100@" + "+".join(software) if all(s in names for s in software) else None
        case["command"] = command(model, "h100", row["gpus"], row["gbs"], row["seq_len"], sets,
                                  profile)
        case["read"] = step_of
        yield case


def primus(data, _names):
    """The table names neither micro-batches nor sequence; throughputs and memory need them."""
    why = ("micro-batch, global batch, sequence, recomputation and optimizer formats are not "
           "published with the row")
    for row in read_csv(data, "primus_pp_schedules_measured.csv"):
        name = f"primus/{row['model']}/{row['gpu']}/{row['schedule']}.vp{row['vpp']}"
        yield {"name": name, "group": "primus", "figure": "tokens/s",
               "published": float(row["tokens_per_s_per_gpu"]), "refused": why}
        yield {"name": f"{name}/memory", "group": "memory", "figure": "bytes",
               "published": float(row["max_memory_GB"]) * 1e9, "refused": why}
