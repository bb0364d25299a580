// What completions tell, and what has arrived.
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "verbs.h"

#define POLLED 32

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static struct verbs_entry read_entry(const unsigned char *slot)
{
    struct verbs_entry entry;
    memcpy(&entry, slot, sizeof entry);
    entry.number = le64toh(entry.number);
    entry.epoch = le32toh(entry.epoch);
    entry.kind = le32toh(entry.kind);
    entry.consumed = le64toh(entry.consumed);
    for (int i = 0; i < 4; i++) {
        entry.words[i] = le64toh(entry.words[i]);
    }
    return entry;
}

static void take_credit(struct verbs_link *link, struct verbs_channel *channel, uint64_t consumed)
{
    // Absolute, so that it may come twice; more than was sent is nonsense.
    if (consumed > channel->credit && consumed <= channel->sent) {
        channel->credit = consumed;
        link->moved_ns = dp_clock_monotonic_ns();
        pthread_cond_broadcast(&link->changed);
    }
}

// Only the next in turn counts, and only when it says so itself: had a note that came too early
// been taken for it, the credits would be lost when it comes.
static void take_grant(struct verbs_link *link, verbs_channel_kind kind, uint32_t number)
{
    struct verbs_channel *channel = &link->channels[kind];
    uint64_t next = channel->grants_arrived + 1;
    if (number != (next & IMM_NUMBER)) {
        count(&link->verbs->duplicates);
        return;
    }
    struct verbs_grant grant;
    memcpy(&grant, channel->grants + next % GRANTS * GRANT_BYTES, sizeof grant);
    if (le64toh(grant.epoch) != link->epoch || le64toh(grant.number) != next) {
        count(&link->verbs->late);
        return;
    }
    channel->grants_arrived = next;
    take_credit(link, channel, le64toh(grant.consumed));
}

// The table's place is read only when this is the next entry in turn: any other may be being
// written just now.
static void take_entry(struct verbs_link *link, verbs_channel_kind kind, uint32_t number)
{
    struct verbs_channel *channel = &link->channels[kind];
    uint64_t next = channel->arrived + 1;
    uint32_t ahead = (number - (uint32_t)next) & IMM_NUMBER;
    if (ahead > IMM_NUMBER / 2) {
        count(&link->verbs->duplicates);
        return;
    }
    const unsigned char *slot =
        channel->slots + next % link->verbs->config.depth * channel->slot_bytes;
    struct verbs_entry entry = {0};
    if (ahead == 0) {
        entry = read_entry(slot);
    }
    if (ahead == 0 && entry.epoch != link->epoch) {
        count(&link->verbs->late);
        return;
    }
    if (ahead != 0 || entry.number != next) {
        dp_verbs_link_break(link, kind, false, "notes came out of order");
        return;
    }
    channel->arrived = next;
    take_credit(link, channel, entry.consumed);
}

static void take_mark(struct verbs_channel *channel, bool is_recv)
{
    if (is_recv) {
        channel->recv_drained = true;
    } else {
        channel->send_drained = true;
    }
}

// Those that only repeat: a program's mistake, not the network's.
static bool is_hopeless(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_ACCESS_ERR:
        return true;
    default:
        return false;
    }
}

static bool takes_more(const struct verbs_link *link)
{
    return link->state == VERBS_UP || link->state == VERBS_READY || link->state == VERBS_FLUSHING;
}

static void take_failure(struct verbs_link *link, verbs_channel_kind kind,
                         enum ibv_wc_status status)
{
    bool is_own = status != IBV_WC_WR_FLUSH_ERR;
    if (link->state == VERBS_DRAINING && is_own && !link->is_reason_own && !link->is_ending) {
        // The flush of one queue pair was seen before the reason, on another.
        DP_COPY_TEXT(link->reason, dp_verbs_status_text(status));
        link->is_hopeless = link->is_hopeless || is_hopeless(status);
        link->is_reason_own = true;
    } else if (takes_more(link)) {
        dp_verbs_link_break(link, kind, is_hopeless(status), dp_verbs_status_text(status));
        link->is_reason_own = is_own;
    }
}

