// Random jobs survive writing and reading; damaged files are answered.

#include "spec_support.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/rand.h"

static struct dp_rand rand_state;

static int32_t between(int32_t low, int32_t high)
{
    return low + (int32_t)dp_rand_below(&rand_state, (uint64_t)(high - low) + 1);
}

// Awkward doubles: many digits, tiny, huge, whole.
static double some_double(double max)
{
    double value = dp_rand_double(&rand_state) * max;
    switch (between(0, 3)) {
    case 0:
        return value;
    case 1:
        return value * 1e-12;
    case 2:
        return floor(value);
    default:
        return nextafter(value, max);
    }
}

static void some_text(char *text, size_t size, bool any)
{
    static const char letters[] = "abcXYZ019-_.";
    size_t length = (size_t)between(1, (int32_t)size - 1);
    for (size_t i = 0; i < length; i++) {
        text[i] = any ? (char)between(1, 126) : letters[between(0, 9)];
    }
    text[length] = '\0';
}

static void some_model(struct dp_model_spec *m)
{
    some_text(m->name, sizeof(m->name), true);
    m->layers = between(1, 64);
    m->hidden = between(1, 8192);
    m->kv_heads = between(1, 16);
    m->heads = m->kv_heads * between(1, 8);
    m->head_dim = 2 * between(1, 128);
    m->ffn = between(1, 8192);
    m->vocabulary = between(256, 1 << 17);
    m->dense_layers = m->layers;
    if (between(0, 1) == 1) {
        m->dense_layers = between(0, m->layers);
        m->experts = between(1, 64);
        m->top_k = between(1, m->experts);
        m->shared_experts = between(0, 3);
        m->expert_ffn = between(1, 4096);
    }
    m->mtp_layers = between(0, 2);
    m->rope_theta = 1 + some_double(1e6);
    m->norm_eps = some_double(1e-3);
    m->aux_loss_weight = some_double(1);
    m->router = (dp_router_kind)between(0, 1);
    m->raw_weights = between(0, 1);
    m->route_scale = some_double(10);
    m->rope.kind = (dp_rope_kind)between(0, 3);
    m->rope.factor = m->rope.kind == DP_ROPE_PLAIN ? 0 : 1 + some_double(100);
    m->rope.original = between(1, 8192);
    m->rotary_dim = between(0, 1) * 2 * between(1, m->head_dim / 2);
    if (between(0, 1) == 1) {
        m->window = between(1, 4096);
        m->window_from = between(0, m->layers - 1);
        m->window_layers = between(1, m->layers - m->window_from);
    }
}

static void some_job(struct dp_job_spec *spec)
{
    dp_job_spec_init(spec);
    memset(spec->name, 0, sizeof(spec->name));
    memset(spec->data.path, 0, sizeof(spec->data.path));
    some_text(spec->name, sizeof(spec->name), false);
    spec->name[0] = 'j';
    some_model(&spec->model);
    some_text(spec->data.path, sizeof(spec->data.path), true);
    spec->data.path[0] = '/';
    spec->data.holdout = some_double(0.5);
    spec->train.steps = between(1, 1000000);
    spec->train.global_batch = 64;
    spec->train.sequence = between(1, 100000);
    spec->train.seed = dp_rand_u64(&rand_state) >> 11;
    spec->optimizer.lr = some_double(1);
    spec->optimizer.lr_min = spec->optimizer.lr * dp_rand_double(&rand_state);
    spec->optimizer.warmup_steps = between(0, (int32_t)spec->train.steps);
    spec->optimizer.beta1 = dp_rand_double(&rand_state);
    spec->optimizer.beta2 = dp_rand_double(&rand_state);
    spec->optimizer.eps = some_double(1e-6);
    spec->optimizer.grad_clip = some_double(1e6);
    spec->parallel.pipeline = between(0, 1) * between(1, spec->model.layers);
    spec->parallel.microbatches = between(0, 1) << between(0, 5);
    spec->parallel.data = between(0, 1) * 2;
    some_text(spec->parallel.schedule, sizeof(spec->parallel.schedule), true);
    spec->checkpoint.every_steps = between(0, 100);
    spec->checkpoint.keep = (int32_t)between(0, 9);
    // What the cpu device cannot run it refuses.
    bool fancy = spec->model.mtp_layers > 1;
    spec->resources.device = fancy || between(0, 1) == 1 ? DP_DEVICE_SIM : DP_DEVICE_CPU;
    spec->sim.forward_s = some_double(1) + 1e-9;
    spec->sim.input_grad_s = some_double(1) + 1e-9;
    spec->sim.weight_grad_s = some_double(1) + 1e-9;
    spec->sim.pair_s = some_double(1) + 1e-9;
    spec->sim.hop_s = some_double(1e-3);
    spec->sim.scale = 1e-9 + some_double(10);
}

static void a_written_job_parses_back_to_the_same_bytes(void **state)
{
    (void)state;
    dp_rand_init(&rand_state, 11);
    for (int round = 0; round < 500; round++) {
        struct dp_job_spec spec, again;
        struct dp_error err = {0};
        some_job(&spec);
        assert_ok(dp_job_spec_check(&spec, &err), &err);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, second = {0};
        dp_job_spec_write(&spec, &text);
        dp_status status = parse_job(text.bytes, "/elsewhere", &again, &err);
        if (status != DP_OK) {
            fail_msg("round %d: %s\n%s", round, err.message, text.bytes);
        }
        dp_job_spec_write(&again, &second);
        assert_string_equal(text.bytes, second.bytes);
        assert_memory_equal(&spec, &again, sizeof(spec));
    }
}

// One byte changed, cut or doubled anywhere: an answer, and never a job that breaks a rule.
static void a_damaged_job_is_answered(void **state)
{
    (void)state;
    dp_rand_init(&rand_state, 12);
    int accepted = 0, refused = 0;
    for (long round = 0; round < dp_fuzz_runs(3000); round++) {
        struct dp_job_spec spec;
        struct dp_error err = {0};
        some_job(&spec);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_job_spec_write(&spec, &text);
        size_t at = (size_t)between(0, (int32_t)text.length - 1);
        text.bytes[at] = (char)between(0, 255);
        DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
        dp_diags_init(&diags, "damaged", text.bytes, text.length);
        dp_status status = dp_job_spec_parse(text.bytes, text.length, NULL, &diags, &spec, &err);
        accepted += status == DP_OK;
        refused += status == DP_INVALID;
        if (status == DP_OK) {
            assert_ok(dp_job_spec_check(&spec, &err), &err);
        } else {
            assert_true(diags.count > 0);
        }
    }
    assert_int_equal(accepted + refused, 3000);
    assert_true(refused > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_job_parses_back_to_the_same_bytes),
        cmocka_unit_test(a_damaged_job_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
