// dpctl logs: the output of a job's ranks, and of one that follows.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

enum { KEY_TAIL = 1 };

static const struct argp_option options[] = {
    {"follow", 'f', NULL, 0, "go on as more is written, until the job ends", 0},
    {"rank", 'r', "RANK", 0, "one rank only", 0},
    {"tail", 'n', "LINES", 0, "only the last LINES of each rank", 0},
    {0},
};

struct request {
    const char *id;
    bool follow;
    long rank, tail;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case 'f':
        request->follow = true;
        return 0;
    case 'r':
        request->rank = dpctl_number(state, "--rank", arg, 0, DP_RANKS_MAX);
        return 0;
    case 'n':
        request->tail = dpctl_number(state, "--tail", arg, 1, 1000000);
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job", arg, &request->id);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// Each rank's bytes, until a whole line is there: lines of several ranks are not mixed up.
struct lines {
    struct dp_buf *ranks;
    size_t count;
};

static void lines_deinit(struct lines *lines)
{
    for (size_t i = 0; i < lines->count; i++) {
        dp_buf_deinit(&lines->ranks[i]);
    }
    free(lines->ranks);
}

static void print_lines(struct lines *lines, uint32_t rank, bool prefix, bool flush_all)
{
    struct dp_buf *buf = &lines->ranks[rank];
    size_t done = 0;
    while (done < buf->length) {
        const char *newline = memchr(buf->bytes + done, '\n', buf->length - done);
        if (newline == NULL && !flush_all) {
            break;
        }
        size_t end = newline == NULL ? buf->length : (size_t)(newline - buf->bytes);
        if (prefix) {
            printf("rank %u  ", rank);
        }
        fwrite(buf->bytes + done, 1, end - done, stdout);
        putchar('\n');
        done = newline == NULL ? end : end + 1;
    }
    dp_buf_consume(buf, done);
    fflush(stdout);
}

static void take(struct lines *lines, const Dp__V1__LogText *text, bool prefix)
{
    if (text->rank >= lines->count) {
        size_t count = (size_t)text->rank + 1;
        lines->ranks = dp_realloc(lines->ranks, count, sizeof *lines->ranks);
        memset(lines->ranks + lines->count, 0, (count - lines->count) * sizeof *lines->ranks);
        lines->count = count;
    }
    dp_buf_append(&lines->ranks[text->rank], text->data.data, text->data.len);
    print_lines(lines, text->rank, prefix, false);
}

static void close_logs(struct dp_client_logs **logs)
{
    if (*logs != NULL) {
        dp_client_logs_close(*logs);
    }
}

dp_status dpctl_cmd_logs(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "[JOB]",
        "The output of a job's ranks (the newest job's, when none is named); each line says whose "
        "it is, unless --rank names one.",
        options, handle};
    struct request request = {.rank = -1};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena id_arena = {0};
    status = newest_job(client, request.id, true, &id_arena, &request.id, err);
    if (status != DP_OK) {
        return status;
    }
    Dp__V1__ReadLogsRequest read = DP__V1__READ_LOGS_REQUEST__INIT;
    read.id = (char *)request.id;
    read.follow = request.follow;
    read.all_ranks = request.rank < 0;
    read.rank = request.rank < 0 ? 0 : (uint32_t)request.rank;
    read.tail_lines = (uint32_t)request.tail;
    DP_CLEANUP(close_logs) struct dp_client_logs *logs = NULL;
    status = dp_client_read_logs(client, &read, &logs, err);
    DP_CLEANUP(lines_deinit) struct lines lines = {0};
    bool end = false;
    interrupted();
    while (status == DP_OK && !end) {
        if (interrupted()) {
            return dp_fail(err, DP_INTERRUPTED, "stopped reading; the job goes on");
        }
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__LogText *text = NULL;
        status = dp_client_logs_next(logs, 200, &arena, &text, &end, err);
        if (status == DP_OK && text != NULL && text->rank < DP_RANKS_MAX) {
            take(&lines, text, read.all_ranks);
        }
    }
    for (size_t rank = 0; rank < lines.count; rank++) {
        print_lines(&lines, (uint32_t)rank, read.all_ranks, true);
    }
    return status;
}
