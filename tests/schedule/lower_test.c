// The lowered form is run here by machines that know nothing of it but its lists: in batches and
// one message after the other, both with sends that wait for their receives. What has to cross is
// found a second time, from the placement.
#include "support.h"

#include "random_schedule.h"

enum { RANKS_MAX = 64 };

static bool is_send(const struct dp_p2p *op)
{
    return op->kind == DP_SEND_F || op->kind == DP_SEND_B;
}

static struct dp_lowered lower_all(const struct dp_schedule *schedule)
{
    struct dp_error err = {0};
    struct dp_lowered lowered;
    assert_ok(dp_schedule_lower_all(schedule, &lowered, &err), &err);
    assert_int_equal(lowered.pipeline, schedule->pipeline);
    assert_true(schedule->pipeline <= RANKS_MAX);
    return lowered;
}

static size_t length_of(const struct dp_schedule *schedule, int32_t rank)
{
    return schedule->rank_begin[rank + 1] - schedule->rank_begin[rank];
}

// The batch that an op belongs to: batch i stands before action i.
static size_t batch_of(const struct dp_p2p *op)
{
    return is_send(op) ? op->action + 1 : op->action;
}

// The k-th message that a sends to b is the k-th that b receives from a, and both call it the same.
static void assert_links_agree(const struct dp_lowered *lowered)
{
    for (int32_t a = 0; a < lowered->pipeline; a++) {
        size_t next[RANKS_MAX];
        for (int32_t b = 0; b < lowered->pipeline; b++) {
            next[b] = lowered->rank_begin[b];
        }
        for (size_t i = lowered->rank_begin[a]; i < lowered->rank_begin[a + 1]; i++) {
            const struct dp_p2p *sent = &lowered->ops[i];
            if (!is_send(sent)) {
                continue;
            }
            size_t *at = &next[sent->peer];
            while (*at < lowered->rank_begin[sent->peer + 1] &&
                   (is_send(&lowered->ops[*at]) || lowered->ops[*at].peer != a)) {
                ++*at;
            }
            assert_true(*at < lowered->rank_begin[sent->peer + 1]);
            const struct dp_p2p *got = &lowered->ops[(*at)++];
            bool forward = sent->kind == DP_SEND_F;
            assert_int_equal(got->kind, forward ? DP_RECV_F : DP_RECV_B);
            assert_int_equal(got->microbatch, sent->microbatch);
            assert_int_equal(got->direction, sent->direction);
            assert_int_equal(got->stage, sent->stage + (forward ? 1 : -1));
            assert_int_equal(got->message, sent->message);
        }
    }
}

// Both ends number the messages from 0, each once, and list them in that order.
static void assert_one_order(const struct dp_lowered *lowered)
{
    size_t count = lowered->rank_begin[lowered->pipeline];
    uint8_t *ends = calloc(count / 2 + 1, 1);
    for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
        for (size_t i = lowered->rank_begin[rank]; i < lowered->rank_begin[rank + 1]; i++) {
            const struct dp_p2p *op = &lowered->ops[i];
            assert_true(op->message < count / 2);
            assert_int_equal(ends[op->message] & (is_send(op) ? 1 : 2), 0);
            ends[op->message] |= is_send(op) ? 1 : 2;
            if (i > lowered->rank_begin[rank]) {
                assert_true(op[-1].message < op->message);
                assert_true(batch_of(&op[-1]) <= batch_of(op));
            }
        }
    }
    free(ends);
}

// What links has been posted, as a network sees it: the k-th send meets the k-th receive.
struct net {
    int sent[RANKS_MAX][RANKS_MAX];    // [from][to]
    int awaited[RANKS_MAX][RANKS_MAX]; // [from][to]
};

struct posted {
    int *count, *other;
    int number;
};

