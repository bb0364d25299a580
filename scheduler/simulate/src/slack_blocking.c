// Slack with blocking batches: the forward pass in a mirror. Each end of a message says how much
// later it may arrive; with both known it is known how much later it may leave, and with all
// messages of a batch how much later the action before it may end.
#include <math.h>
#include <stdlib.h>

#include "analysis.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

struct back {
    struct analysis *analysis;
    size_t *batch;     // [pipeline]: the batch that is open; batch i is before action i
    size_t *next;      // [pipeline]: one past the ops of batches not opened yet
    uint32_t *pending; // [pipeline]: messages of the open batch that lack their other end
    int32_t *ready;    // ranks whose open batch is settled
    int32_t ready_count;
    bool fits;
};

static bool sends(const struct dp_p2p *op)
{
    return op->kind == DP_SEND_F || op->kind == DP_SEND_B;
}

static int way_of(const struct dp_p2p *op)
{
    return op->kind == DP_SEND_F || op->kind == DP_RECV_F ? FORWARD : BACKWARD;
}

static size_t link_index(const struct analysis *analysis, int32_t rank, const struct dp_p2p *op)
{
    int32_t from = sends(op) ? rank : op->peer;
    int32_t to = sends(op) ? op->peer : rank;
    return (size_t)(from * analysis->schedule->pipeline + to);
}

static size_t action_count(const struct analysis *analysis, int32_t rank)
{
    return analysis->schedule->rank_begin[rank + 1] - analysis->schedule->rank_begin[rank];
}

static const struct dp_sim_span *span_at(const struct analysis *analysis, int32_t rank,
                                         size_t position)
{
    return &analysis->spans[analysis->schedule->rank_begin[rank] + position];
}

static double off_wire(const struct analysis *analysis, int32_t rank, const struct dp_p2p *op)
{
    const struct link *link = &analysis->links[link_index(analysis, rank, op)];
    return analysis->wired[op->message] + link->seconds[way_of(op)];
}

static void note_messages(struct analysis *analysis)
{
    const struct dp_lowered *lowered = &analysis->lowered;
    for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
        for (size_t i = lowered->rank_begin[rank]; i < lowered->rank_begin[rank + 1]; i++) {
            size_t batch = sim_batch_of(&lowered->ops[i]);
            double posted = batch == 0 ? 0 : span_at(analysis, rank, batch - 1)->end;
            double *met = &analysis->met[lowered->ops[i].message];
            *met = posted > *met ? posted : *met;
        }
    }
    for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
        for (size_t i = lowered->rank_begin[rank]; i < lowered->rank_begin[rank + 1]; i++) {
            const struct dp_p2p *op = &lowered->ops[i];
            if (sends(op)) {
                struct link *link = &analysis->links[link_index(analysis, rank, op)];
                double met = analysis->met[op->message];
                analysis->wired[op->message] = met > link->free ? met : link->free;
                link->free = analysis->wired[op->message] + link->seconds[way_of(op)];
            }
        }
    }
}

static void settle(struct back *back, int32_t rank)
{
    if (--back->pending[rank] == 0) {
        back->ready[back->ready_count++] = rank;
    }
}

// One end of a message may see it `room` later.
static void give_room(struct back *back, int32_t rank, const struct dp_p2p *op, double room)
{
    struct analysis *analysis = back->analysis;
    double *of_message = &analysis->room[op->message];
    back->pending[rank]++;
    if (*of_message < 0) {
        *of_message = room;
        return;
    }
    double wired = analysis->wired[op->message];
    struct follower *follower = &analysis->followers[link_index(analysis, rank, op)];
    double slack = least(least(room, *of_message),
                         follower->slack + (follower->base - off_wire(analysis, rank, op)));
    *follower = (struct follower){slack, wired};
    *of_message = slack + (wired - analysis->met[op->message]);
    settle(back, rank);
    settle(back, op->peer);
}

static void open_batch(struct back *back, int32_t rank, size_t batch)
{
    struct analysis *analysis = back->analysis;
    const struct dp_lowered *lowered = &analysis->lowered;
    // The step does not wait for the last batch, only for those who need what it sends.
    bool last = batch == action_count(analysis, rank);
    size_t action = analysis->schedule->rank_begin[rank] + batch;
    back->batch[rank] = batch;
    back->pending[rank] = 1; // the batch itself, until all its ends are given
    size_t next = back->next[rank];
    for (; next > lowered->rank_begin[rank] && sim_batch_of(&lowered->ops[next - 1]) == batch;
         next--) {
        const struct dp_p2p *op = &lowered->ops[next - 1];
        const struct link *link = &analysis->links[link_index(analysis, rank, op)];
        double arrival = off_wire(analysis, rank, op) + link->latency;
        double start = last ? INFINITY : analysis->spans[action].start;
        back->fits &= start >= arrival;
        give_room(back, rank, op, last ? INFINITY : analysis->slack[action] + (start - arrival));
    }
    back->next[rank] = next;
    settle(back, rank);
}

// All messages of the open batch are judged, so the action before it can be.
static void judge_before(struct back *back, int32_t rank)
{
    struct analysis *analysis = back->analysis;
    const struct dp_lowered *lowered = &analysis->lowered;
    size_t batch = back->batch[rank];
    if (batch == 0) {
        back->batch[rank] = SIZE_MAX;
        return;
    }
    size_t action = analysis->schedule->rank_begin[rank] + batch - 1;
    double end = analysis->spans[action].end;
    bool last = is_last(analysis, rank, action);
    double until = last ? analysis->makespan : analysis->spans[action + 1].start;
    back->fits &= until >= end;
    double slack = (last ? 0 : analysis->slack[action + 1]) + (until - end);
    for (size_t i = back->next[rank];
         i < lowered->rank_begin[rank + 1] && sim_batch_of(&lowered->ops[i]) == batch; i++) {
        uint32_t message = lowered->ops[i].message;
        slack = least(slack, analysis->room[message] + (analysis->met[message] - end));
    }
    analysis->slack[action] = slack;
    open_batch(back, rank, batch - 1);
}

