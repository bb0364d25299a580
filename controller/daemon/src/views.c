#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/alloc.h"
#include "machines.h"

// The core knows more of a job than the store does; but a state that is not on disk yet is not
// told.
static bool from_core(struct daemon *daemon, uint64_t number, struct job_view *view)
{
    const struct dp_job_record *job =
        dp_core_job(daemon->core, number, &view->ranks, &view->ranks_count);
    view->in_core = job != NULL;
    view->scores = dp_core_straggler(daemon->core, number);
    view->verdicts_count =
        dp_core_verdicts(daemon->core, number, view->verdicts, VIEW_VERDICTS_MAX);
    view->job = view->in_core && dp_core_job_stored(daemon->core, number) ? job : NULL;
    return view->job != NULL;
}

// The row is taken over.
static dp_status from_store(struct daemon *daemon, struct dp_job_record *row, struct job_view *view,
                            struct dp_error *err)
{
    view->owned_job = dp_memdup(row, sizeof(*row));
    view->job = view->owned_job;
    if (view->in_core) {
        return DP_OK;
    }
    dp_status status = dp_store_load_ranks(daemon->store, row->number, &view->owned_ranks,
                                           &view->ranks_count, err);
    view->ranks = view->owned_ranks;
    size_t count = 0;
    if (status == DP_OK) {
        status = dp_store_load_verdicts(daemon->store, row->number, VIEW_VERDICTS_MAX,
                                        &view->owned_verdicts, &count, err);
    }
    for (size_t i = 0; i < count; i++) {
        view->verdicts[view->verdicts_count++] = &view->owned_verdicts[i];
    }
    if (status != DP_OK) {
        view_deinit(view);
    }
    return status;
}

const struct dp_job_record *view_row(struct daemon *daemon, const struct dp_job_record *loaded)
{
    struct job_view view = {0};
    return from_core(daemon, loaded->number, &view) ? view.job : loaded;
}

dp_status view_find(struct daemon *daemon, const char *key, struct job_view *ret_view,
                    struct dp_error *err)
{
    struct job_view view = {0};
    uint64_t number = dp_core_job_find(daemon->core, key);
    if (number != 0 && from_core(daemon, number, &view)) {
        *ret_view = view;
        return DP_OK;
    }
    struct dp_job_record row = {0};
    dp_status status = dp_store_find_job(daemon->store, key, &row, err);
    if (status != DP_OK) {
        return status;
    }
    if (from_core(daemon, row.number, &view)) {
        dp_job_record_deinit(&row);
    } else {
        status = from_store(daemon, &row, &view, err);
    }
    if (status == DP_OK) {
        *ret_view = view;
    }
    return status;
}

dp_status view_get(struct daemon *daemon, uint64_t number, struct job_view *ret_view,
                   struct dp_error *err)
{
    char id[DP_ID_MAX];
    snprintf(id, sizeof(id), "job-%llu", (unsigned long long)number);
    return view_find(daemon, id, ret_view, err);
}

dp_status view_check_live(const struct job_view *view, struct dp_error *err)
{
    return view->in_core ? DP_OK
                         : dp_fail(err, DP_CONFLICT, "%s has ended already: %s", view->job->id,
                                   dp_job_state_text(view->job->state));
}

size_t view_machines(const struct daemon *daemon, const struct job_view *view,
                     struct dp_arena *arena, const struct machine **ret_machines)
{
    size_t count = dp_core_nodes_count(daemon->core);
    const struct dp_node_record **rows = arena_take(arena, count * sizeof(*rows));
    struct machine *machines = arena_take(arena, count * sizeof(*machines));
    dp_core_node_rows(daemon->core, rows);
    *ret_machines = machines;
    return machines_of(rows, count, view->ranks, view->ranks_count, machines, NULL);
}

void view_deinit(struct job_view *view)
{
    if (view->owned_job != NULL) {
        dp_job_record_deinit(view->owned_job);
    }
    free(view->owned_job);
    free(view->owned_ranks);
    free(view->owned_verdicts);
    *view = (struct job_view){0};
}

dp_status view_unpack_plan(const struct dp_job_record *job, const struct dp_buf *packed,
                           struct dp_arena *arena, Dp__V1__Plan **ret_plan, struct dp_error *err)
{
    if (packed->length == 0) {
        return dp_fail(err, DP_NOT_FOUND, "%s has no plan yet: it is %s", job->id,
                       dp_job_state_text(job->state));
    }
    ProtobufCMessage *message = NULL;
    dp_status status = dp_wire_unpack(&dp__v1__plan__descriptor, packed->bytes, packed->length,
                                      arena, &message, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "the plan of %s", job->id);
    }
    *ret_plan = (Dp__V1__Plan *)message;
    return DP_OK;
}

dp_status view_plan(const struct dp_job_record *job, struct dp_arena *arena,
                    Dp__V1__Plan **ret_plan, struct dp_error *err)
{
    return view_unpack_plan(job, &job->plan, arena, ret_plan, err);
}
