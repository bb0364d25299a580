// Collectives over every transport.
#include <stdlib.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/collective.h"
#include "dp/rand.h"

static dp_status open_world(struct dp_group *group, struct dp_transport *transport, uint32_t id,
                            struct dp_error *err)
{
    int32_t world = dp_transport_world(transport);
    DP_AUTO_FREE int32_t *ranks = dp_new_array(int32_t, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        ranks[i] = i;
    }
    return dp_group_init(group, transport, id, ranks, world, err);
}

// Rows that rank `from` sends to rank `to` in a round; many are zero, and in round 1 rank 0 has
// none for anybody.
static size_t rows(int32_t from, int32_t to, uint64_t round)
{
    uint64_t roll = dp_rand_mix(round, (uint64_t)(from * 64 + to));
    bool is_none = roll % 3 == 0 || (round == 1 && from == 0) || (round == 2 && to == 1);
    return is_none ? 0 : roll % 50;
}

#define ROW 5

static float row_value(int32_t from, int32_t to, size_t row, uint64_t round)
{
    return (float)(from * 100 + to * 10) + (float)row * 0.001f + (float)round * 1e4f;
}

static size_t fill_send(int32_t self, int32_t world, uint64_t round, float *send,
                        size_t *send_bytes, size_t *recv_bytes)
{
    size_t at = 0;
    for (int32_t peer = 0; peer < world; peer++) {
        send_bytes[peer] = rows(self, peer, round) * ROW * sizeof(float);
        recv_bytes[peer] = rows(peer, self, round) * ROW * sizeof(float);
        for (size_t row = 0; row < rows(self, peer, round); row++) {
            for (int i = 0; i < ROW; i++) {
                send[at++] = row_value(self, peer, row, round);
            }
        }
    }
    return at;
}

static dp_status check_received(int32_t self, int32_t world, uint64_t round, const float *recv,
                                struct dp_error *err)
{
    size_t at = 0;
    for (int32_t peer = 0; peer < world; peer++) {
        for (size_t row = 0; row < rows(peer, self, round); row++) {
            for (int i = 0; i < ROW; i++) {
                EXPECT(recv[at++] == row_value(peer, self, row, round));
            }
        }
    }
    return DP_OK;
}

#define ROUNDS 12

static dp_status exchange_rounds(struct dp_transport *transport, void *context,
                                 struct dp_error *err)
{
    struct dp_transport_fault fault = {.seed = *(uint64_t *)context, .delay_us_max = 30};
    fault.seed += 100 * (uint64_t)dp_transport_rank(transport);
    dp_transport_set_fault(transport, &fault);
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 3, err));
    float send[8 * 50 * ROW], recv[2][8 * 50 * ROW];
    size_t send_bytes[2][8], recv_bytes[2][8];
    for (uint64_t round = 0; round < ROUNDS; round += 2) {
        // Two at once, ended in the other order.
        struct dp_group_pending pending[2];
        struct dp_group_parts exchange[2];
        for (uint64_t i = 0; i < 2; i++) {
            fill_send(group.self, group.count, round + i, send, send_bytes[i], recv_bytes[i]);
            exchange[i] = (struct dp_group_parts){.peers = group.count,
                                                  .self = group.self,
                                                  .send = send,
                                                  .send_bytes = send_bytes[i],
                                                  .recv = recv[i],
                                                  .recv_bytes = recv_bytes[i]};
            EXPECT_OK(dp_group_exchange_begin(&group, round + i, &exchange[i], &pending[i], err));
        }
        for (uint64_t i = 2; i-- > 0;) {
            EXPECT_OK(dp_group_exchange_end(&group, &pending[i], &exchange[i], err));
            EXPECT_OK(check_received(group.self, group.count, round + i, recv[i], err));
        }
        EXPECT_OK(dp_group_exchange(&group, round, &exchange[1], err));
    }
    struct dp_transport_stats stats;
    dp_transport_stats(transport, &stats);
    // Nobody skips a message for having no rows: kernels rely on everyone making the same calls.
    EXPECT(stats.sent_messages == ROUNDS / 2 * 3 * (uint64_t)(group.count - 1));
    EXPECT(stats.received_messages == stats.sent_messages && stats.waiting_bytes == 0);
    return DP_OK;
}

