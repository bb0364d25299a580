// Experts move between ranks, with their weights and moments, when their loads say so.
//
// Whoever holds a stage knows its loads and computes the same placement. What has to go where then
// follows from the placements before and after and from who keeps which moments, so nobody asks
// anybody: each rank sends the pieces it has and takes those it needs.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/experts.h"
#include "optim_internal.h"

enum { CALL_MOVE = 10, CALL_MOVED };

// A move must make the fullest rank's load smaller by so much.
#define WORTH 0.97

// One layer's change, as every rank that holds the stage sees it.
struct change {
    struct dp_optim *optim;
    struct held_stage *held;
    const struct segment *segment; // of the stage's experts
    int32_t layer;
    int32_t share; // slots of a rank
    const int32_t *before, *after;
    int64_t elements; // of a slot
};

// A run of values that one member of the stage's group sends to another.
struct piece {
    int32_t from, to;       // members
    int64_t from_at, to_at; // elements of their stages
    int64_t count;
    enum { WEIGHTS, FIRST, SECOND } what; // moments
};

typedef void take_piece(void *context, const struct piece *piece);

static int32_t replica_of(const struct change *change, int32_t member)
{
    return change->held->shared.ranks[member] / change->optim->pipeline;
}

static int32_t ep_rank_of(const struct change *change, int32_t member)
{
    return replica_of(change, member) % change->optim->expert;
}

// The member that holds the same stage for the same EP group as `member`, at `ep_rank`.
static int32_t peer_of(const struct change *change, int32_t member, int32_t ep_rank)
{
    const struct dp_group *group = &change->held->shared;
    const int32_t expert = change->optim->expert, pipeline = change->optim->pipeline;
    const int32_t replica = replica_of(change, member) / expert * expert + ep_rank;
    const int32_t rank = replica * pipeline + group->ranks[member] % pipeline;
    int32_t peer = 0;
    while (group->ranks[peer] != rank) {
        peer++;
    }
    return peer;
}

// What of its experts' segment a member keeps moments for.
static void kept_by(const struct change *change, int32_t member, int64_t *ret_begin,
                    int64_t *ret_end)
{
    const struct segment *segment = change->segment;
    *ret_begin = segment->begin;
    *ret_end = segment->begin + segment->count;
    if (!change->optim->is_sharded) {
        return;
    }
    int32_t self = 0, count = 0;
    for (int32_t i = 0; i < change->held->shared.count; i++) {
        const bool is_alike = ep_rank_of(change, i) == ep_rank_of(change, member);
        self += is_alike && i < member;
        count += is_alike;
    }
    *ret_begin = segment->begin + dp_group_share_begin(segment->count, count, self);
    *ret_end = segment->begin + dp_group_share_begin(segment->count, count, self + 1);
}

static int64_t slot_at(const struct change *change, int32_t slot)
{
    return dp_stage_slot_offset(change->held->stage, change->layer, slot % change->share);
}

static void give_both(struct piece piece, take_piece *take, void *context)
{
    piece.what = FIRST;
    take(context, &piece);
    piece.what = SECOND;
    take(context, &piece);
}

// The moments that `to` keeps of a slot, from whoever keeps them of the slot that it was in.
static void list_moments(const struct change *change, int32_t from_slot, int32_t to_slot,
                         int32_t to, take_piece *take, void *context)
{
    const int64_t from_at = slot_at(change, from_slot), to_at = slot_at(change, to_slot);
    int64_t wanted_begin, wanted_end;
    kept_by(change, to, &wanted_begin, &wanted_end);
    for (int32_t from = 0; from < change->held->shared.count; from++) {
        if (ep_rank_of(change, from) != from_slot / change->share) {
            continue;
        }
        int64_t begin, end;
        kept_by(change, from, &begin, &end);
        // All in elements of the slot.
        begin = begin - from_at > wanted_begin - to_at ? begin - from_at : wanted_begin - to_at;
        end = end - from_at < wanted_end - to_at ? end - from_at : wanted_end - to_at;
        begin = begin > 0 ? begin : 0;
        end = end < change->elements ? end : change->elements;
        if (begin < end) {
            give_both((struct piece){from, to, from_at + begin, to_at + begin, end - begin, FIRST},
                      take, context);
        }
    }
}

// The lowest slot that held the expert, one of the same rank before all others.
static int32_t source_of(const struct change *change, int32_t slot)
{
    const int32_t expert = change->after[slot], first = slot / change->share * change->share;
    for (int32_t s = first; s < first + change->share; s++) {
        if (change->before[s] == expert) {
            return s;
        }
    }
    int32_t source = 0;
    while (change->before[source] != expert) {
        source++;
    }
    return source;
}

