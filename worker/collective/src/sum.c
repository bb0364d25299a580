// Sums and other calls in which all members get the same.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

#include "group.h"

// What is added up at a time: bounds the memory for what the peers send, and stays in the cache.
#define BLOCK_BYTES (2u << 20)

int64_t dp_group_share_begin(int64_t count, int32_t members, int32_t i)
{
    return count / members * i + (i < count % members ? i : count % members);
}

static void share_bytes(const struct dp_group *group, int64_t count, size_t element_bytes,
                        size_t *ret_bytes)
{
    for (int32_t i = 0; i < group->count; i++) {
        int64_t elements = dp_group_share_begin(count, group->count, i + 1) -
                           dp_group_share_begin(count, group->count, i);
        ret_bytes[i] = (size_t)elements * element_bytes;
    }
}

// sums[k] = terms[0][k] + terms[1][k] + ..., in this order. `terms` may have sums among them.
static void add_up_f32(const float *const *terms, int32_t count, int64_t elements, float *sums)
{
    for (int64_t k = 0; k < elements; k++) {
        double sum = (double)terms[0][k];
        for (int32_t i = 1; i < count; i++) {
            sum += (double)terms[i][k];
        }
        sums[k] = (float)sum;
    }
}

static void add_up_f64(const double *const *terms, int32_t count, int64_t elements, double *sums)
{
    for (int64_t k = 0; k < elements; k++) {
        double sum = terms[0][k];
        for (int32_t i = 1; i < count; i++) {
            sum += terms[i][k];
        }
        sums[k] = sum;
    }
}

void dp_group_add_up(dp_element element, const void **terms, int32_t count, int64_t elements,
                     void *sums)
{
    if (element == DP_F32) {
        add_up_f32((const float *const *)terms, count, elements, sums);
    } else {
        add_up_f64((const double *const *)terms, count, elements, sums);
    }
}

// dp_group_sum: every member forms the sums of its share of a block.
struct sum_state {
    dp_element element;
    size_t element_bytes;
    size_t *own_bytes;  // [members] what each member has of the share this rank adds up
    size_t *bytes;      // [members] shares of a block
    char *received;     // the peers' values of this rank's share, by member
    const void **terms; // [members]
};

static dp_status sum_block(struct dp_group *group, const struct group_call *call,
                           struct sum_state *state, void *values, int64_t count,
                           struct dp_error *err)
{
    share_bytes(group, count, state->element_bytes, state->bytes);
    size_t share = state->bytes[group->self];
    for (int32_t i = 0; i < group->count; i++) {
        state->own_bytes[i] = share;
    }
    dp_status status = dp_group_send_parts(group, call, values, state->bytes, false, err);
    if (status == DP_OK) {
        status = dp_group_receive_parts(group, call, state->received, state->own_bytes, err);
    }
    if (status != DP_OK) {
        return status;
    }
    int64_t begin = dp_group_share_begin(count, group->count, group->self);
    char *mine = (char *)values + (size_t)begin * state->element_bytes;
    for (int32_t i = 0; i < group->count; i++) {
        state->terms[i] = i == group->self ? mine : state->received + (size_t)i * share;
    }
    dp_group_add_up(state->element, state->terms, group->count,
                    (int64_t)(share / state->element_bytes), mine);
    return dp_group_gather(group, call, values, state->bytes, err);
}

