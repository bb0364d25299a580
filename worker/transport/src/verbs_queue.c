// Queue pairs: their making, the way to the peer's, and their end.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cond.h"
#include "verbs.h"

static size_t up_to_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t slot_bytes_of(const struct verbs *verbs, int kind)
{
    return kind == VERBS_MESSAGES ? ENTRY_BYTES + up_to_64(verbs->config.slot_bytes) : ENTRY_BYTES;
}

static size_t channel_bytes(const struct verbs *verbs, int kind)
{
    return verbs->config.depth * slot_bytes_of(verbs, kind) + 2 * (size_t)GRANTS * GRANT_BYTES +
           up_to_64(verbs->config.staging_bytes);
}

static unsigned char *init_channel(struct verbs *verbs, struct verbs_link *link, int kind,
                                   unsigned char *memory)
{
    struct verbs_channel *channel = &link->channels[kind];
    uint32_t depth = verbs->config.depth;
    channel->slot_bytes = slot_bytes_of(verbs, kind);
    channel->slots = memory;
    channel->grants = channel->slots + depth * channel->slot_bytes;
    channel->grant_sources = channel->grants + (size_t)GRANTS * GRANT_BYTES;
    channel->stage = channel->grant_sources + (size_t)GRANTS * GRANT_BYTES;
    channel->request_count = 4 * depth;
    channel->requests = dp_new_array(struct verbs_request, channel->request_count);
    return memory + channel_bytes(verbs, kind);
}

dp_status dp_verbs_link_init(struct verbs *verbs, struct verbs_link *link, int32_t peer,
                             struct dp_error *err)
{
    link->verbs = verbs;
    link->peer = peer;
    pthread_mutex_init(&link->lock, NULL);
    dp_cond_init(&link->changed);
    size_t bytes = 0;
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        bytes += channel_bytes(verbs, kind);
    }
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return dp_fail_errno(err, errno, "cannot map %zu bytes for the link to rank %d", bytes,
                             peer);
    }
    link->memory = memory;
    link->memory_bytes = bytes;
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        memory = init_channel(verbs, link, kind, memory);
    }
    dp_status status =
        dp_verbs_region_get(&verbs->regions, link->memory, bytes, &link->region, err);
    if (status == DP_OK && link->region->pieces > 1) {
        return dp_fail(err, DP_UNSUPPORTED, "%s registers at most %zu bytes, a link needs %zu",
                       verbs->device.name, verbs->regions.piece_bytes_max, bytes);
    }
    if (status != DP_OK) {
        return dp_fail_in(err, "the link to rank %d", peer);
    }
    const struct verbs_channel *channel = &link->channels[0];
    int entries =
        (int)(VERBS_CHANNELS * (channel->request_count + verbs->config.depth + 2 * SPARE_REQUESTS));
    link->cq = verbs->device.library->create_cq(verbs->device.context, entries, link,
                                                verbs->device.events, 0);
    if (link->cq == NULL || verbs->device.library->req_notify_cq(link->cq, 0) != 0) {
        return dp_fail_errno(err, errno, "cannot make a completion queue of %d entries on %s",
                             entries, verbs->device.name);
    }
    return DP_OK;
}

void dp_verbs_link_deinit(struct verbs_link *link)
{
    struct verbs *verbs = link->verbs;
    if (link->fd >= 0) {
        close(link->fd);
    }
    if (verbs == NULL) {
        return;
    }
    dp_verbs_queues_free(link);
    dp_verbs_windows_drop(link, true);
    dp_verbs_region_put(&verbs->regions, link->region);
    dp_verbs_regions_trim(&verbs->regions);
    if (link->cq != NULL) {
        verbs->device.library->destroy_cq(link->cq);
    }
    if (link->memory != NULL) {
        munmap(link->memory, link->memory_bytes);
    }
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        free(link->channels[kind].requests);
    }
    free(link->message);
    free(link->out);
    pthread_cond_destroy(&link->changed);
    pthread_mutex_destroy(&link->lock);
}

static dp_status to_init(const struct verbs *verbs, struct ibv_qp *qp, struct dp_error *err)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT,
                                     .pkey_index = 0,
                                     .port_num = verbs->device.port,
                                     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int failed = verbs->device.library->modify_qp(
        qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return failed == 0 ? DP_OK : dp_fail_errno(err, failed, "cannot initialise a queue pair");
}

static dp_status new_queue(struct verbs_link *link, verbs_channel_kind kind, struct dp_error *err)
{
    struct verbs *verbs = link->verbs;
    struct verbs_channel *channel = &link->channels[kind];
    struct ibv_qp_init_attr attributes = {
        .send_cq = link->cq,
        .recv_cq = link->cq,
        .cap = {.max_send_wr = channel->request_count + SPARE_REQUESTS,
                .max_recv_wr = verbs->config.depth + SPARE_REQUESTS,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = ENTRY_BYTES},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 0};
    channel->qp = verbs->device.library->create_qp(verbs->device.pd, &attributes);
    if (channel->qp == NULL) {
        attributes.cap.max_inline_data = 0;
        channel->qp = verbs->device.library->create_qp(verbs->device.pd, &attributes);
    }
    if (channel->qp == NULL) {
        return dp_fail_errno(err, errno, "cannot make a queue pair of %u requests on %s",
                             channel->request_count, verbs->device.name);
    }
    channel->inline_bytes = attributes.cap.max_inline_data;
    channel->psn = (uint32_t)dp_rand_below(&verbs->rand, 1u << 24);
    channel->recv_drained = channel->send_drained = false;
    channel->grants_arrived = channel->grants_sent = 0;
    return to_init(verbs, channel->qp, err);
}

