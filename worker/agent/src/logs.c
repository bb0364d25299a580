#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dp/cleanup.h"
#include "dp/rank_log.h"
#include "worker.h"

// Nothing more will be written: the rank has ended, or the assignment is over.
static bool has_ended(const struct worker *worker, const struct dp_agent_fence *fence,
                      uint32_t rank)
{
    const struct dp_agent_assignment *assignment = dp_agent_core_find(worker->core, fence);
    for (size_t i = 0; assignment != NULL && i < assignment->ranks_count; i++) {
        if (assignment->ranks[i].rank == rank) {
            return assignment->ranks[i].ended;
        }
    }
    return true;
}

void logs_answer(struct worker *worker, const Dp__V1__ReadLog *request)
{
    Dp__V1__LogChunk chunk = DP__V1__LOG_CHUNK__INIT;
    chunk.request = request->request;
    chunk.rank = request->rank;
    chunk.offset = request->offset;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf data = {0};
    struct dp_error err = {0};
    struct dp_agent_fence fence = orders_fence(request->fence);
    DP_AUTO_FREE char *directory = directory_of(worker->options.state_dir, &fence);
    size_t bytes_max = request->bytes_max;
    if (bytes_max == 0 || bytes_max > DP_LOG_CHUNK_BYTES_MAX) {
        bytes_max = DP_LOG_CHUNK_BYTES_MAX;
    }
    // Asked before the read: what a rank wrote before it ended is then surely read.
    bool ended = has_ended(worker, &fence, request->rank);
    (void)dp_rank_log_read(directory, request->rank, request->offset, bytes_max, &chunk.offset,
                           &data, &err);
    chunk.end = ended && data.length == 0;
    chunk.data.data = (uint8_t *)data.bytes;
    chunk.data.len = data.length;
    chunk.error = err.message;
    session_send_log(worker->session, &chunk);
}
