// Placement: groups on the fabric, against counting and against every assignment of tiny clusters.

#include "dp_test.h"

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/placement.h"
#include "dp/spec.h"
#include "place.h"

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int32_t pick(uint64_t *state, int32_t count)
{
    return (int32_t)(next_random(state) % (uint64_t)count);
}

// Hosts of equal size in equal domains and groups; `partial` slots are missing from the last one.
static struct dp_planner_node *make_nodes(int32_t count, int32_t slots, int32_t domain_hosts,
                                          const int32_t group_hosts[2], int32_t partial)
{
    struct dp_planner_node *nodes = dp_new_array(struct dp_planner_node, (size_t)count);
    for (int32_t i = 0; i < count; i++) {
        snprintf(nodes[i].name, sizeof(nodes[i].name), "h%d", i);
        nodes[i].slots = i == count - 1 ? slots - partial : slots;
        nodes[i].domain = i / domain_hosts + 1;
        for (int32_t level = 0; level < 2; level++) {
            nodes[i].group[level] = group_hosts[level] > 0 ? i / group_hosts[level] + 1 : 0;
        }
    }
    return nodes;
}

static int32_t ranks_of(const struct dp_place_sizes *sizes)
{
    return sizes->pipeline * sizes->data * sizes->tensor * sizes->context;
}

static void assert_span(const struct dp_span *span, int32_t ranks, int32_t inside, int32_t level)
{
    assert_int_equal(span->ranks, ranks);
    assert_int_equal(span->inside, inside);
    assert_int_equal(span->level, level);
}

// DeepSeek-V3's training: 16 positions, EP 64 over eight hosts of eight, as its report says.
static void experts_of_a_large_group_stand_on_whole_hosts(void **state)
{
    (void)state;
    DP_AUTO_FREE struct dp_planner_node *nodes = make_nodes(256, 8, 1, (const int32_t[2]){0, 0}, 0);
    DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
    dp_fabric_init(&fabric, nodes, 256);
    struct dp_place_sizes sizes = {.pipeline = 16,
                                   .data = 128,
                                   .tensor = 1,
                                   .context = 1,
                                   .expert = 64,
                                   .expert_tensor = 1,
                                   .expert_groups = 8};
    struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
    assert_int_equal(dp_place_orders(&sizes, orders), 6);
    struct dp_spans spans;
    dp_place_spans(&fabric, &sizes, &orders[0], &spans);
    assert_span(&spans.tensor, 1, 1, 0);
    assert_span(&spans.expert, 64, 8, 1);
    assert_span(&spans.expert_data, 2, 1, 1);
    assert_span(&spans.data, 128, 8, 1);
    assert_span(&spans.hop, 2, 1, 1);
    char text[DP_NAME_MAX];
    dp_place_order_text(&orders[0], &sizes, text);
    assert_string_equal(text, "expert, data, pipeline");
}

// 256 accelerators in four racks of an NVL72 fabric: EP 64 stays inside a rack.
static void a_group_that_fits_into_a_domain_is_not_split(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_cluster_spec *cluster = dp_new(struct dp_cluster_spec);
    DP_AUTO_FREE struct dp_planner_node *nodes = NULL;
    size_t count = 0;
    assert_ok(dp_cluster_preset("GB200-NVL72", 256, cluster, &err), &err);
    dp_planner_cluster_nodes(cluster, &nodes, &count);
    DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
    dp_fabric_init(&fabric, nodes, count);
    assert_int_equal(fabric.slots, 256);
    struct dp_place_sizes sizes = {
        .pipeline = 4, .data = 64, .tensor = 1, .context = 1, .expert = 64, .expert_tensor = 1};
    struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
    struct dp_spans spans;
    assert_int_equal(dp_place_orders(&sizes, orders), 2);
    dp_place_spans(&fabric, &sizes, &orders[0], &spans);
    assert_span(&spans.expert, 64, 64, 0);
    assert_span(&spans.hop, 2, 1, 1);
}

