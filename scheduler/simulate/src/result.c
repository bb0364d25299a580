#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "sim.h"

// When each result was computed, by the stage that made it: [FORWARD, BACKWARD][stages][mb].
struct made {
    const struct dp_schedule *schedule;
    double *end;
};

static double *made_at(const struct made *made, int way, int32_t stage, uint32_t microbatch)
{
    size_t row = (size_t)(way * made->schedule->stages + stage);
    return &made->end[row * (size_t)made->schedule->microbatches + microbatch];
}

static bool has_forward(const struct dp_action *action)
{
    return action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB;
}

// The backward part, alone or in a pair; false when there is none (W is no part that others need).
static bool backward_of(const struct dp_action *action, dp_action_kind *ret_kind,
                        int32_t *ret_stage, uint32_t *ret_microbatch)
{
    bool pair = action->kind == DP_ACTION_FB;
    *ret_kind = (dp_action_kind)(pair ? action->b_kind : action->kind);
    *ret_stage = pair ? action->b_stage : action->stage;
    *ret_microbatch = pair ? action->b_microbatch : action->microbatch;
    return *ret_kind == DP_ACTION_B || *ret_kind == DP_ACTION_I;
}

static void note_made(struct made *made, const struct dp_action *action, double end)
{
    dp_action_kind kind;
    int32_t stage;
    uint32_t microbatch;
    if (has_forward(action)) {
        *made_at(made, FORWARD, action->stage, action->microbatch) = end;
    }
    if (backward_of(action, &kind, &stage, &microbatch)) {
        *made_at(made, BACKWARD, stage, microbatch) = end;
    }
}

// When the last input of the action was computed, on whatever rank.
static double inputs_made(const struct made *made, const struct dp_action *action)
{
    dp_action_kind kind;
    int32_t stage;
    uint32_t microbatch;
    double latest = 0;
    if (has_forward(action) && action->stage > 0) {
        latest = *made_at(made, FORWARD, action->stage - 1, action->microbatch);
    }
    if (backward_of(action, &kind, &stage, &microbatch) && stage < made->schedule->stages - 1) {
        double end = *made_at(made, BACKWARD, stage + 1, microbatch);
        latest = end > latest ? end : latest;
    }
    return latest;
}

// Chunks and bytes alive on one rank; they follow from the order of its actions alone.
struct memory {
    const struct dp_sim_costs *costs;
    struct dp_sim_rank *rank;
    int32_t index;
    uint8_t *slot_of; // [stages]
    uint32_t chunks;
    uint32_t slot_chunks[DP_RANK_STAGES_MAX];
    uint64_t bytes;
};

static void raise32(uint32_t *peak, uint32_t value)
{
    *peak = value > *peak ? value : *peak;
}

static void allocate(struct memory *memory, int32_t stage)
{
    uint8_t slot = memory->slot_of[stage];
    memory->bytes += dp_sim_chunk_at(memory->costs, memory->index, slot)->activation_bytes;
    raise32(&memory->rank->peak_chunks, ++memory->chunks);
    raise32(&memory->rank->slot_peak_chunks[slot], ++memory->slot_chunks[slot]);
    if (memory->bytes > memory->rank->peak_bytes) {
        memory->rank->peak_bytes = memory->bytes;
    }
}

static void release(struct memory *memory, dp_action_kind kind, int32_t stage)
{
    uint8_t slot = memory->slot_of[stage];
    const struct dp_sim_chunk *chunk = dp_sim_chunk_at(memory->costs, memory->index, slot);
    if (kind == DP_ACTION_W) {
        memory->bytes -= chunk->activation_bytes - chunk->released_at_i_bytes;
        return;
    }
    memory->bytes -= kind == DP_ACTION_I ? chunk->released_at_i_bytes : chunk->activation_bytes;
    memory->chunks--;
    memory->slot_chunks[slot]--;
}

static void measure_memory(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                           int32_t rank, struct dp_sim_rank *ret_rank)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    uint8_t slot_of[DP_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        slot_of[stages[slot]] = (uint8_t)slot;
    }
    struct memory memory = {.costs = costs, .rank = ret_rank, .index = rank, .slot_of = slot_of};
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        dp_action_kind kind;
        int32_t stage;
        uint32_t microbatch;
        if (has_forward(action)) {
            allocate(&memory, action->stage);
        }
        if (backward_of(action, &kind, &stage, &microbatch) || kind == DP_ACTION_W) {
            release(&memory, kind, stage);
        }
    }
}

static double positive(double value)
{
    return value > 0 ? value : 0;
}

