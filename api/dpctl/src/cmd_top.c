// dpctl top: what each rank of a job does with its time, refreshed until the job ends.

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "decisions.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "top_screen.h"

enum { KEY_ONCE = 1, KEY_PLAIN };

static const struct argp_option options[] = {
    {"once", KEY_ONCE, NULL, 0, "print one table and end", 0},
    {"plain", KEY_PLAIN, NULL, 0, "tables one below the other, no full screen", 0},
    {"interval", 'd', "SECONDS", 0, "between two looks (1)", 0},
    {0},
};

struct request {
    const char *id;
    bool once, plain;
    double interval_s;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_ONCE:
        request->once = true;
        return 0;
    case KEY_PLAIN:
        request->plain = true;
        return 0;
    case 'd':
        request->interval_s = dpctl_real(state, "--interval", arg, 0.1);
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job", arg, &request->id);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void cell_share(struct dpctl_table *table, int64_t part, int64_t whole)
{
    if (whole <= 0) {
        dpctl_cell(table, "%s", "");
    } else {
        dpctl_cell(table, "%.0f%%", 100.0 * (double)part / (double)whole);
    }
}

// Wide enough for what usually stands there, so that columns stay where they are.
static const struct {
    const char *head;
    int width;
} columns[] = {
    {"RANK", 4},   {"NODE", 6}, {"STEP", 8}, {"BUSY", 4}, {"F", 4},    {"I/B", 4},
    {"W", 4},      {"FB", 4},   {"OPT", 4},  {"EVAL", 4}, {"COMM", 4}, {"IDLE", 4},
    {"CHUNKS", 6}, {"PEAK", 9}, {"TIME", 8}, {"SKEW", 5},
};
enum { COLUMNS = sizeof columns / sizeof columns[0], NODE_COLUMN = 1 };

static void rank_row(struct dpctl_table *table, const Dp__V1__JobRank *rank)
{
    dpctl_cell(table, "%u", rank->rank);
    dpctl_cell(table, "%s", rank->node);
    const Dp__V1__Utilisation *u = rank->utilisation;
    if (u == NULL) {
        dpctl_cell(table, "%s", rank->phase);
        for (int i = 3; i < COLUMNS; i++) {
            dpctl_cell(table, "%s", "");
        }
        return;
    }
    char text[32];
    int64_t busy = u->forward_ns + u->backward_ns + u->weight_ns + u->pair_ns + u->optimizer_ns +
                   u->evaluation_ns;
    const int64_t shares[] = {
        busy,       u->forward_ns,   u->backward_ns,   u->weight_ns,
        u->pair_ns, u->optimizer_ns, u->evaluation_ns, u->comm_exposed_ns,
        u->idle_ns,
    };
    dpctl_cell(table, "%llu", (unsigned long long)u->step);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(shares); i++) {
        cell_share(table, shares[i], u->period_ns);
    }
    dpctl_cell(table, "%u/%u", u->live_chunks, u->peak_chunks);
    dpctl_cell(table, "%s", dpctl_bytes(text, (double)u->peak_bytes));
    dpctl_cell(table, "%s", u->step_ns > 0 ? dpctl_seconds(text, (double)u->step_ns / 1e9) : "");
    dpctl_cell(table, rank->load != NULL ? "x%.2f" : "", rank->load != NULL ? rank->load->skew : 0);
}

static void print_top(const Dp__V1__Job *job)
{
    printf("%s  %s  %s  step %llu/%llu  %.0f tokens/s", job->id, job->name,
           job_state_text(job->state), (unsigned long long)job->step,
           (unsigned long long)job->steps_total, job->tokens_per_s);
    if (job->loss_known) {
        printf("  loss %.4f", job->loss);
    }
    puts("");
    int widths[COLUMNS];
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {
        .columns = COLUMNS, .right = ~(1u << NODE_COLUMN), .widths = widths};
    for (int i = 0; i < COLUMNS; i++) {
        widths[i] = columns[i].width;
        dpctl_cell(&table, "%s", columns[i].head);
    }
    for (size_t i = 0; i < job->n_ranks; i++) {
        rank_row(&table, job->ranks[i]);
    }
    dpctl_table_print(&table);
    dpctl_print_verdicts("slow: ", job);
}

// One look at the job after the other, until it ends or the user has seen enough.
struct watch {
    struct dpctl *ctl;
    struct dp_client *client;
    const struct request *request;
    struct top_screen *screen; // NULL = tables or JSON
    struct top_history history;
    struct dp_arena arenas[2]; // of the job that is shown, and of the next one
    int turn;
};

static void watch_deinit(struct watch *watch)
{
    top_screen_close(watch->screen);
    top_history_deinit(&watch->history);
    dp_arena_deinit(&watch->arenas[0]);
    dp_arena_deinit(&watch->arenas[1]);
}

