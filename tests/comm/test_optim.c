#include <math.h>
#include <stdlib.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "layout.h"

DP_DEFINE_CLEANUP(cleanup_optim, struct dp_optim, dp_optim_free)
#define AUTO_OPTIM DP_CLEANUP(cleanup_optim)

static const struct dp_optimizer_spec spec = {.lr = 0.01,
                                              .lr_min = 0.001,
                                              .warmup_steps = 4,
                                              .beta1 = 0.9,
                                              .beta2 = 0.95,
                                              .eps = 1e-8,
                                              .weight_decay = 0.1};

static void the_rate_rises_linearly_then_falls_by_half_a_cosine(void **state)
{
    (void)state;
    struct dp_optimizer_spec s = {.lr = 2, .lr_min = 1, .warmup_steps = 10};
    const struct {
        int64_t step;
        double lr;
    } cases[] = {
        {1, 0.2},  {5, 1.0},  {10, 2.0}, {20, 1.8535533905932737}, // 1 + (1 + cos(pi / 4)) / 2
        {30, 1.5}, {50, 1.0}, {60, 1.0},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        assert_true(fabs(dp_optim_lr(&s, 50, cases[i].step) - cases[i].lr) < 1e-12);
    }
    s.warmup_steps = 0;
    assert_true(dp_optim_lr(&s, 1, 1) == 1.0);
    s.warmup_steps = 50;
    assert_true(dp_optim_lr(&s, 50, 50) == 2.0);
}

static void a_stable_phase_ends_in_a_straight_fall(void **state)
{
    (void)state;
    struct dp_optimizer_spec s = {
        .lr = 2, .lr_min = 0.5, .warmup_steps = 4, .schedule = "wsd", .decay_steps = 8};
    const struct {
        int64_t step;
        double lr;
    } cases[] = {{1, 0.5},     {3, 1.5},   {4, 2.0},     {5, 2.0},  {32, 2.0},
                 {33, 1.8125}, {36, 1.25}, {39, 0.6875}, {40, 0.5}, {41, 0.5}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        assert_true(fabs(dp_optim_lr(&s, 40, cases[i].step) - cases[i].lr) < 1e-12);
    }
    // Without decay_steps, the last tenth: here the last 4 of 40.
    s.decay_steps = 0;
    assert_true(dp_optim_lr(&s, 40, 36) == 2.0);
    assert_true(fabs(dp_optim_lr(&s, 40, 37) - 1.625) < 1e-12);
    // A warm-up that leaves less than the decay wants.
    s.decay_steps = 38;
    assert_true(dp_optim_lr(&s, 40, 4) == 2.0);
    assert_true(fabs(dp_optim_lr(&s, 40, 22) - 1.25) < 1e-12);
}

static void a_constant_rate_stays_after_the_warm_up(void **state)
{
    (void)state;
    struct dp_optimizer_spec s = {.lr = 3, .warmup_steps = 3, .schedule = "constant"};
    assert_true(fabs(dp_optim_lr(&s, 10, 1) - 1.0) < 1e-15);
    for (int64_t step = 3; step <= 20; step++) {
        assert_true(dp_optim_lr(&s, 10, step) == 3.0);
    }
}

static dp_status open_sharded(struct dp_transport *transport, const struct layout *layout,
                              const struct dp_optimizer_spec *with, dp_shard shard,
                              const struct held *held, struct dp_optim **ret_optim,
                              struct dp_error *err)
{
    struct dp_optim_world world = {.transport = transport,
                                   .pipeline = layout->pipeline,
                                   .data = layout->data,
                                   .expert = layout->expert,
                                   .shard = shard};
    return dp_optim_new(&world, with, 20, held->stages, held->count, 100, ret_optim, err);
}

static dp_status open_optim(struct dp_transport *transport, const struct layout *layout,
                            const struct dp_optimizer_spec *with, const struct held *held,
                            struct dp_optim **ret_optim, struct dp_error *err)
{
    return open_sharded(transport, layout, with, DP_SHARD_NONE, held, ret_optim, err);
}

#define STEPS 6

