// What goes wrong in an all-to-all, and what is said about it.
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "end.h"

// Runs ranks that may fail; statuses and errors are looked at by the caller.
struct outcome {
    dp_status statuses[4];
    struct dp_error errors[4];
};

static void run_ranks(cluster_kind kind, int32_t world, cluster_rank rank, void *context,
                      struct outcome *ret_outcome)
{
    struct dp_transport *ends[4];
    cluster_open(kind, world, ends);
    cluster_run_on(ends, world, rank, context, ret_outcome->statuses, ret_outcome->errors);
}

static dp_status swap_order(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *routings[2] = {0};
    EXPECT_OK(end_open(&end, &config, err));
    dp_status status = DP_OK;
    for (uint32_t i = 0; i < 2 && status == DP_OK; i++) {
        uint32_t batch = dp_transport_rank(transport) == 0 ? i : 1 - i;
        status = end_begin_dispatch(&end, dp_transport_tag(7, 1, batch, 5, 0), &routings[i], err);
    }
    if (status == DP_OK) {
        status = end_go_forward(&end, routings[0], err);
    }
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    end.exchanger->release(routings[0]);
    end.exchanger->release(routings[1]);
    EXPECT_OK(end_close(&end, err));
    return status;
}

static void ranks_in_another_order_are_told_so(void **state)
{
    (void)state;
    static const cluster_kind kinds[] = {CLUSTER_LOOPBACK, CLUSTER_TCP};
    for (int i = 0; i < 2; i++) {
        struct outcome outcome;
        run_ranks(kinds[i], 2, swap_order, NULL, &outcome);
        bool is_told = false;
        for (int32_t r = 0; r < 2; r++) {
            is_told =
                is_told || (outcome.statuses[r] == DP_INTERNAL &&
                            strstr(outcome.errors[r].message, "do dispatch as move 0") != NULL &&
                            strstr(outcome.errors[r].message, "layer 5") != NULL);
        }
        if (!is_told) {
            fail_msg("\"%s\" and \"%s\"", outcome.errors[0].message, outcome.errors[1].message);
        }
    }
}

// Different kinds of moves in another order touch different memory; the numbers tell.
static dp_status swap_kinds(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *first = NULL, *second = NULL;
    EXPECT_OK(end_open(&end, &config, err));
    struct dp_load gradients = {.rows = end.rows};
    dp_status status = end_begin_dispatch(&end, 1, &first, err);
    status = status == DP_OK ? end_go_forward(&end, first, err) : status;
    bool is_first = dp_transport_rank(transport) == 0;
    for (int i = 0; i < 2 && status == DP_OK; i++) {
        status = is_first == (i == 0)
                     ? end.exchanger->begin(first, DP_MOVE_COMBINE_INPUT, &gradients, err)
                     : end_begin_dispatch(&end, 2, &second, err);
    }
    struct dp_arrivals arrivals;
    if (status == DP_OK) {
        status = end.exchanger->arrive(first, DP_MOVE_COMBINE_INPUT, &arrivals, err);
    }
    if (status == DP_OK) {
        end.exchanger->finish(first, DP_MOVE_COMBINE_INPUT);
        status = end_go_forward(&end, second, err);
    }
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    end.exchanger->release(first);
    end.exchanger->release(second);
    EXPECT_OK(end_close(&end, err));
    return status;
}

static void kinds_of_moves_in_another_order_are_told_so(void **state)
{
    (void)state;
    struct outcome outcome;
    run_ranks(CLUSTER_LOOPBACK, 2, swap_kinds, NULL, &outcome);
    int32_t r = outcome.statuses[0] == DP_INTERNAL ? 0 : 1;
    assert_refused(outcome.statuses[r], DP_INTERNAL, &outcome.errors[r],
                   "the order of moves differs");
}

static dp_status other_attempt(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *routing = NULL;
    config.epoch = (uint32_t)dp_transport_rank(transport);
    EXPECT_OK(end_open(&end, &config, err));
    dp_status status = end_begin_dispatch(&end, 1, &routing, err);
    status = status == DP_OK ? end_go_forward(&end, routing, err) : status;
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    end.exchanger->release(routing);
    EXPECT_OK(end_close(&end, err));
    return status;
}

