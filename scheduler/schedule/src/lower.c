// The messages between ranks, found by a run without time in which a send waits for its receive.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/schedule.h"
#include "halves.h"

enum { SENT = 1, AWAITED = 2 }; // what has been posted of a message

#define NO_MESSAGE UINT32_MAX

struct message {
    struct dp_p2p send;
    uint32_t awaited_at; // position on the receiver before which the receive is posted
    uint32_t next;       // sent after it from the same rank to the same rank
    uint16_t from;
    uint8_t posted;
};

struct run {
    const struct dp_schedule *schedule;
    struct message *messages;  // by sender, then in the order in which it sends them
    uint32_t count;
    uint32_t *wanted[2];       // [stages][microbatches], message into a stage: backwards, forwards
    uint32_t *next_awaited;    // [pipeline][pipeline], the first that the receiver has not posted
    uint32_t *next_sent;       // [pipeline], the first that the sender has not posted
    uint32_t *sent;            // messages in the order in which their sends were posted
    uint32_t *matched;         // and in the order in which they crossed
    uint32_t sent_count, matched_count, oldest_sent;
    size_t *at;                // [pipeline], the action before which the rank stands
    uint32_t *pending;         // [pipeline], messages that its batch waits for
    int32_t *ready;            // ring of ranks whose batch is complete
    int32_t ready_first, ready_count;
};

static size_t chunk_index(const struct dp_schedule *schedule, int32_t stage, uint32_t microbatch)
{
    return (size_t)stage * (size_t)schedule->microbatches + microbatch;
}

static size_t link_of(const struct run *run, const struct message *message)
{
    return (size_t)message->from * (size_t)run->schedule->pipeline + (size_t)message->send.peer;
}

static size_t length_of(const struct run *run, int32_t rank)
{
    return run->schedule->rank_begin[rank + 1] - run->schedule->rank_begin[rank];
}

// Adds what the action at `index` of `rank` sends to other ranks.
static void add_sends(struct run *run, int32_t rank, size_t index)
{
    const struct dp_schedule *schedule = run->schedule;
    struct half halves[2];
    int count = halves_of(&schedule->actions[index], halves);
    for (int i = 0; i < count; i++) {
        int32_t target = half_target(schedule, &halves[i]);
        if (target < 0) {
            continue;
        }
        int32_t peer = dp_schedule_rank_of(schedule, target, halves[i].microbatch);
        if (peer == rank) {
            continue;
        }
        bool forward = halves[i].kind == DP_ACTION_F;
        run->wanted[forward][chunk_index(schedule, target, halves[i].microbatch)] = run->count;
        run->messages[run->count++] = (struct message){
            .send = {.kind = forward ? DP_SEND_F : DP_SEND_B,
                     .direction = (uint8_t)dp_schedule_direction(schedule, halves[i].microbatch),
                     .stage = (uint16_t)halves[i].stage,
                     .microbatch = halves[i].microbatch,
                     .peer = peer,
                     .action = (uint32_t)(index - schedule->rank_begin[rank])},
            .next = NO_MESSAGE,
            .from = (uint16_t)rank};
    }
}

// Puts the messages of each pair of ranks into a list; from the back, so that it begins with the
// first one.
static void link_messages(struct run *run)
{
    for (uint32_t m = run->count; m-- > 0;) {
        struct message *message = &run->messages[m];
        uint32_t *first = &run->next_awaited[link_of(run, message)];
        message->next = *first;
        *first = m;
    }
}

static uint32_t *new_numbers(size_t count, uint32_t value)
{
    uint32_t *numbers = dp_new_array(uint32_t, count);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = value;
    }
    return numbers;
}

static void run_init(struct run *run, const struct dp_schedule *schedule)
{
    size_t ranks = (size_t)schedule->pipeline;
    size_t chunks = (size_t)schedule->stages * (size_t)schedule->microbatches;
    size_t most = 2 * dp_schedule_action_count(schedule);
    *run = (struct run){.schedule = schedule,
                        .messages = dp_new_array(struct message, most),
                        .wanted = {new_numbers(chunks, NO_MESSAGE),
                                   new_numbers(chunks, NO_MESSAGE)},
                        .next_awaited = new_numbers(ranks * ranks, NO_MESSAGE),
                        .next_sent = dp_new_array(uint32_t, ranks),
                        .at = dp_new_array(size_t, ranks),
                        .pending = dp_new_array(uint32_t, ranks),
                        .ready = dp_new_array(int32_t, ranks)};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        run->next_sent[rank] = run->count;
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            add_sends(run, rank, i);
        }
    }
    link_messages(run);
    run->sent = dp_new_array(uint32_t, run->count);
    run->matched = dp_new_array(uint32_t, run->count);
}

