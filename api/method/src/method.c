#include "dp/method.h"

#include <string.h>

#include "dp/check.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/calibration.pb-c.h"
#include "dp/v1/cluster.pb-c.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/v1/planner.pb-c.h"

// ValidateJob and Plan search for a plan; CheckpointJob waits for the end of a step and for disks,
// at most the two minutes that the controller gives it.
const struct dp_method dp_methods[DP_METHOD_COUNT] = {
    [DP_METHOD_GET_VERSION] = {.name = "/dp.v1.Controller/GetVersion",
                               .request = &dp__v1__get_version_request__descriptor,
                               .response = &dp__v1__version_info__descriptor,
                               .deadline_ms = DP_METHOD_DEADLINE_MS,
                               .permission = "open",
                               .http_verb = "GET",
                               .http_path = "/v1/version"},
    [DP_METHOD_SUBMIT_JOB] = {.name = "/dp.v1.Controller/SubmitJob",
                              .request = &dp__v1__submit_job_request__descriptor,
                              .response = &dp__v1__job__descriptor,
                              .deadline_ms = DP_METHOD_DEADLINE_MS,
                              .permission = "submit",
                              .http_verb = "POST",
                              .http_path = "/v1/jobs"},
    [DP_METHOD_VALIDATE_JOB] = {.name = "/dp.v1.Controller/ValidateJob",
                                .request = &dp__v1__validate_job_request__descriptor,
                                .response = &dp__v1__validate_job_response__descriptor,
                                .deadline_ms = 60000,
                                .permission = "read",
                                .http_verb = "POST",
                                .http_path = "/v1/validate"},
    [DP_METHOD_GET_JOB] = {.name = "/dp.v1.Controller/GetJob",
                           .request = &dp__v1__get_job_request__descriptor,
                           .response = &dp__v1__job__descriptor,
                           .deadline_ms = DP_METHOD_DEADLINE_MS,
                           .permission = "read",
                           .http_verb = "GET",
                           .http_path = "/v1/jobs/{id}"},
    [DP_METHOD_LIST_JOBS] = {.name = "/dp.v1.Controller/ListJobs",
                             .request = &dp__v1__list_jobs_request__descriptor,
                             .response = &dp__v1__list_jobs_response__descriptor,
                             .deadline_ms = DP_METHOD_DEADLINE_MS,
                             .permission = "read",
                             .http_verb = "GET",
                             .http_path = "/v1/jobs"},
    [DP_METHOD_CANCEL_JOB] = {.name = "/dp.v1.Controller/CancelJob",
                              .request = &dp__v1__cancel_job_request__descriptor,
                              .response = &dp__v1__job__descriptor,
                              .deadline_ms = DP_METHOD_DEADLINE_MS,
                              .permission = "submit",
                              .http_verb = "POST",
                              .http_path = "/v1/jobs/{id}/cancel"},
    [DP_METHOD_CHECKPOINT_JOB] = {.name = "/dp.v1.Controller/CheckpointJob",
                                  .request = &dp__v1__checkpoint_job_request__descriptor,
                                  .response = &dp__v1__checkpoint_job_response__descriptor,
                                  .deadline_ms = 130000,
                                  .permission = "submit",
                                  .http_verb = "POST",
                                  .http_path = "/v1/jobs/{id}/checkpoint"},
    [DP_METHOD_LIST_NODES] = {.name = "/dp.v1.Controller/ListNodes",
                              .request = &dp__v1__list_nodes_request__descriptor,
                              .response = &dp__v1__list_nodes_response__descriptor,
                              .deadline_ms = DP_METHOD_DEADLINE_MS,
                              .permission = "read",
                              .http_verb = "GET",
                              .http_path = "/v1/nodes"},
    [DP_METHOD_WATCH_JOB] = {.name = "/dp.v1.Controller/WatchJob",
                             .request = &dp__v1__watch_job_request__descriptor,
                             .response = &dp__v1__job_event__descriptor,
                             .server_streaming = true,
                             .permission = "read",
                             .http_verb = "GET",
                             .http_path = "/v1/jobs/{id}/watch"},
    [DP_METHOD_READ_LOGS] = {.name = "/dp.v1.Controller/ReadLogs",
                             .request = &dp__v1__read_logs_request__descriptor,
                             .response = &dp__v1__log_text__descriptor,
                             .server_streaming = true,
                             .permission = "read",
                             .http_verb = "GET",
                             .http_path = "/v1/jobs/{id}/logs"},
    [DP_METHOD_GET_REPORT] = {.name = "/dp.v1.Controller/GetReport",
                              .request = &dp__v1__get_report_request__descriptor,
                              .response = &dp__v1__job_report__descriptor,
                              .deadline_ms = DP_METHOD_DEADLINE_MS,
                              .permission = "read",
                              .http_verb = "GET",
                              .http_path = "/v1/jobs/{id}/report"},
    [DP_METHOD_GET_TIMELINE] = {.name = "/dp.v1.Controller/GetTimeline",
                                .request = &dp__v1__get_timeline_request__descriptor,
                                .response = &dp__v1__timeline__descriptor,
                                .deadline_ms = DP_METHOD_DEADLINE_MS,
                                .permission = "read",
                                .http_verb = "GET",
                                .http_path = "/v1/jobs/{id}/timeline"},
    [DP_METHOD_LIST_EVENTS] = {.name = "/dp.v1.Controller/ListEvents",
                               .request = &dp__v1__list_events_request__descriptor,
                               .response = &dp__v1__list_events_response__descriptor,
                               .deadline_ms = DP_METHOD_DEADLINE_MS,
                               .permission = "read",
                               .http_verb = "GET",
                               .http_path = "/v1/events"},
    [DP_METHOD_PLAN] = {.name = "/dp.v1.Planner/Plan",
                        .request = &dp__v1__plan_request__descriptor,
                        .response = &dp__v1__plan_response__descriptor,
                        .deadline_ms = 300000,
                        .permission = "read",
                        .http_verb = "POST",
                        .http_path = "/v1/plan"},
    [DP_METHOD_SIMULATE] = {.name = "/dp.v1.Planner/Simulate",
                            .request = &dp__v1__simulate_request__descriptor,
                            .response = &dp__v1__simulation__descriptor,
                            .deadline_ms = 60000,
                            .permission = "read",
                            .http_verb = "POST",
                            .http_path = "/v1/simulate"},
    [DP_METHOD_APPLY_CLUSTER] = {.name = "/dp.v1.Clusters/ApplyCluster",
                                 .request = &dp__v1__apply_cluster_request__descriptor,
                                 .response = &dp__v1__apply_cluster_response__descriptor,
                                 .deadline_ms = DP_METHOD_DEADLINE_MS,
                                 .permission = "operate",
                                 .http_verb = "POST",
                                 .http_path = "/v1/clusters"},
    [DP_METHOD_GET_CLUSTER] = {.name = "/dp.v1.Clusters/GetCluster",
                               .request = &dp__v1__get_cluster_request__descriptor,
                               .response = &dp__v1__cluster__descriptor,
                               .deadline_ms = DP_METHOD_DEADLINE_MS,
                               .permission = "read",
                               .http_verb = "GET",
                               .http_path = "/v1/clusters/{name}"},
    [DP_METHOD_LIST_CLUSTERS] = {.name = "/dp.v1.Clusters/ListClusters",
                                 .request = &dp__v1__list_clusters_request__descriptor,
                                 .response = &dp__v1__list_clusters_response__descriptor,
                                 .deadline_ms = DP_METHOD_DEADLINE_MS,
                                 .permission = "read",
                                 .http_verb = "GET",
                                 .http_path = "/v1/clusters"},
    [DP_METHOD_DELETE_CLUSTER] = {.name = "/dp.v1.Clusters/DeleteCluster",
                                  .request = &dp__v1__delete_cluster_request__descriptor,
                                  .response = &dp__v1__cluster__descriptor,
                                  .deadline_ms = DP_METHOD_DEADLINE_MS,
                                  .permission = "operate",
                                  .http_verb = "POST",
                                  .http_path = "/v1/clusters/{name}/delete"},
    [DP_METHOD_CALIBRATE] = {.name = "/dp.v1.Calibration/Calibrate",
                             .request = &dp__v1__calibrate_request__descriptor,
                             .response = &dp__v1__calibrate_event__descriptor,
                             .server_streaming = true,
                             .permission = "operate",
                             .http_verb = "POST",
                             .http_path = "/v1/calibrations"},
    [DP_METHOD_LIST_PROFILES] = {.name = "/dp.v1.Calibration/ListProfiles",
                                 .request = &dp__v1__list_profiles_request__descriptor,
                                 .response = &dp__v1__list_profiles_response__descriptor,
                                 .deadline_ms = DP_METHOD_DEADLINE_MS,
                                 .permission = "read",
                                 .http_verb = "GET",
                                 .http_path = "/v1/nodes/{node}/profiles"},
    [DP_METHOD_SESSION] = {.name = "/dp.v1.AgentService/Session",
                           .request = &dp__v1__agent_message__descriptor,
                           .response = &dp__v1__controller_message__descriptor,
                           .client_streaming = true,
                           .server_streaming = true,
                           .permission = "agent"},
};

