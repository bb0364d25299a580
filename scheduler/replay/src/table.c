// Files the operations by what they are and when: the same positions in every lane.

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "internal.h"

// What the operations of one step are, without their times.
struct shape {
    int32_t step;
    size_t count;
    uint64_t fingerprint; // the sum over operations, so that their order does not matter
    bool kept;
};

struct census {
    int32_t replicas, stages;
    struct shape *shapes; // [step_count], by step
    size_t step_count;
};

static void census_deinit(struct census *census)
{
    free(census->shapes);
}

// "step 23, dp_rank 1, stage 2: backward-send 4", with the line where there is one.
static const char *describe(char *text, size_t size, const struct dp_replay_op *op)
{
    int length = snprintf(text, size, "step %d, dp_rank %d, stage %d: %s %d", op->step, op->dp_rank,
                          op->stage, dp_replay_kind_text((dp_replay_kind)op->kind), op->seq);
    if (op->line > 0) {
        snprintf(text + length, size - (size_t)length, " (line %u)", op->line);
    }
    return text;
}

static bool is_number(double value, double min)
{
    return isfinite(value) && value >= min && value <= DP_REPLAY_SECONDS_MAX;
}

static dp_status check_ops(const struct dp_replay_op *ops, size_t count, struct dp_error *err)
{
    if (count == 0) {
        return dp_fail(err, DP_INVALID, "no operations to replay");
    }
    if (count > DP_REPLAY_OPS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%zu operations; at most %u: keep fewer steps", count,
                       DP_REPLAY_OPS_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        const struct dp_replay_op *op = &ops[i];
        if (op->kind >= DP_REPLAY_KIND_COUNT || op->dp_rank < 0 || op->dp_rank >= DP_RANKS_MAX ||
            op->stage < 0 || op->stage >= DP_STAGES_MAX || op->step < 0 || op->seq < 0 ||
            op->mc < -1 || op->mc >= DP_STAGES_MAX ||
            !is_number(op->start, -DP_REPLAY_SECONDS_MAX) || !is_number(op->duration, 0)) {
            return dp_fail(err, DP_INVALID, "operation %zu has a field out of range", i);
        }
    }
    return DP_OK;
}

static int compare_numbers(const void *a, const void *b)
{
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    return (left > right) - (left < right);
}

// The distinct steps. Those of a recording come in runs, so few are sorted.
static void list_steps(const struct dp_replay_op *ops, size_t count, struct census *census)
{
    DP_AUTO_FREE int32_t *steps = dp_new_array(int32_t, count);
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        if (found == 0 || steps[found - 1] != ops[i].step) {
            steps[found++] = ops[i].step;
        }
    }
    qsort(steps, found, sizeof(*steps), compare_numbers);
    size_t distinct = 0;
    for (size_t i = 0; i < found; i++) {
        if (i == 0 || steps[i] != steps[i - 1]) {
            steps[distinct++] = steps[i];
        }
    }
    census->step_count = distinct;
    census->shapes = dp_new_array(struct shape, distinct);
    for (size_t i = 0; i < distinct; i++) {
        census->shapes[i].step = steps[i];
    }
}