// The gradient of one element on one rank at a step. Some are large, so that clipping has to act.
static double gradient(const char *name, int64_t element, int32_t rank, int64_t step)
{
    return layout_value(name, element, (uint64_t)(1000 * step + rank)) * (step == 3 ? 50 : 1);
}

static void set_gradients(const struct held *held, int32_t rank, int64_t step)
{
    for (int32_t i = 0; i < held->count; i++) {
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(held->stages[i].stage, &count);
        void *gradients = dp_stage_gradients(held->stages[i].stage);
        for (int32_t t = 0; t < count; t++) {
            for (int64_t k = 0; k < tensors[t].count; k++) {
                element_set(held->device, gradients, tensors[t].offset + k,
                            gradient(tensors[t].name, k, rank, step));
            }
        }
    }
}

// The sum over the ranks that hold the tensor, worked out here.
static double wanted_sum(const struct layout *layout, const struct dp_optim_stage *stage,
                         const char *name, int64_t element, int64_t step)
{
    double sum = 0;
    int32_t expert = expert_of(name);
    for (int32_t rank = 0; rank < layout->pipeline * layout->data; rank++) {
        int32_t d = rank / layout->pipeline, p = rank % layout->pipeline;
        bool holds =
            p == stage->positions[0] || (stage->position_count == 2 && p == stage->positions[1]);
        if (holds && (expert < 0 || expert / (4 / layout->expert) == d % layout->expert)) {
            sum += gradient(name, element, rank, step);
        }
    }
    return sum;
}

static bool is_norm(const char *name)
{
    size_t length = strlen(name);
    return strcmp(name + length - 4, "norm") == 0;
}

// What a stage calls its embedding or its head may be one tensor of two stages.
static const char *const tied_names[] = {"embedding", "head.output"};

// The sum over both stages and all replicas, worked out here.
static double tied_sum(const struct layout *layout, int64_t element)
{
    double sum = 0;
    for (int32_t rank = 0; rank < layout->pipeline * layout->data; rank++) {
        int32_t p = rank % layout->pipeline;
        bool is_end = p == 0 || p == layout->pipeline - 1;
        for (int i = 0; i < 2 && is_end; i++) {
            bool holds = layout->is_mirrored || (i == 0) == (p == 0);
            sum += holds ? gradient(tied_names[i], element, rank, 1) : 0;
        }
    }
    return sum;
}

// The squared norm of the whole model's gradient: every tensor once, from stages of the whole
// pipeline and the experts of all of the first `expert` replicas.
static dp_status whole_norm(const struct layout *layout, int64_t step, bool is_tied,
                            double *ret_norm, struct dp_error *err)
{
    double squares = 0;
    for (int32_t d = 0; d < layout->expert; d++) {
        for (int32_t p = 0; p < layout->pipeline; p++) {
            DP_CLEANUP(held_deinit) struct held held;
            EXPECT_OK(layout_hold(layout, d * layout->pipeline + p, &held, err));
            int32_t count;
            const struct dp_tensor *tensors = dp_stage_tensors(held.stages[0].stage, &count);
            for (int32_t t = 0; t < count; t++) {
                bool is_twin = is_tied && strcmp(tensors[t].name, tied_names[1]) == 0;
                if (is_twin || (d > 0 && expert_of(tensors[t].name) < 0)) {
                    continue;
                }
                bool is_both = is_tied && strcmp(tensors[t].name, tied_names[0]) == 0;
                for (int64_t k = 0; k < tensors[t].count; k++) {
                    double sum =
                        is_both ? tied_sum(layout, k)
                                : wanted_sum(layout, &held.stages[0], tensors[t].name, k, step);
                    squares += sum * sum;
                }
            }
        }
    }
    *ret_norm = sqrt(squares);
    return DP_OK;
}

// AdamW once more, as in the paper's algorithm 2 with the rate multiplying the decay.
struct twin {
    double *w, *m, *v;
};

static void twin_update(struct twin *twin, int64_t at, double g, double decay, double lr,
                        int64_t step)
{
    twin->m[at] = 0.9 * twin->m[at] + 0.1 * g;
    twin->v[at] = 0.95 * twin->v[at] + 0.05 * g * g;
    double mhat = twin->m[at] / (1 - pow(0.9, (double)step));
    double vhat = twin->v[at] / (1 - pow(0.95, (double)step));
    twin->w[at] -= lr * (mhat / (sqrt(vhat) + 1e-8) + decay * twin->w[at]);
}

