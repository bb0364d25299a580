// What a layout's step takes: every block simulated, the slowest one counts.
//
// Gradient sums and the update come after the last action of all replicas; with the same times for
// them on every replica the latest end of each position, taken over the replicas first or last, is
// the same, so that a step is the longest of the blocks' own.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "internal.h"

static int32_t rank_of(const struct adapt *adapt, int32_t replica, int32_t position, int32_t shard)
{
    return (replica * adapt->pipeline + position) * adapt->shards + shard;
}

static double slowness(const struct adapt *adapt, const struct layout *layout, int32_t rank)
{
    if (adapt->ignores_slowness) {
        return 1;
    }
    const double *load = layout->moves_experts ? adapt->load_after : adapt->load_now;
    return adapt->places[layout->place[rank]].slow * (load != NULL ? load[rank] : 1);
}

// Ranks of the block's replicas wait for each other in every action.
static double slowest(const struct adapt *adapt, const struct layout *layout, int32_t block,
                      int32_t position)
{
    double most = 0;
    for (int32_t d = block * adapt->coupled; d < (block + 1) * adapt->coupled; d++) {
        for (int32_t i = 0; i < adapt->shards; i++) {
            most = fmax(most, slowness(adapt, layout, rank_of(adapt, d, position, i)));
        }
    }
    return most;
}

static double stage_seconds(const struct adapt *adapt, const struct layout *layout, int32_t stage,
                            int kind)
{
    const struct dp_adapt_costs *costs = adapt->input->costs;
    double seconds = costs->action[kind] + adapt->prefix[layout->layer_begin[stage + 1]][kind] -
                     adapt->prefix[layout->layer_begin[stage]][kind];
    seconds += stage == 0 ? costs->first[kind] : 0;
    return fmax(0, seconds + (stage == adapt->stages - 1 ? costs->last[kind] : 0));
}

static bool is_end(const struct adapt *adapt, int32_t end, const struct place *place,
                   const struct place *other)
{
    return end < 0 ? place->node != other->node : place == &adapt->places[adapt->base.place[end]];
}

static struct dp_sim_hop hop_between(const struct adapt *adapt, int32_t from, int32_t to)
{
    const struct dp_adapt_input *input = adapt->input;
    const struct place *a = &adapt->places[from], *b = &adapt->places[to];
    for (size_t i = 0; !adapt->ignores_slowness && i < input->links_count; i++) {
        const struct dp_adapt_link *link = &input->links[i];
        if (is_end(adapt, link->from, a, b) && is_end(adapt, link->to, b, a)) {
            return link->hop;
        }
    }
    return a->node == b->node ? input->costs->local : input->costs->network;
}

static double hop_seconds(const struct dp_sim_hop *hop, double bytes)
{
    return hop->latency + dp_sim_wire_seconds(hop, bytes);
}

// The slowest of the block's hops between two positions: its replicas go in step.
static void fill_hop(const struct adapt *adapt, const struct layout *layout, int32_t block,
                     int32_t from, int32_t to, struct dp_sim_costs *costs)
{
    double bytes = fmax(costs->message_bytes_f, costs->message_bytes_b);
    struct dp_sim_hop *slowest_hop = dp_sim_hop_at(costs, from, to);
    for (int32_t d = block * adapt->coupled; d < (block + 1) * adapt->coupled; d++) {
        for (int32_t i = 0; i < adapt->shards; i++) {
            struct dp_sim_hop hop = hop_between(adapt, layout->place[rank_of(adapt, d, from, i)],
                                                layout->place[rank_of(adapt, d, to, i)]);
            if (hop_seconds(&hop, bytes) > hop_seconds(slowest_hop, bytes)) {
                *slowest_hop = hop;
            }
        }
    }
}

// Only neighbours of the pipeline exchange messages.
static void fill_hops(const struct adapt *adapt, const struct layout *layout, int32_t block,
                      const struct dp_schedule *schedule, struct dp_sim_costs *costs)
{
    for (int32_t s = 0; s + 1 < schedule->stages; s++) {
        for (int direction = 0; direction < schedule->directions; direction++) {
            int32_t a = schedule->placement[2 * s + direction];
            int32_t b = schedule->placement[2 * (s + 1) + direction];
            if (a != b) {
                fill_hop(adapt, layout, block, a, b, costs);
                fill_hop(adapt, layout, block, b, a, costs);
            }
        }
    }
}

static double pair_seconds(double share, double forward, double backward)
{
    return fmax(fmax(forward, backward), (share > 0 ? share : 1) * (forward + backward));
}

