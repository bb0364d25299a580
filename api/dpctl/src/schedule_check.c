// dpctl schedule check: whether a file's order can run, what is wrong with it, and what it costs.

#include <stdio.h>

#include "dp/cleanup.h"
#include "dp/diag.h"
#include "schedule_verbs.h"

static void print_valid(const struct schedule_subject *subject, const struct dp_sim_result *result)
{
    const struct dp_schedule *schedule = &subject->schedule;
    printf("%s: valid, P=%d M=%d stages=%d, %zu actions, hash 0x%016llx\n", schedule->name,
           (int)schedule->pipeline, (int)schedule->microbatches, (int)schedule->stages,
           dp_schedule_action_count(schedule), (unsigned long long)dp_schedule_hash(schedule));
    printf("makespan %.6g s, bubble %.2f %%, own span %.2f %%\n", result->makespan,
           100 * dp_sim_bubble_ratio(result), 100 * dp_sim_own_span_bubble_ratio(result));
}

// One that is not valid is an answer.
dp_status schedule_check(struct dpctl *ctl, const struct schedule_request *request,
                         struct dp_error *err)
{
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_obtain(request, request->subject, &subject, err);
    if (dp_status_exit_code(status) == dp_status_exit_code(DP_INVALID) && ctl->json) {
        const struct dp_diags no_positions = {0};
        dpctl_print_json(ctl,
                         json_pack("{s:b, s:o}", "valid", 0, "problems",
                                   dpctl_problems_json(&no_positions, err)),
                         "dp.check/1");
    }
    if (status == DP_OK) {
        status = dp_simulate(&subject.schedule, &subject.costs, false, &result, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        char hash[32];
        snprintf(hash, sizeof(hash), "0x%016llx",
                 (unsigned long long)dp_schedule_hash(&subject.schedule));
        json_t *answer = schedule_result_json(&subject.schedule, &result);
        json_object_set_new(answer, "valid", json_true());
        json_object_set_new(answer, "schedule_hash", json_string(hash));
        dpctl_print_json(ctl, answer, "dp.check/1");
    } else {
        print_valid(&subject, &result);
    }
    return DP_OK;
}