static void take_completion(struct verbs_link *link, const struct ibv_wc *completion)
{
    uint64_t id = completion->wr_id;
    bool is_recv = id >> 63 != 0;
    verbs_channel_kind kind = (verbs_channel_kind)(id >> 60 & 1);
    struct verbs_channel *channel = &link->channels[kind];
    if ((uint32_t)(id >> 32 & 0xfffffff) != (link->epoch & 0xfffffff)) {
        count(&link->verbs->late);
        return;
    }
    if ((id >> 62 & 1) != 0) {
        take_mark(channel, is_recv);
        return;
    }
    if (completion->status != IBV_WC_SUCCESS) {
        take_failure(link, kind, completion->status);
        return;
    }
    if (!is_recv) {
        uint64_t position = (channel->head & ~0xffffffffull) | (uint32_t)id;
        position += position < channel->head ? 1ull << 32 : 0;
        if (position < channel->tail) {
            dp_verbs_retire(link, kind, position + 1);
        }
        return;
    }
    uint32_t imm = be32toh(completion->imm_data);
    if (imm & IMM_GRANT) {
        take_grant(link, kind, imm & IMM_NUMBER);
    } else {
        take_entry(link, kind, imm);
    }
    if (takes_more(link) && !dp_verbs_post_recv(link, kind)) {
        dp_verbs_link_break(link, kind, false, "cannot post a receive request");
    }
}

bool dp_verbs_poll(struct verbs_link *link)
{
    struct ibv_wc completions[POLLED];
    int got = link->verbs->device.library->poll_cq(link->cq, POLLED, completions);
    for (int i = 0; i < got; i++) {
        take_completion(link, &completions[i]);
    }
    if (got < 0) {
        dp_verbs_link_break(link, VERBS_CHANNELS, false, "cannot poll the completion queue");
    }
    return got == POLLED;
}

static bool take_piece(struct verbs_link *link, const struct verbs_entry *entry,
                       const unsigned char *payload)
{
    uint64_t tag = entry->words[0], length = entry->words[1], at = entry->words[2],
             part = entry->words[3];
    if (length > DP_TRANSPORT_BYTES_MAX || part > link->verbs->config.slot_bytes || at > length ||
        part > length - at || at != link->message_got) {
        return false;
    }
    if (link->message == NULL) {
        link->message = dp_message_new(tag, (size_t)length);
    }
    if (link->message->length != length || link->message->tag != tag) {
        return false;
    }
    memcpy(link->message->bytes + at, payload, part);
    link->message_got += part;
    struct dp_transport *front = link->verbs->base.front;
    pthread_mutex_lock(front->mutex);
    front->peers[link->peer].progress_ns = dp_clock_monotonic_ns();
    if (link->message_got == length) {
        struct dp_message *message = link->message;
        link->message = NULL;
        link->message_got = 0;
        dp_transport_deliver(&link->verbs->base, link->peer, message);
    }
    pthread_mutex_unlock(front->mutex);
    return true;
}

static bool take_put(struct verbs_link *link, const struct verbs_entry *entry)
{
    struct dp_window *window = dp_window_acquire(&link->verbs->base, (uint32_t)entry->words[2]);
    // Of a window that was closed here, it is of no use to anybody.
    bool is_in_turn =
        window == NULL || dp_window_land(window, link->peer, entry->words[1], entry->words[0]);
    dp_window_release(window);
    return is_in_turn;
}

static void take_gone(struct verbs_link *link, uint32_t key)
{
    for (struct verbs_window *at = link->windows; at != NULL; at = at->next) {
        if (at->key == key) {
            at->is_gone_there = true;
        }
    }
    dp_verbs_windows_drop(link, false);
}

static bool consume_one(struct verbs_link *link, verbs_channel_kind kind)
{
    struct verbs_channel *channel = &link->channels[kind];
    uint64_t next = channel->consumed + 1;
    const unsigned char *slot =
        channel->slots + next % link->verbs->config.depth * channel->slot_bytes;
    struct verbs_entry entry = read_entry(slot);
    if (kind == VERBS_MESSAGES) {
        return entry.kind == VERBS_ENTRY_PIECE && take_piece(link, &entry, slot + ENTRY_BYTES);
    }
    if (entry.kind == VERBS_ENTRY_GONE) {
        take_gone(link, (uint32_t)entry.words[2]);
        return true;
    }
    return entry.kind == VERBS_ENTRY_PUT && take_put(link, &entry);
}

static bool may_read(struct verbs_link *link, bool is_last)
{
    struct dp_transport *front = link->verbs->base.front;
    pthread_mutex_lock(front->mutex);
    bool may = dp_transport_may_read(&link->verbs->base, link->peer) || is_last;
    pthread_mutex_unlock(front->mutex);
    return may;
}

void dp_verbs_consume(struct verbs_link *link, bool is_last)
{
    for (int i = 0; i < VERBS_CHANNELS; i++) {
        verbs_channel_kind kind = (verbs_channel_kind)i;
        struct verbs_channel *channel = &link->channels[kind];
        while (channel->consumed < channel->arrived &&
               (kind != VERBS_MESSAGES || may_read(link, is_last))) {
            if (!consume_one(link, kind)) {
                dp_verbs_link_break(link, kind, true, "it sent what is no message and no put");
                return;
            }
            channel->consumed++;
        }
        dp_verbs_grant(link, kind, false);
    }
}