const struct dp_method *dp_method_find(const char *name)
{
    for (size_t i = 0; i < DP_METHOD_COUNT; i++) {
        if (strcmp(dp_methods[i].name, name) == 0) {
            return &dp_methods[i];
        }
    }
    return NULL;
}

static const struct text_field {
    const ProtobufCMessageDescriptor *message;
    const char *field;
    bool is_json;
} text_fields[] = {
    {&dp__v1__submit_job_request__descriptor, "job_toml", false},
    {&dp__v1__validate_job_request__descriptor, "job_toml", false},
    {&dp__v1__job__descriptor, "job_toml", false},
    {&dp__v1__prepare__descriptor, "job_toml", false},
    {&dp__v1__rank_prepare__descriptor, "job_toml", false},
    {&dp__v1__plan__descriptor, "schedule_json", true},
    {&dp__v1__plan_request__descriptor, "job_toml", false},
    {&dp__v1__plan_request__descriptor, "model_config", true},
    {&dp__v1__plan_request__descriptor, "cluster_toml", false},
    {&dp__v1__plan_request__descriptor, "profile_json", true},
    {&dp__v1__simulate_request__descriptor, "schedule_json", true},
    {&dp__v1__simulate_request__descriptor, "stage_cost_csv", false},
    {&dp__v1__inventory__descriptor, "profile_json", true},
    {&dp__v1__calibrate_event__descriptor, "profile_json", true},
    {&dp__v1__calibrate_event__descriptor, "before_json", true},
    {&dp__v1__calibrate_level__descriptor, "profile_json", true},
    {&dp__v1__stored_profile__descriptor, "document_json", true},
    {&dp__v1__list_profiles_response__descriptor, "profile_json", true},
    {&dp__v1__apply_cluster_request__descriptor, "cluster_toml", false},
    {&dp__v1__cluster__descriptor, "cluster_toml", false},
    {&dp__v1__log_chunk__descriptor, "data", false},
    {&dp__v1__log_text__descriptor, "data", false},
};

static const struct text_field *find_text(const ProtobufCMessageDescriptor *descriptor,
                                          const char *field)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(text_fields); i++) {
        if (text_fields[i].message == descriptor && strcmp(text_fields[i].field, field) == 0) {
            return &text_fields[i];
        }
    }
    return NULL;
}

bool dp_method_field_is_text(const ProtobufCMessageDescriptor *descriptor, const char *field)
{
    return find_text(descriptor, field) != NULL;
}

bool dp_method_field_is_json(const ProtobufCMessageDescriptor *descriptor, const char *field)
{
    const struct text_field *found = find_text(descriptor, field);
    return found != NULL && found->is_json;
}