static void rows_of_another_attempt_are_refused(void **state)
{
    (void)state;
    for (int kind = 0; kind < CLUSTER_KINDS; kind++) {
        struct outcome outcome;
        run_ranks((cluster_kind)kind, 2, other_attempt, NULL, &outcome);
        int32_t r = outcome.statuses[0] == DP_INTERNAL ? 0 : 1;
        assert_refused(outcome.statuses[r], DP_INTERNAL, &outcome.errors[r],
                       "of other routings, formats or attempts");
    }
}

// Rank 1 dies between its begin and its end, rank 2 before it has begun.
static dp_status die(struct dp_transport *transport, void *context, struct dp_error *err)
{
    int32_t dying = *(int32_t *)context, rank = dp_transport_rank(transport);
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *routing = NULL;
    EXPECT_OK(end_open(&end, &config, err));
    dp_status status = DP_OK;
    if (rank == 2 && dying == 2) {
        dp_transport_abort(transport, DP_JOB_CANCELLED, "killed");
    } else {
        status = end_begin_dispatch(&end, dp_transport_tag(7, 1, 9, 5, 0), &routing, err);
        if (rank == dying) {
            dp_transport_abort(transport, DP_JOB_CANCELLED, "killed");
        }
        status = status == DP_OK ? end_go_forward(&end, routing, err) : status;
        // Whoever is through finds out at the next one.
        end.exchanger->release(routing);
        routing = NULL;
        status = status == DP_OK ? end_begin_dispatch(&end, 8, &routing, err) : status;
        status = status == DP_OK ? end_go_forward(&end, routing, err) : status;
    }
    end.exchanger->release(routing);
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    EXPECT_OK(end_close(&end, err));
    return status;
}

static void a_peer_that_dies_is_named_with_the_move(void **state)
{
    (void)state;
    static const cluster_kind kinds[] = {CLUSTER_LOOPBACK, CLUSTER_TCP, CLUSTER_SHM, CLUSTER_MESH};
    for (int i = 0; i < 4; i++) {
        for (int32_t dying = 1; dying <= 2; dying++) {
            struct outcome outcome;
            run_ranks(kinds[i], 3, die, &dying, &outcome);
            for (int32_t r = 0; r < 3; r++) {
                if (r == dying) {
                    continue;
                }
                if (outcome.statuses[r] != DP_UNAVAILABLE ||
                    strstr(outcome.errors[r].message, "rank") == NULL ||
                    strstr(outcome.errors[r].message, "all-to-all") == NULL) {
                    fail_msg("kind %d, rank %d when %d dies: %s %s", kinds[i], r, dying,
                             dp_status_name(outcome.statuses[r]), outcome.errors[r].message);
                }
            }
        }
    }
}

static dp_status wait_in_vain(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *routing = NULL;
    config.blocked_ms = 300;
    EXPECT_OK(end_open(&end, &config, err));
    dp_status status = DP_OK;
    if (dp_transport_rank(transport) == 0) {
        status = end_begin_dispatch(&end, dp_transport_tag(7, 1, 9, 5, 0), &routing, err);
        status = status == DP_OK ? end_go_forward(&end, routing, err) : status;
        dp_transport_abort(transport, DP_JOB_CANCELLED, "over");
    } else {
        // Does nothing until rank 0 has given up, which it sees by its leaving.
        uint8_t byte;
        struct dp_error gone;
        EXPECT(dp_transport_recv(transport, 0, 99, &byte, 1, 0, &gone) == DP_UNAVAILABLE);
    }
    end.exchanger->release(routing);
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    EXPECT_OK(end_close(&end, err));
    return status;
}

