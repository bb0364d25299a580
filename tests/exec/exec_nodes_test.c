// Group-limited routers over ranks on nodes: what the model's routers choose crosses to no more
// nodes than they promise, and every link carries the bytes of the formula.
#include <string.h>

#include "../alltoall/scene.h"
#include "dp/alloc.h"
#include "dp/alltoall.h"
#include "dp/check.h"
#include "dp_test.h"
#include "exec_harness.h"

#define RANKS 8
#define NODES 4
#define TOP_K 4
#define ROUTINGS_MAX 64

// Sixteen experts, two on a rank and four on a node; a group is what is on a node.
static const struct dp_model_spec grouped = {.name = "grouped",
                                             .layers = 4,
                                             .dense_layers = 1,
                                             .hidden = 32,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 8,
                                             .ffn = 64,
                                             .experts = 16,
                                             .top_k = TOP_K,
                                             .expert_ffn = 24,
                                             .expert_groups = NODES,
                                             .top_groups = 2,
                                             .router = DP_MODEL_SIGMOID,
                                             .vocabulary = 256,
                                             .rope_theta = 10000,
                                             .norm_eps = 1e-5,
                                             .aux_loss_weight = 0.001,
                                             .bias_update = 0.001};

// Routings of each rank in their order, which is the same on all ranks.
struct seen {
    int32_t count[RANKS];
    int64_t tokens[RANKS][ROUTINGS_MAX];
    int32_t index[RANKS][ROUTINGS_MAX][TRIAL_SEQUENCE * TOP_K];
};

static void remember(void *context, int32_t rank, int64_t tokens, const int32_t *index)
{
    struct seen *seen = context;
    const int32_t at = seen->count[rank]++;
    DP_CHECK(at < ROUTINGS_MAX && tokens <= TRIAL_SEQUENCE);
    seen->tokens[rank][at] = tokens;
    memcpy(seen->index[rank][at], index, (size_t)tokens * TOP_K * sizeof *index);
}

static struct trial trial_of(const struct dp_model_spec *model, struct seen *seen)
{
    struct trial trial = trial_default();
    trial.schedule = "dualpipev";
    trial.model = model;
    trial.layers = model->layers;
    trial.data = trial.expert = RANKS;
    trial.microbatches = 2;
    trial.steps = 2;
    trial.holdout = 0;
    trial.alltoall = true;
    trial.nodes = NODES;
    trial.routed = remember;
    trial.routed_context = seen;
    return trial;
}

// The whole group's tokens of one routing as scene.h knows them.
static struct scene scene_of(struct seen *seen, int32_t routing)
{
    struct scene scene = {.shape = {.ranks = RANKS,
                                    .own = 2,
                                    .top_k = TOP_K,
                                    .routings = 1,
                                    .hidden = grouped.hidden,
                                    .element = DP_F32},
                          .nodes = NODES,
                          .experts = grouped.experts,
                          .row = (size_t)grouped.hidden * sizeof(float),
                          .real = sizeof(float)};
    for (int32_t r = 0; r < RANKS; r++) {
        scene.shape.node_of[r] = r * NODES / RANKS;
        scene.of[0][r].tokens = seen->tokens[r][routing];
        scene.of[0][r].index = seen->index[r][routing];
    }
    return scene;
}

// Nodes other than the source's that a token goes to.
static int32_t copies_of(const struct scene *scene, int32_t source, int64_t token)
{
    bool is_met[NODES] = {0};
    int32_t copies = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        const int32_t node = scene->shape.node_of[r];
        if (node != scene->shape.node_of[source] && !is_met[node] &&
            scene_goes_to(scene, 0, source, token, r)) {
            is_met[node] = true;
            copies++;
        }
    }
    return copies;
}

static int32_t most_copies(struct seen *seen)
{
    int32_t most = 0;
    for (int32_t q = 0; q < seen->count[0]; q++) {
        const struct scene scene = scene_of(seen, q);
        for (int32_t r = 0; r < RANKS; r++) {
            for (int64_t t = 0; t < scene.of[0][r].tokens; t++) {
                const int32_t copies = copies_of(&scene, r, t);
                most = copies > most ? copies : most;
            }
        }
    }
    return most;
}

static void expect_bytes(struct seen *seen, const struct trial_result *result)
{
    for (int32_t r = 0; r < RANKS; r++) {
        uint64_t want[RANKS] = {0};
        for (int32_t q = 0; q < seen->count[r]; q++) {
            const struct scene scene = scene_of(seen, q);
            scene_add_bytes(&scene, 0, r, want);
        }
        for (int32_t p = 0; p < RANKS; p++) {
            assert_int_equal(result->ranks[r].peer_bytes[p], want[p]);
        }
    }
}

static void
a_group_limited_router_sends_a_token_to_so_many_nodes_and_bytes_are_the_formulas(void **state)
{
    (void)state;
    struct seen *seen = dp_new(struct seen);
    struct trial trial = trial_of(&grouped, seen);
    int32_t node_of[RANKS];
    for (int32_t r = 0; r < RANKS; r++) {
        node_of[r] = r * NODES / RANKS;
    }
    trial.limited_nodes = dp_alltoall_limited_nodes(RANKS, node_of, grouped.experts,
                                                    grouped.experts, NODES, grouped.top_groups);
    assert_int_equal(trial.limited_nodes, 2);
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    // Three layers of experts, two micro-batches, two steps.
    assert_int_equal(seen->count[0], 12);
    assert_int_equal(most_copies(seen), 2);
    expect_bytes(seen, &result);
    trial_result_deinit(&result);
    free(seen);
}

// The same without groups: tokens go to three other nodes, which a promise of two would not allow.
static void a_router_that_breaks_the_promise_is_named_with_the_token(void **state)
{
    (void)state;
    struct dp_model_spec model = grouped;
    model.expert_groups = model.top_groups = 0;
    for (int32_t limited = 0; limited <= 2; limited += 2) {
        struct seen *seen = dp_new(struct seen);
        struct trial trial = trial_of(&model, seen);
        trial.limited_nodes = limited;
        struct trial_result result;
        trial_run(&trial, &result);
        if (limited == 0) {
            trial_expect_ok(&result);
            assert_int_equal(most_copies(seen), 3);
            expect_bytes(seen, &result);
        } else {
            bool is_told = false;
            for (int32_t r = 0; r < RANKS; r++) {
                is_told = is_told || (result.ranks[r].status == DP_INVALID &&
                                      strstr(result.ranks[r].err.message, "nodes") != NULL);
            }
            assert_true(is_told);
        }
        trial_result_deinit(&result);
        free(seen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_group_limited_router_sends_a_token_to_so_many_nodes_and_bytes_are_the_formulas),
        cmocka_unit_test(a_router_that_breaks_the_promise_is_named_with_the_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
