#include "field.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

static void count_lanes(struct field *field)
{
    const struct dp_schedule *shape = &field->shape;
    field->lane_begin = dp_new_array(int32_t, (size_t)field->pipeline + 1);
    for (int32_t stage = 0; stage < shape->stages; stage++) {
        for (int direction = 0; direction < shape->directions; direction++) {
            field->lane_begin[shape->placement[2 * stage + direction] + 1]++;
        }
    }
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        int32_t count = field->lane_begin[rank + 1];
        field->lanes_most = count > field->lanes_most ? count : field->lanes_most;
        field->lane_begin[rank + 1] += field->lane_begin[rank];
    }
}

static int32_t slot_of(const struct dp_schedule *shape, int32_t rank, int32_t stage)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(shape, rank, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        if (stages[slot] == stage) {
            return slot;
        }
    }
    DP_CHECK(false);
    return 0;
}

// Micro-batches of a direction: the stream from rank 0 takes the smaller half.
static void share_of(const struct dp_schedule *shape, int direction, struct lane *lane)
{
    int32_t half = shape->directions == 2 ? shape->microbatches / 2 : 0;
    bool second = direction == shape->directions - 1;
    lane->first = direction == 0 ? 0 : half;
    lane->count = second ? shape->microbatches - half : half;
}

static void fill_lanes(struct field *field)
{
    const struct dp_schedule *shape = &field->shape;
    int32_t total = field->lane_begin[field->pipeline];
    field->lanes = dp_new_array(struct lane, (size_t)total);
    int32_t *filled = dp_memdup(field->lane_begin, (size_t)field->pipeline * sizeof(int32_t));
    for (int direction = 0; direction < shape->directions; direction++) {
        int32_t before = -1;
        for (int32_t stage = 0; stage < shape->stages; stage++) {
            int32_t rank = shape->placement[2 * stage + direction];
            int32_t at = filled[rank]++;
            struct lane *lane = &field->lanes[at];
            *lane = (struct lane){.rank = rank,
                                  .stage = stage,
                                  .direction = direction,
                                  .slot = slot_of(shape, rank, stage),
                                  .base = field->chunks,
                                  .next = -1,
                                  .before = before};
            share_of(shape, direction, lane);
            const struct dp_sim_chunk *chunk = dp_sim_chunk_at(&field->costs, rank, lane->slot);
            lane->bytes = chunk->activation_bytes;
            lane->at_i = chunk->released_at_i_bytes;
            field->chunks += (size_t)lane->count;
            if (before >= 0) {
                field->lanes[before].next = at;
            }
            before = at;
        }
    }
    free(filled);
}

static int32_t link_between(struct field *field, int32_t *ids, int32_t from, int32_t to)
{
    int32_t *id = &ids[from * field->pipeline + to];
    if (*id > 0) {
        return *id - 1;
    }
    const struct dp_sim_costs *costs = &field->costs;
    const struct dp_sim_hop *hop = dp_sim_hop_at(costs, from, to);
    struct link link = {0};
    if (from != to) {
        link.latency = hop->latency;
        link.seconds[0] = dp_sim_wire_seconds(hop, costs->message_bytes_f);
        link.seconds[1] = dp_sim_wire_seconds(hop, costs->message_bytes_b);
    }
    field->links[field->links_count++] = link;
    *id = field->links_count;
    return *id - 1;
}

static void fill_links(struct field *field)
{
    size_t ranks = (size_t)field->pipeline;
    int32_t total = field->lane_begin[field->pipeline];
    int32_t *ids = dp_new_array(int32_t, ranks * ranks);
    field->links = dp_new_array(struct link, 2 * (size_t)total);
    for (int32_t i = 0; i < total; i++) {
        struct lane *lane = &field->lanes[i];
        lane->up = lane->next < 0
                       ? -1
                       : link_between(field, ids, lane->rank, field->lanes[lane->next].rank);
        lane->down = lane->before < 0
                         ? -1
                         : link_between(field, ids, lane->rank, field->lanes[lane->before].rank);
    }
    free(ids);
}

