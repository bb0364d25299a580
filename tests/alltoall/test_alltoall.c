// The all-to-all over every transport, bit for bit what the definition says (scene.h).
#include <pthread.h>
#include <sched.h>

#include "../comm/cluster.h"
#include "dp/alloc.h"
#include "dp/alltoall.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/collective.h"
#include "dp/group_exchanger.h"
#include "dp/rand.h"
#include "scene.h"

// What all ranks do, and how.
struct play {
    struct scene scene;
    cluster_kind kind;
    int32_t depth;
    int64_t chunk_bytes;
    int64_t tokens_max; // 0 = the scene's
    int32_t delay_us_max;
    bool is_sequential; // each routing's four moves before the next one's
    uint64_t seed;      // of yields between calls
};

// One rank's end.
struct actor {
    const struct play *play;
    struct dp_alltoall *alltoall;
    const struct dp_exchanger *exchanger;
    int32_t rank;
    struct dp_rand rand;
    struct dp_routing *routings[SCENE_ROUTINGS_MAX];
    int64_t arrived[SCENE_ROUTINGS_MAX];
    void *outputs[SCENE_ROUTINGS_MAX]; // of the move back that comes next, [arrived, hidden]
    void *weights[SCENE_ROUTINGS_MAX]; // [arrived, top_k]
    // Copies that are lent to a move to the experts: gone as soon as it has ended.
    void *lent[SCENE_ROUTINGS_MAX][2];
};

static void *move_rows(void *alltoall)
{
    dp_alltoall_progress(alltoall);
    return NULL;
}

// Gives others a chance to be first, differently in every run.
static void dawdle(struct actor *actor)
{
    for (uint64_t i = dp_rand_below(&actor->rand, 8); i > 0; i--) {
        sched_yield();
    }
}

static const void *lend(struct actor *actor, int32_t q, int part, const void *bytes, size_t length)
{
    void **lent = &actor->lent[q][part];
    free(*lent);
    *lent = dp_alloc_aligned(length, 1);
    memcpy(*lent, bytes, length);
    return *lent;
}

static void take_back(struct actor *actor, int32_t q)
{
    for (int part = 0; part < 2; part++) {
        free(actor->lent[q][part]);
        actor->lent[q][part] = NULL;
    }
}

static dp_status begin(struct actor *actor, int32_t q, dp_move move, struct dp_error *err)
{
    const struct scene *scene = &actor->play->scene;
    const struct scene_tokens *of = &scene->of[q][actor->rank];
    size_t tokens = (size_t)of->tokens;
    size_t weights = tokens * (size_t)scene->shape.top_k * scene->real;
    struct dp_load load = {.format = scene->shape.is_fp8 ? DP_WIRE_FP8 : DP_WIRE_ELEMENT};
    switch (move) {
    case DP_MOVE_DISPATCH:
        load.rows = lend(actor, q, 0, of->rows, tokens * scene->row);
        load.weights = lend(actor, q, 1, of->weights, weights);
        break;
    case DP_MOVE_COMBINE_INPUT:
        load.rows = lend(actor, q, 0, of->gradients, tokens * scene->row);
        break;
    default:
        load = (struct dp_load){.rows = actor->outputs[q]};
        load.weights = move == DP_MOVE_DISPATCH_INPUT ? actor->weights[q] : NULL;
        break;
    }
    dawdle(actor);
    dp_status status = DP_OK;
    if (move == DP_MOVE_DISPATCH) {
        status = actor->exchanger->route(actor->exchanger->context,
                                         dp_transport_tag(1, 2, (uint32_t)q, 3, 0), of->tokens,
                                         of->index, &actor->routings[q], err);
    }
    return status == DP_OK ? actor->exchanger->begin(actor->routings[q], move, &load, err) : status;
}

