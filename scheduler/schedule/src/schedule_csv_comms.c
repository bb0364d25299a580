// The messages of a compute_comms file: what PyTorch takes on trust.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "schedule_csv.h"

// What goes from a stage to a neighbour on another rank: items, by index + 1; 0 = none.
struct message {
    uint32_t made, sent, awaited, received, used;
};

struct post {
    const struct csv_file *file;
    const struct dp_schedule *schedule;
    struct message *messages; // [forward, backward][stage that sends][microbatch]
    struct dp_diags *diags;
    bool good;
};

static bool is_forward(uint8_t kind)
{
    return kind == CSV_SEND_F || kind == CSV_RECV_F || kind == CSV_WAIT_SEND_F;
}

static bool is_receive(uint8_t kind)
{
    return kind == CSV_RECV_F || kind == CSV_RECV_B;
}

static bool is_message(const struct csv_item *item)
{
    uint8_t kind = item->action.kind;
    return kind >= CSV_SEND_F && kind <= CSV_RECV_B;
}

static size_t index_of(const struct post *post, bool forward, int32_t stage, uint32_t microbatch)
{
    const struct dp_schedule *schedule = post->schedule;
    size_t row = (size_t)stage + (forward ? 0 : (size_t)schedule->stages);
    return row * (size_t)schedule->microbatches + microbatch;
}

// The stage at the other end of what the item sends or receives.
static int32_t other_stage(const struct csv_item *item)
{
    int32_t ahead = is_forward(item->action.kind) == is_receive(item->action.kind) ? -1 : 1;
    return item->action.stage + ahead;
}

// The message that a checked item is about.
static size_t message_of(const struct post *post, const struct csv_item *item)
{
    int32_t stage = is_receive(item->action.kind) ? other_stage(item) : item->action.stage;
    return index_of(post, is_forward(item->action.kind), stage, item->action.microbatch);
}

static int32_t peer_of(const struct post *post, const struct csv_item *item)
{
    return post->schedule->placement[2 * other_stage(item)];
}

// "2SEND_F1"
static void name_message(const struct post *post, size_t message, bool receive, struct dp_buf *out)
{
    size_t microbatches = (size_t)post->schedule->microbatches;
    size_t stages = (size_t)post->schedule->stages;
    size_t row = message / microbatches;
    bool forward = row < stages;
    size_t stage = forward ? row : row - stages;
    stage = !receive ? stage : forward ? stage + 1 : stage - 1;
    dp_buf_printf(out, "%zu%s_%s%zu", stage, receive ? "RECV" : "SEND", forward ? "F" : "B",
                  message % microbatches);
}

// "0SEND_F1 (1:9)"
static void name_item(const struct post *post, size_t item, struct dp_buf *out)
{
    const struct dp_schedule_place *place = &post->file->items[item].place;
    dp_csv_item_text(&post->file->items[item], out);
    dp_buf_printf(out, " (%d:%d)", place->line, place->column);
}

// "rank 2: 3SEND_F1 WHAT 3F1 (3:5)"; `other` is an item + 1, 0 = none.
static void tell(struct post *post, int32_t rank, const struct csv_item *item, const char *what,
                 uint32_t other)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_printf(&text, "rank %d: ", rank);
    dp_csv_item_text(item, &text);
    dp_buf_printf(&text, " %s", what);
    if (other > 0) {
        dp_buf_puts(&text, " ");
        name_item(post, other - 1, &text);
    }
    dp_diags_add(post->diags, item->place.line, item->place.column, NULL, "%s", text.bytes);
    post->good = false;
}

