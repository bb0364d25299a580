// Reading of traces: what is kept, and what is refused where.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/trace_fit.h"
#include "dp/trace_read.h"
#include "dp_test.h"

DP_DEFINE_CLEANUP(free_reader, struct dp_trace_reader, dp_trace_reader_free)

static dp_status read_bytes(const char *text, size_t length, size_t piece,
                            struct dp_trace *ret_trace, struct dp_error *err)
{
    DP_CLEANUP(free_reader) struct dp_trace_reader *reader = dp_trace_reader_new("t.json");
    for (size_t at = 0; at < length; at += piece) {
        size_t left = length - at;
        // A copy of its own, so that a byte read beyond it is found.
        DP_AUTO_FREE char *own = dp_memdup(text + at, left < piece ? left : piece);
        dp_status status = dp_trace_reader_feed(reader, own, left < piece ? left : piece, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return dp_trace_reader_finish(reader, ret_trace, err);
}

static dp_status read_text(const char *text, struct dp_trace *ret_trace, struct dp_error *err)
{
    return read_bytes(text, strlen(text), 4096, ret_trace, err);
}

// Two kernels in ranges that nest, one outside of any; every sort of event that a trace has.
static const char small[] =
    "{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"x\"}],\n"
    " \"traceEvents\": [\n"
    "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, \"tid\": 0, \"args\": {\"name\": "
    "\"p\"}},\n"
    "{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"attn(F)\", \"pid\": 1, \"tid\": 5,"
    " \"ts\": 5138717826059.351, \"dur\": 100, \"args\": {\"External id\": 1}},\n"
    "{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"core\", \"pid\": 1, \"tid\": 5,"
    " \"ts\": 5138717826060.351, \"dur\": 20, \"args\": {}},\n"
    "{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", \"pid\": 1, "
    "\"tid\": 5,"
    " \"ts\": 5138717826061.5, \"dur\": 2, \"args\": {\"correlation\": 7}},\n"
    "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"flash_fwd\\u0007_kernel\", \"pid\": 0, "
    "\"tid\": 7,"
    " \"ts\": 5138717826200, \"dur\": 30.5, \"args\": {\"device\": 0, \"stream\": 7,"
    " \"correlation\": 7, \"grid\": [4, 3, 2], \"block\": [128, 1, 1]}},\n"
    "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"gemm\", \"pid\": 0, \"tid\": 8,"
    " \"ts\": 5138717826190.25, \"dur\": 1, \"args\": {\"device\": 0, \"stream\": 8,"
    " \"correlation\": 99}}\n"
    "], \"traceName\": \"x\"}\n";

static void a_kernel_has_the_phase_that_its_launch_was_in(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
    assert_int_equal(read_text(small, &trace, &err), DP_OK);
    assert_int_equal(trace.kernels_count, 2);
    assert_int_equal(trace.ranges_count, 2);
    assert_int_equal(trace.streams, 2);
    // By start: the one on stream 8 is first, and time counts from it, to the nanosecond.
    assert_int_equal(trace.kernels[0].start_ns, 0);
    assert_int_equal(trace.kernels[0].end_ns, 1000);
    assert_int_equal(trace.kernels[1].start_ns, 9750);
    assert_int_equal(trace.kernels[1].end_ns, 40250);
    assert_int_equal(trace.kernels[0].range, -1);
    // The inner range is no phase: the one around it counts.
    assert_string_equal(trace.names[trace.ranges[trace.kernels[1].range].name], "attn(F)");
    assert_int_equal(trace.kernels[1].blocks, 24);
    assert_int_equal(trace.kernels[1].kind, DP_KERNEL_ATTENTION);
    // What would steer a terminal is gone.
    assert_string_equal(trace.names[trace.kernels[1].name], "flash_fwd?_kernel");
}

static void pieces_of_any_size_give_the_same_trace(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 80; piece++) {
        struct dp_error err = {0};
        DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
        assert_int_equal(read_bytes(small, strlen(small), piece, &trace, &err), DP_OK);
        assert_int_equal(trace.kernels_count, 2);
        assert_int_equal(trace.kernels[1].end_ns, 40250);
        assert_int_equal(trace.kernels[1].blocks, 24);
    }
}

static void a_trace_that_is_cut_off_anywhere_is_refused_with_its_byte(void **state)
{
    (void)state;
    size_t whole = strlen(small) - 2; // without the last brace and its newline
    for (size_t length = 1; length <= whole; length++) {
        struct dp_error err = {0};
        struct dp_trace trace = {0};
        assert_int_equal(read_bytes(small, length, 4096, &trace, &err), DP_INVALID);
        assert_non_null(strstr(err.message, "t.json: byte "));
        assert_non_null(strstr(err.message, "cut off"));
    }
}

#define EVENT(members) "[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"gemm\", " members "}]"

static void what_is_wrong_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"", "no kernel and no operator"},
        {"{}", "no kernel and no operator"},
        {"[]", "no kernel and no operator"},
        {"{\"traceEvents\": []}", "no kernel and no operator"},
        {"hello", "byte 0: not JSON"},
        {"12", "byte 0: not JSON"},
        {"[1, 2,, 3]", "byte 6: not JSON"},
        {"[1 2]", "byte 3: not JSON"},
        {"[01]", "byte 1: not a number"},
        {"[1.]", "byte 1: not a number"},
        {"[-]", "byte 1: not a number"},
        {"{\"a\" 1}", "byte 5: not JSON: a colon"},
        {"{a: 1}", "byte 1: not JSON: a key"},
        {"{\"a\": 1,}", "byte 8: not JSON: a key"},
        {"[1}", "byte 2: a } that closes nothing"},
        {"[tru]", "byte 1: a word"},
        {"[\"\\x\"]", "byte 3: an escape"},
        {"[\"\\u12g4\"]", "byte 6: \\u wants"},
        {"[\"a\nb\"]", "byte 3: a control character"},
        {EVENT("\"ts\": NaN, \"dur\": 1"), "byte 52: a number that is not finite"},
        {EVENT("\"ts\": -Infinity, \"dur\": 1"), "byte 52: a number that is not finite"},
        {EVENT("\"ts\": 1, \"dur\": Infinity"), "byte 62: a number that is not finite"},
        {EVENT("\"ts\": 1, \"dur\": -1"), "byte 1: the event ends before it starts (by 1000 ns)"},
        {EVENT("\"ts\": \"late\", \"dur\": 1"), "byte 1: the event's \"ts\" is no number"},
        {EVENT("\"ts\": [1], \"dur\": true"), "byte 1: the event's \"dur\" is no number"},
        {EVENT("\"ts\": 1"), "byte 1: the event's \"dur\" is missing"},
        {EVENT("\"dur\": 1"), "byte 1: the event's \"startNs\" is missing"},
        {EVENT("\"ts\": 1e300, \"dur\": 1"),
         "byte 1: the event's \"ts\" is no number within range"},
        {EVENT("\"ts\": 99999999999999999999999, \"dur\": 1"), "no number within range"},
        {EVENT("\"ts\": 11111111111111111111111111111111111111111111111111111111111111111111, "
               "\"dur\": 1"),
         "byte 52: a number of more than 63 characters"},
        {"[{\"ph\": \"X\", \"cat\": \"kernel\", \"ts\": 1, \"dur\": 1}]",
         "a kernel without a name"},
        {"{\"CudaEvent\": {\"startNs\": \"5\", \"endNs\": \"4\", \"kernel\": {\"shortName\": 0}}}",
         "byte 0: the event ends before it starts (by 1 ns)"},
        {"{\"table\": \"StringIds\", \"id\": 99999999, \"value\": \"x\"}", "string 99999999"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dp_error err = {0};
        struct dp_trace trace = {0};
        assert_true(read_text(cases[i].text, &trace, &err) != DP_OK);
        if (strstr(err.message, cases[i].wanted) == NULL) {
            fail_msg("%s\n%s\nlacks \"%s\"", cases[i].text, err.message, cases[i].wanted);
        }
    }
}