dp_status dp_group_sum(struct dp_group *group, uint64_t tag, dp_element element, void *values,
                       int64_t count, struct dp_error *err)
{
    DP_CHECK(count >= 0);
    struct group_call call = dp_group_next_call(group, GROUP_SUM, tag);
    if (group->count == 1) {
        return DP_OK;
    }
    size_t members = (size_t)group->count;
    struct sum_state state = {.element = element, .element_bytes = dp_element_bytes(element)};
    int64_t block = (int64_t)(BLOCK_BYTES / state.element_bytes);
    block = block < count ? block : count;
    size_t share_max = (size_t)(block / group->count + 1) * state.element_bytes;
    DP_AUTO_FREE size_t *own_bytes = state.own_bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE size_t *bytes = state.bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE char *received = state.received = dp_alloc_aligned(members, share_max);
    DP_AUTO_FREE const void **terms = state.terms = dp_new_array(const void *, members);
    // One round even for nothing at all, so that every call is seen by every peer.
    int64_t at = 0;
    do {
        int64_t part = count - at < block ? count - at : block;
        char *from = (char *)values + (size_t)at * state.element_bytes;
        dp_status status = sum_block(group, &call, &state, from, part, err);
        if (status != DP_OK) {
            return status;
        }
        at += part;
    } while (at < count);
    return DP_OK;
}

// Every member's `length` bytes, by member; the caller frees *ret_all.
static dp_status gather_same(struct dp_group *group, group_kind kind, uint64_t tag,
                             const void *mine, size_t length, char **ret_all, struct dp_error *err)
{
    struct group_call call = dp_group_next_call(group, kind, tag);
    size_t members = (size_t)group->count;
    DP_AUTO_FREE size_t *bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE char *all = dp_alloc_aligned(members, length);
    for (size_t i = 0; i < members; i++) {
        bytes[i] = length;
    }
    if (length > 0) {
        memcpy(all + (size_t)group->self * length, mine, length);
    }
    dp_status status = dp_group_gather(group, &call, all, bytes, err);
    if (status == DP_OK) {
        *ret_all = dp_steal(all);
    }
    return status;
}

dp_status dp_group_sum_scalars(struct dp_group *group, uint64_t tag, double *values, int32_t count,
                               struct dp_error *err)
{
    DP_CHECK(count >= 0);
    DP_AUTO_FREE char *all = NULL;
    dp_status status =
        gather_same(group, GROUP_SCALARS, tag, values, (size_t)count * sizeof values[0], &all, err);
    if (status != DP_OK) {
        return status;
    }
    const double *term = (const double *)(const void *)all;
    for (int32_t k = 0; k < count; k++) {
        double sum = term[k];
        for (int32_t i = 1; i < group->count; i++) {
            sum += term[(size_t)i * (size_t)count + (size_t)k];
        }
        values[k] = sum;
    }
    return DP_OK;
}

dp_status dp_group_broadcast(struct dp_group *group, uint64_t tag, int32_t root, void *bytes,
                             size_t length, struct dp_error *err)
{
    DP_CHECK(root >= 0 && root < group->count);
    struct group_call call = dp_group_next_call(group, GROUP_BROADCAST, tag);
    DP_AUTO_FREE size_t *parts = dp_new_array(size_t, (size_t)group->count);
    parts[root] = length;
    return dp_group_gather(group, &call, bytes, parts, err);
}

dp_status dp_group_barrier(struct dp_group *group, uint64_t tag, struct dp_error *err)
{
    DP_AUTO_FREE char *all = NULL;
    return gather_same(group, GROUP_BARRIER, tag, NULL, 0, &all, err);
}

dp_status dp_group_agree(struct dp_group *group, uint64_t tag, dp_status mine, struct dp_error *err)
{
    DP_AUTO_FREE char *all = NULL;
    uint8_t word = (uint8_t)mine;
    struct dp_error trouble = {0};
    dp_status status = gather_same(group, GROUP_AGREE, tag, &word, 1, &all, &trouble);
    if (mine != DP_OK) {
        return mine;
    }
    if (status != DP_OK) {
        return dp_fail(err, status, "%s", trouble.message);
    }
    for (int32_t i = 0; i < group->count; i++) {
        if (all[i] != 0) {
            return dp_fail(err, DP_UNAVAILABLE, "rank %d failed: %s", group->ranks[i],
                           dp_status_text((dp_status)(unsigned char)all[i]));
        }
    }
    return DP_OK;
}
