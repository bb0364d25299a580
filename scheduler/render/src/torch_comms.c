// PyTorch's form with messages: where each one stands among a rank's actions.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "messages.h"
#include "torch.h"

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
                           "rank %d, position %zu: %s waits for ever; validate the "
                           "schedule first",
                           rank, timing->next[rank] - schedule->rank_begin[rank], text.bytes);
        }
    }
    return DP_OK;
}

// A message with its moments.
struct letter {
    struct render_message message;
    struct moment ready;
    struct moment used; // the action that needs it is over
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

static void add_letter(const struct letter *letter, const char *what, bool sends,
                       struct dp_buf *out)
{
    const struct render_handover *handover = &letter->message.what;
    dp_buf_printf(out, "%d%s_%s%u", sends ? handover->stage : handover->to_stage, what,
                  handover->forward ? "F" : "B", handover->microbatch);
}

// The letters that each rank sends or receives, as indices in the order of all; and those that it
// sends, in the order in which they have been used.
struct post {
    struct letter *letters;
    size_t count;
    uint32_t *items;
    size_t *begin; // [pipeline + 1] into items
    uint32_t *sent;
    size_t *sent_begin; // [pipeline + 1] into sent
    bool with_waits;
};

static void post_deinit(struct post *post)
{
    free(post->letters);
    free(post->items);
    free(post->begin);
    free(post->sent);
    free(post->sent_begin);
}

static int by_use(const void *a, const void *b, void *context)
{
    const struct letter *letters = context;
    uint32_t left = *(const uint32_t *)a;
    uint32_t right = *(const uint32_t *)b;
    const struct moment *used_left = &letters[left].used;
    const struct moment *used_right = &letters[right].used;
    if (is_before(used_left, used_right) || is_before(used_right, used_left)) {
        return is_before(used_left, used_right) ? -1 : 1;
    }
    return left < right ? -1 : 1;
}

static void sort_by_rank(struct post *post, int32_t pipeline)
{
    size_t *begin = post->begin;
    size_t *sent_begin = post->sent_begin;
    for (size_t i = 0; i < post->count; i++) {
        const struct render_message *message = &post->letters[i].message;
        begin[message->from_rank + 1]++;
        begin[message->to_rank + 1]++;
        sent_begin[message->from_rank + 1]++;
    }
    for (int32_t rank = 0; rank < pipeline; rank++) {
        begin[rank + 1] += begin[rank];
        sent_begin[rank + 1] += sent_begin[rank];
    }
    size_t bytes = (size_t)pipeline * sizeof(size_t);
    DP_AUTO_FREE size_t *at = dp_memdup(begin, bytes);
    DP_AUTO_FREE size_t *sent_at = dp_memdup(sent_begin, bytes);
    for (size_t i = 0; i < post->count; i++) {
        const struct render_message *message = &post->letters[i].message;
        post->items[at[message->from_rank]++] = (uint32_t)i;
        post->items[at[message->to_rank]++] = (uint32_t)i;
        post->sent[sent_at[message->from_rank]++] = (uint32_t)i;
    }
    for (int32_t rank = 0; rank < pipeline; rank++) {
        qsort_r(&post->sent[sent_begin[rank]], sent_begin[rank + 1] - sent_begin[rank],
                sizeof(*post->sent), by_use, post->letters);
    }
}

static void post_init(struct post *post, const struct timing *timing)
{
    const struct dp_schedule *schedule = timing->schedule;
    size_t ranks = (size_t)schedule->pipeline;
    DP_AUTO_FREE struct render_message *messages = NULL;
    dp_render_messages(schedule, &timing->where, &messages, &post->count);
    post->letters = dp_new_array(struct letter, post->count);
    for (size_t i = 0; i < post->count; i++) {
        post->letters[i] = (struct letter){.message = messages[i],
                                           .ready = timing->moments[messages[i].what.from],
                                           .used = timing->moments[messages[i].what.to]};
    }
    qsort(post->letters, post->count, sizeof(*post->letters), by_readiness);
    post->items = dp_new_array(uint32_t, 2 * post->count);
    post->begin = dp_new_array(size_t, ranks + 1);
    post->sent = dp_new_array(uint32_t, post->count);
    post->sent_begin = dp_new_array(size_t, ranks + 1);
    sort_by_rank(post, schedule->pipeline);
}

// A row as it is written.
struct row {
    struct dp_buf *out;
    const char *comma;
    size_t item, sent; // next of the rank's letters, and of those to wait for
};

static void begin_cell(struct row *row)
{
    dp_buf_puts(row->out, row->comma);
    row->comma = ",";
}

// What is sent and received before the action at `next`; NULL = all that is left.
static void add_letters(const struct post *post, int32_t rank, const struct moment *next,
                        struct row *row)
{
    for (; row->item < post->begin[rank + 1]; row->item++) {
        const struct letter *letter = &post->letters[post->items[row->item]];
        if (next != NULL && !is_before(&letter->ready, next)) {
            return;
        }
        bool sends = letter->message.from_rank == rank;
        begin_cell(row);
        add_letter(letter, sends ? "SEND" : "RECV", sends, row->out);
    }
}

// The waits for what others have used by the time that the rank's action at `last` has ended; NULL
// = all that are left.
static void add_waits(const struct post *post, int32_t rank, const struct moment *last,
                      struct row *row)
{
    for (; post->with_waits && row->sent < post->sent_begin[rank + 1]; row->sent++) {
        const struct letter *letter = &post->letters[post->sent[row->sent]];
        if (last != NULL && is_before(last, &letter->used)) {
            return;
        }
        begin_cell(row);
        add_letter(letter, "WAIT_SEND", true, row->out);
    }
}

static void add_row(const struct timing *timing, const struct post *post, int32_t rank,
                    struct dp_buf *out)
{
    const struct dp_schedule *schedule = timing->schedule;
    struct row row = {out, "", post->begin[rank], post->sent_begin[rank]};
    size_t begin = schedule->rank_begin[rank];
    size_t end = schedule->rank_begin[rank + 1];
    for (size_t i = begin; i < end; i++) {
        add_letters(post, rank, &timing->moments[i], &row);
        if (i > begin) {
            add_waits(post, rank, &timing->moments[i - 1], &row);
        }
        begin_cell(&row);
        dp_render_torch_action(&schedule->actions[i], out);
    }
    add_letters(post, rank, NULL, &row);
    add_waits(post, rank, NULL, &row);
    dp_buf_puts(out, "\n");
}

dp_status dp_render_torch_csv_comms(const struct dp_schedule *schedule,
                                    const struct dp_sim_result *result, bool with_waits,
                                    struct dp_buf *out, struct dp_error *err)
{
    DP_CHECK(result->spans != NULL);
    dp_status status = dp_render_torch_check(schedule, err);
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
        DP_CLEANUP(post_deinit) struct post post = {.with_waits = with_waits};
        post_init(&post, &timing);
        for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
            add_row(&timing, &post, rank, out);
        }
    }
    dp_render_where_deinit(&timing.where);
    return status;
}