static void a_peer_that_does_not_begin_is_named_within_the_deadline(void **state)
{
    (void)state;
    struct outcome outcome;
    int64_t start_ns = dp_clock_monotonic_ns();
    run_ranks(CLUSTER_LOOPBACK, 2, wait_in_vain, NULL, &outcome);
    assert_refused(outcome.statuses[0], DP_TIMEOUT, &outcome.errors[0],
                   "rank 1 (has not begun it)");
    assert_refused(outcome.statuses[0], DP_TIMEOUT, &outcome.errors[0], "micro-batch 9 layer 5");
    assert_true(dp_clock_monotonic_ns() - start_ns < 100 * DP_NS_PER_S);
}

struct aborter {
    struct end *end;
    struct dp_routing *routing;
    _Atomic bool is_waiting;
    dp_status status;
    struct dp_error err;
};

static void *wait_for_arrival(void *argument)
{
    struct aborter *aborter = argument;
    struct dp_arrivals arrivals;
    aborter->is_waiting = true;
    aborter->status = aborter->end->exchanger->arrive(aborter->routing, DP_MOVE_DISPATCH, &arrivals,
                                                      &aborter->err);
    return NULL;
}

static dp_status abort_waiter(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    EXPECT_OK(end_open(&end, &config, err));
    if (dp_transport_rank(transport) == 0) {
        struct aborter aborter = {.end = &end};
        pthread_t thread;
        EXPECT_OK(end_begin_dispatch(&end, 4, &aborter.routing, err));
        pthread_create(&thread, NULL, wait_for_arrival, &aborter);
        while (!aborter.is_waiting) {
            sched_yield();
        }
        dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "the job was cancelled");
        pthread_join(thread, NULL);
        EXPECT_REFUSED(aborter.status, DP_JOB_CANCELLED, &aborter.err, "the job was cancelled");
        struct dp_routing *other = NULL;
        struct dp_error refused;
        EXPECT_REFUSED(end_begin_dispatch(&end, 5, &other, &refused), DP_JOB_CANCELLED, &refused,
                       "the job was cancelled");
        end.exchanger->release(other);
        EXPECT(end.exchanger->ready(aborter.routing, DP_MOVE_DISPATCH));
        end.exchanger->release(aborter.routing);
        EXPECT_OK(dp_transport_send(transport, 1, 99, NULL, 0, err));
    } else {
        EXPECT_OK(dp_transport_recv(transport, 0, 99, NULL, 0, 0, err));
    }
    dp_alltoall_abort(end.alltoall, DP_JOB_CANCELLED, "over");
    EXPECT_OK(end_close(&end, err));
    return DP_OK;
}

static void an_abort_wakes_who_waits_and_refuses_what_follows(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 2, abort_waiter, NULL);
}

static dp_status misuse(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *first, *second;
    struct dp_error refused;
    EXPECT_OK(end_open(&end, &config, err));
    const struct dp_exchanger *calls = end.exchanger;
    struct dp_load load = {.rows = end.rows, .weights = end.weights};
    EXPECT_REFUSED(calls->route(calls->context, 1, TOKENS + 1, end.index, &first, &refused),
                   DP_TOO_LARGE, &refused, "a routing of 7 tokens");
    int32_t outside[TOP_K] = {0, 4};
    EXPECT_REFUSED(calls->route(calls->context, 1, 1, outside, &first, &refused), DP_INVALID,
                   &refused, "expert 4");
    EXPECT_OK(calls->route(calls->context, 1, TOKENS, end.index, &first, err));
    EXPECT_REFUSED(calls->begin(first, DP_MOVE_COMBINE, &load, &refused), DP_INTERNAL, &refused,
                   "have not been dispatched");
    struct dp_load nothing = {0};
    EXPECT_REFUSED(calls->begin(first, DP_MOVE_DISPATCH, &nothing, &refused), DP_INTERNAL, &refused,
                   "no rows");
    EXPECT_OK(calls->begin(first, DP_MOVE_DISPATCH, &load, err));
    EXPECT_REFUSED(calls->begin(first, DP_MOVE_DISPATCH, &load, &refused), DP_INTERNAL, &refused,
                   "under way already");
    struct dp_arrivals arrivals;
    EXPECT_OK(calls->arrive(first, DP_MOVE_DISPATCH, &arrivals, err));
    EXPECT(arrivals.tokens == TOKENS);
    // The lane is not free before the first one is finished: waiting for the second is an error.
    EXPECT_OK(end_begin_dispatch(&end, 2, &second, err));
    EXPECT_REFUSED(calls->arrive(second, DP_MOVE_DISPATCH, &arrivals, &refused), DP_INTERNAL,
                   &refused, "has not been finished");
    calls->release(first);
    calls->release(second);
    EXPECT_OK(end_close(&end, err));
    return DP_OK;
}