static void measure_time(const struct made *made, const struct dp_sim_scratch *sim, int32_t rank,
                         const struct dp_sim_span *spans, struct dp_sim_rank *ret_rank)
{
    const struct dp_schedule *schedule = made->schedule;
    size_t begin = schedule->rank_begin[rank];
    size_t end = schedule->rank_begin[rank + 1];
    double free_at = 0;
    for (size_t i = begin; i < end; i++) {
        const struct dp_action *action = &schedule->actions[i];
        double seconds = spans[i].end - spans[i].start;
        ret_rank->busy[action->kind] += seconds;
        ret_rank->contention += seconds - sim_seconds(sim, rank, action);
        if (i == begin) {
            ret_rank->begin = spans[i].start;
        } else {
            double gap = positive(spans[i].start - free_at);
            double travelling = positive(spans[i].start - inputs_made(made, action));
            double comm = travelling < gap ? travelling : gap;
            ret_rank->comm += comm;
            ret_rank->dependency += gap - comm;
        }
        free_at = spans[i].end;
    }
    ret_rank->end = free_at;
}

double dp_sim_rank_busy(const struct dp_sim_rank *rank)
{
    double busy = 0;
    for (int kind = 0; kind < DP_ACTION_KIND_COUNT; kind++) {
        busy += rank->busy[kind];
    }
    return busy;
}

static void finish_rank(struct dp_sim_rank *rank, double makespan)
{
    double busy = dp_sim_rank_busy(rank);
    rank->warmup = rank->begin;
    rank->cooldown = makespan - rank->end;
    rank->bubble = makespan - busy;
    rank->span_bubble = rank->end - rank->begin - busy;
}

// The latest end among the ranks that hold one of the rank's stages.
static double sync_start(const struct dp_schedule *schedule, const double *rank_end, int32_t rank)
{
    double latest = rank_end[rank];
    for (int32_t stage = 0; schedule->directions == 2 && stage < schedule->stages; stage++) {
        const int32_t *holders = &schedule->placement[2 * stage];
        if (holders[0] == rank || holders[1] == rank) {
            double end = rank_end[holders[0] == rank ? holders[1] : holders[0]];
            latest = end > latest ? end : latest;
        }
    }
    return latest;
}

double dp_sim_step(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                   const double *rank_end)
{
    double summed = 0;
    double optimizer = 0;
    double step = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        double end = sync_start(schedule, rank_end, rank) + costs->gradient_sync[rank];
        summed = end > summed ? end : summed;
        optimizer = costs->optimizer[rank] > optimizer ? costs->optimizer[rank] : optimizer;
        end += costs->optimizer[rank];
        step = end > step ? end : step;
    }
    return costs->barrier ? summed + optimizer : step;
}

void dp_sim_result_deinit(struct dp_sim_result *result)
{
    free(result->ranks);
    free(result->spans);
    *result = (struct dp_sim_result){0};
}

static void measure(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                    const struct dp_sim_span *spans, struct dp_sim_result *result)
{
    size_t results = 2 * (size_t)schedule->stages * (size_t)schedule->microbatches;
    DP_AUTO_FREE double *ends = dp_new_array(double, results);
    DP_AUTO_FREE double *rank_end = dp_new_array(double, (size_t)schedule->pipeline);
    struct made made = {schedule, ends};
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        note_made(&made, &schedule->actions[i], spans[i].end);
        result->makespan = spans[i].end > result->makespan ? spans[i].end : result->makespan;
    }
    struct dp_sim_scratch sim = {0};
    dp_sim_prepare(&sim, schedule, costs);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        measure_memory(schedule, costs, rank, &result->ranks[rank]);
        measure_time(&made, &sim, rank, spans, &result->ranks[rank]);
        finish_rank(&result->ranks[rank], result->makespan);
        rank_end[rank] = result->ranks[rank].end;
    }
    result->step = dp_sim_step(schedule, costs, rank_end);
    dp_sim_release(&sim);
}

void dp_sim_result_from_spans(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                              const struct dp_sim_span *spans, bool with_spans,
                              struct dp_sim_result *ret_result)
{
    size_t count = dp_schedule_action_count(schedule);
    *ret_result = (struct dp_sim_result){
        .pipeline = schedule->pipeline,
        .ranks = dp_new_array(struct dp_sim_rank, (size_t)schedule->pipeline)};
    measure(schedule, costs, spans, ret_result);
    if (with_spans) {
        ret_result->spans = dp_memdup(spans, count * sizeof(*spans));
    }
}
