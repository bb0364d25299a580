// What the memory model says of a rank against what its device has counted in a run: weights with
// their copies, gradients, moments, activations, room that is shared, windows.
#include <math.h>
#include <stdlib.h>

#include "dp/check.h"
#include "dp/rand.h"
#include "dp/rank_memory.h"
#include "dp_test.h"
#include "exec_harness.h"

// Latent attention, with or without a latent of queries, or norms of queries and keys with sinks.
static void vary_attention(struct dp_rand *rand, struct dp_model_spec *model)
{
    if (dp_rand_below(rand, 3) > 0) {
        model->mla_kv_rank = 32 + 32 * (int32_t)dp_rand_below(rand, 2);
        model->mla_q_rank = 48 * (int32_t)dp_rand_below(rand, 2);
        model->mla_nope_dim = 16 + 16 * (int32_t)dp_rand_below(rand, 2);
        model->mla_rope_dim = 16;
        model->mla_v_dim = 32;
        model->kv_heads = model->heads;
    } else {
        model->qk_norm = 1;
        model->sinks = 1;
    }
}

// Wide enough that single numbers weigh nothing. Where every token goes to all experts, routing is
// balanced.
static struct dp_model_spec model_of(struct dp_rand *rand, int32_t layers)
{
    struct dp_model_spec model = {.name = "wide",
                                  .layers = layers,
                                  .dense_layers = (int32_t)dp_rand_below(rand, 3),
                                  .hidden = 128,
                                  .heads = 4,
                                  .kv_heads = dp_rand_below(rand, 2) == 0 ? 4 : 2,
                                  .head_dim = 32,
                                  .ffn = 128 + 64 * (int32_t)dp_rand_below(rand, 5),
                                  .experts = 4,
                                  .top_k = 4,
                                  .shared_experts = (int32_t)dp_rand_below(rand, 2),
                                  .expert_ffn = 32 + 32 * (int32_t)dp_rand_below(rand, 3),
                                  .vocabulary = 256,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-5};
    if (dp_rand_below(rand, 2) == 0) {
        model.shared_gate = model.shared_experts;
        vary_attention(rand, &model);
    }
    if (dp_rand_below(rand, 3) == 0) {
        model.top_k = 2;
        model.bias_update = 1e-6; // routers have biases, which a test may tilt
    }
    model.mtp_layers = (int32_t)dp_rand_below(rand, 2);
    model.tied_embedding = (int32_t)dp_rand_below(rand, 2);
    return model;
}

static struct trial random_trial(struct dp_rand *rand)
{
    static const char *const schedules[] = {"gpipe",    "1f1b",      "zb-h1",
                                            "dualpipe", "dualpipev", "interleaved"};
    static const uint32_t recomputes[] = {0,
                                          DP_RECOMPUTE_NORM,
                                          DP_RECOMPUTE_NORM | DP_RECOMPUTE_ACTIVATION,
                                          DP_RECOMPUTE_EXPERTS,
                                          DP_RECOMPUTE_ATTENTION | DP_RECOMPUTE_EXPERTS,
                                          DP_RECOMPUTE_UP,
                                          DP_RECOMPUTE_UP | DP_RECOMPUTE_NORM |
                                              DP_RECOMPUTE_ACTIVATION,
                                          DP_RECOMPUTE_FULL};
    struct trial trial = trial_default();
    trial.steps = 2;
    trial.schedule = schedules[dp_rand_below(rand, DP_ARRAY_LENGTH(schedules))];
    trial.pipeline = 1 << dp_rand_below(rand, 3);
    trial.pipeline = trial.schedule[0] == 'g' || trial.pipeline > 1 ? trial.pipeline : 2;
    trial.layers = 8;
    trial.microbatches = 8;
    trial.micro_batch_size = 1 + (int32_t)dp_rand_below(rand, 8);
    trial.element = dp_rand_below(rand, 2) == 0 ? DP_F32 : DP_BF16;
    trial.fp8 = trial.element == DP_BF16 && dp_rand_below(rand, 2) == 0;
    trial.save_fp8 = dp_rand_below(rand, 3) == 0;
    trial.recompute = recomputes[dp_rand_below(rand, DP_ARRAY_LENGTH(recomputes))];
    trial.offload = dp_rand_below(rand, 3) == 0 ? (uint32_t)dp_rand_below(rand, 16) : 0;
    trial.data = 1 << dp_rand_below(rand, trial.pipeline > 2 ? 2 : 3);
    trial.expert = 1 << dp_rand_below(rand, trial.data > 2 ? 3 : trial.data);
    trial.alltoall = trial.expert > 1;
    trial.nodes = trial.expert == 4 && dp_rand_below(rand, 2) == 0 ? 2 : 1;
    trial.tilt = 0.05 * (double)dp_rand_below(rand, 4);
    trial.threads = 1 + (int32_t)dp_rand_below(rand, 2);
    trial.expert_copies = trial.expert > 1 ? (int32_t)dp_rand_below(rand, 3) : 0;
    trial.shard = dp_rand_below(rand, 2) == 0 ? DP_SHARD_ZERO1 : DP_SHARD_NONE;
    trial.no_overlap = dp_rand_below(rand, 2) == 0;
    trial.bf16_moments = dp_rand_below(rand, 2) == 0;
    return trial;
}

