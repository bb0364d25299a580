#include "moves.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"

// One routing as the stages see it. Moves of it follow each other.
struct dp_routing {
    struct moves *moves;
    struct dp_routing *inner;        // of the exchanger behind
    struct dp_routing *next, **link; // among those with a move under way
    dp_move move;
    int64_t begun_ns;
    int64_t absent_ns; // when it was last seen not to have landed
};

struct moves {
    struct dp_exchanger exchanger;
    const struct dp_exchanger *inner;
    struct dp_routing *under_way;
    struct dp_exec_comm comm[DP_EXEC_COMM_KIND_COUNT];
};

static dp_status route(void *context, uint64_t tag, int64_t tokens, const int32_t *index,
                       struct dp_routing **ret_routing, struct dp_error *err)
{
    struct moves *moves = context;
    struct dp_routing *inner = NULL;
    dp_status status = moves->inner->route(moves->inner->context, tag, tokens, index, &inner, err);
    if (status == DP_OK) {
        struct dp_routing *routing = dp_new(struct dp_routing);
        routing->moves = moves;
        routing->inner = inner;
        *ret_routing = routing;
    }
    return status;
}

static void leave_list(struct dp_routing *routing)
{
    if (routing->link != NULL) {
        *routing->link = routing->next;
        if (routing->next != NULL) {
            routing->next->link = routing->link;
        }
        routing->link = NULL;
        routing->next = NULL;
    }
}

static void release(struct dp_routing *routing)
{
    if (routing != NULL) {
        leave_list(routing);
        routing->moves->inner->release(routing->inner);
        free(routing);
    }
}

static dp_status begin(struct dp_routing *routing, dp_move move, const struct dp_load *load,
                       struct dp_error *err)
{
    struct moves *moves = routing->moves;
    DP_CHECK(routing->link == NULL);
    routing->move = move;
    routing->begun_ns = dp_clock_monotonic_ns();
    routing->absent_ns = routing->begun_ns;
    dp_status status = moves->inner->begin(routing->inner, move, load, err);
    if (status == DP_OK) {
        routing->next = moves->under_way;
        routing->link = &moves->under_way;
        if (routing->next != NULL) {
            routing->next->link = &routing->next;
        }
        moves->under_way = routing;
    }
    return status;
}

static bool ready(struct dp_routing *routing, dp_move move)
{
    bool is_ready = routing->moves->inner->ready(routing->inner, move);
    if (!is_ready) {
        routing->absent_ns = dp_clock_monotonic_ns();
    }
    return is_ready;
}

static int64_t landed_ns(struct dp_routing *routing, dp_move move)
{
    return routing->moves->inner->landed_ns(routing->inner, move);
}

// What the caller waits for is exposed. Where nobody knows when the move landed, it is when it was
// last seen not to have, which makes it shorter and what is hidden less.
static void ended(struct dp_routing *routing, dp_move move, bool was_ready, int64_t start_ns)
{
    int64_t end_ns = dp_clock_monotonic_ns();
    int64_t landed = landed_ns(routing, move);
    if (landed <= 0) {
        landed = was_ready ? routing->absent_ns : end_ns;
    }
    struct dp_exec_comm *comm = &routing->moves->comm[move];
    int64_t exposed_ns = was_ready ? 0 : end_ns - start_ns;
    int64_t total_ns = landed > routing->begun_ns ? landed - routing->begun_ns : 0;
    comm->exposed_ns += exposed_ns;
    comm->total_ns += total_ns > exposed_ns ? total_ns : exposed_ns;
    comm->count++;
    leave_list(routing);
}

static dp_status arrive(struct dp_routing *routing, dp_move move, struct dp_arrivals *ret_arrivals,
                        struct dp_error *err)
{
    const struct dp_exchanger *inner = routing->moves->inner;
    bool was_ready = inner->ready(routing->inner, move);
    int64_t start_ns = dp_clock_monotonic_ns();
    dp_status status = inner->arrive(routing->inner, move, ret_arrivals, err);
    ended(routing, move, was_ready, start_ns);
    return status;
}

static void finish(struct dp_routing *routing, dp_move move)
{
    routing->moves->inner->finish(routing->inner, move);
}

static dp_status collect(struct dp_routing *routing, dp_move move, void *rows, void *weights,
                         struct dp_error *err)
{
    const struct dp_exchanger *inner = routing->moves->inner;
    bool was_ready = inner->ready(routing->inner, move);
    int64_t start_ns = dp_clock_monotonic_ns();
    dp_status status = inner->collect(routing->inner, move, rows, weights, err);
    ended(routing, move, was_ready, start_ns);
    return status;
}

struct moves *dp_exec_moves_new(void)
{
    struct moves *moves = dp_new(struct moves);
    moves->exchanger = (struct dp_exchanger){.context = moves,
                                             .route = route,
                                             .release = release,
                                             .begin = begin,
                                             .ready = ready,
                                             .landed_ns = landed_ns,
                                             .arrive = arrive,
                                             .finish = finish,
                                             .collect = collect};
    return moves;
}

void dp_exec_moves_free(struct moves *moves)
{
    free(moves);
}

struct dp_exchanger *dp_exec_moves_exchanger(struct moves *moves)
{
    return &moves->exchanger;
}

void dp_exec_moves_set_inner(struct moves *moves, const struct dp_exchanger *inner)
{
    moves->inner = inner;
}

void dp_exec_moves_poll(struct moves *moves)
{
    for (struct dp_routing *routing = moves->under_way; routing != NULL; routing = routing->next) {
        ready(routing, routing->move);
    }
}

int64_t dp_exec_moves_take(struct moves *moves, struct dp_exec_comm *comm)
{
    int64_t exposed_ns = 0;
    for (int i = 0; i < DP_EXEC_COMM_KIND_COUNT; i++) {
        exposed_ns += moves->comm[i].exposed_ns;
        comm[i].count += moves->comm[i].count;
        comm[i].total_ns += moves->comm[i].total_ns;
        comm[i].exposed_ns += moves->comm[i].exposed_ns;
        moves->comm[i] = (struct dp_exec_comm){0};
    }
    return exposed_ns;
}