// Six ranks a replica on hosts of eight: two slots of each stay free rather than split a replica.
static void slots_are_left_free_where_there_are_enough(void **state)
{
    (void)state;
    DP_AUTO_FREE struct dp_planner_node *nodes = make_nodes(8, 8, 1, (const int32_t[2]){0, 0}, 0);
    DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
    dp_fabric_init(&fabric, nodes, 8);
    struct dp_place_sizes sizes = {
        .pipeline = 8, .data = 1, .tensor = 6, .context = 1, .expert = 1, .expert_tensor = 1};
    struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
    struct dp_spans spans;
    assert_int_equal(dp_place_orders(&sizes, orders), 1);
    dp_place_spans(&fabric, &sizes, &orders[0], &spans);
    assert_span(&spans.tensor, 6, 6, 0);
    sizes.pipeline = 10; // 60 of 64: now some have to be split
    dp_place_spans(&fabric, &sizes, &orders[0], &spans);
    assert_span(&spans.tensor, 6, 4, 1);
}

// EP 32 in eight groups on hosts of six: four ranks of one group share a host, two slots stay free,
// so that a token whose experts are in four groups visits four hosts and not up to eight.
static void groups_of_experts_are_not_split_over_hosts(void **state)
{
    (void)state;
    DP_AUTO_FREE struct dp_planner_node *nodes = make_nodes(16, 6, 1, (const int32_t[2]){0, 0}, 0);
    DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
    dp_fabric_init(&fabric, nodes, 16);
    struct dp_place_sizes sizes = {.pipeline = 2,
                                   .data = 32,
                                   .tensor = 1,
                                   .context = 1,
                                   .expert = 32,
                                   .expert_tensor = 1,
                                   .expert_groups = 8};
    struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
    struct dp_place places[64];
    dp_place_orders(&sizes, orders);
    dp_place_ranks(&fabric, &sizes, &orders[0], places);
    for (int32_t d = 0; d < 32; d++) {
        assert_int_equal(places[2 * d].node, d / 4);
    }
    sizes.expert_groups = 0; // nothing to keep together: hosts are filled
    dp_place_ranks(&fabric, &sizes, &orders[0], places);
    assert_int_equal(places[2 * 5].node, 0);
}

// DeepSeek-V3's training again, as a plan: EP 64 over eight hosts, of which a token's experts use
// four (arXiv 2412.19437, 2.1.2), and 15 hops of 128 replicas that all leave their host.
static void a_plan_says_how_its_groups_stand(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_cluster_spec *cluster = dp_new(struct dp_cluster_spec);
    DP_AUTO_FREE struct dp_planner_node *nodes = NULL;
    size_t count = 0;
    assert_ok(dp_cluster_preset("h800", 2048, cluster, &err), &err);
    dp_planner_cluster_nodes(cluster, &nodes, &count);
    DP_AUTO_FREE struct dp_plan_rank *ranks = dp_new_array(struct dp_plan_rank, 2048);
    struct dp_plan plan = {.pipeline = 16, .data = 128, .expert = 64, .ranks = ranks};
    for (int32_t i = 0; i < 2048; i++) {
        int32_t slot = i % 16 * 128 + i / 16; // position after position
        DP_COPY_TEXT(ranks[i].node, nodes[slot / 8].name);
        ranks[i].slot = slot % 8;
    }
    struct dp_model_spec model;
    assert_ok(dp_model_preset("deepseek-v3", &model, &err), &err);
    struct dp_placement placement;
    assert_ok(dp_placement_of(&plan, &model, nodes, count, &placement, &err), &err);
    assert_span(&placement.spans.expert, 64, 8, 1);
    assert_int_equal(placement.token_domains, 4);
    assert_int_equal(placement.hops[1], 15 * 128);
    assert_int_equal(placement.hops[0], 0);
    model.expert_groups = 0; // no limit: up to eight
    assert_ok(dp_placement_of(&plan, &model, nodes, count, &placement, &err), &err);
    assert_int_equal(placement.token_domains, 8);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_placement_render(&placement, NULL, &text);
    assert_non_null(strstr(text.bytes, "64 ranks, 8 in a scale-up domain, over scale-out\n"));
    assert_non_null(strstr(text.bytes, "hops between stages: 1920 over scale-out\n"));
    DP_COPY_TEXT(ranks[7].node, "elsewhere");
    assert_refused(dp_placement_of(&plan, &model, nodes, count, &placement, &err), DP_NOT_FOUND,
                   &err, "rank 7 stands on node \"elsewhere\"");
}

