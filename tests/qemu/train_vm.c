// A few steps of training with the experts on two ranks, over tcp and over verbs: the same losses
// and the same weights, bit for bit. Runs in the virtual machine that run_vm.py starts.
#include "exec_harness.h"

#include "dp_test.h"

static struct trial trial_of(bool verbs)
{
    struct trial trial = trial_default();
    trial.layers = 1;
    trial.data = 2;
    trial.expert = 2;
    trial.microbatches = 2;
    trial.steps = 2;
    trial.tcp = !verbs;
    trial.verbs = verbs;
    trial.alltoall = true;
    return trial;
}

static void expect_equal(const struct trial_rank *a, const struct trial_rank *b)
{
    for (int64_t step = 1; step <= 2; step++) {
        assert_memory_equal(&a->reports[step].loss, &b->reports[step].loss, sizeof(double));
    }
    assert_true(a->weights_count > 0 && a->weights_count == b->weights_count);
    for (size_t i = 0; i < a->weights_count; i++) {
        const struct trial_tensor *x = &a->weights[i], *y = &b->weights[i];
        assert_string_equal(x->name, y->name);
        assert_memory_equal(x->values, y->values, (size_t)x->count * sizeof x->values[0]);
    }
}

static void training_over_verbs_equals_training_over_tcp(void **state)
{
    (void)state;
    struct trial_result results[2];
    for (int verbs = 0; verbs < 2; verbs++) {
        struct trial trial = trial_of(verbs != 0);
        trial_run(&trial, &results[verbs]);
        trial_expect_ok(&results[verbs]);
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        expect_equal(&results[1].ranks[rank], &results[0].ranks[rank]);
    }
    printf("PASS two steps with experts on two ranks, losses %.6f %.6f\n",
           results[1].ranks[0].reports[1].loss, results[1].ranks[0].reports[2].loss);
    trial_result_deinit(&results[0]);
    trial_result_deinit(&results[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_over_verbs_equals_training_over_tcp),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%s\n", failed == 0 ? "DONE" : "FAILED");
    return failed;
}
