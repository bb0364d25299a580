// Bytes of units, chunks and states, against published formulas and figures.

#include "memory_support.h"

#include "dp/cost.h"

static double after_forward(const struct memory_case *c, int unit)
{
    struct dp_unit_bytes units[DP_UNIT_COUNT];
    units_of(c, units);
    return units[unit].after_forward;
}

static struct memory_case deepseek_v3(int32_t layers, int32_t dense_layers)
{
    struct dp_model_spec model = preset("deepseek-v3");
    model.layers = layers;
    model.dense_layers = dense_layers;
    model.mtp_layers = 0;
    return memory_case_of(&model, 4096);
}

// Tensor by tensor, NVIDIA's model zoo for Megatron MoE (deepseek_mem_estimate.py). The rotary part
// of the key is 0.5 MiB that its list rounds away.
static void a_deepseek_v3_layer_keeps_the_published_2236_mib(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(4, 0);
    c.profile.memory.weights_after_fc2 = true;
    assert_near(after_forward(&c, DP_UNIT_MOE) / MIB, 2236, 0.6);
    const struct {
        uint32_t recompute;
        double saved;
    } table[] = {
        {DP_RECOMPUTE_UP, 512},
        {DP_RECOMPUTE_NORM, 112},
        {DP_RECOMPUTE_ACTIVATION, 144},
    };
    double all = after_forward(&c, DP_UNIT_MOE);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        c.strategy.recompute = table[i].recompute;
        assert_near((all - after_forward(&c, DP_UNIT_MOE)) / MIB, table[i].saved, 0.01);
    }
    c.strategy.recompute = DP_RECOMPUTE_FULL;
    assert_near(after_forward(&c, DP_UNIT_MOE) / MIB, 56, 0.01);
    c.strategy.recompute = 0;
    c.profile.memory.weights_after_fc2 = false;
    assert_near((all - after_forward(&c, DP_UNIT_MOE)) / MIB, 448, 0.01);
}

// Parameters and optimizer: 5.33 GiB dense and 11.81 GiB experts on 1024 GPUs, without the router,
// 4 layers a rank; 68.56 GiB with 16 layers on 256.
static void a_deepseek_v3_rank_has_the_published_state(void **state)
{
    (void)state;
    const struct {
        int32_t layers, data;
        double dense_gib, experts_gib;
    } table[] = {{4, 64, 5.33, 11.81}, {16, 64, 21.31, 47.25}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct memory_case c = deepseek_v3(61, 3);
        c.strategy.expert = 64;
        c.strategy.data = table[i].data;
        struct dp_unit_bytes units[DP_UNIT_COUNT];
        units_of(&c, units);
        struct dp_price_input input = input_of(&c);
        struct dp_stage_units stage = {.count = {[DP_UNIT_MOE] = table[i].layers}};
        struct dp_unit_parameters held;
        dp_memory_held(&input, units, &stage, 1, &held);
        held.dense -= table[i].layers * (7168.0 * 256);
        struct dp_unit_parameters dense = held, experts = held;
        dense.experts = 0;
        experts.dense = 0;
        struct dp_memory_parts parts = {0};
        dp_memory_state(&input, &dense, 1, &parts);
        assert_near(dp_memory_total(&parts) / GIB, table[i].dense_gib, 0.01);
        dp_memory_state(&input, &experts, 1, &parts);
        assert_near(dp_memory_total(&parts) / GIB, table[i].experts_gib, 0.01);
    }
}