static struct dp_place_sizes random_sizes(uint64_t *state, int32_t slots)
{
    static const int32_t some[] = {1, 1, 2, 2, 3, 4, 4, 6, 8, 16};
    for (;;) {
        struct dp_place_sizes sizes = {
            .pipeline = some[pick(state, 10)],
            .data = some[pick(state, 10)] * some[pick(state, 10)],
            .tensor = some[pick(state, 6)],
            .context = some[pick(state, 5)],
            .expert = some[pick(state, 10)] * some[pick(state, 4)],
            .expert_tensor = some[pick(state, 4)],
            .expert_groups = pick(state, 2) * 4,
        };
        int32_t position = sizes.data * sizes.tensor * sizes.context;
        if (ranks_of(&sizes) <= slots && position % (sizes.expert * sizes.expert_tensor) == 0) {
            return sizes;
        }
    }
}

static void random_fabric(uint64_t *state, struct dp_planner_node **ret_nodes,
                          struct dp_fabric *ret_fabric)
{
    static const int32_t slots[] = {1, 2, 4, 4, 6, 8, 8, 8};
    int32_t size = slots[pick(state, 8)], domain = 1 + pick(state, 2) * (1 + pick(state, 4));
    int32_t leaf = pick(state, 2) * domain * (1 + pick(state, 4));
    int32_t spine = leaf > 0 ? pick(state, 2) * leaf * (1 + pick(state, 3)) : 0;
    int32_t count = 1 + pick(state, 40);
    // The outermost level joins all, as in a cluster file.
    int32_t groups[2] = {leaf, spine};
    for (int32_t i = 0; i < 2; i++) {
        groups[i] = groups[i] > 0 && (i == 1 || groups[1] == 0) ? count : groups[i];
    }
    if (spine > 0) {
        groups[0] = leaf;
        groups[1] = count;
    }
    *ret_nodes = make_nodes(count, size, domain, groups, pick(state, 2) * pick(state, size));
    dp_fabric_init(ret_fabric, *ret_nodes, (size_t)count);
}

static void closed_forms_and_counting_agree(void **state)
{
    (void)state;
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (long run = 0; run < dp_fuzz_runs(3000); run++) {
        DP_AUTO_FREE struct dp_planner_node *nodes = NULL;
        DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
        random_fabric(&random, &nodes, &fabric);
        struct dp_place_sizes sizes = random_sizes(&random, fabric.slots);
        struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
        int32_t count = dp_place_orders(&sizes, orders);
        DP_AUTO_FREE struct dp_place *places =
            dp_new_array(struct dp_place, (size_t)ranks_of(&sizes));
        for (int32_t i = 0; i < count; i++) {
            struct dp_spans spans, counted;
            dp_place_spans(&fabric, &sizes, &orders[i], &spans);
            dp_place_ranks(&fabric, &sizes, &orders[i], places);
            dp_place_spans_of(&fabric, &sizes, places, &counted);
            assert_memory_equal(&spans, &counted, sizeof(spans));
        }
    }
}

