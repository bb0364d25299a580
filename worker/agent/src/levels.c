#include <sys/sysinfo.h>
#include <unistd.h>

#include "dp/arena.h"
#include "dp/check.h"
#include "dp/wire.h"
#include "worker.h"

// The arenas here have no limit, so they always give.
static void *take(struct dp_arena *arena, size_t bytes)
{
    void *memory = dp_arena_alloc(arena, bytes);
    DP_CHECK(memory != NULL);
    return memory;
}

static Dp__V1__Fence *fence_of(const struct dp_agent_fence *fence, struct dp_arena *arena)
{
    Dp__V1__Fence *message = take(arena, sizeof *message);
    dp__v1__fence__init(message);
    message->job = (char *)fence->job;
    message->attempt = fence->attempt;
    message->epoch = fence->epoch;
    return message;
}

// What a rank said, as it was checked when it came; NULL when it said nothing.
static void *message_of(const ProtobufCMessageDescriptor *descriptor,
                        const struct dp_agent_blob *blob, struct dp_arena *arena)
{
    ProtobufCMessage *message = NULL;
    if (blob->bytes == NULL ||
        dp_wire_unpack(descriptor, blob->bytes, blob->length, arena, &message, NULL) != DP_OK) {
        return NULL;
    }
    return message;
}

static Dp__V1__RankLevel *rank_level(const struct dp_agent_rank *rank, struct dp_arena *arena)
{
    Dp__V1__RankLevel *level = take(arena, sizeof *level);
    dp__v1__rank_level__init(level);
    level->rank = rank->rank;
    level->phase = (Dp__V1__RankPhase)rank->phase;
    level->step = rank->step;
    level->ready = message_of(&dp__v1__rank_ready__descriptor, &rank->ready, arena);
    level->finished = message_of(&dp__v1__rank_finished__descriptor, &rank->finished, arena);
    level->held = message_of(&dp__v1__rank_held__descriptor, &rank->held, arena);
    level->exit_status = rank->exit_status;
    level->signal = rank->signal;
    level->pid = rank->pid;
    level->stopped = rank->stopped;
    level->unkillable = rank->unkillable;
    return level;
}

Dp__V1__AssignmentLevel *levels_of(const struct dp_agent_assignment *assignment,
                                   struct dp_arena *arena)
{
    Dp__V1__AssignmentLevel *level = take(arena, sizeof *level);
    dp__v1__assignment_level__init(level);
    level->fence = fence_of(&assignment->fence, arena);
    level->n_ranks = assignment->ranks_count;
    level->ranks = take(arena, assignment->ranks_count * sizeof *level->ranks);
    for (size_t i = 0; i < assignment->ranks_count; i++) {
        level->ranks[i] = rank_level(&assignment->ranks[i], arena);
    }
    level->keeper_lost = assignment->keeper_lost;
    level->keeper_signal = assignment->keeper_signal;
    level->error = (char *)(assignment->error[0] != '\0' ? assignment->error : assignment->trouble);
    level->stopping = assignment->stopping || assignment->releasing;
    return level;
}

Dp__V1__AssignmentLevel *levels_refusal(const struct dp_agent_fence *fence, const char *text,
                                        struct dp_arena *arena)
{
    Dp__V1__AssignmentLevel *level = take(arena, sizeof *level);
    dp__v1__assignment_level__init(level);
    level->fence = fence_of(fence, arena);
    level->error = (char *)text;
    return level;
}

Dp__V1__AssignmentLevel **levels_all(const struct dp_agent_core *core, struct dp_arena *arena,
                                     size_t *ret_count)
{
    size_t count = dp_agent_core_count(core);
    Dp__V1__AssignmentLevel **levels = take(arena, count * sizeof *levels);
    for (size_t i = 0; i < count; i++) {
        levels[i] = levels_of(dp_agent_core_at(core, i), arena);
    }
    *ret_count = count;
    return levels;
}

Dp__V1__Inventory *levels_inventory(const struct worker *worker, struct dp_arena *arena)
{
    Dp__V1__Inventory *inventory = take(arena, sizeof *inventory);
    dp__v1__inventory__init(inventory);
    struct sysinfo info = {0};
    (void)sysinfo(&info);
    inventory->slots = worker->options.slots;
    inventory->cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    inventory->memory_bytes = (uint64_t)info.totalram * info.mem_unit;
    inventory->accelerator = (char *)"cpu";
    inventory->data_host = (char *)worker->options.data_host;
    inventory->place = (char *)worker->options.place;
    inventory->profile_json.data = (uint8_t *)worker->profile.bytes;
    inventory->profile_json.len = worker->profile.length;
    inventory->calibration_error = (char *)calibration_error(worker->calibration);
    inventory->hardware = hardware_message(worker->hardware, arena);
    return inventory;
}
