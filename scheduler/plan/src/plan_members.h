// Tables that name each member of a document once; reading and writing follow them.
#pragma once

#include <stddef.h>

#include "dp/plan.h"

typedef enum dp_member_type {
    DP_MEMBER_INT32,
    DP_MEMBER_REAL,
    DP_MEMBER_BOOL,
    DP_MEMBER_NAME,
    DP_MEMBER_FORMAT,    // dp_format
    DP_MEMBER_SHARD,     // dp_shard
    DP_MEMBER_RECOMPUTE, // bits
    DP_MEMBER_OWNED_TEXT
} dp_member_type;

struct dp_member {
    const char *key;
    dp_member_type type;
    size_t offset;
};

struct dp_members {
    const struct dp_member *items;
    size_t count;
};

// A plan's own: its sizes, the figures of its step, and the five parts that add up to it.
extern const struct dp_members dp_plan_size_members, dp_plan_figure_members, dp_plan_part_members;
// A pipeline position: its times, what it holds, and struct dp_memory_parts.
extern const struct dp_members dp_plan_position_members, dp_plan_held_members,
    dp_plan_memory_members;
extern const struct dp_members dp_plan_rank_members, dp_plan_gain_members;
// A candidate's choice, and its figures when it has some.
extern const struct dp_members dp_plan_candidate_members, dp_plan_candidate_figure_members;
// dp.plan/1 as it was without "chosen": everything in one object.
extern const struct dp_members dp_plan_flat_members, dp_plan_flat_candidate_members;

void dp_members_write(const struct dp_members *members, const void *object, json_t *json);
// DP_INVALID names the member that is missing or of another type.
dp_status dp_members_read(const struct dp_members *members, const json_t *json, void *object,
                          struct dp_error *err);
