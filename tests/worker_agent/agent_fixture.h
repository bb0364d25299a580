// The agent's core under test: an event at a time, and the effects of the last one.
#pragma once

#include "dp/agent_core.h"

#define ORPHAN_MS 60000

struct fixture {
    struct dp_agent_core *core;
    struct dp_agent_effects effects; // of the last event
    int64_t now_ns;
};

int set_up(void **state);
int tear_down(void **state);
// Of job-1, attempt 1.
struct dp_agent_fence fence(uint32_t epoch);
void step(struct fixture *fixture, struct dp_agent_event event);
size_t count_of(const struct fixture *fixture, dp_agent_effect_type type);
// The only effect of its type; there must be one.
const struct dp_agent_effect *only(const struct fixture *fixture, dp_agent_effect_type type);
void simple(struct fixture *fixture, dp_agent_event_type type, uint32_t epoch);
void prepare(struct fixture *fixture, uint32_t epoch);
void prepare_of(struct fixture *fixture, struct dp_agent_fence of, bool beside);
void spawned(struct fixture *fixture, uint32_t epoch, uint32_t rank, bool started);
void exited(struct fixture *fixture, uint32_t epoch, uint32_t rank, int32_t signal);
void report(struct fixture *fixture, uint32_t rank, dp_agent_report kind, uint64_t number);
void report_of(struct fixture *fixture, uint32_t epoch, uint32_t rank, dp_agent_report kind,
               uint64_t number);
void start(struct fixture *fixture, uint32_t epoch);
void acknowledged(struct fixture *fixture, int64_t sent_ns);
const struct dp_agent_assignment *held(const struct fixture *fixture, uint32_t epoch);
// Epoch 1 with ranks 4 and 5 running.
void run(struct fixture *fixture);

extern const uint32_t ranks[2]; // 4 and 5
