#!/usr/bin/env python3
"""PyTorch's own simulation of a schedule, in actions per second of processor time.

    torch_simulate.py P M

1F1B with its messages through _simulate_comms_compute of torch.distributed.pipelining, which steps
all ranks in turns of one action and finds orders that cannot finish; it knows no durations, no
bubbles by cause and no memory. Prints the best of three. Exits with 77 and the reason where this
PyTorch has no such thing.
"""

import sys
import time


def one_f_one_b(schedules, ranks, microbatches):
    """The order of each rank, as PyTorch's actions."""
    kinds = schedules._ComputationType
    backward = getattr(kinds, "FULL_BACKWARD", None) or kinds.BACKWARD
    order = {}
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, microbatches)
        actions = [schedules._Action(rank, kinds.FORWARD, m) for m in range(warm_up)]
        for m in range(microbatches - warm_up):
            actions.append(schedules._Action(rank, kinds.FORWARD, warm_up + m))
            actions.append(schedules._Action(rank, backward, m))
        actions += [schedules._Action(rank, backward, m)
                    for m in range(microbatches - warm_up, microbatches)]
        order[rank] = actions
    return order


def main():
    ranks, microbatches = int(sys.argv[1]), int(sys.argv[2])
    try:
        from torch.distributed.pipelining import schedules
        add_messages, simulate = schedules._add_send_recv, schedules._simulate_comms_compute
    except (ImportError, AttributeError) as missing:
        print(f"skipped: {missing}")
        return 77
    order = one_f_one_b(schedules, ranks, microbatches)
    count = sum(len(actions) for actions in order.values())
    with_messages = add_messages(order, lambda stage: stage, ranks)
    best = float("inf")
    for _ in range(3):
        copy = {rank: list(actions) for rank, actions in with_messages.items()}
        start = time.process_time()
        simulate(copy, lambda stage: stage, ranks)
        best = min(best, time.process_time() - start)
    print(count / best)
    return 0


if __name__ == "__main__":
    sys.exit(main())
