// What holds for every model, device and way of dividing: better devices are never slower, bounds
// are never beaten, and CPU ranks cost what dp/cost.h says.

#include "price_support.h"

#include "dp/rand.h"

enum { RUNS = 300 };

struct question {
    struct dp_model_spec model;
    struct dp_profile profile;
    struct dp_strategy strategy;
    struct dp_price_input input;
    struct dp_unit_parameters held;
};

static int32_t one_of(struct dp_rand *rand, const int32_t *values, size_t count)
{
    return values[dp_rand_below(rand, count)];
}
#define ONE_OF(rand, ...)                                                                          \
    one_of(rand, (const int32_t[]){__VA_ARGS__},                                                   \
           sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void set_model(struct question *q, struct dp_rand *rand)
{
    static const char *const names[] = {"deepseek-v3",  "deepseek-v2-lite", "mixtral-8x22b",
                                        "gpt-oss-120b", "qwen3-235b-a22b",  "qwen3-30b-a3b",
                                        "llama-3-70b",  "glm-4.5",          "kimi-k2"};
    q->model = model_of(names[dp_rand_below(rand, DP_ARRAY_LENGTH(names))]);
    q->model.hidden = ONE_OF(rand, 512, 2048, 2880, 4096, 7168);
    q->model.expert_ffn = ONE_OF(rand, 256, 768, 1408, 2048, 2880);
    if (q->model.experts > 0) {
        q->model.experts = ONE_OF(rand, 8, 60, 64, 256);
        q->model.top_k = ONE_OF(rand, 1, 2, 6, 8);
        q->model.expert_groups = ONE_OF(rand, 0, 1, 4, 8);
        q->model.top_groups = ONE_OF(rand, 0, 1, 2, 4);
    }
}

// A published device whose figures are moved at random.
static void set_profile(struct question *q, struct dp_rand *rand)
{
    static const char *const names[] = {"h800",
                                        "h100",
                                        "h20",
                                        "a100-80gb",
                                        "b200",
                                        "gb300",
                                        "mi300x",
                                        "mi355x",
                                        "mtt-s4000",
                                        "mtt-s5000",
                                        "a100-80gb@zero-bubble"};
    load_profile(names[dp_rand_below(rand, DP_ARRAY_LENGTH(names))], &q->profile);
    struct dp_device_figures *d = &q->profile.device;
    double *const moved[] = {&d->bf16_flops_peak, &d->fp8_flops_peak,   &d->memory_bytes_per_s,
                             &d->up_bytes_per_s,  &d->out_bytes_per_s,  &d->kernel_s,
                             &d->host_moe_s,      &d->exchange_start_s, &d->host_dense_s};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(moved); i++) {
        *moved[i] *= exp(2 * dp_rand_double(rand) - 1);
    }
    d->exchange_once = dp_rand_below(rand, 4) > 0;
    d->exchange_exposed_share = dp_rand_below(rand, 4) > 0 ? 0.2 * dp_rand_double(rand) : 1;
    d->exchange_contention = 1 + dp_rand_double(rand);
}

static void set_strategy(struct question *q, struct dp_rand *rand)
{
    struct dp_strategy *s = &q->strategy;
    *s = plain_strategy();
    s->pipeline = ONE_OF(rand, 1, 2, 8, 16);
    s->tensor = ONE_OF(rand, 1, 1, 2, 4, 8);
    s->context = ONE_OF(rand, 1, 1, 1, 2, 4);
    s->data = ONE_OF(rand, 8, 16, 64);
    s->expert = q->model.experts > 0 ? ONE_OF(rand, 1, 2, 4, 8) : 1;
    s->sequence_parallel = s->tensor > 1 && dp_rand_below(rand, 2) > 0;
    s->micro_batch_size = ONE_OF(rand, 1, 1, 2, 4);
    s->format = (dp_format)ONE_OF(rand, DP_FORMAT_BF16, DP_FORMAT_FP8, DP_FORMAT_FP8_BLOCK,
                                  DP_FORMAT_MXFP8, DP_FORMAT_NVFP4);
    s->shard = (dp_shard)ONE_OF(rand, DP_SHARD_NONE, DP_SHARD_ZERO1, DP_SHARD_FSDP);
    s->recompute = dp_rand_below(rand, 3) > 0 ? (uint32_t)dp_rand_below(rand, 32)
                                              : (uint32_t)DP_RECOMPUTE_FULL;
    s->comm_units = ONE_OF(rand, 0, 0, 8, 20);
    s->imbalance = dp_rand_below(rand, 2) > 0 ? 1 : 1 + dp_rand_double(rand);
}

