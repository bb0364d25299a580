// Messages and puts on their way out.
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "verbs.h"

#define CARD_RKEYS_MAX 10

// One message or put being sent: what it waits for, and what it is called in messages.
struct sender {
    struct verbs_link *link;
    verbs_channel_kind kind;
    struct verbs_channel *channel;
    char what[DP_TRANSPORT_TAG_TEXT_MAX + 16];
    int64_t start_ns;
    struct dp_error *err;
};

static struct verbs_link *link_of(struct dp_transport *transport, int32_t peer)
{
    struct verbs_link *link = &verbs_of(transport)->links[peer];
    DP_CHECK(link->verbs != NULL && peer != transport->rank);
    return link;
}

// Under the lock: whether the link is of any use.
static dp_status check_link(const struct sender *sender)
{
    struct verbs_link *link = sender->link;
    struct dp_transport *base = &link->verbs->base, *front = base->front;
    dp_status status = DP_OK;
    pthread_mutex_lock(front->mutex);
    if (front->aborted != DP_OK) {
        status = dp_transport_fail_aborted(base, sender->err);
    } else if (link->is_ending || link->state == VERBS_CLOSED || link->heard_bye) {
        status = dp_fail(sender->err, DP_UNAVAILABLE, "cannot send to rank %d (%s): %s", link->peer,
                         sender->what, front->peers[link->peer].reason);
    }
    pthread_mutex_unlock(front->mutex);
    return status;
}

// Under the lock, which is given up meanwhile: one wait for the link to change.
static dp_status wait_once(struct sender *sender)
{
    struct verbs_link *link = sender->link;
    struct dp_transport *front = link->verbs->base.front;
    dp_status status = check_link(sender);
    if (status != DP_OK) {
        return status;
    }
    int64_t now_ns = dp_clock_monotonic_ns();
    sender->start_ns = sender->start_ns == 0 ? now_ns : sender->start_ns;
    int64_t last_ns = link->moved_ns > sender->start_ns ? link->moved_ns : sender->start_ns;
    if (now_ns >= last_ns + front->blocked_ns) {
        return dp_fail(sender->err, DP_TIMEOUT, "rank %d took nothing for %.1f s, sending %s",
                       link->peer, (double)(now_ns - last_ns) / (double)DP_NS_PER_S, sender->what);
    }
    pthread_mutex_lock(front->mutex);
    dp_transport_wait_begin(&link->verbs->base);
    pthread_mutex_unlock(front->mutex);
    dp_cond_wait(&link->changed, &link->lock, last_ns + front->blocked_ns);
    pthread_mutex_lock(front->mutex);
    dp_transport_wait_end(&link->verbs->base);
    front->stats.send_wait_ns += dp_clock_monotonic_ns() - now_ns;
    pthread_mutex_unlock(front->mutex);
    return DP_OK;
}

// Takes the lock and, once it is this sender's turn, the channel.
static dp_status begin(struct sender *sender, struct verbs_link *link, verbs_channel_kind kind,
                       struct dp_error *err)
{
    sender->link = link;
    sender->kind = kind;
    sender->channel = &link->channels[kind];
    sender->err = err;
    pthread_mutex_lock(&link->lock);
    dp_status status = check_link(sender);
    while (status == DP_OK && sender->channel->is_taken) {
        status = wait_once(sender);
    }
    if (status == DP_OK) {
        sender->channel->is_taken = true;
    } else {
        pthread_mutex_unlock(&link->lock);
    }
    return status;
}

static void end(struct sender *sender)
{
    sender->channel->is_taken = false;
    pthread_cond_broadcast(&sender->link->changed);
    pthread_mutex_unlock(&sender->link->lock);
}

// Waits for a link that is up, a free request, `staged` bytes of staging and, for an entry, a
// credit. *ret_staged may be NULL when nothing is to be staged.
static dp_status await_room(struct sender *sender, size_t staged, bool is_entry,
                            unsigned char **ret_staged, uint64_t *ret_stage_end)
{
    struct verbs_link *link = sender->link;
    struct verbs_channel *channel = sender->channel;
    for (;;) {
        bool has_credit = !is_entry || channel->sent - channel->credit < link->verbs->config.depth;
        if (link->state == VERBS_UP && !link->is_ending && has_credit &&
            channel->tail - channel->head < channel->request_count) {
            *ret_staged = NULL;
            *ret_stage_end = channel->stage_head;
            if (staged > 0) {
                *ret_staged = dp_verbs_stage(link, channel, staged, ret_stage_end);
            }
            if (staged == 0 || *ret_staged != NULL) {
                return check_link(sender);
            }
        }
        dp_status status = wait_once(sender);
        if (status != DP_OK) {
            return status;
        }
    }
}

