"""Rows of NeMo's and Megatron-Bridge's performance page, as the public recipes ran them.

recipes.csv says what the page does not: CUDA graphs, overlap of the experts' all-to-all, fused
expert kernels, its dispatcher and what is recomputed, for stacks (model, accelerator, format and
the container since when), never for a single row. The first row that matches counts.
"""
import csv
import fnmatch
import os
import re

from tables_common import command, integer, number, read_csv, step_of

MODELS = {
    "deepseekv3": "deepseek-v3", "gptoss120b": "gpt-oss-120b", "gptoss20b": "gpt-oss-20b",
    "llama38b": "llama-3-8b", "llama370b": "llama-3-70b", "llama31405b": "llama-3.1-405b",
    "qwen330ba3b": "qwen3-30b-a3b", "qwen3235ba22b": "qwen3-235b-a22b", "kimik2": "kimi-k2",
    "mixtral8x7b": "mixtral-8x7b", "mixtral8x22b": "mixtral-8x22b",
}
LAYERS = {"deepseek-v3": 61, "kimi-k2": 61, "qwen3-235b-a22b": 94, "qwen3-30b-a3b": 48,
          "llama-3.1-405b": 126, "llama-3-70b": 80, "llama-3-8b": 32, "gpt-oss-120b": 36,
          "gpt-oss-20b": 24, "mixtral-8x7b": 32, "mixtral-8x22b": 56}
DENSE = ("llama-",)


def precision_of(text):
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


def model_of(text):
    plain = re.sub(r"\(.*", "", text)
    return MODELS.get(re.sub(r"[^a-z0-9]", "", plain.lower()))


def version(text):
    return [int(part) for part in re.findall(r"\d+", text)]


def read_recipes():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recipes.csv")
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def recipe_of(recipes, model, gpu, precision, container, expert):
    for recipe in recipes:
        if (fnmatch.fnmatch(model, recipe["model"])
                and any(fnmatch.fnmatch(gpu, one) for one in recipe["gpu"].split("|"))
                and recipe["precision"] in ("*", precision)
                and version(recipe["since"]) <= version(container)
                and recipe["ep"] in ("", str(expert))):
            return recipe
    return None


def stack_of(gpu, container, names):
    """The newest software that is not newer than the container."""
    mine = [name for name in names if re.fullmatch(r"megatron-bridge-[\d.]+", name)]
    older = [name for name in mine if version(name) <= version(container)]
    if not mine:
        return None
    return f"{gpu}@" + (max(older, key=version) if older else min(mine, key=version))


def profile_of(recipe, row, gpu, model, names):
    stack = stack_of(gpu, row["nemo_container"], names)
    if stack is None:
        return None
    graphs = "tokendrop" if "tokendrop" in row["model"] else recipe["graphs"]
    parts = [] if graphs == "none" else [graphs if graphs == "tokendrop" else f"{graphs}-graphs"]
    if gpu == "h100" and graphs == "none":
        parts.append("dgx-h100")
    if model.startswith(DENSE):
        parts = []
    elif recipe["dispatcher"] == "alltoall":
        parts.append("plain")
    if recipe["overlap"] == "1":
        parts.append("overlap")
    if recipe["fused"] == "1":
        parts.append("fused")
    return "+".join([stack, *[part for part in parts if part in names]])


def layers_of(model, stages):
    """Layers of each stage as Megatron puts them: the embedding and the loss count as one each
    where layers do not divide, or the last stage of DeepSeek's layouts takes what is left."""
    layers = LAYERS[model]
    if stages == 1:
        return None
    if layers % stages == 0:
        counts = [layers // stages] * stages
    elif layers == 61:
        each = 64 // stages
        counts = [each] * stages
        if each < 4:
            counts[0] = each - 1
        counts[-1] = layers - sum(counts[:-1])
    elif (layers + 2) % stages == 0:
        counts = [(layers + 2) // stages] * stages
        counts[0] -= 1
        counts[-1] -= 1
    else:
        return None
    return ",".join(str(count) for count in counts) if min(counts) >= 0 else None


def settings(row, model, precision, gpus, recipe):
    pipeline, chunks = integer(row["pp"]), integer(row["vp"])
    interleaved = pipeline > 1 and chunks > 1
    tensor = integer(row["tp"])
    sets = {
        "pipeline": pipeline, "tensor": tensor, "context": integer(row["cp"]),
        "expert": integer(row["ep"]), "data": gpus // (pipeline * tensor * integer(row["cp"])),
        "micro_batch_size": integer(row["mbs"]),
        "schedule": "interleaved" if interleaved else "1f1b",
        "virtual": chunks if interleaved else None, "precision": precision,
        "sequence_parallel": 1 if tensor > 1 else None,
        "shard": "fsdp" if number(row["fsdp"], 0) > 0 else "zero1",
        "recompute": recipe["recompute"],
        "layers_per_stage": layers_of(model, pipeline * (chunks if interleaved else 1)),
    }
    if "w/o MTP" in row["model"]:
        sets["model.mtp_layers"] = 0
    return sets


def name_of(row, gpu):
    sizes = f"tp{row['tp']}.pp{row['pp']}.cp{row['cp']}.vp{row['vp']}.ep{row['ep']}"
    name = (f"nemo/{row['nemo_container']}/{row['model']}/{gpu}x{row['gpus']}/"
            f"{row['precision'].split('(')[0].strip()}/{sizes}.mbs{row['mbs']}.gbs{row['gbs']}")
    return name.replace(" ", "-")


def nemo(data, names):
    recipes = read_recipes()
    for row in read_csv(data, "nemo_megatron_bridge_perf.csv"):
        gpu = row["system"].replace("DGX-", "").lower()
        case = {"name": name_of(row, gpu), "group": "nemo", "figure": "step s"}
        tokens = number(row["tokens_per_s_per_gpu"])
        batch, sequence, gpus = (integer(row[key], 0) for key in ("gbs", "seq_len", "gpus"))
        case["published"] = batch * sequence / (tokens * gpus) if tokens and gpus else None
        model, precision = model_of(row["model"]), precision_of(row["precision"])
        recipe = None
        if model is not None:
            recipe = recipe_of(recipes, model, gpu, precision, row["nemo_container"],
                               integer(row["ep"]))
        if row["section"].startswith("LoRA"):
            case["refused"] = "LoRA: frozen weights are not modelled"
        elif row["section"].startswith("SFT"):
            case["refused"] = "fine-tuning: packed sequences of unknown lengths"
        elif model is None:
            case["refused"] = f"{row['model']}: its layers are not modelled"
        elif case["published"] is None:
            case["refused"] = "no throughput"
        elif recipe is None:
            case["refused"] = f"recipes.csv has no line for {model} on {gpu}"
        else:
            case["command"] = command(model, gpu, gpus, batch, sequence,
                                      settings(row, model, precision, gpus, recipe),
                                      profile_of(recipe, row, gpu, model, names))
            case["read"] = step_of
        yield case
