#!/usr/bin/env python3
"""Checkpoints read by an independent reader, written from the description of the safetensors format
(8 bytes of length, a JSON header, values) and from that of XXH64, with Hugging Face's names of
tensors as the modelling code of each family has them.

    weights_oracle.py PROGRAM

Checks of every model that PROGRAM (oracle_weights) saves: the layout of every file, the index, the
hashes, each weight under the name and shape that others expect, every moment once; and that a
directory of weights alone, in another type and cut into other files, gives the same losses."""

import array
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
WIDTHS = {"F64": ("d", 8), "F32": ("f", 4), "BF16": ("H", 2)}
MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)

PLAIN = [
    (r"embedding", "model.embed_tokens.weight"),
    (r"head\.norm", "model.norm.weight"),
    (r"head\.output", "lm_head.weight"),
    (r"(L)attention\.norm", r"\1input_layernorm.weight"),
    (r"(L)attention\.([qkv])", r"\1self_attn.\2_proj.weight"),
    (r"(L)attention\.([qkv])\.bias", r"\1self_attn.\2_proj.bias"),
    (r"(L)attention\.([qk])_norm", r"\1self_attn.\2_norm.weight"),
    (r"(L)attention\.sinks", r"\1self_attn.sinks"),
    (r"(L)attention\.output", r"\1self_attn.o_proj.weight"),
    (r"(L)attention\.output\.bias", r"\1self_attn.o_proj.bias"),
    (r"(L)ffn\.norm", r"\1post_attention_layernorm.weight"),
    (r"(L)ffn\.(gate|up|down)", r"\1mlp.\2_proj.weight"),
    (r"(L)router", r"\1mlp.gate.weight"),
    (r"(L)router\.bias", r"\1mlp.gate.e_score_correction_bias"),
    (r"(L)shared\.(gate|up|down)", r"\1mlp.shared_experts.\2_proj.weight"),
    (r"(L)experts\.(\d+)\.(gate|up|down)", r"\1mlp.experts.\2.\3_proj.weight"),
]
QWEN2 = [
    (r"(L)shared\.(gate|up|down)", r"\1mlp.shared_expert.\2_proj.weight"),
    (r"(L)shared\.gating", r"\1mlp.shared_expert_gate.weight"),
]
LATENT = [
    (r"(L)attention\.q_norm", r"\1self_attn.q_a_layernorm.weight"),
    (r"(L)attention\.q_down", r"\1self_attn.q_a_proj.weight"),
    (r"(L)attention\.q_down\.bias", r"\1self_attn.q_a_proj.bias"),
    (r"(L)attention\.q_up", r"\1self_attn.q_b_proj.weight"),
    (r"(L)attention\.kv_down", r"\1self_attn.kv_a_proj_with_mqa.weight"),
    (r"(L)attention\.kv_down\.bias", r"\1self_attn.kv_a_proj_with_mqa.bias"),
    (r"(L)attention\.kv_norm", r"\1self_attn.kv_a_layernorm.weight"),
    (r"(L)attention\.kv_up", r"\1self_attn.kv_b_proj.weight"),
    (r"mtp\.embedding\.norm", "model.layers.3.enorm.weight"),
    (r"mtp\.hidden\.norm", "model.layers.3.hnorm.weight"),
    (r"mtp\.projection", "model.layers.3.eh_proj.weight"),
    (r"mtp\.head\.norm", "model.layers.3.shared_head.norm.weight"),
]
# The family that each model is, by its config.json.
FAMILIES = {
    "moe-f32": "deepseek", "dense": "llama", "dense-tied-qk-norm": "qwen3",
    "dense-biases": "llama", "dense-llama3": "llama", "moe-softmax": "deepseek",
    "moe-raw-groups": "deepseek", "moe-shared-gate": "qwen2_moe", "moe-sigmoid": "glm4_moe",
    "mla-moe": "deepseek_v3", "mla-mtp": "deepseek_v3",
    "mla-mtp-again": "deepseek_v3",
}


def name_of(own, family):
    special = {"qwen2_moe": QWEN2, "deepseek_v2": LATENT, "deepseek_v3": LATENT}.get(family, [])
    for pattern, name in special + PLAIN:
        pattern = "^" + pattern.replace("(L)", r"(layers\.\d+\.)") + "$"
        if re.match(pattern, own):
            text = re.sub(pattern, name, own)
            return "model." + text if text.startswith("layers.") else text
    raise AssertionError(f"{own} has no name in {family}")


