#include "sim_oracle.h"

#include "support.h"

#include "dp/alloc.h"

enum { RANKS_MOST = 8 };

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
