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
import random
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
MIXTRAL = [
    (r"(L)router", r"\1block_sparse_moe.gate.weight"),
    (r"(L)experts\.(\d+)\.gate", r"\1block_sparse_moe.experts.\2.w1.weight"),
    (r"(L)experts\.(\d+)\.up", r"\1block_sparse_moe.experts.\2.w3.weight"),
    (r"(L)experts\.(\d+)\.down", r"\1block_sparse_moe.experts.\2.w2.weight"),
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
    "dense-biases": "llama", "dense-llama3": "llama", "dense-windows": "mistral",
    "dense-qkv-biases": "qwen2", "dense-windows-sinks": "dp", "moe-softmax": "deepseek",
    "moe-alone": "mixtral", "moe-qk-norm": "qwen3_moe", "moe-raw-groups": "dp",
    "moe-shared-gate": "qwen2_moe", "moe-sigmoid": "glm4_moe", "mla-softmax": "deepseek_v2",
    "mla-moe": "deepseek_v3", "mla-mtp": "deepseek_v3", "mla-mtp-again": "deepseek_v3",
}


def name_of(own, family):
    special = {"mixtral": MIXTRAL, "qwen2_moe": QWEN2, "deepseek_v2": LATENT, "deepseek_v3": LATENT}.get(family, [])
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


def e4m3(code):
    """OCP 8-bit floating point, 1.0: bias 7, no infinities."""
    exponent, mantissa = code >> 3 & 15, code & 7
    value = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if code & 128 else value


def fp8_weights(config):
    """name -> (shape, codes or None, scales or None, values); as DeepSeek-V3 is published, products'
    weights in E4M3 with a scale for each block of 128 x 128 (the last ones are smaller)."""
    rand = random.Random(8)
    h, v, q, kv = (config[k] for k in ("hidden_size", "vocab_size", "q_lora_rank", "kv_lora_rank"))
    heads, nope, rope = (config[k] for k in ("num_attention_heads", "qk_nope_head_dim",
                                             "qk_rope_head_dim"))
    wide, ffn = config["v_head_dim"], config["intermediate_size"]
    matrices = {"self_attn.q_a_proj": (q, h), "self_attn.q_b_proj": (heads * (nope + rope), q),
                "self_attn.kv_a_proj_with_mqa": (kv + rope, h),
                "self_attn.kv_b_proj": (heads * (nope + wide), kv),
                "self_attn.o_proj": (h, heads * wide), "mlp.gate_proj": (ffn, h),
                "mlp.up_proj": (ffn, h), "mlp.down_proj": (h, ffn)}
    plain = {"model.embed_tokens": (v, h), "lm_head": (v, h), "model.norm": (h,)}
    for name, size in (("input_layernorm", h), ("post_attention_layernorm", h),
                       ("self_attn.q_a_layernorm", q), ("self_attn.kv_a_layernorm", kv)):
        plain["model.layers.0." + name] = (size,)
    found = {}
    for name, (rows, cols) in matrices.items():
        codes = [code for code in rand.randbytes(2 * rows * cols) if code & 127 != 127]
        codes = codes[:rows * cols]
        down, across = -(-rows // 128), -(-cols // 128)
        # Floats in the file; the largest values are 448 times as large.
        scales = array.array("f", (0.1 / 448 * (1 + rand.random()) for _ in range(down * across)))
        values = [e4m3(codes[r * cols + c]) * scales[r // 128 * across + c // 128]
                  for r in range(rows) for c in range(cols)]
        found[f"model.layers.0.{name}.weight"] = ([rows, cols], codes, ([down, across], scales),
                                                  values)
    for name, shape in plain.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        base = 1 if len(shape) == 1 else 0
        # Whole 128ths: the same in every type.
        values = [base + rand.randrange(-32, 33) / 128 for _ in range(count)]
        found[name + ".weight"] = (list(shape), None, None, values)
    return found


def put(path, entries):
    header, blob = {}, b""
    for name, (dtype, shape, raw) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob),
                                                                         len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def bf16(values):
    return array.array("H", (struct.unpack("<I", struct.pack("<f", x))[0] >> 16
                             for x in values)).tobytes()


def check_fp8(directory):
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 1, "first_k_dense_replace": 1,
              "hidden_size": 160, "intermediate_size": 300, "vocab_size": 64,
              "num_attention_heads": 4, "q_lora_rank": 130, "kv_lora_rank": 128,
              "qk_nope_head_dim": 30, "qk_rope_head_dim": 4, "v_head_dim": 20,
              "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
              "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0,
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                      "activation_scheme": "dynamic",
                                      "weight_block_size": [128, 128]}}
    weights = fp8_weights(config)
    packed, wide = {}, {}
    for name, (shape, codes, scales, values) in weights.items():
        if codes is None:
            packed[name] = ("BF16", shape, bf16(values))
        else:
            packed[name] = ("F8_E4M3", shape, bytes(codes))
            packed[name + "_scale_inv"] = ("F32", scales[0], scales[1].tobytes())
        wide[name] = ("F64", shape, array.array("d", values).tobytes())
    results = []
    for kind, entries in (("packed", packed), ("wide", wide)):
        (directory / kind).mkdir()
        (directory / kind / "config.json").write_text(json.dumps(config))
        put(directory / kind / "model.safetensors", entries)
        results.append(run("load", directory / kind))
    assert results[0] == results[1]
    for own, tensor in results[0]["tensors"].items():
        _, _, _, values = weights[name_of(own, "deepseek_v3")]
        assert all(values[at] == value for at, value in tensor["values"]), own
    # Scales of another number of blocks are told by name, and so is a tensor nobody knows.
    name = "model.layers.0.mlp.up_proj.weight_scale_inv"
    for wrong, words in (({name: ("F32", [1, 2], bytes(8))}, name),
                         ({name: ("I32", packed[name][1], packed[name][2])}, name),
                         ({"model.layers.0.mlp.extra": ("F32", [1], bytes(4))}, "mlp.extra")):
        put(directory / "packed" / "model.safetensors", {**packed, **wrong})
        done = subprocess.run([PROGRAM, "load", str(directory / "packed")], capture_output=True,
                              text=True)
        assert done.returncode != 0 and words in done.stderr, done.stderr


def main():
    assert xxh64(b"") == 0xEF46DB3751D8E999  # the published test vector
    for variant, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as directory:
            check(variant, family, pathlib.Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        check_fp8(pathlib.Path(directory))
    print(f"{len(FAMILIES)} models are as described, and weights in fp8")


main()