// arXiv 2205.05198 equations 1, 2, 4, 5 and 6, and arXiv 2401.10241 Table 1 for what W needs.
static void a_gpt_layer_keeps_what_the_papers_count(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 1);
    for (long run = 0; run < dp_fuzz_runs(50); run++) {
        int32_t t = 1 << dp_rand_below(&rand, 4), a = t * (1 + (int32_t)dp_rand_below(&rand, 12));
        int32_t h = a * 16 * (1 + (int32_t)dp_rand_below(&rand, 8));
        struct dp_model_spec model = gpt(2, h, a, 1000);
        struct memory_case c = memory_case_of(&model, 64 * (1 + (int32_t)dp_rand_below(&rand, 32)));
        c.profile.memory.scores_kept = c.profile.memory.dropout = true;
        c.strategy.micro_batch_size = 1 + (int32_t)dp_rand_below(&rand, 4);
        double sbh = (double)c.sequence * c.strategy.micro_batch_size * h;
        double scores = 5.0 * a * c.sequence / h;
        assert_near(after_forward(&c, DP_UNIT_DENSE) / sbh, 34 + scores, 1e-9);
        struct dp_unit_bytes units[DP_UNIT_COUNT];
        units_of(&c, units);
        assert_near(units[DP_UNIT_DENSE].after_input / sbh, 32, 1e-9);
        c.strategy.tensor = t;
        assert_near(after_forward(&c, DP_UNIT_DENSE) / sbh, 10 + (24 + scores) / t, 1e-9);
        c.strategy.sequence_parallel = true;
        assert_near(after_forward(&c, DP_UNIT_DENSE) / sbh, (34 + scores) / t, 1e-9);
        c.strategy.recompute = DP_RECOMPUTE_ATTENTION;
        assert_near(after_forward(&c, DP_UNIT_DENSE) / sbh, 34.0 / t, 1e-9);
        c.strategy.tensor = 1;
        c.strategy.sequence_parallel = false;
        c.strategy.recompute = DP_RECOMPUTE_FULL;
        assert_near(after_forward(&c, DP_UNIT_DENSE) / sbh, 2, 1e-9);
    }
}

static struct dp_model_spec random_model(struct dp_rand *rand)
{
    int32_t heads = 8 * (1 + (int32_t)dp_rand_below(rand, 8));
    struct dp_model_spec m = {
        .layers = 2 + (int32_t)dp_rand_below(rand, 30),
        .hidden = 64 * (1 + (int32_t)dp_rand_below(rand, 64)),
        .heads = heads,
        .kv_heads = dp_rand_below(rand, 2) ? heads : 8,
        .head_dim = 64,
        .ffn = 64 * (1 + (int32_t)dp_rand_below(rand, 128)),
        .vocabulary = 64 * (1 + (int32_t)dp_rand_below(rand, 2000)),
        .ffn_matrices = dp_rand_below(rand, 2) ? 2 : 3,
    };
    m.dense_layers = m.layers;
    if (dp_rand_below(rand, 2)) {
        m.experts = 16;
        m.top_k = 1 + (int32_t)dp_rand_below(rand, 8);
        m.expert_ffn = 64 * (1 + (int32_t)dp_rand_below(rand, 32));
        m.shared_experts = (int32_t)dp_rand_below(rand, 3);
        m.dense_layers = (int32_t)dp_rand_below(rand, (uint64_t)m.layers);
    }
    if (dp_rand_below(rand, 2)) {
        m.mla_q_rank = 64 * (int32_t)dp_rand_below(rand, 8);
        m.mla_kv_rank = 128;
        m.mla_nope_dim = m.mla_v_dim = m.head_dim;
        m.mla_rope_dim = 32;
    }
    return m;
}

static struct memory_case random_case(struct dp_rand *rand)
{
    struct dp_model_spec model = random_model(rand);
    struct memory_case c = memory_case_of(&model, 128 * (1 + (int32_t)dp_rand_below(rand, 32)));
    c.strategy.micro_batch_size = 1 + (int32_t)dp_rand_below(rand, 4);
    c.strategy.tensor = 1 << dp_rand_below(rand, 4);
    c.strategy.context = 1 << dp_rand_below(rand, 2);
    c.strategy.data = 16;
    c.strategy.sequence_parallel = c.strategy.tensor > 1;
    c.strategy.expert = model.experts > 0 ? 1 << dp_rand_below(rand, 5) : 1;
    c.strategy.format = (dp_format)(DP_FORMAT_FP32 + dp_rand_below(rand, 6));
    c.strategy.recompute = (uint32_t)dp_rand_below(rand, 32);
    c.profile.memory.scores_kept = dp_rand_below(rand, 2);
    c.profile.memory.dropout = dp_rand_below(rand, 2);
    c.profile.memory.weights_after_fc2 = dp_rand_below(rand, 2);
    c.profile.memory.loss_fused = dp_rand_below(rand, 2);
    c.profile.memory.operands_stored = dp_rand_below(rand, 2);
    return c;
}

