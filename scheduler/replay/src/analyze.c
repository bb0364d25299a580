// The questions: how long the step takes with some operations as recorded and the rest ideal, or
// the other way round.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

// Below this there is nothing to decompose; workers that M_W fixes, in percent; the share that
// makes a verdict. The first two are the published analyzer's.
static const double even_slowdown = 1.03;
static const size_t fixed_percent = 3;
static const double most = 0.5;

struct study {
    struct replay_table table;
    struct replay_graph graph;
    double *recorded;                   // [positions][lanes]
    double ideal[DP_REPLAY_KIND_COUNT]; // the ideal time of each kind
    double *times, *scratch;            // of one replay
    double *steps;                      // [lanes]
    double ideal_s, replayed_s;         // mean step
};

static void study_deinit(struct study *study)
{
    dp_replay_table_deinit(&study->table);
    dp_replay_graph_deinit(&study->graph);
    free(study->recorded);
    free(study->times);
    free(study->scratch);
    free(study->steps);
}

static dp_replay_part part_of(dp_replay_kind kind)
{
    static const dp_replay_part parts[DP_REPLAY_KIND_COUNT] = {
        [DP_REPLAY_FORWARD_COMPUTE] = DP_REPLAY_PART_FORWARD,
        [DP_REPLAY_BACKWARD_COMPUTE] = DP_REPLAY_PART_BACKWARD,
        [DP_REPLAY_FORWARD_SEND] = DP_REPLAY_PART_FORWARD_COMM,
        [DP_REPLAY_FORWARD_RECV] = DP_REPLAY_PART_FORWARD_COMM,
        [DP_REPLAY_BACKWARD_SEND] = DP_REPLAY_PART_BACKWARD_COMM,
        [DP_REPLAY_BACKWARD_RECV] = DP_REPLAY_PART_BACKWARD_COMM,
        [DP_REPLAY_PARAMS_ALL_GATHER] = DP_REPLAY_PART_PARAMS_ALL_GATHER,
        [DP_REPLAY_GRADS_REDUCE_SCATTER] = DP_REPLAY_PART_GRADS_REDUCE_SCATTER,
        [DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE] = DP_REPLAY_PART_LAYERNORM,
        [DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE] = DP_REPLAY_PART_EMBEDDING,
        [DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE] = DP_REPLAY_PART_SEPARATE_GRADS,
        [DP_REPLAY_OPTIMIZER_CLIP] = DP_REPLAY_PART_CLIP,
        [DP_REPLAY_OPTIMIZER] = DP_REPLAY_PART_OPTIMIZER,
        [DP_REPLAY_GC] = DP_REPLAY_PART_GC,
    };
    return parts[kind];
}