// Its index among `count` shapes; the last answer is the first guess.
static size_t find_step(const struct shape *shapes, size_t count, int32_t step, size_t guess)
{
    if (guess < count && shapes[guess].step == step) {
        return guess;
    }
    size_t low = 0, high = count - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (shapes[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static uint64_t fingerprint_of(const struct dp_replay_op *op)
{
    return dp_rand_mix(((uint64_t)op->dp_rank << 32) | (uint64_t)op->stage,
                       ((uint64_t)op->kind << 32) | (uint64_t)op->seq);
}

static int compare_shapes(const void *a, const void *b)
{
    const struct shape *left = *(const struct shape *const *)a;
    const struct shape *right = *(const struct shape *const *)b;
    if (left->fingerprint != right->fingerprint) {
        return left->fingerprint < right->fingerprint ? -1 : 1;
    }
    if (left->count != right->count) {
        return left->count < right->count ? -1 : 1;
    }
    return (left->step > right->step) - (left->step < right->step);
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
    return a->fingerprint == b->fingerprint && a->count == b->count;
}

// Keeps the steps of the most frequent shape: the earliest one where two are equally frequent.
static void keep_most(struct census *census)
{
    size_t count = census->step_count;
    DP_AUTO_FREE struct shape **sorted = dp_new_array(struct shape *, count);
    for (size_t i = 0; i < count; i++) {
        sorted[i] = &census->shapes[i];
    }
    qsort(sorted, count, sizeof(struct shape *), compare_shapes);
    size_t best = 0, best_run = 0;
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from; to < count && same_shape(sorted[from], sorted[to]); to++) {
        }
        if (to - from > best_run ||
            (to - from == best_run && sorted[from]->step < sorted[best]->step)) {
            best = from;
            best_run = to - from;
        }
    }
    for (size_t i = best; i < best + best_run; i++) {
        sorted[i]->kept = true;
    }
}

static void take_census(const struct dp_replay_op *ops, size_t count, struct census *census)
{
    list_steps(ops, count, census);
    size_t step = 0;
    for (size_t i = 0; i < count; i++) {
        step = find_step(census->shapes, census->step_count, ops[i].step, step);
        census->shapes[step].count++;
        census->shapes[step].fingerprint += fingerprint_of(&ops[i]);
    }
    keep_most(census);
    // Replicas and stages are those of the steps that are kept.
    for (size_t i = 0; i < count; i++) {
        step = find_step(census->shapes, census->step_count, ops[i].step, step);
        if (census->shapes[step].kept) {
            census->replicas =
                ops[i].dp_rank >= census->replicas ? ops[i].dp_rank + 1 : census->replicas;
            census->stages = ops[i].stage >= census->stages ? ops[i].stage + 1 : census->stages;
        }
    }
}

// Counts the operations of replica 0 in one step: how many of each kind each stage has.
static dp_status lay_out(struct replay_table *table, const struct dp_replay_op *ops, size_t count,
                         struct dp_error *err)
{
    size_t kinds = (size_t)table->stages * DP_REPLAY_KIND_COUNT;
    table->first = dp_new_array(int32_t, kinds + 1);
    for (size_t i = 0; i < count; i++) {
        if (ops[i].step == table->step[0] && ops[i].dp_rank == 0) {
            table->first[(size_t)ops[i].stage * DP_REPLAY_KIND_COUNT + ops[i].kind + 1]++;
        }
    }
    for (size_t i = 0; i < kinds; i++) {
        table->first[i + 1] += table->first[i];
    }
    table->positions = (size_t)table->first[kinds];
    if (table->positions == 0) {
        return dp_fail(err, DP_INVALID, "step %d has no operations of dp_rank 0", table->step[0]);
    }
    table->kind = dp_new_array(int32_t, table->positions);
    table->stage = dp_new_array(int32_t, table->positions);
    table->mc = dp_new_array(int32_t, table->positions);
    table->gmc = dp_new_array(int32_t, table->positions);
    for (size_t i = 0; i < kinds; i++) {
        for (int32_t at = table->first[i]; at < table->first[i + 1]; at++) {
            table->stage[at] = (int32_t)(i / DP_REPLAY_KIND_COUNT);
            table->kind[at] = (int32_t)(i % DP_REPLAY_KIND_COUNT);
        }
    }
    return DP_OK;
}

// Puts one operation in its place.
static dp_status file_op(struct replay_table *table, const struct dp_replay_op *op, size_t step,
                         struct dp_error *err)
{
    char text[160];
    dp_replay_kind kind = (dp_replay_kind)op->kind;
    if (op->seq >= replay_count(table, op->stage, kind)) {
        return dp_fail(err, DP_INVALID,
                       "%s: dp_rank 0 has %d of them in step %d, numbered from 0; every replica "
                       "and step must have the same operations",
                       describe(text, sizeof(text), op), replay_count(table, op->stage, kind),
                       table->step[0]);
    }
    int32_t position = replay_position(table, op->stage, kind, op->seq);
    size_t lane = step * (size_t)table->replicas + (size_t)op->dp_rank;
    size_t cell = (size_t)position * table->lanes + lane;
    if (!isnan(table->start[cell])) {
        return dp_fail(err, DP_INVALID,
                       "%s is there twice; of tensor-parallel ranks that share a stage keep one",
                       describe(text, sizeof(text), op));
    }
    table->start[cell] = op->start;
    table->duration[cell] = op->duration;
    if (lane == 0) {
        table->mc[position] = op->mc < 0 ? 0 : op->mc;
        table->gmc[position] = op->gmc;
    }
    int32_t *rank = &table->rank[op->dp_rank * table->stages + op->stage];
    if (*rank >= 0 && *rank != op->rank) {
        return dp_fail(err, DP_INVALID, "%s is by rank %d; others of that stage are by rank %d",
                       describe(text, sizeof(text), op), op->rank, *rank);
    }
    *rank = op->rank;
    return DP_OK;
}

static dp_status file_ops(struct replay_table *table, const struct census *census,
                          const struct dp_replay_op *ops, size_t count, struct dp_error *err)
{
    // Where a kept step went: its index among the kept.
    DP_AUTO_FREE size_t *kept = dp_new_array(size_t, census->step_count);
    for (size_t i = 0, next = 0; i < census->step_count; i++) {
        kept[i] = next;
        next += census->shapes[i].kept;
    }
    dp_status status = DP_OK;
    size_t step = 0;
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        step = find_step(census->shapes, census->step_count, ops[i].step, step);
        if (census->shapes[step].kept) {
            status = file_op(table, &ops[i], kept[step], err);
        }
    }
    return status;
}

