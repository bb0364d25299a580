// Prints dp.replay/1 of a trace, or with --text what people read: for the scripts beside it.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/replay.h"

int main(int argc, char **argv)
{
    bool text = argc == 3 && strcmp(argv[1], "--text") == 0;
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf file = {0};
    DP_AUTO_FREE struct dp_replay_op *ops = NULL;
    size_t count = 0;
    struct dp_replay_result result = {0};
    dp_status status = argc < 2 ? dp_fail(&err, DP_INVALID, "usage: replay_emit [--text] FILE")
                                : dp_read_file(argv[argc - 1], DP_REPLAY_BYTES_MAX, &file, &err);
    if (status == DP_OK) {
        status = dp_replay_read_csv(argv[argc - 1], file.bytes, file.length, &ops, &count, &err);
    }
    if (status == DP_OK) {
        status = dp_replay_analyze(ops, count, &result, &err);
    }
    if (status != DP_OK) {
        fprintf(stderr, "error: %s\n", err.message);
        return 1;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    if (text) {
        dp_replay_render(&result, &out);
    } else {
        DP_AUTO_JSON json_t *json = dp_replay_to_json(&result);
        dp_json_write(json, 2, &out);
    }
    fwrite(out.bytes, 1, out.length, stdout);
    dp_replay_result_deinit(&result);
    return 0;
}
