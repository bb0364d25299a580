// Which machines share their cores, for a large job in one pass.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp_test.h"
#include "machines.h"

#define NODES 128
#define RANKS 1024

struct cluster {
    struct dp_node_record nodes[NODES];
    const struct dp_node_record *list[NODES];
    struct dp_rank_record ranks[RANKS];
    struct machine machines[NODES];
};

// Two nodes on each machine, in no order; ranks fill the nodes one after the other.
static struct cluster *make_cluster(void)
{
    struct cluster *cluster = dp_new(struct cluster);
    for (size_t n = 0; n < NODES; n++) {
        size_t at = n * 37 % NODES;
        snprintf(cluster->nodes[n].name, DP_NAME_MAX, "node-%zu", n);
        snprintf(cluster->nodes[n].boot_id, DP_NAME_MAX, "boot-%zu", n / 2);
        cluster->list[at] = &cluster->nodes[n];
    }
    for (size_t r = 0; r < RANKS; r++) {
        DP_COPY_TEXT(cluster->ranks[r].node, cluster->nodes[r / (RANKS / NODES)].name);
    }
    return cluster;
}

static void ranks_are_counted_by_machine(void **state)
{
    (void)state;
    DP_AUTO_FREE struct cluster *cluster = make_cluster();
    size_t count =
        machines_of(cluster->list, NODES, cluster->ranks, RANKS, cluster->machines, NULL);
    assert_int_equal(count, NODES / 2);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(cluster->machines[i].ranks, 2 * RANKS / NODES);
        assert_ptr_equal(cluster->machines[i].node, &cluster->nodes[2 * i]);
    }
}

static void a_large_job_takes_one_pass(void **state)
{
    (void)state;
    DP_AUTO_FREE struct cluster *cluster = make_cluster();
    uint64_t compared = 0;
    machines_of(cluster->list, NODES, cluster->ranks, RANKS, cluster->machines, &compared);
    // Two sorts and a search for each node, all of about n log2 n = 896, however many ranks.
    assert_true(compared < 4 * 896);
}

static void
nodes_that_do_not_say_where_they_are_stand_alone_and_unknown_ones_are_passed(void **state)
{
    (void)state;
    struct dp_node_record nodes[2] = {{.name = "a"}, {.name = "b"}};
    const struct dp_node_record *list[2] = {&nodes[1], &nodes[0]};
    struct dp_rank_record ranks[4] = {
        {.node = "b"}, {.node = "gone"}, {.node = "a"}, {.node = "b"}};
    struct machine machines[2];
    assert_int_equal(machines_of(list, 2, ranks, 4, machines, NULL), 2);
    assert_ptr_equal(machines[0].node, &nodes[1]);
    assert_int_equal(machines[0].ranks, 2);
    assert_int_equal(machines[1].ranks, 1);
    assert_int_equal(machines_of(NULL, 0, ranks, 4, NULL, NULL), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ranks_are_counted_by_machine),
    cmocka_unit_test(a_large_job_takes_one_pass),
    cmocka_unit_test(nodes_that_do_not_say_where_they_are_stand_alone_and_unknown_ones_are_passed),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