static bool is_compute(dp_replay_kind kind)
{
    return kind == DP_REPLAY_FORWARD_COMPUTE || kind == DP_REPLAY_BACKWARD_COMPUTE ||
           kind == DP_REPLAY_OPTIMIZER || kind == DP_REPLAY_GC;
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double mean(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum / (double)count;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

// Compute takes the mean of its kind, so that no work disappears; what moves data the median, which
// rare congestion does not move. Over all stages, replicas and steps.
static void find_ideal(struct study *study)
{
    const struct replay_table *table = &study->table;
    for (int kind = 0; kind < DP_REPLAY_KIND_COUNT; kind++) {
        size_t count = 0;
        for (size_t i = 0; i < table->positions; i++) {
            if (table->kind[i] == kind) {
                memcpy(&study->times[count], &study->recorded[i * table->lanes],
                       table->lanes * sizeof(double));
                count += table->lanes;
            }
        }
        study->ideal[kind] = count == 0                         ? 0
                             : is_compute((dp_replay_kind)kind) ? mean(study->times, count)
                                                                : median(study->times, count);
    }
}

// Which operations: those that a part, a stage, or marked workers do.
struct choice {
    int part, stage;     // -1 = any
    const bool *workers; // [replicas][stages]; NULL = any
};

static bool chosen(const struct study *study, const struct choice *choice, size_t position,
                   size_t lane)
{
    const struct replay_table *table = &study->table;
    int32_t stage = table->stage[position];
    size_t replica = lane % (size_t)table->replicas;
    return (choice->part < 0 ||
            (int)part_of((dp_replay_kind)table->kind[position]) == choice->part) &&
           (choice->stage < 0 || stage == choice->stage) &&
           (choice->workers == NULL ||
            choice->workers[replica * (size_t)table->stages + (size_t)stage]);
}

// Mean seconds of a step with the chosen operations as recorded and the others ideal, or with
// `chosen_ideal` the other way round. study->steps then holds each step's.
static double replay_mixed(struct study *study, const struct choice *choice, bool chosen_ideal)
{
    const struct replay_table *table = &study->table;
    size_t lanes = table->lanes;
    for (size_t i = 0; i < table->positions; i++) {
        double ideal = study->ideal[table->kind[i]];
        for (size_t lane = 0; lane < lanes; lane++) {
            bool recorded = chosen(study, choice, i, lane) != chosen_ideal;
            study->times[i * lanes + lane] = recorded ? study->recorded[i * lanes + lane] : ideal;
        }
    }
    dp_replay_run(table, &study->graph, study->times, lanes, (size_t)table->replicas,
                  study->scratch, study->steps);
    return mean(study->steps, table->steps);
}

// Every replica's slowdown in one replay: beside each lane as recorded stands one that is ideal, in
// place of all other replicas, which are equal when they are ideal.
static void study_replicas(struct study *study, struct dp_replay_result *result)
{
    const struct replay_table *table = &study->table;
    size_t lanes = table->lanes;
    if (table->replicas == 1) {
        result->slowdown_replica[0] = result->slowdown;
        return;
    }
    for (size_t i = 0; i < table->positions; i++) {
        for (size_t lane = 0; lane < lanes; lane++) {
            double *pair = &study->times[2 * (i * lanes + lane)];
            pair[0] = study->recorded[i * lanes + lane];
            pair[1] = study->ideal[table->kind[i]];
        }
    }
    dp_replay_run(table, &study->graph, study->times, 2 * lanes, 2, study->scratch, study->steps);
    for (int32_t replica = 0; replica < table->replicas; replica++) {
        double sum = 0;
        for (size_t step = 0; step < table->steps; step++) {
            sum += study->steps[step * (size_t)table->replicas + (size_t)replica];
        }
        result->slowdown_replica[replica] = sum / (double)table->steps / study->ideal_s;
    }
}

static void study_parts(struct study *study, struct dp_replay_result *result)
{
    bool there[DP_REPLAY_PART_COUNT] = {false};
    for (size_t i = 0; i < study->table.positions; i++) {
        there[part_of((dp_replay_kind)study->table.kind[i])] = true;
    }
    for (int part = 0; part < DP_REPLAY_PART_COUNT; part++) {
        struct choice choice = {.part = part, .stage = -1};
        result->slowdown_part[part] =
            there[part] ? replay_mixed(study, &choice, false) / study->ideal_s : NAN;
    }
    for (int32_t stage = 0; stage < study->table.stages; stage++) {
        struct choice choice = {.part = -1, .stage = stage};
        result->slowdown_stage[stage] = replay_mixed(study, &choice, false) / study->ideal_s;
    }
}

static int compare_workers(const void *a, const void *b)
{
    const struct dp_replay_worker *left = *(const struct dp_replay_worker *const *)a;
    const struct dp_replay_worker *right = *(const struct dp_replay_worker *const *)b;
    if (left->slowdown != right->slowdown) {
        return left->slowdown > right->slowdown ? -1 : 1;
    }
    return (left->rank > right->rank) - (left->rank < right->rank);
}

// Scores the workers and marks the slowest few.
static void rank_workers(const struct study *study, struct dp_replay_result *result)
{
    const struct replay_table *table = &study->table;
    size_t count = (size_t)table->replicas * (size_t)table->stages;
    DP_AUTO_FREE struct dp_replay_worker **sorted = dp_new_array(struct dp_replay_worker *, count);
    for (size_t i = 0; i < count; i++) {
        int32_t replica = (int32_t)(i / (size_t)table->stages);
        int32_t stage = (int32_t)(i % (size_t)table->stages);
        result->workers[i] = (struct dp_replay_worker){
            .rank = table->rank[i],
            .dp_rank = replica,
            .stage = stage,
            .slowdown = fmin(result->slowdown_replica[replica], result->slowdown_stage[stage]),
        };
        sorted[i] = &result->workers[i];
    }
    qsort(sorted, count, sizeof(struct dp_replay_worker *), compare_workers);
    for (size_t i = 0; i < (count * fixed_percent + 99) / 100; i++) {
        sorted[i]->fixed = true;
    }
}

static double share(const struct study *study, double fixed_s)
{
    double lost = study->replayed_s - study->ideal_s;
    return lost == 0 ? NAN : (study->replayed_s - fixed_s) / lost;
}

static void study_shares(struct study *study, struct dp_replay_result *result)
{
    size_t count = (size_t)study->table.replicas * (size_t)study->table.stages;
    DP_AUTO_FREE bool *fixed = dp_new_array(bool, count);
    for (size_t i = 0; i < count; i++) {
        fixed[i] = result->workers[i].fixed;
    }
    struct choice slowest = {.part = -1, .stage = -1, .workers = fixed};
    result->m_workers = share(study, replay_mixed(study, &slowest, true));
    struct choice last = {.part = -1, .stage = study->table.stages - 1};
    result->m_stage = share(study, replay_mixed(study, &last, true));
}

// Seconds of a step as it was measured, from the first start to the last end of anybody.
static double measured(const struct replay_table *table, size_t step)
{
    double first = INFINITY, last = -INFINITY;
    size_t replicas = (size_t)table->replicas;
    for (size_t i = 0; i < table->positions; i++) {
        for (size_t lane = step * replicas; lane < (step + 1) * replicas; lane++) {
            double start = table->start[i * table->lanes + lane];
            first = fmin(first, start);
            last = fmax(last, start + table->duration[i * table->lanes + lane]);
        }
    }
    return last - first;
}

static void study_steps(struct study *study, struct dp_replay_result *result)
{
    const struct replay_table *table = &study->table;
    struct choice all = {.part = -1, .stage = -1};
    study->ideal_s = replay_mixed(study, &all, true);
    for (size_t i = 0; i < table->steps; i++) {
        result->steps[i].step = table->step[i];
        result->steps[i].measured = measured(table, i);
        result->steps[i].ideal = study->steps[i];
        result->measured_s += result->steps[i].measured / (double)table->steps;
    }
    study->replayed_s = replay_mixed(study, &all, false);
    for (size_t i = 0; i < table->steps; i++) {
        result->steps[i].replayed = study->steps[i];
    }
    result->replayed_s = study->replayed_s;
    result->ideal_s = study->ideal_s;
    result->slowdown = study->replayed_s / study->ideal_s;
    result->gaps = result->measured_s / study->replayed_s;
}

// A worker that is the only one, or a last stage that is the only one, explains nothing.
static dp_replay_verdict judge(const struct dp_replay_result *result)
{
    if (!(result->slowdown >= even_slowdown)) {
        return DP_REPLAY_EVEN;
    }
    bool workers = result->replicas * result->stages > 1 && result->m_workers >= most;
    bool stage = result->stages > 1 && result->m_stage >= most;
    if (workers && !(stage && result->m_stage > result->m_workers)) {
        return DP_REPLAY_BAD_WORKER;
    }
    return stage ? DP_REPLAY_UNEVEN_STAGE : DP_REPLAY_ELSEWHERE;
}

static dp_status study_init(struct study *study, const struct dp_replay_op *ops, size_t count,
                            struct dp_error *err)
{
    dp_status status = dp_replay_table_init(&study->table, ops, count, err);
    if (status == DP_OK) {
        status = dp_replay_graph_init(&study->graph, &study->table, err);
    }
    if (status != DP_OK) {
        return status;
    }
    size_t cells = study->table.positions * study->table.lanes;
    study->recorded = dp_new_array(double, cells);
    study->times = dp_new_array(double, 2 * cells);
    study->scratch = dp_new_array(double, 2 * (cells + study->table.lanes));
    study->steps = dp_new_array(double, study->table.lanes);
    dp_replay_own_times(&study->table, &study->graph, study->recorded);
    find_ideal(study);
    return DP_OK;
}

dp_status dp_replay_analyze(const struct dp_replay_op *ops, size_t count,
                            struct dp_replay_result *ret_result, struct dp_error *err)
{
    DP_CLEANUP(study_deinit) struct study study = {0};
    dp_status status = study_init(&study, ops, count, err);
    if (status != DP_OK) {
        return status;
    }
    const struct replay_table *table = &study.table;
    size_t workers = (size_t)table->replicas * (size_t)table->stages;
    struct dp_replay_result result = {
        .replicas = table->replicas,
        .stages = table->stages,
        .operations = table->positions * table->lanes,
        .slowdown_replica = dp_new_array(double, (size_t)table->replicas),
        .slowdown_stage = dp_new_array(double, (size_t)table->stages),
        .workers = dp_new_array(struct dp_replay_worker, workers),
        .steps = dp_new_array(struct dp_replay_step, table->steps),
        .step_count = table->steps,
        .steps_left_out = table->steps_left_out,
        .left_out = table->left_out,
    };
    study_steps(&study, &result);
    if (!(study.ideal_s > 0)) {
        dp_replay_result_deinit(&result);
        return dp_fail(err, DP_INVALID, "the operations take no time: nothing to compare with");
    }
    study_parts(&study, &result);
    study_replicas(&study, &result);
    rank_workers(&study, &result);
    study_shares(&study, &result);
    result.verdict = judge(&result);
    *ret_result = result;
    return DP_OK;
}

void dp_replay_result_deinit(struct dp_replay_result *result)
{
    free(result->slowdown_replica);
    free(result->slowdown_stage);
    free(result->workers);
    free(result->steps);
    *result = (struct dp_replay_result){0};
}