static struct posted post(struct net *net, int32_t rank, const struct dp_p2p *op)
{
    int *sent = is_send(op) ? &net->sent[rank][op->peer] : &net->sent[op->peer][rank];
    int *awaited = is_send(op) ? &net->awaited[rank][op->peer] : &net->awaited[op->peer][rank];
    struct posted posted = {is_send(op) ? sent : awaited, is_send(op) ? awaited : sent, 0};
    posted.number = ++*posted.count;
    return posted;
}

// Each rank posts all of a batch and goes on when all of it has met its other end.
static void assert_batches_finish(const struct dp_schedule *schedule,
                                  const struct dp_lowered *lowered)
{
    static struct net net;
    memset(&net, 0, sizeof(net));
    struct posted *waits = calloc(lowered->rank_begin[lowered->pipeline] + 1, sizeof(*waits));
    size_t batch[RANKS_MAX] = {0};
    size_t begin[RANKS_MAX], end[RANKS_MAX];
    bool open[RANKS_MAX] = {false};
    for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
        end[rank] = lowered->rank_begin[rank];
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
            if (batch[rank] > length_of(schedule, rank)) {
                continue;
            }
            for (begin[rank] = open[rank] ? begin[rank] : end[rank];
                 !open[rank] && end[rank] < lowered->rank_begin[rank + 1] &&
                 batch_of(&lowered->ops[end[rank]]) == batch[rank];
                 end[rank]++) {
                waits[end[rank]] = post(&net, rank, &lowered->ops[end[rank]]);
            }
            moved = moved || !open[rank];
            open[rank] = true;
            bool complete = true;
            for (size_t i = begin[rank]; i < end[rank]; i++) {
                complete = complete && *waits[i].other >= waits[i].number;
            }
            if (complete) {
                open[rank] = false;
                batch[rank]++;
                moved = true;
            }
        }
    }
    for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
        assert_int_equal(batch[rank], length_of(schedule, rank) + 1);
        assert_int_equal(end[rank], lowered->rank_begin[rank + 1]);
    }
    free(waits);
}

// Each rank stands at one op until its peer stands at the other end of it.
static void assert_single_messages_finish(const struct dp_lowered *lowered)
{
    size_t at[RANKS_MAX];
    memcpy(at, lowered->rank_begin, (size_t)lowered->pipeline * sizeof(at[0]));
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
            if (at[rank] == lowered->rank_begin[rank + 1]) {
                continue;
            }
            const struct dp_p2p *mine = &lowered->ops[at[rank]];
            if (at[mine->peer] == lowered->rank_begin[mine->peer + 1]) {
                continue;
            }
            const struct dp_p2p *other = &lowered->ops[at[mine->peer]];
            if (is_send(mine) && !is_send(other) && other->peer == rank) {
                at[mine->peer]++;
                at[rank]++;
                moved = true;
            }
        }
    }
    for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
        assert_int_equal(at[rank], lowered->rank_begin[rank + 1]);
    }
}

// One half of an action, and where it stands.
struct work {
    bool forward;
    int32_t stage, rank;
    uint32_t microbatch;
    size_t position;
};

static int32_t owner(const struct dp_schedule *schedule, int32_t stage, uint32_t microbatch)
{
    bool second = schedule->directions == 2 && microbatch >= (uint32_t)schedule->microbatches / 2;
    return schedule->placement[2 * stage + (second ? 1 : 0)];
}

// The rank's op of this kind for the work, or NULL.
static const struct dp_p2p *op_of(const struct dp_lowered *lowered, const struct work *work,
                                  dp_p2p_kind kind)
{
    for (size_t i = lowered->rank_begin[work->rank]; i < lowered->rank_begin[work->rank + 1]; i++) {
        const struct dp_p2p *op = &lowered->ops[i];
        if (op->kind == kind && op->stage == work->stage && op->microbatch == work->microbatch) {
            return op;
        }
    }
    return NULL;
}

