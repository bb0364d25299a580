// The schedule as data: for each pipeline rank an ordered list of actions.
//
// Stages and micro-batches count from 0 over the whole pipeline. In a bidirectional schedule
// (directions == 2) micro-batches 0..M/2-1 enter at rank 0 and M/2..M-1 at rank P-1 (M/2 rounded
// down); so the direction of an action follows from its micro-batch.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/diag.h"
#include "dp/error.h"
#include "dp/json.h"
#include "dp/limits.h"

typedef enum dp_action_kind {
    DP_ACTION_F,   // forward of one chunk
    DP_ACTION_B,   // full backward
    DP_ACTION_I,   // input-gradient backward; its W comes later
    DP_ACTION_W,   // weight-gradient backward
    DP_ACTION_FB,  // an overlapped pair: forward of one chunk, B (or I) of another
    DP_ACTION_KIND_COUNT
} dp_action_kind;

const char *dp_action_kind_text(dp_action_kind kind);  // "F", "B", ...

struct dp_action {
    uint8_t kind;             // dp_action_kind
    uint8_t b_kind;           // FB: DP_ACTION_B or DP_ACTION_I, the backward part
    uint16_t stage;           // FB: of the forward part
    uint32_t microbatch;
    uint16_t b_stage;         // FB: of the backward part
    uint16_t reserved;
    uint32_t b_microbatch;
};
_Static_assert(sizeof(struct dp_action) == 16, "an action is small");

struct dp_schedule {
    char name[DP_NAME_MAX];
    int32_t pipeline;         // P, ranks
    int32_t microbatches;     // M
    int32_t stages;           // S
    int32_t directions;       // 1, or 2 when bidirectional
    int32_t *placement;       // [stages][2]: rank that runs the stage for direction 0 and 1
    struct dp_action *actions;
    size_t *rank_begin;       // [pipeline + 1] into actions
};

struct dp_schedule_params {
    int32_t pipeline, microbatches;
    int32_t virtual_stages;   // chunks per rank where the family has a choice; 0 = its default
};

// Row of the table of families.
struct dp_schedule_family {
    const char *name;
    const char *summary;      // one line for people
    const char *constraint;   // the rule for (P, M), for people
    int32_t directions;
    int32_t stages_per_rank;  // stages that a rank holds unless virtual_stages says otherwise
    int32_t virtual_max;      // most that virtual_stages may ask for; 0 = the family has no choice
    int32_t virtual_step;     // and it must be a multiple of this (1 when there is no choice)
    // Fills everything but name; params were checked.
    dp_status (*check)(const struct dp_schedule_params *params, struct dp_error *err);
    dp_status (*generate)(const struct dp_schedule_params *params, struct dp_schedule *schedule,
                          struct dp_error *err);
    // Whether the runtimes that published it wait for a batch of messages before they compute
    // (Megatron-LM's 1F1B, DualPipe) rather than let messages travel beside.
    bool waits;
};

// All families; *ret_count of them. Static.
const struct dp_schedule_family *dp_schedule_families(size_t *ret_count);
const struct dp_schedule_family *dp_schedule_family_find(const char *name);

// The number of stages S that the family makes of these sizes.
int32_t dp_schedule_family_stages(const struct dp_schedule_family *family,
                                  const struct dp_schedule_params *params);

// Whether (family, P, M) is legal; DP_INVALID names the rule broken and the nearest legal values,
// DP_NOT_FOUND names the families.
dp_status dp_schedule_check(const char *family, const struct dp_schedule_params *params,
                            struct dp_error *err);
// Builds a schedule; the caller deinits it.
dp_status dp_schedule_generate(const char *family, const struct dp_schedule_params *params,
                               struct dp_schedule *ret_schedule, struct dp_error *err);
void dp_schedule_deinit(struct dp_schedule *schedule);

static inline size_t dp_schedule_action_count(const struct dp_schedule *s)
{
    return s->rank_begin[s->pipeline];
}

// 0 or 1.
static inline int dp_schedule_direction(const struct dp_schedule *s, uint32_t microbatch)
{
    return s->directions == 2 && microbatch >= (uint32_t)s->microbatches / 2;
}

// The rank that runs `stage` for `microbatch`.
static inline int32_t dp_schedule_rank_of(const struct dp_schedule *s, int32_t stage,
                                          uint32_t microbatch)
{
    return s->placement[2 * stage + dp_schedule_direction(s, microbatch)];
}

// The distinct stages that `rank` holds, in the order of the table of design ([r, P-1-r] for
// DualPipe); returns how many (at most DP_RANK_STAGES_MAX).
int32_t dp_schedule_rank_stages(const struct dp_schedule *s, int32_t rank,
                                int32_t ret_stages[DP_RANK_STAGES_MAX]);

// Proves: each micro-batch visits each stage once forward and once backward on the rank that the
// placement names, W exactly once after its I (on the same rank), no W after a B, dependencies are
// acyclic across ranks, and the lowered point-to-point form cannot deadlock. DP_INVALID names rank,
// position and action.
dp_status dp_schedule_validate(const struct dp_schedule *schedule, struct dp_error *err);

// A fingerprint of placement and actions, the same on every machine.
uint64_t dp_schedule_hash(const struct dp_schedule *schedule);

// The form "dp.schedule/1", on one line; how many bytes it takes. from_json validates.
void dp_schedule_write_json(const struct dp_schedule *schedule, struct dp_buf *out);
size_t dp_schedule_json_bytes(const struct dp_schedule *schedule);
dp_status dp_schedule_from_json(const json_t *json, struct dp_schedule *ret_schedule,
                                struct dp_error *err);

// "F3@2", "FB(5@1;B0@6)": micro-batch @ stage.
void dp_action_format(const struct dp_action *action, struct dp_buf *out);

// Point-to-point messages, derived from the actions and never written by hand.
typedef enum dp_p2p_kind { DP_SEND_F, DP_RECV_F, DP_SEND_B, DP_RECV_B } dp_p2p_kind;

struct dp_p2p {
    uint8_t kind;             // dp_p2p_kind
    uint8_t direction;
    uint16_t stage;           // of the action that sends or receives
    uint32_t microbatch;
    int32_t peer;             // pipeline rank
    uint32_t action;          // index in the rank's list: a receive comes before, a send after
    uint32_t message;         // number of the message in one order of all ranks' messages
};

// What all ranks send and receive. Between two actions a rank has one batch: what the earlier
// action sends, then what it receives before the later one; a batch may be posted at once and
// waited for as a whole, or one message after the other. Each rank's list is in the order of
// `message`, which both ends share, so neither way can deadlock even when a send waits for its
// receive (strict rendezvous). A receive stands before the action that needs it; earlier only where
// its sender would wait for it, when F, I and W take one unit of time and B two.
struct dp_lowered {
    int32_t pipeline;
    struct dp_p2p *ops;
    size_t *rank_begin;       // [pipeline + 1] into ops
};

// Neighbouring stages on one rank need no message. The schedule must be valid; DP_INVALID names the
// rank and position that wait for what nobody sends. The caller deinits *ret_lowered.
dp_status dp_schedule_lower_all(const struct dp_schedule *schedule, struct dp_lowered *ret_lowered,
                                struct dp_error *err);
void dp_lowered_deinit(struct dp_lowered *lowered);