// What a micro-batch brought to the experts of a layer of the stage, on average over the layers
// and over the micro-batches of the fullest step.
static struct dp_cost_routed measured(const struct trial *trial, const struct trial_rank *rank,
                                      int32_t stage, int32_t layers)
{
    struct dp_cost_routed most = {0, 0, 0};
    for (int64_t step = 1; step <= trial->steps; step++) {
        struct dp_cost_routed sum = {0, 0, 0};
        double chunks = 0;
        for (size_t i = 0; i < rank->records_count; i++) {
            const struct dp_exec_record *record = &rank->records[i];
            bool is_forward = record->span.kind == DP_ACTION_F || record->span.kind == DP_ACTION_FB;
            if (is_forward && record->span.stage == stage && record->span.step == step) {
                sum.tokens += (double)record->routed_tokens;
                sum.rows += (double)record->routed_rows;
                chunks++;
            }
        }
        sum.tokens /= chunks * layers;
        sum.rows /= chunks * layers;
        most = sum.rows > most.rows ? sum : most;
    }
    return most;
}

// Of all layers of the model; those of other ranks stay without.
static void measure(const struct trial *trial, const struct dp_schedule *schedule,
                    const struct trial_rank *rank, int32_t position,
                    struct dp_cost_routed *ret_routed)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, position, stages);
    for (int32_t i = 0; i < count; i++) {
        int32_t begin = trial_layer_begin(trial, schedule, stages[i]);
        int32_t end = trial_layer_begin(trial, schedule, stages[i] + 1);
        int32_t first = begin > trial->model->dense_layers ? begin : trial->model->dense_layers;
        for (int32_t layer = first; layer < end; layer++) {
            ret_routed[layer] = measured(trial, rank, stages[i], end - first);
        }
        // The rows of MTP's layer are not in the records.
        if (stages[i] == schedule->stages - 1) {
            ret_routed[trial->layers] = ret_routed[trial->layers - 1];
        }
    }
}

static void predict(const struct trial *trial, const struct dp_schedule *schedule, int32_t position,
                    const struct dp_cost_routed *routed, bool least,
                    struct dp_memory_parts *ret_parts)
{
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    dp_profile_set_cpu_format(&profile,
                              trial->fp8                  ? DP_FORMAT_FP8_BLOCK
                              : trial->element == DP_BF16 ? DP_FORMAT_BF16
                                                          : DP_FORMAT_FP32,
                              trial->bf16_moments ? DP_MOMENTS_BF16 : DP_MOMENTS_FP32);
    int32_t begin[64];
    for (int32_t i = 0; i <= schedule->stages; i++) {
        begin[i] = trial_layer_begin(trial, schedule, i);
    }
    const struct dp_rank_memory memory = {.model = trial->model,
                                          .profile = &profile,
                                          .schedule = schedule,
                                          .layer_begin = begin,
                                          .batch = {.samples = trial->micro_batch_size,
                                                    .sequence = TRIAL_SEQUENCE,
                                                    .ep_size = trial->expert,
                                                    .ep_nodes = trial->nodes,
                                                    .recompute = trial->recompute,
                                                    .offload = trial->offload,
                                                    .save_fp8 = trial->save_fp8,
                                                    .fp8 = trial->fp8,
                                                    .threads = trial->threads},
                                          .routed = routed,
                                          .data = trial->data,
                                          .expert_copies = trial->expert_copies,
                                          .is_sharded = trial->shard == DP_SHARD_ZERO1,
                                          .no_overlap = trial->no_overlap,
                                          .least = least};
    dp_rank_memory_parts(&memory, position, ret_parts, NULL);
}

