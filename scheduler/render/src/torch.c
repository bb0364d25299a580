// The text form of torch.distributed.pipelining's actions: <stage><kind><micro-batch>, an
// overlapped pair as (<forward>;<backward>)OVERLAP_F_B. See schedules.py of PyTorch, _Action.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "messages.h"

static void add_action(const struct dp_action *action, struct dp_buf *out)
{
    if (action->kind == DP_ACTION_FB) {
        dp_buf_printf(out, "(%uF%u;%u%s%u)OVERLAP_F_B", action->stage, action->microbatch,
                      action->b_stage, dp_action_kind_text(action->b_kind), action->b_microbatch);
    } else {
        dp_buf_printf(out, "%u%s%u", action->stage, dp_action_kind_text(action->kind),
                      action->microbatch);
    }
}

static dp_status check_placement(const struct dp_schedule *schedule, struct dp_error *err)
{
    if (schedule->directions == 2) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "%s is bidirectional: every stage lives on two ranks, and PyTorch's "
                       "pipelining keeps each stage on one; export dualpipev instead, which runs "
                       "the same steps on half of the ranks with two stages each",
                       schedule->name);
    }
    return DP_OK;
}

dp_status dp_render_torch_csv(const struct dp_schedule *schedule, struct dp_buf *out,
                              struct dp_error *err)
{
    dp_status status = check_placement(schedule, err);
    if (status != DP_OK) {
        return status;
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t begin = schedule->rank_begin[rank];
        for (size_t i = begin; i < schedule->rank_begin[rank + 1]; i++) {
            if (i > begin) {
                dp_buf_puts(out, ",");
            }
            add_action(&schedule->actions[i], out);
        }
        dp_buf_puts(out, "\n");
    }
    return DP_OK;
}

// When an action is over, in a way that keeps the order of dependencies where actions take no time:
// of actions that end together the one with the greater depth needs one with a smaller.
struct moment {
    double end;
    int64_t depth; // -1 = not known yet
};

static bool is_before(const struct moment *a, const struct moment *b)
{
    return a->end < b->end || (a->end == b->end && a->depth < b->depth);
}

static void not_before(struct moment *moment, const struct moment *other)
{
    struct moment next = {other->end, other->depth + 1};
    if (is_before(moment, &next)) {
        *moment = next;
    }
}

struct timing {
    const struct dp_schedule *schedule;
    const struct dp_sim_span *spans;
    struct render_where where;
    struct moment *moments; // parallel to the actions
    size_t *next;           // [pipeline]: action to be timed next
};

// Times the rank's next action unless what it needs is not timed yet.
static bool step(struct timing *timing, int32_t rank)
{
    const struct dp_schedule *schedule = timing->schedule;
    size_t index = timing->next[rank];
    if (index == schedule->rank_begin[rank + 1]) {
        return false;
    }
    struct moment moment = {timing->spans[index].end, 0};
    uint32_t sources[2];
    int count = dp_render_sources(schedule, &timing->where, (uint32_t)index, sources);
    for (int i = 0; i < count; i++) {
        if (sources[i] == DP_RENDER_NO_ACTION || timing->moments[sources[i]].depth < 0) {
            return false;
        }
        not_before(&moment, &timing->moments[sources[i]]);
    }
    if (index > schedule->rank_begin[rank]) {
        not_before(&moment, &timing->moments[index - 1]);
    }
    timing->moments[index] = moment;
    timing->next[rank]++;
    return true;
}

// Every rank goes on until it waits, over and over until none moves.
static dp_status run(struct timing *timing, struct dp_error *err)
{
    const struct dp_schedule *schedule = timing->schedule;
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        timing->moments[i].depth = -1;
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        timing->next[rank] = schedule->rank_begin[rank];
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
            while (step(timing, rank)) {
                moved = true;
            }
        }
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        if (timing->next[rank] < schedule->rank_begin[rank + 1]) {
            DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
            dp_action_format(&schedule->actions[timing->next[rank]], &text);
            return dp_fail(err, DP_INVALID,
                           "rank %d, position %zu: %s waits for ever; `check` names the cycle",
                           rank, timing->next[rank] - schedule->rank_begin[rank], text.bytes);
        }
    }
    return DP_OK;
}

// A message with the moment when it is ready.
struct letter {
    struct render_message message;
    struct moment ready;
};

