// dpctl plan --controller: the same question, answered by the controller's planner.

#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/wire.h"
#include "plan_request.h"

static ProtobufCBinaryData bytes_of(const struct dp_buf *text)
{
    return (ProtobufCBinaryData){.len = text->length, .data = (uint8_t *)text->bytes};
}

// The whole question as texts: whatever files and defaults it came from here, it is the same there.
struct texts {
    struct dp_buf job, cluster, profile;
};

static void texts_deinit(struct texts *texts)
{
    dp_buf_deinit(&texts->job);
    dp_buf_deinit(&texts->cluster);
    dp_buf_deinit(&texts->profile);
}

static void write_texts(const struct plan_question *question, const struct dp_job_spec *spec,
                        struct texts *texts)
{
    dp_job_spec_write(spec, &texts->job);
    if (!question->on_connected_nodes) {
        dp_cluster_spec_write(&question->cluster, &texts->cluster);
    }
    // Without a name they follow from the cluster, there as here.
    if (question->profile_name != NULL && plan_profile_is_file(question->profile_name)) {
        DP_AUTO_JSON json_t *profile = dp_profile_to_json(&question->profile);
        dp_json_write(profile, 0, &texts->profile);
    }
}

dp_status plan_remote_ask(const struct plan_question *question, const struct dp_job_spec *spec,
                          bool pareto, struct dp_plan *ret_plan, struct dp_error *err)
{
    DP_CLEANUP(texts_deinit) struct texts texts = {0};
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    write_texts(question, spec, &texts);
    Dp__V1__PlanRequest request = DP__V1__PLAN_REQUEST__INIT;
    request.job_toml = bytes_of(&texts.job);
    request.cluster_toml = bytes_of(&texts.cluster);
    request.profile_json = bytes_of(&texts.profile);
    if (question->profile_name != NULL && texts.profile.length == 0) {
        request.profile = (char *)question->profile_name;
    }
    request.ignore_memory = question->ignore_memory;
    request.pareto = pareto;
    Dp__V1__PlanResponse *response = NULL;
    dp_status status = dp_client_plan(question->client, &request, &arena, &response, err);
    return status == DP_OK ? dp_wire_plan_from_proto(response->plan, ret_plan, err) : status;
}

dp_status plan_remote_open(struct dpctl *ctl, const struct plan_request *request,
                           struct plan_question *question, struct dp_error *err)
{
    question->ignore_memory = request->ignore_memory;
    question->profile_name = request->profile;
    question->on_connected_nodes = request->gpu == NULL && request->cluster == NULL;
    if (question->on_connected_nodes && (request->rank >= 0 || request->map)) {
        return dp_fail(err, DP_USAGE,
                       "--explain and --map need to know the nodes: name a --cluster as well, or "
                       "leave out --controller");
    }
    if (question->on_connected_nodes) {
        DP_COPY_TEXT(question->cluster.name, "connected nodes");
        DP_COPY_TEXT(question->profile.name, "of the connected nodes");
    }
    return connect_controller(ctl, &question->client, err);
}
