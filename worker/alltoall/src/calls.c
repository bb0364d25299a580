// The exchanger's calls: they hand rounds over and wait for them.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "dp/transport_ops.h"

#include "engine.h"

static dp_status route(void *context, uint64_t tag, int64_t tokens, const int32_t *index,
                       struct dp_routing **ret_routing, struct dp_error *err)
{
    struct dp_alltoall *alltoall = context;
    if (tokens < 0 || tokens > alltoall->tokens_max) {
        char text[DP_TRANSPORT_TAG_TEXT_MAX];
        return dp_fail(err, DP_TOO_LARGE,
                       "all-to-all: a routing of %lld tokens (%s); the window has room for %lld of "
                       "each rank",
                       (long long)tokens, dp_transport_tag_text(text, tag),
                       (long long)alltoall->tokens_max);
    }
    struct dp_alltoall_layout layout;
    dp_status status =
        dp_alltoall_layout_init(&layout, &alltoall->topology, alltoall->experts, tokens,
                                alltoall->top_k, index, -1, alltoall->limited_nodes, err);
    if (status != DP_OK) {
        char text[DP_TRANSPORT_TAG_TEXT_MAX];
        return dp_fail_in(err, "routing (%s)", dp_transport_tag_text(text, tag));
    }
    struct dp_routing *routing = dp_new(struct dp_routing);
    size_t slots = (size_t)tokens * (size_t)alltoall->top_k;
    int32_t own = alltoall->experts / alltoall->topology.ranks;
    *routing = (struct dp_routing){
        .alltoall = alltoall,
        .tag = tag,
        .tokens = tokens,
        .index = slots > 0 ? dp_memdup(index, slots * sizeof index[0]) : NULL,
        .layout = layout,
        .served = dp_new_array(struct dp_alltoall_layout, (size_t)alltoall->served),
        .expert_counts = dp_new_array(int32_t, (size_t)own),
        .users = 1,
    };
    dp_alltoall_counts_init(&routing->counts, &alltoall->topology);
    *ret_routing = routing;
    return DP_OK;
}

static void free_routing(struct dp_routing *routing)
{
    for (int32_t i = 0; i < routing->alltoall->served; i++) {
        dp_alltoall_layout_deinit(&routing->served[i]);
    }
    dp_alltoall_layout_deinit(&routing->layout);
    dp_alltoall_counts_deinit(&routing->counts);
    free(routing->served);
    free(routing->index);
    free(routing->expert);
    free(routing->expert_counts);
    free(routing);
}

void dp_routing_unuse(struct dp_routing *routing)
{
    if (--routing->users == 0) {
        free_routing(routing);
    }
}

static void release(struct dp_routing *routing)
{
    if (routing == NULL) {
        return;
    }
    struct dp_alltoall *alltoall = routing->alltoall;
    bool is_left = false;
    pthread_mutex_lock(&alltoall->mutex);
    for (int move = 0; move < 4; move++) {
        // Nobody will ask for it any more; the other members' rows go their way still.
        if (routing->rounds[move] != NULL) {
            routing->rounds[move]->finished = true;
            routing->rounds[move] = NULL;
            is_left = true;
        }
    }
    dp_routing_unuse(routing);
    pthread_mutex_unlock(&alltoall->mutex);
    if (is_left) {
        dp_alltoall_wake(alltoall);
    }
}

static dp_status check_begin(const struct dp_routing *routing, dp_move move,
                             const struct dp_load *load, struct dp_error *err)
{
    char text[DP_TRANSPORT_TAG_TEXT_MAX];
    const char *why = NULL;
    bool has_rows = dp_alltoall_is_back(move) ? routing->arrived > 0 : routing->tokens > 0;
    bool has_weights = move == DP_MOVE_DISPATCH || move == DP_MOVE_DISPATCH_INPUT;
    if (routing->rounds[move] != NULL) {
        why = "it is under way already";
    } else if (move != DP_MOVE_DISPATCH && !routing->has_arrived) {
        why = "the routing's tokens have not been dispatched";
    } else if (has_rows && (load->rows == NULL || (has_weights && load->weights == NULL))) {
        why = "there are no rows or no weights";
    } else if (load->format == DP_WIRE_FP8 && dp_alltoall_is_back(move)) {
        why = "fp8 is for the way to the experts";
    }
    if (why == NULL) {
        return DP_OK;
    }
    return dp_fail(err, DP_INTERNAL, "all-to-all: cannot begin %s (%s): %s",
                   dp_alltoall_move_text(move), dp_transport_tag_text(text, routing->tag), why);
}

static dp_status begin(struct dp_routing *routing, dp_move move, const struct dp_load *load,
                       struct dp_error *err)
{
    struct dp_alltoall *alltoall = routing->alltoall;
    struct round *round = NULL;
    pthread_mutex_lock(&alltoall->mutex);
    dp_status status = dp_alltoall_refuse_failed(alltoall, err);
    if (status == DP_OK) {
        status = check_begin(routing, move, load, err);
    }
    if (status == DP_OK) {
        round = dp_round_new(routing, move, load);
        round->number = alltoall->next_number++;
        round->lane = &alltoall->lanes[move][alltoall->begun[move]++ % (uint64_t)alltoall->depth];
        routing->rounds[move] = round;
        routing->landed_ns[move] = 0;
        routing->users++;
        *alltoall->queue_end = round;
        alltoall->queue_end = &round->next;
    }
    pthread_mutex_unlock(&alltoall->mutex);
    if (status == DP_OK) {
        dp_alltoall_wake(alltoall);
    }
    return status;
}