static void ask(struct question *q, uint64_t seed)
{
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    set_model(q, &rand);
    set_profile(q, &rand);
    set_strategy(q, &rand);
    q->input = (struct dp_price_input){
        .model = &q->model,
        .profile = &q->profile,
        .strategy = &q->strategy,
        .sequence = ONE_OF(&rand, 1024, 4096, 32768),
    };
    dp_spans_default(&q->strategy, ONE_OF(&rand, 1, 8, 72), &q->input.spans);
    q->held.dense = 1e9 * dp_rand_double(&rand);
    q->held.experts = 1e9 * dp_rand_double(&rand);
}

// Everything that a price says takes time.
struct seconds {
    double of[4 * DP_UNIT_COUNT + 16];
    size_t count;
};

static void put(struct seconds *s, double seconds)
{
    assert_true(isfinite(seconds) && seconds >= 0);
    s->of[s->count++] = seconds;
}

static void seconds_of(const struct question *q, struct seconds *s)
{
    struct dp_price price;
    dp_price_units(&q->input, &price);
    s->count = 0;
    for (int i = 0; i < DP_UNIT_COUNT; i++) {
        const struct dp_unit_price *u = &price.units[i];
        put(s, u->forward_s + u->forward_wait_s);
        put(s, u->input_s + u->weight_s + u->backward_wait_s);
        put(s, u->forward_exchange_s);
        put(s, u->backward_exchange_s);
    }
    int32_t layers = q->model.layers;
    struct dp_chunk_price chunks[3];
    for (int i = 0; i < 3; i++) {
        struct dp_stage_units units =
            i == 0   ? dp_stage_units_of(&q->model, 0, 4, true, false)
            : i == 1 ? dp_stage_units_of(&q->model, 4, 9, false, false)
                     : dp_stage_units_of(&q->model, layers - 1, layers, false, true);
        dp_price_chunk(&price, &units, &chunks[i]);
    }
    for (int i = 0; i < 9; i++) {
        double exposed;
        double pair = dp_price_pair_s(&price, &chunks[i / 3], &chunks[i % 3], true, &exposed);
        put(s, pair);
        assert_true(exposed >= 0 && exposed <= pair * (1 + 1e-9));
    }
    struct dp_step_end end;
    dp_price_step_end(&q->input, &q->held, 2, &end);
    put(s, end.gradient_s);
    put(s, end.optimizer_s);
    put(s, price.hop_s);
}

static void improve(struct dp_profile *profile, struct dp_rand *rand)
{
    struct dp_device_figures *d = &profile->device;
    double *const rates[] = {&d->bf16_flops_peak,    &d->fp8_flops_peak, &d->fp4_flops_peak,
                             &d->memory_bytes_per_s, &d->up_bytes_per_s, &d->out_bytes_per_s};
    double *const costs[] = {&d->up_latency_s, &d->out_latency_s,      &d->kernel_s,
                             &d->host_moe_s,   &d->collective_start_s, &d->exchange_start_s};
    *rates[dp_rand_below(rand, DP_ARRAY_LENGTH(rates))] *= 1 + 3 * dp_rand_double(rand);
    *costs[dp_rand_below(rand, DP_ARRAY_LENGTH(costs))] *= dp_rand_double(rand);
}

static void a_better_device_is_never_slower(void **state)
{
    (void)state;
    struct question *q = dp_new(struct question);
    for (long run = 0; run < dp_fuzz_runs(RUNS); run++) {
        uint64_t seed = dp_rand_mix(1, (uint64_t)run);
        struct dp_rand rand;
        struct seconds before, after;
        ask(q, seed);
        seconds_of(q, &before);
        dp_rand_init(&rand, seed);
        improve(&q->profile, &rand);
        seconds_of(q, &after);
        for (size_t i = 0; i < before.count; i++) {
            if (after.of[i] > before.of[i] * (1 + 1e-12)) {
                fail_msg("run %ld: figure %zu rose from %.9g to %.9g s", run, i, before.of[i],
                         after.of[i]);
            }
        }
    }
    free(q);
}