static void tell(const struct trial *trial, int32_t rank, const struct dp_memory_parts *parts,
                 const struct dp_device_memory *memory)
{
    print_message("%s P%d D%d E%d N%d k%d copies %d tilt %.2f mbs %d %s%s%s recompute %u offload "
                  "%u %s%s%s rank %d: %+.2f %%\n",
                  trial->schedule, trial->pipeline, trial->data, trial->expert, trial->nodes,
                  trial->model->top_k, trial->expert_copies, trial->tilt, trial->micro_batch_size,
                  trial->element == DP_BF16 ? "bf16" : "fp32", trial->fp8 ? " fp8" : "",
                  trial->save_fp8 ? " save_fp8" : "", trial->recompute, trial->offload,
                  trial->shard == DP_SHARD_ZERO1 ? "zero1" : "none",
                  trial->bf16_moments ? " bf16 moments" : "",
                  trial->no_overlap ? " no overlap" : "", rank,
                  100 * (dp_memory_total(parts) / (double)memory->peak - 1));
    const double chunks = parts->activations + parts->deferred + parts->transient;
    print_message("  weights %.0f/%lu gradients %.0f/%lu moments %.0f/%lu activations %.0f/%lu "
                  "buffers %.0f/%lu+%lu\n",
                  parts->weights, memory->at_peak[DP_MEMORY_WEIGHTS], parts->gradients,
                  memory->at_peak[DP_MEMORY_GRADIENTS], parts->optimizer,
                  memory->at_peak[DP_MEMORY_MOMENTS], chunks,
                  memory->at_peak[DP_MEMORY_ACTIVATIONS], parts->exchange,
                  memory->at_peak[DP_MEMORY_SCRATCH], memory->at_peak[DP_MEMORY_WINDOWS]);
}

// What a rank holds when its waits are filled with weight gradients that are due is between the two
// predictions. Lists without them, and ranks that wait for nobody, have one.
static void expect_near(const struct trial *trial, const struct trial_result *result, int32_t rank,
                        uint64_t run)
{
    struct dp_memory_parts least, most;
    struct dp_cost_routed routed[16] = {0};
    const int32_t position = rank % trial->pipeline;
    const double peak = (double)result->ranks[rank].memory.peak;
    measure(trial, &result->schedule, &result->ranks[rank], position, routed);
    predict(trial, &result->schedule, position, routed, true, &least);
    predict(trial, &result->schedule, position, routed, false, &most);
    const double below = dp_memory_total(&least) / peak - 1,
                 above = dp_memory_total(&most) / peak - 1;
    if (below > 0.03 || above < -0.03) {
        tell(trial, rank, &most, &result->ranks[rank].memory);
        fail_msg("run %lu: predicted %+.2f %% to %+.2f %% of what was measured", run, 100 * below,
                 100 * above);
    }
}

static void predicted_and_measured_peaks_of_ranks_agree_within_three_percent(void **state)
{
    (void)state;
    struct dp_rand rand;
    for (uint64_t run = 0; run < (uint64_t)dp_fuzz_runs(TRIAL_UNDER_TSAN ? 2 : 12); run++) {
        dp_rand_init(&rand, dp_rand_mix(77, run));
        struct trial trial = random_trial(&rand);
        const struct dp_model_spec model = model_of(&rand, trial.layers);
        trial.model = &model;
        struct trial_result result;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        for (int32_t rank = 0; rank < result.world; rank++) {
            expect_near(&trial, &result, rank, run);
        }
        trial_result_deinit(&result);
    }
}

// One choice on a rank that is otherwise alike: one rank, or two replicas that share what can be
// shared.
struct choice {
    const char *name;
    uint32_t recompute, offload;
    bool is_bf16, is_fp8, saves_fp8, bf16_moments, zero1, mtp, tied, copies;
    bool is_wide;   // of vocabulary, in bf16
    bool has_peers; // EP peers, with the choice and without
};