struct run {
    struct layout layout;
    uint64_t hashes[16][2]; // of every rank's shared weights of each stage in the end
    uint64_t whole[16][2];  // of all of them
    int32_t indices[16][2];
    double norms[STEPS + 1];
    int64_t moment_bytes[16];
    double clip;
    dp_shard shard;
};

// Whether this rank has the sum of a gradient, and so its moments.
static bool is_kept(const struct dp_optim *optim, int32_t stage, int64_t element)
{
    for (int32_t i = 0; i < dp_optim_range_count(optim); i++) {
        struct dp_optim_range range;
        dp_optim_range_at(optim, i, &range);
        if (range.stage == stage && range.begin <= element && element < range.end) {
            return true;
        }
    }
    return false;
}

static dp_status check_sums(const struct layout *layout, const struct held *held,
                            const struct dp_optim *optim, int64_t step, struct dp_error *err)
{
    for (int32_t i = 0; i < held->count; i++) {
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(held->stages[i].stage, &count);
        const void *gradients = dp_stage_gradients(held->stages[i].stage);
        for (int32_t t = 0; t < count; t++) {
            for (int64_t k = 0; k < tensors[t].count; k++) {
                double got = element_get(held->device, gradients, tensors[t].offset + k);
                double wanted = wanted_sum(layout, &held->stages[i], tensors[t].name, k, step);
                EXPECT(!is_kept(optim, i, tensors[t].offset + k) ||
                       fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted)));
            }
        }
    }
    return DP_OK;
}

static dp_status check_twins(const struct held *held, const struct layout *layout,
                             struct twin *twins, double scale, int64_t step, struct dp_error *err)
{
    double lr =
        step < 4 ? 0.01 * (double)step / 4
                 : 0.001 + 0.009 * (1 + cos(3.14159265358979323846 * (double)(step - 4) / 16)) / 2;
    for (int32_t i = 0; i < held->count; i++) {
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(held->stages[i].stage, &count);
        const void *weights = dp_stage_weights(held->stages[i].stage);
        const void *gradients = dp_stage_gradients(held->stages[i].stage);
        for (int32_t t = 0; t < count; t++) {
            for (int64_t k = 0; k < tensors[t].count; k++) {
                int64_t at = tensors[t].offset + k;
                double sum = wanted_sum(layout, &held->stages[i], tensors[t].name, k, step);
                twin_update(&twins[i], at, scale * sum, is_norm(tensors[t].name) ? 0 : 0.1, lr,
                            step);
                EXPECT(fabs(element_get(held->device, weights, at) - twins[i].w[at]) < 1e-9);
                EXPECT(element_get(held->device, gradients, at) == 0);
            }
        }
    }
    return DP_OK;
}

