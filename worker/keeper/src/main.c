#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/log.h"
#include "keeper.h"

static const struct argp_option option_list[] = {
    {"directory", 'd', "DIR", 0, "where the socket, the ranks' output and the levels lie", 0},
    {"socket", 's', "NAME", 0, "the socket's name in DIR (default keeper.sock)", 0},
    {"lease-ms", 'l', "N", 0, "end the ranks after this long without an agent (10000)", 0},
    {"log-bytes", 'b', "N", 0, "keep at most this much output of each rank", 0},
    {0},
};

// A whole number in [1, max], or argp's complaint.
static uint32_t number_of(const char *text, uint32_t max, struct argp_state *state)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value < 1 || value > max) {
        argp_error(state, "\"%s\" is not a whole number from 1 to %u", text, max);
    }
    return (uint32_t)value;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct keeper_options *options = state->input;
    switch (key) {
    case 'd':
        options->directory = argument;
        return 0;
    case 's':
        options->socket = argument;
        if (strchr(argument, '/') != NULL || *argument == '\0') {
            argp_error(state, "--socket is a name in DIR, not a path: \"%s\"", argument);
        }
        return 0;
    case 'l':
        options->lease_ms = number_of(argument, INT32_MAX, state);
        return 0;
    case 'b':
        options->log_bytes_max = number_of(argument, INT32_MAX, state);
        return 0;
    case ARGP_KEY_END:
        if (options->directory == NULL) {
            argp_error(state, "--directory is missing");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    struct keeper_options options = {
        .socket = "keeper.sock",
        .lease_ms = 10000,
        .log_bytes_max = DP_RANK_LOG_BYTES_MAX,
    };
    static const struct argp parser = {
        .options = option_list,
        .parser = parse_option,
        .doc = "Parent of one job's ranks on one node. Started by dp-worker.",
    };
    argp_err_exit_status = 2;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    // Whatever the one who started this had open is not for the ranks.
    (void)close_range(STDERR_FILENO + 1, ~0u, 0);
    dp_log_init("dp-keeper", DP_LOG_INFO);
    struct keeper keeper;
    struct dp_error err = {0};
    dp_status status = keeper_open(&keeper, &options, &err);
    int exit_status = dp_status_exit_code(status);
    if (status == DP_OK) {
        exit_status = keeper_run(&keeper);
    } else {
        dp_log_error("keeper.not_started", "reason=\"%s\"", err.message);
    }
    keeper_close(&keeper);
    return exit_status;
}
