// The layout against a second implementation that goes the other way round: it asks of every token,
// rank and node whether they meet, and counts.
#include "dp_test.h"

#include "dp/alloc.h"
#include "dp/alltoall_layout.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

#define RANKS_MAX 70

// A random group: its routing of every rank is kept, as no rank has it.
struct world {
    struct dp_alltoall_topology topology;
    int32_t node_of[RANKS_MAX];
    int32_t ranks, nodes, experts, top_k;
    int64_t tokens[RANKS_MAX];
    int32_t *index[RANKS_MAX];
};

static void fill_index(struct world *world, struct dp_rand *rand, int32_t rank)
{
    int64_t slots = world->tokens[rank] * world->top_k;
    world->index[rank] = dp_new_array(int32_t, (size_t)slots);
    uint64_t kind = dp_rand_below(rand, 4);
    for (int64_t i = 0; i < slots; i++) {
        int32_t any = (int32_t)dp_rand_below(rand, (uint64_t)world->experts);
        bool is_masked = kind == 1 && dp_rand_below(rand, 3) == 0;
        world->index[rank][i] = is_masked ? -1 : kind == 2 ? world->experts - 1 : any;
    }
}

static void make_world(struct world *world, uint64_t seed)
{
    struct dp_rand rand;
    struct dp_error err;
    dp_rand_init(&rand, seed);
    *world = (struct world){0};
    world->ranks = 1 + (int32_t)dp_rand_below(&rand, seed % 8 == 0 ? RANKS_MAX : 9);
    world->nodes = 1 + (int32_t)dp_rand_below(&rand, world->ranks < 4 ? (uint64_t)world->ranks : 4);
    world->experts = world->ranks * (1 + (int32_t)dp_rand_below(&rand, 5));
    world->top_k = 1 + (int32_t)dp_rand_below(&rand, seed % 5 == 0 ? 40 : 8);
    for (int32_t r = 0; r < world->ranks; r++) {
        // The first ranks see to it that no node is empty; the rest sit anywhere.
        world->node_of[r] =
            r < world->nodes ? r : (int32_t)dp_rand_below(&rand, (uint64_t)world->nodes);
        world->tokens[r] = (int64_t)dp_rand_below(&rand, 20);
        fill_index(world, &rand, r);
    }
    assert_ok(dp_alltoall_topology_init(&world->topology, world->ranks, world->node_of, &err),
              &err);
}

static void drop_world(struct world *world)
{
    for (int32_t r = 0; r < world->ranks; r++) {
        free(world->index[r]);
    }
    dp_alltoall_topology_deinit(&world->topology);
}

static bool goes_to_rank(const struct world *world, int32_t source, int64_t token, int32_t rank)
{
    for (int32_t k = 0; k < world->top_k; k++) {
        int32_t expert = world->index[source][token * world->top_k + k];
        for (int32_t e = 0; e < world->experts / world->ranks; e++) {
            if (expert == rank * (world->experts / world->ranks) + e) {
                return true;
            }
        }
    }
    return false;
}

static bool goes_to_node(const struct world *world, int32_t source, int64_t token, int32_t node)
{
    for (int32_t r = 0; r < world->ranks; r++) {
        if (world->node_of[r] == node && goes_to_rank(world, source, token, r)) {
            return true;
        }
    }
    return false;
}

static void check_source(const struct world *world, int32_t source)
{
    struct dp_error err;
    struct dp_alltoall_layout layout;
    assert_ok(dp_alltoall_layout_init(&layout, &world->topology, world->experts,
                                      world->tokens[source], world->top_k, world->index[source], -1,
                                      0, &err),
              &err);
    int64_t entry = 0, via = 0;
    for (int32_t n = 0; n < world->nodes; n++) {
        int32_t in_node = 0;
        assert_int_equal(layout.node_start[n], entry);
        for (int64_t t = 0; t < world->tokens[source]; t++) {
            if (!goes_to_node(world, source, t, n)) {
                continue;
            }
            in_node++;
            assert_int_equal(layout.node_token[entry], t);
            assert_int_equal(layout.via_start[entry++], via);
            for (int32_t r = 0; r < world->ranks; r++) {
                if (world->node_of[r] == n && goes_to_rank(world, source, t, r)) {
                    assert_int_equal(layout.via[via++], r);
                }
            }
        }
        assert_int_equal(layout.node_tokens[n], in_node);
    }
    assert_int_equal(layout.via_start[entry], via);
    for (int32_t r = 0; r < world->ranks; r++) {
        int32_t in_rank = 0;
        for (int64_t t = 0; t < world->tokens[source]; t++) {
            bool goes = goes_to_rank(world, source, t, r);
            in_rank += goes;
            assert_int_equal(layout.in_rank[t * layout.words + r / 64] >> r % 64 & 1, goes);
        }
        assert_int_equal(layout.rank_tokens[r], in_rank);
    }
    for (int32_t e = 0; e < world->experts; e++) {
        int32_t slots = 0;
        for (int64_t i = 0; i < world->tokens[source] * world->top_k; i++) {
            slots += world->index[source][i] == e;
        }
        assert_int_equal(layout.expert_tokens[e], slots);
    }
    dp_alltoall_layout_deinit(&layout);
}

