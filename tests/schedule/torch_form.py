#!/usr/bin/python3
"""Loads our exports for torch.distributed.pipelining as its runtime does, without PyTorch.

    torch_form.py EMIT        EMIT is the program render_emit

Both CSV forms of every family that PyTorch can express, at many sizes: parsed by the notation of
its actions, held to its rules of validation and to stricter ones (each chunk exactly once, an order
that every rank can run), and run: the compute_only form after PyTorch's own rule for placing sends
and receives; the compute_comms form strictly in order, each send waiting for its receive, and as
streams do it, where a rank computes while its messages travel one after the other, except that it
stops at a WAIT_SEND (PyTorch 2.15 and later want one for each send). There it must not take longer than a run in which sending costs no rank any time, nor, with slow messages, longer than
the form that PyTorch makes of the compute_only file."""

import functools
import re
import subprocess
import sys

ACTION = re.compile(r"(\d+)(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B"
                    r"|WAIT_SEND_F|WAIT_SEND_B)(\d*)")
COMPUTE = {"F", "I", "B", "W"}
OVERLAP = "OVERLAP_F_B"


class Refused(Exception):
    """The file is not what PyTorch loads, or would not run."""


# What an action is: (stage, kind, micro-batch), and an overlapped pair ((...), (...)).


def is_pair(action):
    return isinstance(action[0], tuple)


def parts(action):
    return list(action) if is_pair(action) else [action]


def parse_one(text):
    match = ACTION.fullmatch(text)
    if match is None:
        raise Refused("no action: %r" % text)
    stage, kind, microbatch = match.groups()
    whole_stage = kind in ("UNSHARD", "RESHARD", "REDUCE_GRAD")
    if whole_stage != (microbatch == ""):
        raise Refused("micro-batch of %r" % text)
    return int(stage), kind, int(microbatch) if microbatch else None


def parse_cell(text):
    if not text.startswith("("):
        return parse_one(text)
    inside, _, rest = text[1:].partition(")")
    if rest != OVERLAP:
        raise Refused("behind the bracket stands %r" % rest)
    pair = tuple(parse_one(part) for part in inside.split(";"))
    if len(pair) != 2 or pair[0][1] != "F" or pair[1][1] not in ("B", "I"):
        raise Refused("a pair is a forward and a backward: %r" % text)
    return pair


def parse_rows(text):
    """Row i is rank i; nothing else is in the file."""
    if not text.endswith("\n"):
        raise Refused("the last line has no end")
    return [[parse_cell(cell.strip()) for cell in line.split(",")] for line in text.splitlines()]


def load_compute_only(text):
    rows = parse_rows(text)
    for row in rows:
        for action in row:
            for _, kind, _ in parts(action):
                if kind not in COMPUTE:
                    raise Refused("%s in a compute_only file" % kind)
    return rows


def placement(rows):
    ranks = {}
    for rank, row in enumerate(rows):
        for action in row:
            for stage, _, _ in parts(action):
                if ranks.setdefault(stage, rank) != rank:
                    raise Refused("stage %d on ranks %d and %d" % (stage, ranks[stage], rank))
    if sorted(ranks) != list(range(len(ranks))):
        raise Refused("stages are not 0 to %d" % (len(ranks) - 1))
    return ranks


def validate(rows, pipeline, microbatches):
    """PyTorch's rules, and each chunk exactly once with backwards whole or split, not both."""
    if len(rows) != pipeline:
        raise Refused("%d rows for %d ranks" % (len(rows), pipeline))
    ranks = placement(rows)
    seen = set()
    for row in rows:
        for action in row:
            for stage, kind, microbatch in parts(action):
                if kind not in COMPUTE:
                    continue
                needs = {"F": (), "B": ("F",), "I": ("F",), "W": ("I",)}[kind]
                for need in needs:
                    if (stage, need, microbatch) not in seen:
                        raise Refused("%d%s%d before its %s" % (stage, kind, microbatch, need))
                if (stage, kind, microbatch) in seen:
                    raise Refused("%d%s%d twice" % (stage, kind, microbatch))
            seen.update(parts(action))
    for stage in ranks:
        for microbatch in range(microbatches):
            kinds = {kind for kind in COMPUTE if (stage, kind, microbatch) in seen}
            if kinds not in ({"F", "B"}, {"F", "I", "W"}):
                raise Refused("stage %d, micro-batch %d has %s" % (stage, microbatch, kinds))
    count = sum(1 for stage, kind, m in seen if kind in COMPUTE and m >= microbatches)
    if count:
        raise Refused("%d actions of micro-batches from %d on" % (count, microbatches))
    return ranks


# Messages. A sender's (stage, SEND_x, micro-batch) belongs to the receiver's (stage +- 1, RECV_x).