static void calls_out_of_turn_are_refused(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 1, misuse, NULL);
}

static dp_status infinite_row(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    struct dp_routing *routing;
    struct dp_error refused;
    EXPECT_OK(end_open(&end, &config, err));
    end.rows[3] = INFINITY;
    struct dp_load load = {.format = DP_WIRE_FP8, .rows = end.rows, .weights = end.weights};
    EXPECT_OK(end.exchanger->route(end.exchanger->context, dp_transport_tag(1, 2, 3, 4, 0), TOKENS,
                                   end.index, &routing, err));
    EXPECT_OK(end.exchanger->begin(routing, DP_MOVE_DISPATCH, &load, err));
    struct dp_arrivals arrivals;
    dp_status status = end.exchanger->arrive(routing, DP_MOVE_DISPATCH, &arrivals, &refused);
    EXPECT(status != DP_OK && strstr(refused.message, "dispatch (kind 1 stage 2") != NULL);
    EXPECT(strstr(refused.message, "rows as fp8") != NULL);
    end.exchanger->release(routing);
    EXPECT_OK(end_close(&end, err));
    return DP_OK;
}

static void an_infinity_in_fp8_rows_is_reported_with_its_move(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 1, infinite_row, NULL);
}

static dp_status open_badly(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct dp_alltoall *alltoall;
    struct dp_error refused;
    struct dp_alltoall_config config = end_config(transport);
    config.bytes_max = 1000;
    EXPECT_REFUSED(dp_alltoall_open(&config, 0, &alltoall, &refused), DP_TOO_LARGE, &refused,
                   "room for the worst routing takes");
    const struct {
        int32_t top_k, depth;
        int64_t hidden, tokens_max;
        const char *part;
    } sizes[] = {{0, 1, 1, 1, "with 0 experts for a token"},
                 {1, DP_ALLTOALL_DEPTH_MAX + 1, 1, 1, "with 5 exchanges of one kind"},
                 {1, 1, 0, 1, "rows of 0 elements"},
                 {1, 1, 1, -1, "-1 tokens a rank"}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(sizes); i++) {
        config = end_config(transport);
        config.top_k = sizes[i].top_k;
        config.depth = sizes[i].depth;
        config.hidden = sizes[i].hidden;
        config.tokens_max = sizes[i].tokens_max;
        EXPECT_REFUSED(dp_alltoall_open(&config, 0, &alltoall, &refused), DP_INVALID, &refused,
                       sizes[i].part);
    }
    config = end_config(transport);
    config.experts = 3;
    EXPECT_REFUSED(dp_alltoall_open(&config, 0, &alltoall, &refused), DP_INVALID, &refused,
                   "3 experts on 2 ranks");
    const int32_t others[1] = {1 - dp_transport_rank(transport)};
    config = end_config(transport);
    config.ranks = others;
    config.count = 1;
    EXPECT_REFUSED(dp_alltoall_open(&config, 0, &alltoall, &refused), DP_INVALID, &refused,
                   "is no member");
    return DP_OK;
}

static void sizes_and_members_that_make_no_sense_are_refused_at_open(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 2, open_badly, NULL);
}