static void apply(struct actor *actor, int32_t q, bool is_backward,
                  const struct dp_arrivals *arrivals)
{
    const struct scene *scene = &actor->play->scene;
    size_t width = scene->shape.is_fp8 ? (size_t)scene->shape.hidden : scene->row;
    size_t weights = (size_t)scene->shape.top_k * scene->real;
    free(actor->outputs[q]);
    free(actor->weights[q]);
    actor->outputs[q] = dp_alloc_aligned((size_t)arrivals->tokens, scene->row);
    actor->weights[q] = dp_alloc_aligned((size_t)arrivals->tokens, weights);
    for (int64_t i = 0; i < arrivals->tokens; i++) {
        const char *row = (const char *)arrivals->rows + (size_t)i * width;
        const float *scales =
            arrivals->scales != NULL ? arrivals->scales + i * scene->scale_cols : NULL;
        scene_apply(scene, is_backward, actor->rank, row, scales,
                    (char *)actor->outputs[q] + (size_t)i * scene->row);
        scene_weight_gradients(scene, arrivals->expert + i * scene->shape.top_k, row,
                               (char *)actor->weights[q] + (size_t)i * weights);
    }
}

static dp_status end_forth(struct actor *actor, int32_t q, dp_move move, struct dp_error *err)
{
    struct dp_arrivals arrivals;
    EXPECT_OK(actor->exchanger->arrive(actor->routings[q], move, &arrivals, err));
    take_back(actor, q);
    EXPECT(actor->alltoall == NULL || actor->exchanger->landed_ns(actor->routings[q], move) > 0);
    const char *why = scene_check_arrivals(&actor->play->scene, q, actor->rank, move, &arrivals);
    if (why != NULL) {
        return dp_fail(err, DP_INTERNAL, "routing %d, move %d: %s", q, (int)move, why);
    }
    apply(actor, q, move == DP_MOVE_COMBINE_INPUT, &arrivals);
    dawdle(actor);
    actor->exchanger->finish(actor->routings[q], move);
    return DP_OK;
}

#define VALUES_MIN 256 // fewer are no sample for a mean

// DeepEP's tolerances (its tests/test_internode.py): 5e-6 where rows travel as they are, 5e-4 where
// the experts got E4M3; sums of weights are float throughout.
static dp_status check_distances(struct actor *actor, int32_t q, dp_move move, const void *rows,
                                 const void *weights, struct dp_error *err)
{
    const struct scene *scene = &actor->play->scene;
    if (scene->of[q][actor->rank].tokens * scene->shape.hidden < VALUES_MIN) {
        return DP_OK;
    }
    double most = scene->shape.is_fp8 ? 5e-4 : 5e-6;
    double far = scene_distance(scene, q, actor->rank, move, false, rows);
    if (far >= most) {
        return dp_fail(err, DP_INTERNAL, "routing %d, move %d: sums are %g off", q, (int)move, far);
    }
    far = move == DP_MOVE_DISPATCH_INPUT
              ? scene_distance(scene, q, actor->rank, move, true, weights)
              : 0;
    return far < 1e-9 ? DP_OK : dp_fail(err, DP_INTERNAL, "sums of weights are %g off", far);
}

static dp_status end_back(struct actor *actor, int32_t q, dp_move move, struct dp_error *err)
{
    const struct scene *scene = &actor->play->scene;
    size_t tokens = (size_t)scene->of[q][actor->rank].tokens;
    size_t weights_bytes = tokens * (size_t)scene->shape.top_k * scene->real;
    // What is not written stays NaN.
    DP_AUTO_FREE void *rows = dp_alloc_aligned(tokens, scene->row);
    DP_AUTO_FREE void *weights = dp_alloc_aligned(weights_bytes, 1);
    memset(rows, 0xff, tokens * scene->row);
    memset(weights, 0xff, weights_bytes);
    EXPECT_OK(actor->exchanger->collect(actor->routings[q], move, rows,
                                        move == DP_MOVE_DISPATCH_INPUT ? weights : NULL, err));
    free(actor->outputs[q]);
    free(actor->weights[q]);
    actor->outputs[q] = actor->weights[q] = NULL;
    const char *why = scene_check_sums(scene, q, actor->rank, move, rows, weights);
    if (why != NULL) {
        return dp_fail(err, DP_INTERNAL, "routing %d, move %d: %s", q, (int)move, why);
    }
    return check_distances(actor, q, move, rows, weights, err);
}