// Counts the ops that the work must have, and holds them to its position.
static size_t assert_ends_of(const struct dp_schedule *schedule, const struct dp_lowered *lowered,
                             const struct work *work)
{
    size_t ops = 0;
    int32_t step = work->forward ? 1 : -1;
    int32_t source = work->stage - step, target = work->stage + step;
    if (source >= 0 && source < schedule->stages &&
        owner(schedule, source, work->microbatch) != work->rank) {
        const struct dp_p2p *op = op_of(lowered, work, work->forward ? DP_RECV_F : DP_RECV_B);
        assert_non_null(op);
        assert_int_equal(op->peer, owner(schedule, source, work->microbatch));
        assert_true(op->action <= work->position);
        ops++;
    }
    if (target >= 0 && target < schedule->stages &&
        owner(schedule, target, work->microbatch) != work->rank) {
        const struct dp_p2p *op = op_of(lowered, work, work->forward ? DP_SEND_F : DP_SEND_B);
        assert_non_null(op);
        assert_int_equal(op->peer, owner(schedule, target, work->microbatch));
        assert_int_equal(op->action, work->position);
        ops++;
    }
    return ops;
}

// Every border between ranks is crossed by a message, received before the work that needs it and
// sent after the work that made it; and nothing else is.
static void assert_borders_are_crossed(const struct dp_schedule *schedule,
                                       const struct dp_lowered *lowered)
{
    size_t ops = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = 0; i < length_of(schedule, rank); i++) {
            const struct dp_action *action = &schedule->actions[schedule->rank_begin[rank] + i];
            if (action->kind == DP_ACTION_W) {
                continue;
            }
            bool pair = action->kind == DP_ACTION_FB;
            struct work work = {pair || action->kind == DP_ACTION_F, action->stage, rank,
                                action->microbatch, i};
            ops += assert_ends_of(schedule, lowered, &work);
            if (pair) {
                struct work back = {false, action->b_stage, rank, action->b_microbatch, i};
                ops += assert_ends_of(schedule, lowered, &back);
            }
        }
    }
    assert_int_equal(ops, lowered->rank_begin[lowered->pipeline]);
}

static void assert_lowers_well(const struct dp_schedule *schedule)
{
    struct dp_lowered lowered = lower_all(schedule);
    assert_links_agree(&lowered);
    assert_one_order(&lowered);
    assert_batches_finish(schedule, &lowered);
    assert_single_messages_finish(&lowered);
    if (dp_schedule_action_count(schedule) < 2000) {
        assert_borders_are_crossed(schedule, &lowered);
    }
    dp_lowered_deinit(&lowered);
}

static int lower_if_legal(const struct dp_schedule_family *family,
                          const struct dp_schedule_params *params)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    if (dp_schedule_check(family->name, params, &err) != DP_OK) {
        return 0;
    }
    assert_ok(dp_schedule_generate(family->name, params, &schedule, &err), &err);
    assert_lowers_well(&schedule);
    dp_schedule_deinit(&schedule);
    return 1;
}

static void every_family_lowers_well_at_all_small_sizes(void **state)
{
    (void)state;
    size_t families;
    const struct dp_schedule_family *family = dp_schedule_families(&families);
    for (size_t i = 0; i < families; i++) {
        int legal = 0;
        for (int32_t p = 1; p <= 6; p++) {
            for (int32_t m = 1; m <= 14; m++) {
                for (int32_t v = 0; v <= min32(family[i].virtual_max, 4); v++) {
                    legal += lower_if_legal(&family[i], &(struct dp_schedule_params){p, m, v});
                }
            }
        }
        assert_true(legal >= 9);
    }
}

static void every_family_lowers_well_at_random_sizes(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    size_t families;
    const struct dp_schedule_family *family = dp_schedule_families(&families);
    for (long legal = 0, runs = dp_fuzz_runs(60); legal < runs;) {
        const struct dp_schedule_family *any = &family[dp_rand_below(&rand, families)];
        struct dp_schedule_params params = {1 + (int32_t)dp_rand_below(&rand, 24),
                                            1 + (int32_t)dp_rand_below(&rand, 96), 0};
        if (any->virtual_max > 0) {
            params.virtual_stages = (int32_t)dp_rand_below(&rand, 7);
        }
        legal += lower_if_legal(any, &params);
    }
}

