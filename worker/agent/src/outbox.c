#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "dp/log.h"
#include "dp/wire.h"
#include "worker.h"

// Leaves room for heartbeats.
#define STREAM_FILL (DP_STREAM_QUEUE_MAX / 2)
#define STREAM_FILL_BYTES DP_MESSAGE_BYTES_MAX

typedef enum entry_kind {
    ENTRY_LEVEL,   // made when it is sent, so it is never stale
    ENTRY_REFUSAL, // bytes = text
    ENTRY_REPORT,  // bytes = packed dp.v1.RankReport
    ENTRY_KIND_COUNT
} entry_kind;

struct entry {
    struct entry *next;
    entry_kind kind;
    struct dp_agent_fence fence;
    void *bytes;
    size_t length;
};

struct outbox {
    struct worker *worker;
    struct entry *first, **last;
    size_t bytes;
    uint64_t dropped;
};

struct outbox *outbox_new(struct worker *worker)
{
    struct outbox *outbox = dp_new(struct outbox);
    outbox->worker = worker;
    outbox->last = &outbox->first;
    return outbox;
}

static struct entry *take_first(struct outbox *outbox)
{
    struct entry *entry = outbox->first;
    outbox->first = entry->next;
    if (outbox->first == NULL) {
        outbox->last = &outbox->first;
    }
    outbox->bytes -= sizeof *entry + entry->length;
    return entry;
}

static void free_entry(struct entry *entry)
{
    free(entry->bytes);
    free(entry);
}

void outbox_clear(struct outbox *outbox)
{
    while (outbox->first != NULL) {
        free_entry(take_first(outbox));
    }
}

void outbox_free(struct outbox *outbox)
{
    outbox_clear(outbox);
    free(outbox);
}

bool outbox_waits(const struct outbox *outbox)
{
    return outbox->first != NULL;
}

static void put(struct outbox *outbox, entry_kind kind, const struct dp_agent_fence *fence,
                const void *bytes, size_t length)
{
    struct entry *entry = dp_new(struct entry);
    entry->kind = kind;
    entry->fence = fence == NULL ? (struct dp_agent_fence){0} : *fence;
    entry->bytes = length > 0 ? dp_memdup(bytes, length) : NULL;
    entry->length = length;
    *outbox->last = entry;
    outbox->last = &entry->next;
    outbox->bytes += sizeof *entry + length;
    while (outbox->bytes > DP_AGENT_OUTBOX_BYTES_MAX) {
        free_entry(take_first(outbox));
        if (outbox->dropped++ == 0) {
            dp_log_warn("reports.dropped", "reason=\"the controller reads too slowly\"");
        }
    }
}

void outbox_put_level(struct outbox *outbox, const struct dp_agent_fence *fence)
{
    for (const struct entry *entry = outbox->first; entry != NULL; entry = entry->next) {
        if (entry->kind == ENTRY_LEVEL && dp_agent_fence_equal(&entry->fence, fence)) {
            return;
        }
    }
    put(outbox, ENTRY_LEVEL, fence, NULL, 0);
}

void outbox_put_refusal(struct outbox *outbox, const struct dp_agent_fence *fence, const char *text)
{
    put(outbox, ENTRY_REFUSAL, fence, text, strlen(text) + 1);
}

void outbox_put_report(struct outbox *outbox, const void *bytes, size_t length)
{
    put(outbox, ENTRY_REPORT, NULL, bytes, length);
}

static bool write_level(const struct outbox *outbox, const struct entry *entry,
                        struct dp_arena *arena, Dp__V1__AgentMessage *message)
{
    const struct dp_agent_assignment *assignment =
        dp_agent_core_find(outbox->worker->core, &entry->fence);
    if (assignment == NULL) {
        return false;
    }
    message->message_case = DP__V1__AGENT_MESSAGE__MESSAGE_LEVEL;
    message->level = levels_of(assignment, arena);
    return true;
}

static bool write_refusal(const struct outbox *outbox, const struct entry *entry,
                          struct dp_arena *arena, Dp__V1__AgentMessage *message)
{
    (void)outbox;
    message->message_case = DP__V1__AGENT_MESSAGE__MESSAGE_LEVEL;
    message->level = levels_refusal(&entry->fence, entry->bytes, arena);
    return true;
}

static bool write_report(const struct outbox *outbox, const struct entry *entry,
                         struct dp_arena *arena, Dp__V1__AgentMessage *message)
{
    (void)outbox;
    ProtobufCMessage *report;
    if (dp_wire_unpack(&dp__v1__rank_report__descriptor, entry->bytes, entry->length, arena,
                       &report, NULL) != DP_OK) {
        return false;
    }
    message->message_case = DP__V1__AGENT_MESSAGE__MESSAGE_REPORT;
    message->report = (Dp__V1__RankReport *)report;
    return true;
}

static bool (*const writers[ENTRY_KIND_COUNT])(const struct outbox *outbox,
                                               const struct entry *entry, struct dp_arena *arena,
                                               Dp__V1__AgentMessage *message) = {
    [ENTRY_LEVEL] = write_level,
    [ENTRY_REFUSAL] = write_refusal,
    [ENTRY_REPORT] = write_report,
};

static bool has_room(const struct dp_rpc_stream *stream)
{
    return dp_rpc_stream_queued(stream) < STREAM_FILL &&
           dp_rpc_stream_queued_bytes(stream) < STREAM_FILL_BYTES;
}

void outbox_drain(struct outbox *outbox, struct dp_rpc_stream *stream)
{
    while (outbox->first != NULL && has_room(stream)) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
        struct dp_error err = {0};
        struct entry *entry = take_first(outbox);
        if (writers[entry->kind](outbox, entry, &arena, &message) &&
            dp_rpc_stream_send(stream, &message.base, &err) != DP_OK) {
            dp_log_warn("report.not_sent", "reason=\"%s\"", err.message);
        }
        free_entry(entry);
    }
}
