// The messages between ranks, found by a run of the schedule in which every rank posts all messages
// of a batch at once and waits for them. It runs in ticks: F, I and W take one, B two. Real work
// takes other times; then a rank waits longer somewhere, but no ring of ranks can come of it, since
// what follows what stays the same.
#include <stdlib.h>

#include "dp/action_halves.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/schedule.h"

enum { SENT = 1, AWAITED = 2 }; // what has been posted of a message
enum { WHEEL = 4 };             // more ticks than an action takes

#define NONE UINT32_MAX

// There are as many as actions, so they are packed: what is known early shares its place with what
// is known late.
struct message {
    uint32_t microbatch;
    uint32_t sent_by;    // position on the sender of the action that makes it
    uint32_t awaited_at; // position on the receiver before which the receive is posted
    union {
        uint32_t next;      // until it is awaited: sent after it from the same rank to the same one
        uint32_t needed_at; // then: position on the receiver of the action that needs it
    };
    union {
        uint32_t next_offer; // during the run: posted after it to the same rank, not yet taken
        uint32_t number;     // afterwards
    };
    uint16_t stage; // of the sender
    uint16_t from, to;
    uint8_t kind; // DP_SEND_F or DP_SEND_B
    uint8_t posted;
};

struct rank {
    size_t at; // the action before which the rank stands
    size_t length;
    uint32_t pending;                 // messages that its batch waits for
    uint32_t next_sent;               // the first message that it has not posted
    uint32_t first_offer, last_offer; // sends to it that wait
    bool open;                        // it stands in a batch and does not compute
    bool touched;                     // something happened to it in this tick
    int32_t next;                     // in the list of the wheel
};

struct run {
    const struct dp_schedule *schedule;
    struct message *messages; // by sender, then in the order in which it sends them
    uint32_t count;
    uint32_t *wanted[2];    // [stages][microbatches], message into a stage: backwards, forwards
    uint32_t *next_awaited; // [pipeline][pipeline], the first that the receiver has not posted
    uint32_t *end;          // [actions], tick
    struct rank *ranks;
    uint32_t tick;
    int32_t wheel[WHEEL]; // ranks whose action ends in tick i modulo its length; -1 = none
    int32_t *touched;     // ranks to which something happened in this tick
    int32_t touched_count;
};

static size_t chunk_index(const struct dp_schedule *schedule, int32_t stage, uint32_t microbatch)
{
    return (size_t)stage * (size_t)schedule->microbatches + microbatch;
}

static size_t link_of(const struct run *run, const struct message *message)
{
    return (size_t)message->from * (size_t)run->schedule->pipeline + message->to;
}

// What the action gives to other ranks: into which stages, and whether forwards.
static int outputs_of(const struct dp_schedule *schedule, int32_t rank,
                      const struct dp_action *action, struct dp_half ret_outputs[2])
{
    struct dp_half halves[2];
    int count = dp_action_halves(action, halves);
    int outputs = 0;
    for (int i = 0; i < count; i++) {
        int32_t target = dp_half_target(schedule, &halves[i]);
        if (target >= 0 && dp_schedule_rank_of(schedule, target, halves[i].microbatch) != rank) {
            ret_outputs[outputs++] = halves[i];
        }
    }
    return outputs;
}

static size_t count_messages(const struct dp_schedule *schedule)
{
    struct dp_half outputs[2];
    size_t count = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            count += (size_t)outputs_of(schedule, rank, &schedule->actions[i], outputs);
        }
    }
    return count;
}