static dp_status end(struct actor *actor, int32_t q, dp_move move, struct dp_error *err)
{
    bool is_back = move == DP_MOVE_COMBINE || move == DP_MOVE_DISPATCH_INPUT;
    return is_back ? end_back(actor, q, move, err) : end_forth(actor, q, move, err);
}

static dp_status do_all(struct actor *actor, int32_t q, const dp_move *moves, int32_t count,
                        struct dp_error *err)
{
    for (int32_t i = 0; i < count; i++) {
        EXPECT_OK(begin(actor, q, moves[i], err));
        EXPECT_OK(end(actor, q, moves[i], err));
    }
    return DP_OK;
}

// A forward and a backward micro-batch side by side, in the order of DeepSeek's published trace:
// combine(B), dispatch(F), dispatch(B), combine(F), two of them under way at any time.
static dp_status do_pair(struct actor *actor, int32_t f, int32_t b, struct dp_error *err)
{
    EXPECT_OK(begin(actor, b, DP_MOVE_COMBINE_INPUT, err));
    EXPECT_OK(begin(actor, f, DP_MOVE_DISPATCH, err));
    EXPECT_OK(end(actor, b, DP_MOVE_COMBINE_INPUT, err));
    EXPECT_OK(begin(actor, b, DP_MOVE_DISPATCH_INPUT, err));
    EXPECT_OK(end(actor, f, DP_MOVE_DISPATCH, err));
    EXPECT_OK(begin(actor, f, DP_MOVE_COMBINE, err));
    EXPECT_OK(end(actor, b, DP_MOVE_DISPATCH_INPUT, err));
    return end(actor, f, DP_MOVE_COMBINE, err);
}

static const dp_move forward_moves[2] = {DP_MOVE_DISPATCH, DP_MOVE_COMBINE};
static const dp_move backward_moves[2] = {DP_MOVE_COMBINE_INPUT, DP_MOVE_DISPATCH_INPUT};

static dp_status act(struct actor *actor, struct dp_error *err)
{
    int32_t last = actor->play->scene.shape.routings - 1;
    if (actor->play->is_sequential) {
        for (int32_t q = 0; q <= last; q++) {
            EXPECT_OK(do_all(actor, q, forward_moves, 2, err));
            EXPECT_OK(do_all(actor, q, backward_moves, 2, err));
        }
        return DP_OK;
    }
    EXPECT_OK(do_all(actor, 0, forward_moves, 2, err));
    for (int32_t q = 1; q <= last; q++) {
        EXPECT_OK(do_pair(actor, q, q - 1, err));
    }
    return do_all(actor, last, backward_moves, 2, err);
}

static dp_status check_bytes(struct actor *actor, struct dp_error *err)
{
    const struct scene *scene = &actor->play->scene;
    uint64_t want[SCENE_RANKS_MAX] = {0}, got[SCENE_RANKS_MAX], near = 0, far = 0;
    struct dp_alltoall_stats stats;
    for (int32_t q = 0; q < scene->shape.routings; q++) {
        scene_add_bytes(scene, q, actor->rank, want);
    }
    dp_alltoall_stats(actor->alltoall, &stats, got);
    for (int32_t r = 0; r < scene->shape.ranks; r++) {
        bool is_near = scene->shape.node_of[r] == scene->shape.node_of[actor->rank];
        *(is_near ? &near : &far) += want[r];
        if (got[r] != want[r]) {
            return dp_fail(err, DP_INTERNAL, "%llu bytes put to rank %d instead of %llu",
                           (unsigned long long)got[r], r, (unsigned long long)want[r]);
        }
    }
    EXPECT(stats.scale_up_bytes == near && stats.scale_out_bytes == far);
    for (int move = 0; move < 4; move++) {
        EXPECT(stats.moves[move] == (uint64_t)scene->shape.routings && stats.move_ns[move] > 0);
    }
    return DP_OK;
}