def sends_after(action, ranks):
    """What the action hands to other ranks: [(send, receiver's rank, receive)]."""
    out = []
    for stage, kind, microbatch in parts(action):
        step, letter = {"F": (1, "F"), "B": (-1, "B"), "I": (-1, "B"), "W": (0, "")}[kind]
        target = stage + step
        if step and target in ranks and ranks[target] != ranks[stage]:
            out.append(((stage, "SEND_" + letter, microbatch), ranks[target],
                        (target, "RECV_" + letter, microbatch)))
    return out


def needs_of(action, ranks):
    """(receives, local results) that the action waits for."""
    receives, local = [], []
    for stage, kind, microbatch in parts(action):
        if kind == "W":
            local.append([(stage, "I", microbatch)])
            continue
        forward = kind == "F"
        source = stage - 1 if forward else stage + 1
        if not forward:
            local.append([(stage, "F", microbatch)])
        if source not in ranks:
            continue
        if ranks[source] != ranks[stage]:
            receives.append((stage, "RECV_F" if forward else "RECV_B", microbatch))
        else:
            local.append([(source, k, microbatch) for k in ("F" if forward else "BI")])
    return receives, local


def torch_lowering(rows, ranks):
    """PyTorch's rule: a send behind its action, and at that moment its receive behind whatever the
    receiver has listed so far; ranks in turn, each one action as soon as it can."""
    out = [[] for _ in rows]
    done = [set() for _ in rows]
    at = [0] * len(rows)
    while any(at[rank] < len(row) for rank, row in enumerate(rows)):
        moved = False
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            action = row[at[rank]]
            receives, local = needs_of(action, ranks)
            ready = all(r in done[rank] for r in receives) and all(
                any(one in done[rank] for one in several) for several in local)
            if not ready:
                continue
            moved = True
            at[rank] += 1
            out[rank].append(action)
            done[rank].update(parts(action))
            for send, peer, receive in sends_after(action, ranks):
                out[rank].append(send)
                out[peer].append(receive)
                done[peer].add(receive)
        if not moved:
            raise Refused("no rank can go on: malformed compute schedule")
    return out


def is_message(action):
    return not is_pair(action) and action[1].startswith(("SEND", "RECV"))


def is_wait(action):
    return not is_pair(action) and action[1].startswith("WAIT_SEND")


def sent(wait):
    return wait[0], wait[1][5:], wait[2]


def peer_of(message, ranks):
    stage, kind, _ = message
    step = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}[kind]
    if stage + step not in ranks or ranks[stage + step] == ranks[stage]:
        raise Refused("%d%s%d has no peer" % message)
    return ranks[stage + step]


def counterpart(message):
    stage, kind, microbatch = message
    step = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}[kind]
    other = ("RECV" if kind.startswith("SEND") else "SEND") + kind[4:]
    return stage + step, other, microbatch


def check_waits(rows, wanted):
    """Each send has one wait behind it; without waits, none has."""
    for row in rows:
        open_sends, count = set(), 0
        for action in row:
            if is_message(action) and action[1].startswith("SEND"):
                open_sends.add(action)
            if is_wait(action):
                if sent(action) not in open_sends:
                    raise Refused("%d%s%d without its send" % action)
                open_sends.remove(sent(action))
                count += 1
        if (wanted and open_sends) or (not wanted and count):
            raise Refused("waits for sends: %d, open %s" % (count, sorted(open_sends)))


def check_messages(rows, ranks):
    """Every message that is needed, once; behind what makes it, before what needs it."""
    for rank, row in enumerate(rows):
        seen = set()
        made = {}
        for action in row:
            if is_wait(action):
                continue
            if is_message(action):
                if action in seen:
                    raise Refused("%d%s%d twice" % action)
                if ranks[action[0]] != rank:
                    raise Refused("%d%s%d on rank %d" % (*action, rank))
                if action[1].startswith("SEND") and action not in made:
                    raise Refused("%d%s%d before its result" % action)
                seen.add(action)
                continue
            receives, _ = needs_of(action, ranks)
            for receive in receives:
                if receive not in seen:
                    raise Refused("%s before %d%s%d" % (action, *receive))
            for send, _, _ in sends_after(action, ranks):
                made[send] = action
        if set(made) != {m for m in seen if m[1].startswith("SEND")}:
            raise Refused("rank %d does not send all that it makes" % rank)
    everything = {action for row in rows for action in row if is_message(action)}
    for message in everything:
        peer_of(message, ranks)
        if counterpart(message) not in everything:
            raise Refused("%d%s%d without its counterpart" % message)


