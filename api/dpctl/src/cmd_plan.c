// dpctl plan: a dry run that needs no controller.

#include <string.h>

#include "dp/cleanup.h"
#include "plan_request.h"

static void question_cleanup(struct plan_question **question)
{
    plan_question_free(*question);
}

static dp_status write_rank_file(struct dpctl *ctl, const char *path, const struct dp_plan *plan,
                                 struct dp_error *err)
{
    if (path == NULL) {
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_plan_render_rank_file(plan, &text);
    return dpctl_write(ctl, path, &text, err);
}

dp_status dpctl_cmd_plan(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    struct plan_request request;
    plan_request_parse(ctl, argc, argv, &request);
    DP_CLEANUP(question_cleanup) struct plan_question *question = NULL;
    dp_status status = plan_question_load(ctl, &request, &question, err);
    if (status != DP_OK) {
        return status;
    }
    if (request.against != NULL) {
        return plan_against(ctl, &request, question, err);
    }
    if (request.compare != NULL) {
        return plan_compare(ctl, &request, question, err);
    }
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    status = plan_question_ask(question, &question->spec, request.pareto, &plan, err);
    if (status == DP_OK) {
        status = write_rank_file(ctl, request.rank_file, &plan, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (request.rank_file != NULL && strcmp(request.rank_file, "-") == 0) {
        return DP_OK; // standard output has it
    }
    plan_verb *verb = request.rank >= 0        ? plan_explain
                      : request.format != NULL ? plan_export
                      : request.map            ? plan_map
                      : request.pareto         ? plan_pareto
                                               : plan_show;
    return verb(ctl, &request, question, &plan, err);
}