// A routing that is let go while its rows are on their way does not disturb those of others.
static dp_status let_go(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    EXPECT_OK(end_open(&end, &config, err));
    for (uint64_t i = 0; i < 20; i++) {
        struct dp_routing *routing;
        EXPECT_OK(end_begin_dispatch(&end, i, &routing, err));
        if (i % 2 == 0) {
            EXPECT_OK(end_go_forward(&end, routing, err));
        }
        end.exchanger->release(routing);
    }
    EXPECT_OK(end_close(&end, err));
    return DP_OK;
}

static void a_routing_may_be_released_at_any_time(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 3, let_go, NULL);
    cluster_run(CLUSTER_TCP, 2, let_go, NULL);
}

// As when a layer's forward pass is done again for its backward pass, while the gradients that have
// come are still being read.
static dp_status dispatch_again(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    static const int32_t node_of[4] = {0, 0, 1, 1};
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    config.node_of = node_of;
    EXPECT_OK(end_open(&end, &config, err));
    struct dp_load gradients = {.rows = end.rows},
                   load = {.rows = end.rows, .weights = end.weights};
    for (uint64_t i = 0; i < 10; i++) {
        struct dp_routing *routing;
        struct dp_arrivals first, again;
        EXPECT_OK(end_begin_dispatch(&end, i, &routing, err));
        EXPECT_OK(end_go_forward(&end, routing, err));
        EXPECT_OK(end.exchanger->begin(routing, DP_MOVE_COMBINE_INPUT, &gradients, err));
        EXPECT_OK(end.exchanger->arrive(routing, DP_MOVE_COMBINE_INPUT, &first, err));
        EXPECT_OK(end.exchanger->begin(routing, DP_MOVE_DISPATCH, &load, err));
        int64_t experts = 0;
        for (int64_t s = 0; s < first.tokens * TOP_K; s++) {
            experts += first.expert[s] >= 0;
        }
        EXPECT_OK(end.exchanger->arrive(routing, DP_MOVE_DISPATCH, &again, err));
        EXPECT(again.tokens == first.tokens && again.expert == first.expert);
        EXPECT(first.counts[0] + first.counts[3] == experts);
        for (int64_t c = 0; c < again.tokens * HIDDEN; c++) {
            EXPECT(((const float *)again.rows)[c] == ((const float *)first.rows)[c]);
        }
        end.exchanger->finish(routing, DP_MOVE_COMBINE_INPUT);
        end.exchanger->finish(routing, DP_MOVE_DISPATCH);
        end.exchanger->release(routing);
    }
    EXPECT_OK(end_close(&end, err));
    return DP_OK;
}

static void a_routing_may_be_dispatched_again(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 4, dispatch_again, NULL);
    cluster_run(CLUSTER_MESH, 4, dispatch_again, NULL);
}

#define MANY 700

// Rank 1 does not look before rank 0 has put all that it may: as many rows as rank 1 keeps notes
// of, one by one, would be gone.
static dp_status look_late(struct dp_transport *transport, void *context, struct dp_error *err)
{
    (void)context;
    static const int32_t node_of[2] = {0, 1};
    int32_t rank = dp_transport_rank(transport);
    struct dp_alltoall_config config = end_config(transport);
    config.node_of = node_of;
    config.top_k = 1;
    config.tokens_max = MANY;
    config.chunk_bytes = 1;
    DP_AUTO_FREE int32_t *index = dp_new_array(int32_t, MANY);
    DP_AUTO_FREE float *rows = dp_new_array(float, (size_t)MANY *HIDDEN);
    for (int32_t i = 0; i < MANY; i++) {
        index[i] = config.experts - 1;
        rows[(size_t)i * HIDDEN] = (float)i;
    }
    struct dp_alltoall *alltoall;
    pthread_t mover;
    EXPECT_OK(dp_alltoall_open(&config, 0, &alltoall, err));
    const struct dp_exchanger *calls = dp_alltoall_exchanger(alltoall);
    struct dp_routing *routing;
    struct dp_load load = {.rows = rows, .weights = rows};
    EXPECT_OK(calls->route(calls->context, 1, MANY, index, &routing, err));
    if (rank == 1) {
        EXPECT_OK(dp_transport_recv(transport, 0, 99, NULL, 0, 0, err));
    }
    pthread_create(&mover, NULL, end_move_rows, alltoall);
    EXPECT_OK(calls->begin(routing, DP_MOVE_DISPATCH, &load, err));
    uint64_t bytes[2] = {0};
    while (rank == 0 && bytes[1] < 100ull * HIDDEN * sizeof(float)) {
        struct dp_alltoall_stats stats;
        dp_alltoall_stats(alltoall, &stats, bytes);
        sched_yield();
    }
    if (rank == 0) {
        EXPECT_OK(dp_transport_send(transport, 1, 99, NULL, 0, err));
    }
    struct dp_arrivals arrivals;
    EXPECT_OK(calls->arrive(routing, DP_MOVE_DISPATCH, &arrivals, err));
    EXPECT(arrivals.tokens == rank * 2 * MANY);
    for (int64_t i = 0; i < arrivals.tokens; i++) {
        EXPECT(((const float *)arrivals.rows)[i * HIDDEN] == (float)(i % MANY));
    }
    calls->finish(routing, DP_MOVE_DISPATCH);
    calls->release(routing);
    dp_status status =
        dp_alltoall_close(alltoall, dp_clock_monotonic_ns() + 120 * DP_NS_PER_S, err);
    pthread_join(mover, NULL);
    dp_alltoall_free(alltoall);
    return status;
}