static void schedules_without_any_regularity_lower_well(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 6);
    for (long run = 0, runs = dp_fuzz_runs(2000); run < runs; run++) {
        struct dp_error err = {0};
        struct dp_schedule schedule = make_random_schedule(&rand);
        assert_ok(dp_schedule_validate(&schedule, &err), &err);
        assert_lowers_well(&schedule);
        dp_schedule_deinit(&schedule);
    }
}

// S stages of which every border between ranks is crossed once forward and once backward.
static void as_many_messages_cross_as_there_are_borders(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipev", 4, 10);
    struct dp_lowered lowered = lower_all(&schedule);
    // 7 borders, of which the turn is local; 10 micro-batches, both ways, both ends.
    assert_int_equal(lowered.rank_begin[4], 6 * 10 * 2 * 2);
    dp_lowered_deinit(&lowered);
    dp_schedule_deinit(&schedule);
}

static void receives_stand_before_and_sends_after_their_action(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 2, 2);
    // F0 F1 B0 B1 and F0 B0 F1 B1: F1 and B0 cross in one batch of either rank.
    static const struct dp_p2p wanted[] = {{DP_SEND_F, 0, 0, 0, 1, 0, 0},
                                           {DP_SEND_F, 0, 0, 1, 1, 1, 1},
                                           {DP_RECV_B, 0, 0, 0, 1, 2, 2},
                                           {DP_RECV_B, 0, 0, 1, 1, 3, 3}};
    struct dp_lowered lowered = lower_all(&schedule);
    assert_int_equal(lowered.rank_begin[1], 4);
    assert_memory_equal(lowered.ops, wanted, sizeof(wanted));
    dp_lowered_deinit(&lowered);
    dp_schedule_deinit(&schedule);
}

// The receiver wants micro-batch 1 first; it must take 0, which the sender made earlier, before.
static void a_receiver_with_another_order_takes_what_was_sent_earlier(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    schedule.actions[4].microbatch = 1;
    schedule.actions[5].microbatch = 0;
    assert_ok(dp_schedule_validate(&schedule, &err), &err);
    assert_lowers_well(&schedule);
    struct dp_lowered lowered = lower_all(&schedule);
    const struct dp_p2p *second = lowered.ops + lowered.rank_begin[1];
    assert_int_equal(second[0].microbatch, 0);
    assert_int_equal(second[0].action, 0);
    assert_int_equal(second[1].microbatch, 1);
    assert_int_equal(second[1].action, 0);
    dp_lowered_deinit(&lowered);
    dp_schedule_deinit(&schedule);
}

// Both ranks begin with two forwards of their own, whose receives just in time would stand behind
// the other's second send: neither could send before it had received, nor receive before.
static void sends_that_face_each_other_do_not_deadlock(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("chimera", 2, 4);
    int forwards = 0;
    for (size_t i = 0; i < schedule.rank_begin[1]; i++) {
        forwards += schedule.actions[i].kind == DP_ACTION_F;
    }
    assert_int_equal(forwards, 4);
    struct dp_action *first = schedule.actions, *second = schedule.actions + schedule.rank_begin[1];
    static const struct dp_action orders[2][4] = {{{DP_ACTION_F, 0, 0, 0, 0, 0, 0},
                                                   {DP_ACTION_F, 0, 0, 1, 0, 0, 0},
                                                   {DP_ACTION_F, 0, 1, 2, 0, 0, 0},
                                                   {DP_ACTION_F, 0, 1, 3, 0, 0, 0}},
                                                  {{DP_ACTION_F, 0, 0, 2, 0, 0, 0},
                                                   {DP_ACTION_F, 0, 0, 3, 0, 0, 0},
                                                   {DP_ACTION_F, 0, 1, 0, 0, 0, 0},
                                                   {DP_ACTION_F, 0, 1, 1, 0, 0, 0}}};
    for (uint32_t i = 0; i < 4; i++) {
        first[i] = orders[0][i];
        second[i] = orders[1][i];
        first[4 + i] = (struct dp_action){.kind = DP_ACTION_B, .stage = i < 2, .microbatch = i ^ 2};
        second[4 + i] = (struct dp_action){.kind = DP_ACTION_B, .stage = i < 2, .microbatch = i};
    }
    struct dp_error err = {0};
    assert_ok(dp_schedule_validate(&schedule, &err), &err);
    assert_lowers_well(&schedule);
    dp_schedule_deinit(&schedule);
}