static void assert_no_more(const struct memory_case *less, const struct memory_case *more)
{
    struct dp_unit_bytes a[DP_UNIT_COUNT], b[DP_UNIT_COUNT];
    units_of(less, a);
    units_of(more, b);
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        double slack = 1e-9 * b[unit].after_forward;
        assert_true(a[unit].after_forward <= b[unit].after_forward + slack);
        assert_true(a[unit].after_input <= b[unit].after_input * (1 + 1e-9));
    }
}

static void what_saves_memory_never_keeps_more(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 2);
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct memory_case c = random_case(&rand), less = c;
        less.strategy.recompute |= 1u << dp_rand_below(&rand, 5);
        assert_no_more(&less, &c);
        less.strategy.recompute = DP_RECOMPUTE_FULL;
        assert_no_more(&less, &c);
        struct memory_case more = c;
        more.strategy.micro_batch_size++;
        assert_no_more(&c, &more);
        more = c;
        more.sequence *= 2;
        assert_no_more(&c, &more);
        more = c;
        more.strategy.imbalance = 1.5;
        assert_no_more(&c, &more);
        less = c;
        less.strategy.context *= 2;
        if (c.strategy.context > 1) { // the first one adds the copies of its exchange
            assert_no_more(&less, &c);
        }
        less = c;
        less.strategy.tensor *= 2;
        less.strategy.sequence_parallel = true;
        assert_no_more(&less, &c);
    }
}

static double state_of(const struct memory_case *c, int32_t copies)
{
    struct dp_price_input input = input_of(c);
    struct dp_unit_bytes units[DP_UNIT_COUNT];
    units_of(c, units);
    struct dp_stage_units stage = {.count = {4, c->model.experts > 0 ? 4 : 0, 0, 0, 0}};
    struct dp_unit_parameters held;
    dp_memory_held(&input, units, &stage, 1, &held);
    struct dp_memory_parts parts = {0};
    dp_memory_state(&input, &held, copies, &parts);
    return dp_memory_total(&parts);
}

static void more_sharding_never_takes_more(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 3);
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct memory_case c = random_case(&rand);
        c.strategy.expert = c.model.experts > 0 ? 1 << dp_rand_below(&rand, 3) : 1;
        double bytes[DP_SHARD_COUNT];
        for (int shard = DP_SHARD_NONE; shard < DP_SHARD_COUNT; shard++) {
            c.strategy.shard = (dp_shard)shard;
            bytes[shard] = state_of(&c, 1);
            assert_true(state_of(&c, 2) <= bytes[shard]);
        }
        assert_true(bytes[DP_SHARD_ZERO1] < bytes[DP_SHARD_NONE]);
        assert_true(bytes[DP_SHARD_FSDP] < bytes[DP_SHARD_ZERO1]);
        c.strategy.data *= 2;
        assert_true(state_of(&c, 1) < bytes[DP_SHARD_FSDP]);
    }
}

// DualPipe's two holders of a stage are replicas of each other: they share the optimizer's state.
static void two_directions_halve_the_optimizer_of_each_copy(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(61, 3);
    c.strategy.data = c.strategy.expert = 64;
    struct dp_price_input input = input_of(&c);
    const struct dp_unit_parameters held = {.dense = 1e9, .experts = 2e9};
    struct dp_memory_parts one = {0}, two = {0};
    dp_memory_state(&input, &held, 1, &one);
    dp_memory_state(&input, &held, 2, &two);
    assert_near(one.optimizer, 12e9 / 64 + 24e9, 1);
    assert_near(two.optimizer, one.optimizer / 2, 1);
    assert_near(two.weights, 6e9, 1);
    assert_near(two.gradients, 12e9, 1);
}