static dp_status train_rank(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct run *run = context;
    const struct layout *layout = &run->layout;
    int32_t rank = dp_transport_rank(transport);
    struct dp_optimizer_spec with = spec;
    with.grad_clip = run->clip;
    DP_CLEANUP(held_deinit) struct held held;
    EXPECT_OK(layout_hold(layout, rank, &held, err));
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_sharded(transport, layout, &with, run->shard, &held, &optim, err));
    run->moment_bytes[rank] = dp_optim_moment_bytes(optim);
    struct twin twins[2] = {{0}};
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    for (int32_t i = 0; i < held.count; i++) {
        int64_t count = dp_stage_parameter_count(held.stages[i].stage);
        double **parts[3] = {&twins[i].w, &twins[i].m, &twins[i].v};
        for (int part = 0; part < 3; part++) {
            *parts[part] = dp_arena_alloc(&arena, (size_t)count * sizeof(double));
        }
        for (int64_t k = 0; k < count; k++) {
            twins[i].w[k] = element_get(held.device, dp_stage_weights(held.stages[i].stage), k);
        }
    }
    for (int64_t step = 1; step <= STEPS; step++) {
        set_gradients(&held, rank, step);
        EXPECT_OK(dp_optim_sum_gradients(optim, err));
        EXPECT_OK(check_sums(layout, &held, optim, step, err));
        struct dp_optim_report report;
        EXPECT_OK(dp_optim_step(optim, step, &report, err));
        double norm;
        EXPECT_OK(whole_norm(layout, step, false, &norm, err));
        EXPECT(fabs(report.grad_norm - norm) < 1e-10 * norm);
        if (rank == 0) {
            run->norms[step] = report.grad_norm;
        }
        double scale = run->clip > 0 && norm > run->clip ? run->clip / norm : 1;
        EXPECT(fabs(report.grad_scale - scale) < 1e-10);
        EXPECT_OK(check_twins(&held, layout, twins, scale, step, err));
    }
    for (int32_t i = 0; i < held.count; i++) {
        size_t shared = (size_t)dp_stage_expert_offset(held.stages[i].stage);
        run->hashes[rank][i] = dp_hash64(dp_stage_weights(held.stages[i].stage),
                                         shared * dp_element_bytes(layout->element), 0);
        run->whole[rank][i] = dp_hash64(dp_stage_weights(held.stages[i].stage),
                                        (size_t)dp_stage_parameter_count(held.stages[i].stage) *
                                            dp_element_bytes(layout->element),
                                        0);
        run->indices[rank][i] = held.stages[i].index;
    }
    return DP_OK;
}

static const struct layout layouts[] = {
    {1, 1, 1, false, DP_F64}, {2, 1, 1, false, DP_F64}, {1, 2, 1, false, DP_F64},
    {1, 2, 2, false, DP_F64}, {2, 2, 1, true, DP_F64},  {2, 2, 2, true, DP_F64},
    {1, 4, 2, false, DP_F64}, {4, 1, 1, true, DP_F64},
};

static void every_layout_sums_clips_and_updates_as_a_second_implementation(void **state)
{
    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        struct run run = {.layout = layouts[i], .clip = 30};
        int32_t world = run.layout.pipeline * run.layout.data;
        cluster_run((cluster_kind)(i % CLUSTER_KINDS), world, train_rank, &run);
        int32_t held = run.layout.is_mirrored ? 2 : 1;
        // All copies of a stage's shared tensors are alike to the last bit.
        for (int32_t a = 0; a < world * held; a++) {
            for (int32_t b = 0; b < a; b++) {
                if (run.indices[a / held][a % held] == run.indices[b / held][b % held]) {
                    assert_true(run.hashes[a / held][a % held] == run.hashes[b / held][b % held]);
                }
            }
        }
    }
}

// Every copy of every weight, and the norms, to the last bit; the moments of all ranks together
// are one of each kind for each parameter of the model.
static void sharded_moments_give_the_bits_of_whole_ones(void **state)
{
    (void)state;
    struct dp_model_spec model = layout_model();
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        struct run whole = {.layout = layouts[i], .clip = 30};
        struct run sharded = {.layout = layouts[i], .clip = 30, .shard = DP_SHARD_ZERO1};
        int32_t world = whole.layout.pipeline * whole.layout.data;
        cluster_run(CLUSTER_LOOPBACK, world, train_rank, &whole);
        cluster_run((cluster_kind)((i + 1) % CLUSTER_KINDS), world, train_rank, &sharded);
        int64_t bytes = 0;
        for (int32_t rank = 0; rank < world; rank++) {
            bytes += sharded.moment_bytes[rank];
            assert_true(sharded.moment_bytes[rank] <= whole.moment_bytes[rank]);
            for (int32_t k = 0; k < (whole.layout.is_mirrored ? 2 : 1); k++) {
                assert_true(whole.whole[rank][k] == sharded.whole[rank][k]);
            }
        }
        assert_int_equal(bytes, 2 * (int64_t)sizeof(double) * dp_model_parameters(&model));
        assert_memory_equal(whole.norms, sharded.norms, sizeof whole.norms);
    }
}

// What checkpoints are made from.
struct covered {
    struct layout layout;
    dp_shard shard;
    int64_t written[16];
};

