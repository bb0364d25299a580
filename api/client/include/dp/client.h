// The controller as typed calls, for dpctl and tests. Blocking; one thread at a time per client.
// Answers are checked by dp_wire_unpack and lie in the arena that the caller gives: nothing to
// free one by one. Errors carry the status and the text that the controller gave.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dp/arena.h"
#include "dp/error.h"
#include "dp/v1/calibration.pb-c.h"
#include "dp/v1/cluster.pb-c.h"
#include "dp/v1/controller.pb-c.h"
#include "dp/v1/history.pb-c.h"
#include "dp/v1/planner.pb-c.h"

struct dp_client;

// Connects and agrees on the protocol. An unreachable controller is DP_UNAVAILABLE and names the
// address and what to do; another protocol is DP_UNSUPPORTED and names both versions. wait_ms: how
// long to go on trying to connect (0 = the first refusal is final). address: "host:port",
// "unix:/path", or "@FILE" for a file that holds one (as dp-controller --address-file writes it).
dp_status dp_client_open(const char *address, unsigned wait_ms, struct dp_client **ret_client,
                         struct dp_error *err);
// Accepts NULL.
void dp_client_close(struct dp_client *client);
const char *dp_client_address(const struct dp_client *client);
// What the controller said when the client opened; borrowed.
const Dp__V1__VersionInfo *dp_client_version(const struct dp_client *client);

// Who asks: what goes into the `user` of every request that has one and does not say so itself; a
// name that is too long is refused with the request, not cut to somebody else's.
void dp_client_set_user(struct dp_client *client, const char *user);

// One function for each RPC that dpctl makes. Reads are tried once more when the connection broke;
// so is SubmitJob when it has a request_id.
dp_status dp_client_submit_job(struct dp_client *client, const Dp__V1__SubmitJobRequest *request,
                               struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err);
dp_status dp_client_get_job(struct dp_client *client, const char *id, struct dp_arena *arena,
                            Dp__V1__Job **ret_job, struct dp_error *err);
dp_status dp_client_list_jobs(struct dp_client *client, const Dp__V1__ListJobsRequest *request,
                              struct dp_arena *arena, Dp__V1__ListJobsResponse **ret_response,
                              struct dp_error *err);
dp_status dp_client_cancel_job(struct dp_client *client, const char *id, const char *reason,
                               struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err);
// Holds it, releases it, or changes its priority.
dp_status dp_client_update_job(struct dp_client *client, const Dp__V1__UpdateJobRequest *request,
                               struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err);
dp_status dp_client_checkpoint_job(struct dp_client *client, const char *id, struct dp_arena *arena,
                                   Dp__V1__CheckpointJobResponse **ret_response,
                                   struct dp_error *err);
// Another layout is looked for; what becomes of it is a decision of the job.
dp_status dp_client_reassign_job(struct dp_client *client,
                                 const Dp__V1__ReassignJobRequest *request, struct dp_arena *arena,
                                 Dp__V1__Job **ret_job, struct dp_error *err);
// What was decided, with all answers that were weighed.
dp_status dp_client_list_decisions(struct dp_client *client, const char *id, struct dp_arena *arena,
                                   Dp__V1__ListDecisionsResponse **ret_response,
                                   struct dp_error *err);
dp_status dp_client_list_nodes(struct dp_client *client, struct dp_arena *arena,
                               Dp__V1__ListNodesResponse **ret_response, struct dp_error *err);
dp_status dp_client_drain_node(struct dp_client *client, const Dp__V1__DrainNodeRequest *request,
                               struct dp_arena *arena, Dp__V1__Node **ret_node,
                               struct dp_error *err);
dp_status dp_client_undrain_node(struct dp_client *client, const char *node, struct dp_arena *arena,
                                 Dp__V1__Node **ret_node, struct dp_error *err);
dp_status dp_client_set_node(struct dp_client *client, const Dp__V1__SetNodeRequest *request,
                             struct dp_arena *arena, Dp__V1__Node **ret_node, struct dp_error *err);
dp_status dp_client_set_quota(struct dp_client *client, const Dp__V1__SetQuotaRequest *request,
                              struct dp_arena *arena, Dp__V1__Quota **ret_quota,
                              struct dp_error *err);
dp_status dp_client_list_quotas(struct dp_client *client, struct dp_arena *arena,
                                Dp__V1__ListQuotasResponse **ret_response, struct dp_error *err);
dp_status dp_client_get_report(struct dp_client *client, const char *id, struct dp_arena *arena,
                               Dp__V1__JobReport **ret_report, struct dp_error *err);
dp_status dp_client_get_timeline(struct dp_client *client, const char *id, struct dp_arena *arena,
                                 Dp__V1__Timeline **ret_timeline, struct dp_error *err);
dp_status dp_client_list_events(struct dp_client *client, const Dp__V1__ListEventsRequest *request,
                                struct dp_arena *arena, Dp__V1__ListEventsResponse **ret_response,
                                struct dp_error *err);