static struct dp_memory_parts state_with(const struct memory_case *c)
{
    struct dp_price_input input = input_of(c);
    const struct dp_unit_parameters held = {.dense = 1e9, .largest_dense = 1e8};
    struct dp_memory_parts parts = {0};
    dp_memory_state(&input, &held, 1, &parts);
    return parts;
}

// Both ways round of a weight for the products, beside the bf16 one or instead of it.
static void weights_of_8_bit_products_have_two_copies(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(4, 0);
    const struct {
        dp_format format;
        double bytes, alone;
    } table[] = {{DP_FORMAT_BF16, 2, 2},
                 {DP_FORMAT_FP32, 4, 4},
                 {DP_FORMAT_FP8, 4, 2},
                 {DP_FORMAT_FP8_BLOCK, 4, 2},
                 {DP_FORMAT_MXFP8, 4.0625, 2.0625},
                 {DP_FORMAT_NVFP4, 3.125, 1.125}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        c.strategy.format = table[i].format;
        c.profile.memory.weights_as_operands = false;
        assert_near(state_with(&c).weights, table[i].bytes * 1e9, 1);
        c.profile.memory.weights_as_operands = true;
        assert_near(state_with(&c).weights, table[i].alone * 1e9, 1);
    }
}

// A share of everything, two units' weights gathered, one unit's gradients before they are summed.
static void fsdp_keeps_a_share_and_works_on_units(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(4, 0);
    c.strategy.data = 4;
    c.strategy.context = 2;
    c.strategy.shard = DP_SHARD_FSDP;
    struct dp_memory_parts parts = state_with(&c);
    assert_near(parts.weights, 2 * (1e9 / 8 + 2e8), 1);
    assert_near(parts.gradients, 4 * (1e9 / 8 + 1e8), 1);
    assert_near(parts.optimizer, 12e9 / 8, 1);
    c.profile.memory.moment_bytes = c.profile.memory.gradient_bytes = 2;
    parts = state_with(&c);
    assert_near(parts.gradients, 2 * (1e9 / 8 + 1e8), 1);
    assert_near(parts.optimizer, 8e9 / 8, 1);
}

static void buffers_follow_from_the_groups_that_a_rank_talks_in(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(4, 0);
    c.profile.memory.group_bytes = 1e8;
    c.profile.memory.runtime_bytes = 7e8;
    assert_near(state_with(&c).exchange, 0, 0);
    assert_near(state_with(&c).runtime, 7e8, 0);
    c.strategy.pipeline = 2; // a hop each way: 56 MiB
    assert_near(state_with(&c).exchange, 1e8 + 2 * 56 * MIB, 1);
    c.strategy.data = c.strategy.expert = 8;
    assert_near(state_with(&c).exchange, 3e8 + 2 * 56 * MIB, 1);
    c.profile.memory.exchange_rows = 1.5; // of 8 rows for each token: 448 MiB
    assert_near(state_with(&c).exchange, 3e8 + (2 * 56 + 1.5 * 448) * MIB, 1);
}

// Weights that tensor ranks do not split, counted here from the shapes.
static double replicated(const struct dp_model_spec *m)
{
    double count = 3.0 * m->hidden * m->mtp_layers;
    for (int32_t layer = 0; layer < m->layers + m->mtp_layers; layer++) {
        count += 2.0 * m->hidden;
        count += dp_model_layer_is_moe(m, layer) ? (double)m->hidden * m->experts : 0;
        if (m->mla_kv_rank > 0) {
            count += m->hidden * ((double)m->mla_q_rank + m->mla_kv_rank + m->mla_rope_dim);
            count += (double)m->mla_q_rank + m->mla_kv_rank;
        }
    }
    return count + m->hidden;
}

