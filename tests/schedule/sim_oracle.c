#include "sim_oracle.h"

#include "support.h"

#include "dp/alloc.h"

enum { RANKS_MOST = 4, STAGES_MOST = 6, MICROBATCHES_MOST = 4, LIST_MOST = 128 };

enum progress { NOTHING, FORWARD_DONE, INPUT_DONE, ALL_DONE };

// A schedule that grows one action at a time: any chunk whose inputs are there may be next.
struct maker {
    struct dp_rand *rand;
    struct dp_schedule *schedule;
    enum progress done[STAGES_MOST][MICROBATCHES_MOST];
    struct dp_action lists[RANKS_MOST][LIST_MOST];
    size_t lengths[RANKS_MOST];
};

static struct dp_action chunk(int kind, int stage, int microbatch)
{
    return (struct dp_action){
        .kind = (uint8_t)kind, .stage = (uint16_t)stage, .microbatch = (uint32_t)microbatch};
}

// The action that the chunk is ready for, of kind DP_ACTION_KIND_COUNT when there is none.
static struct dp_action next_of(struct maker *maker, int stage, int microbatch)
{
    int last = maker->schedule->stages - 1;
    switch (maker->done[stage][microbatch]) {
    case NOTHING:
        if (stage == 0 || maker->done[stage - 1][microbatch] >= FORWARD_DONE) {
            return chunk(DP_ACTION_F, stage, microbatch);
        }
        break;
    case FORWARD_DONE:
        if (stage == last || maker->done[stage + 1][microbatch] >= INPUT_DONE) {
            return chunk(dp_rand_below(maker->rand, 2) == 0 ? DP_ACTION_B : DP_ACTION_I, stage,
                         microbatch);
        }
        break;
    case INPUT_DONE:
        return chunk(DP_ACTION_W, stage, microbatch);
    default:
        break;
    }
    return chunk(DP_ACTION_KIND_COUNT, 0, 0);
}

static void mark(struct maker *maker, int kind, int stage, uint32_t microbatch)
{
    static const enum progress after[] = {
        [DP_ACTION_F] = FORWARD_DONE, [DP_ACTION_B] = ALL_DONE, [DP_ACTION_I] = INPUT_DONE,
        [DP_ACTION_W] = ALL_DONE};
    maker->done[stage][microbatch] = after[kind];
}

static size_t ready_chunks(struct maker *maker, struct dp_action *ret_ready)
{
    size_t count = 0;
    for (int stage = 0; stage < maker->schedule->stages; stage++) {
        for (int m = 0; m < maker->schedule->microbatches; m++) {
            struct dp_action action = next_of(maker, stage, m);
            if (action.kind != DP_ACTION_KIND_COUNT) {
                ret_ready[count++] = action;
            }
        }
    }
    return count;
}

// Makes a pair of a forward when some backward of the same rank is ready, too.
static struct dp_action maybe_pair(struct maker *maker, struct dp_action action,
                                   const struct dp_action *ready, size_t count)
{
    int32_t rank = dp_schedule_rank_of(maker->schedule, action.stage, action.microbatch);
    for (size_t i = 0; i < count && action.kind == DP_ACTION_F; i++) {
        int32_t other = dp_schedule_rank_of(maker->schedule, ready[i].stage, ready[i].microbatch);
        bool backward = ready[i].kind == DP_ACTION_B || ready[i].kind == DP_ACTION_I;
        if (backward && other == rank && dp_rand_below(maker->rand, 3) > 0) {
            action.kind = DP_ACTION_FB;
            action.b_kind = ready[i].kind;
            action.b_stage = ready[i].stage;
            action.b_microbatch = ready[i].microbatch;
        }
    }
    return action;
}

static void make_lists(struct maker *maker)
{
    struct dp_action ready[STAGES_MOST * MICROBATCHES_MOST];
    for (size_t count = ready_chunks(maker, ready); count > 0;
         count = ready_chunks(maker, ready)) {
        struct dp_action action = ready[dp_rand_below(maker->rand, count)];
        action = maybe_pair(maker, action, ready, count);
        int32_t rank = dp_schedule_rank_of(maker->schedule, action.stage, action.microbatch);
        maker->lists[rank][maker->lengths[rank]++] = action;
        if (action.kind == DP_ACTION_FB) {
            mark(maker, DP_ACTION_F, action.stage, action.microbatch);
            mark(maker, action.b_kind, action.b_stage, action.b_microbatch);
        } else {
            mark(maker, action.kind, action.stage, action.microbatch);
        }
    }
}