static void show(struct watch *watch, Dp__V1__Job *job)
{
    if (watch->screen != NULL) {
        if (!top_screen_paused(watch->screen)) {
            top_history_add(&watch->history, job);
        }
        top_screen_draw(watch->screen, job, &watch->history);
    } else if (watch->ctl->json) {
        dpctl_print_json(watch->ctl, dp_message_to_json(&job->base), "dp.job/1");
    } else {
        print_top(job);
    }
    fflush(stdout);
}

// Whether to go on.
static bool pause_between(struct watch *watch)
{
    int interval_ms = (int)(watch->request->interval_s * 1e3);
    if (watch->screen != NULL) {
        return !top_screen_wait(watch->screen, interval_ms);
    }
    poll(NULL, 0, interval_ms);
    return true;
}

static dp_status watch_job(struct watch *watch, struct dp_error *err)
{
    const char *id = watch->request->id;
    for (;;) {
        struct dp_arena *arena = &watch->arenas[watch->turn];
        watch->turn = 1 - watch->turn;
        dp_arena_deinit(arena);
        dp_arena_init(arena, 0);
        Dp__V1__Job *job = NULL;
        dp_status status = dp_client_get_job(watch->client, id, arena, &job, err);
        if (status != DP_OK) {
            return status;
        }
        show(watch, job);
        if (watch->request->once || job_state_is_final(job->state) || dpctl_output_lost() ||
            !pause_between(watch)) {
            return DP_OK;
        }
        if (interrupted()) {
            return dp_fail(err, DP_INTERRUPTED, "stopped watching; %s goes on", job->id);
        }
    }
}

// Jobs that have ranks are looked at first, then those that wait.
static dp_status choose_job(struct dp_client *client, struct request *request,
                            struct dp_arena *arena, struct dp_error *err)
{
    Dp__V1__ListJobsRequest list = DP__V1__LIST_JOBS_REQUEST__INIT;
    list.active = true;
    Dp__V1__ListJobsResponse *jobs = NULL;
    dp_status status =
        request->id == NULL ? dp_client_list_jobs(client, &list, arena, &jobs, err) : DP_OK;
    for (size_t i = 0; jobs != NULL && request->id == NULL && i < jobs->n_jobs; i++) {
        Dp__V1__JobState state = jobs->jobs[i]->state;
        if (state == DP__V1__JOB_STATE__JOB_RUNNING ||
            state == DP__V1__JOB_STATE__JOB_REASSIGNING) {
            request->id = jobs->jobs[i]->id;
        }
    }
    return status == DP_OK ? newest_job(client, request->id, true, arena, &request->id, err)
                           : status;
}

static bool has_screen(const struct dpctl *ctl, const struct request *request)
{
    const char *term = getenv("TERM");
    bool dumb = term == NULL || term[0] == '\0' || strcmp(term, "dumb") == 0;
    // Keys come from a terminal, too; elsewhere each look for one would return at once.
    bool is_terminal = ctl->out_is_tty && isatty(STDIN_FILENO);
    return is_terminal && !ctl->json && !request->once && !request->plain && !dumb;
}

dp_status dpctl_cmd_top(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB]",
        .doc =
            "Live utilisation per rank. On a terminal: ranks x time over the whole screen, the "
            "height and colour of a cell being what the rank did in that second, stragglers marked "
            "('?' suspected, '!' confirmed) with their cause; q leaves, m shows another figure, s "
            "puts the worst first. Elsewhere, or with --plain, tables: share of the last second by "
            "kind (F forward, I/B backward, W weight gradients, FB overlapped pairs, OPT "
            "optimizer, EVAL evaluation), COMM communication not hidden, IDLE, live and peak "
            "chunks, peak memory, TIME of the last step, SKEW: its fullest expert over the mean "
            "of a layer's experts; below, who is slow.\v"
            "Without JOB: the newest that runs, else the newest. Ends with the job; Ctrl-C ends it "
            "earlier. With -o json each refresh is one line.\n",
        .exits = "0 ok, 4 no such job, 8 no controller, 130 Ctrl-C",
        .options = options,
        .handle = handle,
    };
    struct request request = {.interval_s = 1};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    ctl->json_lines = !request.once;
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena id_arena = {0};
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = choose_job(client, &request, &id_arena, err);
    }
    interrupted();
    DP_CLEANUP(watch_deinit)
    struct watch watch = {.ctl = ctl, .client = client, .request = &request};
    if (status == DP_OK && has_screen(ctl, &request)) {
        status = top_screen_open(ctl->color, &watch.screen, err);
    }
    return status == DP_OK ? watch_job(&watch, err) : status;
}