static int by_readiness(const void *a, const void *b)
{
    const struct letter *left = a;
    const struct letter *right = b;
    if (is_before(&left->ready, &right->ready) || is_before(&right->ready, &left->ready)) {
        return is_before(&left->ready, &right->ready) ? -1 : 1;
    }
    if (left->message.what.from != right->message.what.from) {
        return left->message.what.from < right->message.what.from ? -1 : 1;
    }
    return left->message.what.forward ? -1 : 1;
}

static void add_letter(const struct letter *letter, int32_t rank, struct dp_buf *out)
{
    const struct render_handover *what = &letter->message.what;
    bool sends = letter->message.from_rank == rank;
    dp_buf_printf(out, "%d%s_%s%u", sends ? what->stage : what->to_stage, sends ? "SEND" : "RECV",
                  what->forward ? "F" : "B", what->microbatch);
}

// The letters that each rank sends or receives, as indices in the order of all.
struct post {
    const struct letter *letters;
    uint32_t *items;
    size_t *begin; // [pipeline + 1]
};

static void sort_by_rank(struct post *post, size_t count, int32_t pipeline)
{
    for (size_t i = 0; i < count; i++) {
        post->begin[post->letters[i].message.from_rank + 1]++;
        post->begin[post->letters[i].message.to_rank + 1]++;
    }
    for (int32_t rank = 0; rank < pipeline; rank++) {
        post->begin[rank + 1] += post->begin[rank];
    }
    DP_AUTO_FREE size_t *at = dp_memdup(post->begin, (size_t)pipeline * sizeof(*at));
    for (size_t i = 0; i < count; i++) {
        post->items[at[post->letters[i].message.from_rank]++] = (uint32_t)i;
        post->items[at[post->letters[i].message.to_rank]++] = (uint32_t)i;
    }
}

static void add_row(const struct timing *timing, const struct post *post, int32_t rank,
                    struct dp_buf *out)
{
    const struct dp_schedule *schedule = timing->schedule;
    const char *comma = "";
    size_t item = post->begin[rank];
    size_t end = schedule->rank_begin[rank + 1];
    for (size_t i = schedule->rank_begin[rank]; i <= end; i++) {
        for (; item < post->begin[rank + 1]; item++, comma = ",") {
            const struct letter *letter = &post->letters[post->items[item]];
            if (i < end && !is_before(&letter->ready, &timing->moments[i])) {
                break;
            }
            dp_buf_puts(out, comma);
            add_letter(letter, rank, out);
        }
        if (i < end) {
            dp_buf_puts(out, comma);
            add_action(&schedule->actions[i], out);
            comma = ",";
        }
    }
    dp_buf_puts(out, "\n");
}

static void add_rows(const struct timing *timing, struct dp_buf *out)
{
    const struct dp_schedule *schedule = timing->schedule;
    DP_AUTO_FREE struct render_message *messages = NULL;
    size_t count = 0;
    dp_render_messages(schedule, &timing->where, &messages, &count);
    DP_AUTO_FREE struct letter *letters = dp_new_array(struct letter, count);
    for (size_t i = 0; i < count; i++) {
        letters[i] = (struct letter){messages[i], timing->moments[messages[i].what.from]};
    }
    qsort(letters, count, sizeof(*letters), by_readiness);
    DP_AUTO_FREE uint32_t *items = dp_new_array(uint32_t, 2 * count);
    DP_AUTO_FREE size_t *begin = dp_new_array(size_t, (size_t)schedule->pipeline + 1);
    struct post post = {letters, items, begin};
    sort_by_rank(&post, count, schedule->pipeline);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        add_row(timing, &post, rank, out);
    }
}

dp_status dp_render_torch_csv_comms(const struct dp_schedule *schedule,
                                    const struct dp_sim_result *result, struct dp_buf *out,
                                    struct dp_error *err)
{
    DP_CHECK(result->spans != NULL);
    dp_status status = check_placement(schedule, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE struct moment *moments =
        dp_new_array(struct moment, dp_schedule_action_count(schedule));
    DP_AUTO_FREE size_t *next = dp_new_array(size_t, (size_t)schedule->pipeline);
    struct timing timing = {
        .schedule = schedule, .spans = result->spans, .moments = moments, .next = next};
    dp_render_where_init(&timing.where, schedule);
    status = run(&timing, err);
    if (status == DP_OK) {
        add_rows(&timing, out);
    }
    dp_render_where_deinit(&timing.where);
    return status;
}