// Notes what the item, a computation, makes and uses.
static void note_work(struct post *post, const struct csv_item *item, uint32_t number)
{
    const struct dp_schedule *schedule = post->schedule;
    struct dp_half halves[2];
    int count = dp_action_halves(&item->action, halves);
    for (int i = 0; i < count; i++) {
        // Old letters do not matter here: all but F and W are backwards.
        const struct dp_half *half = &halves[i];
        bool forward = half->kind == DP_ACTION_F;
        if (half->kind == DP_ACTION_W) {
            continue;
        }
        int32_t ahead = half->stage + (forward ? 1 : -1);
        int32_t behind = half->stage + (forward ? -1 : 1);
        int32_t rank = schedule->placement[2 * half->stage];
        if (ahead >= 0 && ahead < schedule->stages && schedule->placement[2 * ahead] != rank) {
            post->messages[index_of(post, forward, half->stage, half->microbatch)].made = number;
        }
        if (behind >= 0 && behind < schedule->stages && schedule->placement[2 * behind] != rank) {
            post->messages[index_of(post, forward, behind, half->microbatch)].used = number;
        }
    }
}

// Whether the item, no computation, is of a stage on this rank; and if it is about a message,
// whether there is such a message.
static bool check_ends(struct post *post, int32_t rank, const struct csv_item *item)
{
    const struct dp_schedule *schedule = post->schedule;
    const struct dp_action *action = &item->action;
    char what[96] = "";
    if (action->stage >= schedule->stages) {
        snprintf(what, sizeof(what), "is of no such stage; stages are 0 to %d",
                 schedule->stages - 1);
    } else if (schedule->placement[2 * action->stage] != rank) {
        snprintf(what, sizeof(what), "is on the wrong rank: rank %d has stage %d",
                 schedule->placement[2 * action->stage], action->stage);
    } else if (action->kind < CSV_UNSHARD) {
        int32_t other = other_stage(item);
        if (action->microbatch >= (uint32_t)schedule->microbatches) {
            snprintf(what, sizeof(what), "is of no such micro-batch; micro-batches are 0 to %d",
                     schedule->microbatches - 1);
        } else if (other < 0 || other >= schedule->stages) {
            snprintf(what, sizeof(what), "has no other end: there is no stage %d", other);
        } else if (schedule->placement[2 * other] == rank) {
            snprintf(what, sizeof(what), "is not needed: stage %d is on this rank, too", other);
        }
    }
    if (what[0] != '\0') {
        tell(post, rank, item, what, 0);
    }
    return what[0] == '\0';
}

static void note_message(struct post *post, int32_t rank, size_t index)
{
    const struct csv_item *item = &post->file->items[index];
    struct message *message = &post->messages[message_of(post, item)];
    uint32_t number = (uint32_t)index + 1;
    if (is_receive(item->action.kind)) {
        if (message->received > 0) {
            tell(post, rank, item, "is there a second time, after", message->received);
        } else if (number > message->used) {
            tell(post, rank, item, "comes too late for", message->used);
        }
        message->received = number;
    } else if (is_message(item)) {
        if (message->sent > 0) {
            tell(post, rank, item, "is there a second time, after", message->sent);
        } else if (number < message->made) {
            tell(post, rank, item, "comes before what it sends is made by", message->made);
        }
        message->sent = number;
    } else {
        if (message->awaited > 0) {
            tell(post, rank, item, "is there a second time, after", message->awaited);
        } else if (message->sent == 0) {
            tell(post, rank, item, "waits for what is not sent before it", 0);
        }
        message->awaited = number;
    }
}

static void note_items(struct post *post)
{
    const struct csv_file *file = post->file;
    for (size_t i = 0; i < file->count; i++) {
        if (csv_is_compute(file->items[i].action.kind)) {
            note_work(post, &file->items[i], (uint32_t)i + 1);
        }
    }
    for (int32_t rank = 0; rank < file->rows; rank++) {
        for (size_t i = file->row_begin[rank]; i < file->row_begin[rank + 1]; i++) {
            const struct csv_item *item = &file->items[i];
            if (!csv_is_compute(item->action.kind) && check_ends(post, rank, item) &&
                item->action.kind < CSV_UNSHARD) {
                note_message(post, rank, i);
            }
        }
    }
}

static void tell_missing(struct post *post, size_t message, uint32_t work, bool receive)
{
    const struct csv_item *item = &post->file->items[work - 1];
    DP_CLEANUP(dp_buf_deinit) struct dp_buf what = {0};
    dp_buf_puts(&what, receive ? "needs " : "makes what nobody sends: ");
    name_message(post, message, receive, &what);
    dp_buf_puts(&what, receive ? ", which is not there" : " is not there");
    tell(post, item->place.line - 1, item, what.bytes, 0);
}

