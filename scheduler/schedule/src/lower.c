#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/schedule.h"
#include "halves.h"

struct list {
    struct dp_p2p *items;
    size_t count, capacity;
};

static void list_free(struct list *list)
{
    free(list->items);
}

static void list_add(struct list *list, struct dp_p2p item)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        list->items = dp_realloc(list->items, list->capacity, sizeof(*list->items));
    }
    list->items[list->count++] = item;
}

// What the action at `index` of `rank` sends to other ranks, seen from `rank`.
static int sends_of(const struct dp_schedule *schedule, int32_t rank, size_t index,
                    struct dp_p2p ret_sends[2])
{
    struct half halves[2];
    int count = halves_of(&schedule->actions[index], halves);
    int sends = 0;
    for (int i = 0; i < count; i++) {
        int32_t target = half_target(schedule, &halves[i]);
        if (target < 0) {
            continue;
        }
        int32_t peer = dp_schedule_rank_of(schedule, target, halves[i].microbatch);
        if (peer == rank) {
            continue;
        }
        ret_sends[sends++] = (struct dp_p2p){
            .kind = halves[i].kind == DP_ACTION_F ? DP_SEND_F : DP_SEND_B,
            .direction = (uint8_t)dp_schedule_direction(schedule, halves[i].microbatch),
            .stage = (uint16_t)halves[i].stage,
            .microbatch = halves[i].microbatch,
            .peer = peer,
            .action = (uint32_t)(index - schedule->rank_begin[rank])};
    }
    return sends;
}

// The messages that reach one rank: for each peer, in the order in which the peer sends them.
struct inbox {
    const struct dp_schedule *schedule;
    int32_t rank;
    struct list *links;   // [pipeline], as receives of this rank
    size_t *next;         // [pipeline], first message not yet received
    uint8_t *received;    // [stages][microbatches], by stage of this rank; bit = DP_RECV_
};

static uint8_t *received_at(const struct inbox *inbox, int32_t stage, uint32_t microbatch)
{
    return &inbox->received[(size_t)stage * (size_t)inbox->schedule->microbatches + microbatch];
}

static void fill_link(struct inbox *inbox, int32_t peer)
{
    const struct dp_schedule *schedule = inbox->schedule;
    for (size_t i = schedule->rank_begin[peer]; i < schedule->rank_begin[peer + 1]; i++) {
        struct dp_p2p sends[2];
        int count = sends_of(schedule, peer, i, sends);
        for (int k = 0; k < count; k++) {
            if (sends[k].peer != inbox->rank) {
                continue;
            }
            struct dp_p2p receive = sends[k];
            bool forward = receive.kind == DP_SEND_F;
            receive.kind = forward ? DP_RECV_F : DP_RECV_B;
            receive.stage = (uint16_t)(receive.stage + (forward ? 1 : -1));
            receive.peer = peer;
            list_add(&inbox->links[peer], receive);
        }
    }
}

// Only ranks with a neighbouring stage send anything.
static void fill_inbox(struct inbox *inbox)
{
    const struct dp_schedule *schedule = inbox->schedule;
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        for (int direction = 0; direction < schedule->directions; direction++) {
            if (schedule->placement[2 * stage + direction] != inbox->rank) {
                continue;
            }
            for (int32_t near = stage - 1; near <= stage + 1; near += 2) {
                if (near < 0 || near >= schedule->stages) {
                    continue;
                }
                int32_t peer = schedule->placement[2 * near + direction];
                if (peer != inbox->rank && inbox->links[peer].count == 0) {
                    fill_link(inbox, peer);
                }
            }
        }
    }
}

// Adds the receives that the half needs before the action at `index`, and those that its peer sends
// before it. False when the peer never sends it.
static bool add_receives(struct inbox *inbox, const struct half *half, uint32_t index,
                         struct list *out)
{
    const struct dp_schedule *schedule = inbox->schedule;
    int32_t source = half_source(schedule, half);
    if (source < 0) {
        return true;
    }
    int32_t peer = dp_schedule_rank_of(schedule, source, half->microbatch);
    if (peer == inbox->rank) {
        return true;
    }
    uint8_t bit = (uint8_t)(1u << (half->kind == DP_ACTION_F ? DP_RECV_F : DP_RECV_B));
    struct list *link = &inbox->links[peer];
    while ((*received_at(inbox, half->stage, half->microbatch) & bit) == 0) {
        if (inbox->next[peer] == link->count) {
            return false;
        }
        struct dp_p2p receive = link->items[inbox->next[peer]++];
        receive.action = index;
        *received_at(inbox, receive.stage, receive.microbatch) |= (uint8_t)(1u << receive.kind);
        list_add(out, receive);
    }
    return true;
}

static dp_status lower_rank(struct inbox *inbox, struct list *out, struct dp_error *err)
{
    const struct dp_schedule *schedule = inbox->schedule;
    size_t begin = schedule->rank_begin[inbox->rank];
    for (size_t i = begin; i < schedule->rank_begin[inbox->rank + 1]; i++) {
        struct half halves[2];
        int count = halves_of(&schedule->actions[i], halves);
        for (int k = 0; k < count; k++) {
            if (!add_receives(inbox, &halves[k], (uint32_t)(i - begin), out)) {
                return dp_fail(err, DP_INVALID,
                               "rank %d, position %zu: no rank sends what the action needs; "
                               "validate the schedule first",
                               inbox->rank, i - begin);
            }
        }
        struct dp_p2p sends[2];
        count = sends_of(schedule, inbox->rank, i, sends);
        for (int k = 0; k < count; k++) {
            list_add(out, sends[k]);
        }
    }
    return DP_OK;
}

dp_status dp_schedule_lower(const struct dp_schedule *schedule, int32_t rank,
                            struct dp_p2p **ret_list, size_t *ret_count, struct dp_error *err)
{
    if (rank < 0 || rank >= schedule->pipeline) {
        return dp_fail(err, DP_INVALID, "rank %d; ranks are 0 to %d", rank,
                       schedule->pipeline - 1);
    }
    size_t ranks = (size_t)schedule->pipeline;
    DP_AUTO_FREE struct list *links = dp_new_array(struct list, ranks);
    DP_AUTO_FREE size_t *next = dp_new_array(size_t, ranks);
    DP_AUTO_FREE uint8_t *received =
        dp_new_array(uint8_t, (size_t)schedule->stages * (size_t)schedule->microbatches);
    struct inbox inbox = {
        .schedule = schedule, .rank = rank, .links = links, .next = next, .received = received};
    fill_inbox(&inbox);
    struct list out = {0};
    dp_status status = lower_rank(&inbox, &out, err);
    for (size_t i = 0; i < ranks; i++) {
        list_free(&links[i]);
    }
    if (status != DP_OK) {
        list_free(&out);
        return status;
    }
    *ret_list = out.items;
    *ret_count = out.count;
    return DP_OK;
}
