// The thread that moves rows: reads notes, starts rounds, does a bit of everything that can be
// done, ends rounds, and sleeps.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

#include "engine.h"

// How long it sleeps at most while somebody may be late.
#define LOOK_NS (500 * DP_NS_PER_MS)

void dp_alltoall_fail(struct dp_alltoall *alltoall, const struct dp_error *err)
{
    pthread_mutex_lock(&alltoall->mutex);
    if (alltoall->failed == DP_OK) {
        DP_COPY_TEXT(alltoall->reason, err->message);
        alltoall->failed = (int)err->status;
    }
    pthread_cond_broadcast(&alltoall->changed);
    pthread_mutex_unlock(&alltoall->mutex);
}

dp_status dp_alltoall_refuse_failed(struct dp_alltoall *alltoall, struct dp_error *err)
{
    if (alltoall->failed == DP_OK) {
        return DP_OK;
    }
    return dp_fail(err, (dp_status)alltoall->failed, "%s", alltoall->reason);
}

void dp_alltoall_wake(struct dp_alltoall *alltoall)
{
    struct dp_error err;
    dp_status status = dp_link_control(alltoall, alltoall->self, CONTROL_WAKE, 0, &err);
    if (status != DP_OK) {
        dp_alltoall_fail(alltoall, &err);
    }
}

static dp_status start(struct dp_alltoall *alltoall, struct round *round, struct dp_error *err)
{
    round->lane->round = round;
    round->progress_ns = dp_clock_monotonic_ns();
    dp_status status = dp_round_start(alltoall, round, err);
    return status == DP_OK ? dp_notes_check_early(alltoall, round, err) : status;
}

// Rounds whose lane is free, in the order in which they were begun.
static dp_status start_rounds(struct dp_alltoall *alltoall, bool *progress, struct dp_error *err)
{
    dp_status status = DP_OK;
    pthread_mutex_lock(&alltoall->mutex);
    struct round **at = &alltoall->queue;
    while (*at != NULL && status == DP_OK) {
        struct round *round = *at;
        if (round->lane->round != NULL) {
            at = &round->next;
            continue;
        }
        *at = round->next;
        if (alltoall->queue_end == &round->next) {
            alltoall->queue_end = at;
        }
        pthread_mutex_unlock(&alltoall->mutex);
        status = start(alltoall, round, err);
        *progress = true;
        pthread_mutex_lock(&alltoall->mutex);
        at = &alltoall->queue; // others may have been begun meanwhile
    }
    pthread_mutex_unlock(&alltoall->mutex);
    return status;
}

// A member that says or needs to hear when the round is over.
static bool is_linked(const struct dp_alltoall *alltoall, dp_move move, int32_t peer)
{
    return peer != alltoall->self && (move == DP_MOVE_DISPATCH || alltoall->links[peer].is_linked);
}

// The caller is through, nothing is left to be done for others, and nobody is a round behind.
static bool may_end(struct dp_alltoall *alltoall, const struct round *round)
{
    pthread_mutex_lock(&alltoall->mutex);
    bool may = round->done && round->finished;
    pthread_mutex_unlock(&alltoall->mutex);
    may = may && (dp_alltoall_is_back(round->move) ? dp_back_is_over(alltoall, round)
                                                   : dp_forth_is_over(alltoall, round));
    for (int32_t i = 0; i < alltoall->topology.ranks && may; i++) {
        may = !is_linked(alltoall, round->move, i) ||
              round->lane->peers[i].credits >= round->lane->over;
    }
    return may;
}

static dp_status end(struct dp_alltoall *alltoall, struct round *round, struct dp_error *err)
{
    struct lane *lane = round->lane;
    size_t ranks = (size_t)alltoall->topology.ranks;
    memset(lane->arrived, 0, ranks * sizeof lane->arrived[0]);
    memset(lane->inbound, 0, ranks * sizeof lane->inbound[0]);
    memset(lane->partial, 0, ranks * (size_t)alltoall->node_ranks * sizeof lane->partial[0]);
    memset(lane->returned, 0, (size_t)alltoall->topology.nodes * sizeof lane->returned[0]);
    for (int32_t i = 0; i < alltoall->topology.ranks; i++) {
        lane->peers[i].is_noted = false;
    }
    lane->round = NULL;
    lane->over++;
    lane->last_number = round->number;
    lane->last_check = round->check;
    lane->last_tag = round->routing->tag;
    dp_status status = DP_OK;
    for (int32_t i = 0; i < alltoall->topology.ranks && status == DP_OK; i++) {
        if (is_linked(alltoall, round->move, i)) {
            status = dp_link_credit(alltoall, round, i, err);
        }
    }
    struct dp_routing *routing = round->routing;
    dp_round_free(round);
    pthread_mutex_lock(&alltoall->mutex);
    dp_routing_unuse(routing);
    pthread_cond_broadcast(&alltoall->changed);
    pthread_mutex_unlock(&alltoall->mutex);
    return status;
}