static void every_rank_has_a_slot_of_its_own(void **state)
{
    (void)state;
    uint64_t random = 77;
    for (long run = 0; run < dp_fuzz_runs(500); run++) {
        DP_AUTO_FREE struct dp_planner_node *nodes = NULL;
        DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
        random_fabric(&random, &nodes, &fabric);
        for (int32_t i = 0; i < fabric.nodes_count; i++) {
            nodes[i].first_slot = pick(&random, 3);
        }
        struct dp_place_sizes sizes = random_sizes(&random, fabric.slots);
        struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
        int32_t count = dp_place_orders(&sizes, orders);
        DP_AUTO_FREE struct dp_place *places =
            dp_new_array(struct dp_place, (size_t)ranks_of(&sizes));
        for (int32_t order = 0; order < count; order++) {
            DP_AUTO_FREE char *taken = dp_new_array(char, (size_t)fabric.nodes_count * 16);
            dp_place_ranks(&fabric, &sizes, &orders[order], places);
            for (int32_t r = 0; r < ranks_of(&sizes); r++) {
                const struct dp_planner_node *node = &nodes[places[r].node];
                int32_t slot = places[r].slot - node->first_slot;
                assert_in_range(slot, 0, node->slots - 1);
                assert_int_equal(taken[places[r].node * 16 + slot]++, 0);
            }
        }
    }
}

// Bytes between ranks, and what one costs on each level: what all placements are judged by here.
struct traffic {
    double tensor, expert, hop, data; // between two members of a group
    double cost[DP_FABRIC_BLOCKS_MAX];
};

static double cost_of(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                      const struct dp_place *places, const struct traffic *traffic)
{
    double sum = 0;
    int32_t shards = sizes->tensor, group = sizes->expert;
    for (int32_t a = 0; a < ranks_of(sizes); a++) {
        for (int32_t b = a + 1; b < ranks_of(sizes); b++) {
            int32_t pa = a / shards % sizes->pipeline, pb = b / shards % sizes->pipeline;
            int32_t qa = a / shards / sizes->pipeline * shards + a % shards;
            int32_t qb = b / shards / sizes->pipeline * shards + b % shards;
            double bytes = 0;
            if (pa == pb) {
                bytes += qa / shards == qb / shards ? traffic->tensor : 0;
                bytes += qa / group == qb / group ? traffic->expert : 0;
                bytes += qa % shards == qb % shards ? traffic->data : 0;
            } else if (qa == qb && abs(pa - pb) == 1) {
                bytes += traffic->hop;
            }
            sum += bytes * traffic->cost[dp_fabric_level(fabric, places[a].node, places[b].node)];
        }
    }
    return sum;
}

// Assigns ranks from `rank` on to free slots in every way; keeps the least cost.
static void try_all(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                    const struct traffic *traffic, int32_t rank, int32_t *free_slots,
                    struct dp_place *places, double *least)
{
    if (rank == ranks_of(sizes)) {
        double cost = cost_of(fabric, sizes, places, traffic);
        *least = cost < *least ? cost : *least;
        return;
    }
    for (int32_t n = 0; n < fabric->nodes_count; n++) {
        if (free_slots[n] > 0) {
            free_slots[n]--;
            places[rank] = (struct dp_place){n, 0};
            try_all(fabric, sizes, traffic, rank + 1, free_slots, places, least);
            free_slots[n]++;
        }
    }
}

static double best_order(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                         const struct traffic *traffic)
{
    struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
    struct dp_place places[16];
    double least = 1e300;
    int32_t count = dp_place_orders(sizes, orders);
    for (int32_t i = 0; i < count; i++) {
        dp_place_ranks(fabric, sizes, &orders[i], places);
        double cost = cost_of(fabric, sizes, places, traffic);
        least = cost < least ? cost : least;
    }
    return least;
}