// Announces what was written before it; payload parts follow the entry in its slot. Signalled: its
// completion is waited for.
static dp_status send_entry(struct sender *sender, struct verbs_entry *entry,
                            const struct iovec *parts, int count, size_t payload, bool is_signalled)
{
    struct verbs_link *link = sender->link;
    struct verbs *verbs = link->verbs;
    struct verbs_channel *channel = sender->channel;
    struct verbs_request request = {.is_entry = true};
    size_t head = payload > 0 ? ENTRY_BYTES : sizeof *entry;
    dp_status status = await_room(sender, head + payload, true, &request.local, &request.stage_end);
    if (status != DP_OK) {
        return status;
    }
    request.number = ++channel->sent;
    entry->number = htole64(request.number);
    memcpy(request.local, entry, sizeof *entry);
    dp_window_gather(request.local + ENTRY_BYTES, parts, count);
    request.remote =
        channel->remote_slots + request.number % verbs->config.depth * channel->slot_bytes;
    request.length = (uint32_t)(head + payload);
    request.lkey = link->region->mrs[0]->lkey;
    request.rkey = channel->remote_rkey;
    request.imm = (uint32_t)(request.number & IMM_NUMBER);
    dp_verbs_post_entry(link, sender->kind, &request, is_signalled);
    uint32_t in_flight = (uint32_t)(channel->sent - channel->credit);
    uint32_t peak = verbs->in_flight_peak;
    while (in_flight > peak &&
           !atomic_compare_exchange_weak(&verbs->in_flight_peak, &peak, in_flight)) {
    }
    return DP_OK;
}

// The part of `parts` from `at` on, up to `length` bytes.
static int slice(const struct iovec *parts, int count, size_t at, size_t length,
                 struct iovec *ret_parts)
{
    int used = 0;
    for (int i = 0; i < count && length > 0; i++) {
        if (at >= parts[i].iov_len) {
            at -= parts[i].iov_len;
            continue;
        }
        size_t part = parts[i].iov_len - at < length ? parts[i].iov_len - at : length;
        ret_parts[used++] =
            (struct iovec){.iov_base = (char *)parts[i].iov_base + at, .iov_len = part};
        length -= part;
        at = 0;
    }
    return used;
}

dp_status dp_verbs_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                        const struct iovec *parts, int count, size_t length, struct dp_error *err)
{
    struct sender sender = {0};
    dp_transport_tag_text(sender.what, tag);
    dp_status status = begin(&sender, link_of(transport, peer), VERBS_MESSAGES, err);
    if (status != DP_OK) {
        return status;
    }
    size_t most = verbs_of(transport)->config.slot_bytes, at = 0;
    do {
        size_t part = length - at < most ? length - at : most;
        struct iovec piece[DP_TRANSPORT_PARTS_MAX];
        int pieces = slice(parts, count, at, part, piece);
        struct verbs_entry entry = {
            .kind = htole32(VERBS_ENTRY_PIECE),
            .words = {htole64(tag), htole64(length), htole64(at), htole64(part)}};
        status = send_entry(&sender, &entry, piece, pieces, part, false);
        at += status == DP_OK ? part : 0;
    } while (status == DP_OK && at < length);
    if (status != DP_OK && at > 0 && sender.link->state != VERBS_CLOSED &&
        !sender.link->is_ending) {
        // Half a message cannot be taken back, and another must not follow it.
        dp_verbs_link_end(sender.link, "a message to it could not be sent to its end");
    }
    end(&sender);
    return status;
}