// Every rank has one stage at least, and as many in one direction as in the other.
static void place(struct dp_rand *rand, struct dp_schedule *schedule)
{
    int32_t ranks = schedule->pipeline;
    int32_t stages = schedule->stages;
    int32_t shift = (int32_t)dp_rand_below(rand, (uint64_t)ranks);
    for (int32_t stage = 0; stage < stages; stage++) {
        int32_t rank = stage < ranks ? (stage + shift) % ranks
                                     : (int32_t)dp_rand_below(rand, (uint64_t)ranks);
        schedule->placement[2 * stage] = rank;
        schedule->placement[2 * stage + 1] = rank;
    }
    for (int32_t stage = stages - 1; schedule->directions == 2 && stage > 0; stage--) {
        int32_t other = (int32_t)dp_rand_below(rand, (uint64_t)stage + 1);
        int32_t rank = schedule->placement[2 * stage + 1];
        schedule->placement[2 * stage + 1] = schedule->placement[2 * other + 1];
        schedule->placement[2 * other + 1] = rank;
    }
}

struct dp_schedule random_schedule(struct dp_rand *rand)
{
    int32_t ranks = 1 + (int32_t)dp_rand_below(rand, RANKS_MOST);
    int32_t stages = ranks + (int32_t)dp_rand_below(rand, (uint64_t)(STAGES_MOST - ranks + 1));
    int32_t directions = 1 + (int32_t)dp_rand_below(rand, 2);
    int32_t microbatches = directions * (1 + (int32_t)dp_rand_below(rand, 2));
    struct dp_schedule schedule = {.name = "random",
                                   .pipeline = ranks,
                                   .microbatches = microbatches,
                                   .stages = stages,
                                   .directions = directions,
                                   .placement = dp_new_array(int32_t, 2 * (size_t)stages),
                                   .rank_begin = dp_new_array(size_t, (size_t)ranks + 1)};
    place(rand, &schedule);
    struct maker *maker = dp_new(struct maker);
    maker->rand = rand;
    maker->schedule = &schedule;
    make_lists(maker);
    for (int32_t rank = 0; rank < ranks; rank++) {
        schedule.rank_begin[rank + 1] = schedule.rank_begin[rank] + maker->lengths[rank];
    }
    schedule.actions = dp_new_array(struct dp_action, schedule.rank_begin[ranks]);
    for (int32_t rank = 0; rank < ranks; rank++) {
        memcpy(&schedule.actions[schedule.rank_begin[rank]], maker->lists[rank],
               maker->lengths[rank] * sizeof(struct dp_action));
    }
    free(maker);
    struct dp_error err = {0};
    assert_ok(dp_schedule_validate(&schedule, &err), &err);
    return schedule;
}

double random_seconds(struct dp_rand *rand, uint32_t least, uint32_t most)
{
    return least + (double)dp_rand_below(rand, most - least + 1);
}

void random_whole_costs(struct dp_rand *rand, struct dp_sim_costs *costs, uint32_t latency_most,
                        uint32_t wire_most)
{
    for (int32_t i = 0; i < costs->pipeline * costs->slots; i++) {
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            costs->chunks[i].seconds[kind] = random_seconds(rand, 1, 6);
        }
        costs->chunks[i].activation_bytes = dp_rand_below(rand, 100);
        costs->chunks[i].released_at_i_bytes =
            dp_rand_below(rand, costs->chunks[i].activation_bytes + 1);
    }
    for (int32_t i = 0; i < costs->pipeline * costs->slots * costs->slots; i++) {
        costs->fb[i] = random_seconds(rand, 1, 9);
        costs->fi[i] = random_seconds(rand, 1, 8);
    }
    // Powers of two only, so that bytes / speed is exact.
    costs->message_bytes_f = 1;
    costs->message_bytes_b = 2;
    for (int32_t i = 0; i < costs->pipeline * costs->pipeline; i++) {
        costs->hops[i].latency = random_seconds(rand, 0, latency_most);
        double wire = random_seconds(rand, 0, wire_most);
        costs->hops[i].bytes_per_second = wire == 0 ? 0 : wire == 1 ? 1 : 0.5;
    }
}

int32_t oracle_rank_of(const struct oracle *oracle, size_t action)
{
    int32_t rank = 0;
    while (action >= oracle->schedule->rank_begin[rank + 1]) {
        rank++;
    }
    return rank;
}