static bool ready(struct dp_routing *routing, dp_move move)
{
    struct dp_alltoall *alltoall = routing->alltoall;
    pthread_mutex_lock(&alltoall->mutex);
    const struct round *round = routing->rounds[move];
    bool is_ready = alltoall->failed != DP_OK || (round != NULL && round->done);
    pthread_mutex_unlock(&alltoall->mutex);
    return is_ready;
}

static int64_t landed_ns(struct dp_routing *routing, dp_move move)
{
    pthread_mutex_lock(&routing->alltoall->mutex);
    int64_t at_ns = routing->landed_ns[move];
    pthread_mutex_unlock(&routing->alltoall->mutex);
    return at_ns;
}

// The progress thread finds out who is late and fails the all-to-all; this is for when it does not
// run at all.
static int64_t last_ns(const struct dp_alltoall *alltoall)
{
    return dp_clock_monotonic_ns() + 2 * alltoall->blocked_ns + DP_NS_PER_S;
}

// The rank waits: what peers have sent on the way to the rows is read.
void dp_alltoall_count_waiter(struct dp_alltoall *alltoall, bool begins)
{
    struct dp_transport *transport = alltoall->transport;
    pthread_mutex_lock(transport->mutex);
    if (begins) {
        dp_transport_wait_begin(transport);
    } else {
        dp_transport_wait_end(transport);
    }
    pthread_mutex_unlock(transport->mutex);
}

// Under the mutex.
static dp_status await(struct dp_routing *routing, dp_move move, struct dp_error *err)
{
    struct dp_alltoall *alltoall = routing->alltoall;
    struct round *round = routing->rounds[move];
    if (round == NULL) {
        return dp_fail(err, DP_INTERNAL, "all-to-all: %s is waited for and was not begun",
                       dp_alltoall_move_text(move));
    }
    if (round->done) {
        return DP_OK;
    }
    int64_t until_ns = last_ns(alltoall);
    dp_status status = DP_OK;
    round->waited_since_ns = dp_clock_monotonic_ns();
    dp_alltoall_count_waiter(alltoall, true);
    while (!round->done && status == DP_OK) {
        status = dp_alltoall_refuse_failed(alltoall, err);
        if (status == DP_OK && !alltoall->is_running && dp_clock_monotonic_ns() >= until_ns) {
            char text[ROUND_TEXT_MAX];
            status = dp_fail(err, DP_TIMEOUT,
                             "all-to-all: %s: nobody moves rows; dp_alltoall_progress must be run",
                             dp_round_text(text, round));
        }
        if (status == DP_OK) {
            dp_cond_wait(&alltoall->changed, &alltoall->mutex,
                         dp_clock_monotonic_ns() + DP_NS_PER_S);
        }
    }
    dp_alltoall_count_waiter(alltoall, false);
    round->waited_since_ns = 0;
    return status;
}

static dp_status arrive(struct dp_routing *routing, dp_move move, struct dp_arrivals *ret_arrivals,
                        struct dp_error *err)
{
    struct dp_alltoall *alltoall = routing->alltoall;
    DP_CHECK(!dp_alltoall_is_back(move));
    pthread_mutex_lock(&alltoall->mutex);
    dp_status status = await(routing, move, err);
    if (status == DP_OK) {
        const struct round *round = routing->rounds[move];
        const struct dp_alltoall_lane_areas *areas = round->lane->areas;
        const uint8_t *memory = alltoall->memory;
        *ret_arrivals = (struct dp_arrivals){
            .tokens = routing->arrived,
            .rows = memory + areas->rows.offset,
            .scales = dp_round_is_fp8(round)
                          ? (const float *)(const void *)(memory + areas->scales.offset)
                          : NULL,
            .weights = move == DP_MOVE_DISPATCH ? memory + areas->weights.offset : NULL,
            .expert = routing->expert,
            .counts = routing->expert_counts,
        };
    }
    pthread_mutex_unlock(&alltoall->mutex);
    return status;
}

// The caller is through with a round.
static void let_go(struct dp_routing *routing, dp_move move)
{
    pthread_mutex_lock(&routing->alltoall->mutex);
    struct round *round = routing->rounds[move];
    DP_CHECK(round != NULL);
    round->finished = true;
    routing->rounds[move] = NULL;
    pthread_mutex_unlock(&routing->alltoall->mutex);
    dp_alltoall_wake(routing->alltoall);
}

static void finish(struct dp_routing *routing, dp_move move)
{
    let_go(routing, move);
}

static dp_status collect(struct dp_routing *routing, dp_move move, void *rows, void *weights,
                         struct dp_error *err)
{
    struct dp_alltoall *alltoall = routing->alltoall;
    DP_CHECK(dp_alltoall_is_back(move));
    pthread_mutex_lock(&alltoall->mutex);
    dp_status status = await(routing, move, err);
    const struct lane *lane = status == DP_OK ? routing->rounds[move]->lane : NULL;
    pthread_mutex_unlock(&alltoall->mutex);
    if (status != DP_OK) {
        return status;
    }
    size_t tokens = (size_t)routing->tokens;
    if (tokens > 0) {
        memcpy(rows, lane->totals, tokens * (size_t)alltoall->widths.row);
    }
    if (tokens > 0 && move == DP_MOVE_DISPATCH_INPUT) {
        memcpy(weights, lane->total_weights, tokens * (size_t)alltoall->widths.weights);
    }
    let_go(routing, move);
    return DP_OK;
}

const struct dp_exchanger dp_alltoall_calls = {
    .route = route,
    .release = release,
    .begin = begin,
    .ready = ready,
    .landed_ns = landed_ns,
    .arrive = arrive,
    .finish = finish,
    .collect = collect,
};
