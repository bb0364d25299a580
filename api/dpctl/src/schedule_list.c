// dpctl schedule list.

#include "dp/cleanup.h"
#include "schedule_verbs.h"

static json_t *family_json(const struct dp_schedule_family *family)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i}", "name", family->name, "summary",
                     family->summary, "constraint", family->constraint, "directions",
                     (int)family->directions, "stages_per_rank", (int)family->stages_per_rank,
                     "virtual_max", (int)family->virtual_max, "virtual_step",
                     (int)family->virtual_step);
}

dp_status schedule_list(struct dpctl *ctl, const struct schedule_request *request,
                        struct dp_error *err)
{
    (void)request;
    (void)err;
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    json_t *rows = json_array();
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3};
    const char *const heads[] = {"NAME", "LEGAL", "WHAT IT IS"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(rows, family_json(&families[i]));
        dpctl_cell(&table, "%s", families[i].name);
        dpctl_cell(&table, "%s", families[i].constraint);
        dpctl_cell(&table, "%s", families[i].summary);
    }
    static const char auto_constraint[] = "any P and M";
    static const char auto_summary[] = "an order made for the costs given: uneven stages, slow "
                                       "ranks and links, a memory cap";
    // What it makes of these follows from the costs.
    json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:n, s:n, s:i, s:i}", "name", "auto",
                                          "summary", auto_summary, "constraint", auto_constraint,
                                          "directions", "stages_per_rank", "virtual_max",
                                          DP_RANK_STAGES_MAX, "virtual_step", 1));
    dpctl_cell(&table, "auto");
    dpctl_cell(&table, "%s", auto_constraint);
    dpctl_cell(&table, "%s", auto_summary);
    if (ctl->json) {
        dpctl_print_json(ctl, json_pack("{s:o}", "schedules", rows), "dp.schedules/1");
    } else {
        json_decref(rows);
        dpctl_table_print(&table);
    }
    return DP_OK;
}
