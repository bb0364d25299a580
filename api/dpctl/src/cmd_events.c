// dpctl events: what happened, and what happens.
#include <stdio.h>
#include <string.h>

#include "connect.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"

#define POLL_MS 200
#define RECONNECT_S 30
#define LISTED 1000

enum { KEY_AFTER = 1 };

static const struct argp_option options[] = {
    {"follow", 'f', NULL, 0, "go on with what happens, until Ctrl-C", 0},
    {"after", KEY_AFTER, "ID", 0, "only events after this one", 0},
    {"limit", 'n', "COUNT", 0,
     "the newest COUNT (1000); with --after the first COUNT after it; with -f the newest COUNT "
     "before what comes (all)",
     0},
    {0},
};

struct request {
    const char *job;
    long limit, after; // 0, -1 = not given
    bool follow;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case 'f':
        request->follow = true;
        return 0;
    case 'n':
        request->limit = dpctl_number(state, "--limit", arg, 1, DP_JOBS_LISTED_MAX);
        return 0;
    case KEY_AFTER:
        request->after = dpctl_number(state, "--after", arg, 0, 1l << 53);
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job", arg, &request->job);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// Without an index to go on from, what happened last is what is wanted.
static dp_status get(struct dp_client *client, const struct request *request,
                     struct dp_arena *arena, Dp__V1__ListEventsResponse **ret_events,
                     struct dp_error *err)
{
    Dp__V1__ListEventsRequest ask = DP__V1__LIST_EVENTS_REQUEST__INIT;
    ask.job = request->job == NULL ? "" : (char *)request->job;
    ask.limit = request->limit == 0 ? LISTED : (uint32_t)request->limit;
    ask.newest = request->after < 0;
    ask.after = ask.newest ? 0 : (uint64_t)request->after;
    return dp_client_list_events(client, &ask, arena, ret_events, err);
}

static dp_status list(struct dpctl *ctl, struct dp_client *client, const struct request *request,
                      struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListEventsResponse *events = NULL;
    dp_status status = get(client, request, &arena, &events, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&events->base), "dp.events/1");
        return DP_OK;
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 6};
    const char *const heads[] = {"ID", "TIME", "JOB", "NODE", "EVENT", "MESSAGE"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < events->n_events; i++) {
        const Dp__V1__Event *event = events->events[i];
        char time[32];
        dpctl_cell(&table, "%llu", (unsigned long long)event->id);
        dpctl_cell(&table, "%s", dp_clock_format_utc(time, event->time_ns));
        dpctl_cell(&table, "%s", event->job);
        dpctl_cell(&table, "%s", event->node);
        dpctl_cell(&table, "%s", event->kind);
        dpctl_cell(&table, "%s", event->message);
    }
    dpctl_table_print(&table);
    if (request->after >= 0 &&
        events->n_events == (size_t)(request->limit == 0 ? LISTED : request->limit)) {
        fprintf(stderr, "there may be more: dpctl events --after %llu\n",
                (unsigned long long)events->events[events->n_events - 1]->id);
    }
    return DP_OK;
}

// As wide as these mostly are: what comes is not known yet.
static void print_line(const char *id, const char *time, const char *job, const char *node,
                       const char *kind, const char *message)
{
    printf("%-6s  %-24s  %-7s  %-7s  %-19s  %s\n", id, time, job[0] == '\0' ? "-" : job,
           node[0] == '\0' ? "-" : node, kind, message);
}

static void print_event(struct dpctl *ctl, const Dp__V1__Event *event)
{
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&event->base), "dp.event/1");
        return;
    }
    char id[24], time[32];
    snprintf(id, sizeof(id), "%llu", (unsigned long long)event->id);
    print_line(id, dp_clock_format_utc(time, event->time_ns), event->job, event->node, event->kind,
               event->message);
}

struct follower {
    struct dpctl *ctl;
    struct dp_client *client; // NULL, as the next: none is open
    struct dp_client_events *events;
    const char *job;
    uint64_t index;
    int64_t broken_since_ns; // 0 = it is not
};

static void follower_deinit(struct follower *follower)
{
    dp_client_events_close(follower->events);
    dp_client_close(follower->client);
}

static dp_status open_events(struct follower *follower, struct dp_error *err)
{
    Dp__V1__WatchEventsRequest ask = DP__V1__WATCH_EVENTS_REQUEST__INIT;
    ask.job = follower->job == NULL ? "" : (char *)follower->job;
    ask.after = follower->index;
    return dp_client_watch_events(follower->client, &ask, &follower->events, err);
}