// Every piece of the layer's change, in the same order on all ranks.
static void list_pieces(const struct change *change, take_piece *take, void *context)
{
    const int32_t slots = dp_stage_slots(change->held->stage);
    for (int32_t slot = 0; slot < slots; slot++) {
        if (change->before[slot] == change->after[slot]) {
            continue;
        }
        const int32_t source = source_of(change, slot);
        for (int32_t to = 0; to < change->held->shared.count; to++) {
            if (ep_rank_of(change, to) != slot / change->share) {
                continue;
            }
            struct piece piece = {.from = peer_of(change, to, source / change->share),
                                  .to = to,
                                  .from_at = slot_at(change, source),
                                  .to_at = slot_at(change, slot),
                                  .count = change->elements,
                                  .what = WEIGHTS};
            take(context, &piece);
            if (change->optim->is_sharded) {
                list_moments(change, source, slot, to, take, context);
            } else {
                give_both(piece, take, context);
            }
        }
    }
}

// What a rank sends and receives in one layer's change.
struct moves {
    const struct change *change;
    size_t *send_bytes, *recv_bytes; // [members]
    char **next;                     // [members] where the next piece is written or read
    bool is_sending;
};

static size_t width_of(const struct change *change, const struct piece *piece)
{
    return piece->what == WEIGHTS ? dp_device_real_bytes(change->held->device)
                                  : dp_optim_moment_width(change->optim, change->held);
}

static char *memory_at(const struct change *change, const struct piece *piece, int64_t at)
{
    const struct segment *segment = change->segment;
    const size_t width = width_of(change, piece);
    if (piece->what == WEIGHTS) {
        return (char *)dp_stage_weights(change->held->stage) + (size_t)at * width;
    }
    return (char *)(piece->what == FIRST ? segment->m : segment->v) +
           (size_t)(at - segment->kept_begin) * width;
}

static void count_piece(void *context, const struct piece *piece)
{
    struct moves *moves = context;
    const int32_t self = moves->change->held->shared.self;
    const size_t bytes = (size_t)piece->count * width_of(moves->change, piece);
    moves->send_bytes[piece->to] += piece->from == self ? bytes : 0;
    moves->recv_bytes[piece->from] += piece->to == self ? bytes : 0;
}

static void copy_piece(void *context, const struct piece *piece)
{
    struct moves *moves = context;
    const struct change *change = moves->change;
    const int32_t self = change->held->shared.self;
    const size_t bytes = (size_t)piece->count * width_of(change, piece);
    if (moves->is_sending && piece->from == self) {
        memcpy(moves->next[piece->to], memory_at(change, piece, piece->from_at), bytes);
        moves->next[piece->to] += bytes;
    } else if (!moves->is_sending && piece->to == self) {
        memcpy(memory_at(change, piece, piece->to_at), moves->next[piece->from], bytes);
        moves->next[piece->from] += bytes;
    }
}

// next[i] becomes where member i's part begins; returns the sum of all parts.
static size_t part(char **next, char *base, const size_t *bytes, int32_t count)
{
    size_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        next[i] = base == NULL ? NULL : base + sum;
        sum += bytes[i];
    }
    return sum;
}

static dp_status exchange(const struct change *change, int64_t *bytes, struct dp_error *err)
{
    struct dp_group *group = &change->held->shared;
    const size_t members = (size_t)group->count;
    DP_AUTO_FREE size_t *send_bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE size_t *recv_bytes = dp_new_array(size_t, members);
    DP_AUTO_FREE char **next = dp_new_array(char *, members);
    struct moves moves = {.change = change,
                          .send_bytes = send_bytes,
                          .recv_bytes = recv_bytes,
                          .next = next,
                          .is_sending = true};
    list_pieces(change, count_piece, &moves);
    const size_t sent = part(next, NULL, send_bytes, group->count);
    DP_AUTO_FREE char *send = dp_new_array(char, sent);
    DP_AUTO_FREE char *recv = dp_new_array(char, part(next, NULL, recv_bytes, group->count));
    part(next, send, send_bytes, group->count);
    list_pieces(change, copy_piece, &moves);
    const struct dp_group_parts parts = {.peers = group->count,
                                         .self = group->self,
                                         .send = send,
                                         .send_bytes = send_bytes,
                                         .recv = recv,
                                         .recv_bytes = recv_bytes};
    const uint64_t tag =
        dp_transport_tag(0, (uint32_t)change->held->index, 0, (uint32_t)change->layer, CALL_MOVE);
    dp_status status = dp_group_exchange(group, tag, &parts, err);
    if (status == DP_OK) {
        moves.is_sending = false;
        part(next, recv, recv_bytes, group->count);
        list_pieces(change, copy_piece, &moves);
        *bytes += (int64_t)(sent - send_bytes[group->self]);
    }
    return status;
}