// Adds what the action at `index` of `rank` sends to other ranks.
static void add_sends(struct run *run, int32_t rank, size_t index)
{
    const struct dp_schedule *schedule = run->schedule;
    struct dp_half outputs[2];
    int count = outputs_of(schedule, rank, &schedule->actions[index], outputs);
    for (int i = 0; i < count; i++) {
        bool forward = outputs[i].kind == DP_ACTION_F;
        uint32_t microbatch = outputs[i].microbatch;
        int32_t target = dp_half_target(schedule, &outputs[i]);
        run->wanted[forward][chunk_index(schedule, target, microbatch)] = run->count;
        run->messages[run->count++] = (struct message){
            .microbatch = microbatch,
            .sent_by = (uint32_t)(index - schedule->rank_begin[rank]),
            .next = NONE,
            .stage = (uint16_t)outputs[i].stage,
            .from = (uint16_t)rank,
            .to = (uint16_t)dp_schedule_rank_of(schedule, target, microbatch),
            .kind = forward ? DP_SEND_F : DP_SEND_B};
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
    *run = (struct run){.schedule = schedule,
                        .messages = dp_new_array(struct message, count_messages(schedule)),
                        .wanted = {new_numbers(chunks, NONE), new_numbers(chunks, NONE)},
                        .next_awaited = new_numbers(ranks * ranks, NONE),
                        .end = dp_new_array(uint32_t, dp_schedule_action_count(schedule)),
                        .ranks = dp_new_array(struct rank, ranks),
                        .touched = dp_new_array(int32_t, ranks)};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t begin = schedule->rank_begin[rank];
        size_t end = schedule->rank_begin[rank + 1];
        run->ranks[rank] = (struct rank){.length = end - begin,
                                         .next_sent = run->count,
                                         .first_offer = NONE,
                                         .last_offer = NONE,
                                         .next = rank + 1 < schedule->pipeline ? rank + 1 : -1};
        for (size_t i = begin; i < end; i++) {
            add_sends(run, rank, i);
        }
    }
    link_messages(run);
    for (int i = 1; i < WHEEL; i++) {
        run->wheel[i] = -1;
    }
}

// What only the run itself needs.
static void forget_run(struct run *run)
{
    for (int i = 0; i < 2; i++) {
        free(run->wanted[i]);
        run->wanted[i] = NULL;
    }
    free(run->next_awaited);
    free(run->touched);
    run->next_awaited = NULL;
    run->touched = NULL;
}

static void run_deinit(struct run *run)
{
    forget_run(run);
    free(run->messages);
    free(run->end);
    free(run->ranks);
}

static void touch(struct run *run, int32_t rank)
{
    if (!run->ranks[rank].touched) {
        run->ranks[rank].touched = true;
        run->touched[run->touched_count++] = rank;
    }
}

// One end of a message is in its rank's batch; with the other one it crosses.
static void post(struct run *run, uint32_t m, uint8_t end)
{
    struct message *message = &run->messages[m];
    int32_t rank = end == SENT ? message->from : message->to;
    run->ranks[rank].pending++;
    message->posted |= end;
    if (message->posted == (SENT | AWAITED)) {
        run->ranks[message->from].pending--;
        run->ranks[message->to].pending--;
        touch(run, message->from);
        touch(run, message->to);
    }
}

static void post_send(struct run *run, uint32_t m)
{
    struct message *message = &run->messages[m];
    post(run, m, SENT);
    if ((message->posted & AWAITED) == 0) {
        struct rank *receiver = &run->ranks[message->to];
        if (receiver->first_offer == NONE) {
            receiver->first_offer = m;
        } else {
            run->messages[receiver->last_offer].next_offer = m;
        }
        receiver->last_offer = m;
        message->next_offer = NONE;
        touch(run, message->to);
    }
}

static void post_receive(struct run *run, uint32_t m)
{
    struct message *message = &run->messages[m];
    run->next_awaited[link_of(run, message)] = message->next;
    message->awaited_at = (uint32_t)run->ranks[message->to].at;
    post(run, m, AWAITED);
}

// Posts the receive that the half needs, and before it those that the same rank sends earlier.
// False when nobody sends it.
static bool post_input(struct run *run, int32_t rank, const struct dp_half *half)
{
    const struct dp_schedule *schedule = run->schedule;
    int32_t source = dp_half_source(schedule, half);
    if (source < 0 || dp_schedule_rank_of(schedule, source, half->microbatch) == rank) {
        return true;
    }
    size_t chunk = chunk_index(schedule, half->stage, half->microbatch);
    uint32_t m = run->wanted[half->kind == DP_ACTION_F][chunk];
    if (m == NONE) {
        return false;
    }
    size_t link = link_of(run, &run->messages[m]);
    while ((run->messages[m].posted & AWAITED) == 0) {
        post_receive(run, run->next_awaited[link]);
    }
    run->messages[m].needed_at = (uint32_t)run->ranks[rank].at;
    return true;
}

// Posts what the action before this batch sends and what the one after it needs.
static dp_status enter_batch(struct run *run, int32_t index, struct dp_error *err)
{
    const struct dp_schedule *schedule = run->schedule;
    struct rank *rank = &run->ranks[index];
    rank->open = true;
    touch(run, index);
    for (uint32_t m = rank->next_sent; m < run->count && run->messages[m].from == index &&
                                       run->messages[m].sent_by < rank->at;
         m = ++rank->next_sent) {
        post_send(run, m);
    }
    struct dp_half halves[2];
    size_t next = schedule->rank_begin[index] + rank->at;
    int count = rank->at == rank->length ? 0 : dp_action_halves(&schedule->actions[next], halves);
    for (int i = 0; i < count; i++) {
        if (!post_input(run, index, &halves[i])) {
            return dp_fail(err, DP_INVALID,
                           "rank %d, position %zu: no rank sends what the action needs; "
                           "validate the schedule first",
                           index, rank->at);
        }
    }
    return DP_OK;
}