static dp_status open_end(const struct play *play, struct dp_transport *transport, uint32_t window,
                          struct dp_alltoall **ret_alltoall, struct dp_error *err)
{
    const struct scene_shape *shape = &play->scene.shape;
    int32_t ranks[SCENE_RANKS_MAX];
    for (int32_t i = 0; i < shape->ranks; i++) {
        ranks[i] = i;
    }
    struct dp_alltoall_config config = {
        .transport = transport,
        .window = window,
        .ranks = ranks,
        .count = shape->ranks,
        .node_of = shape->node_of,
        .element = shape->element,
        .experts = play->scene.experts,
        .top_k = shape->top_k,
        .hidden = shape->hidden,
        .tokens_max = play->tokens_max > 0 ? play->tokens_max : shape->tokens_max,
        .depth = play->depth,
        .chunk_bytes = play->chunk_bytes,
        .blocked_ms = 60000,
    };
    return dp_alltoall_open(&config, 0, ret_alltoall, err);
}

static dp_status play_rank(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct play *play = context;
    struct actor actor = {.play = play, .rank = dp_transport_rank(transport)};
    dp_rand_init(&actor.rand, dp_rand_mix(play->seed, (uint64_t)actor.rank));
    if (play->delay_us_max > 0) {
        dp_transport_set_fault(
            transport, &(struct dp_transport_fault){.seed = play->seed + (uint64_t)actor.rank,
                                                    .delay_us_max = play->delay_us_max});
    }
    EXPECT_OK(open_end(play, transport, 3, &actor.alltoall, err));
    actor.exchanger = dp_alltoall_exchanger(actor.alltoall);
    pthread_t mover;
    pthread_create(&mover, NULL, move_rows, actor.alltoall);
    dp_status status = act(&actor, err);
    if (status != DP_OK) {
        dp_alltoall_abort(actor.alltoall, status, err->message);
        dp_transport_abort(transport, status, err->message);
    }
    int64_t deadline_ns = dp_clock_monotonic_ns() + 120 * DP_NS_PER_S;
    bool is_well = status == DP_OK;
    dp_status closed = dp_alltoall_close(actor.alltoall, deadline_ns, is_well ? err : NULL);
    status = is_well ? closed : status;
    pthread_join(mover, NULL);
    if (status == DP_OK) {
        status = check_bytes(&actor, err);
    }
    for (int32_t q = 0; q < play->scene.shape.routings; q++) {
        actor.exchanger->release(actor.routings[q]);
        free(actor.outputs[q]);
        free(actor.weights[q]);
        take_back(&actor, q);
    }
    dp_alltoall_free(actor.alltoall);
    return status;
}

// The same by messages of a group, which know nothing of nodes.
static dp_status play_group(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct play *play = context;
    const struct scene_shape *shape = &play->scene.shape;
    struct actor actor = {.play = play, .rank = dp_transport_rank(transport)};
    int32_t ranks[SCENE_RANKS_MAX];
    for (int32_t i = 0; i < shape->ranks; i++) {
        ranks[i] = i;
    }
    struct dp_group group;
    struct dp_device *device;
    dp_rand_init(&actor.rand, dp_rand_mix(play->seed, (uint64_t)actor.rank));
    EXPECT_OK(dp_device_open_cpu(shape->element, &device, err));
    EXPECT_OK(dp_group_init(&group, transport, 1, ranks, shape->ranks, err));
    struct dp_group_exchanger_config config = {.group = &group,
                                               .device = device,
                                               .hidden = (int32_t)shape->hidden,
                                               .top_k = shape->top_k,
                                               .experts = play->scene.experts};
    struct dp_group_exchanger *exchanger = dp_group_exchanger_new(&config);
    actor.exchanger = dp_group_exchanger_interface(exchanger);
    dp_status status = act(&actor, err);
    for (int32_t q = 0; q < shape->routings; q++) {
        actor.exchanger->release(actor.routings[q]);
        free(actor.outputs[q]);
        free(actor.weights[q]);
        take_back(&actor, q);
    }
    dp_group_exchanger_free(exchanger);
    dp_group_deinit(&group);
    dp_device_close(device);
    return status;
}

static void run_play(struct play *play, const struct scene_shape *shape)
{
    scene_make(&play->scene, shape);
    cluster_run(play->kind, shape->ranks, play_rank, play);
    scene_drop(&play->scene);
}

