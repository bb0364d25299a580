// Overlap over links of the kernel that are slow: ranks in network namespaces, joined by veth pairs
// with a rate limit. What the links do to the order of things changes no bit, and every move is
// accounted for.
#include <string.h>

#include "dp_test.h"
#include "exec_harness.h"

// Exchanges then take about as long as the computation of the tiny model.
#define BYTES_PER_SECOND 4e6

static struct trial trial_of(const char *schedule, int32_t pipeline)
{
    struct trial trial = trial_default();
    trial.schedule = schedule;
    trial.pipeline = pipeline;
    trial.data = trial.expert = 2;
    trial.microbatches = 2 * pipeline;
    trial.steps = 2;
    trial.holdout = 0;
    trial.alltoall = true;
    return trial;
}

static void expect_same_tensors(const struct trial_tensor *a, const struct trial_tensor *b,
                                size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(a[i].name, b[i].name);
        assert_int_equal(a[i].count, b[i].count);
        assert_memory_equal(a[i].values, b[i].values, (size_t)a[i].count * sizeof(double));
    }
}

static void expect_same(const struct trial_result *a, const struct trial_result *b, int64_t steps)
{
    for (int32_t rank = 0; rank < a->world; rank++) {
        const struct trial_rank *left = &a->ranks[rank], *right = &b->ranks[rank];
        for (int64_t step = 1; step <= steps; step++) {
            assert_memory_equal(&left->reports[step].loss, &right->reports[step].loss,
                                sizeof(double));
            for (int kind = 0; kind < DP_EXEC_COMM_KIND_COUNT; kind++) {
                assert_int_equal(left->reports[step].comm[kind].count,
                                 right->reports[step].comm[kind].count);
            }
        }
        assert_int_equal(left->gradients_count, right->gradients_count);
        assert_int_equal(left->weights_count, right->weights_count);
        expect_same_tensors(left->gradients, right->gradients, left->gradients_count);
        expect_same_tensors(left->weights, right->weights, left->weights_count);
    }
}

// Exposed and hidden are the whole, and what the kinds of moves have exposed is what the step says
// that it has waited for expert-parallel peers.
static void expect_accounts(const struct trial *trial, const struct trial_result *result)
{
    const struct dp_model_spec model = trial_model(trial);
    // Each micro-batch meets each layer with experts once, on one of the pipeline's ranks.
    const int64_t moves = trial->microbatches * (model.layers - model.dense_layers);
    for (int64_t step = 1; step <= trial->steps; step++) {
        int64_t counts[DP_EXEC_COMM_KIND_COUNT] = {0};
        for (int32_t rank = 0; rank < result->world; rank++) {
            const struct dp_trainer_report *report = &result->ranks[rank].reports[step];
            int64_t exposed_ns = 0;
            for (int kind = 0; kind < DP_EXEC_COMM_KIND_COUNT; kind++) {
                const struct dp_exec_comm *comm = &report->comm[kind];
                const int64_t hidden_ns = comm->total_ns - comm->exposed_ns;
                assert_true(comm->exposed_ns >= 0 && hidden_ns >= 0);
                assert_true(comm->count > 0 || comm->total_ns == 0);
                exposed_ns += kind <= DP_EXEC_COMM_DISPATCH_B ? comm->exposed_ns : 0;
                counts[kind] += comm->count;
            }
            assert_int_equal(exposed_ns, report->exchange_ns);
        }
        for (int kind = 0; kind <= DP_EXEC_COMM_DISPATCH_B; kind++) {
            assert_int_equal(counts[kind], moves * trial->data);
        }
    }
}

// What the ranks say that they have put has left by the links, and came by no other way.
static void expect_bytes(const struct wires *wires, const struct trial_result *result)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        assert_true(result->ranks[rank].put_bytes > 0);
        assert_true(wires_sent_bytes(wires, rank) > result->ranks[rank].put_bytes);
    }
}

static void compare(const struct trial *of)
{
    struct wires wires;
    struct trial limited = *of, plain = *of;
    struct trial_result overlapped, waiting, sequential;
    assert_null(wires_open(&wires, of->pipeline * of->data, BYTES_PER_SECOND));
    limited.wires = &wires;
    limited.tcp = true;
    trial_run(&limited, &overlapped);
    trial_expect_ok(&overlapped);
    expect_bytes(&wires, &overlapped);
    expect_accounts(&limited, &overlapped);
    limited.no_overlap = true;
    trial_run(&limited, &waiting);
    trial_expect_ok(&waiting);
    expect_accounts(&limited, &waiting);
    wires_close(&wires);
    plain.no_overlap = true;
    trial_run(&plain, &sequential);
    trial_expect_ok(&sequential);
    expect_same(&overlapped, &sequential, of->steps);
    expect_same(&waiting, &sequential, of->steps);
    trial_result_deinit(&overlapped);
    trial_result_deinit(&waiting);
    trial_result_deinit(&sequential);
}

static void two_ranks_on_a_slow_link_overlap_bit_for_bit(void **state)
{
    (void)state;
    struct trial trial = trial_of("dualpipev", 1);
    compare(&trial);
}

static void four_ranks_on_slow_links_overlap_bit_for_bit(void **state)
{
    (void)state;
    struct trial trial = trial_of("dualpipe", 2);
    trial.element = DP_BF16;
    compare(&trial);
}

int main(void)
{
    struct wires wires;
    const char *why = wires_open(&wires, 2, BYTES_PER_SECOND);
    if (why != NULL) {
        printf("skipped: %s\n", why);
        return 77;
    }
    wires_close(&wires);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_on_a_slow_link_overlap_bit_for_bit),
        cmocka_unit_test(four_ranks_on_slow_links_overlap_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