static void values_within_values_have_a_limit(void **state)
{
    (void)state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (int i = 0; i < DP_TRACE_DEPTH_MAX + 1; i++) {
        dp_buf_puts(&text, "[");
    }
    struct dp_error err = {0};
    struct dp_trace trace = {0};
    assert_int_equal(read_text(text.bytes, &trace, &err), DP_TOO_LARGE);
    assert_non_null(strstr(err.message, "byte 64: more than 64 values within values"));
}

static void add_range(struct dp_buf *out, const char *name, int start, int end)
{
    dp_buf_printf(out,
                  "{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"%s\", \"pid\": 1, "
                  "\"tid\": 1, \"ts\": %d, \"dur\": %d},",
                  name, start, end - start);
}

static void add_launched(struct dp_buf *out, int correlation, int launch, int start, int end)
{
    dp_buf_printf(out,
                  "{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"l\", \"pid\": 1, "
                  "\"tid\": 1, \"ts\": %d, \"dur\": 1, \"args\": {\"correlation\": %d}},",
                  launch, correlation);
    dp_buf_printf(out,
                  "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"gemm\", \"ts\": %d, "
                  "\"dur\": %d, \"args\": {\"stream\": 1, \"correlation\": %d}},",
                  start, end - start, correlation);
}

static void ranges_that_overlap_without_nesting_keep_their_kernels(void **state)
{
    (void)state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "[");
    add_range(&text, "attn(F)", 0, 10);
    add_range(&text, "mlp(F)", 5, 15);
    static const struct {
        int launch;
        const char *range;
    } cases[] = {{2, "attn(F)"}, {7, "mlp(F)"}, {12, "mlp(F)"}, {20, NULL}};
    for (int i = 0; i < 4; i++) {
        add_launched(&text, i + 1, cases[i].launch, 100 + i, 101 + i);
    }
    dp_buf_puts(&text, "{}]");
    struct dp_error err = {0};
    DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
    assert_int_equal(read_text(text.bytes, &trace, &err), DP_OK);
    for (int i = 0; i < 4; i++) {
        int32_t range = trace.kernels[i].range;
        if (cases[i].range == NULL) {
            assert_int_equal(range, -1);
        } else {
            assert_string_equal(trace.names[trace.ranges[range].name], cases[i].range);
        }
    }
}

