#!/usr/bin/env python3
"""Our planner beside public ones: the same questions in the same run, on one core.

    DP_CALCULON       a checkout of calculon-ai/calculon
    DP_LLM_ANALYSIS   a Python with llm-analysis, as in a virtual environment's bin/python
    DP_SIMUMAX        a checkout of MooreThreads/SimuMax, 2127d7d
    DP_VALIDATION     tables of published runs (or ../shared/validation beside the sources)

Prints rows of build/bench.json; a peer or table that is not there is skipped and the reason
printed. Nothing of theirs is kept here. dpctl is taken from $DP_BIN.
"""

import itertools
import json
import logging
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time
import warnings

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DP_BIN", SOURCE / "build" / "release" / "bin"))
PROFILES = SOURCE / "scheduler" / "cost" / "data" / "profiles.json"
GIB = 2**30

# arXiv 2205.05198 on the A100: seconds of an iteration (table 5) and GiB of weights, gradients and
# optimizer and of activations (figure 1); ways are full recomputation, sequence parallel with
# selective recomputation, and neither.
TIMES = {("22b", "full"): 1.42, ("22b", "selective"): 1.10,
         ("175b", "full"): 18.13, ("175b", "selective"): 13.75,
         ("530b", "full"): 49.05, ("530b", "selective"): 37.83,
         ("1t", "full"): 94.42, ("1t", "selective"): 71.49}
STATE = {("22b", "none"): 45.5625, ("175b", "none"): 45.5625, ("530b", "none"): 31.640625,
         ("1t", "none"): 32.958984375}
ACTIVATIONS = {("22b", "none"): 59.25, ("22b", "selective"): 9.5625,
               ("175b", "none"): 66.84375, ("175b", "selective"): 12.3515625,
               ("530b", "none"): 114.0234375, ("530b", "selective"): 23.076171875,
               ("1t", "none"): 131.25, ("1t", "selective"): 26.5625}
MODELS = {"22b": {"gpus": 8, "pipeline": 1, "chunks": 1, "batch": 4, "micro": 4, "hidden": 6144,
                  "heads": 64, "layers": 48},
          "175b": {"gpus": 64, "pipeline": 8, "chunks": 3, "batch": 64, "micro": 1,
                   "hidden": 12288, "heads": 96, "layers": 96},
          "530b": {"gpus": 280, "pipeline": 35, "chunks": 3, "batch": 280, "micro": 1,
                   "hidden": 20480, "heads": 128, "layers": 105},
          "1t": {"gpus": 512, "pipeline": 64, "chunks": 1, "batch": 512, "micro": 1,
                 "hidden": 25600, "heads": 160, "layers": 128}}
DRAWN = 2000  # candidates of Calculon's space that are timed


def row(name, value, unit, peer, ratio, goal, met):
    print(json.dumps({"name": name, "value": round(value, 6), "unit": unit, "peer": peer,
                      "ratio": round(ratio, 4), "goal": goal, "met": bool(met)}), flush=True)