static void tokens_of_ranks_nodes_and_experts_are_those_of_brute_force(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct world world;
        make_world(&world, (uint64_t)run);
        for (int32_t s = 0; s < world.ranks; s++) {
            check_source(&world, s);
        }
        drop_world(&world);
    }
}

static int32_t rank_count(const struct world *world, int32_t source, int32_t rank)
{
    int32_t count = 0;
    for (int64_t t = 0; t < world->tokens[source]; t++) {
        count += goes_to_rank(world, source, t, rank);
    }
    return count;
}

static void make_counts(const struct world *world, struct dp_alltoall_counts *counts)
{
    dp_alltoall_counts_init(counts, &world->topology);
    for (int32_t s = 0; s < world->ranks; s++) {
        counts->tokens[s] = (int32_t)world->tokens[s];
        for (int32_t r = 0; r < world->ranks; r++) {
            counts->to_rank[s * world->ranks + r] = rank_count(world, s, r);
        }
        for (int64_t t = 0; t < world->tokens[s]; t++) {
            for (int32_t n = 0; n < world->nodes; n++) {
                counts->to_node[s * world->nodes + n] += goes_to_node(world, s, t, n);
            }
        }
    }
}

// Who passes on, found by walking the ranks instead of by lists.
static int32_t forwarder(const struct world *world, int32_t source, int32_t node)
{
    int32_t local = 0, size = 0;
    for (int32_t r = 0; r < world->ranks; r++) {
        local += r < source && world->node_of[r] == world->node_of[source];
        size += world->node_of[r] == node;
    }
    for (int32_t r = 0, place = 0; r < world->ranks; r++) {
        if (world->node_of[r] == node && place++ == local % size) {
            return r;
        }
    }
    return -1;
}

// Sends every token of every rank over the way that the design describes, one by one.
static void put_all(const struct world *world, bool is_back, uint64_t row, uint64_t *bytes)
{
    for (int32_t s = 0; s < world->ranks; s++) {
        for (int64_t t = 0; t < world->tokens[s]; t++) {
            for (int32_t n = 0; n < world->nodes; n++) {
                int32_t f = forwarder(world, s, n);
                if (goes_to_node(world, s, t, n) && f != s) {
                    bytes[is_back ? f * world->ranks + s : s * world->ranks + f] += row;
                }
                for (int32_t r = 0; r < world->ranks; r++) {
                    if (world->node_of[r] == n && r != f && goes_to_rank(world, s, t, r)) {
                        bytes[is_back ? r * world->ranks + f : f * world->ranks + r] += row;
                    }
                }
            }
        }
    }
}

static void check_bytes(const struct world *world, const struct dp_alltoall_counts *counts)
{
    struct dp_alltoall_widths widths = {.row = 1000, .scales = 100, .index = 10, .weights = 1};
    static const uint64_t rows[4] = {
        [DP_MOVE_DISPATCH] = 1111,
        [DP_MOVE_COMBINE] = 1000,
        [DP_MOVE_COMBINE_INPUT] = 1100,
        [DP_MOVE_DISPATCH_INPUT] = 1001,
    };
    for (int move = 0; move < 4; move++) {
        DP_AUTO_FREE uint64_t *want =
            dp_new_array(uint64_t, (size_t)world->ranks * (size_t)world->ranks);
        put_all(world, move == DP_MOVE_COMBINE || move == DP_MOVE_DISPATCH_INPUT, rows[move], want);
        for (int32_t r = 0; r < world->ranks; r++) {
            uint64_t got[RANKS_MAX];
            dp_alltoall_link_bytes(&world->topology, counts, &widths, (dp_move)move, r, got);
            for (int32_t to = 0; to < world->ranks; to++) {
                uint64_t more = move == DP_MOVE_DISPATCH && to != r
                                    ? (uint64_t)(world->ranks + world->nodes + 3) * 4
                                    : 0;
                assert_int_equal(got[to], want[r * world->ranks + to] + more);
            }
        }
    }
}

