// Interleaved 1F1B: rank r holds v chunks of the model, stages r, P+r, 2P+r, ...; micro-batches go
// through in groups, a whole group through one chunk before the next. (Narayanan et al., arXiv
// 2104.04473, section 2.2; warm-up as in Megatron-LM, schedules.py.)
//
// Interleaved with split backward: what ZB-H1 is to 1F1B. An input gradient does not wait for the
// weight gradients of later stages, so that the warm-up need fill the way to the last rank only
// once; weight gradients follow r chunks behind on rank r, and each rank keeps as many chunks.
//
// A group of fewer than P micro-batches would make every rank wait for the last one between its
// chunks. So M is divided into M/P groups (rounded down) of nearly the same size, larger ones
// first: of exactly P where P divides M, as in Megatron-LM, and of M/(M/P) where that is whole, as
// in PyTorch. With larger groups later the warm-up would be too short, and ranks would wait for
// each other.
#include "build.h"
#include "families.h"

// The order in which one rank takes its chunks.
struct turns {
    int32_t ranks, chunks, groups, microbatches;
    int32_t group, chunk, index; // the next one; index within the group
    int32_t first;               // micro-batch with which the group starts
};

static int32_t group_size(const struct turns *turns)
{
    return turns->microbatches / turns->groups +
           (turns->group < turns->microbatches % turns->groups);
}

static struct turns turns_begin(const struct dp_schedule_params *params, int32_t chunks)
{
    int32_t groups = params->microbatches / params->pipeline;
    return (struct turns){.ranks = params->pipeline,
                          .chunks = chunks,
                          .groups = groups > 0 ? groups : 1,
                          .microbatches = params->microbatches};
}

static void turns_next(struct turns *turns)
{
    if (++turns->index < group_size(turns)) {
        return;
    }
    turns->index = 0;
    if (++turns->chunk < turns->chunks) {
        return;
    }
    turns->chunk = 0;
    turns->first += group_size(turns);
    turns->group++;
}

// Forwards take the chunks upwards, backwards downwards.
static void add_next(struct build *build, struct turns *turns, dp_action_kind kind, int32_t rank)
{
    int32_t chunk = kind == DP_ACTION_F ? turns->chunk : turns->chunks - 1 - turns->chunk;
    dp_schedule_build_add(
        build, build_single(kind, chunk * turns->ranks + rank, turns->first + turns->index));
    turns_next(turns);
}

static int32_t chunks_of(const struct dp_schedule_params *params)
{
    return params->virtual_stages > 0 ? params->virtual_stages : 2;
}

// Forwards `ahead` of the first backward, and weight gradients, if split off, `delay` behind it.
static void add_rank(struct build *build, const struct turns *start, int32_t rank, int64_t ahead,
                     int64_t delay, bool is_split)
{
    struct turns forward = *start;
    struct turns backward = *start;
    struct turns weight = *start;
    int64_t count = (int64_t)start->chunks * start->microbatches;
    for (int64_t i = 0; i < count + ahead + delay; i++) {
        if (i < count) {
            add_next(build, &forward, DP_ACTION_F, rank);
        }
        if (i >= ahead && i < count + ahead) {
            add_next(build, &backward, is_split ? DP_ACTION_I : DP_ACTION_B, rank);
        }
        if (is_split && i >= ahead + delay) {
            add_next(build, &weight, DP_ACTION_W, rank);
        }
    }
    dp_schedule_build_end_rank(build);
}

static void generate(const struct dp_schedule_params *params, bool is_split,
                     struct dp_schedule *schedule)
{
    int32_t ranks = params->pipeline;
    int32_t chunks = chunks_of(params);
    size_t count = (size_t)ranks * (size_t)chunks * (size_t)params->microbatches;
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, ranks * chunks, 1,
                            (is_split ? 3 : 2) * count);
    struct turns start = turns_begin(params, chunks);
    // To the last rank and back; once there is enough for one chunk per rank, which is 1F1B, and
    // for a split backward.
    int32_t turns = is_split || chunks == 1 ? 1 : 2;
    for (int32_t rank = 0; rank < ranks; rank++) {
        for (int32_t chunk = 0; chunk < chunks; chunk++) {
            dp_schedule_build_place(&build, chunk * ranks + rank, 0, rank);
        }
        int64_t ahead = turns * (ranks - 1 - rank) + (chunks - 1) * (int64_t)group_size(&start);
        add_rank(&build, &start, rank, ahead, is_split ? rank : 0, is_split);
    }
}

dp_status dp_schedule_interleaved_check(const struct dp_schedule_params *params,
                                        struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_interleaved_zb_check(const struct dp_schedule_params *params,
                                           struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_interleaved_generate(const struct dp_schedule_params *params,
                                           struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, false, schedule);
    return DP_OK;
}

dp_status dp_schedule_interleaved_zb_generate(const struct dp_schedule_params *params,
                                              struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    generate(params, true, schedule);
    return DP_OK;
}