static dp_status judge(struct analysis *analysis, struct dp_error *err)
{
    size_t ranks = (size_t)analysis->schedule->pipeline;
    DP_AUTO_FREE size_t *batch = dp_new_array(size_t, ranks);
    DP_AUTO_FREE size_t *next = dp_memdup(analysis->lowered.rank_begin + 1, ranks * sizeof(size_t));
    DP_AUTO_FREE uint32_t *pending = dp_new_array(uint32_t, ranks);
    DP_AUTO_FREE int32_t *ready = dp_new_array(int32_t, ranks);
    struct back back = {.analysis = analysis,
                        .batch = batch,
                        .next = next,
                        .pending = pending,
                        .ready = ready,
                        .fits = true};
    for (int32_t rank = 0; rank < analysis->schedule->pipeline; rank++) {
        open_batch(&back, rank, action_count(analysis, rank));
    }
    while (back.ready_count > 0 && back.fits) {
        judge_before(&back, ready[--back.ready_count]);
    }
    for (int32_t rank = 0; rank < analysis->schedule->pipeline; rank++) {
        if (batch[rank] != SIZE_MAX || !back.fits) {
            return dp_sim_refuse_spans(analysis, rank, err);
        }
    }
    return DP_OK;
}

dp_status dp_sim_slack_blocking(struct analysis *analysis, struct dp_error *err)
{
    if (analysis->lowered.ops == NULL) {
        dp_status status = dp_schedule_lower_all(analysis->schedule, &analysis->lowered, err);
        if (status != DP_OK) {
            return status;
        }
    }
    size_t messages = analysis->lowered.rank_begin[analysis->schedule->pipeline] / 2;
    analysis->met = dp_new_array(double, messages);
    analysis->wired = dp_new_array(double, messages);
    analysis->room = dp_new_array(double, messages);
    for (size_t i = 0; i < messages; i++) {
        analysis->room[i] = -1; // no end has said anything
    }
    note_messages(analysis);
    return judge(analysis, err);
}

// The other end of the message: each rank's list is in the order of messages.
static const struct dp_p2p *other_end(const struct analysis *analysis, const struct dp_p2p *op)
{
    const struct dp_lowered *lowered = &analysis->lowered;
    size_t low = lowered->rank_begin[op->peer];
    size_t high = lowered->rank_begin[op->peer + 1];
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if (lowered->ops[middle].message <= op->message) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &lowered->ops[low];
}

// The action after the batch of `op`, when it may not start later than at `arrival`.
static size_t bound_by(const struct analysis *analysis, int32_t rank, const struct dp_p2p *op,
                       double arrival)
{
    size_t batch = sim_batch_of(op);
    size_t action = analysis->schedule->rank_begin[rank] + batch;
    return batch < action_count(analysis, rank) && is_bound(analysis, action, arrival) ? action
                                                                                       : NO_ACTION;
}

// Follows the message of a rank's op, which may push others on the wire before it.
static size_t follow_message(const struct analysis *analysis, int32_t rank, size_t index,
                             int32_t *ret_rank)
{
    const struct dp_lowered *lowered = &analysis->lowered;
    const struct dp_p2p *op = &lowered->ops[index];
    size_t wire = link_index(analysis, rank, op);
    double free_at = analysis->met[op->message];
    for (; index < lowered->rank_begin[rank + 1]; index++) {
        op = &lowered->ops[index];
        if (link_index(analysis, rank, op) != wire) {
            continue;
        }
        if (analysis->wired[op->message] != free_at) {
            return NO_ACTION;
        }
        free_at = off_wire(analysis, rank, op);
        double arrival = free_at + analysis->links[wire].latency;
        size_t own = bound_by(analysis, rank, op, arrival);
        size_t other = bound_by(analysis, op->peer, other_end(analysis, op), arrival);
        *ret_rank = own != NO_ACTION ? rank : op->peer;
        if (own != NO_ACTION || other != NO_ACTION) {
            return own != NO_ACTION ? own : other;
        }
    }
    return NO_ACTION;
}

// The first of the rank's ops that is in the batch or in a later one.
static size_t first_op(const struct dp_lowered *lowered, int32_t rank, size_t batch)
{
    size_t low = lowered->rank_begin[rank];
    size_t high = lowered->rank_begin[rank + 1];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sim_batch_of(&lowered->ops[middle]) < batch) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

size_t dp_sim_path_next_blocking(const struct analysis *analysis, int32_t rank, size_t action,
                                 int32_t *ret_rank)
{
    const struct dp_lowered *lowered = &analysis->lowered;
    size_t batch = action + 1 - analysis->schedule->rank_begin[rank];
    size_t found = NO_ACTION;
    for (size_t i = first_op(lowered, rank, batch);
         found == NO_ACTION && i < lowered->rank_begin[rank + 1] &&
         sim_batch_of(&lowered->ops[i]) == batch;
         i++) {
        if (analysis->met[lowered->ops[i].message] == analysis->spans[action].end) {
            found = follow_message(analysis, rank, i, ret_rank);
        }
    }
    return found;
}
