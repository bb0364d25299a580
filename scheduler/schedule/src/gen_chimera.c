// Chimera with two streams: half of the micro-batches enter at rank 0, the others at rank P-1, and
// each rank holds stages r and P-1-r. (Li and Hoefler, arXiv 2107.06925, section 3.)
//
// With forward and backward of the same length, here one slot, the two streams of P/2 micro-batches
// each fit into one another: at the distance d from its entry, micro-batch i of a stream runs
// forward in slot 2i + d and backward in slot 2i + 2P-1 - d. P is even, so forwards of the two
// streams have different parities, and so have the backwards; forwards of one and backwards of the
// other have the same, but do not overlap. The next P micro-batches follow 2P slots later and fill
// what the first left free: when P divides M, each rank idles for P-2 slots in all.
#include "build.h"
#include "families.h"
#include "refusal.h"

dp_status dp_schedule_chimera_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    if (params->pipeline % 2 != 0) {
        return dp_schedule_refuse_odd_pipeline("chimera", params->pipeline, err);
    }
    if (params->microbatches < 2) {
        return dp_fail(err, DP_INVALID,
                       "chimera needs at least 2 microbatches, one for each direction; there is "
                       "1. Nearest legal: 2");
    }
    return DP_OK;
}

// One kind of work of one stream on one rank.
struct lane {
    dp_action_kind kind;
    int32_t stage;
    int32_t first, count; // micro-batches
    int32_t next;         // of count
    int64_t slot;         // of the micro-batch with which a unit of P/2 starts, in the first unit
};

static int64_t next_slot(const struct lane *lane, int32_t ranks)
{
    int32_t unit = lane->next / (ranks / 2);
    int32_t index = lane->next % (ranks / 2);
    return 2 * (int64_t)ranks * unit + 2 * index + lane->slot;
}

static void add_rank(struct build *build, struct lane lanes[4], int32_t ranks)
{
    for (;;) {
        struct lane *earliest = NULL;
        for (int i = 0; i < 4; i++) {
            if (lanes[i].next < lanes[i].count &&
                (earliest == NULL || next_slot(&lanes[i], ranks) < next_slot(earliest, ranks))) {
                earliest = &lanes[i];
            }
        }
        if (earliest == NULL) {
            break;
        }
        dp_schedule_build_add(build, build_single(earliest->kind, earliest->stage,
                                                  earliest->first + earliest->next++));
    }
    dp_schedule_build_end_rank(build);
}

dp_status dp_schedule_chimera_generate(const struct dp_schedule_params *params,
                                       struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    int32_t ranks = params->pipeline;
    int32_t half = params->microbatches / 2; // the second stream has one more when M is odd
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, ranks, 2,
                            2 * (size_t)ranks * (size_t)params->microbatches);
    for (int32_t rank = 0; rank < ranks; rank++) {
        struct lane lanes[4];
        for (int direction = 0; direction < 2; direction++) {
            int32_t stage = direction == 0 ? rank : ranks - 1 - rank;
            struct lane lane = {.stage = stage,
                                .first = direction == 0 ? 0 : half,
                                .count = direction == 0 ? half : params->microbatches - half};
            lane.kind = DP_ACTION_F;
            lane.slot = stage;
            lanes[2 * direction] = lane;
            lane.kind = DP_ACTION_B;
            lane.slot = 2 * ranks - 1 - stage;
            lanes[2 * direction + 1] = lane;
            dp_schedule_build_place(&build, stage, direction, rank);
        }
        add_rank(&build, lanes, ranks);
    }
    return DP_OK;
}
