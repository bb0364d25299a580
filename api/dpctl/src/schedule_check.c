// dpctl schedule check: whether a file's order can run, all that is wrong with it, what it costs.

#include <stdio.h>

#include "dp/cleanup.h"
#include "schedule_verbs.h"

static void print_invalid(struct dpctl *ctl, const struct schedule_file *file,
                          const struct dp_error *err)
{
    dpctl_print_json(ctl,
                     json_pack("{s:b, s:o, s:I}", "valid", 0, "problems",
                               dpctl_problems_json(&file->problems, err), "problems_left_out",
                               (json_int_t)file->problems.dropped),
                     "dp.check/1");
}

static void print_valid(const struct schedule_subject *subject, const struct schedule_file *file,
                        const struct dp_sim_result *result)
{
    const struct dp_schedule *schedule = &subject->schedule;
    printf("%s: valid, P=%d M=%d stages=%d, %zu actions, hash 0x%016llx\n", schedule->name,
           (int)schedule->pipeline, (int)schedule->microbatches, (int)schedule->stages,
           dp_schedule_action_count(schedule), (unsigned long long)dp_schedule_hash(schedule));
    if (file->letters != NULL) {
        printf("PyTorch's %s, %s letters\n", file->form, file->letters);
    }
    printf("makespan %.6g s, bubble %.2f %%, own span %.2f %%\n", result->makespan,
           100 * dp_sim_bubble_ratio(result), 100 * dp_sim_own_span_bubble_ratio(result));
}

static json_t *valid_json(const struct schedule_subject *subject, const struct schedule_file *file,
                          const struct dp_sim_result *result)
{
    char hash[32];
    snprintf(hash, sizeof(hash), "0x%016llx",
             (unsigned long long)dp_schedule_hash(&subject->schedule));
    json_t *answer = schedule_result_json(&subject->schedule, result);
    json_object_set_new(answer, "valid", json_true());
    json_object_set_new(answer, "problems", json_array());
    json_object_set_new(answer, "schedule_hash", json_string(hash));
    if (file->form != NULL) {
        json_object_set_new(answer, "form", json_string(file->form));
    }
    if (file->letters != NULL) {
        json_object_set_new(answer, "letters", json_string(file->letters));
    }
    return answer;
}

// One that is not valid is an answer.
dp_status schedule_check(struct dpctl *ctl, const struct schedule_request *request,
                         struct dp_error *err)
{
    DP_CLEANUP(schedule_file_deinit) struct schedule_file file = {0};
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_obtain_noting(request, request->subject, &file, &subject, err);
    if (dp_status_exit_code(status) == dp_status_exit_code(DP_INVALID) && ctl->json) {
        print_invalid(ctl, &file, err);
    }
    if (status == DP_OK) {
        status = dp_simulate(&subject.schedule, &subject.costs, false, &result, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, valid_json(&subject, &file, &result), "dp.check/1");
    } else {
        print_valid(&subject, &file, &result);
    }
    return DP_OK;
}