static void run_deinit(struct run *run)
{
    free(run->messages);
    free(run->wanted[0]);
    free(run->wanted[1]);
    free(run->next_awaited);
    free(run->next_sent);
    free(run->sent);
    free(run->matched);
    free(run->at);
    free(run->pending);
    free(run->ready);
}

// One thing less that the rank's batch waits for.
static void release(struct run *run, int32_t rank)
{
    if (--run->pending[rank] == 0) {
        int32_t last = (run->ready_first + run->ready_count++) % run->schedule->pipeline;
        run->ready[last] = rank;
    }
}

// One end of a message is in its rank's batch; with the other one it crosses.
static void post(struct run *run, uint32_t m, uint8_t end)
{
    struct message *message = &run->messages[m];
    int32_t rank = end == SENT ? message->from : message->send.peer;
    run->pending[rank]++;
    message->posted |= end;
    if (message->posted == (SENT | AWAITED)) {
        message->send.message = run->matched_count;
        run->matched[run->matched_count++] = m;
        release(run, message->from);
        release(run, message->send.peer);
    }
}

static void post_receive(struct run *run, uint32_t m)
{
    struct message *message = &run->messages[m];
    run->next_awaited[link_of(run, message)] = message->next;
    message->awaited_at = (uint32_t)run->at[message->send.peer];
    post(run, m, AWAITED);
}

// Posts the receive that the half needs, and before it those that the same rank sends earlier.
// False when nobody sends it.
static bool post_input(struct run *run, int32_t rank, const struct half *half)
{
    const struct dp_schedule *schedule = run->schedule;
    int32_t source = half_source(schedule, half);
    if (source < 0 || dp_schedule_rank_of(schedule, source, half->microbatch) == rank) {
        return true;
    }
    size_t chunk = chunk_index(schedule, half->stage, half->microbatch);
    uint32_t m = run->wanted[half->kind == DP_ACTION_F][chunk];
    if (m == NO_MESSAGE) {
        return false;
    }
    size_t link = link_of(run, &run->messages[m]);
    while ((run->messages[m].posted & AWAITED) == 0) {
        post_receive(run, run->next_awaited[link]);
    }
    return true;
}

// Posts what the action before this batch sends and what the one after it needs.
static dp_status enter_batch(struct run *run, int32_t rank, struct dp_error *err)
{
    const struct dp_schedule *schedule = run->schedule;
    size_t at = run->at[rank];
    run->pending[rank] = 1; // the batch itself, until all of it is posted
    for (uint32_t m = run->next_sent[rank];
         m < run->count && run->messages[m].from == rank && run->messages[m].send.action < at;
         m = ++run->next_sent[rank]) {
        run->sent[run->sent_count++] = m;
        post(run, m, SENT);
    }
    struct half halves[2];
    int count = at == length_of(run, rank)
                    ? 0
                    : halves_of(&schedule->actions[schedule->rank_begin[rank] + at], halves);
    for (int i = 0; i < count; i++) {
        if (!post_input(run, rank, &halves[i])) {
            return dp_fail(err, DP_INVALID,
                           "rank %d, position %zu: no rank sends what the action needs; "
                           "validate the schedule first",
                           rank, at);
        }
    }
    release(run, rank);
    return DP_OK;
}

// Every rank waits. Actions alone do not wait in a ring, so a send is among what they wait for: its
// receiver takes the one that has waited longest now, though it needs it later only.
static dp_status take_oldest_send(struct run *run, struct dp_error *err)
{
    while (run->oldest_sent < run->sent_count) {
        uint32_t m = run->sent[run->oldest_sent++];
        const struct message *message = &run->messages[m];
        if ((message->posted & AWAITED) == 0) {
            post_receive(run, m);
            return DP_OK;
        }
    }
    int32_t rank = 0;
    while (run->pending[rank] == 0) {
        rank++;
    }
    return dp_fail(err, DP_INVALID,
                   "rank %d, position %zu waits for what nobody sends; validate the schedule "
                   "first",
                   rank, run->at[rank]);
}

