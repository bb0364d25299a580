"""What all readers of tables share: cells, figures of plans, and the command that asks for one."""
import csv
import os
import re


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


def read_csv(data, name):
    path = os.path.join(data, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