static dp_status count_written(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct covered *covered = context;
    int32_t rank = dp_transport_rank(transport);
    DP_CLEANUP(held_deinit) struct held held;
    EXPECT_OK(layout_hold(&covered->layout, rank, &held, err));
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_sharded(transport, &covered->layout, &spec, covered->shard, &held, &optim, err));
    int64_t kept = 0;
    for (int32_t i = 0; i < dp_optim_range_count(optim); i++) {
        struct dp_optim_range range;
        dp_optim_range_at(optim, i, &range);
        EXPECT(range.begin >= 0 && range.begin <= range.end);
        EXPECT(range.end <= dp_stage_parameter_count(held.stages[range.stage].stage));
        kept += range.end - range.begin;
        covered->written[rank] += range.writes ? range.end - range.begin : 0;
    }
    EXPECT(kept * 16 == dp_optim_moment_bytes(optim));
    // By the device's own account.
    EXPECT((uint64_t)kept * 16 == dp_device_memory(held.device).tag_live[DP_MEMORY_MOMENTS]);
    return DP_OK;
}

static void ranges_that_are_written_cover_the_model_once(void **state)
{
    (void)state;
    struct dp_model_spec model = layout_model();
    for (size_t i = 0; i < 2 * DP_ARRAY_LENGTH(layouts); i++) {
        struct covered covered = {.layout = layouts[i / 2],
                                  .shard = i % 2 == 0 ? DP_SHARD_NONE : DP_SHARD_ZERO1};
        int32_t world = covered.layout.pipeline * covered.layout.data;
        cluster_run(CLUSTER_LOOPBACK, world, count_written, &covered);
        int64_t written = 0;
        for (int32_t rank = 0; rank < world; rank++) {
            written += covered.written[rank];
        }
        assert_int_equal(written, dp_model_parameters(&model));
    }
}

struct tie {
    struct layout layout;
    dp_shard shard;
    uint64_t hashes[16][2];
    double norm;
};

static struct dp_tensor *tie_tensor(struct dp_stage *stage)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t t = 0; t < count; t++) {
        for (int i = 0; i < 2; i++) {
            if (strcmp(tensors[t].name, tied_names[i]) == 0) {
                struct dp_tensor *tensor = (struct dp_tensor *)&tensors[t];
                tensor->is_tied = true;
                return tensor;
            }
        }
    }
    return NULL;
}

static dp_status train_tied(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct tie *tie = context;
    const struct layout *layout = &tie->layout;
    int32_t rank = dp_transport_rank(transport);
    const int32_t ends[] = {0, layout->pipeline - 1};
    DP_CLEANUP(held_deinit) struct held held;
    EXPECT_OK(layout_hold(layout, rank, &held, err));
    struct dp_tensor *tensors[2] = {NULL};
    for (int32_t i = 0; i < held.count; i++) {
        tensors[i] = tie_tensor(held.stages[i].stage);
        held.stages[i].tied_positions = ends;
        held.stages[i].tied_position_count = 2;
        for (int64_t k = 0; tensors[i] != NULL && k < tensors[i]->count; k++) {
            element_set(held.device, dp_stage_weights(held.stages[i].stage), tensors[i]->offset + k,
                        layout_value("tied", k, 0));
        }
    }
    struct dp_optimizer_spec with = spec;
    with.warmup_steps = 0;
    with.lr_min = with.lr;
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_sharded(transport, layout, &with, tie->shard, &held, &optim, err));
    set_gradients(&held, rank, 1);
    EXPECT_OK(dp_optim_sum_gradients(optim, err));
    struct dp_optim_report report;
    EXPECT_OK(dp_optim_step(optim, 1, &report, err));
    if (rank == 0) {
        tie->norm = report.grad_norm;
    }
    double norm;
    EXPECT_OK(whole_norm(layout, 1, true, &norm, err));
    EXPECT(fabs(report.grad_norm - norm) < 1e-10 * norm);
    for (int32_t i = 0; i < held.count; i++) {
        const void *weights = dp_stage_weights(held.stages[i].stage);
        for (int64_t k = 0; tensors[i] != NULL && k < tensors[i]->count; k++) {
            // The first step: by the rate, against the sign of the gradient.
            double g = tied_sum(layout, k), before = layout_value("tied", k, 0);
            double wanted = before * (1 - 0.01 * 0.1) - 0.01 * g / (fabs(g) + 1e-8);
            EXPECT(fabs(element_get(held.device, weights, tensors[i]->offset + k) - wanted) < 1e-9);
        }
        tie->hashes[rank][i] =
            tensors[i] == NULL ? 0
                               : dp_hash64((const char *)weights + (size_t)tensors[i]->offset * 8,
                                           (size_t)tensors[i]->count * 8, 0);
    }
    return DP_OK;
}

