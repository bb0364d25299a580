// Where a step's time went, by kinds of action and by peers: what stragglers are found by.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "exec_internal.h"

// One kind and its times in this step.
struct kind {
    struct dp_exec_kind_time time;
    int64_t *each; // owned
    size_t capacity;
};

struct times {
    struct kind *kinds; // in the order in which they were met
    size_t kinds_count;
    struct dp_exec_kind_time *told; // [kinds_count]
    struct dp_exec_link_time *links, *told_links;
    size_t links_count;
    int64_t begin_ns; // of the step
    int64_t own_ns;   // computed or waited for a message, of it
    int64_t gap_ns;   // sim: as planned
    int64_t off_core_ns;
};

struct times *dp_exec_times_new(void)
{
    return dp_new(struct times);
}

void dp_exec_times_free(struct times *times)
{
    if (times != NULL) {
        for (size_t i = 0; i < times->kinds_count; i++) {
            free(times->kinds[i].each);
        }
        free(times->kinds);
        free(times->told);
        free(times->links);
        free(times->told_links);
        free(times);
    }
}

void dp_exec_times_begin(struct times *times, int64_t now_ns)
{
    for (size_t i = 0; i < times->kinds_count; i++) {
        struct dp_exec_kind_time *time = &times->kinds[i].time;
        time->count = time->total_ns = time->tokens = 0;
    }
    for (size_t i = 0; i < times->links_count; i++) {
        times->links[i] = (struct dp_exec_link_time){.peer = times->links[i].peer};
    }
    times->begin_ns = now_ns;
    times->own_ns = times->gap_ns = times->off_core_ns = 0;
}

static struct kind *kind_of(struct times *times, const struct dp_action *action)
{
    bool pair = action->kind == DP_ACTION_FB;
    struct dp_exec_kind_time wanted = {.kind = action->kind,
                                       .b_kind = pair ? action->b_kind : 0,
                                       .stage = action->stage,
                                       .b_stage = pair ? action->b_stage : action->stage};
    for (size_t i = 0; i < times->kinds_count; i++) {
        const struct dp_exec_kind_time *time = &times->kinds[i].time;
        if (time->kind == wanted.kind && time->b_kind == wanted.b_kind &&
            time->stage == wanted.stage && time->b_stage == wanted.b_stage) {
            return &times->kinds[i];
        }
    }
    size_t count = ++times->kinds_count;
    times->kinds = dp_realloc(times->kinds, count, sizeof(*times->kinds));
    times->told = dp_realloc(times->told, count, sizeof(*times->told));
    times->kinds[count - 1] = (struct kind){.time = wanted};
    return &times->kinds[count - 1];
}

void dp_exec_times_action(struct times *times, const struct dp_action *action,
                          const struct action_time *took)
{
    struct kind *kind = kind_of(times, action);
    struct dp_exec_kind_time *time = &kind->time;
    if ((size_t)time->count == kind->capacity) {
        kind->capacity = kind->capacity == 0 ? 8 : 2 * kind->capacity;
        kind->each = dp_realloc(kind->each, kind->capacity, sizeof(*kind->each));
    }
    kind->each[time->count++] = took->own_ns;
    time->total_ns += took->own_ns;
    time->tokens += took->tokens;
    time->planned_ns = took->planned_ns;
    times->own_ns += took->own_ns + took->waited_ns;
    times->gap_ns += took->gap_ns;
    times->off_core_ns += took->off_core_ns;
}

void dp_exec_times_message(struct times *times, int32_t peer,
                           const struct dp_exec_link_time *message)
{
    size_t at = 0;
    while (at < times->links_count && times->links[at].peer != peer) {
        at++;
    }
    if (at == times->links_count) {
        size_t count = ++times->links_count;
        times->links = dp_realloc(times->links, count, sizeof(*times->links));
        times->told_links = dp_realloc(times->told_links, count, sizeof(*times->told_links));
        times->links[at] = (struct dp_exec_link_time){.peer = peer};
    }
    struct dp_exec_link_time *link = &times->links[at];
    link->count++;
    link->bytes += message->bytes;
    link->transfer_ns += message->transfer_ns;
    link->waiting_ns += message->waiting_ns;
}

static int compare_ns(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

void dp_exec_times_end(struct times *times, bool is_sim, int64_t now_ns,
                       struct dp_exec_times *ret_times)
{
    *ret_times = (struct dp_exec_times){.kinds = times->told, .links = times->told_links};
    for (size_t i = 0; i < times->kinds_count; i++) {
        struct kind *kind = &times->kinds[i];
        if (kind->time.count > 0) {
            size_t count = (size_t)kind->time.count;
            qsort(kind->each, count, sizeof(*kind->each), compare_ns);
            kind->time.median_ns = kind->each[(count - 1) / 2];
            times->told[ret_times->kinds_count++] = kind->time;
        }
    }
    for (size_t i = 0; i < times->links_count; i++) {
        if (times->links[i].count > 0) {
            times->told_links[ret_times->links_count++] = times->links[i];
        }
    }
    int64_t gap_ns = is_sim ? times->gap_ns : now_ns - times->begin_ns - times->own_ns;
    ret_times->launch_gap_ns = gap_ns > 0 ? gap_ns : 0;
    ret_times->off_core_ns = times->off_core_ns;
}
