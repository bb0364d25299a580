// Prints a generated schedule as dp.schedule/1: emit FAMILY P M [V]. Writes the fixtures, and
// serves the golden comparison.
#include <stdio.h>
#include <stdlib.h>

#include "dp/schedule.h"

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: schedule_emit FAMILY P M [V]\n");
        return 2;
    }
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params params = {.pipeline = atoi(argv[2]), .microbatches = atoi(argv[3])};
    params.virtual_stages = argc == 5 ? atoi(argv[4]) : 0;
    dp_status status = dp_schedule_generate(argv[1], &params, &schedule, &err);
    if (status == DP_OK) {
        status = dp_schedule_validate(&schedule, &err);
    }
    if (status != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return dp_status_exit_code(status);
    }
    struct dp_buf text = {0};
    dp_schedule_write_json(&schedule, &text);
    puts(text.bytes);
    dp_buf_deinit(&text);
    dp_schedule_deinit(&schedule);
    return 0;
}