static void bytes_of_each_link_are_those_of_tokens_sent_one_by_one(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct world world;
        struct dp_alltoall_counts counts;
        make_world(&world, (uint64_t)run);
        make_counts(&world, &counts);
        check_bytes(&world, &counts);
        dp_alltoall_counts_deinit(&counts);
        drop_world(&world);
    }
}

// Peers must agree on every link about what crosses it, also where nothing does.
static void the_way_back_mirrors_the_way_there_on_every_link(void **state)
{
    (void)state;
    struct dp_alltoall_widths row = {.row = 1};
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct world world;
        struct dp_alltoall_counts counts;
        make_world(&world, (uint64_t)run);
        make_counts(&world, &counts);
        uint64_t there[RANKS_MAX][RANKS_MAX], back[RANKS_MAX][RANKS_MAX];
        for (int32_t r = 0; r < world.ranks; r++) {
            dp_alltoall_link_bytes(&world.topology, &counts, &row, DP_MOVE_COMBINE_INPUT, r,
                                   there[r]);
            dp_alltoall_link_bytes(&world.topology, &counts, &row, DP_MOVE_COMBINE, r, back[r]);
        }
        for (int32_t r = 0; r < world.ranks; r++) {
            for (int32_t to = 0; to < world.ranks; to++) {
                assert_int_equal(there[r][to], back[to][r]);
            }
        }
        dp_alltoall_counts_deinit(&counts);
        drop_world(&world);
    }
}

// Lists what a rank receives, and what a forwarder has to add up, in the order that it must have.
static void check_places(const struct world *world, const struct dp_alltoall_counts *counts)
{
    for (int32_t r = 0; r < world->ranks; r++) {
        int64_t received = 0, partial = 0;
        for (int32_t s = 0; s < world->ranks; s++) {
            assert_int_equal(dp_alltoall_receive_offset(&world->topology, counts, r, s), received);
            received += rank_count(world, s, r);
            if (forwarder(world, s, world->node_of[r]) != r) {
                continue;
            }
            for (int32_t from = 0; from < world->ranks; from++) {
                if (world->node_of[from] == world->node_of[r] && from != r) {
                    assert_int_equal(dp_alltoall_partial_offset(&world->topology, counts, from, s),
                                     partial);
                    partial += rank_count(world, s, from);
                }
            }
        }
    }
}

static void places_follow_source_and_rank_without_gaps(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct world world;
        struct dp_alltoall_counts counts;
        make_world(&world, (uint64_t)run);
        make_counts(&world, &counts);
        check_places(&world, &counts);
        dp_alltoall_counts_deinit(&counts);
        drop_world(&world);
    }
}

static void forwarders_are_on_the_rail_and_serve_every_source_once(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct world world;
        make_world(&world, (uint64_t)run);
        for (int32_t r = 0; r < world.ranks; r++) {
            int32_t served = 0;
            for (int32_t s = 0; s < world.ranks; s++) {
                int32_t f = dp_alltoall_forwarder(&world.topology, s, world.node_of[r]);
                assert_int_equal(f, forwarder(&world, s, world.node_of[r]));
                bool is_served = f == r && world.node_of[s] != world.node_of[r];
                assert_int_equal(dp_alltoall_served_place(&world.topology, r, s),
                                 is_served ? served : -1);
                served += is_served;
            }
            assert_int_equal(dp_alltoall_served(&world.topology, r), served);
        }
        drop_world(&world);
    }
}

