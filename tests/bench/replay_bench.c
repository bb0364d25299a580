// What reading and replaying a trace takes on one core: replay_bench TRACE prints operations and
// seconds of processor time, the least of several runs.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "dp/cleanup.h"
#include "dp/replay.h"

enum { RUNS = 7 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf file = {0};
    if (argc != 2 || dp_read_file(argv[1], DP_REPLAY_BYTES_MAX, &file, &err) != DP_OK) {
        fprintf(stderr, "usage: replay_bench TRACE: %s\n", err.message);
        return 1;
    }
    double read_s = 1e9, replay_s = 1e9;
    size_t count = 0;
    for (int run = 0; run < RUNS; run++) {
        struct dp_replay_op *ops = NULL;
        struct dp_replay_result result;
        double begin = now();
        dp_status status = dp_replay_read_csv(argv[1], file.bytes, file.length, &ops, &count, &err);
        double middle = now();
        if (status == DP_OK) {
            status = dp_replay_analyze(ops, count, &result, &err);
        }
        double end = now();
        free(ops);
        if (status != DP_OK) {
            fprintf(stderr, "error: %s\n", err.message);
            return 1;
        }
        dp_replay_result_deinit(&result);
        read_s = middle - begin < read_s ? middle - begin : read_s;
        replay_s = end - middle < replay_s ? end - middle : replay_s;
    }
    printf("{\"operations\": %zu, \"read_s\": %.6f, \"replay_s\": %.6f}\n", count, read_s,
           replay_s);
    return 0;
}