dp_status dp_verbs_queues_new(struct verbs_link *link, struct dp_error *err)
{
    dp_status status = dp_verbs_device_probe(&link->verbs->device, err);
    for (int kind = 0; kind < VERBS_CHANNELS && status == DP_OK; kind++) {
        status = new_queue(link, (verbs_channel_kind)kind, err);
    }
    // All that the peer may use up at once, from the first message on.
    for (int kind = 0; kind < VERBS_CHANNELS && status == DP_OK; kind++) {
        for (uint32_t i = 0; i < link->verbs->config.depth + SPARE_REQUESTS / 2; i++) {
            if (!dp_verbs_post_recv(link, (verbs_channel_kind)kind)) {
                return dp_fail(err, DP_UNAVAILABLE, "%s takes no receive requests",
                               link->verbs->device.name);
            }
        }
    }
    return status;
}

static int to_ready_to_receive(const struct verbs_link *link, const struct verbs_channel *channel,
                               uint32_t peer_qpn, uint32_t peer_psn)
{
    const struct verbs_device *device = &link->verbs->device;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTR,
                                     .path_mtu = (enum ibv_mtu)link->mtu,
                                     .dest_qp_num = peer_qpn,
                                     .rq_psn = peer_psn,
                                     .max_dest_rd_atomic = 1,
                                     .min_rnr_timer = 12};
    struct ibv_ah_attr *way = &attributes.ah_attr;
    way->dlid = (uint16_t)link->peer_end.lid;
    way->port_num = device->port;
    bool is_routed = device->gid_index > 0; // InfiniBand across subnets
    if (device->is_ethernet || is_routed) {
        way->is_global = 1;
        memcpy(way->grh.dgid.raw, link->peer_end.gid, sizeof way->grh.dgid.raw);
        way->grh.sgid_index = (uint8_t)device->gid_index;
        way->grh.hop_limit = 255;
    }
    return device->library->modify_qp(channel->qp, &attributes,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                          IBV_QP_MIN_RNR_TIMER);
}

static int to_ready_to_send(const struct verbs_link *link, const struct verbs_channel *channel)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTS,
                                     .timeout = (uint8_t)link->verbs->config.timeout,
                                     .retry_cnt = 7,
                                     .rnr_retry = 7, // for ever: credits see to it that it ends
                                     .sq_psn = channel->psn,
                                     .max_rd_atomic = 1};
    return link->verbs->device.library->modify_qp(channel->qp, &attributes,
                                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                                      IBV_QP_MAX_QP_RD_ATOMIC);
}

dp_status dp_verbs_queues_connect(struct verbs_link *link, struct dp_error *err)
{
    uint32_t own = (uint32_t)link->verbs->device.mtu;
    link->mtu = link->peer_end.mtu < own ? link->peer_end.mtu : own;
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        struct verbs_channel *channel = &link->channels[kind];
        int failed = to_ready_to_receive(link, channel, link->peer_end.channels[kind].qpn,
                                         link->peer_end.channels[kind].psn);
        if (failed == 0) {
            failed = to_ready_to_send(link, channel);
        }
        if (failed != 0) {
            return dp_fail_errno(err, failed, "cannot connect a queue pair to rank %d", link->peer);
        }
        channel->remote_slots = link->peer_end.channels[kind].slots;
        channel->remote_grants = link->peer_end.channels[kind].grants;
        channel->remote_rkey = link->peer_end.channels[kind].rkey;
    }
    return DP_OK;
}

void dp_verbs_queues_stop(struct verbs_link *link)
{
    const struct dp_verbs_library *library = link->verbs->device.library;
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        struct verbs_channel *channel = &link->channels[kind];
        if (channel->qp == NULL) {
            continue;
        }
        struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
        library->modify_qp(channel->qp, &attributes, IBV_QP_STATE);
        // Flushed after all that was posted before.
        struct ibv_send_wr mark = {
            .wr_id = dp_verbs_wr_id(link, (verbs_channel_kind)kind, false, true, 0),
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED};
        struct ibv_send_wr *bad_send;
        channel->send_drained = library->post_send(channel->qp, &mark, &bad_send) != 0;
        struct ibv_recv_wr recv_mark = {
            .wr_id = dp_verbs_wr_id(link, (verbs_channel_kind)kind, true, true, 0)};
        struct ibv_recv_wr *bad_recv;
        channel->recv_drained = library->post_recv(channel->qp, &recv_mark, &bad_recv) != 0;
    }
}

bool dp_verbs_queues_are_drained(const struct verbs_link *link, bool is_late)
{
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        const struct verbs_channel *channel = &link->channels[kind];
        if (channel->qp != NULL && !(channel->send_drained && (channel->recv_drained || is_late))) {
            return false;
        }
    }
    return true;
}

void dp_verbs_queues_free(struct verbs_link *link)
{
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        struct verbs_channel *channel = &link->channels[kind];
        if (channel->qp != NULL) {
            int failed = link->verbs->device.library->destroy_qp(channel->qp);
            DP_CHECK(failed == 0);
            channel->qp = NULL;
        }
    }
}
