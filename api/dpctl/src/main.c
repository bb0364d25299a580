// dpctl: finds the command in the table, runs it, prints its failure once.

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/diag.h"
#include "dp/log.h"
#include "dp/utf8.h"
#include "dpctl.h"

static const struct dpctl_command commands[] = {
#define X(name, summary) {#name, summary, dpctl_cmd_##name},
    DPCTL_COMMANDS(X)
#undef X
};

static void print_help(FILE *out)
{
    fputs("usage: dpctl COMMAND [OPTION...]\n\n", out);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(commands); i++) {
        fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\nStart with:  dpctl run examples/tiny-moe.toml\n"
          "`dpctl COMMAND --help` describes a command, its output and its exit codes.\n\n"
          "Exit codes: 0 ok, 1 error, 2 usage, 3 invalid input, 4 not found, 5 not permitted,\n"
          "6 conflict, 7 unschedulable, 8 unreachable or timed out, 9 job failed,\n"
          "10 job cancelled, 20 plan differs from what runs, 130 on Ctrl-C.\n",
          out);
}

static dp_status init(struct dpctl *ctl, struct dp_error *err)
{
    *ctl = (struct dpctl){.controller = getenv("DPCTL_CONTROLLER")};
    ctl->width = dpctl_width(STDOUT_FILENO);
    ctl->out_is_tty = isatty(STDOUT_FILENO);
    ctl->err_is_tty = isatty(STDERR_FILENO);
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    ctl->color = ctl->out_is_tty && (no_color == NULL || no_color[0] == '\0') &&
                 !(term != NULL && strcmp(term, "dumb") == 0);
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    int length;
    if (state != NULL && state[0] == '/') {
        length = snprintf(ctl->state_directory, sizeof ctl->state_directory, "%s/dp", state);
    } else if (home != NULL && home[0] == '/') {
        length =
            snprintf(ctl->state_directory, sizeof ctl->state_directory, "%s/.local/state/dp", home);
    } else {
        return dp_fail(err, DP_USAGE,
                       "no state directory: set HOME or XDG_STATE_HOME to an absolute path");
    }
    if (length >= (int)sizeof ctl->state_directory) {
        return dp_fail(err, DP_TOO_LARGE, "the state directory's path has more than %d characters",
                       DP_PATH_MAX - 1);
    }
    return DP_OK;
}

static const struct dpctl_command *find(const char *name)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    const char *names[DP_ARRAY_LENGTH(commands) + 1] = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(commands); i++) {
        names[i] = commands[i].name;
    }
    const char *near = dp_suggest(name, names);
    fprintf(stderr, "error: unknown command \"%s\"%s%s%s; `dpctl help` lists them\n", name,
            near == NULL ? "" : "; did you mean \"", near == NULL ? "" : near,
            near == NULL ? "" : "\"?");
    return NULL;
}

// `| head` has read enough: nobody is left to be told.
static bool reader_is_gone(void)
{
    struct pollfd output = {.fd = STDOUT_FILENO};
    return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

// With -o json there is one document on stdout, whatever came out: the answer or the failure.
static int finish(struct dpctl *ctl, dp_status status, struct dp_error *err)
{
    bool silent = err->message[0] == '\0';
    if (status != DP_OK && !silent && ctl->json && !ctl->answered) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:i, s:o}", "status", dp_status_name(status), "exit_code",
                                   dp_status_exit_code(status), "message",
                                   dpctl_text_json(err->message, strlen(err->message))),
                         "dp.error/1");
    }
    bool written = fflush(stdout) == 0 && !dpctl_output_lost();
    if (status != DP_OK && !silent) {
        // Errors cite what files hold.
        dp_utf8_clean(err->message, strlen(err->message), "\n\t");
        fprintf(stderr, "%s: %s\n", status == DP_INTERRUPTED ? "note" : "error", err->message);
    }
    if (!written && !reader_is_gone()) {
        fputs("error: cannot write to standard output\n", stderr);
        status = status == DP_OK ? DP_IO : status;
    }
    return dp_status_exit_code(status);
}

int main(int argc, char **argv)
{
    dp_log_init("dpctl", DP_LOG_WARN);
    argp_err_exit_status = dp_status_exit_code(DP_USAGE);
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return dp_status_exit_code(DP_USAGE);
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return 0;
    }
    const char *name = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    const struct dpctl_command *command = find(name);
    if (command == NULL) {
        return dp_status_exit_code(DP_USAGE);
    }
    struct dp_error err = {0};
    struct dpctl ctl = {0};
    dp_status status = init(&ctl, &err);
    DP_AUTO_FREE char *full_name = dp_asprintf("dpctl %s", command->name);
    argv[1] = full_name;
    if (status == DP_OK) {
        status = command->run(&ctl, argc - 1, argv + 1, &err);
    }
    return finish(&ctl, status, &err);
}
