#!/usr/bin/env python3
"""Our schedules beside those of public tools: the same durations, latencies and memory for both,
and every order, theirs too, timed by the same simulator.

    DP_ZERO_BUBBLE       a checkout of sail-sg/zero-bubble-pipeline-parallelism
    DP_TORCH_VENV        a virtual environment with PyTorch (or build/torch-venv)
    DP_PP_VISUALIZATION  a checkout of Victarry/PP-Schedule-Visualization

Prints rows of build/bench.json; a peer that is not there is skipped and the reason printed. Nothing
of theirs is kept here. schedule_peer and dpctl are taken from $DP_BIN.
"""

import contextlib
import csv
import importlib.util
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import types

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DP_BIN", SOURCE / "build" / "release" / "bin"))
STRAIGHT, LOOP, VEE = 1, 2, 4  # dp_auto_placement


def row(name, value, unit, peer, ratio, goal, met):
    print(json.dumps({"name": name, "value": round(value, 6), "unit": unit, "peer": peer,
                      "ratio": round(ratio, 4), "goal": goal, "met": bool(met)}), flush=True)


def ours(problem):
    """Lines of schedule_peer by the order's name."""
    done = subprocess.run([BIN / "schedule_peer"], input=json.dumps(problem), text=True,
                          stdout=subprocess.PIPE, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {pathlib.Path(line["name"]).stem: line for line in lines}


def clocked(work):
    """(what work() returns, seconds of processor time)."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


class ZeroBubble:
    """Its schedulers, without the Megatron and the PyTorch around them, which they do not use."""

    PACKAGE = "megatron.core.pipeline_parallel.zerobubble.scheduler"

    def __init__(self, checkout):
        folder = pathlib.Path(checkout, *self.PACKAGE.split("."))
        parts = self.PACKAGE.split(".")
        for name in ["torch", "pulp", *(".".join(parts[:i + 1]) for i in range(len(parts)))]:
            module = sys.modules.setdefault(name, types.ModuleType(name))
            module.__path__ = []
        sys.modules["torch"].Tensor = object
        sys.modules["pulp"].value = float
        for name in ("graph", "zb", "zbv", "zbv_greedy"):
            full = f"{self.PACKAGE}.{name}"
            spec = importlib.util.spec_from_file_location(full, folder / f"{name}.py")
            module = importlib.util.module_from_spec(spec)
            sys.modules[full] = module
            spec.loader.exec_module(module)
            setattr(self, name, module)

    def straight(self, microbatches, stages, hop, memory, cap):
        """(dp.schedule/1 of ZB-1p or ZB-2p, seconds); memory is what F, B and W add."""
        ranks = len(stages)
        forward, backward, weight = (list(map(float, column)) for column in zip(*stages))
        config = self.graph.GraphConfig(
            cost_f=forward, cost_b=backward, cost_w=weight, cost_comm=float(hop),
            mem_f=[memory[0]] * ranks, mem_b=[memory[1]] * ranks, mem_w=[memory[2]] * ranks,
            max_mem=[cap] * ranks, n_stages=ranks, n_micro=microbatches)

        def solve():
            graph = self.zb.Graph.build_graph(ranks, microbatches, config)
            return graph, self.zb.initial_solution(graph, False)[1]
        (graph, order), seconds = clocked(solve)
        lists = []
        for stage in range(ranks):
            actions = [(order[graph.get_id(kind, stage, batch)], "FIW"[kind], batch)
                       for kind in range(3) for batch in range(microbatches)]
            lists.append([{"kind": kind, "stage": stage, "microbatch": batch}
                          for _, kind, batch in sorted(actions)])
        return schedule_json(ranks, microbatches, [[r] for r in range(ranks)], lists), seconds

    def vee(self, kind, ranks, microbatches, chunk, hop, memory):
        """ZBV ("zb"), V-Half ("half") or V-Min ("min"); those two ignore durations as shipped."""
        if kind == "zb":
            graph = self.zbv.PipelineGraph(ranks, microbatches, *chunk, hop, *memory, None)
        else:
            graph = self.zbv_greedy.PipelineGraph(ranks, microbatches, kind, 1000, 1000, 1000, 1)
        config = types.SimpleNamespace(max_chunks=2, n_stages=ranks)
        with contextlib.redirect_stdout(io.StringIO()):
            order, seconds = clocked(lambda: graph.create_schedule(config))
        letters = {"F": "F", "B": "I", "W": "W"}
        lists = [[{"kind": letters[node.type.value], "stage": node.layer_group_idx,
                   "microbatch": node.microbatch} for node in nodes] for nodes in order]
        placement = [[r, 2 * ranks - 1 - r] for r in range(ranks)]
        return schedule_json(ranks, microbatches, placement, lists), seconds


def schedule_json(ranks, microbatches, placement, lists):
    return {"schema": "dp.schedule/1", "name": "theirs", "pipeline": ranks,
            "microbatches": microbatches, "stages": sum(map(len, placement)),
            "placement": placement, "ranks": lists}


# Model, P, M, hidden size, heads; milliseconds of F, B (input), W and a message (arXiv 2401.10241,
# tables 5 and 9).
PROFILED = [("1.5B", 8, 24, 2304, 24, 18.522, 18.086, 9.337, 0.601),
            ("1.5B", 8, 64, 2304, 24, 18.546, 18.097, 9.321, 0.762),
            ("6.2B", 8, 32, 4096, 32, 29.802, 29.428, 19.53, 0.577),
            ("14.6B", 16, 48, 5120, 40, 11.347, 11.248, 8.132, 0.377),
            ("28.3B", 32, 128, 6144, 48, 10.408, 10.204, 7.703, 0.408)]


def bubble(line, work):
    """The share that is no work, of the longest time from a rank's first action to its last."""
    return (line["span"] - work) / line["span"]


def profiled(peer, scratch):
    for model, ranks, batches, hidden, heads, *chunk, hop in PROFILED:
        # Bytes per token and layer; W needs 32 h of them (arXiv 2401.10241, section 3).
        held = 34 * hidden + 5 * heads * 1024
        memory = (held, 32 * hidden - held, -32 * hidden)
        size = f"{model} P={ranks} M={batches}"
        work = batches * sum(chunk)
        for fold in (1, 2):
            cap = fold * ranks * held
            order, seconds = peer.straight(batches, [chunk] * ranks, hop, memory, cap)
            both = beside({"pipeline": ranks, "microbatches": batches, "stages": [chunk] * ranks,
                           "hop": hop, "activation": held, "released_at_i": -memory[1], "cap": cap,
                           "placement": STRAIGHT, "objective": "span", "auto": 0}, order, scratch)
            bubble_row(f"ZB-{fold}p {size}: auto at the same memory", both["auto"],
                       both["theirs"], seconds, work)
        half = [seconds / 2 for seconds in chunk]
        for kind, family in (("zb", "zb-v"), ("half", "v-half"), ("min", "v-min")):
            order, seconds = peer.vee(kind, ranks, batches, half, hop, memory)
            problem = {"pipeline": ranks, "microbatches": batches, "stages": [half] * 2 * ranks,
                       "hop": hop, "activation": held // 2, "released_at_i": -memory[1] // 2}
            first = beside({**problem, "families": [family]}, order, scratch)
            both = beside({**problem, "cap": first["theirs"]["peak_bytes"], "placement": VEE,
                           "objective": "span", "auto": 0}, order, scratch)
            bubble_row(f"{family} {size}: family", first[family], both["theirs"], seconds, work)
            bubble_row(f"{family} {size}: auto at the same memory", both["auto"], both["theirs"],
                       seconds, work)


def beside(problem, order, scratch):
    path = pathlib.Path(scratch) / "theirs.json"
    path.write_text(json.dumps(order))
    return ours({**problem, "files": [str(path)]})


def bubble_row(name, mine, theirs, their_seconds, work):
    ratio = mine["span"] / theirs["span"]
    row(f"{name}, own-span bubble", 100 * bubble(mine, work), "%",
        f"zero-bubble: {100 * bubble(theirs, work):.2f} %, found in {their_seconds:.3f} s (ours: "
        f"{mine['generate_s']:.6f} s)", ratio, "span at most 1 x", ratio <= 1 + 1e-9)


def uneven_cases():
    """Name, work of 8 stages, one on each rank, and of the same model in 16, two on each rank in a
    V; a unit for an eighth of the layers."""
    plain, halves = [1.0] * 8, [0.5] * 16
    yield "even", plain, halves
    yield "head 0.5", [*plain[:-1], 1.5], [*halves[:-1], 1.0]
    yield "embedding 0.1, head 0.3", [1.1, *plain[1:-1], 1.3], [0.6, *halves[1:-1], 0.8]
    slow = [0.6 if stage in (4, 11) else 0.5 for stage in range(16)]
    yield "rank 4 slow by 1.2", [*plain[:4], 1.2, *plain[5:]], slow
    yield "a quarter less at both ends", [0.75, *plain[1:-1], 0.75], [0.25, *halves[1:-1], 0.25]
    for seed in range(3):
        dice = random.Random(seed)
        pieces = [dice.uniform(0.4, 0.6) for _ in halves]
        yield (f"16 parts of 0.4 to 0.6, draw {seed}",
               [pieces[i] + pieces[i + 1] for i in range(0, 16, 2)], pieces)


def uneven(peer, scratch):
    """P = 8, M = 24, F = B = W for a unit, hops of 0.05; makespans, for a step that ends in a
    barrier."""
    for name, units, pieces in uneven_cases():
        for fold in (1, 2):
            uneven_straight(peer, name, units, fold, scratch)
        uneven_vee(peer, name, pieces, scratch)


UNEVEN = {"pipeline": 8, "microbatches": 24, "hop": 0.05, "released_at_i": 0, "auto": 0}


def uneven_straight(peer, name, units, fold, scratch):
    stages = [[unit] * 3 for unit in units]
    median = [[sorted(units)[len(units) // 2]] * 3] * len(units)
    cap = fold * len(units) * 1000
    found = {}
    for how, durations in (("shipped", median), ("given", stages)):
        order, _ = peer.straight(24, durations, UNEVEN["hop"], (1000, 0, -1000), cap)
        both = beside({**UNEVEN, "stages": stages, "activation": 1000, "cap": cap,
                       "placement": STRAIGHT}, order, scratch)
        found[how] = both["theirs"]["makespan"]
    uneven_row(f"ZB-{fold}p, {name}", both["auto"], min(found.values()),
               f"{found['shipped']:.2f} with medians, as it ships; {found['given']:.2f} given the "
               "durations per stage")


def uneven_vee(peer, name, pieces, scratch):
    ranks = len(pieces) // 2
    means = sorted((pieces[r] + pieces[-1 - r]) / 2 for r in range(ranks))
    order, _ = peer.vee("zb", ranks, 24, [means[ranks // 2]] * 3, UNEVEN["hop"], (1, 0, -1))
    both = beside({**UNEVEN, "stages": [[piece] * 3 for piece in pieces], "activation": 500,
                   "cap": ranks * 1000, "placement": VEE}, order, scratch)
    uneven_row(f"ZBV, {name}", both["auto"], both["theirs"]["makespan"],
               f"{both['theirs']['makespan']:.2f} with medians of means, as it ships")


def uneven_row(name, mine, theirs, told):
    ratio = mine["makespan"] / theirs
    row(f"uneven: auto at the memory and placement of {name}", mine["makespan"], "units",
        f"zero-bubble: {told}", ratio, "at most 1 x", ratio <= 1 + 1e-9)


def zero_bubble(scratch):
    checkout = os.environ.get("DP_ZERO_BUBBLE")
    if not checkout:
        print("no comparison with zero-bubble's schedulers: DP_ZERO_BUBBLE names no checkout")
        return
    peer = ZeroBubble(checkout)
    profiled(peer, scratch)
    uneven(peer, scratch)


# Its schedule, our nearest family, its placement; all with two stages on a rank.
TORCH = [("ScheduleInterleaved1F1B", "interleaved", "loop"),
         ("ScheduleInterleavedZeroBubble", "interleaved-zb", "loop"),
         ("ScheduleZBVZeroBubble", "zb-v", "v"), ("ScheduleDualPipeV", "dualpipev", "v")]
SIZES = [(8, 64), (16, 128)]
COSTS = {"F = I = W = 1": ([1, 1, 1], 0), "F, I, W = 1, 1.3, 0.8, hop 0.05": ([1, 1.3, 0.8], 0.05)}


def torch_rows(scratch):
    python = pathlib.Path(os.environ.get("DP_TORCH_VENV", SOURCE / "build" / "torch-venv"))
    done = None
    with contextlib.suppress(OSError):
        done = subprocess.run([python / "bin" / "python", __file__, "--torch", scratch],
                              capture_output=True, text=True, check=False)
    if done is None or done.returncode != 0:
        reason = "no Python there" if done is None else done.stderr.strip().splitlines()[-1]
        print(f"no comparison with torch.distributed.pipelining in {python}: {reason}")
        return
    answer = json.loads(done.stdout.splitlines()[-1])
    version = answer["version"]
    for made in answer["made"]:
        compare_orders(made, version)
    for kind, files in answer["mutations"].items():
        compare_checkers(kind, files, version)


def compare_orders(made, version):
    ranks, batches, family = made["ranks"], made["batches"], made["family"]
    size = f"{made['name']} P={ranks} M={batches}"
    for label, (chunk, hop) in COSTS.items():
        problem = {"pipeline": ranks, "microbatches": batches,
                   "stages": [chunk] * 2 * ranks, "hop": hop, "activation": 1,
                   "released_at_i": 0}
        both = ours({**problem, "families": [family], "files": [made["path"]]})
        mine, theirs = both[family], both[pathlib.Path(made["path"]).stem]
        order_row(f"{size}, {label}: bubble of {family}", mine, theirs, version)
        if made["name"] == "ScheduleInterleavedZeroBubble":
            found = ours({**problem, "cap": theirs["peak_bytes"], "placement": LOOP, "auto": 0})
            order_row(f"{size}, {label}: bubble of auto, same placement and memory",
                      found["auto"], theirs, version)
    seconds = mine["generate_s"] + mine["validate_s"] + mine["lower_s"]
    row(f"{size}: {family} made, validated, with messages", 1e6 * seconds, "us",
        f"PyTorch {version}: {1e6 * made['construct_s']:.0f} us", seconds / made["construct_s"],
        "at most 0.1 x", seconds < made["construct_s"] / 10)
    row(f"{size}: {family} validated alone", 1e6 * mine["validate_s"], "us",
        f"_validate_schedule, rank by rank: {1e6 * made['validate_s']:.0f} us",
        mine["validate_s"] / made["validate_s"], "at most 1 x",
        mine["validate_s"] < made["validate_s"])


def order_row(name, mine, theirs, version):
    ratio = mine["makespan"] / theirs["makespan"]
    row(name, 100 * mine["bubble_ratio"], "%",
        f"PyTorch {version}: {100 * theirs['bubble_ratio']:.2f} %, own span "
        f"{100 * theirs['own_span_bubble_ratio']:.2f} % (ours "
        f"{100 * mine['own_span_bubble_ratio']:.2f} %), activations "
        f"{theirs['peak_activations']:g} (ours {mine['peak_activations']:g})", ratio,
        "makespan at most 1 x", ratio <= 1 + 1e-9)


def compare_checkers(kind, files, version):
    caught = 0
    for path in files["paths"]:
        done = subprocess.run([BIN / "dpctl", "schedule", "check", path], capture_output=True,
                              check=False)
        caught += done.returncode == 3
    total = len(files["paths"])
    row(f"broken orders found: {kind}", caught, f"of {total}",
        f"PyTorch {version}: _validate_schedule {files['validate']}, with its messages and "
        f"_simulate_comms_compute {files['simulate']}", caught / total, "all", caught == total)


class Stage:
    """What the schedules of PyTorch ask of a stage when they are made."""

    def __init__(self, index, ranks):
        self.stage_index, self.num_stages = index, 2 * ranks
        self.group_size, self.group_rank, self.group = ranks, 0, None
        self.is_first, self.is_last = index == 0, index == 2 * ranks - 1
        self.submod, self.has_backward = None, True


def run_inside_torch(folder):
    import logging
    logging.disable(logging.CRITICAL)
    import torch
    from torch.distributed.pipelining import schedules
    made = []
    for ranks, batches in SIZES:
        for name, family, style in TORCH:
            stages = [Stage(0, ranks), Stage(ranks if style == "loop" else 2 * ranks - 1, ranks)]
            runs = [clocked(lambda: getattr(schedules, name)(stages, batches)) for _ in range(3)]
            order = runs[0][0].pipeline_order
            checks = [clocked(lambda: schedules._validate_schedule(
                order, ranks, 2 * ranks, batches))[1] for _ in range(3)]
            path = f"{folder}/{name}-{ranks}-{batches}.csv"
            with open(path, "w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(order[rank] for rank in range(ranks))
            made.append({"name": name, "family": family, "ranks": ranks, "batches": batches,
                         "path": path, "validate_s": min(checks),
                         "construct_s": min(seconds for _, seconds in runs)})
    subject = schedules.ScheduleZBVZeroBubble([Stage(0, 4), Stage(7, 4)], 8)
    print(json.dumps({"version": torch.__version__, "made": made,
                      "mutations": Mutations(schedules, subject, folder).all()}))


class Mutations:
    """Orders that cannot run or run wrongly, of ZBVZeroBubble with P = 4, M = 8, and how many of
    them PyTorch's checks refuse."""

    RANKS, STAGES, BATCHES, COUNT = 4, 8, 8, 40

    def __init__(self, schedules, subject, folder):
        self.schedules, self.folder, self.dice = schedules, folder, random.Random(1)
        self.rank_of = subject.stage_index_to_group_rank
        self.order = {rank: [str(a) for a in actions if a is not None]
                      for rank, actions in subject.pipeline_order.items()}
        self.with_messages = {
            rank: [str(a) for a in actions if not any(
                word in str(a) for word in ("SHARD", "REDUCE_GRAD"))]
            for rank, actions in subject.pipeline_order_with_comms.items()}

    def all(self):
        kinds = {"an action left out": self.drop, "an action twice": self.twice,
                 "a wrong micro-batch": self.renumber, "one micro-batch too many": self.extra,
                 "backward before its forward": lambda lists: self.swap(lists, "F", "I"),
                 "W before its I": lambda lists: self.swap(lists, "I", "W"),
                 "an action on another rank": self.move,
                 "ranks that wait for each other": self.ring}
        found = {kind: self.collect(kind, change, self.order) for kind, change in kinds.items()}
        for kind, change in {"a SEND or RECV left out": self.drop_message,
                             "a RECV behind what needs it": self.late_receive,
                             "two SENDs to one rank in another order": self.swap_sends}.items():
            found[kind] = self.collect(kind, change, self.with_messages)
        return found

    def collect(self, kind, change, base):
        paths, seen, refused = [], set(), {"validate": 0, "simulate": 0}
        for _ in range(50 * self.COUNT):
            lists = {rank: list(actions) for rank, actions in base.items()}
            if len(paths) == self.COUNT or not change(lists) or str(lists) in seen:
                continue
            seen.add(str(lists))
            path = f"{self.folder}/{kind.replace(' ', '-')}-{len(paths)}.csv"
            with open(path, "w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(lists[rank] for rank in sorted(lists))
            paths.append(path)
            valid, runs = self.ask(lists, base is self.with_messages)
            refused["validate"] += not valid
            refused["simulate"] += not (valid and runs)
        return {"paths": paths, **refused}

    def ask(self, lists, has_messages):
        """What _validate_schedule says, and what comes of messages and the simulation."""
        def parsed(keep=lambda text: True):
            return {rank: [self.schedules._Action.from_str(text) for text in actions if keep(text)]
                    for rank, actions in lists.items()}

        def passes(work):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    work()
                return True
            except (AssertionError, ValueError, KeyError, IndexError):
                return False

        def simulate():
            actions = parsed()
            if not has_messages:
                actions = self.schedules._add_send_recv(actions, self.rank_of.__getitem__,
                                                        self.STAGES)
            if hasattr(self.schedules, "_validate_send_waits") and has_messages:
                self.schedules._validate_send_waits(actions)
            self.schedules._simulate_comms_compute(actions, self.rank_of.__getitem__, self.STAGES)

        compute = parsed(lambda text: "_" not in text)
        valid = passes(lambda: self.schedules._validate_schedule(
            compute, self.RANKS, self.STAGES, self.BATCHES))
        return valid, passes(simulate)

    def place(self, lists, wanted=lambda text: True):
        places = [(rank, i) for rank, actions in lists.items() for i, text in enumerate(actions)
                  if wanted(text)]
        return self.dice.choice(places)

    @staticmethod
    def parts(text):
        """"12F3" is (12, "F", 3)."""
        for kind in ("F", "I", "W", "B"):
            stage, found, batch = text.partition(kind)
            if found:
                return int(stage), kind, int(batch)
        raise ValueError(text)

    def drop(self, lists):
        rank, i = self.place(lists)
        del lists[rank][i]
        return True

    def twice(self, lists):
        rank, i = self.place(lists)
        lists[rank].insert(self.dice.randint(i + 1, len(lists[rank])), lists[rank][i])
        return True

    def renumber(self, lists):
        rank, i = self.place(lists)
        stage, kind, batch = self.parts(lists[rank][i])
        other = (batch + self.dice.randrange(1, self.BATCHES)) % self.BATCHES
        lists[rank][i] = f"{stage}{kind}{other}"
        return True

    def extra(self, lists):
        rank, i = self.place(lists, lambda text: "F" in text)
        stage, _, _ = self.parts(lists[rank][i])
        lists[rank] += [f"{stage}{kind}{self.BATCHES}" for kind in "FIW"]
        return True

    def swap(self, lists, first, second):
        rank, i = self.place(lists, lambda text: first in text)
        j = lists[rank].index(lists[rank][i].replace(first, second))
        lists[rank][i], lists[rank][j] = lists[rank][j], lists[rank][i]
        return True

    def move(self, lists):
        rank, i = self.place(lists)
        other = self.dice.choice([r for r in lists if r != rank])
        lists[other].insert(self.dice.randint(0, len(lists[other])), lists[rank].pop(i))
        return True

    def ring(self, lists):
        """Each rank's list is right in itself, yet the ranks cannot all go on."""
        rank, i = self.place(lists)
        lists[rank].insert(self.dice.randrange(len(lists[rank])), lists[rank].pop(i))
        at = {text: i for i, text in enumerate(lists[rank])}
        for text in lists[rank]:
            stage, kind, batch = self.parts(text)
            if kind != "F" and at[text] < at[f"{stage}{'F' if kind == 'I' else 'I'}{batch}"]:
                return False
        return not self.finishes(lists)

    def finishes(self, lists):
        done, at = set(), dict.fromkeys(lists, 0)
        went_on = True
        while went_on:
            went_on = False
            for rank, actions in lists.items():
                while at[rank] < len(actions):
                    stage, kind, batch = self.parts(actions[at[rank]])
                    needs = {"F": (stage - 1, "F", batch), "I": (stage + 1, "I", batch),
                             "W": (stage, "I", batch)}[kind]
                    if 0 <= needs[0] < self.STAGES and needs not in done:
                        break
                    done.add((stage, kind, batch))
                    at[rank] += 1
                    went_on = True
        return all(at[rank] == len(actions) for rank, actions in lists.items())

    def drop_message(self, lists):
        rank, i = self.place(lists, lambda text: "_" in text and "WAIT" not in text)
        del lists[rank][i]
        return True

    def late_receive(self, lists):
        rank, i = self.place(lists, lambda text: "RECV" in text)
        stage, kind, batch = lists[rank][i].replace("RECV_", " ").replace("F", "F ").replace(
            "B", "I ").split()
        j = lists[rank].index(f"{stage}{kind}{batch}")
        lists[rank].insert(j + 1, lists[rank][i])
        del lists[rank][i]
        return True

    def swap_sends(self, lists):
        """Two messages to one rank change places at the sender alone, after both were made."""
        def peer(text):
            stage, kind = text.replace("SEND_", " ").split()
            return self.rank_of[int(stage) + (1 if kind[0] == "F" else -1)]
        rank, i = self.place(lists, lambda text: "SEND_" in text and "WAIT" not in text)
        first = lists[rank][i]
        later = [j for j in range(i + 1, min(i + 8, len(lists[rank])))
                 if "SEND_" in lists[rank][j] and "WAIT" not in lists[rank][j]
                 and peer(lists[rank][j]) == peer(first)]
        if not later or first.replace("SEND", "WAIT_SEND") in lists[rank][i:later[0]]:
            return False
        lists[rank].insert(later[0] + 1, first)
        del lists[rank][i]
        return True


def visualization():
    checkout = os.environ.get("DP_PP_VISUALIZATION")
    if not checkout:
        print("no comparison with PP-Schedule-Visualization: DP_PP_VISUALIZATION names no checkout")
        return
    sys.path.insert(0, checkout)
    from src import execution_model, strategies
    for ranks, batches in SIZES:
        for ask, family, split in (("generate_1f1b_schedule", "1f1b", False),
                                   ("generate_zero_bubble_1p_schedule", "zb-h1", True)):
            def run():
                config = execution_model.ScheduleConfig(ranks, ranks, batches, split_backward=split)
                schedule = getattr(strategies, ask)(config)
                schedule.execute()
                return schedule.get_total_execution_time(), len(schedule.ops)
            runs = [clocked(run) for _ in range(3)]
            seconds = min(seconds for _, seconds in runs)
            makespan, count = runs[0][0]
            mine = ours({"pipeline": ranks, "microbatches": batches, "stages": [[1, 1, 1]] * ranks,
                         "hop": 0, "activation": 1, "families": [family]})[family]
            my_seconds = mine["generate_s"] + mine["simulate_s"]
            speed, theirs = mine["actions"] / my_seconds, count / seconds
            row(f"{family} P={ranks} M={batches}: made and simulated", speed, "actions/s",
                f"PP-Schedule-Visualization: {theirs:.0f} actions/s, makespan {makespan:g} (ours "
                f"{mine['makespan']:g})", speed / theirs, "more than 100 x", speed > 100 * theirs)


def main():
    if sys.argv[1:2] == ["--torch"]:
        run_inside_torch(sys.argv[2])
        return
    with tempfile.TemporaryDirectory(prefix="dpb") as scratch:
        zero_bubble(scratch)
        torch_rows(scratch)
        visualization()


if __name__ == "__main__":
    main()