static void check_missing(struct post *post)
{
    size_t count = 2 * (size_t)post->schedule->stages * (size_t)post->schedule->microbatches;
    for (size_t i = 0; i < count; i++) {
        const struct message *message = &post->messages[i];
        if (message->made > 0 && message->sent == 0) {
            tell_missing(post, i, message->made, false);
        }
        if (message->made > 0 && message->received == 0) {
            tell_missing(post, i, message->used, true);
        }
    }
}

// All sends or receives in the order of each pair of ranks, pair after pair.
struct lanes {
    size_t *begin; // [pipeline * pipeline + 1], by sender and receiver
    uint32_t *items;
};

static void lanes_deinit(struct lanes *lanes)
{
    free(lanes->begin);
    free(lanes->items);
}

static size_t lane_of(const struct post *post, int32_t rank, const struct csv_item *item)
{
    size_t own = (size_t)rank;
    size_t peer = (size_t)peer_of(post, item);
    size_t ranks = (size_t)post->schedule->pipeline;
    return is_receive(item->action.kind) ? peer * ranks + own : own * ranks + peer;
}

static void lanes_init(struct lanes *ret_lanes, const struct post *post, bool receives)
{
    const struct csv_file *file = post->file;
    size_t lanes = (size_t)file->rows * (size_t)file->rows;
    ret_lanes->begin = dp_new_array(size_t, lanes + 1);
    ret_lanes->items = dp_new_array(uint32_t, file->count);
    DP_AUTO_FREE size_t *at = dp_new_array(size_t, lanes);
    // First the sizes, then the items.
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t rank = 0; rank < file->rows; rank++) {
            for (size_t i = file->row_begin[rank]; i < file->row_begin[rank + 1]; i++) {
                const struct csv_item *item = &file->items[i];
                if (!is_message(item) || is_receive(item->action.kind) != receives) {
                    continue;
                }
                size_t lane = lane_of(post, rank, item);
                if (pass == 0) {
                    ret_lanes->begin[lane + 1]++;
                } else {
                    ret_lanes->items[at[lane]++] = (uint32_t)i;
                }
            }
        }
        for (size_t lane = 0; pass == 0 && lane < lanes; lane++) {
            ret_lanes->begin[lane + 1] += ret_lanes->begin[lane];
            at[lane] = ret_lanes->begin[lane];
        }
    }
}

// Messages from one rank to another arrive in the order in which they leave.
static void check_order(struct post *post)
{
    DP_CLEANUP(lanes_deinit) struct lanes sends = {0};
    DP_CLEANUP(lanes_deinit) struct lanes receives = {0};
    lanes_init(&sends, post, false);
    lanes_init(&receives, post, true);
    size_t ranks = (size_t)post->file->rows;
    for (size_t lane = 0; lane < ranks * ranks; lane++) {
        for (size_t i = sends.begin[lane]; i < sends.begin[lane + 1]; i++) {
            const struct csv_item *send = &post->file->items[sends.items[i]];
            const struct csv_item *receive = &post->file->items[receives.items[i]];
            if (message_of(post, send) != message_of(post, receive)) {
                char what[96];
                snprintf(what, sizeof(what),
                         "stands where the next message of rank %zu to rank %zu is", lane / ranks,
                         lane % ranks);
                tell(post, (int32_t)(lane % ranks), receive, what, sends.items[i] + 1);
                break;
            }
        }
    }
}

// Ranks that run their rows strictly in order, where a send waits for its receive.
struct meeting {
    struct post *post;
    size_t *at;     // [rows], the next item of each
    int32_t *ready; // stack of ranks to be looked at
    bool *is_ready;
    int32_t ready_count;
};