static dp_status step_lane(struct dp_alltoall *alltoall, struct lane *lane, bool *progress,
                           struct dp_error *err)
{
    struct round *round = lane->round;
    if (round == NULL) {
        return DP_OK;
    }
    bool moved = false;
    dp_status status = dp_alltoall_is_back(round->move)
                           ? dp_back_step(alltoall, round, &moved, err)
                           : dp_forth_step(alltoall, round, &moved, err);
    if (moved) {
        round->progress_ns = dp_clock_monotonic_ns();
        *progress = true;
    }
    if (status == DP_OK && may_end(alltoall, round)) {
        status = end(alltoall, round, err);
        *progress = true;
    }
    return status;
}

static dp_status step_lanes(struct dp_alltoall *alltoall, bool *progress, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int move = 0; move < 4 && status == DP_OK; move++) {
        for (int32_t i = 0; i < alltoall->depth && status == DP_OK; i++) {
            status = step_lane(alltoall, &alltoall->lanes[move][i], progress, err);
        }
    }
    return status;
}

static bool has_rounds(struct dp_alltoall *alltoall)
{
    pthread_mutex_lock(&alltoall->mutex);
    bool has = alltoall->queue != NULL;
    pthread_mutex_unlock(&alltoall->mutex);
    for (int move = 0; move < 4; move++) {
        for (int32_t i = 0; i < alltoall->depth; i++) {
            has = has || alltoall->lanes[move][i].round != NULL;
        }
    }
    return has;
}

static const struct round *any_round(const struct dp_alltoall *alltoall)
{
    const struct round *oldest = NULL;
    for (int move = 0; move < 4; move++) {
        for (int32_t i = 0; i < alltoall->depth; i++) {
            const struct round *round = alltoall->lanes[move][i].round;
            if (round != NULL && (oldest == NULL || round->begin_ns < oldest->begin_ns)) {
                oldest = round;
            }
        }
    }
    return oldest;
}

// Whether a peer has gone without having said so.
static dp_status look_for_peer(struct dp_alltoall *alltoall, int32_t peer, struct dp_error *err)
{
    struct link *link = &alltoall->links[peer];
    bool more = false;
    dp_status status = dp_window_wait(alltoall->window, link->rank, link->read + 1, 1, NULL, err);
    if (status == DP_OK || status == DP_TIMEOUT || link->has_closed) {
        return DP_OK;
    }
    struct dp_error reading;
    dp_status read = dp_notes_read(alltoall, &more, &reading);
    if (read != DP_OK) {
        *err = reading;
        return read;
    }
    if (link->has_closed) {
        return DP_OK;
    }
    const struct round *round = any_round(alltoall);
    char text[ROUND_TEXT_MAX];
    return dp_fail_in(err, "all-to-all: rank %d is lost, %s", link->rank,
                      round != NULL ? dp_round_text(text, round) : "between moves");
}

static dp_status look_at_time(struct dp_alltoall *alltoall, const struct round *round,
                              struct dp_error *err)
{
    pthread_mutex_lock(&alltoall->mutex);
    int64_t since_ns = round->done ? 0 : round->waited_since_ns;
    pthread_mutex_unlock(&alltoall->mutex);
    int64_t last_ns = since_ns > round->progress_ns ? since_ns : round->progress_ns;
    int64_t late_ns = dp_clock_monotonic_ns() - last_ns;
    if (since_ns == 0 || late_ns < alltoall->blocked_ns) {
        return DP_OK;
    }
    char text[ROUND_TEXT_MAX], missing[1024];
    if (dp_alltoall_is_back(round->move)) {
        dp_back_missing(alltoall, round, missing, sizeof missing);
    } else {
        dp_forth_missing(alltoall, round, missing, sizeof missing);
    }
    return dp_fail(err, DP_TIMEOUT,
                   "all-to-all: %s: rank %d got nothing for %.1f s from%s waiting "
                   "for them",
                   dp_round_text(text, round), alltoall->links[alltoall->self].rank,
                   (double)late_ns / (double)DP_NS_PER_S, missing);
}