static void a_peer_that_looks_late_misses_no_note(void **state)
{
    (void)state;
    cluster_run(CLUSTER_LOOPBACK, 2, look_late, NULL);
    cluster_run(CLUSTER_TCP, 2, look_late, NULL);
}

static long resident_pages(void)
{
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL && fscanf(file, "%ld %ld", &size, &resident) != 2) {
        resident = 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    return resident;
}

static int open_files(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static dp_status repeat(struct dp_transport *transport, void *context, struct dp_error *err)
{
    long runs = *(long *)context, pages = 0;
    int files = 0;
    struct end end = {0};
    struct dp_alltoall_config config = end_config(transport);
    EXPECT_OK(end_open(&end, &config, err));
    for (long i = 0; i < runs; i++) {
        struct dp_routing *routing;
        EXPECT_OK(end_begin_dispatch(&end, (uint64_t)i, &routing, err));
        EXPECT_OK(end_go_forward(&end, routing, err));
        end.exchanger->release(routing);
        // By now buffers have their sizes, and allocators what they keep.
        if (i == runs / 2 && dp_transport_rank(transport) == 0) {
            pages = resident_pages();
            files = open_files();
        }
    }
    if (dp_transport_rank(transport) == 0) {
        EXPECT(open_files() == files);
        EXPECT(resident_pages() - pages < 2048); // 8 MiB
    }
    EXPECT_OK(end_close(&end, err));
    return DP_OK;
}

static void memory_and_files_stay_flat_over_many_moves(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(400);
    cluster_run(CLUSTER_LOOPBACK, 2, repeat, &runs);
    cluster_run(CLUSTER_SHM, 2, repeat, &runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_another_order_are_told_so),
        cmocka_unit_test(kinds_of_moves_in_another_order_are_told_so),
        cmocka_unit_test(rows_of_another_attempt_are_refused),
        cmocka_unit_test(a_peer_that_dies_is_named_with_the_move),
        cmocka_unit_test(a_peer_that_does_not_begin_is_named_within_the_deadline),
        cmocka_unit_test(an_abort_wakes_who_waits_and_refuses_what_follows),
        cmocka_unit_test(calls_out_of_turn_are_refused),
        cmocka_unit_test(an_infinity_in_fp8_rows_is_reported_with_its_move),
        cmocka_unit_test(sizes_and_members_that_make_no_sense_are_refused_at_open),
        cmocka_unit_test(a_routing_may_be_released_at_any_time),
        cmocka_unit_test(a_routing_may_be_dispatched_again),
        cmocka_unit_test(a_peer_that_looks_late_misses_no_note),
        cmocka_unit_test(memory_and_files_stay_flat_over_many_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