// A rank that does not compute takes what is offered to it, though it may need it later only: a
// sender would wait for that, and in a ring for ever.
static void take_offers(struct run *run, struct rank *rank)
{
    for (uint32_t m = rank->first_offer; m != NONE; m = run->messages[m].next_offer) {
        if ((run->messages[m].posted & AWAITED) == 0) {
            post_receive(run, m);
        }
    }
    rank->first_offer = NONE;
}

// Ticks that the action takes.
static int ticks_of(const struct dp_action *action)
{
    struct dp_half halves[2];
    int count = dp_action_halves(action, halves);
    int ticks = 0;
    for (int i = 0; i < count; i++) {
        ticks += halves[i].kind == DP_ACTION_B ? 2 : 1;
    }
    return ticks;
}

// The rank's batch is complete: its next action begins. False when there is none.
static bool leave_batch(struct run *run, int32_t index)
{
    const struct dp_schedule *schedule = run->schedule;
    struct rank *rank = &run->ranks[index];
    rank->open = false;
    if (rank->at == rank->length) {
        return false;
    }
    size_t action = schedule->rank_begin[index] + rank->at++;
    run->end[action] = run->tick + (uint32_t)ticks_of(&schedule->actions[action]);
    int32_t *ends = &run->wheel[run->end[action] % WHEEL];
    rank->next = *ends;
    *ends = index;
    return true;
}

// Returns how many ranks came to the end of their lists.
static dp_status run_tick(struct run *run, int32_t *ret_ended, struct dp_error *err)
{
    int32_t *entering = &run->wheel[run->tick % WHEEL];
    run->touched_count = 0;
    while (*entering >= 0) {
        int32_t rank = *entering;
        *entering = run->ranks[rank].next;
        dp_status status = enter_batch(run, rank, err);
        if (status != DP_OK) {
            return status;
        }
    }
    for (int32_t i = 0; i < run->touched_count; i++) {
        struct rank *rank = &run->ranks[run->touched[i]];
        if (rank->open) {
            take_offers(run, rank);
        }
    }
    *ret_ended = 0;
    for (int32_t i = 0; i < run->touched_count; i++) {
        struct rank *rank = &run->ranks[run->touched[i]];
        rank->touched = false;
        if (rank->open && rank->pending == 0) {
            *ret_ended += !leave_batch(run, run->touched[i]);
        }
    }
    return DP_OK;
}

static dp_status run_all(struct run *run, struct dp_error *err)
{
    int32_t running = run->schedule->pipeline;
    int idle = 0;
    for (; running > 0; run->tick++) {
        idle = run->wheel[run->tick % WHEEL] < 0 ? idle + 1 : 0;
        if (idle == WHEEL) {
            int32_t rank = 0;
            while (!run->ranks[rank].open) {
                rank++;
            }
            return dp_fail(err, DP_INVALID,
                           "rank %d, position %zu waits for what nobody sends; validate the "
                           "schedule first",
                           rank, run->ranks[rank].at);
        }
        int32_t ended;
        dp_status status = run_tick(run, &ended, err);
        if (status != DP_OK) {
            return status;
        }
        running -= ended;
    }
    return DP_OK;
}

// The tick in which the rank stands before its action at `position`.
static uint32_t enter_tick(const struct run *run, int32_t rank, uint32_t position)
{
    return position == 0 ? 0 : run->end[run->schedule->rank_begin[rank] + position - 1];
}

// And the tick in which it begins that action.
static uint32_t leave_tick(const struct run *run, int32_t rank, uint32_t position)
{
    size_t action = run->schedule->rank_begin[rank] + position;
    return action == run->schedule->rank_begin[rank + 1]
               ? UINT32_MAX
               : run->end[action] - (uint32_t)ticks_of(&run->schedule->actions[action]);
}

// Moves the receive towards the action that needs it, to the last batch that the receiver comes to
// while the sender stands in its own: that keeps neither waiting, and what arrives together with
// other messages costs no wait of its own. What a rank sends in different batches keeps its order,
// since a batch is left before the next one is entered.
// The steps are few: all that lie between leaving two batches of the sender go by once.
static void delay_receive(const struct run *run, struct message *message)
{
    uint32_t leave = leave_tick(run, message->from, message->sent_by + 1);
    while (message->awaited_at < message->needed_at &&
           enter_tick(run, message->to, message->awaited_at + 1) <= leave) {
        message->awaited_at++;
    }
}