static const struct segment *experts_segment(const struct dp_optim *optim,
                                             const struct held_stage *held)
{
    for (int32_t i = 0; i < optim->segment_count; i++) {
        if (optim->segments[i].held == held && optim->segments[i].group == &held->experts) {
            return &optim->segments[i];
        }
    }
    return NULL;
}

struct held_stage *dp_optim_holder_of(struct dp_optim *optim, int32_t layer)
{
    int32_t i = 0;
    while (dp_stage_placement(optim->in_order[i]->stage, layer) == NULL) {
        i++;
    }
    return optim->in_order[i];
}

// Sums that ranks share afterwards; all but `bytes` of the ranks that stand for a layer.
struct tally {
    double before, after, mean, layers, moved_layers, moved, bytes;
};
#define TALLY_COUNT (sizeof(struct tally) / sizeof(double))

static dp_status rebalance_layer(struct dp_optim *optim, const struct dp_rebalance *how,
                                 const struct dp_expert_load *load, const double *since,
                                 struct tally *tally, struct dp_error *err)
{
    struct held_stage *held = dp_optim_holder_of(optim, load->layer);
    const int32_t groups = dp_stage_config(held->stage)->model.expert_groups;
    const struct dp_experts_shape shape = {.experts = load->experts,
                                           .slots = load->slots,
                                           .groups = groups > 0 ? groups : 1,
                                           .nodes = how->nodes > 0 ? how->nodes : 1,
                                           .ranks = load->group_ranks};
    dp_status status = dp_experts_shape_check(&shape, err);
    if (status != DP_OK) {
        return status;
    }
    const size_t slots = (size_t)load->slots;
    DP_AUTO_FREE int32_t *after = dp_new_array(int32_t, slots);
    DP_AUTO_FREE int32_t *before =
        dp_memdup(dp_stage_placement(held->stage, load->layer), slots * sizeof *before);
    const bool is_better = dp_experts_propose(&shape, since, before, WORTH, after);
    if (load->reports) {
        const double now = dp_experts_fullest(&shape, since, before);
        tally->layers += 1;
        tally->before += now;
        tally->after += dp_experts_fullest(&shape, since, after);
        tally->mean += now / dp_experts_skew(&shape, since, before);
        tally->moved_layers += is_better;
        tally->moved += dp_experts_moved(&shape, before, after);
    }
    if (!is_better || !how->apply) {
        return DP_OK;
    }
    const struct change change = {.optim = optim,
                                  .held = held,
                                  .segment = experts_segment(optim, held),
                                  .layer = load->layer,
                                  .share = load->slots / load->group_ranks,
                                  .before = before,
                                  .after = after,
                                  .elements = dp_stage_slot_elements(held->stage)};
    DP_CHECK(change.segment != NULL);
    int64_t bytes = 0;
    status = exchange(&change, &bytes, err);
    if (status != DP_OK) {
        dp_fail_in(err, "experts of layer %d on their way", load->layer);
        return status;
    }
    tally->bytes += (double)bytes;
    dp_stage_set_placement(held->stage, load->layer, after);
    return DP_OK;
}

static dp_status rebalance_all(struct dp_optim *optim, const struct dp_rebalance *how,
                               struct tally *tally, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < optim->load_count && status == DP_OK; i++) {
        const struct dp_expert_load *load = &optim->loads[i];
        if (load->group_ranks > 1) {
            double *since = optim->since + (size_t)i * (size_t)load->experts;
            status = rebalance_layer(optim, how, load, since, tally, err);
            memset(since, 0, (size_t)load->experts * sizeof *since);
        }
    }
    return status == DP_OK && how->apply ? dp_optim_refresh(optim, err) : status;
}

dp_status dp_optim_rebalance(struct dp_optim *optim, const struct dp_rebalance *how,
                             struct dp_rebalance_report *ret_report, struct dp_error *err)
{
    struct tally tally = {0};
    double values[TALLY_COUNT];
    dp_status status = rebalance_all(optim, how, &tally, err);
    memcpy(values, &tally, sizeof values);
    if (status == DP_OK) {
        status = dp_group_sum_scalars(&optim->world, dp_transport_tag(0, 0, 0, 0, CALL_MOVED),
                                      values, TALLY_COUNT, err);
    }
    if (status != DP_OK) {
        dp_fail_in(err, "placement of experts");
        return status;
    }
    memcpy(&tally, values, sizeof values);
    *ret_report =
        (struct dp_rebalance_report){.applied = how->apply,
                                     .layers = (int32_t)tally.layers,
                                     .moved_layers = (int32_t)tally.moved_layers,
                                     .moved = llround(tally.moved),
                                     .bytes = llround(tally.bytes),
                                     .skew_before = tally.mean > 0 ? tally.before / tally.mean : 1,
                                     .skew_after = tally.mean > 0 ? tally.after / tally.mean : 1};
    return DP_OK;
}
