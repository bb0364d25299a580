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
struct rank_output {
    struct dp_buf bytes;
    char node[DP_NAME_MAX];
};

struct lines {
    struct dpctl *ctl;
    bool prefix; // says whose line it is
    struct rank_output *ranks;
    size_t count;
    uint64_t printed;
};

static void lines_deinit(struct lines *lines)
{
    for (size_t i = 0; i < lines->count; i++) {
        dp_buf_deinit(&lines->ranks[i].bytes);
    }
    free(lines->ranks);
}

static void print_line(struct lines *lines, uint32_t rank, const char *node, const char *line,
                       size_t length)
{
    lines->printed++;
    if (lines->ctl->json) {
        dpctl_print_json(lines->ctl,
                         json_pack("{s:I, s:s, s:o}", "rank", (json_int_t)rank, "node", node,
                                   "line", dpctl_text_json(line, length)),
                         "dp.log_line/1");
        return;
    }
    if (lines->prefix) {
        printf("rank %u  ", rank);
    }
    fwrite(line, 1, length, stdout);
    putchar('\n');
}

static void print_lines(struct lines *lines, uint32_t rank, bool flush_all)
{
    struct rank_output *output = &lines->ranks[rank];
    struct dp_buf *buf = &output->bytes;
    size_t done = 0;
    while (done < buf->length) {
        const char *newline = memchr(buf->bytes + done, '\n', buf->length - done);
        if (newline == NULL && !flush_all) {
            break;
        }
        size_t end = newline == NULL ? buf->length : (size_t)(newline - buf->bytes);
        print_line(lines, rank, output->node, buf->bytes + done, end - done);
        done = newline == NULL ? end : end + 1;
    }
    dp_buf_consume(buf, done);
    fflush(stdout);
}

static void take(struct lines *lines, const Dp__V1__LogText *text)
{
    if (text->rank >= lines->count) {
        size_t count = (size_t)text->rank + 1;
        lines->ranks = dp_realloc(lines->ranks, count, sizeof *lines->ranks);
        memset(lines->ranks + lines->count, 0, (count - lines->count) * sizeof *lines->ranks);
        lines->count = count;
    }
    struct rank_output *output = &lines->ranks[text->rank];
    DP_COPY_TEXT(output->node, text->node);
    dp_buf_append(&output->bytes, text->data.data, text->data.len);
    print_lines(lines, text->rank, false);
}

static void close_logs(struct dp_client_logs **logs)
{
    if (*logs != NULL) {
        dp_client_logs_close(*logs);
    }
}

static dp_status read_stream(struct dp_client *client, const Dp__V1__ReadLogsRequest *read,
                             struct lines *lines, struct dp_error *err)
{
    DP_CLEANUP(close_logs) struct dp_client_logs *logs = NULL;
    dp_status status = dp_client_read_logs(client, read, &logs, err);
    bool end = false;
    while (status == DP_OK && !end && !dpctl_output_lost()) {
        if (interrupted()) {
            return dp_fail(err, DP_INTERRUPTED, "stopped reading; the job goes on");
        }
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__LogText *text = NULL;
        status = dp_client_logs_next(logs, 200, &arena, &text, &end, err);
        if (status == DP_OK && text != NULL && text->rank < DP_RANKS_MAX) {
            take(lines, text);
        }
    }
    for (size_t rank = 0; rank < lines->count; rank++) {
        print_lines(lines, (uint32_t)rank, true);
    }
    return status;
}

// What is there already, rank by rank.
static dp_status read_in_order(struct dp_client *client, Dp__V1__ReadLogsRequest *read,
                               struct lines *lines, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    dp_status status = dp_client_get_job(client, read->id, &arena, &job, err);
    if (status != DP_OK || job->n_ranks == 0) {
        return status == DP_OK ? read_stream(client, read, lines, err) : status;
    }
    read->all_ranks = false;
    for (size_t i = 0; status == DP_OK && i < job->n_ranks && !dpctl_output_lost(); i++) {
        read->rank = job->ranks[i]->rank;
        status = read_stream(client, read, lines, err);
    }
    return status;
}

dp_status dpctl_cmd_logs(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB]",
        .doc = "The output of a job's ranks (the newest job's, when none is named); each line says "
               "whose it is, unless --rank names one.\v"
               "With -o json each line is a document with rank, node and line.\n",
        .exits = "0 ok, 4 no such job or rank, 6 it never had ranks, 8 no controller, 130 Ctrl-C",
        .options = options,
        .handle = handle,
    };
    struct request request = {.rank = -1};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    ctl->json_lines = true;
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena id_arena = {0};
    if (status == DP_OK) {
        status = newest_job(client, request.id, true, &id_arena, &request.id, err);
    }
    if (status != DP_OK) {
        return status;
    }
    Dp__V1__ReadLogsRequest read = DP__V1__READ_LOGS_REQUEST__INIT;
    read.id = (char *)request.id;
    read.follow = request.follow;
    read.all_ranks = request.rank < 0;
    read.rank = request.rank < 0 ? 0 : (uint32_t)request.rank;
    read.tail_lines = (uint32_t)request.tail;
    DP_CLEANUP(lines_deinit) struct lines lines = {.ctl = ctl, .prefix = read.all_ranks};
    interrupted();
    status = read.all_ranks && !read.follow ? read_in_order(client, &read, &lines, err)
                                            : read_stream(client, &read, &lines, err);
    if (status == DP_OK && lines.printed == 0 && !dpctl_output_lost() && request.rank < 0) {
        fprintf(stderr, "note: no rank of %s has written anything yet\n", request.id);
    } else if (status == DP_OK && lines.printed == 0 && !dpctl_output_lost()) {
        fprintf(stderr, "note: rank %ld of %s has written nothing yet\n", request.rank, request.id);
    }
    return status;
}
