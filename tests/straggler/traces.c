// Prints what a CSV trace's replay and its windows say, a verdict a line: for the script beside it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/replay.h"
#include "dp/straggler.h"

static void print(const char *source, const struct dp_straggler_verdict *verdict)
{
    printf("%s|%s|%s|%d|%d|%.3f|%s\n", source, dp_straggler_state_text(verdict->state),
           dp_straggler_cause_text(verdict->cause), (int)verdict->rank, (int)verdict->stage,
           verdict->slowdown, verdict->text);
}

// Operations of one worker and step stand together.
static int compare_ops(const void *a, const void *b)
{
    const struct dp_replay_op *left = a, *right = b;
    if (left->step != right->step) {
        return left->step < right->step ? -1 : 1;
    }
    if (left->dp_rank != right->dp_rank) {
        return left->dp_rank < right->dp_rank ? -1 : 1;
    }
    return (left->stage > right->stage) - (left->stage < right->stage);
}

static void add(struct dp_straggler_kind *kind, int action, const struct dp_replay_op *op)
{
    kind->kind = (uint8_t)action;
    kind->stage = kind->b_stage = (uint16_t)op->stage;
    kind->count++;
    kind->total_ns += (int64_t)(op->duration * 1e9);
    kind->median_ns = kind->total_ns / kind->count;
}

// One worker's step, as a rank would report it. Returns how many operations that was.
static size_t take_step(const struct dp_replay_op *ops, size_t left, int32_t stages,
                        struct dp_straggler *detector)
{
    struct dp_straggler_kind kinds[2] = {{0}};
    double first = ops[0].start, last = first;
    size_t count = 0;
    while (count < left && compare_ops(&ops[0], &ops[count]) == 0) {
        const struct dp_replay_op *op = &ops[count++];
        double end = op->start + op->duration;
        first = op->start < first ? op->start : first;
        last = end > last ? end : last;
        if (op->kind == DP_REPLAY_FORWARD_COMPUTE) {
            add(&kinds[0], DP_ACTION_F, op);
        } else if (op->kind == DP_REPLAY_BACKWARD_COMPUTE) {
            add(&kinds[1], DP_ACTION_B, op);
        }
    }
    struct dp_straggler_sample sample = {.rank = (uint32_t)(ops[0].dp_rank * stages + ops[0].stage),
                                         .step = ops[0].step,
                                         .step_ns = (int64_t)((last - first) * 1e9),
                                         .kinds = kinds,
                                         .kinds_count = 2};
    dp_straggler_take(detector, &sample);
    return count;
}

static void watch(struct dp_replay_op *ops, size_t count, const struct dp_replay_result *result)
{
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = (uint32_t)(result->replicas * result->stages);
    struct dp_straggler *detector = dp_straggler_new(&config);
    qsort(ops, count, sizeof(*ops), compare_ops);
    for (size_t i = 0; i < count;) {
        i += take_step(&ops[i], count - i, result->stages, detector);
    }
    struct dp_straggler_verdict verdict;
    while (dp_straggler_next(detector, &verdict)) {
        print("windows", &verdict);
    }
    dp_straggler_free(detector);
}

int main(int argc, char **argv)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf file = {0};
    DP_AUTO_FREE struct dp_replay_op *ops = NULL;
    size_t count = 0;
    struct dp_replay_result result = {0};
    dp_status status = argc != 2 ? dp_fail(&err, DP_INVALID, "usage: straggler_traces FILE")
                                 : dp_read_file(argv[1], DP_REPLAY_BYTES_MAX, &file, &err);
    if (status == DP_OK) {
        status = dp_replay_read_csv(argv[1], file.bytes, file.length, &ops, &count, &err);
    }
    if (status == DP_OK) {
        status = dp_replay_analyze(ops, count, &result, &err);
    }
    if (status != DP_OK) {
        fprintf(stderr, "error: %s\n", err.message);
        return 1;
    }
    struct dp_straggler_verdict verdict;
    dp_straggler_from_replay(&result, &verdict);
    print("replay", &verdict);
    watch(ops, count, &result);
    dp_replay_result_deinit(&result);
    return 0;
}
