#include "rank_units.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"

struct dp_cost_stage dp_units_stage(const struct dp_rank_memory *memory, int32_t stage)
{
    bool is_last = stage == memory->schedule->stages - 1;
    return (struct dp_cost_stage){.layer_begin = memory->layer_begin[stage],
                                  .layer_end = memory->layer_begin[stage + 1],
                                  .has_embedding = stage == 0,
                                  .has_head = is_last,
                                  .has_mtp = is_last && memory->model->mtp_layers > 0};
}

// Of the stage that has nothing else.
static struct unit unit_of(const struct dp_rank_memory *memory, const struct dp_cost_stage *stage,
                           const struct dp_cost_routed *routed)
{
    const struct dp_model_spec *m = memory->model;
    struct dp_cost_chunk_bytes bytes;
    struct dp_cost_during during;
    dp_cost_chunk_bytes(m, memory->profile, stage, &memory->batch, routed, &bytes);
    if (stage->has_mtp) {
        dp_cost_mtp_during(m, memory->profile, &memory->batch, routed, &during);
    } else if (stage->layer_end > stage->layer_begin) {
        bool is_moe = dp_model_layer_is_moe(m, stage->layer_begin);
        dp_cost_layer_during(m, memory->profile, &memory->batch, is_moe, routed, &during);
    } else {
        dp_cost_ends_during(m, memory->profile, &memory->batch, stage->has_head, &during);
    }
    return (struct unit){bytes.after_forward, bytes.after_input, during.attention,
                         during.away,         during.forward,    during.backward};
}

// Layers of a kind are alike unless more or fewer rows come to them.
static struct unit layer_unit(const struct units *units, int32_t layer)
{
    const struct dp_rank_memory *memory = units->memory;
    bool is_moe = dp_model_layer_is_moe(memory->model, layer);
    bool is_like_last = layer > 0 && is_moe == dp_model_layer_is_moe(memory->model, layer - 1);
    if (is_like_last && (!is_moe || memory->routed == NULL)) {
        return units->layers[layer - 1];
    }
    const struct dp_cost_stage one = {.layer_begin = layer, .layer_end = layer + 1};
    return unit_of(memory, &one, memory->routed != NULL ? &memory->routed[layer] : NULL);
}

void dp_units_init(struct units *units, const struct dp_rank_memory *memory)
{
    const struct dp_model_spec *m = memory->model;
    const struct dp_cost_stage embedding = {.has_embedding = true}, head = {.has_head = true};
    const struct dp_cost_stage mtp = {.has_mtp = true};
    *units = (struct units){.memory = memory};
    units->hop = dp_cost_hop_bytes(m, memory->profile, &memory->batch);
    units->embedding = unit_of(memory, &embedding, NULL);
    units->head = unit_of(memory, &head, NULL);
    if (m->mtp_layers > 0) {
        units->mtp =
            unit_of(memory, &mtp, memory->routed != NULL ? &memory->routed[m->layers] : NULL);
    }
    units->layers = dp_new_array(struct unit, (size_t)m->layers);
    for (int32_t layer = 0; layer < m->layers; layer++) {
        units->layers[layer] = layer_unit(units, layer);
    }
}

void dp_units_deinit(struct units *units)
{
    free(units->layers);
}

struct row dp_row_of(const struct units *units, int32_t stage)
{
    struct row row = {.units = units, .stage = dp_units_stage(units->memory, stage)};
    row.count = row.stage.layer_end - row.stage.layer_begin + row.stage.has_embedding +
                row.stage.has_head + row.stage.has_mtp;
    return row;
}

static const struct unit *unit_at(const struct row *row, int32_t i)
{
    if (row->stage.has_embedding && i == 0) {
        return &row->units->embedding;
    }
    int32_t layer = row->stage.layer_begin + i - row->stage.has_embedding;
    if (layer < row->stage.layer_end) {
        return &row->units->layers[layer];
    }
    return layer == row->stage.layer_end ? &row->units->head : &row->units->mtp;
}

static double away_at(const struct row *row, int32_t i)
{
    return i >= 0 && i < row->count ? unit_at(row, i)->away : 0;
}

struct totals dp_row_totals(const struct row *row)
{
    struct totals totals = {0, 0};
    for (int32_t i = 0; i < row->count; i++) {
        totals.kept += unit_at(row, i)->kept;
        totals.deferred += unit_at(row, i)->deferred;
    }
    return totals;
}

// What the unit before has sent away is there until this one is through.
double dp_row_forward(const struct row *row)
{
    double kept = 0, most = 0;
    for (int32_t i = 0; i < row->count; i++) {
        const struct unit *unit = unit_at(row, i);
        kept += unit->kept;
        most = fmax(most, kept + unit->away + unit->forward + away_at(row, i - 1));
    }
    return fmax(most, kept + (row->stage.has_head ? 0 : row->units->hop));
}

