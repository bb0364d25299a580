// What all collectives are made of.
#pragma once

#include "dp/collective.h"

typedef enum group_kind {
    GROUP_EXCHANGE,
    GROUP_SUM,
    GROUP_SCALARS,
    GROUP_BROADCAST,
    GROUP_BARRIER,
    GROUP_AGREE,
    GROUP_REDUCE_SCATTER,
    GROUP_ALL_GATHER,
} group_kind;

struct group_call {
    uint32_t kind;
    uint64_t tag;
    uint32_t number;
};

struct group_call dp_group_next_call(struct dp_group *group, group_kind kind, uint64_t tag);

// To each peer its part of `send` (parts lie one behind the other), or, when is_same, the part
// bytes[self] that `send` points to.
dp_status dp_group_send_parts(struct dp_group *group, const struct group_call *call,
                              const void *send, const size_t *bytes, bool is_same,
                              struct dp_error *err);
// From each peer its part of `recv`; the own part is left alone.
dp_status dp_group_receive_parts(struct dp_group *group, const struct group_call *call, void *recv,
                                 const size_t *bytes, struct dp_error *err);
// Every member's part of `all` becomes known to all; the own part is already there.
dp_status dp_group_gather(struct dp_group *group, const struct group_call *call, void *all,
                          const size_t *bytes, struct dp_error *err);

// sums[k] = terms[0][k] + terms[1][k] + ... of `count` members, in this order; f32 in double,
// rounded once. `terms` may have sums among them.
void dp_group_add_up(dp_element element, const void **terms, int32_t count, int64_t elements,
                     void *sums);
