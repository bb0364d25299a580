#include "dp/collective.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

#include "group.h"

// What goes before the bytes of every message, so that both ends know to be in the same call.
struct call_header {
    uint32_t kind, zero;
    uint64_t tag;
    uint64_t bytes;
};

static const char *const kind_texts[] = {
    [GROUP_EXCHANGE] = "all-to-all", [GROUP_SUM] = "sum",         [GROUP_SCALARS] = "scalar sum",
    [GROUP_BROADCAST] = "broadcast", [GROUP_BARRIER] = "barrier", [GROUP_AGREE] = "agreement",
    [GROUP_REDUCE_SCATTER] = "reduce-scatter", [GROUP_ALL_GATHER] = "all-gather",
};

static const char *kind_text(uint32_t kind)
{
    return kind < DP_ARRAY_LENGTH(kind_texts) ? kind_texts[kind] : "unknown call";
}

dp_status dp_group_init(struct dp_group *group, struct dp_transport *transport, uint32_t id,
                        const int32_t *ranks, int32_t count, struct dp_error *err)
{
    DP_CHECK(id < 1u << 24 && count > 0);
    int32_t self = -1;
    for (int32_t i = 0; i < count; i++) {
        bool is_ordered = i == 0 || ranks[i] > ranks[i - 1];
        if (!is_ordered || ranks[i] < 0 || ranks[i] >= dp_transport_world(transport)) {
            return dp_fail(err, DP_INVALID,
                           "group %u: member %d is rank %d; members are distinct ranks below %d "
                           "in ascending order",
                           id, i, ranks[i], dp_transport_world(transport));
        }
        self = ranks[i] == dp_transport_rank(transport) ? i : self;
    }
    if (self < 0) {
        return dp_fail(err, DP_INVALID, "group %u: rank %d is not a member", id,
                       dp_transport_rank(transport));
    }
    *group = (struct dp_group){
        .transport = transport,
        .id = id,
        .count = count,
        .self = self,
        .ranks = dp_memdup(ranks, (size_t)count * sizeof ranks[0]),
    };
    return DP_OK;
}

void dp_group_deinit(struct dp_group *group)
{
    free(group->ranks);
    *group = (struct dp_group){0};
}

static uint64_t message_tag(const struct dp_group *group, const struct group_call *call)
{
    return 1ull << 63 | (uint64_t)group->id << 32 | call->number;
}

static dp_status send_part(struct dp_group *group, const struct group_call *call, int32_t peer,
                           const void *bytes, size_t length, struct dp_error *err)
{
    struct call_header header = {
        .kind = htole32(call->kind), .tag = htole64(call->tag), .bytes = htole64(length)};
    struct iovec parts[2] = {
        {.iov_base = &header, .iov_len = sizeof header},
        {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length},
    };
    return dp_transport_sendv(group->transport, group->ranks[peer], message_tag(group, call), parts,
                              2, err);
}

static dp_status check_header(const struct dp_group *group, const struct group_call *call,
                              int32_t peer, const struct call_header *header, size_t length,
                              struct dp_error *err)
{
    uint32_t kind = le32toh(header->kind);
    uint64_t tag = le64toh(header->tag), bytes = le64toh(header->bytes);
    char mine[DP_TRANSPORT_TAG_TEXT_MAX], theirs[DP_TRANSPORT_TAG_TEXT_MAX];
    if (kind != call->kind || tag != call->tag) {
        return dp_fail(err, DP_INTERNAL,
                       "group %u call %u: rank %d is in %s (%s), rank %d in %s (%s): the order of "
                       "calls differs",
                       group->id, call->number, group->ranks[group->self], kind_text(call->kind),
                       dp_transport_tag_text(mine, call->tag), group->ranks[peer], kind_text(kind),
                       dp_transport_tag_text(theirs, tag));
    }
    if (bytes != length) {
        return dp_fail(err, DP_INTERNAL,
                       "group %u call %u, %s (%s): rank %d sent %llu bytes where rank %d expects "
                       "%zu",
                       group->id, call->number, kind_text(kind),
                       dp_transport_tag_text(mine, call->tag), group->ranks[peer],
                       (unsigned long long)bytes, group->ranks[group->self], length);
    }
    return DP_OK;
}

static dp_status receive_part(struct dp_group *group, const struct group_call *call, int32_t peer,
                              void *bytes, size_t length, struct dp_error *err)
{
    struct call_header header = {0};
    int32_t rank = group->ranks[peer];
    uint64_t tag = message_tag(group, call);
    size_t whole;
    dp_status status =
        dp_transport_peek(group->transport, rank, tag, &header, sizeof header, 0, &whole, err);
    if (status == DP_OK) {
        status = check_header(group, call, peer, &header, length, err);
    }
    if (status != DP_OK) {
        return status;
    }
    struct iovec parts[2] = {
        {.iov_base = &header, .iov_len = sizeof header},
        {.iov_base = bytes, .iov_len = length},
    };
    return dp_transport_recvv(group->transport, rank, tag, parts, 2, 0, err);
}