static int32_t slot_of(const struct oracle *oracle, int32_t rank, int32_t stage)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(oracle->schedule, rank, stages);
    int32_t slot = 0;
    while (slot < count && stages[slot] != stage) {
        slot++;
    }
    assert_true(slot < count);
    return slot;
}

static double seconds_of(const struct oracle *oracle, size_t index)
{
    const struct dp_action *action = &oracle->schedule->actions[index];
    int32_t rank = oracle_rank_of(oracle, index);
    int32_t slot = slot_of(oracle, rank, action->stage);
    if (action->kind != DP_ACTION_FB) {
        return dp_sim_chunk_at(oracle->costs, rank, slot)->seconds[action->kind];
    }
    size_t pair =
        dp_sim_pair_index(oracle->costs, rank, slot, slot_of(oracle, rank, action->b_stage));
    return action->b_kind == DP_ACTION_B ? oracle->costs->fb[pair] : oracle->costs->fi[pair];
}

// The action that does this part; every part is done exactly once.
static size_t find(const struct oracle *oracle, bool forward, int32_t stage, uint32_t microbatch)
{
    for (size_t i = 0; i < oracle->actions; i++) {
        const struct dp_action *action = &oracle->schedule->actions[i];
        bool pair = action->kind == DP_ACTION_FB;
        if (forward && (action->kind == DP_ACTION_F || pair) && action->stage == stage &&
            action->microbatch == microbatch) {
            return i;
        }
        int kind = pair ? action->b_kind : action->kind;
        if (!forward && (kind == DP_ACTION_B || kind == DP_ACTION_I) &&
            (pair ? action->b_stage : action->stage) == stage &&
            (pair ? action->b_microbatch : action->microbatch) == microbatch) {
            return i;
        }
    }
    fail_msg("nobody does stage %d of micro-batch %u", stage, microbatch);
    return 0;
}

static void add_message(struct oracle *oracle, size_t from, bool forward, int32_t stage,
                        uint32_t microbatch)
{
    int32_t target = forward ? stage + 1 : stage - 1;
    if (target < 0 || target >= oracle->schedule->stages) {
        return;
    }
    size_t to = find(oracle, forward, target, microbatch);
    oracle->message[oracle->messages++] =
        (struct oracle_message){.from = from,
                                .to = to,
                                .sender = oracle_rank_of(oracle, from),
                                .receiver = oracle_rank_of(oracle, to),
                                .way = !forward,
                                .number = oracle->messages};
}

// The batches that the lowered form puts a message into, and its number.
static void take_batches(struct oracle *oracle)
{
    struct dp_error err = {0};
    struct dp_lowered lowered;
    assert_ok(dp_schedule_lower_all(oracle->schedule, &lowered, &err), &err);
    for (int32_t rank = 0; rank < lowered.pipeline; rank++) {
        size_t begin = oracle->schedule->rank_begin[rank];
        for (size_t k = lowered.rank_begin[rank]; k < lowered.rank_begin[rank + 1]; k++) {
            const struct dp_p2p *op = &lowered.ops[k];
            bool forward = op->kind == DP_SEND_F || op->kind == DP_RECV_F;
            bool sends = op->kind == DP_SEND_F || op->kind == DP_SEND_B;
            size_t one = find(oracle, forward, op->stage, op->microbatch);
            size_t found = 0;
            while (oracle->message[found].way == forward ||
                   (sends ? oracle->message[found].from : oracle->message[found].to) != one) {
                found++;
            }
            oracle->message[found].number = op->message;
            if (sends) {
                assert_int_equal(begin + op->action, one);
                oracle->message[found].send_batch = op->action + 1;
            } else {
                assert_true(begin + op->action <= one);
                oracle->message[found].receive_batch = op->action;
            }
        }
    }
    dp_lowered_deinit(&lowered);
}

static int by_number(const void *a, const void *b)
{
    size_t x = ((const struct oracle_message *)a)->number;
    size_t y = ((const struct oracle_message *)b)->number;
    return x < y ? -1 : x > y;
}