static bool is_given_up(const struct follower *follower)
{
    return dp_clock_monotonic_ns() - follower->broken_since_ns > RECONNECT_S * DP_NS_PER_S;
}

// The stream broke, or this reader was too slow: goes on from the last index, for a while.
static dp_status open_again(struct follower *follower, struct dp_error *err)
{
    int64_t now_ns = dp_clock_monotonic_ns();
    follower->broken_since_ns = follower->broken_since_ns == 0 ? now_ns : follower->broken_since_ns;
    if (is_given_up(follower)) {
        return dp_fail_in(err, "no events for %d s; go on with --after %llu", RECONNECT_S,
                          (unsigned long long)follower->index);
    }
    dp_client_events_close(dp_steal(follower->events));
    dp_client_close(dp_steal(follower->client));
    dp_clock_sleep_until_ns(now_ns + POLL_MS * DP_NS_PER_MS);
    // A controller that was started anew may serve elsewhere.
    dp_status status = connect_controller(follower->ctl, &follower->client, err);
    return status == DP_OK ? open_events(follower, err) : status;
}

static dp_status take_batch(struct follower *follower, bool *ret_end, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__EventBatch *batch = NULL;
    dp_status status =
        dp_client_events_next(follower->events, POLL_MS, &arena, &batch, ret_end, err);
    if (status != DP_OK || batch == NULL) {
        return status;
    }
    follower->broken_since_ns = 0;
    for (size_t i = 0; i < batch->n_events; i++) {
        print_event(follower->ctl, batch->events[i]);
    }
    fflush(stdout);
    follower->index = batch->index;
    return DP_OK;
}

static dp_status print_newest(struct follower *follower, const struct request *request,
                              struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListEventsResponse *events = NULL;
    dp_status status = get(follower->client, request, &arena, &events, err);
    for (size_t i = 0; status == DP_OK && i < events->n_events; i++) {
        print_event(follower->ctl, events->events[i]);
        follower->index = events->events[i]->id;
    }
    fflush(stdout);
    return status;
}

// Takes the client over.
static dp_status follow(struct dpctl *ctl, struct dp_client *client, const struct request *request,
                        struct dp_error *err)
{
    DP_CLEANUP(follower_deinit)
    struct follower follower = {.ctl = ctl,
                                .client = client,
                                .job = request->job,
                                .index = request->after < 0 ? 0 : (uint64_t)request->after};
    ctl->json_lines = true;
    if (!ctl->json) {
        print_line("ID", "TIME", "JOB", "NODE", "EVENT", "MESSAGE");
    }
    dp_status status = DP_OK;
    if (request->limit != 0 && request->after < 0) {
        status = print_newest(&follower, request, err);
    }
    if (status == DP_OK) {
        status = open_events(&follower, err);
    }
    while (!interrupted() && !dpctl_output_lost()) {
        bool end = false;
        if (status == DP_OK) {
            status = take_batch(&follower, &end, err);
        }
        if (status == DP_OK && !end) {
            continue;
        }
        if (status != DP_OK && status != DP_UNAVAILABLE && status != DP_TIMEOUT) {
            return status;
        }
        status = open_again(&follower, err);
        if (status != DP_OK && is_given_up(&follower)) {
            return status;
        }
    }
    return dp_fail(err, DP_INTERRUPTED, "stopped; go on with `dpctl events -f --after %llu`",
                   (unsigned long long)follower.index);
}

dp_status dpctl_cmd_events(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB]",
        .doc =
            "What happened, in order: to one job, or to all; with -f what happens from then on, "
            "too. Each event has an ID; one that is given with --after is where it goes on, also "
            "after a break.\v"
            "  dpctl events -f            everything there is, then what comes\n"
            "  dpctl events -f -n 20      the newest 20, then what comes\n"
            "  dpctl events -f --after 41 job-7\n",
        .exits =
            "0 ok, 4 no such job, 6 with -f no event has that ID yet (a backup was restored), 8 "
            "no controller, 130 Ctrl-C",
        .options = options,
        .handle = handle,
    };
    struct request request = {.after = -1};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    return request.follow ? follow(ctl, dp_steal(client), &request, err)
                          : list(ctl, client, &request, err);
}