static struct step single_step(const struct field *field, dp_action_kind kind, int32_t at)
{
    const struct lane *lane = &field->lanes[at];
    const struct dp_sim_chunk *chunk = dp_sim_chunk_at(&field->costs, lane->rank, lane->slot);
    struct step step = {.seconds = chunk->seconds[kind],
                        .forward = -1,
                        .backward = -1,
                        .weight = -1,
                        .kind = (uint8_t)kind,
                        .b_kind = DP_ACTION_KIND_COUNT};
    if (kind == DP_ACTION_F) {
        step.forward = at;
        step.take = lane->bytes;
    } else if (kind == DP_ACTION_W) {
        step.weight = at;
        step.give = lane->bytes - lane->at_i;
    } else {
        step.backward = at;
        step.b_kind = (uint8_t)kind;
        step.give = kind == DP_ACTION_I ? lane->at_i : lane->bytes;
    }
    return step;
}

static struct step pair_step(const struct field *field, int32_t forward, int32_t backward,
                             dp_action_kind b_kind)
{
    const struct lane *f = &field->lanes[forward], *b = &field->lanes[backward];
    struct step step = single_step(field, b_kind, backward);
    size_t pair = dp_sim_pair_index(&field->costs, f->rank, f->slot, b->slot);
    step.seconds = (b_kind == DP_ACTION_I ? field->costs.fi : field->costs.fb)[pair];
    step.forward = forward;
    step.take = f->bytes;
    step.kind = DP_ACTION_FB;
    return step;
}

static void fill_steps(struct field *field)
{
    int32_t most = field->lanes_most;
    field->symbols = (int32_t)DP_ACTION_FB * most + 2 * most * most;
    field->steps = dp_new_array(struct step, (size_t)field->pipeline * (size_t)field->symbols);
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        struct step *steps = &field->steps[rank * field->symbols];
        int32_t begin = field->lane_begin[rank];
        int32_t count = field_lane_count(field, rank);
        for (int32_t f = 0; f < count; f++) {
            for (int kind = 0; kind < DP_ACTION_FB; kind++) {
                steps[symbol_of(field, (dp_action_kind)kind, f)] =
                    single_step(field, (dp_action_kind)kind, begin + f);
            }
            for (int32_t b = 0; b < count; b++) {
                steps[symbol_of_pair(field, f, b, DP_ACTION_B)] =
                    pair_step(field, begin + f, begin + b, DP_ACTION_B);
                steps[symbol_of_pair(field, f, b, DP_ACTION_I)] =
                    pair_step(field, begin + f, begin + b, DP_ACTION_I);
            }
        }
    }
}

void dp_auto_field_init(struct field *ret_field, struct dp_schedule *shape,
                        struct dp_sim_costs *costs, uint64_t *static_bytes, const uint64_t *cap)
{
    struct field field = {.shape = *shape,
                          .costs = *costs,
                          .static_bytes = static_bytes,
                          .pipeline = shape->pipeline};
    *shape = (struct dp_schedule){0};
    *costs = (struct dp_sim_costs){0};
    field.is_simple = !dp_sim_costs_share_cores(&field.costs) && field.costs.p2p == DP_SIM_P2P_FREE;
    count_lanes(&field);
    fill_lanes(&field);
    fill_links(&field);
    fill_steps(&field);
    size_t ranks = (size_t)field.pipeline;
    field.room = dp_new_array(uint64_t, ranks);
    field.list_begin = dp_new_array(size_t, ranks + 1);
    for (int32_t rank = 0; rank < field.pipeline; rank++) {
        size_t chunks = 0;
        for (int32_t i = field.lane_begin[rank]; i < field.lane_begin[rank + 1]; i++) {
            chunks += (size_t)field.lanes[i].count;
        }
        field.list_begin[rank + 1] = field.list_begin[rank] + 3 * chunks;
        uint64_t fixed = static_bytes[rank];
        field.room[rank] = cap == NULL ? UINT64_MAX : cap[rank] > fixed ? cap[rank] - fixed : 0;
    }
    *ret_field = field;
}

void dp_auto_field_deinit(struct field *field)
{
    dp_schedule_deinit(&field->shape);
    dp_sim_costs_deinit(&field->costs);
    free(field->static_bytes);
    free(field->room);
    free(field->lanes);
    free(field->lane_begin);
    free(field->links);
    free(field->steps);
    free(field->list_begin);
    *field = (struct field){0};
}
