#pragma once

#include "dp/optim.h"

struct held_stage {
    struct dp_stage *stage;
    struct dp_device *device;
    int32_t index;
    struct dp_group shared;  // ranks that hold the stage
    struct dp_group experts; // those among them that hold the same experts
    struct dp_group peers;   // the EP group of this rank; zeroed where no expert has a copy
};

// A run of a stage's parameters with one group of ranks.
struct segment {
    struct dp_group *group;
    uint64_t tag;
    struct held_stage *held;
    int64_t begin, count; // elements of the stage
    // The same parameters once more in another stage of this rank; NULL = they are not.
    struct held_stage *twin;
    int64_t twin_begin;
    int64_t part_begin, part_end; // of the stage: this member's part
    int64_t kept_begin, kept_end; // of the stage: what it has moments for
    void *m, *v;                  // [kept_end - kept_begin]
};

struct dp_optim {
    struct dp_optimizer_spec spec;
    int64_t steps;
    bool is_sharded, is_bf16; // the moments
    struct dp_group world;
    struct dp_group tied;         // ranks that hold a tied tensor; zeroed where this one does not
    struct held_stage *held;      // as given
    struct held_stage **in_order; // by index: every rank goes through them in the same order
    int32_t count;
    struct segment *segments; // in the order in which every rank sums them
    int32_t segment_count;
    int32_t pipeline, expert;
    struct dp_expert_load *loads; // of the last step; owned, as their arrays are
    int32_t load_count;
    double *since; // [load_count, experts] tokens since dp_optim_rebalance; NULL before a step
};

void dp_optim_free_loads(struct dp_optim *optim);
// Gradients of experts that have copies become their sums over the copies.
dp_status dp_optim_sum_copies(struct held_stage *held, struct dp_error *err);
// The stage that has a layer with experts.
struct held_stage *dp_optim_holder_of(struct dp_optim *optim, int32_t layer);
size_t dp_optim_moment_width(const struct dp_optim *optim, const struct held_stage *held);

static inline char *real_at(const struct held_stage *held, void *buffer, int64_t index)
{
    return (char *)buffer + (size_t)index * dp_device_real_bytes(held->device);
}