static const char *const kind_names[CLUSTER_KINDS] = {
    [CLUSTER_LOOPBACK] = "loopback", [CLUSTER_TCP] = "tcp",   [CLUSTER_SHM] = "shm",
    [CLUSTER_VERBS] = "verbs",       [CLUSTER_MESH] = "mesh", [CLUSTER_SLOW] = "slow",
};

// Ranks on nodes, evenly and not.
static const struct {
    int32_t ranks, node_of[8];
} groups[] = {
    {1, {0}},
    {2, {0, 0}},
    {2, {0, 1}},
    {3, {0, 0, 0}},
    {3, {0, 1, 0}},
    {4, {0, 0, 1, 1}},
    {4, {1, 0, 0, 0}},
    {6, {0, 0, 1, 1, 2, 2}},
    {6, {0, 1, 1, 1, 2, 1}},
    {8, {0, 0, 0, 0, 0, 0, 0, 0}},
    {8, {0, 0, 1, 1, 2, 2, 3, 3}},
    {8, {0, 1, 2, 3, 0, 1, 2, 3}},
    {8, {0, 0, 0, 1, 1, 2, 2, 2}},
};

static struct scene_shape shape_of(size_t group, struct dp_rand *rand)
{
    static const int64_t hiddens[] = {16, 17, 100, 1, 129, 256};
    struct scene_shape shape = {
        .seed = dp_rand_u64(rand),
        .kind = (scene_kind)dp_rand_below(rand, SCENE_KINDS),
        .ranks = groups[group].ranks,
        .own = 1 + (int32_t)dp_rand_below(rand, 4),
        .top_k = 1 + (int32_t)dp_rand_below(rand, 8),
        .routings = 3,
        .hidden = hiddens[dp_rand_below(rand, DP_ARRAY_LENGTH(hiddens))],
        .tokens_max = 1 + (int64_t)dp_rand_below(rand, 40),
        .element = (dp_element)dp_rand_below(rand, 3),
        .is_fp8 = dp_rand_below(rand, 4) == 0,
    };
    memcpy(shape.node_of, groups[group].node_of, sizeof groups[group].node_of);
    return shape;
}

static void sweep(cluster_kind kind, long runs)
{
    for (long run = 0; run < runs; run++) {
        struct dp_rand rand;
        dp_rand_init(&rand, (uint64_t)run * CLUSTER_KINDS + kind);
        struct scene_shape shape = shape_of((size_t)run % DP_ARRAY_LENGTH(groups), &rand);
        struct play play = {
            .kind = kind,
            .depth = 1 + (int32_t)dp_rand_below(&rand, 3),
            .chunk_bytes = 1 + (int64_t)dp_rand_below(&rand, 3000),
            .is_sequential = dp_rand_below(&rand, 2) == 0,
            .seed = dp_rand_u64(&rand),
        };
        print_message("%s run %ld: %d ranks, kind %d, hidden %lld, top %d, %lld tokens\n",
                      kind_names[kind], run, shape.ranks, (int)shape.kind, (long long)shape.hidden,
                      shape.top_k, (long long)shape.tokens_max);
        run_play(&play, &shape);
    }
}

static void all_moves_are_bitwise_right_over_loopback(void **state)
{
    (void)state;
    sweep(CLUSTER_LOOPBACK, dp_fuzz_runs(52));
}

static void all_moves_are_bitwise_right_over_shared_memory(void **state)
{
    (void)state;
    sweep(CLUSTER_SHM, dp_fuzz_runs(26));
}

static void all_moves_are_bitwise_right_over_tcp(void **state)
{
    (void)state;
    sweep(CLUSTER_TCP, dp_fuzz_runs(26));
}

static void all_moves_are_bitwise_right_over_a_mesh_of_two_nodes(void **state)
{
    (void)state;
    sweep(CLUSTER_MESH, dp_fuzz_runs(26));
}

static void all_moves_are_bitwise_right_over_queue_pairs(void **state)
{
    (void)state;
    sweep(CLUSTER_VERBS, dp_fuzz_runs(13));
}

static void all_moves_are_bitwise_right_over_slow_links(void **state)
{
    (void)state;
    sweep(CLUSTER_SLOW, dp_fuzz_runs(13));
}