// What there is of MTP while the head goes backward: its part of the hidden rows' gradient, and
// what its weight gradients read, which follow those of both losses when passes are interleaved.
static double beside_head(const struct row *row, bool defers)
{
    bool is_interleaved = !row->units->memory->no_overlap;
    return row->units->hop + (is_interleaved && !defers ? row->units->mtp.deferred : 0);
}

static bool is_head_before_mtp(const struct row *row, int32_t i)
{
    return row->stage.has_mtp && i == row->count - 2;
}

// What the next unit back needs is there before it starts.
double dp_row_backward(const struct row *row, bool defers)
{
    double kept = dp_row_totals(row).kept, deferred = 0, most = 0;
    for (int32_t i = row->count - 1; i >= 0; i--) {
        const struct unit *unit = unit_at(row, i);
        double level = kept + deferred + unit->away + unit->backward + away_at(row, i - 1);
        level += is_head_before_mtp(row, i) ? beside_head(row, defers) : 0;
        most = fmax(most, level);
        kept -= unit->kept;
        deferred += defers ? unit->deferred : 0;
    }
    return fmax(most, deferred + (row->stage.has_embedding ? 0 : row->units->hop));
}

// Rows that are kept as codes are there in full while their experts' weight gradients read them.
double dp_row_weight(const struct row *row)
{
    const struct dp_rank_memory *memory = row->units->memory;
    double rows = 0;
    if (memory->batch.save_fp8 && dp_model_layer_is_moe(memory->model, row->stage.layer_end - 1)) {
        rows = memory->model->top_k * row->units->hop;
    }
    return dp_row_totals(row).deferred + rows;
}

static bool exchanges(const struct row *row, int32_t i)
{
    int32_t layer = row->stage.layer_begin + i - row->stage.has_embedding;
    bool is_layer = layer >= row->stage.layer_begin && layer < row->stage.layer_end;
    return is_layer && dp_model_layer_is_moe(row->units->memory->model, layer);
}

// What a forward chunk has begun while the other one is inside a layer: attention, up to its first
// exchange; and what stands before that and exchanges nothing, when there are waits to run it in.
static double begun(const struct row *row, int32_t i)
{
    const struct dp_rank_memory *memory = row->units->memory;
    double bytes = 0;
    while (memory->batch.ep_size > 1 && !memory->least && i < row->count && !exchanges(row, i) &&
           (!row->stage.has_head || i < row->count - 1 - row->stage.has_mtp)) {
        bytes += unit_at(row, i++)->kept;
    }
    if (i == row->count) {
        return bytes + (row->stage.has_head ? 0 : row->units->hop);
    }
    const struct unit *unit = unit_at(row, i);
    return bytes + fmin(unit->attention + row->units->hop, unit->kept + unit->forward);
}

// A pair goes through both chunks a layer at a time: attention forward and experts backward, then
// experts forward while the backward chunk has the gradients of its layer alone.
double dp_rows_pair(const struct row *forward, const struct row *backward, bool defers)
{
    double waits = 0, ahead = 0, back = dp_row_totals(backward).kept, most = 0;
    int32_t fi = 0, bi = backward->count - 1;
    while (fi < forward->count || bi >= 0) {
        const struct unit *f = fi < forward->count ? unit_at(forward, fi) : NULL;
        const struct unit *b = bi >= 0 ? unit_at(backward, bi) : NULL;
        if (b != NULL) {
            double beside = is_head_before_mtp(backward, bi) ? beside_head(backward, defers) : 0;
            most = fmax(most, ahead + (f == NULL ? 0 : begun(forward, fi)) + back + waits +
                                  b->away + b->backward + beside + away_at(backward, bi - 1) +
                                  away_at(forward, fi - 1));
        }
        if (f != NULL) {
            double left = b == NULL ? 0 : fmin(b->kept, b->attention + 2 * backward->units->hop);
            double rest = b == NULL ? back : back - b->kept + left;
            most = fmax(most, ahead + f->kept + f->away + f->forward + rest + waits +
                                  (b != NULL && defers ? b->deferred - left : 0) +
                                  away_at(forward, fi - 1));
            ahead += f->kept;
        }
        if (b != NULL) {
            back -= b->kept;
            waits += defers ? b->deferred : 0;
        }
        fi++;
        bi--;
    }
    double results = (forward->stage.has_head ? 0 : forward->units->hop) +
                     (backward->stage.has_embedding ? 0 : backward->units->hop);
    return fmax(most, ahead + waits + results);
}

double dp_rows_sequence(const struct row *forward, const struct row *backward, bool defers)
{
    double result = forward->stage.has_head ? 0 : forward->units->hop;
    return fmax(dp_row_forward(forward) + dp_row_totals(backward).kept,
                dp_row_totals(forward).kept + result + dp_row_backward(backward, defers));
}