// Changes nothing; takes some seconds. DP_BUSY: too many questions are being answered, try again in
// some seconds.
dp_status dp_client_plan(struct dp_client *client, const Dp__V1__PlanRequest *request,
                         struct dp_arena *arena, Dp__V1__PlanResponse **ret_response,
                         struct dp_error *err);

dp_status dp_client_apply_cluster(struct dp_client *client,
                                  const Dp__V1__ApplyClusterRequest *request,
                                  struct dp_arena *arena,
                                  Dp__V1__ApplyClusterResponse **ret_response,
                                  struct dp_error *err);
dp_status dp_client_get_cluster(struct dp_client *client, const char *name, struct dp_arena *arena,
                                Dp__V1__Cluster **ret_cluster, struct dp_error *err);
dp_status dp_client_list_clusters(struct dp_client *client, struct dp_arena *arena,
                                  Dp__V1__ListClustersResponse **ret_response,
                                  struct dp_error *err);
dp_status dp_client_delete_cluster(struct dp_client *client, const char *name,
                                   struct dp_arena *arena, Dp__V1__Cluster **ret_cluster,
                                   struct dp_error *err);

// Streams. Next waits at most timeout_ms: DP_OK with *ret_event, or with NULL when nothing came
// yet; at the end of the stream DP_OK, NULL and *ret_end = true. A short timeout (200 ms) lets the
// caller look at Ctrl-C. Use a fresh arena for each message of a long stream.
struct dp_client_watch;
struct dp_client_logs;
struct dp_client_calibration;

dp_status dp_client_watch_job(struct dp_client *client, const Dp__V1__WatchJobRequest *request,
                              struct dp_client_watch **ret_watch, struct dp_error *err);
dp_status dp_client_watch_next(struct dp_client_watch *watch, unsigned timeout_ms,
                               struct dp_arena *arena, Dp__V1__JobEvent **ret_event, bool *ret_end,
                               struct dp_error *err);
// Accepts NULL.
void dp_client_watch_close(struct dp_client_watch *watch);

dp_status dp_client_read_logs(struct dp_client *client, const Dp__V1__ReadLogsRequest *request,
                              struct dp_client_logs **ret_logs, struct dp_error *err);
dp_status dp_client_logs_next(struct dp_client_logs *logs, unsigned timeout_ms,
                              struct dp_arena *arena, Dp__V1__LogText **ret_text, bool *ret_end,
                              struct dp_error *err);
// Accepts NULL.
void dp_client_logs_close(struct dp_client_logs *logs);

// Closing ends what is being measured.
dp_status dp_client_calibrate(struct dp_client *client, const Dp__V1__CalibrateRequest *request,
                              struct dp_client_calibration **ret_calibration, struct dp_error *err);
dp_status dp_client_calibrate_next(struct dp_client_calibration *calibration, unsigned timeout_ms,
                                   struct dp_arena *arena, Dp__V1__CalibrateEvent **ret_event,
                                   bool *ret_end, struct dp_error *err);
// Accepts NULL.
void dp_client_calibrate_close(struct dp_client_calibration *calibration);
dp_status dp_client_list_profiles(struct dp_client *client, const char *node, uint32_t limit,
                                  struct dp_arena *arena,
                                  Dp__V1__ListProfilesResponse **ret_response,
                                  struct dp_error *err);

// Who changed what, and jobs that are over.
dp_status dp_client_list_audit(struct dp_client *client, const Dp__V1__ListAuditRequest *request,
                               struct dp_arena *arena, Dp__V1__ListAuditResponse **ret_response,
                               struct dp_error *err);
dp_status dp_client_list_history(struct dp_client *client,
                                 const Dp__V1__ListHistoryRequest *request, struct dp_arena *arena,
                                 Dp__V1__ListHistoryResponse **ret_response, struct dp_error *err);

// Events as they come, and the database in chunks: streams, as above.
struct dp_client_events;
dp_status dp_client_watch_events(struct dp_client *client,
                                 const Dp__V1__WatchEventsRequest *request,
                                 struct dp_client_events **ret_events, struct dp_error *err);
dp_status dp_client_events_next(struct dp_client_events *events, unsigned timeout_ms,
                                struct dp_arena *arena, Dp__V1__EventBatch **ret_batch,
                                bool *ret_end, struct dp_error *err);
// Accepts NULL.
void dp_client_events_close(struct dp_client_events *events);

struct dp_client_backup;
dp_status dp_client_backup(struct dp_client *client, struct dp_client_backup **ret_backup,
                           struct dp_error *err);
dp_status dp_client_backup_next(struct dp_client_backup *backup, unsigned timeout_ms,
                                struct dp_arena *arena, Dp__V1__BackupChunk **ret_chunk,
                                bool *ret_end, struct dp_error *err);
// Accepts NULL.
void dp_client_backup_close(struct dp_client_backup *backup);
