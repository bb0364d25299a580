// What goes where: told by every member to all others at the start of a DISPATCH. Counts travel as
// -count - 1, so that a count of zero differs from one that was never written.
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static int64_t place_of(const struct dp_alltoall *alltoall, const struct lane *lane, int32_t source)
{
    int64_t words = dp_alltoall_count_words(&alltoall->topology);
    return lane->areas->counts.offset + source * words * (int64_t)sizeof(int32_t);
}

static void fill_own(const struct dp_alltoall *alltoall, struct dp_routing *routing)
{
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    memcpy(routing->counts.to_rank + (int64_t)alltoall->self * topology->ranks,
           routing->layout.rank_tokens, (size_t)topology->ranks * sizeof(int32_t));
    memcpy(routing->counts.to_node + (int64_t)alltoall->self * topology->nodes,
           routing->layout.node_tokens, (size_t)topology->nodes * sizeof(int32_t));
    routing->counts.tokens[alltoall->self] = (int32_t)routing->tokens;
}

dp_status dp_counts_tell(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                         struct dp_error *err)
{
    struct dp_routing *routing = round->routing;
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    int32_t words = dp_alltoall_count_words(topology);
    fill_own(alltoall, routing);
    if (round->told == topology->ranks) {
        return DP_OK;
    }
    DP_AUTO_FREE int32_t *told = dp_new_array(int32_t, (size_t)words);
    int32_t *at = told;
    for (int32_t r = 0; r < topology->ranks; r++) {
        *at++ = -routing->layout.rank_tokens[r] - 1;
    }
    for (int32_t n = 0; n < topology->nodes; n++) {
        *at++ = -routing->layout.node_tokens[n] - 1;
    }
    *at++ = -(int32_t)routing->tokens - 1;
    memcpy(at, &routing->tag, sizeof routing->tag);
    dp_status status = DP_OK;
    while (round->told < topology->ranks && status == DP_OK) {
        int32_t peer = (alltoall->self + round->told) % topology->ranks;
        if (!dp_link_may_put(alltoall, round, peer)) {
            break;
        }
        status = dp_link_put(alltoall, round, peer, place_of(alltoall, round->lane, alltoall->self),
                             told, words * (int64_t)sizeof(int32_t), NOTE_COUNTS, 0, 0, err);
        round->told++;
        *progress = true;
    }
    return status;
}

static bool is_count(int32_t encoded, int64_t most)
{
    return encoded < 0 && -(int64_t)encoded - 1 <= most;
}

static dp_status take_of(struct dp_alltoall *alltoall, struct round *round, int32_t source,
                         struct dp_error *err)
{
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    struct dp_alltoall_counts *counts = &round->routing->counts;
    int32_t words = dp_alltoall_count_words(topology);
    uint8_t *place = alltoall->memory + place_of(alltoall, round->lane, source);
    // What is checked is what is used, even if the peer goes on writing.
    DP_AUTO_FREE int32_t *told = dp_memdup(place, (size_t)words * sizeof told[0]);
    const int32_t *nodes = told + topology->ranks;
    int64_t tokens = -(int64_t)told[words - 3] - 1;
    bool is_good = is_count(told[words - 3], alltoall->tokens_max);
    for (int32_t i = 0; i < words - 3 && is_good; i++) {
        is_good = is_count(told[i], tokens);
    }
    uint64_t tag;
    memcpy(&tag, told + words - 2, sizeof tag);
    char mine[DP_TRANSPORT_TAG_TEXT_MAX], theirs[DP_TRANSPORT_TAG_TEXT_MAX];
    if (!is_good) {
        return dp_fail(err, DP_INTERNAL,
                       "all-to-all: rank %d's counts for dispatch (%s) make no sense; a rank has "
                       "at most %lld tokens",
                       alltoall->links[source].rank,
                       dp_transport_tag_text(mine, round->routing->tag),
                       (long long)alltoall->tokens_max);
    }
    if (tag != round->routing->tag) {
        return dp_fail(err, DP_INTERNAL,
                       "all-to-all: rank %d dispatches (%s) where rank %d dispatches (%s): the "
                       "order of moves differs",
                       alltoall->links[source].rank, dp_transport_tag_text(theirs, tag),
                       alltoall->links[alltoall->self].rank,
                       dp_transport_tag_text(mine, round->routing->tag));
    }
    for (int32_t r = 0; r < topology->ranks; r++) {
        counts->to_rank[source * topology->ranks + r] = -told[r] - 1;
    }
    for (int32_t n = 0; n < topology->nodes; n++) {
        counts->to_node[source * topology->nodes + n] = -nodes[n] - 1;
    }
    counts->tokens[source] = (int32_t)tokens;
    memset(place, 0, (size_t)words * sizeof told[0]);
    return DP_OK;
}

dp_status dp_counts_take(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                         struct dp_error *err)
{
    for (int32_t i = 0; i < alltoall->topology.ranks; i++) {
        if (i != alltoall->self && !round->lane->peers[i].has_counts) {
            return DP_OK;
        }
    }
    dp_status status = DP_OK;
    for (int32_t i = 0; i < alltoall->topology.ranks && status == DP_OK; i++) {
        if (i != alltoall->self) {
            round->lane->peers[i].has_counts = false;
            status = take_of(alltoall, round, i, err);
        }
    }
    round->is_counted = status == DP_OK;
    round->routing->is_counted = round->is_counted;
    *progress = true;
    return status;
}