// Two hosts to four, up to eight ranks, traffic as in training: tensor over experts over the rest.
static void one_of_the_orders_is_the_best_of_all_assignments(void **state)
{
    (void)state;
    static const struct {
        int32_t hosts, slots, domain_hosts, leaf_hosts;
        struct dp_place_sizes sizes;
    } cases[] = {
        {2, 4, 1, 0, {2, 4, 1, 1, 4, 1, 0}}, {2, 4, 1, 0, {4, 2, 1, 1, 2, 1, 0}},
        {4, 2, 1, 2, {2, 4, 1, 1, 2, 1, 0}}, {4, 2, 1, 2, {4, 2, 1, 1, 1, 1, 0}},
        {2, 4, 1, 0, {2, 2, 2, 1, 4, 1, 0}}, {4, 2, 2, 4, {2, 4, 1, 1, 4, 1, 0}},
        {4, 2, 1, 2, {2, 2, 2, 1, 2, 1, 0}}, {2, 4, 1, 0, {2, 3, 1, 1, 3, 1, 0}},
        {2, 4, 1, 0, {1, 8, 1, 1, 4, 1, 0}},
    };
    static const struct traffic traffics[] = {
        {1000, 100, 10, 1, {1, 8, 16, 32}}, // experts first
        {1000, 10, 100, 1, {1, 8, 16, 32}}, // hops first
        {1000, 50, 50, 5, {1, 4, 40, 80}},  // a slow spine
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        int32_t groups[2] = {cases[c].leaf_hosts, cases[c].leaf_hosts > 0 ? cases[c].hosts : 0};
        DP_AUTO_FREE struct dp_planner_node *nodes =
            make_nodes(cases[c].hosts, cases[c].slots, cases[c].domain_hosts, groups, 0);
        DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
        dp_fabric_init(&fabric, nodes, (size_t)cases[c].hosts);
        for (size_t t = 0; t < sizeof(traffics) / sizeof(traffics[0]); t++) {
            int32_t free_slots[4];
            struct dp_place places[16];
            double least = 1e300;
            for (int32_t n = 0; n < cases[c].hosts; n++) {
                free_slots[n] = nodes[n].slots;
            }
            try_all(&fabric, &cases[c].sizes, &traffics[t], 0, free_slots, places, &least);
            double chosen = best_order(&fabric, &cases[c].sizes, &traffics[t]);
            if (chosen > least * (1 + 1e-12)) {
                fail_msg("case %zu, traffic %zu: %g, the best of all is %g", c, t, chosen, least);
            }
        }
    }
}

// Hosts that arrive in any order (live nodes) are put together by their groups.
static void hosts_in_any_order_are_put_together(void **state)
{
    (void)state;
    DP_AUTO_FREE struct dp_planner_node *nodes = make_nodes(8, 4, 1, (const int32_t[2]){4, 8}, 0);
    static const int32_t shuffled[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int32_t i = 0; i < 8; i++) {
        nodes[i].group[0] = shuffled[i] / 4 + 1;
        nodes[i].group[1] = 1;
    }
    DP_CLEANUP(dp_fabric_deinit) struct dp_fabric fabric;
    dp_fabric_init(&fabric, nodes, 8);
    struct dp_place_sizes sizes = {
        .pipeline = 2, .data = 16, .tensor = 1, .context = 1, .expert = 16, .expert_tensor = 1};
    struct dp_place_order orders[DP_PLACE_ORDERS_MAX];
    dp_place_orders(&sizes, orders);
    struct dp_spans spans;
    dp_place_spans(&fabric, &sizes, &orders[0], &spans);
    assert_span(&spans.expert, 16, 4, 2);
    assert_span(&spans.hop, 2, 1, 3);
    struct dp_place places[32];
    int64_t hops[DP_FABRIC_BLOCKS_MAX];
    dp_place_ranks(&fabric, &sizes, &orders[0], places);
    dp_place_hops(&fabric, &sizes, places, hops);
    assert_int_equal(hops[3], 16);
    assert_int_equal(hops[0] + hops[1] + hops[2], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_a_large_group_stand_on_whole_hosts),
        cmocka_unit_test(a_group_that_fits_into_a_domain_is_not_split),
        cmocka_unit_test(slots_are_left_free_where_there_are_enough),
        cmocka_unit_test(groups_of_experts_are_not_split_over_hosts),
        cmocka_unit_test(a_plan_says_how_its_groups_stand),
        cmocka_unit_test(closed_forms_and_counting_agree),
        cmocka_unit_test(every_rank_has_a_slot_of_its_own),
        cmocka_unit_test(one_of_the_orders_is_the_best_of_all_assignments),
        cmocka_unit_test(hosts_in_any_order_are_put_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
