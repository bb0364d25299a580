// The fit, on traces whose answer is known by hand.
#include <math.h>
#include <string.h>

#include "dp/trace_fit.h"
#include "dp_test.h"

enum { MAIN, BESIDE, COMMUNICATION };

static char *names[] = {"attn(F)", "mlp(F)",      "attn(B)",    "mlp(B)",
                        "mlp(W)",  "dispatch(F)", "combine(B)", "other"};

struct made {
    struct dp_trace trace;
    struct dp_trace_kernel kernels[64];
    struct dp_trace_range ranges[64];
};

static void begin(struct made *made)
{
    memset(made, 0, sizeof *made);
    made->trace = (struct dp_trace){.kernels = made->kernels,
                                    .ranges = made->ranges,
                                    .names = names,
                                    .names_count = sizeof names / sizeof names[0],
                                    .streams = 3};
}

// Kernels come in the order of their starts. A new range for each `name` >= 0; -1 = the newest.
static void add(struct made *made, int name, dp_kernel_kind kind, int stream, int start_us,
                int end_us)
{
    struct dp_trace *trace = &made->trace;
    if (name >= 0) {
        made->ranges[trace->ranges_count++] = (struct dp_trace_range){.name = name};
    }
    made->kernels[trace->kernels_count++] =
        (struct dp_trace_kernel){.start_ns = 1000 * start_us,
                                 .end_ns = 1000 * end_us,
                                 .stream = stream,
                                 .kind = kind,
                                 .range = (int32_t)trace->ranges_count - 1};
}

static void assert_us(double seconds, double us)
{
    if (!(fabs(1e6 * seconds - us) <= 1e-6)) {
        fail_msg("%.9g us is not %.9g us", 1e6 * seconds, us);
    }
}

static void one_layer_after_the_other_adds_up(void **state)
{
    (void)state;
    struct made made;
    struct dp_trace_fit fit;
    begin(&made);
    add(&made, 0, DP_KERNEL_GEMM, MAIN, 0, 10);
    add(&made, -1, DP_KERNEL_ATTENTION, MAIN, 12, 20); // a gap of 2
    add(&made, 1, DP_KERNEL_GROUPED_GEMM, MAIN, 20, 50);
    add(&made, 3, DP_KERNEL_GROUPED_GEMM, MAIN, 60, 90);
    add(&made, 4, DP_KERNEL_GROUPED_GEMM, MAIN, 90, 100);
    add(&made, 2, DP_KERNEL_ATTENTION_GRADIENT, MAIN, 100, 125);
    assert_int_equal(dp_trace_fit(&made.trace, &fit, NULL), DP_OK);
    assert_int_equal(fit.layers, 1);
    assert_true(fit.annotated && !fit.paired);
    assert_us(fit.wall_s, 125);
    assert_us(fit.compute_busy_s, 113);
    assert_us(fit.forward_s, 48);
    assert_us(fit.input_s, 55);
    assert_us(fit.weight_s, 10);
    assert_us(fit.phases[DP_PHASE_ATTN_F].span_s, 20);
    assert_us(fit.phases[DP_PHASE_ATTN_F].busy_s, 18);
    assert_us(fit.by_kind_s[DP_PASS_FORWARD][DP_KERNEL_ATTENTION], 8);
    assert_us(fit.pair_s, 0);
}

static void kernels_that_overlap_on_a_stream_count_once(void **state)
{
    (void)state;
    struct made made;
    struct dp_trace_fit fit;
    begin(&made);
    add(&made, 0, DP_KERNEL_GEMM, MAIN, 0, 10);
    add(&made, -1, DP_KERNEL_GEMM, MAIN, 4, 6);
    add(&made, -1, DP_KERNEL_GEMM, MAIN, 8, 14);
    assert_int_equal(dp_trace_fit(&made.trace, &fit, NULL), DP_OK);
    assert_us(fit.phases[DP_PHASE_ATTN_F].busy_s, 14);
    assert_us(fit.compute_busy_s, 14);
}

// The kernels of two streams side by side are as long as their union: 10 and 10 make 15.
static void work_beside_the_main_stream_shares_its_time(void **state)
{
    (void)state;
    struct made made;
    struct dp_trace_fit fit;
    begin(&made);
    add(&made, 4, DP_KERNEL_GROUPED_GEMM, MAIN, 0, 10);
    add(&made, -1, DP_KERNEL_OTHER, BESIDE, 5, 15);
    add(&made, 2, DP_KERNEL_GEMM, MAIN, 15, 20);
    assert_int_equal(dp_trace_fit(&made.trace, &fit, NULL), DP_OK);
    assert_us(fit.weight_s, 10);
    assert_us(fit.weight_wall_s, 15);
    assert_us(fit.phases[DP_PHASE_MLP_W].auxiliary_s, 10);
    assert_us(fit.by_kind_s[DP_PASS_WEIGHT][DP_KERNEL_GROUPED_GEMM], 7.5);
    assert_us(fit.by_kind_s[DP_PASS_WEIGHT][DP_KERNEL_OTHER], 7.5);
}

