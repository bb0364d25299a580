#include "agent_fixture.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp_test.h"

int set_up(void **state)
{
    struct fixture *fixture = dp_new(struct fixture);
    fixture->core = dp_agent_core_new(ORPHAN_MS, 0);
    *state = fixture;
    return 0;
}

int tear_down(void **state)
{
    struct fixture *fixture = *state;
    dp_agent_core_free(fixture->core);
    dp_agent_effects_deinit(&fixture->effects);
    free(fixture);
    return 0;
}

struct dp_agent_fence fence(uint32_t epoch)
{
    return (struct dp_agent_fence){.job = "job-1", .attempt = 1, .epoch = epoch};
}

void step(struct fixture *fixture, struct dp_agent_event event)
{
    event.now_ns = fixture->now_ns;
    fixture->effects.count = 0;
    dp_agent_core_step(fixture->core, &event, &fixture->effects);
}

size_t count_of(const struct fixture *fixture, dp_agent_effect_type type)
{
    size_t count = 0;
    for (size_t i = 0; i < fixture->effects.count; i++) {
        count += fixture->effects.items[i].type == type;
    }
    return count;
}

const struct dp_agent_effect *only(const struct fixture *fixture, dp_agent_effect_type type)
{
    assert_int_equal(count_of(fixture, type), 1);
    for (size_t i = 0; i < fixture->effects.count; i++) {
        if (fixture->effects.items[i].type == type) {
            return &fixture->effects.items[i];
        }
    }
    fail();
    return NULL;
}

const uint32_t ranks[2] = {4, 5};

void simple(struct fixture *fixture, dp_agent_event_type type, uint32_t epoch)
{
    step(fixture, (struct dp_agent_event){.type = type, .fence = fence(epoch)});
}

void prepare(struct fixture *fixture, uint32_t epoch)
{
    prepare_of(fixture, fence(epoch), false);
}

void prepare_of(struct fixture *fixture, struct dp_agent_fence of, bool beside)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_PREPARE,
                                          .fence = of,
                                          .beside = beside,
                                          .numbers = ranks,
                                          .numbers_count = 2,
                                          .bytes = "prepare",
                                          .length = 7});
}

void spawned(struct fixture *fixture, uint32_t epoch, uint32_t rank, bool started)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_SPAWNED,
                                          .fence = fence(epoch),
                                          .rank = rank,
                                          .pid = 1000 + rank,
                                          .started = started});
}

void exited(struct fixture *fixture, uint32_t epoch, uint32_t rank, int32_t signal)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_EXITED,
                                          .fence = fence(epoch),
                                          .rank = rank,
                                          .pid = 1000 + rank,
                                          .signal = signal});
}

void report(struct fixture *fixture, uint32_t rank, dp_agent_report kind, uint64_t number)
{
    report_of(fixture, 1, rank, kind, number);
}

void report_of(struct fixture *fixture, uint32_t epoch, uint32_t rank, dp_agent_report kind,
               uint64_t number)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_REPORT,
                                          .fence = fence(epoch),
                                          .rank = rank,
                                          .kind = kind,
                                          .step = number,
                                          .bytes = "whole",
                                          .length = 5,
                                          .inner = "inner",
                                          .inner_length = 5,
                                          .kept = "kept",
                                          .kept_length = 4});
}

void start(struct fixture *fixture, uint32_t epoch)
{
    step(fixture,
         (struct dp_agent_event){
             .type = DP_AGENT_START, .fence = fence(epoch), .bytes = "start", .length = 5});
}

void acknowledged(struct fixture *fixture, int64_t sent_ns)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_ACKNOWLEDGED, .sent_ns = sent_ns});
}

const struct dp_agent_assignment *held(const struct fixture *fixture, uint32_t epoch)
{
    struct dp_agent_fence wanted = fence(epoch);
    const struct dp_agent_assignment *assignment = dp_agent_core_find(fixture->core, &wanted);
    assert_non_null(assignment);
    return assignment;
}

// Epoch 1 with ranks 4 and 5 running.
void run(struct fixture *fixture)
{
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    prepare(fixture, 1);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    for (size_t i = 0; i < 2; i++) {
        spawned(fixture, 1, ranks[i], false);
        report(fixture, ranks[i], DP_AGENT_REPORT_READY, 0);
    }
    start(fixture, 1);
}