def xxh64(data):
    def left(x, r):
        return ((x << r) | (x >> (64 - r))) & MASK

    def turn(acc, lane):
        return left((acc + lane * P2) & MASK, 31) * P1 & MASK

    at = 0
    if len(data) >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= len(data):
            lanes = [turn(a, x) for a, x in zip(lanes, struct.unpack_from("<4Q", data, at))]
            at += 32
        acc = sum(left(a, r) for a, r in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            acc = ((acc ^ turn(0, lane)) * P1 + P4) & MASK
    else:
        acc = P5
    acc = (acc + len(data)) & MASK
    while at + 8 <= len(data):
        acc = (left(acc ^ turn(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        acc = (left(acc ^ struct.unpack_from("<I", data, at)[0] * P1 & MASK, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        acc = left(acc ^ byte * P5 & MASK, 11) * P1 & MASK
    acc = (acc ^ acc >> 33) * P2 & MASK
    acc = (acc ^ acc >> 29) * P3 & MASK
    return acc ^ acc >> 32


def read_file(path):
    """name -> (dtype, shape, values)"""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    assert (8 + length) % 8 == 0 and data[8:9] == b"{", path
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__")
    assert metadata["format"] == "pt"
    tensors, at = {}, 0
    for number, (name, tensor) in enumerate(
            sorted(header.items(), key=lambda item: item[1]["data_offsets"])):
        begin, end = tensor["data_offsets"]
        code, width = WIDTHS[tensor["dtype"]]
        count = 1
        for size in tensor["shape"]:
            count *= size
        assert begin == at and end == begin + count * width, (path, name)
        raw = data[8 + length + begin:8 + length + end]
        assert xxh64(raw) == int(metadata["dp.xxh64"][16 * number:16 * number + 16], 16), name
        tensors[name] = (tensor["dtype"], tensor["shape"], array.array(code, raw))
        at = end
    assert 8 + length + at == len(data), path
    return tensors


def check_weight(name, saved, wanted):
    _, shape, values = saved
    is_vector = wanted["rows"] == 1 and not name.endswith("shared_expert_gate.weight")
    assert shape == ([wanted["cols"]] if is_vector else [wanted["rows"], wanted["cols"]]), name
    assert all(values[at] == value for at, value in wanted["values"]), name
    assert abs(sum(values) - wanted["sum"]) <= 1e-9 * (1 + abs(wanted["sum"])), name


def check_moments(files, tensors, family):
    """First moments count up over the whole model; each element is there once."""
    for own, tensor in tensors.items():
        if "moments" not in tensor:
            continue
        begin, end = tensor["moments"]
        name = name_of(own, family)
        for letter, factor in (("m", 1), ("v", 0.5)):
            got = {}
            for key, (_, shape, values) in files.items():
                match = re.fullmatch(re.escape(name) + rf"\.{letter}\[(\d+):(\d+)\]", key)
                if match:
                    low, high = map(int, match.groups())
                    assert shape == [high - low]
                    for i in range(low, high):
                        assert i not in got
                        got[i] = values[i - low]
            assert got == {i: factor * (begin + i) for i in range(end - begin)}, (name, letter)


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arguments}: {done.stderr}")
    return json.loads(done.stdout)


def write_file(path, tensors, dtype):
    """Another writer: values at the end of one file, names in any order, spaces behind the header."""
    code, width = WIDTHS[dtype]
    header, blob = {}, b""
    for name in sorted(tensors, reverse=True):
        _, shape, values = tensors[name]
        raw = array.array(code, values).tobytes()
        header[name] = {"data_offsets": [len(blob), len(blob) + len(raw)], "shape": shape,
                        "dtype": dtype}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def check_from_elsewhere(weights, config, directory, wanted):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2],
             "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        write_file(directory / file, {name: weights[name] for name in part}, "F64")
    (directory / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {n: f for f, part in parts.items() for n in part}}))
    assert run("load", directory)["samples"] == wanted
    # One that is not there is told by its name.
    lost = names[len(names) // 2]
    write_file(directory / "model-00001-of-00002.safetensors",
               {name: weights[name] for name in parts["model-00001-of-00002.safetensors"]
                if name != lost}, "F64")
    write_file(directory / "model-00002-of-00002.safetensors",
               {name: weights[name] for name in parts["model-00002-of-00002.safetensors"]
                if name != lost}, "F64")
    done = subprocess.run([PROGRAM, "load", str(directory)], capture_output=True, text=True)
    if not lost.endswith("e_score_correction_bias"):
        assert done.returncode != 0 and lost in done.stderr, (lost, done.stderr)


def check(variant, family, directory):
    saved = run("save", variant, directory)
    step = directory / "step-1"
    files = {path.name: read_file(path) for path in step.glob("*.safetensors")}
    weights = {name: tensor for file, tensors in files.items() if file.startswith("model-")
               for name, tensor in tensors.items()}
    assert set(weights) == {name_of(own, family) for own in saved["tensors"]}, variant
    for own, tensor in saved["tensors"].items():
        check_weight(name_of(own, family), weights[name_of(own, family)], tensor)
    moments = {name: tensor for file, tensors in files.items() if file.startswith("optimizer-")
               for name, tensor in tensors.items()}
    check_moments(moments, saved["tensors"], family)
    index = json.loads((step / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file for file, tensors in files.items()
                                   if file.startswith("model-") for name in tensors}
    config = json.loads((step / "config.json").read_text())
    assert config["model_type"] == family, (variant, config["model_type"])
    again = run("load", step)
    assert again == saved, variant
    check_from_elsewhere(weights, config, directory / "elsewhere", saved["samples"])


def main():
    assert xxh64(b"") == 0xEF46DB3751D8E999  # the published test vector
    for variant, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as directory:
            check(variant, family, pathlib.Path(directory))
    print(f"{len(FAMILIES)} models are as described")


main()