static void a_tied_tensor_has_one_gradient_and_alike_copies_in_both_stages(void **state)
{
    (void)state;
    static const struct layout tied_layouts[] = {{2, 1, 1, false, DP_F64},
                                                 {2, 2, 1, true, DP_F64},
                                                 {4, 2, 2, true, DP_F64},
                                                 {4, 1, 1, false, DP_F64}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(tied_layouts); i++) {
        struct tie whole = {.layout = tied_layouts[i]};
        struct tie sharded = {.layout = tied_layouts[i], .shard = DP_SHARD_ZERO1};
        int32_t world = whole.layout.pipeline * whole.layout.data;
        cluster_run(CLUSTER_LOOPBACK, world, train_tied, &whole);
        cluster_run(CLUSTER_LOOPBACK, world, train_tied, &sharded);
        assert_true(whole.norm == sharded.norm);
        assert_memory_equal(whole.hashes, sharded.hashes, sizeof whole.hashes);
        for (int32_t at = 0; at < 2 * world; at++) {
            uint64_t hash = whole.hashes[at / 2][at % 2];
            assert_true(hash == 0 || hash == whole.hashes[0][0]);
        }
    }
}

static dp_status keep_moments(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct layout *layout = context;
    int32_t rank = dp_transport_rank(transport);
    struct dp_optimizer_spec with = spec;
    DP_COPY_TEXT(with.moments, "bf16");
    DP_CLEANUP(held_deinit) struct held held;
    EXPECT_OK(layout_hold(layout, rank, &held, err));
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_sharded(transport, layout, &with, DP_SHARD_ZERO1, &held, &optim, err));
    set_gradients(&held, rank, 1);
    EXPECT_OK(dp_optim_sum_gradients(optim, err));
    struct dp_optim_report report;
    EXPECT_OK(dp_optim_step(optim, 1, &report, err));
    void *m[2] = {NULL}, *v[2] = {NULL}, *m_again[2] = {NULL}, *v_again[2] = {NULL};
    EXPECT_OK(dp_optim_gather_moments(optim, m, v, err));
    for (int32_t i = 0; i < held.count; i++) {
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(held.stages[i].stage, &count);
        for (int32_t t = 0; t < count; t++) {
            for (int64_t k = 0; k < tensors[t].count; k++) {
                double g = wanted_sum(layout, &held.stages[i], tensors[t].name, k, 1);
                double got_m = element_get(held.device, m[i], tensors[t].offset + k);
                double got_v = element_get(held.device, v[i], tensors[t].offset + k);
                // 8 bits of significand, rounded to nearest.
                EXPECT(fabs(got_m - 0.1 * g) <= 0x1.01p-8 * fabs(0.1 * g));
                EXPECT(fabs(got_v - 0.05 * g * g) <= 0x1.01p-8 * (0.05 * g * g));
            }
        }
        dp_optim_set_moments(optim, i, m[i], v[i]);
    }
    EXPECT_OK(dp_optim_gather_moments(optim, m_again, v_again, err));
    for (int32_t i = 0; i < held.count; i++) {
        size_t bytes = (size_t)dp_stage_parameter_count(held.stages[i].stage) * sizeof(double);
        EXPECT(memcmp(m[i], m_again[i], bytes) == 0 && memcmp(v[i], v_again[i], bytes) == 0);
        for (size_t k = 0; k < bytes / sizeof(double); k++) {
            ((double *)m[i])[k] = layout_value("any", (int64_t)k, 0);
        }
        dp_optim_set_moments(optim, i, m[i], v[i]);
        held.device->ops->free(held.device, m_again[i]);
        held.device->ops->free(held.device, v_again[i]);
    }
    EXPECT_OK(dp_optim_gather_moments(optim, m_again, v_again, err));
    for (int32_t i = 0; i < held.count; i++) {
        for (int64_t k = 0; k < dp_stage_parameter_count(held.stages[i].stage); k++) {
            double set = ((double *)m[i])[k], got = ((double *)m_again[i])[k];
            EXPECT(fabs(got - set) <= 0x1.01p-8 * fabs(set));
        }
        void *buffers[] = {m[i], v[i], m_again[i], v_again[i]};
        for (int b = 0; b < 4; b++) {
            held.device->ops->free(held.device, buffers[b]);
        }
    }
    return DP_OK;
}