def run_rendezvous(rows, ranks):
    """Each rank does one thing after the other; a send and its receive happen together."""
    at = [0] * len(rows)
    while any(at[rank] < len(row) for rank, row in enumerate(rows)):
        moved = False
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            action = row[at[rank]]
            if is_message(action):
                peer = peer_of(action, ranks)
                other = rows[peer][at[peer]] if at[peer] < len(rows[peer]) else None
                if other != counterpart(action):
                    continue
                at[peer] += 1
            at[rank] += 1   # a wait: its send has happened
            moved = True
        if not moved:
            stuck = ["rank %d at %s" % (rank, row[at[rank]])
                     for rank, row in enumerate(rows) if at[rank] < len(row)]
            raise Refused("deadlock: " + ", ".join(stuck))


def seconds(action, costs):
    if is_pair(action):
        return costs["FB"] + (costs["I"] - costs["B"] if action[1][1] == "I" else 0)
    return costs[action[1]]


class Streams:
    """Two streams per rank: one computes, one moves messages in the order of the list. A message
    begins when both ends have come to it and it is made, and takes `hop`."""

    def __init__(self, rows, ranks, costs, hop):
        self.ranks, self.costs, self.hop = ranks, costs, hop
        self.compute = [[a for a in row if not is_message(a)] for row in rows]
        self.messages = [[a for a in row if is_message(a)] for row in rows]
        self.compute_at, self.message_at = [0] * len(rows), [0] * len(rows)
        self.compute_free, self.message_free = [0.0] * len(rows), [0.0] * len(rows)
        self.done = {}     # part or receive -> time

    def compute_one(self, rank):
        if self.compute_at[rank] == len(self.compute[rank]):
            return False
        action = self.compute[rank][self.compute_at[rank]]
        if is_wait(action):
            if sent(action) not in self.done:
                return False
            self.compute_free[rank] = max(self.compute_free[rank], self.done[sent(action)])
            self.compute_at[rank] += 1
            return True
        receives, local = needs_of(action, self.ranks)
        inputs = [[r] for r in receives] + local
        times = [self.done.get(next((one for one in several if one in self.done), None))
                 for several in inputs]
        if None in times:
            return False
        self.compute_free[rank] = max([self.compute_free[rank], *times]) + seconds(action,
                                                                                  self.costs)
        self.done.update({part: self.compute_free[rank] for part in parts(action)})
        self.compute_at[rank] += 1
        return True

    def move_one(self, rank):
        if self.message_at[rank] == len(self.messages[rank]):
            return False
        message = self.messages[rank][self.message_at[rank]]
        if message[1].startswith("RECV"):
            return False
        peer = peer_of(message, self.ranks)
        at = self.message_at[peer]
        if at == len(self.messages[peer]) or self.messages[peer][at] != counterpart(message):
            return False
        kinds = "F" if message[1] == "SEND_F" else "BI"
        made = [self.done[(message[0], k, message[2])] for k in kinds
                if (message[0], k, message[2]) in self.done]
        if not made:
            return False
        end = max(made[0], self.message_free[rank], self.message_free[peer]) + self.hop
        self.message_free[rank] = self.message_free[peer] = end
        self.done[message] = self.done[counterpart(message)] = end
        self.message_at[rank] += 1
        self.message_at[peer] += 1
        return True

    def run(self):
        ranks = range(len(self.compute))
        while True:
            moved = False
            for rank in ranks:
                while self.compute_one(rank) or self.move_one(rank):
                    moved = True
            if not moved:
                break
        if any(self.compute_at[r] < len(self.compute[r]) for r in ranks):
            raise Refused("the streams wait for each other")
        return max(self.compute_free)