def children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dpctl(*arguments, check=True):
    """(the plan, seconds of processor time of the whole program)."""
    before = children_s()
    done = subprocess.run([BIN / "dpctl", "plan", "-o", "json", *map(str, arguments)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if check:
            raise SystemExit(f"dpctl plan {arguments}: {done.stderr.strip()}")
        return done.stderr.strip(), children_s() - before
    return json.loads(done.stdout), children_s() - before


def ours(name, way):
    """The plan of one of the runs of arXiv 2205.05198, as it was run."""
    m = MODELS[name]
    sets = {"pipeline": m["pipeline"], "tensor": 8, "data": 1, "micro_batch_size": m["micro"],
            "precision": "bf16", "shard": "none", "recompute": way,
            "sequence_parallel": 1 if way == "selective" else -1,
            "schedule": "interleaved" if m["chunks"] > 1 else "1f1b"}
    if m["chunks"] > 1:
        sets["virtual"] = m["chunks"]
    plan, _ = dpctl("--model", f"gpt-{name}", "--gpu", "a100-80gb", "--gpus", m["gpus"],
                    "--global-batch", m["batch"], "--seq-len", 2048, "--ignore-memory",
                    "--profile", "a100-80gb@megatron-2022",
                    *(x for key, value in sets.items() for x in ("--set", f"{key}={value}")))
    return plan["chosen"]


def state_and_activations(chosen):
    memory = chosen["per_rank"][0]["memory"]
    state = memory["weights_bytes"] + memory["gradients_bytes"] + memory["optimizer_bytes"]
    return state / GIB, memory["activations_bytes"] / GIB


class Calculon:
    """Its model of one execution, its systems of the A100 and the space of its search."""

    def __init__(self, checkout):
        sys.path.insert(0, str(checkout))
        from calculon import llm
        self.llm = llm.Llm
        self.system = llm.System
        self.systems = pathlib.Path(checkout) / "systems"
        self.log = logging.Logger("peer")

    def read_system(self, name):
        return self.system(json.loads((self.systems / f"{name}.json").read_text()))

    def application(self, m):
        return self.llm.Application({
            "hidden": m["hidden"], "feedforward": 4 * m["hidden"], "seq_size": 2048,
            "attn_heads": m["heads"], "attn_size": m["hidden"] // m["heads"],
            "num_blocks": m["layers"]})

    def run(self, application, system, **changes):
        execution = {
            "data_par": 1, "tensor_par_net": 0, "pipeline_par_net": 1, "data_par_net": 1,
            "datatype": "float16", "fused_activation": False, "attention_type": "multihead",
            "optimizer_sharding": False, "tensor_par_overlap": "none", "data_par_overlap": False,
            "weight_offload": False, "activations_offload": False, "optimizer_offload": False,
            "seq_par_ag_redo": False, "training": True, **changes}
        make = getattr(self.llm.Execution, "from_json", self.llm.Execution)
        model = self.llm(application, self.log)
        model.compile(system, make(execution))
        model.run(system)
        return model

    def published(self, name, way, system):
        m = MODELS[name]
        how = {"full": ("full", "ar"), "selective": ("attn_only", "rs_ag"), "none": ("none", "ar")}
        recompute, collective = how[way]
        return self.run(self.application(m), self.read_system(system), num_procs=m["gpus"],
                        tensor_par=8, pipeline_par=m["pipeline"], batch_size=m["batch"],
                        microbatch_size=m["micro"], pipeline_interleaving=m["chunks"],
                        activation_recompute=recompute, tensor_par_comm_type=collective,
                        seq_par_ag_redo=way == "selective")

    def space(self, m):
        """What its llm-optimal-execution walks, without offloading and other networks."""
        llm, gpus = self.llm, m["gpus"]
        for tp in llm.get_all_tensor_parallelisms(gpus, m["hidden"], m["heads"]):
            for pp in llm.get_all_pipeline_parallelisms(gpus, tp, m["layers"]):
                dp = llm.get_data_parallelism(gpus, tp, pp)
                batch = m["batch"] // dp * dp
                for chunks, recompute, shard, comm, overlap, dp_overlap, micro in itertools.product(
                        llm.get_valid_pipeline_interleavings(m["layers"], pp),
                        ("full", "attn_only", "none"), (True, False) if dp > 1 else (False,),
                        ("ar", "p2p_rs_ag", "rs_ag"),
                        ("none", "ring", "pipe") if tp > 1 else ("none",),
                        (True, False) if dp > 1 else (False,),
                        llm.get_valid_microbatch_sizes(2048, tp, dp, batch, pp)):
                    yield {"num_procs": gpus, "tensor_par": tp, "pipeline_par": pp,
                           "data_par": dp, "batch_size": batch, "microbatch_size": micro,
                           "activation_recompute": recompute, "pipeline_interleaving": chunks,
                           "optimizer_sharding": shard, "tensor_par_comm_type": comm,
                           "tensor_par_overlap": overlap, "data_par_overlap": dp_overlap,
                           "seq_par_ag_redo": llm.can_redo_ag(comm, recompute),
                           "fused_activation": True, "tensor_par_net": 0 if tp <= 8 else 1}

    def rate(self, m):
        """(executions per second of processor time, of how many)."""
        application, system = self.application(m), self.read_system("a100_80g")
        space = list(self.space(m))
        drawn = random.Random(1).sample(space, min(DRAWN, len(space)))
        start = time.process_time()
        for changes in drawn:
            try:
                self.run(application, system, **changes)
            except self.llm.Error:
                pass  # does not fit: that is an answer, too
        return len(drawn) / (time.process_time() - start), len(space)


def mean_error(found, published):
    return 100 * statistics.fmean(abs(found[key] / published[key] - 1) for key in published)


def held_out(published):
    """Without the rows that constants of ours were fitted on."""
    fitted = json.dumps(json.loads(PROFILES.read_text())).lower()
    ways = {"full": "full_recompute", "selective": "seqpar_selective"}
    return {key: value for key, value in published.items()
            if f'"korthikanti/{key[0]}/{ways[key[1]]}/step"' not in fitted}


def beside(name, mine, theirs, who):
    row(name, mine, "%", f"{who}: {theirs:.2f} %", mine / theirs, "at most the peer's",
        mine <= theirs)


def calculon():
    checkout = os.environ.get("DP_CALCULON")
    if not checkout:
        print("no comparison with Calculon: DP_CALCULON names no checkout")
        return
    peer = Calculon(checkout)
    mine = {key: ours(*key) for key in {*TIMES, *ACTIVATIONS}}
    theirs = {key: peer.published(*key, "a100_80g") for key in TIMES}
    for key, published in TIMES.items():
        ratios = [model / published - 1
                  for model in (mine[key]["step_time_s"], theirs[key].get_total_time())]
        print(f"{key}: published {published} s, ours {ratios[0]:+.1%}, Calculon {ratios[1]:+.1%}")
    for rows, which in ((TIMES, "all 8 rows"), (held_out(TIMES), "rows not fitted on")):
        beside(f"step time of arXiv 2205.05198, {which}: mean error",
               mean_error({key: plan["step_time_s"] for key, plan in mine.items()}, rows),
               mean_error({key: model.get_total_time() for key, model in theirs.items()}, rows),
               "Calculon")
    memory = {key: peer.published(*key, "a100_80e") for key in ACTIVATIONS}
    beside("state of arXiv 2205.05198: mean error of bytes",
           mean_error({key: state_and_activations(mine[key])[0] for key in STATE}, STATE),
           mean_error({key: (model.get_weight_space() + model.get_weight_grad_space() +
                             model.get_optimizer_space()) / GIB
                       for key, model in memory.items()}, STATE), "Calculon")
    beside("activations of arXiv 2205.05198: mean error of bytes",
           mean_error({key: state_and_activations(mine[key])[1] for key in ACTIVATIONS},
                      ACTIVATIONS),
           mean_error({key: model.get_act_space() / GIB for key, model in memory.items()},
                      ACTIVATIONS), "Calculon")
    rate, size = peer.rate(MODELS["175b"])
    plan, seconds = dpctl("--model", "gpt-175b", "--gpu", "a100-80gb", "--gpus", 64,
                          "--global-batch", 64, "--seq-len", 2048)
    mine = plan["searched"] / seconds
    row("plan, 175B on 64 A100: candidates", mine, "candidates/s",
        f"Calculon: {rate:.0f} of its {size} a second", mine / rate, "more than 10 x",
        mine > 10 * rate)
    limits(peer)


def limits(peer):
    """What it says to questions that are ordinary here."""
    system = peer.read_system("a100_80g")
    odd = peer.application({**MODELS["175b"], "layers": 61})
    depths = list(peer.llm.get_all_pipeline_parallelisms(128, 8, 61))
    common = {"num_procs": 128, "tensor_par": 8, "pipeline_par": 16, "batch_size": 64,
              "microbatch_size": 1, "activation_recompute": "full", "pipeline_interleaving": 1,
              "tensor_par_comm_type": "ar"}
    try:
        held = peer.run(odd, system, **common)._blocks_per_proc
        print(f"Calculon, 61 layers: its search tries depths {depths}; asked for 16 it prices "
              f"{held} layers on every stage")
    except (AssertionError, peer.llm.Error) as refusal:
        print(f"Calculon, 61 layers on 16 stages: {refusal!r}")
    try:
        peer.run(peer.application(MODELS["175b"]), system, **{**common, "schedule": "dualpipe"})
        print("Calculon, a schedule by name: the key is ignored")
    except (KeyError, TypeError, AssertionError) as refusal:
        print(f"Calculon, a schedule by name: {refusal!r}")


LLM_ANALYSIS = """
import contextlib, io, json, time
from llm_analysis.analysis import train
def ask(**changes):
    return train(**{**dict(model_name="megatron-lm-175b", gpu_name="a100-sxm-80gb", tp_size=8,
        pp_size=8, dp_size=1, total_num_gpus=64, seq_len=2048, batch_size_per_gpu=1,
        gradient_accumulation_steps=64, flash_attn=False, activation_recomputation=1, sp_size=8,
        log_level="ERROR"), **changes})
answer = ask()
start = time.process_time()
for _ in range(500):
    ask()
print(json.dumps({"rate": 500 / (time.process_time() - start),
                  "seconds": answer["latency_per_iter"],
                  "activations": answer["activation_memory_per_gpu"]}))
"""


def llm_analysis():
    python = os.environ.get("DP_LLM_ANALYSIS")
    if not python:
        print("no comparison with llm-analysis: DP_LLM_ANALYSIS names no Python that has it")
        return
    done = subprocess.run([python, "-c", LLM_ANALYSIS], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"no comparison with llm-analysis: {done.stderr.strip()[-200:]}")
        return
    answer = json.loads(done.stdout.splitlines()[-1])
    key = ("175b", "selective")
    plan = ours(*key)
    print(f"{key}: llm-analysis takes the share of the peak that products reach from its user and "
          f"has no bubble: {answer['seconds']:.2f} s at all of it, published {TIMES[key]} s")
    beside("activations of arXiv 2205.05198, 175B selective: error of bytes",
           100 * abs(state_and_activations(plan)[1] / ACTIVATIONS[key] - 1),
           100 * abs(answer["activations"] / GIB / ACTIVATIONS[key] - 1), "llm-analysis")
    searched, seconds = dpctl("--model", "gpt-175b", "--gpu", "a100-80gb", "--gpus", 64,
                              "--global-batch", 64, "--seq-len", 2048)
    mine = searched["searched"] / seconds
    row("plan, 175B on 64 A100: candidates beside llm-analysis", mine, "candidates/s",
        f"llm-analysis: {answer['rate']:.0f} estimates a second, no search", mine / answer["rate"],
        "more than 1 x", mine > answer["rate"])


def simumax_speed():
    """Estimates of its first version for the 175B run, on an A100 described by its data sheet."""
    checkout = os.environ.get("DP_SIMUMAX")
    if not checkout:
        print("no comparison with SimuMax's speed: DP_SIMUMAX names no checkout")
        return
    sys.path.insert(0, checkout)
    warnings.simplefilter("ignore")
    from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
    from simumax.core.perf_llm import PerfLLM
    collectives = {name: {"scale": scale, "offset": offset} for name, scale, offset in (
        ("all_reduce", 2, -1), ("all_gather", 1, -1), ("reduce_scatter", 1, -1), ("p2p", 1, 0),
        ("all2all", 1, -1))}
    system = SystemConfig.init_from_dict({
        "sys_name": "a100", "num_per_node": 8,
        "accelerator": {
            "backend": "cuda", "mem_gbs": 80, "mode": "roofline",
            "bandwidth": {"gbps": 2039, "efficient_factor": 0.85, "latency_us": 40},
            "op": {name: {"tflops": 312, "efficient_factor": 0.75}
                   for name in ("default", "matmul", "sdp_fwd", "sdp_bwd")}},
        "networks": {name: {"processor_usage": 0, "op": collectives,
                            "bandwidth": {"gbps": rate, "efficient_factor": 0.7, "latency_us": 10}}
                     for name, rate in (("intra", 300), ("inter", 25))}})

    def ask(layers, pipeline):
        model = ModelConfig(hidden_size=12288, head_num=96, kv_head_num=96, head_size=128,
                            intermediate_size=49152, layer_num=layers, vocab_size=51200,
                            use_swiglu=False)
        strategy = StrategyConfig(
            seq_len=2048, micro_batch_size=1, micro_batch_num=64, dtype="bf16", tp_size=8,
            pp_size=pipeline, world_size=8 * pipeline, zero_state=1, tp_net="intra",
            pp_net="inter", dp_net="inter", recompute_granularity="full_block",
            skip_ckpt_micro_batch_num=0)
        peer = PerfLLM()
        peer.configure(strategy_config=strategy, model_config=model, system_config=system)
        peer.run_estimate()
        return peer.analysis_mem(), peer.analysis_cost()
    start = time.process_time()
    for _ in range(100):
        ask(96, 8)
    rate = 100 / (time.process_time() - start)
    plan, seconds = dpctl("--model", "gpt-175b", "--gpu", "a100-80gb", "--gpus", 64,
                          "--global-batch", 64, "--seq-len", 2048)
    mine = plan["searched"] / seconds
    row("plan, 175B on 64 A100: candidates beside SimuMax", mine, "candidates/s",
        f"SimuMax 2127d7d: {rate:.0f} estimates a second", mine / rate, "more than 100 x",
        mine > 100 * rate)
    try:
        ask(61, 16)
        print("SimuMax, 61 layers on 16 stages: answered")
    except AssertionError as refusal:
        print(f"SimuMax, 61 layers on 16 stages: {refusal}")


def simumax():
    """Against the errors that it publishes itself, on rows that no constant of ours saw."""
    data = pathlib.Path(os.environ.get("DP_VALIDATION",
                                       SOURCE.parent / "shared" / "validation"))
    if not (data / "simumax_b200_v1.2.csv").exists():
        print(f"no comparison with SimuMax: no simumax_b200_v1.2.csv in {data}")
        return
    sys.path.insert(0, str(SOURCE / "tests" / "validate"))
    import tables
    import tables_common
    import validate
    published = {f"simumax/{r['case']}": r
                 for r in tables_common.read_csv(data, "simumax_b200_v1.2.csv")}
    fitted = validate.fitted_rows(PROFILES)
    cases = [validate.price(BIN / "dpctl", case)
             for case in tables.read_all(data, PROFILES, ["simumax"])]
    for what, suffix, column in (("step time", "", "simumax_err_pct"),
                                 ("memory", "/memory", "simumax_alloc_err_pct")):
        mine = {case["name"].removesuffix("/memory"): abs(case["error"]) * 100 for case in cases
                if "error" in case and case["name"].endswith("/memory") == bool(suffix)}
        held_out = [name for name in mine if name not in fitted]
        theirs = [abs(float(published[name][column])) for name in held_out]
        beside(f"SimuMax's B200 runs, {what}: median error over {len(held_out)} rows",
               statistics.median(mine[name] for name in held_out), statistics.median(theirs),
               "SimuMax v1.2 by its own account")


def main():
    calculon()
    llm_analysis()
    simumax_speed()
    simumax()


if __name__ == "__main__":
    main()
