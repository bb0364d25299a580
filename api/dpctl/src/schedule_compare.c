// dpctl schedule compare: the same model under several families.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "schedule_request.h"

// One line of the comparison; a family that cannot do (P, M) says why instead.
static void compare_one(const struct schedule_request *request, const char *name, json_t *rows)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_obtain(request, name, &schedule, &err);
    if (status == DP_OK) {
        status = schedule_simulate(request, &schedule, false, &result, &err);
    }
    if (status == DP_OK) {
        json_t *row = schedule_result_json(&schedule, &result);
        json_object_set_new(row, "legal", json_true());
        json_array_append_new(rows, row);
    } else {
        json_array_append_new(
            rows, json_pack("{s:s, s:b, s:s}", "name", name, "legal", 0, "reason", err.message));
    }
}

static void print_comparison(const json_t *rows)
{
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 6, .right = 0x1e};
    const char *const heads[] = {"SCHEDULE",     "STAGES",      "MAKESPAN_S",
                                 "BUBBLE_MAX_S", "PEAK_CHUNKS", "NOTE"};
    dpctl_heads(&table, heads);
    size_t index;
    json_t *row;
    json_array_foreach(rows, index, row)
    {
        dpctl_cell(&table, "%s", json_string_value(json_object_get(row, "name")));
        if (json_is_true(json_object_get(row, "legal"))) {
            dpctl_cell(&table, "%d", (int)json_integer_value(json_object_get(row, "stages")));
            dpctl_cell(&table, "%.6g", json_real_value(json_object_get(row, "makespan_s")));
            dpctl_cell(&table, "%.6g", json_real_value(json_object_get(row, "bubble_max_s")));
            dpctl_cell(&table, "%d",
                       (int)json_integer_value(json_object_get(row, "peak_chunks_max")));
            dpctl_cell(&table, "%s", "");
        } else {
            for (int i = 0; i < 4; i++) {
                dpctl_cell(&table, "%s", "");
            }
            dpctl_cell(&table, "%s", json_string_value(json_object_get(row, "reason")));
        }
    }
    dpctl_table_print(&table);
}

static dp_status compare_named(const struct schedule_request *request, json_t *rows,
                               struct dp_error *err)
{
    DP_AUTO_FREE char *names = dp_strdup(request->schedules);
    char *save = NULL;
    for (char *name = strtok_r(names, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save)) {
        if (dp_schedule_family_find(name) == NULL) {
            struct dp_schedule_params params = {.pipeline = 2, .microbatches = 4};
            return dp_schedule_check(name, &params, err); // says which there are
        }
        compare_one(request, name, rows);
    }
    return json_array_size(rows) > 0
               ? DP_OK
               : dp_fail(err, DP_USAGE, "--schedules \"%s\" names no schedule", request->schedules);
}

static dp_status compare_all(const struct schedule_request *request, json_t *rows)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        compare_one(request, families[i].name, rows);
    }
    return DP_OK;
}

dp_status schedule_compare(struct dpctl *ctl, const struct schedule_request *request,
                           const struct dp_schedule *none, struct dp_error *err)
{
    (void)none;
    struct schedule_request same_model = *request;
    same_model.same_model = true;
    if (request->pipeline == 0 || request->microbatches == 0) {
        return dp_fail(err, DP_USAGE, "say -P RANKS and -M MICROBATCHES");
    }
    DP_AUTO_JSON json_t *rows = json_array();
    dp_status status = request->schedules != NULL ? compare_named(&same_model, rows, err)
                                                  : compare_all(&same_model, rows);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, json_pack("{s:O}", "schedules", rows), "dp.comparison/1");
    } else {
        print_comparison(rows);
    }
    return DP_OK;
}