static struct dp_model_spec model_with(const struct choice *choice)
{
    struct dp_model_spec model = {.name = "wide",
                                  .layers = 4,
                                  .dense_layers = 1,
                                  .hidden = 128,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .head_dim = 32,
                                  .mla_q_rank = 48,
                                  .mla_kv_rank = 32,
                                  .mla_nope_dim = 32,
                                  .mla_rope_dim = 16,
                                  .mla_v_dim = 32,
                                  .ffn = 320,
                                  .experts = 4,
                                  .top_k = 4,
                                  .shared_experts = 1,
                                  .expert_ffn = 64,
                                  .vocabulary = choice->is_wide ? 4096 : 512,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-5};
    model.mtp_layers = choice->mtp;
    model.tied_embedding = choice->tied;
    return model;
}

static void peak_of(const struct choice *choice, bool is_made, double *ret_predicted,
                    double *ret_measured)
{
    const struct choice none = {.is_bf16 = choice->is_fp8 || choice->is_wide,
                                .has_peers = choice->has_peers};
    const struct choice *made = is_made ? choice : &none;
    const struct dp_model_spec model = model_with(made);
    struct trial trial = trial_default();
    trial.steps = 1;
    trial.layers = model.layers;
    trial.microbatches = 4;
    trial.micro_batch_size = 4;
    trial.model = &model;
    trial.nodes = trial.threads = 1;
    trial.data = choice->zero1 || choice->copies ? 2 : 1;
    trial.expert = choice->copies || choice->has_peers ? 2 : 1;
    trial.alltoall = trial.expert > 1;
    trial.element = made->is_bf16 || made->is_fp8 || made->is_wide ? DP_BF16 : DP_F32;
    trial.fp8 = made->is_fp8;
    trial.save_fp8 = made->saves_fp8;
    trial.recompute = made->recompute;
    trial.offload = made->offload;
    trial.shard = made->zero1 ? DP_SHARD_ZERO1 : DP_SHARD_NONE;
    trial.bf16_moments = made->bf16_moments;
    trial.expert_copies = made->copies;
    struct trial_result result;
    struct dp_memory_parts parts;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    predict(&trial, &result.schedule, 0, NULL, false, &parts);
    *ret_predicted = dp_memory_total(&parts);
    *ret_measured = (double)result.ranks[0].memory.peak;
    trial_result_deinit(&result);
}

static void every_choice_changes_the_peak_by_what_is_predicted(void **state)
{
    (void)state;
    const struct choice choices[] = {
        {.name = "norms computed again", .recompute = DP_RECOMPUTE_NORM},
        {.name = "projections up computed again", .recompute = DP_RECOMPUTE_UP},
        {.name = "activations computed again", .recompute = DP_RECOMPUTE_ACTIVATION},
        {.name = "attention computed again", .recompute = DP_RECOMPUTE_ATTENTION},
        {.name = "experts computed again", .recompute = DP_RECOMPUTE_EXPERTS},
        {.name = "layers computed again", .recompute = DP_RECOMPUTE_FULL},
        {.name = "inputs offloaded", .offload = DP_OFFLOAD_INPUTS},
        {.name = "attention offloaded", .offload = DP_OFFLOAD_ATTENTION},
        {.name = "ffn offloaded", .offload = DP_OFFLOAD_FFN},
        {.name = "experts offloaded", .offload = DP_OFFLOAD_EXPERTS},
        {.name = "rows saved in fp8", .saves_fp8 = true},
        {.name = "bf16", .is_bf16 = true},
        {.name = "a wide vocabulary", .is_wide = true},
        {.name = "fp8", .is_fp8 = true},
        {.name = "moments in bf16", .bf16_moments = true},
        {.name = "moments shared", .zero1 = true},
        {.name = "moments shared beside EP peers", .zero1 = true, .has_peers = true},
        {.name = "multi-token prediction", .mtp = true},
        {.name = "a tied head", .tied = true},
        {.name = "copies of experts", .copies = true},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(choices); i += TRIAL_UNDER_TSAN ? 7 : 1) {
        double predicted[2], measured[2];
        for (int is_made = 0; is_made < 2; is_made++) {
            peak_of(&choices[i], is_made, &predicted[is_made], &measured[is_made]);
        }
        const double wanted = predicted[1] - predicted[0], found = measured[1] - measured[0];
        const double room = fmin(0.1 * fabs(found), 0.015 * measured[0]);
        if (fabs(found) < 0.005 * measured[0] || fabs(wanted - found) > room) {
            fail_msg("%s: predicted %+.0f bytes, measured %+.0f of %.0f", choices[i].name, wanted,
                     found, measured[0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_changes_the_peak_by_what_is_predicted),
        cmocka_unit_test(predicted_and_measured_peaks_of_ranks_agree_within_three_percent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