static uint32_t crossing_tick(const struct run *run, const struct message *message)
{
    uint32_t sent_tick = enter_tick(run, message->from, message->sent_by + 1);
    uint32_t awaited_tick = enter_tick(run, message->to, message->awaited_at);
    return sent_tick > awaited_tick ? sent_tick : awaited_tick;
}

// Numbers the messages in the order in which they cross; in one tick, in which a rank stands in one
// batch at most, by sender. Returns them in this order.
static uint32_t *number_messages(struct run *run)
{
    uint32_t *order = dp_new_array(uint32_t, run->count);
    DP_AUTO_FREE uint32_t *begin = dp_new_array(uint32_t, (size_t)run->tick + 1);
    for (uint32_t m = 0; m < run->count; m++) {
        begin[crossing_tick(run, &run->messages[m]) + 1]++;
    }
    for (uint32_t tick = 0; tick < run->tick; tick++) {
        begin[tick + 1] += begin[tick];
    }
    for (uint32_t m = 0; m < run->count; m++) {
        struct message *message = &run->messages[m];
        message->number = begin[crossing_tick(run, message)]++;
        order[message->number] = m;
    }
    return order;
}

static struct dp_p2p send_of(const struct run *run, const struct message *message)
{
    return (struct dp_p2p){
        .kind = message->kind,
        .direction = (uint8_t)dp_schedule_direction(run->schedule, message->microbatch),
        .stage = message->stage,
        .microbatch = message->microbatch,
        .peer = message->to,
        .action = message->sent_by,
        .message = message->number};
}

static struct dp_p2p receive_of(const struct message *message, const struct dp_p2p *send)
{
    struct dp_p2p receive = *send;
    bool forward = message->kind == DP_SEND_F;
    receive.kind = forward ? DP_RECV_F : DP_RECV_B;
    receive.stage = (uint16_t)(message->stage + (forward ? 1 : -1));
    receive.peer = message->from;
    receive.action = message->awaited_at;
    return receive;
}

// Each rank's ends of the messages, in their order.
static void deal_out(const struct run *run, const uint32_t *order, struct dp_lowered *ret_lowered)
{
    size_t ranks = (size_t)run->schedule->pipeline;
    struct dp_p2p *ops = dp_new_array(struct dp_p2p, 2 * (size_t)run->count);
    size_t *begin = dp_new_array(size_t, ranks + 1);
    DP_AUTO_FREE size_t *end = dp_new_array(size_t, ranks);
    for (uint32_t m = 0; m < run->count; m++) {
        begin[run->messages[m].from + 1]++;
        begin[run->messages[m].to + 1]++;
    }
    for (size_t rank = 0; rank < ranks; rank++) {
        end[rank] = begin[rank];
        begin[rank + 1] += begin[rank];
    }
    for (uint32_t i = 0; i < run->count; i++) {
        const struct message *message = &run->messages[order[i]];
        struct dp_p2p send = send_of(run, message);
        ops[end[message->from]++] = send;
        ops[end[message->to]++] = receive_of(message, &send);
    }
    *ret_lowered = (struct dp_lowered){.pipeline = (int32_t)ranks, .ops = ops, .rank_begin = begin};
}

dp_status dp_schedule_lower_all(const struct dp_schedule *schedule, struct dp_lowered *ret_lowered,
                                struct dp_error *err)
{
    DP_CLEANUP(run_deinit) struct run run;
    run_init(&run, schedule);
    dp_status status = run_all(&run, err);
    if (status != DP_OK) {
        return status;
    }
    for (uint32_t m = 0; m < run.count; m++) {
        if (run.messages[m].posted != (SENT | AWAITED)) {
            return dp_fail(err, DP_INVALID,
                           "rank %d, position %u sends what no rank waits for; validate the "
                           "schedule first",
                           run.messages[m].from, run.messages[m].sent_by);
        }
        delay_receive(&run, &run.messages[m]);
    }
    forget_run(&run);
    DP_AUTO_FREE uint32_t *order = number_messages(&run);
    deal_out(&run, order, ret_lowered);
    return DP_OK;
}

void dp_lowered_deinit(struct dp_lowered *lowered)
{
    free(lowered->ops);
    free(lowered->rank_begin);
    *lowered = (struct dp_lowered){0};
}
