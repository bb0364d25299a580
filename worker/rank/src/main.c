// dp-rank: one rank of a job, started by its keeper.
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calibrate.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "job.h"

// Closing waits 10 s for peers, twice; a thread that hangs in a library may keep it for ever.
#define LAST_WORD_S 30

static const char usage[] =
    "usage: dp-rank --control-fd FD --rank N\n"
    "       dp-rank --calibrate\n"
    "\n"
    "Runs one rank of a job. Started by dp-keeper, which gives it orders over the descriptor.\n"
    "\n"
    "  --control-fd FD  connected socket to the keeper\n"
    "  --rank N         global rank\n"
    "  --calibrate      measure this machine and write a dp.profile/1 document to standard output\n"
    "  --help           this text\n"
    "  --version        the version\n";

struct options {
    long control_fd;
    long rank;
    bool calibrate;
};

static void end_now(int signal)
{
    _exit(128 + signal);
}

// What a failed rank had to say is said, so nothing is lost by ending in the middle of closing.
static void end_failed(int signal)
{
    (void)signal;
    _exit(EXIT_FAILURE);
}

static void set_signals(void)
{
    struct sigaction action = {.sa_handler = end_now};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = end_failed;
    sigaction(SIGALRM, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

static bool parse_number(const char *text, long max, long *ret_number)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < 0 || number > max) {
        fprintf(stderr, "dp-rank: \"%s\" is not a number from 0 to %ld\n", text, max);
        return false;
    }
    *ret_number = number;
    return true;
}

// False: *ret_exit is what the program ends with.
static bool parse_options(int count, char **arguments, struct options *ret_options, int *ret_exit)
{
    static const struct option table[] = {
        {"control-fd", required_argument, NULL, 'f'}, {"rank", required_argument, NULL, 'r'},
        {"calibrate", no_argument, NULL, 'c'},        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},          {NULL, 0, NULL, 0}};
    struct options options = {.control_fd = -1, .rank = -1};
    bool good = true;
    int letter;
    while (good && (letter = getopt_long(count, arguments, "", table, NULL)) != -1) {
        switch (letter) {
        case 'f':
            good = parse_number(optarg, INT16_MAX, &options.control_fd);
            break;
        case 'r':
            good = parse_number(optarg, DP_RANKS_MAX - 1, &options.rank);
            break;
        case 'c':
            options.calibrate = true;
            break;
        case 'h':
        case 'v':
            fputs(letter == 'h' ? usage : "dp-rank " DP_VERSION "\n", stdout);
            *ret_exit = 0;
            return false;
        default:
            good = false;
            break;
        }
    }
    good = good && optind == count &&
           (options.calibrate || (options.control_fd >= 0 && options.rank >= 0));
    if (!good) {
        fputs(usage, stderr);
        *ret_exit = dp_status_exit_code(DP_USAGE);
        return false;
    }
    *ret_options = options;
    return true;
}

static dp_status prepare(struct job *job, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__RankOrder *order;
    dp_status status =
        control_wait_order(job->control, DP__V1__RANK_ORDER__ORDER_PREPARE, &arena, &order, err);
    if (status != DP_OK) {
        return status;
    }
    if (order->prepare->fence != NULL) {
        control_set_fence(job->control, order->prepare->fence);
    }
    status = job_prepare(job, order->prepare, err);
    if (status == DP_OK) {
        job_report_ready(job);
    }
    return status;
}

static dp_status start(struct job *job, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__RankOrder *order;
    dp_status status =
        control_wait_order(job->control, DP__V1__RANK_ORDER__ORDER_START, &arena, &order, err);
    return status == DP_OK ? job_connect(job, order->start, err) : status;
}

static dp_status run_job(struct job *job, struct dp_error *err)
{
    dp_status status = prepare(job, err);
    if (status == DP_OK) {
        status = start(job, err);
    }
    if (status == DP_OK) {
        status = job_run(job, err);
    }
    if (status == DP_OK) {
        dp_log_info("rank.finished", "rank=%u step=%lld", job->rank,
                    (long long)dp_trainer_step_done(job->trainer));
    } else {
        char reason[DP_ERROR_MESSAGE_MAX];
        dp_log_error("rank.failed", "rank=%u reason=%s", job->rank,
                     dp_log_quote(reason, sizeof(reason), err->message));
    }
    job_report_finished(job, status, err);
    return status;
}

int main(int count, char **arguments)
{
    struct options options;
    int exit_code;
    dp_log_init("dp-rank", DP_LOG_INFO);
    dp_alloc_keep_freed();
    if (!parse_options(count, arguments, &options, &exit_code)) {
        return exit_code;
    }
    struct dp_error err = {0};
    if (options.calibrate) {
        if (calibrate(stdout, &err) != DP_OK) {
            char reason[DP_ERROR_MESSAGE_MAX];
            dp_log_error("rank.calibration_failed", "reason=%s",
                         dp_log_quote(reason, sizeof(reason), err.message));
            return EXIT_FAILURE;
        }
        return EXIT_SUCCESS;
    }
    set_signals();
    struct job job = {.rank = (uint32_t)options.rank};
    job.control = control_new((int)options.control_fd, job.rank);
    dp_status status = run_job(&job, &err);
    // The last word leaves first: closing may wait for peers.
    control_free(job.control);
    if (status != DP_OK || job.has_lost_peer) {
        alarm(LAST_WORD_S);
    }
    job_deinit(&job);
    return status == DP_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
