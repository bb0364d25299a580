// Requests: posting them, and what becomes of them.
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "verbs.h"

// What a completion tells about its request: 1 bit received, 1 bit mark, 2 bits channel, 28 bits
// epoch, 32 bits position.
uint64_t dp_verbs_wr_id(const struct verbs_link *link, verbs_channel_kind kind, bool is_recv,
                        bool is_mark, uint64_t position)
{
    return (uint64_t)is_recv << 63 | (uint64_t)is_mark << 62 | (uint64_t)kind << 60 |
           (uint64_t)(link->epoch & 0xfffffff) << 32 | (position & 0xffffffff);
}

bool dp_verbs_post_recv(struct verbs_link *link, verbs_channel_kind kind)
{
    struct verbs_channel *channel = &link->channels[kind];
    struct ibv_recv_wr request = {.wr_id = dp_verbs_wr_id(link, kind, true, false, 0)};
    struct ibv_recv_wr *bad;
    return link->verbs->device.library->post_recv(channel->qp, &request, &bad) == 0;
}

unsigned char *dp_verbs_stage(struct verbs_link *link, struct verbs_channel *channel, size_t length,
                              uint64_t *ret_end)
{
    uint64_t ring = link->verbs->config.staging_bytes;
    uint64_t start = channel->stage_head;
    if (start % ring + length > ring) {
        start += ring - start % ring;
    }
    if (start + length - channel->stage_tail > ring) {
        return NULL;
    }
    channel->stage_head = start + length;
    *ret_end = channel->stage_head;
    return channel->stage + start % ring;
}

// Every so often, so that there is always one on its way when room runs out.
static bool wants_signal(const struct verbs_link *link, const struct verbs_channel *channel,
                         const struct verbs_request *request)
{
    return channel->tail + 1 - channel->signalled_at >= SIGNAL_EVERY ||
           request->stage_end - channel->stage_signalled_at >=
               link->verbs->config.staging_bytes / 4;
}

static int hand_over(struct verbs_link *link, verbs_channel_kind kind,
                     const struct verbs_request *request, bool is_signalled)
{
    struct verbs *verbs = link->verbs;
    struct verbs_channel *channel = &link->channels[kind];
    struct ibv_sge source = {
        .addr = (uintptr_t)request->local, .length = request->length, .lkey = request->lkey};
    bool has_imm = request->is_entry || request->number == 0;
    struct ibv_send_wr send = {
        .wr_id = dp_verbs_wr_id(link, kind, false, false, channel->tail),
        .sg_list = &source,
        .num_sge = 1,
        .opcode = has_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
        .send_flags = (is_signalled ? IBV_SEND_SIGNALED : 0u) |
                      (request->length <= channel->inline_bytes ? IBV_SEND_INLINE : 0u),
        .imm_data = htobe32(request->imm),
        .wr.rdma = {.remote_addr = request->remote, .rkey = request->rkey}};
    struct ibv_send_wr *bad;
    atomic_fetch_add_explicit(&verbs->requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&verbs->signalled, is_signalled, memory_order_relaxed);
    return verbs->device.library->post_send(channel->qp, &send, &bad);
}

void dp_verbs_post(struct verbs_link *link, verbs_channel_kind kind,
                   const struct verbs_request *request, bool is_signalled)
{
    struct verbs_channel *channel = &link->channels[kind];
    is_signalled = is_signalled || wants_signal(link, channel, request);
    channel->requests[channel->tail % channel->request_count] = *request;
    // What is to be posted again while the link breaks once more waits for the next epoch.
    bool is_open = link->state == VERBS_UP || link->state == VERBS_FLUSHING;
    int failed = is_open ? hand_over(link, kind, request, is_signalled) : 0;
    channel->tail++;
    if (is_signalled) {
        channel->signalled_at = channel->tail;
        channel->stage_signalled_at = request->stage_end;
    }
    link->moved_ns = dp_clock_monotonic_ns();
    if (failed != 0) {
        char reason[sizeof link->reason];
        snprintf(reason, sizeof reason, "cannot post a request: %s", strerror(failed));
        dp_verbs_link_break(link, kind, false, reason);
    }
}