static void a_token_on_more_nodes_than_promised_is_named(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_alltoall_topology topology;
    struct dp_alltoall_layout layout;
    const int32_t node_of[4] = {0, 0, 1, 2};
    const int32_t index[6] = {0, 3, 1, 4, 2, 7};
    assert_ok(dp_alltoall_topology_init(&topology, 4, node_of, &err), &err);
    assert_ok(dp_alltoall_layout_init(&layout, &topology, 8, 3, 2, index, -1, 2, &err), &err);
    dp_alltoall_layout_deinit(&layout);
    assert_refused(dp_alltoall_layout_init(&layout, &topology, 8, 3, 2, index, -1, 1, &err),
                   DP_INVALID, &err, "token 1 has experts on 2 nodes");
    const int32_t outside[2] = {0, 8};
    assert_refused(dp_alltoall_layout_init(&layout, &topology, 8, 1, 2, outside, -1, 0, &err),
                   DP_INVALID, &err, "slot 1 of token 0 has expert 8");
    dp_alltoall_topology_deinit(&topology);
    const int32_t gap[2] = {0, 2};
    assert_refused(dp_alltoall_topology_init(&topology, 3, (const int32_t[]){0, 2, 2}, &err),
                   DP_INVALID, &err, "on node 1");
    assert_refused(dp_alltoall_topology_init(&topology, 2, gap, &err), DP_INVALID, &err,
                   "rank 1 of the group is on node 2");
}

// Every choice of two groups, the experts of which lie where slots do: no choice meets more nodes.
static int32_t most_nodes(int32_t ranks, const int32_t *node_of, int32_t slots, int32_t experts,
                          int32_t groups)
{
    int32_t most = 0;
    for (int32_t a = 0; a < groups; a++) {
        for (int32_t b = 0; b < a; b++) {
            uint64_t met = 0;
            for (int32_t s = 0; s < slots; s++) {
                int32_t group = s % experts * groups / experts;
                met |= group == a || group == b ? 1ull << node_of[s * ranks / slots] : 0;
            }
            int32_t nodes = __builtin_popcountll(met);
            most = nodes > most ? nodes : most;
        }
    }
    return most;
}

static void two_groups_of_experts_reach_no_more_nodes_than_promised(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(500); run++) {
        struct dp_rand rand;
        dp_rand_init(&rand, (uint64_t)run);
        int32_t node_of[12], nodes = 1 + (int32_t)dp_rand_below(&rand, 4);
        int32_t ranks = 4 * (1 + (int32_t)dp_rand_below(&rand, 3));
        int32_t groups = 3 + (int32_t)dp_rand_below(&rand, 6);
        int32_t experts = ranks * groups;
        int32_t slots = experts + ranks * (int32_t)dp_rand_below(&rand, 3);
        for (int32_t r = 0; r < ranks; r++) {
            node_of[r] = r < nodes ? r : (int32_t)dp_rand_below(&rand, (uint64_t)nodes);
        }
        int32_t most = most_nodes(ranks, node_of, slots, experts, groups);
        int32_t promised = dp_alltoall_limited_nodes(ranks, node_of, slots, experts, groups, 2);
        assert_true(promised >= most && promised <= 2 * nodes);
    }
}

// DeepSeek-V3: 256 experts in 8 groups, of which a token takes 4, on 64 ranks of 8 nodes; a token
// then crosses to 4 nodes at most (arXiv 2412.19437, section 2.1.2).
static void what_group_limited_routers_promise_is_as_published(void **state)
{
    (void)state;
    int32_t node_of[64];
    for (int32_t r = 0; r < 64; r++) {
        node_of[r] = r / 8;
    }
    assert_int_equal(dp_alltoall_limited_nodes(64, node_of, 256, 256, 8, 4), 4);
    // Half as many nodes have two groups each; a group over two nodes counts twice.
    assert_int_equal(dp_alltoall_limited_nodes(32, node_of, 256, 256, 8, 1), 1);
    assert_int_equal(dp_alltoall_limited_nodes(64, node_of, 256, 256, 4, 1), 2);
    // Three groups of which one lies on two nodes: with any other it reaches three.
    assert_int_equal(dp_alltoall_limited_nodes(6, (const int32_t[]){0, 1, 2, 2, 2, 2}, 6, 6, 3, 2),
                     3);
    // A router that may choose from everywhere promises nothing.
    assert_int_equal(dp_alltoall_limited_nodes(64, node_of, 256, 256, 8, 8), 0);
    assert_int_equal(dp_alltoall_limited_nodes(64, node_of, 256, 256, 1, 1), 0);
    assert_int_equal(dp_alltoall_limited_nodes(64, node_of, 256, 256, 0, 0), 0);
    assert_int_equal(dp_alltoall_limited_nodes(64, NULL, 256, 256, 8, 1), 1);
}

