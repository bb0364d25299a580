// dpctl plan --against: what would change if the file were what runs.

#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/wire.h"
#include "plan_request.h"

// Rows of KEY, RUNS, WOULD; all three are the list's.
struct changes {
    struct dp_buf cells; // NUL-terminated
    size_t count;
};

static void changes_deinit(struct changes *changes)
{
    dp_buf_deinit(&changes->cells);
}

static void add(struct changes *changes, const char *key, const char *runs, const char *would)
{
    dp_buf_append(&changes->cells, key, strlen(key) + 1);
    dp_buf_append(&changes->cells, runs, strlen(runs) + 1);
    dp_buf_append(&changes->cells, would, strlen(would) + 1);
    changes->count++;
}

// A key of a canonical job file: "optimizer.lr" and its value. False at the end.
static bool next_key(char **rest, char section[DP_NAME_MAX], char key[2 * DP_NAME_MAX],
                     const char **ret_value)
{
    char *line;
    while ((line = strsep(rest, "\n")) != NULL) {
        char *equals = strstr(line, " = ");
        size_t length = strlen(line);
        if (line[0] == '[' && length > 2) {
            snprintf(section, DP_NAME_MAX, "%.*s", (int)(length - 2), line + 1);
        } else if (equals != NULL) {
            snprintf(key, 2 * DP_NAME_MAX, "%s%s%.*s", section, section[0] == '\0' ? "" : ".",
                     (int)(equals - line), line);
            *ret_value = equals + 3;
            return true;
        }
    }
    return false;
}

// The value of a key in a canonical job file, or NULL.
static char *find_value(const char *toml, const char *wanted)
{
    DP_AUTO_FREE char *copy = dp_strdup(toml);
    char *rest = copy, section[DP_NAME_MAX] = "", key[2 * DP_NAME_MAX];
    const char *value;
    while (next_key(&rest, section, key, &value)) {
        if (strcmp(key, wanted) == 0) {
            return dp_strdup(value);
        }
    }
    return NULL;
}

static void compare_keys(const char *toml, const char *other, bool both, struct changes *changes)
{
    DP_AUTO_FREE char *copy = dp_strdup(toml);
    char *rest = copy, section[DP_NAME_MAX] = "", key[2 * DP_NAME_MAX];
    const char *value;
    while (next_key(&rest, section, key, &value)) {
        DP_AUTO_FREE char *there = find_value(other, key);
        if (both && there != NULL && strcmp(there, value) != 0) {
            add(changes, key, value, there);
        } else if (both && there == NULL) {
            add(changes, key, value, "");
        } else if (!both && there == NULL) {
            add(changes, key, "", value);
        }
    }
}

static void compare_sizes(const struct dp_plan *runs, const struct dp_plan *would,
                          struct changes *changes)
{
    const struct {
        const char *name;
        int32_t runs, would;
    } sizes[] = {{"pipeline", runs->pipeline, would->pipeline},
                 {"data", runs->data, would->data},
                 {"expert", runs->expert, would->expert},
                 {"virtual", runs->virtual_stages, would->virtual_stages},
                 {"stages", runs->stages, would->stages},
                 {"microbatches", runs->microbatches, would->microbatches},
                 {"micro_batch_size", runs->micro_batch_size, would->micro_batch_size}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].runs != sizes[i].would) {
            char key[64], before[32], after[32];
            snprintf(key, sizeof(key), "plan.%s", sizes[i].name);
            snprintf(before, sizeof(before), "%d", sizes[i].runs);
            snprintf(after, sizeof(after), "%d", sizes[i].would);
            add(changes, key, before, after);
        }
    }
}

// "4,4,3": layers of each stage.
static void put_split(const struct dp_plan *plan, struct dp_buf *out)
{
    for (int32_t s = 0; s < plan->stages; s++) {
        dp_buf_printf(out, "%s%d", s == 0 ? "" : ",",
                      plan->layer_begin[s + 1] - plan->layer_begin[s]);
    }
}

static void compare_plans(const struct dp_plan *runs, const struct dp_plan *would,
                          struct changes *changes)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf before = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf after = {0};
    compare_sizes(runs, would, changes);
    if (strcmp(runs->schedule, would->schedule) != 0) {
        add(changes, "plan.schedule", runs->schedule, would->schedule);
    } else if (runs->schedule_hash != would->schedule_hash && runs->stages == would->stages &&
               runs->microbatches == would->microbatches) {
        add(changes, "plan.order", "another order of the same actions", runs->schedule);
    }
    put_split(runs, &before);
    put_split(would, &after);
    if (strcmp(before.bytes, after.bytes) != 0) {
        add(changes, "plan.layers_per_stage", before.bytes, after.bytes);
    }
}

static json_t *changes_json(const struct changes *changes)
{
    json_t *rows = json_array();
    const char *cell = changes->cells.bytes;
    for (size_t i = 0; i < changes->count; i++) {
        const char *key = cell, *runs = key + strlen(key) + 1, *would = runs + strlen(runs) + 1;
        json_array_append_new(
            rows, json_pack("{s:s, s:s, s:s}", "key", key, "runs", runs, "would", would));
        cell = would + strlen(would) + 1;
    }
    return rows;
}

static void print_changes(struct dpctl *ctl, const Dp__V1__Job *job, const struct changes *changes)
{
    if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:I, s:o}", "job", job->id, "index",
                                   (json_int_t)job->index, "changes", changes_json(changes)),
                         "dp.plan_against/1");
        return;
    }
    if (changes->count > 0) {
        DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3};
        const char *const heads[] = {"KEY", "RUNS", "WOULD"};
        dpctl_heads(&table, heads);
        const char *cell = changes->cells.bytes;
        for (size_t i = 0; i < 3 * changes->count; i++) {
            dpctl_cell(&table, "%s", cell);
            cell += strlen(cell) + 1;
        }
        dpctl_table_print(&table);
    }
    printf("%s: %s; index %llu\n", job->id,
           changes->count == 0 ? "nothing would change" : "differs",
           (unsigned long long)job->index);
}

static dp_status compare(const struct plan_question *question, const Dp__V1__Job *job,
                         struct changes *changes, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf toml = {0};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan runs = {0};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan would = {0};
    DP_AUTO_FREE char *own = dp_alloc(1, job->job_toml.len + 1);
    memcpy(own, job->job_toml.data, job->job_toml.len);
    dp_job_spec_write(&question->spec, &toml);
    compare_keys(own, toml.bytes, true, changes);
    compare_keys(toml.bytes, own, false, changes);
    if (job->plan == NULL) {
        return dp_fail(err, DP_CONFLICT, "%s has no plan yet: it is %s", job->id,
                       job_state_text(job->state));
    }
    dp_status status = dp_wire_plan_from_proto(job->plan, &runs, err);
    if (status == DP_OK) {
        status = plan_question_ask(question, &question->spec, false, &would, err);
    }
    if (status == DP_OK) {
        compare_plans(&runs, &would, changes);
    }
    return status;
}

dp_status plan_against(struct dpctl *ctl, const struct plan_request *request,
                       const struct plan_question *question, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(changes_deinit) struct changes changes = {0};
    Dp__V1__Job *job = NULL;
    dp_status status = dp_client_get_job(question->client, request->against, &arena, &job, err);
    if (status == DP_OK) {
        status = compare(question, job, &changes, err);
    }
    if (status != DP_OK) {
        return status;
    }
    print_changes(ctl, job, &changes);
    // Said above.
    return changes.count == 0 ? DP_OK : dp_fail(err, DP_PLAN_DIFFERS, "%s", "");
}