// Stamps an entry with what it has to say on this epoch's queue pair.
static void stamp(const struct verbs_link *link, const struct verbs_request *request,
                  struct verbs_channel *channel)
{
    struct verbs_entry entry;
    memcpy(&entry, request->local, sizeof entry);
    entry.epoch = htole32(link->epoch);
    entry.consumed = htole64(channel->consumed);
    memcpy(request->local, &entry, sizeof entry);
    channel->granted = channel->consumed;
}

void dp_verbs_post_entry(struct verbs_link *link, verbs_channel_kind kind,
                         const struct verbs_request *request, bool is_signalled)
{
    stamp(link, request, &link->channels[kind]);
    dp_verbs_post(link, kind, request, is_signalled);
}

void dp_verbs_post_mark(struct verbs_link *link, verbs_channel_kind kind)
{
    struct verbs_channel *channel = &link->channels[kind];
    if (channel->tail - channel->head >= channel->request_count) {
        return;
    }
    struct verbs_request mark = {.number = channel->sent + 1,
                                 .remote = channel->remote_slots,
                                 .rkey = channel->remote_rkey,
                                 .local = channel->stage,
                                 .lkey = link->region->mrs[0]->lkey,
                                 .stage_end = channel->stage_head};
    dp_verbs_post(link, kind, &mark, true);
}

void dp_verbs_grant(struct verbs_link *link, verbs_channel_kind kind, bool is_urgent)
{
    struct verbs_channel *channel = &link->channels[kind];
    uint64_t owed = channel->consumed - channel->granted;
    if (link->state != VERBS_UP || owed == 0 ||
        (owed < link->verbs->config.depth / 2 && !is_urgent)) {
        return;
    }
    channel->grant_wanted = channel->tail - channel->head >= channel->request_count;
    if (channel->grant_wanted) {
        return;
    }
    uint64_t number = ++channel->grants_sent;
    size_t at = number % GRANTS * GRANT_BYTES;
    struct verbs_grant grant = {.number = htole64(number),
                                .epoch = htole64(link->epoch),
                                .consumed = htole64(channel->consumed)};
    memcpy(channel->grant_sources + at, &grant, sizeof grant);
    channel->granted = channel->consumed;
    atomic_fetch_add_explicit(&link->verbs->grants, 1, memory_order_relaxed);
    struct verbs_request request = {.remote = channel->remote_grants + at,
                                    .stage_end = channel->stage_head,
                                    .local = channel->grant_sources + at,
                                    .length = sizeof grant,
                                    .lkey = link->region->mrs[0]->lkey,
                                    .rkey = channel->remote_rkey,
                                    .imm = IMM_GRANT | (uint32_t)(number & IMM_NUMBER)};
    dp_verbs_post(link, kind, &request, false);
}

void dp_verbs_retire(struct verbs_link *link, verbs_channel_kind kind, uint64_t position)
{
    struct verbs_channel *channel = &link->channels[kind];
    while (channel->head < position) {
        const struct verbs_request *request =
            &channel->requests[channel->head % channel->request_count];
        if (request->is_entry) {
            channel->acknowledged = request->number;
        }
        channel->stage_tail = request->stage_end;
        channel->head++;
    }
    link->moved_ns = dp_clock_monotonic_ns();
    pthread_cond_broadcast(&link->changed);
    if (channel->grant_wanted) {
        dp_verbs_grant(link, kind, true);
    }
}

bool dp_verbs_replay(struct verbs_link *link, verbs_channel_kind kind, uint64_t arrived)
{
    struct verbs_channel *channel = &link->channels[kind];
    if (arrived < channel->acknowledged || arrived > channel->sent) {
        return false;
    }
    uint64_t first = channel->head, end = channel->tail;
    DP_AUTO_FREE struct verbs_request *kept =
        dp_new_array(struct verbs_request, (size_t)(end - first));
    size_t count = 0;
    for (; first < end; first++) {
        const struct verbs_request *request = &channel->requests[first % channel->request_count];
        if (request->number > arrived) {
            kept[count++] = *request;
        } else if (count == 0) {
            channel->stage_tail = request->stage_end;
        }
    }
    channel->acknowledged = arrived;
    channel->head = channel->signalled_at = end;
    channel->stage_signalled_at = channel->stage_tail;
    for (size_t i = 0; i < count; i++) {
        if (kept[i].is_entry) {
            dp_verbs_post_entry(link, kind, &kept[i], i + 1 == count);
        } else {
            dp_verbs_post(link, kind, &kept[i], i + 1 == count);
        }
    }
    return true;
}
