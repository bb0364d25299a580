// Prices of divisions, each taken once.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "explorer.h"

// Everything that prices of units depend on besides model and profile. No padding: compared as
// bytes.
struct price_key {
    int32_t tensor, context, expert, expert_tensor, micro_batch_size, shard;
    uint32_t recompute;
    int32_t data; // FSDP's gathers alone know it
    struct dp_span spans[5];
};

struct slot {
    struct price_key key;
    struct price_entry *entry; // owned; NULL = free
};

struct price_memo {
    struct slot *slots; // a power of two
    size_t room, count;
};

struct price_memo *dp_planner_prices_new(void)
{
    struct price_memo *memo = dp_new(struct price_memo);
    memo->room = 1024;
    memo->slots = dp_new_array(struct slot, memo->room);
    return memo;
}

void dp_planner_prices_free(struct price_memo *memo)
{
    for (size_t i = 0; i < memo->room; i++) {
        free(memo->slots[i].entry);
    }
    free(memo->slots);
    free(memo);
}

static uint64_t hash_of(const struct price_key *key)
{
    const uint32_t *words = (const uint32_t *)key;
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < sizeof(*key) / sizeof(*words); i++) {
        hash = (hash ^ words[i]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

static struct slot *find(const struct price_memo *memo, const struct price_key *key)
{
    size_t at = (size_t)hash_of(key) & (memo->room - 1);
    while (memo->slots[at].entry != NULL && memcmp(&memo->slots[at].key, key, sizeof(*key)) != 0) {
        at = (at + 1) & (memo->room - 1);
    }
    return &memo->slots[at];
}

static void grow(struct price_memo *memo)
{
    struct price_memo larger = {.room = 2 * memo->room, .count = memo->count};
    larger.slots = dp_new_array(struct slot, larger.room);
    for (size_t i = 0; i < memo->room; i++) {
        if (memo->slots[i].entry != NULL) {
            *find(&larger, &memo->slots[i].key) = memo->slots[i];
        }
    }
    free(memo->slots);
    *memo = larger;
}

static struct price_key key_of(const struct explorer *explorer, const struct choice *choice)
{
    const struct dp_spans *spans = &explorer->meshes[choice->mesh].spans;
    bool gathers = choice->shard == DP_SHARD_FSDP;
    struct price_key key = {
        .tensor = choice->tensor,
        .context = choice->context,
        .expert = choice->expert,
        .expert_tensor = choice->expert_tensor,
        .micro_batch_size = choice->micro_batch_size,
        .shard = gathers,
        .recompute = choice->recompute,
        .data = gathers ? choice->data : 0,
        .spans = {spans->tensor, spans->context, spans->expert, spans->hop},
    };
    if (gathers) {
        key.spans[4] = spans->data;
    }
    return key;
}

// A pass alone takes compute, waits and exchange one after the other. Of a pair, each way to run it
// takes no less than a fixed mix of its compute and its exchange, which adds up over units; the mix
// that the whole layer would be bound by is the tightest.
static double least_of_pass(const struct dp_price *price, double compute_s, double wait_s,
                            double exchange_s, const bool *by_compute)
{
    double least = compute_s + wait_s + exchange_s;
    for (int32_t i = 0; i < price->pair_modes_count; i++) {
        const struct dp_pair_mode *mode = &price->pair_modes[i];
        double exchange = exchange_s * mode->exchange_factor;
        double shown = exchange * mode->exposed_share;
        double hidden =
            by_compute[i] ? compute_s / (1 - mode->device_share) + wait_s : exchange - shown;
        least = fmin(least, hidden + shown);
    }
    return least;
}

static double least_of_unit(const struct dp_price *price, const struct dp_unit_price *unit)
{
    bool by_compute[DP_PAIR_MODES_MAX];
    double compute = unit->forward_s + unit->input_s + unit->weight_s;
    double exchange = unit->forward_exchange_s + unit->backward_exchange_s;
    for (int32_t i = 0; i < price->pair_modes_count; i++) {
        const struct dp_pair_mode *mode = &price->pair_modes[i];
        by_compute[i] =
            exchange <= 0 || compute / (1 - mode->device_share) >=
                                 exchange * mode->exchange_factor * (1 - mode->exposed_share);
    }
    return least_of_pass(price, unit->forward_s, unit->forward_wait_s, unit->forward_exchange_s,
                         by_compute) +
           least_of_pass(price, unit->input_s, unit->backward_wait_s, unit->backward_exchange_s,
                         by_compute) +
           least_of_pass(price, unit->weight_s, 0, 0, by_compute);
}

const struct price_entry *dp_planner_prices_get(struct explorer *explorer,
                                                const struct choice *choice)
{
    struct price_memo *memo = explorer->prices;
    struct price_key key = key_of(explorer, choice);
    struct slot *slot = find(memo, &key);
    if (slot->entry != NULL) {
        return slot->entry;
    }
    if (2 * memo->count >= memo->room) {
        grow(memo);
        slot = find(memo, &key);
    }
    struct price_entry *entry = dp_new(struct price_entry);
    struct dp_strategy strategy;
    dp_planner_strategy_of(explorer, choice, &strategy);
    const struct dp_price_input input = dp_planner_price_input(explorer, choice, &strategy);
    dp_price_units(&input, &entry->price);
    dp_planner_explorer_works(explorer, 5);
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        const struct dp_unit_price *u = &entry->price.units[unit];
        entry->least_s[0][unit] = u->forward_s + u->input_s + u->weight_s + u->forward_wait_s +
                                  u->backward_wait_s + u->forward_exchange_s +
                                  u->backward_exchange_s;
        entry->least_s[1][unit] = fmin(entry->least_s[0][unit], least_of_unit(&entry->price, u));
    }
    *slot = (struct slot){key, entry};
    memo->count++;
    return entry;
}