static void moments_in_bf16_are_gathered_whole_and_taken_back(void **state)
{
    (void)state;
    struct layout mirrored = {2, 2, 2, true, DP_F64};
    cluster_run(CLUSTER_LOOPBACK, 4, keep_moments, &mirrored);
    struct layout replicas = {1, 4, 2, false, DP_F64};
    cluster_run(CLUSTER_LOOPBACK, 4, keep_moments, &replicas);
}

static void without_a_limit_nothing_is_clipped(void **state)
{
    (void)state;
    struct run run = {.layout = layouts[5], .clip = 0};
    cluster_run(CLUSTER_LOOPBACK, 4, train_rank, &run);
}

// The first step by hand: both bias corrections cancel, so that every weight moves by the rate
// times the sign of its gradient (up to eps), after shrinking by rate * decay.
static void the_first_step_is_the_sign_of_the_gradient(void **state)
{
    (void)state;
    struct dp_transport *transport;
    dp_transport_loopback(1, &transport);
    struct layout layout = {1, 1, 1, false, DP_F64};
    struct dp_error err = {0};
    struct held held;
    struct dp_optim *optim;
    assert_ok(layout_hold(&layout, 0, &held, &err), &err);
    struct dp_optimizer_spec with = spec;
    with.warmup_steps = 0;
    with.lr_min = with.lr;
    assert_ok(open_optim(transport, &layout, &with, &held, &optim, &err), &err);
    struct dp_stage *stage = held.stages[0].stage;
    int32_t tensor_count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &tensor_count);
    int64_t count = dp_stage_parameter_count(stage);
    double *weights = dp_stage_weights(stage), *gradients = dp_stage_gradients(stage);
    DP_AUTO_FREE double *before = dp_memdup(weights, (size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        gradients[i] = i % 3 == 0 ? 2.5 : -0.75;
    }
    struct dp_optim_report report;
    assert_ok(dp_optim_sum_gradients(optim, &err), &err);
    assert_ok(dp_optim_step(optim, 1, &report, &err), &err);
    assert_true(report.lr == 0.01 && report.grad_scale == 1);
    for (int32_t t = 0; t < tensor_count; t++) {
        double shrink = is_norm(tensors[t].name) ? 1 : 1 - 0.01 * 0.1;
        for (int64_t i = tensors[t].offset; i < tensors[t].offset + tensors[t].count; i++) {
            double wanted = before[i] * shrink - (i % 3 == 0 ? 0.01 : -0.01);
            assert_true(fabs(weights[i] - wanted) < 1e-9);
        }
    }
    dp_optim_free(optim);
    held_deinit(&held);
    dp_transport_free(transport);
}