// No pass beats the device's fastest products, nor the time its weights take from memory.
static void no_pass_beats_operations_or_bytes(void **state)
{
    (void)state;
    struct question *q = dp_new(struct question);
    for (long run = 0; run < dp_fuzz_runs(RUNS); run++) {
        ask(q, dp_rand_mix(2, (uint64_t)run));
        const struct dp_device_figures *d = &q->profile.device;
        double peak = fmax(d->bf16_flops_peak, fmax(d->fp8_flops_peak, d->fp4_flops_peak));
        struct dp_price price;
        dp_price_units(&q->input, &price);
        for (int i = 0; i < DP_UNIT_COUNT; i++) {
            const struct dp_unit_price *u = &price.units[i];
            assert_true(u->forward_s >= u->flops / peak * (1 - 1e-9));
            assert_true(u->input_s + u->weight_s >= 2 * u->flops / peak * (1 - 1e-9));
            // At half a byte each; the embedding is a table of which few rows are read.
            double weights = price.bytes[i].parameters.dense + price.bytes[i].parameters.experts;
            if (i != DP_UNIT_EMBEDDING && u->flops > 0) {
                assert_true(u->forward_s >= 0.5 * weights / d->memory_bytes_per_s);
            }
        }
    }
    free(q);
}

// A pair is no longer than both after one another, and no shorter than either's compute.
static void a_pair_lies_between_its_longer_part_and_their_sum(void **state)
{
    (void)state;
    struct question *q = dp_new(struct question);
    for (long run = 0; run < dp_fuzz_runs(RUNS); run++) {
        ask(q, dp_rand_mix(3, (uint64_t)run));
        q->strategy.comm_units = 0;
        struct dp_price price;
        dp_price_units(&q->input, &price);
        struct dp_stage_units units = dp_stage_units_of(&q->model, 3, 7, false, false);
        struct dp_chunk_price chunk;
        dp_price_chunk(&price, &units, &chunk);
        double compute = chunk.forward_s + chunk.input_s + chunk.weight_s;
        double exchange = chunk.forward_exchange_s + chunk.backward_exchange_s;
        double pair = dp_price_pair_s(&price, &chunk, &chunk, true, NULL);
        double apart =
            dp_price_forward_s(&chunk) + dp_price_input_s(&chunk) + dp_price_weight_s(&chunk);
        assert_true(pair <= apart * (1 + 1e-12));
        assert_true(pair >= fmax(compute, exchange) * (1 - 1e-12));
    }
    free(q);
}

static void more_tokens_take_longer(void **state)
{
    (void)state;
    struct question *q = dp_new(struct question);
    for (long run = 0; run < dp_fuzz_runs(RUNS); run++) {
        ask(q, dp_rand_mix(4, (uint64_t)run));
        struct seconds fewer, more;
        seconds_of(q, &fewer);
        q->strategy.micro_batch_size += 1;
        seconds_of(q, &more);
        for (size_t i = 0; i < fewer.count; i++) {
            // FSDP hides its gathers behind a longer pass; the sum of both is what grows.
            assert_true(more.of[i] >= fewer.of[i] * (1 - 1e-12));
        }
    }
    free(q);
}

// Of an FB: with fewer multiprocessors rows move no faster, and compute gets no less of the device.
static void fewer_multiprocessors_move_rows_no_faster(void **state)
{
    (void)state;
    struct question *q = dp_new(struct question);
    for (long run = 0; run < dp_fuzz_runs(RUNS); run++) {
        ask(q, dp_rand_mix(5, (uint64_t)run));
        struct dp_pair_mode before = {.exchange_factor = INFINITY};
        for (int32_t units = 2; units <= 40; units += 2) {
            q->strategy.comm_units = units;
            struct dp_price price;
            dp_price_units(&q->input, &price);
            if (price.comm_units == units) {
                const struct dp_pair_mode *mode = &price.pair_modes[0];
                assert_true(mode->exchange_factor <= before.exchange_factor * (1 + 1e-12));
                assert_true(mode->device_share >= before.device_share ||
                            2 * units >= q->profile.device.units);
                before = *mode;
            }
        }
    }
    free(q);
}