void oracle_init(struct oracle *oracle, const struct dp_schedule *schedule,
                 const struct dp_sim_costs *costs)
{
    size_t actions = dp_schedule_action_count(schedule);
    *oracle = (struct oracle){.schedule = schedule,
                              .costs = costs,
                              .actions = actions,
                              .seconds = dp_new_array(double, actions),
                              .message = dp_new_array(struct oracle_message, 2 * actions),
                              .spans = dp_new_array(struct dp_sim_span, actions)};
    for (size_t i = 0; i < actions; i++) {
        const struct dp_action *action = &schedule->actions[i];
        oracle->seconds[i] = seconds_of(oracle, i);
        if (action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB) {
            add_message(oracle, i, true, action->stage, action->microbatch);
        }
        if (action->kind == DP_ACTION_FB) {
            add_message(oracle, i, false, action->b_stage, action->b_microbatch);
        } else if (action->kind == DP_ACTION_B || action->kind == DP_ACTION_I) {
            add_message(oracle, i, false, action->stage, action->microbatch);
        }
    }
    if (costs->p2p == DP_SIM_P2P_BLOCKING) {
        take_batches(oracle);
        qsort(oracle->message, oracle->messages, sizeof(*oracle->message), by_number);
    }
}

void oracle_deinit(struct oracle *oracle)
{
    free(oracle->seconds);
    free(oracle->message);
    free(oracle->spans);
}

double oracle_wire_seconds(const struct oracle *oracle, const struct oracle_message *message)
{
    const struct dp_sim_hop *hop =
        dp_sim_hop_at(oracle->costs, message->sender, message->receiver);
    double bytes =
        message->way == 0 ? oracle->costs->message_bytes_f : oracle->costs->message_bytes_b;
    return hop->bytes_per_second > 0 ? bytes / hop->bytes_per_second : 0;
}

// When the rank posts its batch, which is before its action of that number.
static double posted(const struct oracle *oracle, int32_t rank, size_t batch)
{
    size_t begin = oracle->schedule->rank_begin[rank];
    return batch == 0 ? 0 : oracle->spans[begin + batch - 1].end;
}

static void raise_start(struct oracle *oracle, int32_t rank, size_t position, double time)
{
    size_t action = oracle->schedule->rank_begin[rank] + position;
    if (action < oracle->schedule->rank_begin[rank + 1] && oracle->spans[action].start < time) {
        oracle->spans[action].start = time;
    }
}

// Lets every message arrive as early as the spans allow, and raises the starts that it holds back.
static void carry(struct oracle *oracle)
{
    bool blocking = oracle->costs->p2p == DP_SIM_P2P_BLOCKING;
    double wires[RANKS_MOST][RANKS_MOST] = {0};
    for (size_t k = 0; k < oracle->messages; k++) {
        const struct oracle_message *message = &oracle->message[k];
        size_t begin = oracle->schedule->rank_begin[message->receiver];
        double time = oracle->spans[message->from].end;
        if (message->sender == message->receiver) {
            raise_start(oracle, message->receiver, message->to - begin, time);
            continue;
        }
        if (blocking) {
            double other = posted(oracle, message->receiver, message->receive_batch);
            time = other > time ? other : time;
        }
        double *wire = &wires[message->sender][message->receiver];
        *wire = (time > *wire ? time : *wire) + oracle_wire_seconds(oracle, message);
        time = *wire + dp_sim_hop_at(oracle->costs, message->sender, message->receiver)->latency;
        if (blocking) {
            raise_start(oracle, message->sender, message->send_batch, time);
            raise_start(oracle, message->receiver, message->receive_batch, time);
        } else {
            raise_start(oracle, message->receiver, message->to - begin, time);
        }
    }
}

double oracle_run(struct oracle *oracle)
{
    for (size_t i = 0; i < oracle->actions; i++) {
        oracle->spans[i] = (struct dp_sim_span){0, 0};
    }
    double makespan = 0;
    bool moved = true;
    for (size_t round = 0; moved; round++) {
        assert_true(round < 8 * (oracle->actions + oracle->messages + 2));
        moved = false;
        for (int32_t rank = 0; rank < oracle->schedule->pipeline; rank++) {
            double free_at = 0;
            for (size_t i = oracle->schedule->rank_begin[rank];
                 i < oracle->schedule->rank_begin[rank + 1]; i++) {
                struct dp_sim_span *span = &oracle->spans[i];
                span->start = free_at > span->start ? free_at : span->start;
                double end = span->start + oracle->seconds[i];
                moved |= end != span->end;
                span->end = end;
                free_at = end;
            }
            makespan = free_at > makespan ? free_at : makespan;
        }
        carry(oracle);
    }
    return makespan;
}