// A pair sends two messages to one rank, and then waits until that has worked on the second of
// them; the first is needed later, so it may cross later, but then it has to be sent later, too.
static void messages_of_one_pair_cross_in_one_order(void **state)
{
    (void)state;
    static const struct dp_action orders[] = {{DP_ACTION_F, 0, 0, 0, 0, 0, 0},
                                              {DP_ACTION_F, 0, 2, 0, 0, 0, 0},
                                              {DP_ACTION_FB, DP_ACTION_B, 0, 1, 2, 0, 0},
                                              {DP_ACTION_B, 0, 0, 0, 0, 0, 0},
                                              {DP_ACTION_F, 0, 2, 1, 0, 0, 0},
                                              {DP_ACTION_B, 0, 2, 1, 0, 0, 0},
                                              {DP_ACTION_B, 0, 0, 1, 0, 0, 0},
                                              {DP_ACTION_F, 0, 1, 0, 0, 0, 0},
                                              {DP_ACTION_F, 0, 3, 0, 0, 0, 0},
                                              {DP_ACTION_B, 0, 3, 0, 0, 0, 0},
                                              {DP_ACTION_B, 0, 1, 0, 0, 0, 0},
                                              {DP_ACTION_F, 0, 1, 1, 0, 0, 0},
                                              {DP_ACTION_F, 0, 3, 1, 0, 0, 0},
                                              {DP_ACTION_B, 0, 3, 1, 0, 0, 0},
                                              {DP_ACTION_B, 0, 1, 1, 0, 0, 0}};
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params params = {2, 2, 2};
    assert_ok(dp_schedule_generate("interleaved", &params, &schedule, &err), &err);
    memcpy(schedule.actions, orders, sizeof(orders));
    schedule.rank_begin[1] = 7;
    schedule.rank_begin[2] = 15;
    assert_ok(dp_schedule_validate(&schedule, &err), &err);
    assert_lowers_well(&schedule);
    dp_schedule_deinit(&schedule);
}

// When each rank leaves its batches, with sends that wait and messages that take no time.
static double blocking_makespan(const struct dp_schedule *schedule,
                                const struct dp_lowered *lowered, const double *seconds)
{
    size_t messages = lowered->rank_begin[lowered->pipeline] / 2;
    double *posted[2] = {calloc(messages, sizeof(double)), calloc(messages, sizeof(double))};
    for (size_t i = 0; i < 2 * messages; i++) {
        posted[i / messages][i % messages] = -1;
    }
    size_t batch[RANKS_MAX] = {0}, at[RANKS_MAX];
    double time[RANKS_MAX] = {0}, makespan = 0;
    memcpy(at, lowered->rank_begin, (size_t)lowered->pipeline * sizeof(at[0]));
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t rank = 0; rank < lowered->pipeline; rank++) {
            size_t end = at[rank];
            double leave = time[rank];
            bool complete = batch[rank] <= length_of(schedule, rank);
            for (; complete && end < lowered->rank_begin[rank + 1] &&
                   batch_of(&lowered->ops[end]) == batch[rank];
                 end++) {
                posted[is_send(&lowered->ops[end])][lowered->ops[end].message] = time[rank];
            }
            for (size_t i = at[rank]; i < end; i++) {
                double other = posted[!is_send(&lowered->ops[i])][lowered->ops[i].message];
                complete = complete && other >= 0;
                leave = other > leave ? other : leave;
            }
            if (!complete) {
                continue;
            }
            size_t action = schedule->rank_begin[rank] + batch[rank];
            bool last = batch[rank] == length_of(schedule, rank);
            time[rank] = leave + (last ? 0 : seconds[schedule->actions[action].kind]);
            makespan = time[rank] > makespan ? time[rank] : makespan;
            batch[rank]++;
            at[rank] = end;
            moved = true;
        }
    }
    free(posted[0]);
    free(posted[1]);
    return makespan;
}