// This project's executor: any stage of any small model costs what dp/cost.h says.
static struct dp_model_spec small_model(struct dp_rand *rand)
{
    struct dp_model_spec model = model_of(dp_rand_below(rand, 2) > 0 ? "tiny-moe" : "deepseek-v3");
    model.layers = 2 + (int32_t)dp_rand_below(rand, 8);
    model.dense_layers = (int32_t)dp_rand_below(rand, (uint64_t)model.layers + 1);
    model.mtp_layers = 0;
    model.hidden = ONE_OF(rand, 32, 64, 128);
    return model;
}

static void cpu_stages_cost_what_the_executor_takes(void **state)
{
    (void)state;
    struct dp_profile *profile = dp_new(struct dp_profile);
    for (long run = 0; run < dp_fuzz_runs(RUNS); run++) {
        struct dp_rand rand;
        dp_rand_init(&rand, dp_rand_mix(6, (uint64_t)run));
        struct dp_model_spec model = small_model(&rand);
        dp_profile_default_cpu(profile);
        if (dp_rand_below(&rand, 2) > 0) {
            profile->exchange_hidden_share = dp_rand_double(&rand);
            profile->exchange_device_share = 0.5 * dp_rand_double(&rand);
        }
        struct dp_strategy strategy = plain_strategy();
        strategy.expert = ONE_OF(&rand, 1, 2, 4, 8);
        strategy.data = 8;
        strategy.micro_batch_size = ONE_OF(&rand, 1, 2, 4);
        strategy.format = DP_FORMAT_FP32;
        struct dp_price_input input = {
            .model = &model, .profile = profile, .strategy = &strategy, .sequence = 128};
        int32_t domain = ONE_OF(&rand, 2, 4, 64);
        dp_spans_default(&strategy, domain, &input.spans);
        struct dp_price price;
        dp_price_units(&input, &price);
        struct dp_cost_batch batch = {.samples = strategy.micro_batch_size,
                                      .sequence = 128,
                                      .ep_size = strategy.expert,
                                      .ep_nodes = (strategy.expert + domain - 1) / domain};
        struct dp_cost_chunk costs[2];
        struct dp_chunk_price prices[2];
        for (int i = 0; i < 2; i++) {
            int32_t end = 1 + (int32_t)dp_rand_below(&rand, (uint64_t)model.layers);
            int32_t begin = (int32_t)dp_rand_below(&rand, (uint64_t)end);
            struct dp_cost_stage stage = {begin, end, i == 0, dp_rand_below(&rand, 2) > 0, false};
            dp_cost_chunk(&model, profile, &stage, &batch, &costs[i]);
            struct dp_stage_units units =
                dp_stage_units_of(&model, begin, end, stage.has_embedding, stage.has_head);
            dp_price_chunk(&price, &units, &prices[i]);
            assert_within(prices[i].forward_s, costs[i].forward_s, 1e-12);
            assert_within(prices[i].input_s, costs[i].input_s, 1e-12);
            assert_within(prices[i].weight_s, costs[i].weight_s, 1e-12);
            assert_within(prices[i].forward_exchange_s, costs[i].forward_exchange_s, 1e-12);
            assert_within(prices[i].backward_exchange_s, costs[i].backward_exchange_s, 1e-12);
        }
        for (int with_weight = 0; with_weight < 2; with_weight++) {
            double wanted = dp_cost_pair_s(profile, &costs[0], &costs[1], with_weight != 0);
            assert_within(dp_price_pair_s(&price, &prices[0], &prices[1], with_weight != 0, NULL),
                          wanted, 1e-12);
        }
    }
    free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_better_device_is_never_slower),
        cmocka_unit_test(no_pass_beats_operations_or_bytes),
        cmocka_unit_test(a_pair_lies_between_its_longer_part_and_their_sum),
        cmocka_unit_test(more_tokens_take_longer),
        cmocka_unit_test(fewer_multiprocessors_move_rows_no_faster),
        cmocka_unit_test(cpu_stages_cost_what_the_executor_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
