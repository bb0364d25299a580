#include "auto_support.h"
#include "made_costs.h"

uint64_t made_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

double made_between(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)made_next(state) / 0x1p31;
}

void made_model_init(struct made_model *ret_model, uint64_t seed, int32_t batches)
{
    uint64_t state = seed;
    made_next(&state);
    static const double shares[] = {1, 1, 0.9, 1.1};
    *ret_model = (struct made_model){
        .seed = seed,
        .batches = batches,
        .b_share = shares[made_next(&state) % 4],
        .pair_share = made_next(&state) % 2 == 0 ? 1 : made_between(&state, 0.6, 1.1),
        .hop = made_next(&state) % 2 == 0 ? 0 : made_between(&state, 0, 0.5),
        .wire = made_next(&state) % 3 == 0 ? made_between(&state, 50, 500) : 0,
        .slow = made_next(&state) % 3 == 0 ? 1.5 : 1,
        .head = made_next(&state) % 3 == 0 ? made_between(&state, 0, 2) : 0,
        .cores = made_next(&state) % 8 == 0 ? made_between(&state, 1, 4) : 0,
        .p2p = made_next(&state) % 8 == 0 ? DP_SIM_P2P_BLOCKING : DP_SIM_P2P_FREE,
        .has_memory = made_next(&state) % 4 > 0,
        .whole_numbers = made_next(&state) % 2 == 0,
    };
}

static void fill_chunk(const struct made_model *model, const struct dp_schedule *shape,
                       int32_t rank, int32_t stage, struct dp_sim_chunk *chunk)
{
    uint64_t state = model->seed + (uint64_t)(1000 * shape->stages + stage);
    double share = (double)shape->pipeline / shape->stages;
    double factor = rank == shape->pipeline - 1 ? model->slow : 1;
    double head = stage == shape->stages - 1 ? model->head : 0;
    for (int kind = 0; kind < DP_ACTION_FB; kind++) {
        double seconds = model->whole_numbers ? 1 + (double)(made_next(&state) % 2)
                                              : made_between(&state, 0.5, 1.5);
        chunk->seconds[kind] = factor * (seconds * share + head);
    }
    chunk->seconds[DP_ACTION_B] =
        model->b_share * (chunk->seconds[DP_ACTION_I] + chunk->seconds[DP_ACTION_W]);
    if (model->has_memory) {
        chunk->activation_bytes = 1000 + made_next(&state) % 1000;
        chunk->released_at_i_bytes = made_next(&state) % (chunk->activation_bytes + 1);
    }
}

dp_status made_costs(void *context, const struct dp_schedule *shape,
                     struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                     struct dp_error *err)
{
    struct made_model *model = context;
    model->calls++;
    if (model->stages_only != 0 && model->stages_only != shape->stages) {
        return dp_fail(err, DP_INVALID, "costs of %d stages are known, not of %d",
                       model->stages_only, shape->stages);
    }
    dp_sim_costs_init(ret_costs, shape);
    for (int32_t rank = 0; rank < shape->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(shape, rank, stages);
        for (int32_t slot = 0; slot < count; slot++) {
            fill_chunk(model, shape, rank, stages[slot],
                       dp_sim_chunk_at(ret_costs, rank, slot));
        }
        ret_static_bytes[rank] = model->has_memory ? 100 * (uint64_t)count : 0;
    }
    costs_add_pairs(ret_costs);
    int32_t pairs = shape->pipeline * ret_costs->slots * ret_costs->slots;
    for (int32_t i = 0; i < pairs; i++) {
        ret_costs->fb[i] *= model->pair_share;
        ret_costs->fi[i] *= model->pair_share;
    }
    for (int32_t from = 0; from < shape->pipeline; from++) {
        for (int32_t to = 0; to < shape->pipeline; to++) {
            uint64_t state = model->seed + (uint64_t)(from * 300 + to);
            if (from != to) {
                *dp_sim_hop_at(ret_costs, from, to) = (struct dp_sim_hop){
                    model->hop * made_between(&state, 0, 1), model->wire};
            }
        }
    }
    ret_costs->message_bytes_f = ret_costs->message_bytes_b = 10;
    ret_costs->cores[0] = model->cores;
    ret_costs->p2p = model->p2p;
    return DP_OK;
}