// Makespans of DeepSeek's own order of work (deepseek-ai/DualPipe, traced; F = I = W = 1, B = 2),
// with free-running messages and with its blocking batches alike: blocking costs nothing.
static void blocking_batches_cost_dualpipe_no_time(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t p, m;
        double pair_3, pair_2_5;
    } cases[] = {{"dualpipe", 2, 4, 12, 11.5},  {"dualpipe", 4, 8, 26, 24},
                 {"dualpipe", 4, 10, 32, 29},   {"dualpipe", 6, 12, 40, 36.5},
                 {"dualpipe", 8, 16, 54, 49},   {"dualpipe", 8, 20, 66, 59},
                 {"dualpipe", 8, 40, 126, 109}, {"dualpipe", 16, 32, 110, 99},
                 {"dualpipev", 2, 4, 26, 24},   {"dualpipev", 4, 8, 54, 49},
                 {"dualpipev", 4, 10, 66, 59},  {"dualpipev", 4, 20, 126, 109},
                 {"dualpipev", 8, 16, 110, 99}, {"dualpipev", 8, 40, 254, 219}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule schedule = make_schedule(cases[i].family, cases[i].p, cases[i].m);
        struct dp_lowered lowered = lower_all(&schedule);
        double seconds[DP_ACTION_KIND_COUNT] = {1, 2, 1, 1, 3};
        assert_float_equal(blocking_makespan(&schedule, &lowered, seconds), cases[i].pair_3, 1e-9);
        seconds[DP_ACTION_FB] = 2.5;
        assert_float_equal(blocking_makespan(&schedule, &lowered, seconds), cases[i].pair_2_5,
                           1e-9);
        dp_lowered_deinit(&lowered);
        dp_schedule_deinit(&schedule);
    }
}

static void what_cannot_be_lowered_is_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_lowered lowered;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    schedule.actions[1].microbatch = 0;
    assert_refused(dp_schedule_lower_all(&schedule, &lowered, &err), DP_INVALID, &err,
                   "rank 1, position 1: no rank sends");
    dp_schedule_deinit(&schedule);

    // Rank 0: F0 B0 F1 B1; rank 1: F0 F1 B0 B1.
    schedule = make_schedule("gpipe", 2, 2);
    schedule.actions[1] = (struct dp_action){.kind = DP_ACTION_B};
    schedule.actions[2] = (struct dp_action){.kind = DP_ACTION_F, .microbatch = 1};
    assert_refused(dp_schedule_lower_all(&schedule, &lowered, &err), DP_INVALID, &err,
                   "rank 0, position 1 waits");
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_lowers_well_at_all_small_sizes),
        cmocka_unit_test(every_family_lowers_well_at_random_sizes),
        cmocka_unit_test(schedules_without_any_regularity_lower_well),
        cmocka_unit_test(as_many_messages_cross_as_there_are_borders),
        cmocka_unit_test(receives_stand_before_and_sends_after_their_action),
        cmocka_unit_test(a_receiver_with_another_order_takes_what_was_sent_earlier),
        cmocka_unit_test(sends_that_face_each_other_do_not_deadlock),
        cmocka_unit_test(messages_of_one_pair_cross_in_one_order),
        cmocka_unit_test(blocking_batches_cost_dualpipe_no_time),
        cmocka_unit_test(what_cannot_be_lowered_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
