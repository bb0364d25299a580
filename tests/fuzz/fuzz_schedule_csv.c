// PyTorch's CSV, with either letters: what is read is valid, can be lowered, and written in either
// form and read again is the same schedule.
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "dp/schedule_audit.h"
#include "fuzz.h"

static dp_status read_csv(const char *text, size_t length, dp_schedule_letters letters,
                          struct dp_schedule_csv *ret_csv)
{
    struct dp_diags diags;
    struct dp_error err = {0};
    dp_diags_init(&diags, "schedule.csv", text, length);
    dp_status status = dp_schedule_read_csv(text, length, letters, ret_csv, &diags, &err);
    DP_CHECK((status == DP_OK) == (diags.count == 0));
    dp_diags_deinit(&diags);
    return status;
}

static void check_written(const struct dp_schedule *schedule, const struct dp_buf *text)
{
    struct dp_schedule_csv back;
    DP_CHECK(read_csv(text->bytes, text->length, DP_SCHEDULE_LETTERS_NEW, &back) == DP_OK);
    DP_CHECK(dp_schedule_hash(&back.schedule) == dp_schedule_hash(schedule));
    dp_schedule_csv_deinit(&back);
}

static void write_both_forms(const struct dp_schedule *schedule)
{
    static const struct dp_sim_uniform uniform = {.f = 1, .b = 2, .i = 1, .w = 1, .hop = {0.25, 0}};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf alone = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf comms = {0};
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    struct dp_error err = {0};
    DP_CHECK(dp_render_torch_csv(schedule, &alone, &err) == DP_OK);
    check_written(schedule, &alone);
    dp_sim_costs_init_uniform(&costs, schedule, &uniform);
    DP_CHECK(dp_simulate(schedule, &costs, true, &result, &err) == DP_OK);
    DP_CHECK(dp_render_torch_csv_comms(schedule, &result, false, &comms, &err) == DP_OK);
    check_written(schedule, &comms);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int letters = DP_SCHEDULE_LETTERS_ANY; letters <= DP_SCHEDULE_LETTERS_OLD; letters++) {
        struct dp_schedule_csv csv;
        if (read_csv((const char *)data, size, (dp_schedule_letters)letters, &csv) == DP_OK) {
            struct dp_error err = {0};
            DP_CHECK(dp_schedule_validate(&csv.schedule, &err) == DP_OK);
            write_both_forms(&csv.schedule);
            dp_schedule_csv_deinit(&csv);
        }
    }
    return 0;
}
