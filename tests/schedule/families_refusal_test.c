// Sizes that a family cannot take: the rule is named, and so are the nearest legal values.
#include "support.h"

#include "dp/rand.h"

static void every_kind_of_refusal_names_its_rule_and_what_is_near(void **state)
{
    (void)state;
    static const char any_size[] = "\"auto\" has a bidirectional order for any size";
    const struct {
        const char *family;
        struct dp_schedule_params params;
        const char *rule, *nearest;
    } cases[] = {
        {"1f1b", {0, 4, 0}, "pipeline must be 1 to 256; it is 0", "Nearest legal: 1"},
        {"zb-h1", {300, 4, 0}, "pipeline must be 1 to 256", "Nearest legal: 256"},
        {"gpipe", {4, 70000, 0}, "microbatches must be 1 to 65536", "Nearest legal: 65536"},
        {"interleaved", {4, -3, 0}, "microbatches must be 1 to 65536", "Nearest legal: 1"},
        {"dualpipe", {4, 0, 0}, "microbatches must be 1 to 65536", "Nearest legal: 6"},
        {"dualpipe", {300, 10, 0}, "pipeline must be 1 to 256", "Nearest legal: 6"},
        {"zb-h2", {4, 8, 2}, "zb-h2 holds 1 stage per rank; 2 virtual stages", "Nearest legal: 1;"},
        {"chimera", {4, 8, 1}, "chimera holds 2 stages per rank; 1 virtual", "Nearest legal: 2;"},
        {"interleaved", {4, 8, 33}, "takes 1 to 32 virtual stages", "Nearest legal: 32"},
        {"interleaved", {4, 8, -1}, "takes 1 to 32 virtual stages", "Nearest legal: 1"},
        {"interleaved-zb", {4, 8, 33}, "takes 1 to 32 virtual stages", "Nearest legal: 32"},
        {"interleaved-zb", {4, 0, 2}, "microbatches must be 1 to 65536", "Nearest legal: 1"},
        {"v-half-late-w", {4, 8, 4}, "holds 2 stages per rank; 4 virtual", "Nearest legal: 2;"},
        {"interleaved", {256, 8, 5}, "1280 stages; the limit is 1024", "Nearest legal: 4"},
        {"hanayo",
         {4, 8, 3},
         "2 to 32 virtual stages per rank, in steps of 2",
         "Nearest legal: 2, 4"},
        {"hanayo", {4, 8, 1}, "in steps of 2; 1 were asked for", "Nearest legal: 2"},
        {"hanayo", {200, 8, 6}, "1200 stages; the limit is 1024", "Nearest legal: 4"},
        {"chimera", {1, 8, 0}, "chimera needs an even pipeline", "Nearest legal: 2;"},
        {"chimera", {7, 8, 0}, any_size, "Nearest legal: 6, 8;"},
        {"chimera",
         {4, 1, 0},
         "at least 2 microbatches, one for each direction",
         "Nearest legal: 2"},
        {"dualpipe", {9, 40, 0}, "dualpipe needs an even pipeline", "Nearest legal: 8, 10;"},
        {"dualpipe", {9, 40, 0}, any_size, "it is 9"},
        {"dualpipe", {8, 10, 0}, "dualpipe needs at least 2P-2 = 14", "Nearest legal: 14;"},
        {"dualpipe", {8, 10, 0}, any_size, "there are 10"},
        {"dualpipe", {8, 1, 0}, "2P = 16 or more is advised", "there is 1"},
        {"dualpipe", {8, 17, 0}, "an even number of microbatches", "Nearest legal: 16, 18;"},
        {"dualpipe", {8, 17, 0}, any_size, "half for each direction"},
        {"dualpipe-full-b", {8, 17, 0}, "dualpipe-full-b needs an even number", "16, 18;"},
        {"dualpipe-full-b", {3, 17, 0}, "dualpipe-full-b needs an even pipeline", "2, 4;"},
        {"dualpipev", {5, 8, 0}, "dualpipev needs at least 2P-1 = 9", "Nearest legal: 9;"},
        {"dualpipev", {5, 8, 0}, any_size, "there are 8"},
        {"dualpipev-full-b", {5, 8, 0}, "dualpipev-full-b needs at least 2P-1", "9;"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_error err = {0};
        struct dp_schedule schedule;
        dp_status status = dp_schedule_generate(cases[i].family, &cases[i].params, &schedule, &err);
        assert_refused(status, DP_INVALID, &err, cases[i].rule);
        assert_refused(status, DP_INVALID, &err, cases[i].nearest);
        assert_refused(status, DP_INVALID, &err, cases[i].family);
    }
}

static bool is_legal(const struct dp_schedule_family *family, struct dp_schedule_params params)
{
    return dp_schedule_check(family->name, &params, NULL) == DP_OK;
}

// Which of the sizes a refusal speaks of. Some rules hold whatever the other sizes are: then these
// count as legal when the refusal is judged.
static int32_t *subject(const char *message, struct dp_schedule_params *params)
{
    if (strstr(message, "even pipeline") != NULL) {
        params->microbatches = 4 * DP_PIPELINE_MAX;
        return &params->pipeline;
    }
    if (strstr(message, "pipeline must be") != NULL) {
        params->microbatches = params->microbatches < 1 ? 1 : params->microbatches;
        return &params->pipeline;
    }
    if (strstr(message, "virtual") == NULL) {
        return &params->microbatches;
    }
    if (strstr(message, "the limit is") == NULL) {
        params->pipeline = 2;
        params->microbatches = 4;
    }
    return &params->virtual_stages;
}

// What is named is legal, nothing nearer is, and where two values are as near as each other both
// are named.
static void assert_nearest(const struct dp_schedule_family *family,
                           struct dp_schedule_params params, const char *message)
{
    int32_t *size = subject(message, &params);
    int32_t asked = *size;
    const char *named = strstr(message, "Nearest legal: ");
    int32_t values[2] = {0};
    int count = named == NULL ? 0 : sscanf(named, "Nearest legal: %d, %d", &values[0], &values[1]);
    int32_t distance = count < 1 ? DP_MICROBATCHES_MAX : abs(values[0] - asked);
    int found = 0;
    for (int i = 0; i < count; i++) {
        *size = values[i];
        if (!is_legal(family, params)) {
            fail_msg("%d is not legal: %s", values[i], message);
        }
        assert_int_equal(abs(values[i] - asked), distance);
    }
    // Zero virtual stages is the default, not a number of them.
    int32_t low = size == &params.virtual_stages ? 1 : 0;
    for (int32_t near = 0; near <= distance && near <= 2048; near++) {
        for (int side = -1; side <= (near == 0 ? -1 : 1); side += 2) {
            *size = asked + side * near;
            if (*size >= low && is_legal(family, params)) {
                found++;
                if (near < distance) {
                    fail_msg("%d is nearer: %s", *size, message);
                }
            }
        }
    }
    assert_true(distance > 2048 || found == count);
}

static void what_is_named_is_legal_and_nothing_is_nearer(void **state)
{
    (void)state;
    struct dp_rand random;
    dp_rand_init(&random, 7);
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    int refused = 0;
    for (long run = 0; run < dp_fuzz_runs(2000); run++) {
        const struct dp_schedule_family *family = &families[dp_rand_below(&random, count)];
        bool is_wide = dp_rand_below(&random, 4) == 0;
        struct dp_schedule_params params = {
            .pipeline = (int32_t)dp_rand_below(&random, is_wide ? 320 : 20) - is_wide,
            .microbatches = (int32_t)dp_rand_below(&random, 60) - 1,
            .virtual_stages = is_wide ? (int32_t)dp_rand_below(&random, 22) - 1 : 0};
        struct dp_error err = {0};
        if (dp_schedule_check(family->name, &params, &err) != DP_OK) {
            assert_nearest(family, params, err.message);
            refused++;
        }
    }
    assert_true(refused > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_refusal_names_its_rule_and_what_is_near),
        cmocka_unit_test(what_is_named_is_legal_and_nothing_is_nearer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