static void the_parameters_of_all_ranks_are_the_models(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 4);
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct memory_case c = random_case(&rand);
        c.model.mtp_layers = (int32_t)dp_rand_below(&rand, 2);
        struct dp_price_input input = input_of(&c);
        struct dp_unit_bytes units[DP_UNIT_COUNT];
        units_of(&c, units);
        int32_t cut = (int32_t)dp_rand_below(&rand, (uint64_t)c.model.layers + 1);
        struct dp_stage_units stages[2] = {stage_of(&c.model, 0, cut),
                                           stage_of(&c.model, cut, c.model.layers)};
        stages[0].count[DP_UNIT_EMBEDDING] = 1;
        stages[0].count[DP_UNIT_HEAD] = 0;
        stages[1].count[DP_UNIT_HEAD] = 1;
        stages[1].count[DP_UNIT_EMBEDDING] = 0;
        stages[0].count[DP_UNIT_MTP] = 0;
        stages[1].count[DP_UNIT_MTP] = c.model.mtp_layers;
        double t = c.strategy.tensor, dense = 0, experts = 0;
        for (int i = 0; i < 2; i++) {
            struct dp_unit_parameters held;
            dp_memory_held(&input, units, &stages[i], 1, &held);
            dense += t * held.dense;
            experts += held.experts * c.strategy.expert;
        }
        double all = (double)(dp_model_parameters(&c.model) + dp_model_mtp_parameters(&c.model));
        // MTP layers take the embedding as well.
        double copy = c.model.mtp_layers * (double)c.model.hidden * c.model.vocabulary;
        assert_near(dense + experts - (t - 1) * replicated(&c.model), all + copy, 1e-9 * all);
        struct dp_unit_parameters both;
        dp_memory_held(&input, units, stages, 2, &both);
        assert_near(both.dense * t + copy, dense, 1e-9 * all);
    }
}

static void a_head_that_is_tied_or_predicts_more_brings_the_embedding(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(61, 3);
    c.model.mtp_layers = 1;
    struct dp_price_input input = input_of(&c);
    struct dp_unit_bytes units[DP_UNIT_COUNT];
    units_of(&c, units);
    struct dp_stage_units stages[2] = {stage_of(&c.model, 57, 61), stage_of(&c.model, 0, 4)};
    struct dp_unit_parameters last, first, both;
    dp_memory_held(&input, units, &stages[0], 1, &last);
    dp_memory_held(&input, units, &stages[1], 1, &first);
    dp_memory_held(&input, units, stages, 2, &both);
    assert_near(last.dense + first.dense - both.dense, 7168.0 * 129280, 1);
    c.model.mtp_layers = 0;
    c.model.tied_embedding = 1;
    stages[0].count[DP_UNIT_MTP] = 0;
    units_of(&c, units);
    dp_memory_held(&input, units, &stages[0], 1, &last);
    dp_memory_held(&input, units, &stages[1], 1, &first);
    dp_memory_held(&input, units, stages, 2, &both);
    assert_near(last.dense + first.dense - both.dense, 7168.0 * 129280, 1);
}

// Logits of 4096 tokens in fp32 are 4 s V bytes (1.97 GiB of DeepSeek-V3), over tensor ranks.
static void logits_are_kept_in_fp32_unless_the_loss_is_fused(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(4, 0);
    double rest = 2 * 56 * MIB, logits = 4.0 * 4096 * 129280;
    assert_near(after_forward(&c, DP_UNIT_HEAD), rest + logits, 1);
    c.profile.memory.loss_fused = true;
    assert_near(after_forward(&c, DP_UNIT_HEAD), rest + logits / 2, 1);
    c.strategy.tensor = 4;
    assert_near(after_forward(&c, DP_UNIT_HEAD), rest + logits / 8, 1);
}