// Where in the peer's memory, under which key, and how far that key reaches.
static uint64_t remote_of(const struct verbs_window *window, size_t offset, uint32_t *ret_rkey,
                          size_t *ret_bytes)
{
    uint64_t address = window->memory + offset;
    uint64_t at = address - window->base;
    uint64_t piece = at / window->piece_bytes;
    DP_CHECK(piece < window->pieces);
    *ret_rkey = window->rkeys[piece];
    *ret_bytes = (size_t)((piece + 1) * window->piece_bytes - at);
    return address;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Copies and writes bytes that may be reused at once.
static dp_status put_copied(struct sender *sender, const struct verbs_window *window, size_t offset,
                            const unsigned char *bytes, size_t length)
{
    struct verbs_channel *channel = sender->channel;
    size_t most = least(STAGED_BYTES_MAX, sender->link->verbs->config.staging_bytes / 4);
    for (size_t at = 0; at < length;) {
        struct verbs_request request = {0};
        size_t reach;
        request.remote = remote_of(window, offset + at, &request.rkey, &reach);
        request.length = (uint32_t)least(least(most, reach), length - at);
        dp_status status =
            await_room(sender, request.length, false, &request.local, &request.stage_end);
        if (status != DP_OK) {
            return status;
        }
        memcpy(request.local, bytes + at, request.length);
        request.lkey = sender->link->region->mrs[0]->lkey;
        request.number = channel->sent + 1;
        dp_verbs_post(sender->link, sender->kind, &request, false);
        at += request.length;
    }
    return DP_OK;
}

// Writes bytes from where they lie in registered memory.
static dp_status put_in_place(struct sender *sender, const struct verbs_window *window,
                              size_t offset, unsigned char *bytes, size_t length,
                              const struct verbs_region *region)
{
    for (size_t at = 0; at < length;) {
        struct verbs_request request = {.local = bytes + at, .number = sender->channel->sent + 1};
        size_t far, near;
        unsigned char *none;
        request.remote = remote_of(window, offset + at, &request.rkey, &far);
        request.lkey = dp_verbs_region_mr(region, bytes + at, &near)->lkey;
        request.length = (uint32_t)least(least(near, far), length - at);
        dp_status status = await_room(sender, 0, false, &none, &request.stage_end);
        if (status != DP_OK) {
            return status;
        }
        dp_verbs_post(sender->link, sender->kind, &request, false);
        at += request.length;
    }
    atomic_fetch_add(&sender->link->verbs->zero_copy, 1);
    return DP_OK;
}

// Until the device reads the caller's bytes no more: all is acknowledged, or there is no queue pair
// left that could.
static void await_release(struct sender *sender, uint64_t number)
{
    struct verbs_link *link = sender->link;
    while (sender->channel->acknowledged < number &&
           !(link->state == VERBS_CLOSED && sender->channel->qp == NULL)) {
        dp_cond_wait(&link->changed, &link->lock, dp_clock_monotonic_ns() + DP_NS_PER_S);
    }
}

static dp_status put_part(struct sender *sender, const struct verbs_window *window, size_t offset,
                          const struct iovec *part, bool *ret_in_place)
{
    struct verbs *verbs = sender->link->verbs;
    struct verbs_region *region = NULL;
    if (part->iov_len >= ZERO_COPY_BYTES_MIN) {
        region = dp_verbs_region_find(&verbs->regions, part->iov_base, part->iov_len);
    }
    if (region == NULL) {
        return put_copied(sender, window, offset, part->iov_base, part->iov_len);
    }
    *ret_in_place = true;
    dp_status status = put_in_place(sender, window, offset, part->iov_base, part->iov_len, region);
    dp_verbs_region_put(&verbs->regions, region);
    return status;
}

dp_status dp_verbs_put(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                       size_t offset, const struct iovec *parts, int count, size_t length,
                       uint64_t number, uint64_t note, struct dp_error *err)
{
    (void)length;
    struct verbs_window *remote = window->outs[peer].row;
    struct sender sender = {0};
    snprintf(sender.what, sizeof sender.what, "put %llu to window %u", (unsigned long long)number,
             window->key & 0xffff);
    dp_status status = begin(&sender, link_of(transport, peer), VERBS_WINDOWS, err);
    if (status != DP_OK) {
        return status;
    }
    bool is_in_place = false;
    for (int i = 0; i < count && status == DP_OK; i++) {
        status = put_part(&sender, remote, offset, &parts[i], &is_in_place);
        offset += parts[i].iov_len;
    }
    struct verbs_entry entry = {.kind = htole32(VERBS_ENTRY_PUT),
                                .words = {htole64(note), htole64(number), htole64(window->key)}};
    if (status == DP_OK) {
        status = send_entry(&sender, &entry, NULL, 0, 0, is_in_place);
    }
    if (is_in_place) {
        if (status != DP_OK) {
            // No entry will tell when the bytes are free: only the end of the queue pairs does.
            dp_verbs_link_end(sender.link, "a put to it could not be made to its end");
        }
        await_release(&sender, status == DP_OK ? sender.channel->sent : UINT64_MAX);
        status = status == DP_OK && sender.channel->acknowledged < sender.channel->sent
                     ? check_link(&sender)
                     : status;
    }
    end(&sender);
    return status;
}

static void put_word(unsigned char *card, size_t at, uint64_t value)
{
    value = htole64(value);
    memcpy(card + at, &value, sizeof value);
}

static uint64_t get_word(const unsigned char *card, size_t at)
{
    uint64_t value;
    memcpy(&value, card + at, sizeof value);
    return le64toh(value);
}

dp_status dp_verbs_window_offer(struct dp_transport *transport, struct dp_window *window,
                                int32_t peer, unsigned char card[DP_WINDOW_CARD_BYTES],
                                struct dp_error *err)
{
    struct verbs *verbs = verbs_of(transport);
    struct verbs_link *link = link_of(transport, peer);
    struct verbs_region *region = NULL; // of no bytes, there is nothing to write to
    dp_status status = DP_OK;
    if (window->bytes > 0) {
        status = dp_verbs_region_get(&verbs->regions, window->memory, window->bytes, &region, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (region != NULL && region->pieces > CARD_RKEYS_MAX) {
        dp_verbs_region_put(&verbs->regions, region);
        return dp_fail(err, DP_TOO_LARGE, "%s registers %zu bytes in one piece, and %zu need %d",
                       verbs->device.name, region->piece_bytes, window->bytes, region->pieces);
    }
    put_word(card, 0, (uintptr_t)window->memory);
    put_word(card, 8, region != NULL ? (uintptr_t)region->start : (uintptr_t)window->memory);
    put_word(card, 16, region != NULL ? region->piece_bytes : 1);
    for (int i = 0; region != NULL && i < region->pieces; i++) {
        uint32_t rkey = htole32(region->mrs[i]->rkey);
        memcpy(card + 24 + 4 * (size_t)i, &rkey, sizeof rkey);
    }
    struct verbs_window *row = dp_new(struct verbs_window);
    row->window = window;
    row->key = window->key;
    row->region = region;
    // Peers may be writing until they have said that they have closed it as well.
    atomic_fetch_add(&window->users, 1);
    pthread_mutex_lock(&link->lock);
    row->next = link->windows;
    link->windows = row;
    window->outs[peer].row = row;
    pthread_mutex_unlock(&link->lock);
    return DP_OK;
}

dp_status dp_verbs_window_accept(struct dp_transport *transport, struct dp_window *window,
                                 int32_t peer, const unsigned char card[DP_WINDOW_CARD_BYTES],
                                 struct dp_error *err)
{
    struct verbs_link *link = link_of(transport, peer);
    struct verbs_window *row = window->outs[peer].row;
    uint64_t memory = get_word(card, 0), base = get_word(card, 8), piece = get_word(card, 16);
    uint64_t reach = memory - base + window->bytes;
    if (piece == 0 || memory < base || reach < window->bytes ||
        (reach > 0 && (reach - 1) / piece >= CARD_RKEYS_MAX)) {
        return dp_fail(err, DP_CONFLICT, "rank %d offers memory that is none", peer);
    }
    pthread_mutex_lock(&link->lock);
    row->memory = memory;
    row->base = base;
    row->piece_bytes = piece;
    row->pieces = CARD_RKEYS_MAX;
    for (int i = 0; i < CARD_RKEYS_MAX; i++) {
        uint32_t rkey;
        memcpy(&rkey, card + 24 + 4 * (size_t)i, sizeof rkey);
        row->rkeys[i] = le32toh(rkey);
    }
    pthread_mutex_unlock(&link->lock);
    return DP_OK;
}

void dp_verbs_window_forget(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    struct verbs_window *row = window->outs[peer].row;
    if (row == NULL) {
        return;
    }
    struct sender sender = {.what = "the end of a window"};
    struct verbs_link *link = link_of(transport, peer);
    // After all puts to it on the same queue pair. A link that has failed needs none.
    if (begin(&sender, link, VERBS_WINDOWS, NULL) == DP_OK) {
        struct verbs_entry entry = {.kind = htole32(VERBS_ENTRY_GONE),
                                    .words = {0, 0, htole64(window->key)}};
        send_entry(&sender, &entry, NULL, 0, 0, false);
        end(&sender);
    }
    pthread_mutex_lock(&link->lock);
    window->outs[peer].row = NULL;
    row->is_gone_here = true;
    dp_verbs_windows_drop(link, false);
    pthread_mutex_unlock(&link->lock);
}

void dp_verbs_windows_drop(struct verbs_link *link, bool is_all)
{
    struct verbs *verbs = link->verbs;
    bool has_queues = link->channels[VERBS_WINDOWS].qp != NULL;
    for (struct verbs_window **at = &link->windows; *at != NULL;) {
        struct verbs_window *row = *at;
        bool is_over = link->state == VERBS_CLOSED && !has_queues;
        if (!is_all && !(row->is_gone_here && (row->is_gone_there || is_over))) {
            at = &row->next;
            continue;
        }
        *at = row->next;
        dp_verbs_region_put(&verbs->regions, row->region);
        dp_verbs_regions_trim(&verbs->regions);
        dp_window_release(row->window);
        free(row);
    }
}
