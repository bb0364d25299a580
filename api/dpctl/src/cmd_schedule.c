// dpctl schedule: everything about schedules that needs no cluster.

#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "schedule_verbs.h"

enum {
    COSTS = SCHEDULE_SIZES | SCHEDULE_COSTS | SCHEDULE_CHANGES | SCHEDULE_SEARCH,
    MEMORY = SCHEDULE_BYTES | SCHEDULE_CAP
};

static const struct verb {
    const char *name;
    uint32_t takes;      // schedule_options
    const char *subject; // what it needs as its argument; NULL = nothing
    schedule_verb_run *run;
} verbs[] = {
    {"list", 0, NULL, schedule_list},
    {"show", COSTS | MEMORY | SCHEDULE_DRAWING | SCHEDULE_WIDTH, "a schedule's name or a file",
     schedule_show},
    {"simulate", COSTS | MEMORY, "a schedule's name or a file", schedule_run_simulate},
    {"compare", COSTS | SCHEDULE_FAMILIES, NULL, schedule_compare},
    {"check",
     SCHEDULE_COSTS | SCHEDULE_CHANGES | SCHEDULE_SIZES | SCHEDULE_BYTES | SCHEDULE_READING,
     "a schedule's name or a file", schedule_check},
    {"export", COSTS | MEMORY | SCHEDULE_FILES | SCHEDULE_WIDTH, "a schedule's name or a file",
     schedule_export},
    {"replay", 0, "a trace", schedule_replay},
};

static dp_status check_request(const struct verb *verb, const struct schedule_request *request,
                               struct dp_error *err)
{
    const char *vain = schedule_request_given(request, ~verb->takes);
    if (vain != NULL) {
        return dp_fail(err, DP_USAGE, "`dpctl schedule %s` does not take %s", verb->name, vain);
    }
    if (verb->subject != NULL && request->subject == NULL) {
        return dp_fail(err, DP_USAGE, "%s needs %s", verb->name, verb->subject);
    }
    if (verb->subject == NULL && request->subject != NULL) {
        return dp_fail(err, DP_USAGE, "unexpected argument \"%s\" after %s", request->subject,
                       verb->name);
    }
    return DP_OK;
}

dp_status dpctl_cmd_schedule(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    struct schedule_request request;
    schedule_request_parse(ctl, argc, argv, &request);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(verbs); i++) {
        if (strcmp(verbs[i].name, request.verb) == 0) {
            dp_status status = check_request(&verbs[i], &request, err);
            return status == DP_OK ? verbs[i].run(ctl, &request, err) : status;
        }
        dp_buf_printf(&names, "%s%s", i > 0 ? ", " : "", verbs[i].name);
    }
    return dp_fail(err, DP_USAGE, "unknown verb \"%s\"; there are %s", request.verb, names.bytes);
}
