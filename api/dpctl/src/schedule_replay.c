// dpctl schedule replay: what slowed a measured run down.

#include <stdlib.h>

#include "dp/cleanup.h"
#include "dp/replay.h"
#include "schedule_verbs.h"

dp_status schedule_replay(struct dpctl *ctl, const struct schedule_request *request,
                          struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_FREE struct dp_replay_op *ops = NULL;
    size_t count = 0;
    dp_status status = dp_read_file(request->subject, DP_REPLAY_BYTES_MAX, &text, err);
    if (status == DP_OK) {
        status = dp_replay_read_csv(request->subject, text.bytes, text.length, &ops, &count, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_replay_result_deinit) struct dp_replay_result result = {0};
    status = dp_replay_analyze(ops, count, &result, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "%s", request->subject);
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_replay_to_json(&result), "dp.replay/1");
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf answer = {0};
    dp_replay_render(&result, &answer);
    dpctl_print(&answer);
    return DP_OK;
}