struct group_call dp_group_next_call(struct dp_group *group, group_kind kind, uint64_t tag)
{
    return (struct group_call){.kind = kind, .tag = tag, .number = group->calls++};
}

dp_status dp_group_send_parts(struct dp_group *group, const struct group_call *call,
                              const void *send, const size_t *bytes, bool is_same,
                              struct dp_error *err)
{
    const char *const first = send;
    // Everyone starts with its next neighbour, so that not all send to the same one.
    for (int32_t step = 1; step < group->count; step++) {
        int32_t peer = (group->self + step) % group->count;
        size_t offset = 0;
        for (int32_t i = 0; i < peer && !is_same; i++) {
            offset += bytes[i];
        }
        size_t length = is_same ? bytes[group->self] : bytes[peer];
        const char *from = length > 0 ? first + offset : NULL;
        dp_status status = send_part(group, call, peer, from, length, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}

dp_status dp_group_receive_parts(struct dp_group *group, const struct group_call *call, void *recv,
                                 const size_t *bytes, struct dp_error *err)
{
    char *at = recv;
    for (int32_t peer = 0; peer < group->count; peer++) {
        dp_status status = DP_OK;
        if (peer != group->self) {
            status = receive_part(group, call, peer, bytes[peer] > 0 ? at : NULL, bytes[peer], err);
        }
        if (status != DP_OK) {
            return status;
        }
        at = bytes[peer] > 0 ? at + bytes[peer] : at;
    }
    return DP_OK;
}

dp_status dp_group_gather(struct dp_group *group, const struct group_call *call, void *all,
                          const size_t *bytes, struct dp_error *err)
{
    size_t offset = 0;
    for (int32_t i = 0; i < group->self; i++) {
        offset += bytes[i];
    }
    const char *mine = bytes[group->self] > 0 ? (const char *)all + offset : NULL;
    dp_status status = dp_group_send_parts(group, call, mine, bytes, true, err);
    return status == DP_OK ? dp_group_receive_parts(group, call, all, bytes, err) : status;
}

static dp_status check_exchange(const struct dp_group *group, const struct dp_group_parts *parts,
                                struct dp_error *err)
{
    if (parts->peers != group->count || parts->self != group->self ||
        parts->send_bytes[group->self] != parts->recv_bytes[group->self]) {
        return dp_fail(err, DP_INTERNAL,
                       "group %u: an exchange of peer %d of %d with %zu bytes to and %zu from "
                       "itself, in a group where this rank is %d of %d",
                       group->id, parts->self, parts->peers,
                       parts->send_bytes[parts->self], parts->recv_bytes[parts->self],
                       group->self, group->count);
    }
    return DP_OK;
}

static void copy_own_part(const struct dp_group_parts *parts)
{
    size_t from = 0, to = 0, length = parts->send_bytes[parts->self];
    for (int32_t i = 0; i < parts->self; i++) {
        from += parts->send_bytes[i];
        to += parts->recv_bytes[i];
    }
    if (length > 0) {
        memcpy((char *)parts->recv + to, (const char *)parts->send + from, length);
    }
}

dp_status dp_group_exchange_begin(struct dp_group *group, uint64_t tag,
                                  const struct dp_group_parts *parts,
                                  struct dp_group_pending *ret_pending, struct dp_error *err)
{
    dp_status status = check_exchange(group, parts, err);
    if (status != DP_OK) {
        return status;
    }
    struct group_call call = dp_group_next_call(group, GROUP_EXCHANGE, tag);
    copy_own_part(parts);
    status = dp_group_send_parts(group, &call, parts->send, parts->send_bytes, false, err);
    if (status == DP_OK) {
        *ret_pending = (struct dp_group_pending){.tag = tag, .call = call.number};
    }
    return status;
}

dp_status dp_group_exchange_end(struct dp_group *group, const struct dp_group_pending *pending,
                                const struct dp_group_parts *parts, struct dp_error *err)
{
    struct group_call call = {.kind = GROUP_EXCHANGE, .tag = pending->tag, .number = pending->call};
    return dp_group_receive_parts(group, &call, parts->recv, parts->recv_bytes, err);
}

bool dp_group_exchange_ready(struct dp_group *group, const struct dp_group_pending *pending)
{
    struct group_call call = {.kind = GROUP_EXCHANGE, .tag = pending->tag, .number = pending->call};
    for (int32_t i = 0; i < group->count; i++) {
        if (i != group->self && !dp_transport_probe(group->transport, group->ranks[i],
                                                    message_tag(group, &call), NULL)) {
            return false;
        }
    }
    return true;
}

dp_status dp_group_exchange(struct dp_group *group, uint64_t tag,
                            const struct dp_group_parts *parts, struct dp_error *err)
{
    struct dp_group_pending pending;
    dp_status status = dp_group_exchange_begin(group, tag, parts, &pending, err);
    return status == DP_OK ? dp_group_exchange_end(group, &pending, parts, err) : status;
}