// The chunks that compute belongs to: vpp on each stage, and which of the model's each one is.
static dp_status number_chunks(struct replay_table *table, struct dp_error *err)
{
    table->chunks = 1;
    for (size_t i = 0; i < table->positions; i++) {
        table->chunks = table->mc[i] >= table->chunks ? table->mc[i] + 1 : table->chunks;
    }
    int32_t total = table->chunks * table->stages;
    for (size_t i = 0; i < table->positions; i++) {
        if (table->gmc[i] < 0) {
            table->gmc[i] = table->mc[i] * table->stages + table->stage[i];
        }
        if (table->gmc[i] >= total) {
            return dp_fail(err, DP_INVALID,
                           "gmc %d on stage %d: %d stages of %d chunks are numbered 0 to %d",
                           table->gmc[i], table->stage[i], table->stages, table->chunks, total - 1);
        }
    }
    return DP_OK;
}

// Sizes, once the steps are chosen; says what makes lanes differ that should be alike.
static dp_status measure(struct replay_table *table, const struct census *census,
                         const struct dp_replay_op *ops, size_t count, struct dp_error *err)
{
    for (size_t i = 0; i < census->step_count; i++) {
        if (census->shapes[i].kept) {
            table->steps++;
        } else {
            table->left_out =
                table->steps_left_out++ == 0 ? census->shapes[i].step : table->left_out;
        }
    }
    table->step = dp_new_array(int32_t, table->steps);
    size_t per_step = 0;
    for (size_t i = 0, next = 0; i < census->step_count; i++) {
        if (census->shapes[i].kept) {
            table->step[next++] = census->shapes[i].step;
            per_step = census->shapes[i].count;
        }
    }
    dp_status status = lay_out(table, ops, count, err);
    if (status == DP_OK && table->positions * (size_t)table->replicas != per_step) {
        status = dp_fail(err, DP_INVALID,
                         "step %d has %zu operations on %d replicas, and %zu of them are of "
                         "dp_rank 0: every replica must have the same, and dp_ranks count from 0",
                         table->step[0], per_step, table->replicas, table->positions);
    }
    return status;
}

static dp_status fill(struct replay_table *table, const struct census *census,
                      const struct dp_replay_op *ops, size_t count, struct dp_error *err)
{
    dp_status status = measure(table, census, ops, count, err);
    if (status != DP_OK) {
        return status;
    }
    // As many cells as operations are kept, so no more than `count`.
    table->lanes = table->steps * (size_t)table->replicas;
    size_t cells = table->positions * table->lanes;
    DP_CHECK(cells <= count);
    table->start = dp_new_array(double, cells);
    table->duration = dp_new_array(double, cells);
    for (size_t i = 0; i < cells; i++) {
        table->start[i] = NAN;
    }
    size_t workers = (size_t)table->replicas * (size_t)table->stages;
    table->rank = dp_new_array(int32_t, workers);
    memset(table->rank, 0xff, workers * sizeof(*table->rank));
    status = file_ops(table, census, ops, count, err);
    if (status == DP_OK) {
        status = number_chunks(table, err);
    }
    return status;
}

dp_status dp_replay_table_init(struct replay_table *ret_table, const struct dp_replay_op *ops,
                               size_t count, struct dp_error *err)
{
    dp_status status = check_ops(ops, count, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(census_deinit) struct census census = {0};
    take_census(ops, count, &census);
    struct replay_table table = {.replicas = census.replicas, .stages = census.stages};
    // Each worker does something, or the sizes below would be free for the taking.
    if ((uint64_t)table.replicas * (uint64_t)table.stages > count) {
        status = dp_fail(err, DP_INVALID,
                         "dp_ranks 0 to %d and stages 0 to %d are more workers than operations",
                         table.replicas - 1, table.stages - 1);
    } else {
        status = fill(&table, &census, ops, count, err);
    }
    if (status == DP_OK) {
        *ret_table = table;
    } else {
        dp_replay_table_deinit(&table);
    }
    return status;
}

void dp_replay_table_deinit(struct replay_table *table)
{
    free(table->first);
    free(table->kind);
    free(table->stage);
    free(table->mc);
    free(table->gmc);
    free(table->start);
    free(table->duration);
    free(table->step);
    free(table->rank);
    *table = (struct replay_table){0};
}