// A round that waits for its lane while the one in it waits to be finished.
static dp_status look_at_queue(struct dp_alltoall *alltoall, struct dp_error *err)
{
    dp_status status = DP_OK;
    char text[ROUND_TEXT_MAX];
    pthread_mutex_lock(&alltoall->mutex);
    for (struct round *r = alltoall->queue; r != NULL && status == DP_OK; r = r->next) {
        const struct round *before = r->lane->round;
        if (r->waited_since_ns != 0 && before != NULL && before->done && !before->finished) {
            status = dp_fail(err, DP_INTERNAL,
                             "all-to-all: %s is waited for while an earlier move of its kind has "
                             "not been finished; finish it first, or make the depth greater",
                             dp_round_text(text, r));
        }
    }
    pthread_mutex_unlock(&alltoall->mutex);
    return status;
}

static dp_status look(struct dp_alltoall *alltoall, struct dp_error *err)
{
    dp_status status = look_at_queue(alltoall, err);
    for (int32_t i = 0; i < alltoall->topology.ranks && status == DP_OK; i++) {
        status = i == alltoall->self ? DP_OK : look_for_peer(alltoall, i, err);
    }
    for (int move = 0; move < 4; move++) {
        for (int32_t i = 0; i < alltoall->depth && status == DP_OK; i++) {
            const struct round *round = alltoall->lanes[move][i].round;
            status = round != NULL ? look_at_time(alltoall, round, err) : DP_OK;
        }
    }
    return status;
}

static dp_status say_goodbye(struct dp_alltoall *alltoall, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < alltoall->topology.ranks && status == DP_OK; i++) {
        // One that has died since it has closed needs none.
        if (i != alltoall->self && dp_link_control(alltoall, i, CONTROL_CLOSE, 0, err) != DP_OK &&
            !alltoall->links[i].has_closed) {
            status = err->status;
        }
    }
    return status;
}

static bool have_all_closed(const struct dp_alltoall *alltoall)
{
    bool have = true;
    for (int32_t i = 0; i < alltoall->topology.ranks; i++) {
        have = have && (i == alltoall->self || alltoall->links[i].has_closed);
    }
    return have;
}

// One pass; *ret_is_over when the all-to-all has been closed everywhere.
static dp_status pass(struct dp_alltoall *alltoall, bool *said, bool *progress, bool *ret_is_over,
                      struct dp_error *err)
{
    dp_status status = dp_notes_read(alltoall, progress, err);
    if (status == DP_OK) {
        status = start_rounds(alltoall, progress, err);
    }
    if (status == DP_OK) {
        status = step_lanes(alltoall, progress, err);
    }
    pthread_mutex_lock(&alltoall->mutex);
    bool is_closing = alltoall->is_closing;
    pthread_mutex_unlock(&alltoall->mutex);
    if (status == DP_OK && is_closing && !*said && !*progress && !has_rounds(alltoall)) {
        *said = true;
        status = say_goodbye(alltoall, err);
    }
    *ret_is_over = *said && have_all_closed(alltoall);
    return status;
}

static dp_status run(struct dp_alltoall *alltoall, struct dp_error *err)
{
    uint64_t seen = 0;
    bool is_over = false, said = false;
    int64_t look_ns = alltoall->blocked_ns / 4 < LOOK_NS ? alltoall->blocked_ns / 4 : LOOK_NS;
    dp_status status = DP_OK;
    while (!is_over && status == DP_OK && alltoall->failed == DP_OK) {
        bool progress = false;
        status = pass(alltoall, &said, &progress, &is_over, err);
        if (status != DP_OK || progress || is_over) {
            continue;
        }
        // An abort of the transport is told by the wait, before its peers are missed.
        int64_t until_ns = has_rounds(alltoall) ? dp_clock_monotonic_ns() + look_ns : 0;
        status = dp_window_wait_any(alltoall->transport, &seen, until_ns, err);
        if (status == DP_OK) {
            status = look(alltoall, err);
        }
    }
    return status;
}

void dp_alltoall_progress(struct dp_alltoall *alltoall)
{
    struct dp_error err;
    pthread_mutex_lock(&alltoall->mutex);
    alltoall->is_running = true;
    pthread_mutex_unlock(&alltoall->mutex);
    if (run(alltoall, &err) != DP_OK) {
        dp_alltoall_fail(alltoall, &err);
    }
    pthread_mutex_lock(&alltoall->mutex);
    alltoall->is_running = false;
    alltoall->has_ended = true;
    pthread_cond_broadcast(&alltoall->changed);
    pthread_mutex_unlock(&alltoall->mutex);
}