static void rows_arrive_in_the_order_of_their_source_for_every_group_size(void **state)
{
    for (int32_t world = 1; world <= 5; world++) {
        for (uint64_t seed = 1; seed <= 2; seed++) {
            cluster_run(cluster_kind_of(state), world, exchange_rounds, &seed);
        }
    }
}

static double term(int32_t rank, int64_t i)
{
    double magnitude = (double)(1 + i % 7) * (i % 3 == 0 ? 1e6 : 1e-3);
    return (2 * (double)(dp_rand_mix((uint64_t)rank, (uint64_t)i) >> 11) * 0x1.0p-53 - 1) *
           magnitude;
}

struct sums {
    int64_t count;
    dp_element element;
    uint64_t seed;
    uint64_t hashes[16]; // of each rank's result
};

static dp_status sum_once(struct dp_transport *transport, void *context, struct dp_error *err)
{
    struct sums *sums = context;
    int32_t self = dp_transport_rank(transport), world = dp_transport_world(transport);
    struct dp_transport_fault fault = {.seed = sums->seed + (uint64_t)self, .delay_us_max = 200};
    dp_transport_set_fault(transport, &fault);
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 1, err));
    size_t bytes = (size_t)sums->count * dp_element_bytes(sums->element);
    DP_AUTO_FREE void *values = dp_alloc_aligned(bytes, 1);
    for (int64_t i = 0; i < sums->count; i++) {
        if (sums->element == DP_F32) {
            ((float *)values)[i] = (float)term(self, i);
        } else {
            ((double *)values)[i] = term(self, i);
        }
    }
    EXPECT_OK(dp_group_sum(&group, 8, sums->element, values, sums->count, err));
    for (int64_t i = 0; i < sums->count; i++) {
        long double wanted = 0, size = 0;
        for (int32_t rank = 0; rank < world; rank++) {
            double one = sums->element == DP_F32 ? (double)(float)term(rank, i) : term(rank, i);
            wanted += (long double)one;
            size += one < 0 ? -(long double)one : (long double)one;
        }
        double got = sums->element == DP_F32 ? (double)((float *)values)[i] : ((double *)values)[i];
        long double off = (long double)got - wanted;
        // One rounding to float of a sum in double, or `world` roundings in double.
        long double unit = sums->element == DP_F32 ? 0x1.0p-24L : 0x1.0p-52L * world;
        EXPECT((off < 0 ? -off : off) <= unit * size);
    }
    sums->hashes[self] = dp_hash64(values, bytes, 0);
    return DP_OK;
}

static void sums_are_right_and_bitwise_alike_on_all_members(void **state)
{
    const int64_t counts[] = {0, 1, 2, 3, 5, 1000, 4097};
    for (size_t c = 0; c < DP_ARRAY_LENGTH(counts); c++) {
        for (int32_t world = 1; world <= 5; world++) {
            for (int element = DP_F32; element <= DP_F64; element++) {
                struct sums sums = {.count = counts[c], .element = (dp_element)element};
                cluster_run(cluster_kind_of(state), world, sum_once, &sums);
                for (int32_t i = 1; i < world; i++) {
                    assert_true(sums.hashes[i] == sums.hashes[0]);
                }
            }
        }
    }
}

static void a_sum_of_more_than_one_block_is_right(void **state)
{
    struct sums sums = {.count = (8 << 20) / 4 + 12345, .element = DP_F32};
    cluster_run(cluster_kind_of(state), 3, sum_once, &sums);
    assert_true(sums.hashes[1] == sums.hashes[0] && sums.hashes[2] == sums.hashes[0]);
}

static void twenty_runs_with_random_delays_give_the_same_bits(void **state)
{
    uint64_t first = 0;
    for (uint64_t run = 0; run < 20; run++) {
        struct sums sums = {.count = 777, .element = DP_F32, .seed = run * 1000};
        cluster_run(cluster_kind_of(state), 4, sum_once, &sums);
        first = run == 0 ? sums.hashes[0] : first;
        assert_true(sums.hashes[0] == first && sums.hashes[3] == first);
    }
}

