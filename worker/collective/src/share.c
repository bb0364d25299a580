// The halves of a sum in which every member has one share of all values: rounds of a piece of each.
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

#include "group.h"

// Bounds the memory for what the peers send, and stays in the cache.
#define ROUND_BYTES (2u << 20)

struct rounds {
    int32_t members, self;
    int64_t count;
    size_t width;
    int64_t piece, at; // elements of each share in a round; where the round starts in it
    size_t *bytes;     // [members] of the round's pieces
    size_t *own_bytes; // [members] as much as the own piece, of every member
    char *packed;      // pieces of all members, one behind the other
};

static int64_t piece_begin(const struct rounds *rounds, int32_t member)
{
    int64_t begin = dp_group_share_begin(rounds->count, rounds->members, member) + rounds->at;
    int64_t end = dp_group_share_begin(rounds->count, rounds->members, member + 1);
    return begin < end ? begin : end;
}

static char *piece_of(const struct rounds *rounds, void *values, int32_t member)
{
    return (char *)values + (size_t)piece_begin(rounds, member) * rounds->width;
}

static void begin_round(struct rounds *rounds)
{
    for (int32_t i = 0; i < rounds->members; i++) {
        int64_t left =
            dp_group_share_begin(rounds->count, rounds->members, i + 1) - piece_begin(rounds, i);
        rounds->bytes[i] = (size_t)(left < rounds->piece ? left : rounds->piece) * rounds->width;
    }
    for (int32_t i = 0; i < rounds->members; i++) {
        rounds->own_bytes[i] = rounds->bytes[rounds->self];
    }
}

// Pieces between the places of their shares and `packed`.
static void pack(const struct rounds *rounds, void *values, bool out)
{
    char *packed = rounds->packed;
    for (int32_t i = 0; i < rounds->members; i++) {
        char *piece = piece_of(rounds, values, i);
        if (rounds->bytes[i] > 0) {
            memcpy(out ? packed : piece, out ? piece : packed, rounds->bytes[i]);
        }
        packed += rounds->bytes[i];
    }
}

// Needs at least one round, also for nothing at all, so that every call is seen by every peer.
static bool next_round(struct rounds *rounds)
{
    rounds->at += rounds->piece;
    return rounds->at < dp_group_share_begin(rounds->count, rounds->members, 1);
}

static struct rounds make_rounds(const struct dp_group *group, int64_t count, size_t width)
{
    int64_t longest = dp_group_share_begin(count, group->count, 1);
    int64_t most = (int64_t)(ROUND_BYTES / (size_t)group->count / width);
    most = most > 0 ? most : 1;
    int64_t piece = longest < most ? longest : most;
    return (struct rounds){.members = group->count,
                           .self = group->self,
                           .count = count,
                           .width = width,
                           .piece = piece > 0 ? piece : 1};
}

static dp_status reduce_round(struct dp_group *group, const struct group_call *call,
                              struct rounds *rounds, dp_element element, void *values,
                              char *received, const void **terms, struct dp_error *err)
{
    begin_round(rounds);
    pack(rounds, values, true);
    dp_status status = dp_group_send_parts(group, call, rounds->packed, rounds->bytes, false, err);
    if (status == DP_OK) {
        status = dp_group_receive_parts(group, call, received, rounds->own_bytes, err);
    }
    if (status != DP_OK) {
        return status;
    }
    size_t mine = rounds->bytes[rounds->self];
    char *sums = piece_of(rounds, values, rounds->self);
    for (int32_t i = 0; i < rounds->members; i++) {
        terms[i] = i == rounds->self ? sums : received + (size_t)i * mine;
    }
    dp_group_add_up(element, terms, rounds->members, (int64_t)(mine / rounds->width), sums);
    return DP_OK;
}

dp_status dp_group_reduce_scatter(struct dp_group *group, uint64_t tag, dp_element element,
                                  void *values, int64_t count, struct dp_error *err)
{
    DP_CHECK(count >= 0);
    struct group_call call = dp_group_next_call(group, GROUP_REDUCE_SCATTER, tag);
    if (group->count == 1) {
        return DP_OK;
    }
    struct rounds rounds = make_rounds(group, count, dp_element_bytes(element));
    size_t members = (size_t)group->count, piece = (size_t)rounds.piece * rounds.width;
    DP_AUTO_FREE size_t *bytes = rounds.bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE size_t *own_bytes = rounds.own_bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE char *packed = rounds.packed = dp_alloc_aligned(members, piece);
    DP_AUTO_FREE char *received = dp_alloc_aligned(members, piece);
    DP_AUTO_FREE const void **terms = dp_new_array(const void *, members);
    dp_status status;
    do {
        status = reduce_round(group, &call, &rounds, element, values, received, terms, err);
    } while (status == DP_OK && next_round(&rounds));
    return status;
}

dp_status dp_group_all_gather(struct dp_group *group, uint64_t tag, size_t width, void *values,
                              int64_t count, struct dp_error *err)
{
    DP_CHECK(count >= 0 && width > 0);
    struct group_call call = dp_group_next_call(group, GROUP_ALL_GATHER, tag);
    if (group->count == 1) {
        return DP_OK;
    }
    struct rounds rounds = make_rounds(group, count, width);
    size_t members = (size_t)group->count, piece = (size_t)rounds.piece * rounds.width;
    DP_AUTO_FREE size_t *bytes = rounds.bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE size_t *own_bytes = rounds.own_bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE char *packed = rounds.packed = dp_alloc_aligned(members, piece);
    dp_status status;
    do {
        begin_round(&rounds);
        pack(&rounds, values, true);
        status = dp_group_gather(group, &call, packed, bytes, err);
        if (status == DP_OK) {
            pack(&rounds, values, false);
        }
    } while (status == DP_OK && next_round(&rounds));
    return status;
}