// DeepSeek's own recipe: norms, up-projections and SwiGLU again, the rest stored in 8 bits.
static void deepseeks_recipe_keeps_about_a_quarter(void **state)
{
    (void)state;
    struct memory_case c = deepseek_v3(4, 0);
    double bf16 = after_forward(&c, DP_UNIT_MOE);
    c.strategy.format = DP_FORMAT_FP8_BLOCK;
    c.strategy.recompute = DP_RECOMPUTE_NORM | DP_RECOMPUTE_UP | DP_RECOMPUTE_ACTIVATION;
    c.profile.memory.operands_stored = true;
    double recipe = after_forward(&c, DP_UNIT_MOE) / GIB;
    assert_true(recipe > 0.55 && recipe < 0.8);
    assert_true(recipe * GIB < 0.4 * bf16);
}

// Unit after unit, one at a time.
static void follow(const struct dp_unit_bytes *units, const int *order, int count,
                   struct dp_chunk_bytes *ret)
{
    double kept = 0, waiting = 0;
    *ret = (struct dp_chunk_bytes){0};
    for (int i = 0; i < count; i++) {
        kept += units[order[i]].after_forward;
        ret->forward_peak = fmax(ret->forward_peak, kept + units[order[i]].during_forward);
    }
    ret->after_forward = kept;
    double left = kept;
    for (int i = count - 1; i >= 0; i--) {
        ret->backward_peak = fmax(ret->backward_peak, left + units[order[i]].during_backward);
        ret->input_peak = fmax(ret->input_peak, left + waiting + units[order[i]].during_backward);
        left -= units[order[i]].after_forward;
        waiting += units[order[i]].after_input;
    }
    ret->after_input = waiting;
    ret->backward_peak -= kept;
    ret->input_peak = fmax(ret->input_peak, waiting) - kept;
}

static void a_chunks_peaks_are_those_of_its_units_one_by_one(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct dp_unit_bytes units[DP_UNIT_COUNT];
        for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
            units[unit] = (struct dp_unit_bytes){
                .after_forward = (double)dp_rand_below(&rand, 100),
                .after_input = (double)dp_rand_below(&rand, 100),
                .during_forward = (double)dp_rand_below(&rand, 100),
                .during_backward = (double)dp_rand_below(&rand, 100),
            };
        }
        struct dp_stage_units stage = {
            .count = {(int32_t)dp_rand_below(&rand, 4), (int32_t)dp_rand_below(&rand, 4),
                      (int32_t)dp_rand_below(&rand, 2), (int32_t)dp_rand_below(&rand, 2), 0}};
        int order[32], count = 0;
        const int sequence[] = {DP_UNIT_EMBEDDING, DP_UNIT_DENSE, DP_UNIT_MOE, DP_UNIT_HEAD};
        for (size_t kind = 0; kind < 4; kind++) {
            for (int32_t i = 0; i < stage.count[sequence[kind]]; i++) {
                order[count++] = sequence[kind];
            }
        }
        struct dp_chunk_bytes got, wanted;
        dp_memory_chunk(units, &stage, &got);
        follow(units, order, count, &wanted);
        assert_near(got.after_forward, wanted.after_forward, 1e-9);
        assert_near(got.after_input, wanted.after_input, 1e-9);
        assert_near(got.forward_peak, wanted.forward_peak, 1e-9);
        assert_near(got.backward_peak, wanted.backward_peak, 1e-9);
        assert_near(got.input_peak, fmax(wanted.input_peak, 0), 1e-9);
    }
}