def run_free(rows, ranks, costs, hop):
    """Sending costs nobody time and messages do not wait for each other."""
    done, free, at = {}, [0.0] * len(rows), [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                action = row[at[rank]]
                times = [free[rank]]
                for stage, kind, microbatch in parts(action):
                    sources = [] if kind == "W" else [stage + (-1 if kind == "F" else 1)]
                    for source in sources:
                        if source not in ranks:
                            continue
                        made = [done[(source, k, microbatch)] for k in
                                ("F" if kind == "F" else "BI") if (source, k, microbatch) in done]
                        away = hop if ranks[source] != rank else 0
                        times.append(made[0] + away if made else None)
                if None in times:
                    break
                free[rank] = max(times) + seconds(action, costs)
                done.update({part: free[rank] for part in parts(action)})
                at[rank] += 1
                moved = True
    if any(at[rank] < len(row) for rank, row in enumerate(rows)):
        raise Refused("actions wait for each other")
    return max(free)


# Seconds of actions and of a message.
COSTS = [
    ({"F": 1, "B": 2, "I": 1, "W": 1, "FB": 3}, 0),
    ({"F": 0, "B": 0, "I": 0, "W": 0, "FB": 0}, 0),
    ({"F": 1, "B": 1.25, "I": 1.25, "W": 0, "FB": 0}, 0),
    ({"F": 1, "B": 2.25, "I": 1.25, "W": 0.75, "FB": 2.5}, 0.125),
]


def emit(program, form, family, sizes, costs, hop):
    numbers = [*sizes, *(costs[k] for k in ("F", "B", "I", "W", "FB")), hop]
    return subprocess.run([program, form, family, *map(str, numbers)], capture_output=True,
                          text=True, check=False)


@functools.cache
def family_rows(program, family, sizes):
    done = emit(program, "torch-csv", family, sizes, *COSTS[0])
    return done.stdout if done.returncode == 0 else None


def compute_only(program, family, sizes, costs, hop):
    """None when the family does not exist at these sizes. Costs matter to `auto` alone."""
    if family == "auto":
        return emit(program, "torch-csv", family, sizes, costs, hop).stdout
    return family_rows(program, family, sizes)


def check_comms(rows, ranks, text, costs, hop, with_waits):
    """The time that the form takes on streams."""
    ours = parse_rows(text)
    computing = [[a for a in row if not is_message(a) and not is_wait(a)] for row in ours]
    if computing != rows:
        raise Refused("the two forms order their computing differently")
    check_messages(ours, ranks)
    check_waits(ours, with_waits)
    run_rendezvous(ours, ranks)
    return Streams(ours, ranks, costs, hop).run()


def check_size(program, family, sizes, costs, hop, totals):
    """False when the family does not exist at these sizes."""
    pipeline, microbatches, _ = sizes
    plain = compute_only(program, family, sizes, costs, hop)
    if plain is None:
        return False
    rows = load_compute_only(plain)
    ranks = validate(rows, pipeline, microbatches)
    theirs = torch_lowering(rows, ranks)
    check_messages(theirs, ranks)
    emitted = costs
    if family == "auto":   # there the costs are those of a P-th of the model, not of a stage
        costs = {kind: seconds * pipeline / len(ranks) for kind, seconds in costs.items()}
    free = run_free(rows, ranks, costs, hop)
    torch_streams = Streams(theirs, ranks, costs, hop).run()
    for form, with_waits in (("torch-csv-comms", True), ("torch-csv-comms-2.14", False)):
        if not with_waits and hop == 0:
            continue
        done = emit(program, form, family, sizes, emitted, hop)
        streams = check_comms(rows, ranks, done.stdout, costs, hop, with_waits)
        if hop == 0 and abs(streams - free) > 1e-9 * free:
            raise Refused("%g with messages, %g without" % (streams, free))
        if streams > torch_streams * (1 + 1e-9):
            raise Refused("%s takes %g, what PyTorch makes of the plain form %g" % (
                form, streams, torch_streams))
    if free > 0:
        totals["ours"] += streams / free
        totals["theirs"] += torch_streams / free
        totals["runs"] += 1
    return True


FAMILIES = {  # name: chunks per rank to try
    "gpipe": (0,), "1f1b": (0,), "interleaved": (0, 3), "interleaved-zb": (0, 3), "zb-h1": (0,),
    "zb-h2": (0,), "zb-v": (0,), "v-half": (0,), "v-half-late-w": (0,), "v-min": (0,), "hanayo": (0, 4), "dualpipev": (0,),
    "dualpipev-full-b": (0,), "auto": (1, 2),
}
BIDIRECTIONAL = ("chimera", "dualpipe", "dualpipe-full-b")
SIZES = [(1, 1), (1, 4), (2, 3), (2, 8), (3, 9), (4, 4), (4, 10), (6, 12), (8, 16), (8, 24)]


def main():
    program = sys.argv[1]
    totals = {"ours": 0, "theirs": 0, "runs": 0}
    for family, chunks in FAMILIES.items():
        count = 0
        for pipeline, microbatches in SIZES:
            for virtual in chunks:
                for costs, hop in COSTS:
                    sizes = (pipeline, microbatches, virtual)
                    try:
                        count += check_size(program, family, sizes, costs, hop, totals)
                    except Refused as why:
                        sys.exit("%s P=%d M=%d V=%d: %s" % (family, *sizes, why))
        print("%-17s %3d files of both forms" % (family, count))
        if count < 10:
            sys.exit("%s exists at too few sizes" % family)
    for family in BIDIRECTIONAL:
        for form in ("torch-csv", "torch-csv-comms"):
            done = emit(program, form, family, (4, 8, 0), *COSTS[0])
            if done.returncode == 0 or "dualpipev" not in done.stderr:
                sys.exit("%s as %s: %s" % (family, form, done.stderr or "was not refused"))
    runs = totals["runs"]
    print("%d runs on streams, beside one with free messages: ours %.4f, PyTorch's %.4f" % (
        runs, totals["ours"] / runs, totals["theirs"] / runs))


if __name__ == "__main__":
    main()