// More than 9181 tokens of one expert, where a published queue lost count.
static void an_expert_that_gets_all_of_ten_thousand_tokens_counts_them(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_alltoall_topology topology;
    struct dp_alltoall_layout layout;
    DP_AUTO_FREE int32_t *index = dp_new_array(int32_t, 70000);
    for (int32_t i = 0; i < 70000; i++) {
        index[i] = 5;
    }
    assert_ok(dp_alltoall_topology_init(&topology, 2, NULL, &err), &err);
    assert_ok(dp_alltoall_layout_init(&layout, &topology, 6, 70000, 1, index, -1, 0, &err), &err);
    assert_int_equal(layout.expert_tokens[5], 70000);
    assert_int_equal(layout.rank_tokens[1], 70000);
    assert_int_equal(layout.rank_tokens[0], 0);
    dp_alltoall_layout_deinit(&layout);
    dp_alltoall_topology_deinit(&topology);
}

static int32_t list_areas(const struct dp_alltoall_regions *regions, int32_t depth,
                          struct dp_alltoall_area *areas)
{
    int32_t count = 0;
    for (int move = 0; move < 4; move++) {
        for (int32_t i = 0; i < depth; i++) {
            struct dp_alltoall_area all[DP_ALLTOALL_AREAS];
            assert_int_equal(sizeof all, sizeof regions->lanes[move][i]);
            memcpy(all, &regions->lanes[move][i], sizeof all);
            for (int32_t j = 0; j < DP_ALLTOALL_AREAS; j++) {
                if (all[j].bytes > 0) {
                    areas[count++] = all[j];
                }
            }
        }
    }
    return count;
}

// A size that is told ahead and the areas that are carved out of it are one thing.
static void a_windows_bytes_are_the_sum_of_its_areas_which_do_not_meet(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct world world;
        struct dp_rand rand;
        struct dp_error err;
        make_world(&world, (uint64_t)run);
        dp_rand_init(&rand, (uint64_t)run + 1);
        struct dp_alltoall_sizes sizes = {
            .tokens_max = (int64_t)dp_rand_below(&rand, 300),
            .hidden = 1 + (int64_t)dp_rand_below(&rand, 300),
            .top_k = world.top_k,
            .element_bytes = 2 << dp_rand_below(&rand, 3),
            .real_bytes = 4,
            .depth = 1 + (int32_t)dp_rand_below(&rand, DP_ALLTOALL_DEPTH_MAX),
        };
        struct dp_alltoall_regions regions;
        assert_ok(dp_alltoall_regions_make(&world.topology, &sizes, 0, &regions, &err), &err);
        struct dp_alltoall_area areas[4 * DP_ALLTOALL_DEPTH_MAX * DP_ALLTOALL_AREAS];
        int32_t count = list_areas(&regions, sizes.depth, areas);
        int64_t sum = 0;
        for (int32_t i = 0; i < count; i++) {
            assert_int_equal(areas[i].offset % 64, 0);
            assert_true(areas[i].offset + areas[i].bytes <= regions.bytes);
            sum += (areas[i].bytes + 63) / 64 * 64;
            for (int32_t j = 0; j < i; j++) {
                assert_true(areas[i].offset >= areas[j].offset + areas[j].bytes ||
                            areas[j].offset >= areas[i].offset + areas[i].bytes);
            }
        }
        assert_int_equal(sum, regions.bytes);
        drop_world(&world);
    }
}