static void on_cpu_cores_bytes_are_those_of_the_executor(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 6);
    for (long run = 0; run < dp_fuzz_runs(100); run++) {
        struct dp_model_spec model = random_model(&rand);
        model.ffn_matrices = 0;
        struct memory_case c = memory_case_of(&model, 64);
        dp_profile_default_cpu(&c.profile);
        c.profile.optimizer_sharded = dp_rand_below(&rand, 2);
        c.strategy.shard = dp_rand_below(&rand, 2) == 0 ? DP_SHARD_NONE : DP_SHARD_ZERO1;
        c.strategy.micro_batch_size = 1 + (int32_t)dp_rand_below(&rand, 3);
        c.strategy.expert = model.experts > 0 ? 4 : 1;
        c.strategy.data = 8;
        int32_t end = 1 + (int32_t)dp_rand_below(&rand, (uint64_t)model.layers);
        int32_t begin = (int32_t)dp_rand_below(&rand, (uint64_t)end);
        struct dp_cost_stage shape = {begin, end, begin == 0, end == model.layers, false};
        struct dp_cost_batch batch = {.samples = c.strategy.micro_batch_size,
                                      .sequence = 64,
                                      .ep_size = c.strategy.expert,
                                      .ep_nodes = 1};
        struct dp_cost_chunk_bytes wanted;
        dp_cost_chunk_bytes(&model, &c.profile, &shape, &batch, NULL, &wanted);
        struct dp_unit_bytes units[DP_UNIT_COUNT];
        units_of(&c, units);
        struct dp_stage_units stage = stage_of(&model, begin, end);
        struct dp_chunk_bytes got;
        dp_memory_chunk(units, &stage, &got);
        assert_near(got.after_forward, wanted.after_forward, 0.5);
        assert_near(got.after_input, wanted.after_input, 0.5);
        // What passes hold beside is held to the device's own count by chunk_peak_test.c.
        assert_true(got.forward_peak >= wanted.end_of_forward - 0.5);
        assert_true(got.input_peak >= wanted.end_of_input - wanted.after_forward - 0.5);
        assert_true(got.backward_peak >= 0);
        struct dp_price_input input = input_of(&c);
        struct dp_unit_parameters held;
        dp_memory_held(&input, units, &stage, 1, &held);
        struct dp_memory_parts parts = {0};
        dp_memory_state(&input, &held, 1, &parts);
        assert_near(dp_memory_total(&parts),
                    dp_cost_state_bytes(&model, &c.profile, &shape, 1, batch.ep_size, 8,
                                        c.strategy.shard == DP_SHARD_ZERO1),
                    1);
    }
}

static void the_tensors_of_a_unit_add_up_to_what_it_keeps(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 7);
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct memory_case c = random_case(&rand);
        struct dp_price_input input = input_of(&c);
        struct dp_unit_bytes units[DP_UNIT_COUNT];
        units_of(&c, units);
        for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
            struct dp_memory_tensor tensors[DP_MEMORY_TENSORS_MAX];
            size_t count = dp_memory_tensors(&input, unit, tensors);
            assert_true(count <= DP_MEMORY_TENSORS_MAX);
            double kept = 0, deferred = 0;
            for (size_t i = 0; i < count; i++) {
                kept += tensors[i].recomputed ? 0 : tensors[i].elements * tensors[i].bytes;
                deferred += tensors[i].elements * tensors[i].deferred;
            }
            assert_near(kept, units[unit].after_forward, 1e-9 * kept);
            assert_near(deferred, units[unit].after_input, 1e-9 * deferred);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deepseek_v3_layer_keeps_the_published_2236_mib),
        cmocka_unit_test(a_deepseek_v3_rank_has_the_published_state),
        cmocka_unit_test(a_gpt_layer_keeps_what_the_papers_count),
        cmocka_unit_test(what_saves_memory_never_keeps_more),
        cmocka_unit_test(more_sharding_never_takes_more),
        cmocka_unit_test(two_directions_halve_the_optimizer_of_each_copy),
        cmocka_unit_test(weights_of_8_bit_products_have_two_copies),
        cmocka_unit_test(fsdp_keeps_a_share_and_works_on_units),
        cmocka_unit_test(buffers_follow_from_the_groups_that_a_rank_talks_in),
        cmocka_unit_test(the_parameters_of_all_ranks_are_the_models),
        cmocka_unit_test(a_head_that_is_tied_or_predicts_more_brings_the_embedding),
        cmocka_unit_test(logits_are_kept_in_fp32_unless_the_loss_is_fused),
        cmocka_unit_test(deepseeks_recipe_keeps_about_a_quarter),
        cmocka_unit_test(a_chunks_peaks_are_those_of_its_units_one_by_one),
        cmocka_unit_test(on_cpu_cores_bytes_are_those_of_the_executor),
        cmocka_unit_test(the_tensors_of_a_unit_add_up_to_what_it_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