static dp_status match_all(struct run *run, struct dp_error *err)
{
    int32_t ranks = run->schedule->pipeline;
    int32_t running = ranks;
    dp_status status = DP_OK;
    for (int32_t rank = 0; rank < ranks && status == DP_OK; rank++) {
        status = enter_batch(run, rank, err);
    }
    while (running > 0 && status == DP_OK) {
        if (run->ready_count == 0) {
            status = take_oldest_send(run, err);
            continue;
        }
        int32_t rank = run->ready[run->ready_first];
        run->ready_first = (run->ready_first + 1) % ranks;
        run->ready_count--;
        if (run->at[rank] == length_of(run, rank)) {
            running--;
        } else {
            run->at[rank]++;
            status = enter_batch(run, rank, err);
        }
    }
    return status;
}

static struct dp_p2p receive_of(const struct message *message)
{
    struct dp_p2p receive = message->send;
    bool forward = receive.kind == DP_SEND_F;
    receive.kind = forward ? DP_RECV_F : DP_RECV_B;
    receive.stage = (uint16_t)(receive.stage + (forward ? 1 : -1));
    receive.peer = message->from;
    receive.action = message->awaited_at;
    return receive;
}

// Each rank's ends of the messages, in the order in which they crossed.
static void deal_out(const struct run *run, struct dp_lowered *ret_lowered)
{
    size_t ranks = (size_t)run->schedule->pipeline;
    struct dp_p2p *ops = dp_new_array(struct dp_p2p, 2 * (size_t)run->count);
    size_t *begin = dp_new_array(size_t, ranks + 1);
    DP_AUTO_FREE size_t *end = dp_new_array(size_t, ranks);
    for (uint32_t m = 0; m < run->count; m++) {
        begin[run->messages[m].from + 1]++;
        begin[run->messages[m].send.peer + 1]++;
    }
    for (size_t rank = 0; rank < ranks; rank++) {
        end[rank] = begin[rank];
        begin[rank + 1] += begin[rank];
    }
    for (uint32_t i = 0; i < run->matched_count; i++) {
        const struct message *message = &run->messages[run->matched[i]];
        ops[end[message->from]++] = message->send;
        ops[end[message->send.peer]++] = receive_of(message);
    }
    *ret_lowered =
        (struct dp_lowered){.pipeline = (int32_t)ranks, .ops = ops, .rank_begin = begin};
}

dp_status dp_schedule_lower_all(const struct dp_schedule *schedule, struct dp_lowered *ret_lowered,
                                struct dp_error *err)
{
    DP_CLEANUP(run_deinit) struct run run;
    run_init(&run, schedule);
    dp_status status = match_all(&run, err);
    if (status == DP_OK && run.matched_count < run.count) {
        status = dp_fail(err, DP_INVALID,
                         "%u messages are sent that no rank waits for; validate the schedule first",
                         run.count - run.matched_count);
    }
    if (status == DP_OK) {
        deal_out(&run, ret_lowered);
    }
    return status;
}

void dp_lowered_deinit(struct dp_lowered *lowered)
{
    free(lowered->ops);
    free(lowered->rank_begin);
    *lowered = (struct dp_lowered){0};
}

dp_status dp_schedule_lower(const struct dp_schedule *schedule, int32_t rank,
                            struct dp_p2p **ret_list, size_t *ret_count, struct dp_error *err)
{
    if (rank < 0 || rank >= schedule->pipeline) {
        return dp_fail(err, DP_INVALID, "rank %d; ranks are 0 to %d", rank,
                       schedule->pipeline - 1);
    }
    DP_CLEANUP(dp_lowered_deinit) struct dp_lowered lowered = {0};
    dp_status status = dp_schedule_lower_all(schedule, &lowered, err);
    if (status == DP_OK) {
        size_t begin = lowered.rank_begin[rank];
        *ret_count = lowered.rank_begin[rank + 1] - begin;
        *ret_list = dp_memdup(lowered.ops + begin, *ret_count * sizeof(struct dp_p2p));
    }
    return status;
}