static void ranges_that_pile_up_are_refused(void **state)
{
    (void)state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "[");
    for (int i = 0; i < 100; i++) {
        add_range(&text, "x", i, 1000 + i);
    }
    add_launched(&text, 1, 500, 600, 700);
    dp_buf_puts(&text, "{}]");
    struct dp_error err = {0};
    struct dp_trace trace = {0};
    assert_int_equal(read_text(text.bytes, &trace, &err), DP_TOO_LARGE);
    assert_non_null(strstr(err.message, "more than 64 named ranges are open at once"));
}

static void a_run_without_an_accelerator_is_read_by_its_outermost_operators(void **state)
{
    (void)state;
    static const char text[] =
        "{\"traceEvents\": ["
        "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::t\", \"pid\": 1, \"tid\": 1,"
        " \"ts\": 11, \"dur\": 2},"
        "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::linear\", \"pid\": 1, \"tid\": 1,"
        " \"ts\": 10, \"dur\": 8},"
        "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::silu\", \"pid\": 1, \"tid\": 1,"
        " \"ts\": 18, \"dur\": 1},"
        "{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"mlp(F)\", \"pid\": 1, \"tid\": "
        "1,"
        " \"ts\": 9, \"dur\": 20}]}";
    struct dp_error err = {0};
    DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
    assert_int_equal(read_text(text, &trace, &err), DP_OK);
    assert_true(trace.is_cpu);
    assert_int_equal(trace.kernels_count, 2);
    assert_int_equal(trace.kernels[0].kind, DP_KERNEL_GEMM);
    assert_int_equal(trace.kernels[0].end_ns, 8000);
    assert_int_equal(trace.kernels[1].kind, DP_KERNEL_OTHER);
    assert_true(trace.kernels[1].range >= 0);
}