static void fill_position(struct adapt *adapt, const struct layout *layout, int32_t block,
                          const struct dp_schedule *schedule, int32_t position,
                          struct dp_sim_costs *costs)
{
    const struct dp_adapt_costs *given = adapt->input->costs;
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, position, stages);
    double slow = slowest(adapt, layout, block, position);
    for (int32_t i = 0; i < count; i++) {
        struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, position, i);
        for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
            chunk->seconds[kind] = slow * stage_seconds(adapt, layout, stages[i], kind);
        }
        chunk->activation_bytes =
            (uint64_t)(layout->layer_begin[stages[i] + 1] - layout->layer_begin[stages[i]]) + 1;
    }
    for (int32_t f = 0; f < count; f++) {
        for (int32_t b = 0; b < count; b++) {
            double forward = dp_sim_chunk_at(costs, position, f)->seconds[DP_ACTION_F];
            const double *backward = dp_sim_chunk_at(costs, position, b)->seconds;
            size_t pair = dp_sim_pair_index(costs, position, f, b);
            costs->fb[pair] = pair_seconds(given->pair_share, forward, backward[DP_ACTION_B]);
            costs->fi[pair] = pair_seconds(given->pair_input_share, forward, backward[DP_ACTION_I]);
        }
    }
    int32_t now = dp_adapt_layers_at(adapt, &adapt->base, schedule, position);
    int32_t then = dp_adapt_layers_at(adapt, layout, schedule, position);
    double by_layers = now > 0 ? (double)then / now : 1;
    costs->gradient_sync[position] = given->gradient_s[position] * by_layers;
    costs->optimizer[position] = given->optimizer_s[position] * by_layers;
}

void dp_adapt_block_costs(struct adapt *adapt, const struct layout *layout, int32_t block,
                          const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs)
{
    dp_sim_costs_init(ret_costs, schedule);
    ret_costs->message_bytes_f = adapt->input->costs->message_bytes_f;
    ret_costs->message_bytes_b = adapt->input->costs->message_bytes_b;
    ret_costs->p2p = adapt->input->costs->p2p;
    for (int32_t p = 0; p < adapt->pipeline; p++) {
        fill_position(adapt, layout, block, schedule, p, ret_costs);
    }
    fill_hops(adapt, layout, block, schedule, ret_costs);
}

// FNV-1a over words.
static uint64_t mix(uint64_t key, const double *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        key = (key ^ bits) * UINT64_C(0x100000001b3);
        key ^= key >> 29;
    }
    return key;
}

static uint64_t key_of(const struct order *order, const struct dp_sim_costs *costs)
{
    size_t ranks = (size_t)costs->pipeline, slots = ranks * (size_t)costs->slots;
    uint64_t key = order->hash ^ UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < slots; i++) {
        key = mix(key, costs->chunks[i].seconds, DP_ADAPT_KINDS);
    }
    for (size_t i = 0; i < ranks * ranks; i++) {
        const double hop[] = {costs->hops[i].latency, costs->hops[i].bytes_per_second};
        key =
            hop[0] > 0 || hop[1] > 0 ? mix(mix(key, hop, 2), (const double[]){(double)i}, 1) : key;
    }
    key = mix(key, costs->gradient_sync, ranks);
    key = mix(key, costs->optimizer, ranks);
    return key == 0 ? 1 : key;
}

static struct memo *find(struct adapt *adapt, uint64_t key)
{
    size_t at = key % adapt->memo_room;
    while (adapt->memo[at].key != 0 && adapt->memo[at].key != key) {
        at = (at + 1) % adapt->memo_room;
    }
    return &adapt->memo[at];
}

static void grow(struct adapt *adapt)
{
    struct memo *old = adapt->memo;
    size_t room = adapt->memo_room;
    adapt->memo_room = room == 0 ? 1024 : 2 * room;
    adapt->memo = dp_new_array(struct memo, adapt->memo_room);
    for (size_t i = 0; i < room; i++) {
        if (old[i].key != 0) {
            *find(adapt, old[i].key) = old[i];
        }
    }
    free(old);
}

double dp_adapt_block_step(struct adapt *adapt, const struct layout *layout, int32_t block)
{
    struct order *order = dp_adapt_block_order(adapt, layout, block);
    if (!order->is_legal) {
        return INFINITY;
    }
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs;
    dp_adapt_block_costs(adapt, layout, block, &order->schedule, &costs);
    if (2 * adapt->memo_count >= adapt->memo_room) {
        grow(adapt);
    }
    uint64_t key = key_of(order, &costs);
    struct memo *memo = find(adapt, key);
    if (memo->key == key) {
        return memo->step;
    }
    double makespan, step;
    struct dp_error err = {0};
    dp_status status =
        dp_simulate_makespan(&order->schedule, &costs, adapt->scratch, &makespan, &step, &err);
    DP_CHECK(status == DP_OK); // the order was generated or validated, and the costs have its shape
    adapt->moves++;
    adapt->actions += (int64_t)dp_schedule_action_count(&order->schedule);
    adapt->memo_count++;
    *memo = (struct memo){key, step};
    return step;
}

double dp_adapt_layout_step(struct adapt *adapt, const struct layout *layout)
{
    double longest = 0;
    for (int32_t b = 0; b < adapt->blocks; b++) {
        longest = fmax(longest, dp_adapt_block_step(adapt, layout, b));
    }
    return longest;
}

bool dp_adapt_is_over(struct adapt *adapt)
{
    const struct dp_adapt_limits *limits = &adapt->input->limits;
    adapt->is_stopped =
        adapt->is_stopped || (limits->stop != NULL && limits->stop(limits->context));
    return adapt->is_stopped || adapt->actions > adapt->actions_end;
}
