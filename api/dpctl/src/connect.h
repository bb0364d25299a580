// A command's connection to the controller, and what several commands do with it.
#pragma once

#include "dp/arena.h"
#include "dp/client.h"
#include "dpctl.h"

// Whatever is asked for with it is asked for by $USER, or without one by whom this process belongs
// to.
void connect_as_user(struct dp_client *client);
// Opens the client of ctl->controller (or the local cluster), for $USER. Close it with
// dp_client_close.
dp_status connect_controller(struct dpctl *ctl, struct dp_client **ret_client,
                             struct dp_error *err);
void connect_cleanup(struct dp_client **client);
#define AUTO_CLIENT DP_CLEANUP(connect_cleanup)

// The job a command is about: `given`, or without one the newest (of those that have not ended, if
// there is any and `active_first`). *ret_id lies in arena or is `given`. DP_NOT_FOUND when there is
// no job at all.
dp_status newest_job(struct dp_client *client, const char *given, bool active_first,
                     struct dp_arena *arena, const char **ret_id, struct dp_error *err);

// "RUNNING" without the enum's prefix.
const char *job_state_text(Dp__V1__JobState state);
bool job_state_is_final(Dp__V1__JobState state);
// DP_OK for COMPLETED; DP_JOB_CANCELLED, DP_UNSCHEDULABLE (it can never fit) or DP_JOB_FAILED with
// the job's message in err.
dp_status job_outcome(const Dp__V1__Job *job, struct dp_error *err);

// What a change is known by, so that it may be sent again.
dp_status fresh_request_id(char ret_id[DP_NAME_MAX], struct dp_error *err);

// Hands a job in. Without a request id it gets a fresh one, so that a retry after a broken
// connection cannot submit it twice. `file` is what errors call the text. `check_index`:
// DP_CONFLICT unless it is the cluster's; 0 = whatever that is.
dp_status submit_job(struct dp_client *client, const struct dp_buf *toml, const char *file,
                     const char *request_id, uint64_t check_index, struct dp_arena *arena,
                     Dp__V1__Job **ret_job, struct dp_error *err);

// Follows a job from after_step on until it ends, with a progress line on stderr. Ctrl-C is
// DP_INTERRUPTED: the job goes on and err says how to come back. *ret_job lies in arena.
dp_status follow_job(struct dpctl *ctl, struct dp_client *client, const char *id, bool quiet,
                     uint64_t after_step, struct dp_arena *arena, Dp__V1__Job **ret_job,
                     struct dp_error *err);
// Whether Ctrl-C was pressed, or SIGTERM came, since the first call, which installs the handler.
bool interrupted(void);

// "dualpipe, pipeline 4, expert 1, data 1, 8 micro-batches of 2 samples".
const char *plan_text(char buffer[192], const Dp__V1__Plan *plan);
// The report of a job on stdout, as text or JSON.
dp_status print_report(struct dpctl *ctl, struct dp_client *client, const char *id,
                       struct dp_error *err);
// On stderr, what to look at after a report.
void print_next(const char *id, bool cluster_is_down);