static void kernels_are_told_by_the_names_of_libraries(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        dp_kernel_kind kind;
    } cases[] = {
        {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         DP_KERNEL_COLLECTIVE},
        {"ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", DP_KERNEL_EXCHANGE},
        {"void deep_ep::intranode::dispatch<8, 768>(int4*)", DP_KERNEL_DISPATCH},
        {"void deep_ep::internode::combine<false, 8>(int4*)", DP_KERNEL_COMBINE},
        {"void deep_ep::internode::cached_notify(int)", DP_KERNEL_NOTIFY},
        {"void deep_ep::internode::get_dispatch_layout<256>(long const*)", DP_KERNEL_NOTIFY},
        // A sort's policy and a split of attention are called so, too.
        {"void cub::DeviceRadixSortOnesweepKernel<cub::DispatchRadixSort<false>::Policy>(int)",
         DP_KERNEL_OTHER},
        {"void flash_fwd_splitkv_combine_kernel<Traits>(Params)", DP_KERNEL_ATTENTION},
        {"void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<T>(P)", DP_KERNEL_ATTENTION_GRADIENT},
        {"fmha_cutlassB_bf16_aligned_64x64_k96_dropout_sm80(AttentionBackwardKernel)",
         DP_KERNEL_ATTENTION_GRADIENT},
        {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", DP_KERNEL_GEMM},
        {"nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", DP_KERNEL_GEMM},
        {"void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>()",
         DP_KERNEL_GROUPED_GEMM},
        {"Memcpy PtoP (Device -> Device)", DP_KERNEL_COPY},
        {"Memcpy DtoD (Device -> Device)", DP_KERNEL_OTHER},
        {"aten::addmm", DP_KERNEL_GEMM},
        {"aten::scaled_dot_product_attention", DP_KERNEL_ATTENTION},
        {"void (anonymous namespace)::softmax_warp_forward<float>(float*)", DP_KERNEL_OTHER},
        {"", DP_KERNEL_OTHER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (dp_kernel_kind_of(cases[i].name) != cases[i].kind) {
            fail_msg("%s is taken for %s", cases[i].name,
                     dp_kernel_kind_text(dp_kernel_kind_of(cases[i].name)));
        }
    }
}

static void many_events_are_read_in_their_order(void **state)
{
    (void)state;
    enum { COUNT = 200000 };
    DP_CLEANUP(free_reader) struct dp_trace_reader *reader = dp_trace_reader_new("t.json");
    struct dp_error err = {0};
    assert_int_equal(dp_trace_reader_feed(reader, "[", 1, &err), DP_OK);
    for (int i = COUNT - 1; i >= 0; i--) {
        char text[160];
        int length = snprintf(text, sizeof text,
                              "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k%d\",\"ts\":%d,"
                              "\"dur\":0.5,\"args\":{\"stream\":%d}}%s",
                              i % 10, i, i % 3, i == 0 ? "]" : ",");
        assert_int_equal(dp_trace_reader_feed(reader, text, (size_t)length, &err), DP_OK);
    }
    DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
    assert_int_equal(dp_trace_reader_finish(reader, &trace, &err), DP_OK);
    assert_int_equal(trace.kernels_count, COUNT);
    assert_int_equal(trace.names_count, 10);
    for (int i = 0; i < COUNT; i += 1000) {
        assert_int_equal(trace.kernels[i].start_ns, 1000 * i);
    }
}

// Whatever the bytes are: a trace or a refusal, and a fit or a refusal of finite figures.
static void damaged_traces_do_no_harm(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 20);
    size_t length = strlen(small);
    for (long run = dp_fuzz_runs(2000); run > 0; run--) {
        DP_AUTO_FREE char *text = dp_memdup(small, length + 1);
        int changes = 1 + (int)(dp_rand_double(&rand) * 6);
        for (int i = 0; i < changes; i++) {
            size_t at = (size_t)(dp_rand_double(&rand) * (double)length);
            static const char bytes[] = "{}[]\",:0-9eE.XnN\\ \x80";
            text[at] = bytes[(size_t)(dp_rand_double(&rand) * (sizeof bytes - 1))];
        }
        struct dp_error err = {0};
        DP_CLEANUP(dp_trace_deinit) struct dp_trace trace = {0};
        struct dp_trace_fit fit;
        size_t piece = 1 + (size_t)(dp_rand_double(&rand) * 40);
        if (read_bytes(text, length, piece, &trace, &err) != DP_OK) {
            assert_true(err.message[0] != '\0');
        } else if (dp_trace_fit(&trace, &fit, &err) == DP_OK) {
            assert_true(isfinite(fit.wall_s) && fit.wall_s >= 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_has_the_phase_that_its_launch_was_in),
        cmocka_unit_test(pieces_of_any_size_give_the_same_trace),
        cmocka_unit_test(a_trace_that_is_cut_off_anywhere_is_refused_with_its_byte),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(values_within_values_have_a_limit),
        cmocka_unit_test(ranges_that_overlap_without_nesting_keep_their_kernels),
        cmocka_unit_test(ranges_that_pile_up_are_refused),
        cmocka_unit_test(a_run_without_an_accelerator_is_read_by_its_outermost_operators),
        cmocka_unit_test(kernels_are_told_by_the_names_of_libraries),
        cmocka_unit_test(many_events_are_read_in_their_order),
        cmocka_unit_test(damaged_traces_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