// 32-bit offsets end at 4 GiB; a buffer of over 3e9 bytes has places on both sides of 2^31.
static void places_beyond_two_and_four_gib_are_exact(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_alltoall_topology topology;
    struct dp_alltoall_regions regions;
    assert_ok(dp_alltoall_topology_init(&topology, 8, NULL, &err), &err);
    struct dp_alltoall_sizes sizes = {.tokens_max = 65536,
                                      .hidden = 7168,
                                      .top_k = 8,
                                      .element_bytes = 2,
                                      .real_bytes = 4,
                                      .depth = 1};
    assert_ok(dp_alltoall_regions_make(&topology, &sizes, 0, &regions, &err), &err);
    // 8 x 65536 rows of 7168 x 2 bytes = 7,516,192,768.
    assert_int_equal(regions.lanes[DP_MOVE_DISPATCH][0].rows.bytes, 7516192768);
    assert_int_equal(regions.lanes[DP_MOVE_DISPATCH][0].scales.offset, 7516192768);
    // 2^22 tokens from each of 8 ranks: the last source's rows begin at 7 x 2^22.
    struct dp_alltoall_counts counts;
    dp_alltoall_counts_init(&counts, &topology);
    for (int32_t i = 0; i < 64; i++) {
        counts.to_rank[i] = DP_ALLTOALL_TOKENS_MAX;
    }
    assert_int_equal(dp_alltoall_receive_offset(&topology, &counts, 3, 7), 7ll << 22);
    uint64_t bytes[8];
    struct dp_alltoall_widths widths = {.row = 14336};
    dp_alltoall_link_bytes(&topology, &counts, &widths, DP_MOVE_COMBINE, 0, bytes);
    assert_int_equal(bytes[1], 60129542144); // 2^22 x 14336
    dp_alltoall_counts_deinit(&counts);
    dp_alltoall_topology_deinit(&topology);
}

static void a_window_over_the_limit_is_refused_with_its_figure(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_alltoall_topology topology;
    struct dp_alltoall_regions regions;
    assert_ok(dp_alltoall_topology_init(&topology, 2, NULL, &err), &err);
    struct dp_alltoall_sizes sizes = {.tokens_max = 64,
                                      .hidden = 16,
                                      .top_k = 2,
                                      .element_bytes = 4,
                                      .real_bytes = 4,
                                      .depth = 1};
    assert_ok(dp_alltoall_regions_make(&topology, &sizes, 0, &regions, &err), &err);
    char figure[64];
    snprintf(figure, sizeof figure, "takes %lld bytes", (long long)regions.bytes);
    assert_refused(dp_alltoall_regions_make(&topology, &sizes, regions.bytes - 1, &regions, &err),
                   DP_TOO_LARGE, &err, figure);
    sizes.tokens_max = DP_ALLTOALL_TOKENS_MAX;
    sizes.hidden = DP_HIDDEN_MAX;
    assert_refused(dp_alltoall_regions_make(&topology, &sizes, 0, &regions, &err), DP_TOO_LARGE,
                   &err, "smaller micro-batches");
    // One rank passes on what 512 others send to 511: their product leaves 64 bits.
    struct dp_alltoall_topology lopsided;
    int32_t node_of[1024] = {0};
    for (int32_t r = 0; r < 512; r++) {
        node_of[r] = r + 1;
    }
    assert_ok(dp_alltoall_topology_init(&lopsided, 1024, node_of, &err), &err);
    sizes.element_bytes = 8;
    sizes.depth = DP_ALLTOALL_DEPTH_MAX;
    assert_refused(dp_alltoall_regions_make(&lopsided, &sizes, 0, &regions, &err), DP_TOO_LARGE,
                   &err, "smaller micro-batches");
    dp_alltoall_topology_deinit(&lopsided);
    sizes.hidden = 0;
    assert_refused(dp_alltoall_regions_make(&topology, &sizes, 0, &regions, &err), DP_INVALID, &err,
                   "0 elements");
    dp_alltoall_topology_deinit(&topology);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_of_ranks_nodes_and_experts_are_those_of_brute_force),
        cmocka_unit_test(bytes_of_each_link_are_those_of_tokens_sent_one_by_one),
        cmocka_unit_test(the_way_back_mirrors_the_way_there_on_every_link),
        cmocka_unit_test(places_follow_source_and_rank_without_gaps),
        cmocka_unit_test(forwarders_are_on_the_rail_and_serve_every_source_once),
        cmocka_unit_test(a_token_on_more_nodes_than_promised_is_named),
        cmocka_unit_test(two_groups_of_experts_reach_no_more_nodes_than_promised),
        cmocka_unit_test(what_group_limited_routers_promise_is_as_published),
        cmocka_unit_test(an_expert_that_gets_all_of_ten_thousand_tokens_counts_them),
        cmocka_unit_test(a_windows_bytes_are_the_sum_of_its_areas_which_do_not_meet),
        cmocka_unit_test(places_beyond_two_and_four_gib_are_exact),
        cmocka_unit_test(a_window_over_the_limit_is_refused_with_its_figure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