static dp_status poisoned(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct layout *layout = context;
    int32_t rank = dp_transport_rank(transport);
    DP_CLEANUP(held_deinit) struct held held;
    EXPECT_OK(layout_hold(layout, rank, &held, err));
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_optim(transport, layout, &spec, &held, &optim, err));
    set_gradients(&held, rank, 1);
    // Rank 3 is replica 1 of position 1 and holds experts 2 and 3 of layers 2 and 3.
    const char *bad = "layers.3.experts.2.down";
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(held.stages[0].stage, &count);
    for (int32_t t = 0; t < count && rank == 3; t++) {
        if (strcmp(tensors[t].name, bad) == 0) {
            element_set(held.device, dp_stage_gradients(held.stages[0].stage),
                        tensors[t].offset + 7, (double)NAN);
        }
    }
    const void *weights = dp_stage_weights(held.stages[0].stage);
    size_t bytes =
        (size_t)dp_stage_parameter_count(held.stages[0].stage) * dp_element_bytes(layout->element);
    uint64_t before = dp_hash64(weights, bytes, 0);
    EXPECT_OK(dp_optim_sum_gradients(optim, err));
    struct dp_optim_report report;
    struct dp_error got = {0};
    dp_status status = dp_optim_step(optim, 1, &report, &got);
    EXPECT_REFUSED(status, DP_JOB_FAILED, &got,
                   rank == 3 ? "step 1: the gradient of layers.3.experts.2.down (stage 1) is NaN"
                             : "a gradient that other ranks hold is NaN");
    EXPECT(dp_hash64(weights, bytes, 0) == before);
    return DP_OK;
}

static void a_gradient_that_is_not_finite_stops_all_ranks_and_is_named(void **state)
{
    (void)state;
    struct layout layout = {2, 2, 2, false, DP_F32};
    cluster_run(CLUSTER_LOOPBACK, 4, poisoned, &layout);
}

static dp_status owners(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct layout *layout = context;
    int32_t rank = dp_transport_rank(transport), d = rank / 2, p = rank % 2;
    DP_CLEANUP(held_deinit) struct held held;
    EXPECT_OK(layout_hold(layout, rank, &held, err));
    AUTO_OPTIM struct dp_optim *optim = NULL;
    EXPECT_OK(open_optim(transport, layout, &spec, &held, &optim, err));
    for (int32_t i = 0; i < 2; i++) {
        bool shared, experts;
        dp_optim_owns(optim, i, &shared, &experts);
        // Both stages are held by both positions: the lower one stands for them.
        EXPECT(shared == (d == 0 && p == 0));
        EXPECT(experts == (d < 2 && p == 0));
    }
    return DP_OK;
}

static void one_rank_stands_for_each_tensor(void **state)
{
    (void)state;
    struct layout layout = {2, 4, 2, true, DP_F32};
    cluster_run(CLUSTER_LOOPBACK, 8, owners, &layout);
}

static void a_world_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct dp_transport *ends[2];
    dp_transport_loopback(2, ends);
    struct dp_optim *optim;
    struct dp_error err = {0};
    struct dp_optim_world world = {ends[0], 2, 2, 1, DP_SHARD_NONE};
    dp_status status = dp_optim_new(&world, &spec, 1, NULL, 0, 1, &optim, &err);
    assert_refused(status, DP_INVALID, &err, "does not make a world of 2 ranks");
    world = (struct dp_optim_world){ends[0], 1, 2, 3, DP_SHARD_NONE};
    status = dp_optim_new(&world, &spec, 1, NULL, 0, 1, &optim, &err);
    assert_refused(status, DP_INVALID, &err, "expert 3");
    dp_transport_free(ends[0]);
    dp_transport_free(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rate_rises_linearly_then_falls_by_half_a_cosine),
        cmocka_unit_test(a_stable_phase_ends_in_a_straight_fall),
        cmocka_unit_test(a_constant_rate_stays_after_the_warm_up),
        cmocka_unit_test(sharded_moments_give_the_bits_of_whole_ones),
        cmocka_unit_test(ranges_that_are_written_cover_the_model_once),
        cmocka_unit_test(a_tied_tensor_has_one_gradient_and_alike_copies_in_both_stages),
        cmocka_unit_test(moments_in_bf16_are_gathered_whole_and_taken_back),
        cmocka_unit_test(every_layout_sums_clips_and_updates_as_a_second_implementation),
        cmocka_unit_test(without_a_limit_nothing_is_clipped),
        cmocka_unit_test(the_first_step_is_the_sign_of_the_gradient),
        cmocka_unit_test(a_gradient_that_is_not_finite_stops_all_ranks_and_is_named),
        cmocka_unit_test(one_rank_stands_for_each_tensor),
        cmocka_unit_test(a_world_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