// Goes to the rank's next message; false at the end of its row.
static bool next_message(struct meeting *meeting, int32_t rank)
{
    const struct csv_file *file = meeting->post->file;
    size_t *at = &meeting->at[rank];
    while (*at < file->row_begin[rank + 1] && !is_message(&file->items[*at])) {
        (*at)++;
    }
    return *at < file->row_begin[rank + 1];
}

static const struct csv_item *current(const struct meeting *meeting, int32_t rank)
{
    return &meeting->post->file->items[meeting->at[rank]];
}

static void push(struct meeting *meeting, int32_t rank)
{
    if (!meeting->is_ready[rank]) {
        meeting->is_ready[rank] = true;
        meeting->ready[meeting->ready_count++] = rank;
    }
}

static void run_rank(struct meeting *meeting, int32_t rank)
{
    const struct post *post = meeting->post;
    while (next_message(meeting, rank)) {
        const struct csv_item *item = current(meeting, rank);
        int32_t peer = peer_of(post, item);
        if (!next_message(meeting, peer) ||
            message_of(post, current(meeting, peer)) != message_of(post, item)) {
            return;
        }
        meeting->at[rank]++;
        meeting->at[peer]++;
        push(meeting, peer);
    }
}

// As each rank waits for another that waits, following them ends in a ring.
static void tell_ring(struct meeting *meeting, int32_t stopped)
{
    enum { SHOWN_MAX = 32 };
    struct post *post = meeting->post;
    int32_t first = stopped;
    for (int32_t i = 0; i < post->file->rows; i++) {
        first = peer_of(post, current(meeting, first));
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "the messages cannot be run in the order of the rows: ");
    int32_t rank = first;
    for (int32_t shown = 0; (rank != first || shown == 0) && shown < SHOWN_MAX; shown++) {
        static const char *const joints[] = {"", " waits for ", ", which waits for "};
        const struct csv_item *item = current(meeting, rank);
        dp_buf_printf(&text, "%srank %d at %d:%d (", joints[shown < 2 ? shown : 2], rank,
                      item->place.line, item->place.column);
        dp_csv_item_text(item, &text);
        dp_buf_puts(&text, ")");
        rank = peer_of(post, current(meeting, rank));
    }
    dp_buf_printf(&text, rank == first ? ", which waits for rank %d" : ", and so on to rank %d",
                  first);
    const struct dp_schedule_place *place = &current(meeting, first)->place;
    dp_diags_add(post->diags, place->line, place->column,
                 "it hangs wherever a send waits for its receive; both ends of all messages can "
                 "follow one common order",
                 "%s", text.bytes);
    post->good = false;
}

static void check_rings(struct post *post)
{
    size_t ranks = (size_t)post->file->rows;
    DP_AUTO_FREE size_t *at = dp_memdup(post->file->row_begin, ranks * sizeof(size_t));
    DP_AUTO_FREE int32_t *ready = dp_new_array(int32_t, ranks);
    DP_AUTO_FREE bool *is_ready = dp_new_array(bool, ranks);
    struct meeting meeting = {.post = post, .at = at, .ready = ready, .is_ready = is_ready};
    for (int32_t rank = post->file->rows - 1; rank >= 0; rank--) {
        push(&meeting, rank);
    }
    while (meeting.ready_count > 0) {
        int32_t rank = ready[--meeting.ready_count];
        is_ready[rank] = false;
        run_rank(&meeting, rank);
    }
    for (int32_t rank = 0; rank < post->file->rows; rank++) {
        if (next_message(&meeting, rank)) {
            tell_ring(&meeting, rank);
            return;
        }
    }
}

bool dp_csv_messages_check(const struct csv_file *file, const struct dp_schedule *schedule,
                           struct dp_diags *diags)
{
    size_t count = 2 * (size_t)schedule->stages * (size_t)schedule->microbatches;
    DP_AUTO_FREE struct message *messages = dp_new_array(struct message, count);
    struct post post = {
        .file = file, .schedule = schedule, .messages = messages, .diags = diags, .good = true};
    note_items(&post);
    check_missing(&post);
    if (post.good) {
        check_order(&post);
    }
    if (post.good) {
        check_rings(&post);
    }
    return post.good;
}