static dp_status small_calls(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), world = dp_transport_world(transport);
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 9, err));
    for (int32_t root = 0; root < world; root++) {
        char text[8] = "none";
        if (self == root) {
            snprintf(text, sizeof text, "root %d", root);
        }
        EXPECT_OK(dp_group_broadcast(&group, 1, root, text, sizeof text, err));
        EXPECT(strncmp(text, "root ", 5) == 0 && text[5] == '0' + root);
        double values[2] = {self, 0.5};
        EXPECT_OK(dp_group_sum_scalars(&group, 2, values, 2, err));
        EXPECT(values[0] == world * (world - 1) / 2.0 && values[1] == 0.5 * world);
        EXPECT_OK(dp_group_barrier(&group, 3, err));
        EXPECT_OK(dp_group_agree(&group, 4, DP_OK, err));
        struct dp_error mine = {.status = DP_IO, .message = "my disk is full"};
        dp_status status = dp_group_agree(&group, 5, self == root ? DP_IO : DP_OK, &mine);
        if (self == root) {
            EXPECT_REFUSED(status, DP_IO, &mine, "my disk is full");
        } else {
            char wanted[40];
            snprintf(wanted, sizeof wanted, "rank %d failed: input/output error", root);
            EXPECT_REFUSED(status, DP_UNAVAILABLE, &mine, wanted);
        }
    }
    return DP_OK;
}

static void broadcasts_scalars_barriers_and_agreements_reach_everyone(void **state)
{
    for (int32_t world = 1; world <= 5; world++) {
        cluster_run(cluster_kind_of(state), world, small_calls, NULL);
    }
}

static dp_status nobody_leaves_early(struct dp_transport *transport, void *context,
                                     struct dp_error *err)
{
    _Atomic int *entered = context;
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 1, err));
    struct dp_transport_fault fault = {.seed = (uint64_t)group.self, .delay_us_max = 500};
    dp_transport_set_fault(transport, &fault);
    for (int round = 1; round <= 20; round++) {
        (*entered)++;
        EXPECT_OK(dp_group_barrier(&group, (uint64_t)round, err));
        EXPECT(*entered >= round * group.count);
    }
    return DP_OK;
}

static void nobody_leaves_a_barrier_before_all_have_entered(void **state)
{
    _Atomic int entered = 0;
    cluster_run(cluster_kind_of(state), 4, nobody_leaves_early, &entered);
}

// Two groups of a 2 x 2 grid: each rank is in one row and one column.
static dp_status grid(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    int32_t self = dp_transport_rank(transport), row = self / 2, column = self % 2;
    int32_t row_ranks[2] = {row * 2, row * 2 + 1}, column_ranks[2] = {column, column + 2};
    DP_CLEANUP(dp_group_deinit) struct dp_group along = {0};
    DP_CLEANUP(dp_group_deinit) struct dp_group across = {0};
    EXPECT_OK(dp_group_init(&along, transport, 1, row_ranks, 2, err));
    EXPECT_OK(dp_group_init(&across, transport, 2, column_ranks, 2, err));
    float a = (float)self, b = (float)self;
    EXPECT_OK(dp_group_sum(&along, 1, DP_F32, &a, 1, err));
    EXPECT_OK(dp_group_sum(&across, 2, DP_F32, &b, 1, err));
    EXPECT(a == (float)(row_ranks[0] + row_ranks[1]));
    EXPECT(b == (float)(column_ranks[0] + column_ranks[1]));
    return DP_OK;
}

static void groups_that_share_ranks_do_not_mix(void **state)
{
    cluster_run(cluster_kind_of(state), 4, grid, NULL);
}

static dp_status swapped(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 6, err));
    float values[4] = {0};
    double scalar = 0;
    uint64_t first = dp_transport_tag(1, 0, 3, 2, 0), second = dp_transport_tag(1, 0, 4, 2, 0);
    EXPECT_OK(dp_group_barrier(&group, 0, err));
    if (group.self == 1) {
        EXPECT_OK(dp_group_sum_scalars(&group, second, &scalar, 1, err));
    }
    return dp_group_sum(&group, first, DP_F32, values, 4, err);
}