// One node: messages of a group must give the very bits that windows give.
static void messages_of_a_group_give_the_same_bits_on_one_node(void **state)
{
    (void)state;
    for (long run = 0; run < 24; run++) {
        struct dp_rand rand;
        dp_rand_init(&rand, (uint64_t)run);
        struct scene_shape shape = shape_of(DP_ARRAY_LENGTH(groups) - 1, &rand);
        struct play play = {.kind = CLUSTER_LOOPBACK, .depth = 1, .is_sequential = run % 2 == 0};
        shape.ranks = 1 + (int32_t)run % 6;
        shape.is_fp8 = false;
        memset(shape.node_of, 0, sizeof shape.node_of);
        run_play(&play, &shape);
        scene_make(&play.scene, &shape);
        cluster_run(play.kind, shape.ranks, play_group, &play);
        scene_drop(&play.scene);
    }
}

static struct scene_shape two_nodes(int32_t ranks)
{
    struct scene_shape shape = {
        .seed = 11,
        .ranks = ranks,
        .own = 2,
        .top_k = 4,
        .routings = 2,
        .hidden = 33,
        .tokens_max = 20,
        .element = DP_BF16,
    };
    for (int32_t r = 0; r < ranks; r++) {
        shape.node_of[r] = r < (ranks + 1) / 2 ? 0 : 1;
    }
    return shape;
}

// Every run is compared with the same definition, so they are equal to each other.
static void fifty_runs_with_other_delays_give_the_same_bits(void **state)
{
    (void)state;
    for (long run = 0; run < 50; run++) {
        struct scene_shape shape = two_nodes(4);
        struct play play = {
            .kind = run % 2 == 0 ? CLUSTER_LOOPBACK : CLUSTER_TCP,
            .depth = 1,
            .chunk_bytes = 200,
            .delay_us_max = 40,
            .seed = (uint64_t)run,
        };
        run_play(&play, &shape);
    }
}

// Numbers of ranks that are no power of two have hung published kernels.
static void three_ranks_and_twenty_four_work_like_two(void **state)
{
    (void)state;
    static const int32_t ranks[] = {3, 5, 7, 24};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(ranks); i++) {
        struct scene_shape shape = two_nodes(ranks[i]);
        shape.hidden = 16;
        shape.tokens_max = 6;
        struct play play = {.kind = CLUSTER_LOOPBACK, .depth = 1, .seed = i};
        run_play(&play, &shape);
    }
}

static void every_chunk_depth_and_number_of_rows_in_flight_gives_the_same(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= 9; rows += rows < 4 ? 1 : 5) {
        for (int32_t depth = 1; depth <= DP_ALLTOALL_DEPTH_MAX; depth++) {
            struct scene_shape shape = two_nodes(5);
            shape.routings = 3;
            struct play play = {
                .kind = depth % 2 == 0 ? CLUSTER_SHM : CLUSTER_TCP,
                .depth = depth,
                .chunk_bytes = rows * 66,
                .seed = (uint64_t)(rows * 10 + depth),
            };
            run_play(&play, &shape);
        }
    }
}

// Ranks 0 and 1 are one group on one node, 2 and 3 another on two: their windows need other sizes.
static dp_status open_as_groups(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    static const int32_t members[2][2] = {{0, 1}, {2, 3}}, nodes[2][2] = {{0, 0}, {0, 1}};
    int group = dp_transport_rank(transport) / 2;
    struct dp_alltoall *alltoall;
    struct dp_alltoall_config config = {.transport = transport,
                                        .ranks = members[group],
                                        .count = 2,
                                        .node_of = nodes[group],
                                        .element = DP_F64,
                                        .experts = 4,
                                        .top_k = 2,
                                        .hidden = 64,
                                        .tokens_max = 100};
    EXPECT_OK(dp_alltoall_open(&config, 0, &alltoall, err));
    pthread_t mover;
    pthread_create(&mover, NULL, move_rows, alltoall);
    dp_status status =
        dp_alltoall_close(alltoall, dp_clock_monotonic_ns() + 120 * DP_NS_PER_S, err);
    pthread_join(mover, NULL);
    dp_alltoall_free(alltoall);
    return status;
}

