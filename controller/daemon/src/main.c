// dp-controller: takes jobs, plans them, drives the agents.
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/cleanup.h"
#include "dp/log.h"

enum {
    KEY_STATE_DIR = 1,
    KEY_LISTEN,
    KEY_ADDRESS_FILE,
    KEY_HTTP_PORT,
    KEY_HTTP_ADDRESS_FILE,
    KEY_CHECK,
    KEY_HISTORY_DAYS,
    KEY_HISTORY_JOBS,
    KEY_QUEUE,
    KEY_QUEUE_PASS
};

static const struct argp_option options_list[] = {
    {"state-dir", KEY_STATE_DIR, "DIR", 0, "the database and its lock (required)", 0},
    {"listen", KEY_LISTEN, "HOST:PORT", 0, "where to serve (127.0.0.1:0 = a free port)", 0},
    {"address-file", KEY_ADDRESS_FILE, "FILE", 0, "write HOST:PORT there once it serves", 0},
    {"http-port", KEY_HTTP_PORT, "[HOST:]PORT", 0,
     "serve HTTP there, too (0 = a free port); on loopback only", 0},
    {"http-address-file", KEY_HTTP_ADDRESS_FILE, "FILE", 0,
     "write HTTP's HOST:PORT there once it serves", 0},
    {"history-days", KEY_HISTORY_DAYS, "DAYS", 0,
     "how long jobs are kept after their end (90; 0 = for ever)", 0},
    {"history-jobs", KEY_HISTORY_JOBS, "COUNT", 0,
     "how many jobs that have ended are kept (100000; 0 = any number)", 0},
    {"queue", KEY_QUEUE, "ORDER", 0,
     "best-effort (default): jobs that find room pass one that lacks it, for a while; strict: "
     "nobody does",
     0},
    {"queue-pass", KEY_QUEUE_PASS, "SECONDS", 0,
     "best-effort: how long a job may be passed before room is kept for it (600)", 0},
    {"check", KEY_CHECK, NULL, 0, "check the database of --state-dir and exit", 0},
    {0},
};

struct arguments {
    struct daemon_options options;
    bool check;
};

// A port alone is one of this machine's.
static void set_http(struct daemon_options *options, const char *arg)
{
    static char address[DP_ADDRESS_MAX];
    bool is_port = strchr(arg, ':') == NULL;
    snprintf(address, sizeof address, "%s%s", is_port ? "127.0.0.1:" : "", arg);
    options->http_listen = address;
}

static long whole_number(struct argp_state *state, const char *what, const char *text, long max)
{
    char *end = NULL;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < 0 || number > max) {
        argp_error(state, "%s takes a whole number from 0 to %ld, not \"%s\"", what, max, text);
    }
    return number;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    switch (key) {
    case KEY_STATE_DIR:
        arguments->options.state_dir = arg;
        return 0;
    case KEY_LISTEN:
        arguments->options.listen = arg;
        return 0;
    case KEY_ADDRESS_FILE:
        arguments->options.address_file = arg;
        return 0;
    case KEY_HTTP_PORT:
        set_http(&arguments->options, arg);
        return 0;
    case KEY_HTTP_ADDRESS_FILE:
        arguments->options.http_address_file = arg;
        return 0;
    case KEY_HISTORY_DAYS:
        arguments->options.history_days = whole_number(state, "--history-days", arg, 36500);
        return 0;
    case KEY_HISTORY_JOBS:
        arguments->options.history_jobs = whole_number(state, "--history-jobs", arg, 10000000);
        return 0;
    case KEY_QUEUE:
        arguments->options.queue_strict = strcmp(arg, "strict") == 0;
        if (!arguments->options.queue_strict && strcmp(arg, "best-effort") != 0) {
            argp_error(state, "--queue is strict or best-effort, not \"%s\"", arg);
        }
        return 0;
    case KEY_QUEUE_PASS:
        arguments->options.queue_pass_s = whole_number(state, "--queue-pass", arg, 1000000);
        return 0;
    case KEY_CHECK:
        arguments->check = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return 0;
    case ARGP_KEY_END:
        if (arguments->options.state_dir == NULL) {
            argp_error(state, "--state-dir is required");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "dp-controller %s\n", DP_VERSION);
}
void (*argp_program_version_hook)(FILE *, struct argp_state *) = print_version;

static dp_status check(const char *state_dir, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf report = {0};
    dp_status status = dp_store_check(state_dir, &report, err);
    fputs(report.bytes == NULL ? "" : report.bytes, stdout);
    return status;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options_list,
        .parser = parse_option,
        .doc =
            "Takes jobs, plans them and drives the agents that run them.\v"
            "SIGTERM and SIGINT stop it; running jobs go on, and a controller that is started "
            "again on the same directory takes them up.\n"
            "Exit status: 0 stopped, 2 usage, 3 the database is damaged, 5 HTTP on another address "
            "than loopback, 6 the directory or port is in use or the database is of a newer "
            "version, 1 any other error.",
    };
    argp_err_exit_status = 2;
    struct arguments arguments = {.options = {.listen = "127.0.0.1:0",
                                              .history_days = 90,
                                              .history_jobs = 100000,
                                              .queue_pass_s = 600}};
    argp_parse(&argp, argc, argv, 0, NULL, &arguments);
    dp_log_init("dp-controller", DP_LOG_INFO);
    struct dp_error err = {0};
    dp_status status = arguments.check ? check(arguments.options.state_dir, &err)
                                       : daemon_run(&arguments.options, &err);
    if (status != DP_OK) {
        fprintf(stderr, "dp-controller: %s\n", err.message);
    }
    return dp_status_exit_code(status);
}
