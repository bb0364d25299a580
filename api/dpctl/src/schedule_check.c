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

static void print_valid(const struct dp_schedule *schedule, const struct schedule_file *file,
                        const struct dp_sim_result *result, const char *hash)
{
    printf("valid: %zu actions, hash %s\n", dp_schedule_action_count(schedule), hash);
    if (file->letters != NULL) {
        printf("PyTorch's %s, %s letters\n", file->form, file->letters);
    }
    schedule_print_summary(schedule, result);
}

static json_t *valid_json(const struct schedule_request *request,
                          const struct dp_schedule *schedule, const struct schedule_file *file,
                          const struct dp_sim_result *result, const char *hash)
{
    json_t *answer =
        json_pack("{s:o, s:b, s:[], s:i, s:s, s:s?, s:s?}", "request",
                  schedule_request_json(request), "valid", 1, "problems", "problems_left_out", 0,
                  "schedule_hash", hash, "form", file->form, "letters", file->letters);
    DP_AUTO_JSON json_t *result_json = schedule_result_json(schedule, result);
    json_object_update(answer, result_json);
    return answer;
}

// One that is not valid is an answer.
dp_status schedule_check(struct dpctl *ctl, const struct schedule_request *request,
                         struct dp_error *err)
{
    DP_CLEANUP(schedule_file_deinit) struct schedule_file file = {0};
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_obtain_subject(request, &file, &subject, err);
    if (dp_status_exit_code(status) == dp_status_exit_code(DP_INVALID) && ctl->json) {
        print_invalid(ctl, &file, err);
    }
    if (status == DP_OK) {
        status = dp_simulate(&subject.schedule, &subject.costs, false, &result, err);
    }
    if (status != DP_OK) {
        return status;
    }
    char hash[32];
    snprintf(hash, sizeof(hash), "0x%016llx",
             (unsigned long long)dp_schedule_hash(&subject.schedule));
    if (ctl->json) {
        dpctl_print_json(ctl, valid_json(request, &subject.schedule, &file, &result, hash),
                         "dp.check/1");
    } else {
        print_valid(&subject.schedule, &file, &result, hash);
    }
    return DP_OK;
}