static dp_status swapped_tags(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 6, err));
    float values[4] = {0};
    uint64_t tag = dp_transport_tag(1, 0, group.self == 1 ? 4 : 3, 2, 0);
    return dp_group_sum(&group, tag, DP_F32, values, 4, err);
}

static dp_status other_sizes(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 6, err));
    float values[8] = {0};
    return dp_group_sum(&group, 1, DP_F32, values, group.self == 1 ? 8 : 4, err);
}

static void expect_told(cluster_kind kind, cluster_rank rank, const char *part)
{
    struct dp_transport *ends[3];
    dp_status statuses[3];
    struct dp_error errors[3];
    cluster_open(kind, 3, ends);
    cluster_run_on(ends, 3, rank, NULL, statuses, errors);
    bool is_told = false;
    for (int i = 0; i < 3; i++) {
        assert_true(statuses[i] == DP_INTERNAL || statuses[i] == DP_UNAVAILABLE);
        is_told = is_told || strstr(errors[i].message, part) != NULL;
    }
    if (!is_told) {
        fail_msg("\"%s\" is not in \"%s\"", part, errors[0].message);
    }
}

static void calls_in_another_order_are_told_instead_of_hanging(void **state)
{
    expect_told(cluster_kind_of(state), swapped, "the order of calls differs");
    expect_told(cluster_kind_of(state), swapped_tags, "micro-batch 4");
    expect_told(cluster_kind_of(state), other_sizes, "bytes where rank");
}

static dp_status bad_groups(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    const int32_t doubled[] = {0, 0}, outside[] = {0, 2}, descending[] = {1, 0};
    int32_t other[] = {1 - dp_transport_rank(transport)};
    struct dp_group group;
    struct dp_error got = {0};
    EXPECT_REFUSED(dp_group_init(&group, transport, 1, doubled, 2, &got), DP_INVALID, &got,
                   "member 1 is rank 0");
    EXPECT_REFUSED(dp_group_init(&group, transport, 1, outside, 2, &got), DP_INVALID, &got,
                   "below 2");
    EXPECT_REFUSED(dp_group_init(&group, transport, 1, descending, 2, &got), DP_INVALID, &got,
                   "ascending");
    EXPECT_REFUSED(dp_group_init(&group, transport, 1, other, 1, &got), DP_INVALID, &got,
                   "is not a member");
    return DP_OK;
}

static void groups_of_wrong_ranks_are_refused(void **state)
{
    cluster_run(cluster_kind_of(state), 2, bad_groups, NULL);
}

static dp_status one_dies(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(open_world(&group, transport, 2, err));
    for (uint64_t call = 0; call < 100; call++) {
        if (group.self == 2 && call == 50) {
            return dp_fail(err, DP_INTERRUPTED, "dies");
        }
        EXPECT_OK(dp_group_barrier(&group, call, err));
    }
    return DP_OK;
}

static void a_member_that_dies_ends_the_call_of_the_others(void **state)
{
    struct dp_transport *ends[4];
    dp_status statuses[4];
    struct dp_error errors[4];
    cluster_open(cluster_kind_of(state), 4, ends);
    cluster_run_on(ends, 4, one_dies, NULL, statuses, errors);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(statuses[i], i == 2 ? DP_INTERRUPTED : DP_UNAVAILABLE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLUSTER_EACH(rows_arrive_in_the_order_of_their_source_for_every_group_size),
        CLUSTER_EACH(sums_are_right_and_bitwise_alike_on_all_members),
        CLUSTER_EACH(a_sum_of_more_than_one_block_is_right),
        CLUSTER_EACH(twenty_runs_with_random_delays_give_the_same_bits),
        CLUSTER_EACH(broadcasts_scalars_barriers_and_agreements_reach_everyone),
        CLUSTER_EACH(nobody_leaves_a_barrier_before_all_have_entered),
        CLUSTER_EACH(groups_that_share_ranks_do_not_mix),
        CLUSTER_EACH(calls_in_another_order_are_told_instead_of_hanging),
        CLUSTER_EACH(groups_of_wrong_ranks_are_refused),
        CLUSTER_EACH(a_member_that_dies_ends_the_call_of_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