// F's dispatch beside B's compute is a pair; beside its own direction's compute it is not.
static void a_pair_is_communication_of_one_beside_compute_of_the_other(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        struct made made;
        struct dp_trace_fit fit;
        begin(&made);
        add(&made, 0, DP_KERNEL_ATTENTION, MAIN, 0, 10);
        add(&made, own ? 1 : 3, DP_KERNEL_GROUPED_GEMM, MAIN, 10, 30);
        add(&made, 5, DP_KERNEL_NOTIFY, COMMUNICATION, 10, 14);
        add(&made, -1, DP_KERNEL_DISPATCH, COMMUNICATION, 16, 34);
        made.kernels[3].blocks = 20;
        add(&made, own ? 3 : 1, DP_KERNEL_GROUPED_GEMM, MAIN, 34, 40);
        assert_int_equal(dp_trace_fit(&made.trace, &fit, NULL), DP_OK);
        assert_int_equal(fit.paired, own == 0);
        assert_us(fit.wall_s, 40);
        assert_us(fit.compute_busy_s, 36);
        assert_us(fit.exchange_busy_s, 22);
        // 4 of waiting and 14 of data lie beside compute.
        assert_true(fabs(fit.hidden_share - 18.0 / 22) < 1e-12);
        assert_us(fit.forward_data_s, 18);
        assert_us(fit.forward_wait_s, 4);
        assert_us(fit.pair_s, own == 0 ? 40 : 0);
        assert_int_equal(fit.exchange_units, 20);
    }
}

static void without_ranges_layers_are_counted_by_the_core_of_attention(void **state)
{
    (void)state;
    struct made made;
    struct dp_trace_fit fit;
    begin(&made);
    for (int layer = 0; layer < 3; layer++) {
        add(&made, -1, DP_KERNEL_GEMM, MAIN, 30 * layer, 30 * layer + 4);
        add(&made, -1, DP_KERNEL_ATTENTION, MAIN, 30 * layer + 4, 30 * layer + 14);
        add(&made, -1, DP_KERNEL_GEMM, MAIN, 30 * layer + 14, 30 * layer + 20);
    }
    for (int layer = 0; layer < 3; layer++) {
        add(&made, -1, DP_KERNEL_GEMM, MAIN, 100 + 50 * layer, 110 + 50 * layer);
        add(&made, -1, DP_KERNEL_ATTENTION_GRADIENT, MAIN, 110 + 50 * layer, 130 + 50 * layer);
        add(&made, -1, DP_KERNEL_GEMM, MAIN, 130 + 50 * layer, 140 + 50 * layer);
    }
    assert_int_equal(dp_trace_fit(&made.trace, &fit, NULL), DP_OK);
    assert_false(fit.annotated || fit.paired);
    assert_int_equal(fit.layers, 3);
    assert_us(fit.forward_s, 20);
    assert_us(fit.input_s, 40);
    assert_us(fit.weight_s, 0);
}

static void a_trace_without_a_layer_says_what_is_missing(void **state)
{
    (void)state;
    struct made made;
    struct dp_trace_fit fit;
    struct dp_error err = {0};
    begin(&made);
    add(&made, 7, DP_KERNEL_GEMM, MAIN, 0, 10);
    assert_int_equal(dp_trace_fit(&made.trace, &fit, &err), DP_INVALID);
    assert_non_null(strstr(err.message, "record_function(\"attn(F)\")"));
    begin(&made);
    add(&made, 5, DP_KERNEL_DISPATCH, COMMUNICATION, 0, 10);
    assert_int_equal(dp_trace_fit(&made.trace, &fit, &err), DP_INVALID);
    assert_non_null(strstr(err.message, "communication alone"));
}

static void phases_are_the_ends_of_names(void **state)
{
    (void)state;
    assert_int_equal(dp_phase_of("attn(F)"), DP_PHASE_ATTN_F);
    assert_int_equal(dp_phase_of("layer 3 attn(W)"), DP_PHASE_ATTN_W);
    assert_int_equal(dp_phase_of("model/mlp(B)"), DP_PHASE_MLP_B);
    assert_int_equal(dp_phase_of("preattn(F)"), DP_PHASE_COUNT);
    assert_int_equal(dp_phase_of("attn(F) core"), DP_PHASE_COUNT);
    assert_int_equal(dp_phase_of(""), DP_PHASE_COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_layer_after_the_other_adds_up),
        cmocka_unit_test(kernels_that_overlap_on_a_stream_count_once),
        cmocka_unit_test(work_beside_the_main_stream_shares_its_time),
        cmocka_unit_test(a_pair_is_communication_of_one_beside_compute_of_the_other),
        cmocka_unit_test(without_ranges_layers_are_counted_by_the_core_of_attention),
        cmocka_unit_test(a_trace_without_a_layer_says_what_is_missing),
        cmocka_unit_test(phases_are_the_ends_of_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