static void groups_that_lie_differently_on_nodes_open_the_same_window(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 4, open_as_groups, NULL);
    cluster_run(CLUSTER_TCP, 4, open_as_groups, NULL);
}

static void more_than_thirty_two_experts_of_a_token_work(void **state)
{
    (void)state;
    struct scene_shape shape = two_nodes(3);
    shape.top_k = 40;
    shape.own = 30;
    struct play play = {.kind = CLUSTER_LOOPBACK, .depth = 1};
    run_play(&play, &shape);
}

static void a_rank_without_tokens_takes_part_in_every_move(void **state)
{
    (void)state;
    for (int kind = 0; kind < CLUSTER_KINDS; kind++) {
        struct scene_shape shape = two_nodes(4);
        shape.kind = SCENE_EMPTY_RANK;
        shape.seed = (uint64_t)kind;
        struct play play = {.kind = (cluster_kind)kind, .depth = 1};
        run_play(&play, &shape);
    }
}

// The areas of a window of 13 GB begin on both sides of 2^31 and 2^32; only pages that rows reach
// are ever touched.
static void windows_beyond_four_gib_are_addressed_rightly(void **state)
{
    (void)state;
    struct scene_shape shape = two_nodes(2);
    shape.node_of[1] = 0;
    shape.hidden = 1024;
    shape.element = DP_F32;
    struct play play = {.kind = CLUSTER_LOOPBACK, .depth = 1, .tokens_max = 400000};
    run_play(&play, &shape);
}

// A published queue lost count beyond 9180.
static void ten_thousand_tokens_of_one_expert_arrive(void **state)
{
    (void)state;
    struct scene_shape shape = two_nodes(2);
    shape.kind = SCENE_ALL_TO_ONE;
    shape.routings = 1;
    shape.top_k = 1;
    shape.hidden = 4;
    shape.tokens_max = 30000;
    struct play play = {.kind = CLUSTER_SHM, .depth = 1};
    scene_make(&play.scene, &shape);
    assert_true(play.scene.of[0][0].tokens > 9180);
    scene_drop(&play.scene);
    run_play(&play, &shape);
}

// More than a note can tell of: what goes ahead of the rows, for all tokens at once.
static void three_hundred_thousand_tokens_cross_a_link(void **state)
{
    (void)state;
    struct scene_shape shape = two_nodes(2);
    shape.kind = SCENE_ALL_TO_ONE;
    shape.seed = 7;
    shape.routings = 1;
    shape.top_k = 1;
    shape.hidden = 1;
    shape.tokens_max = 300000;
    struct play play = {.kind = CLUSTER_TCP, .depth = 1};
    scene_make(&play.scene, &shape);
    assert_true(play.scene.of[0][0].tokens > 1 << 18);
    scene_drop(&play.scene);
    run_play(&play, &shape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_moves_are_bitwise_right_over_loopback),
        cmocka_unit_test(all_moves_are_bitwise_right_over_shared_memory),
        cmocka_unit_test(all_moves_are_bitwise_right_over_tcp),
        cmocka_unit_test(all_moves_are_bitwise_right_over_a_mesh_of_two_nodes),
        cmocka_unit_test(all_moves_are_bitwise_right_over_queue_pairs),
        cmocka_unit_test(all_moves_are_bitwise_right_over_slow_links),
        cmocka_unit_test(messages_of_a_group_give_the_same_bits_on_one_node),
        cmocka_unit_test(fifty_runs_with_other_delays_give_the_same_bits),
        cmocka_unit_test(three_ranks_and_twenty_four_work_like_two),
        cmocka_unit_test(every_chunk_depth_and_number_of_rows_in_flight_gives_the_same),
        cmocka_unit_test(groups_that_lie_differently_on_nodes_open_the_same_window),
        cmocka_unit_test(more_than_thirty_two_experts_of_a_token_work),
        cmocka_unit_test(a_rank_without_tokens_takes_part_in_every_move),
        cmocka_unit_test(windows_beyond_four_gib_are_addressed_rightly),
        cmocka_unit_test(ten_thousand_tokens_of_one_expert_arrive),
        cmocka_unit_test(three_hundred_thousand_tokens_cross_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
