// dpctl report and timeline: what a job did, beside what was predicted.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/method.h"
#include "dp/render.h"
#include "dp/wire.h"

enum { KEY_OUT = 1 };

static const struct argp_option timeline_options[] = {
    {"out", KEY_OUT, "FILE", 0, "write here instead of stdout", 0},
    {0},
};

struct request {
    const char *id, *out;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_OUT:
        request->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job", arg, &request->id);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_difference(double predicted, double measured)
{
    if (predicted > 0 && measured > 0) {
        printf("  (%+.1f %%)", 100 * (measured / predicted - 1));
    }
}

static void print_loss(const Dp__V1__JobReport *report)
{
    const Dp__V1__Job *job = report->job;
    if (report->unigram_entropy > 0) {
        printf("corpus      %llu bytes, unigram entropy %.2f nats/byte\n",
               (unsigned long long)report->corpus_bytes, report->unigram_entropy);
    }
    if (job->loss_known) {
        printf("loss        %.4f at step 1, %.4f over the last ten steps", report->first_loss,
               report->last_loss);
        if (report->holdout_known) {
            printf(", %.4f held out", report->holdout_loss);
        }
        puts(" (nats/byte)");
    }
}

static void print_summary(const Dp__V1__JobReport *report)
{
    char a[32], b[32];
    const Dp__V1__Job *job = report->job;
    printf("%s  %s  %s after %llu of %llu steps\n", job->id, job->name, job_state_text(job->state),
           (unsigned long long)job->step, (unsigned long long)job->steps_total);
    if (job->message[0] != '\0') {
        printf("%s\n", job->message);
    }
    if (job->plan != NULL) {
        printf("plan        %s, pipeline %u, expert %u, data %u, %u micro-batches of %u samples, "
               "%llu parameters\n",
               job->plan->schedule, job->plan->pipeline, job->plan->expert, job->plan->data,
               job->plan->microbatches, job->plan->micro_batch_size,
               (unsigned long long)report->parameters);
    }
    print_loss(report);
    if (report->measured_step_s > 0) {
        printf("step time   predicted %s, measured %s", dpctl_seconds(a, report->predicted_step_s),
               dpctl_seconds(b, report->measured_step_s));
        print_difference(report->predicted_step_s, report->measured_step_s);
        printf(", %.0f tokens/s\n", report->measured_tokens_per_s);
    }
    if (report->submit_to_first_step_s > 0) {
        printf("first step  %s after submission\n",
               dpctl_seconds(a, report->submit_to_first_step_s));
    }
    if (job->checkpoint[0] != '\0') {
        printf("checkpoint  %s\n", job->checkpoint);
    }
}

static void print_ranks(const Dp__V1__JobReport *report)
{
    if (report->n_ranks == 0) {
        return;
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 8};
    const char *const heads[] = {"RANK",   "NODE",      "BUSY",        "PREDICTED",
                                 "BUBBLE", "PREDICTED", "PEAK CHUNKS", "PEAK BYTES"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < report->n_ranks; i++) {
        const Dp__V1__RankResult *rank = report->ranks[i];
        char text[32], other[32];
        dpctl_cell(&table, "%u", rank->rank);
        dpctl_cell(&table, "%s", rank->node);
        dpctl_cell(&table, "%s", dpctl_seconds(text, rank->measured_busy_s));
        dpctl_cell(&table, "%s", dpctl_seconds(text, rank->predicted_busy_s));
        dpctl_cell(&table, "%s", dpctl_seconds(text, rank->measured_bubble_s));
        dpctl_cell(&table, "%s", dpctl_seconds(text, rank->predicted_bubble_s));
        dpctl_cell(&table, "%u of %u", rank->measured_peak_chunks, rank->predicted_peak_chunks);
        dpctl_cell(&table, "%s of %s", dpctl_bytes(text, rank->measured_peak_bytes),
                   dpctl_bytes(other, rank->predicted_peak_bytes));
    }
    puts("");
    dpctl_table_print(&table);
}

dp_status print_report(struct dpctl *ctl, struct dp_client *client, const char *id,
                       struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__JobReport *report = NULL;
    dp_status status = dp_client_get_report(client, id, &arena, &report, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(dp_message_to_json(&report->base), "dp.report/1");
        return DP_OK;
    }
    print_summary(report);
    print_ranks(report);
    for (size_t i = 0; i < report->n_notes; i++) {
        printf("%snote: %s\n", i == 0 ? "\n" : "", report->notes[i]);
    }
    return DP_OK;
}

dp_status dpctl_cmd_report(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "[JOB]",
        "How a job (the newest, when none is named) did: loss beside the corpus's unigram entropy, "
        "step time, busy time and bubble "
        "per rank, each beside its prediction.",
        NULL, handle};
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    if (status == DP_OK) {
        status = newest_job(client, request.id, false, &arena, &request.id, err);
    }
    return status == DP_OK ? print_report(ctl, client, request.id, err) : status;
}

// Measured steps as one track, the prediction as another. Both begin at their earliest span.
static dp_status render_timeline(const Dp__V1__Timeline *timeline, struct dp_buf *out,
                                 struct dp_error *err)
{
    size_t count = timeline->n_predicted;
    for (size_t i = 0; i < timeline->n_measured; i++) {
        count += timeline->measured[i]->n_spans;
    }
    if (count == timeline->n_predicted) {
        return dp_fail(err, DP_NOT_FOUND,
                       "no step of %s was traced yet; try again after its first step",
                       timeline->job->id);
    }
    const Dp__V1__Plan *plan = timeline->job->plan;
    int32_t pipeline = plan == NULL || plan->pipeline == 0 ? 1 : (int32_t)plan->pipeline;
    DP_AUTO_FREE struct dp_action_span *spans = dp_new_array(struct dp_action_span, count);
    size_t used = 0;
    for (size_t i = 0; i < timeline->n_measured; i++) {
        const Dp__V1__TimelineStep *step = timeline->measured[i];
        for (size_t j = 0; j < step->n_spans; j++) {
            dp_wire_span_from_proto(step->spans[j], pipeline, (int64_t)step->step, &spans[used++]);
        }
    }
    struct dp_trace_track tracks[2] = {{.name = "measured", .spans = spans, .count = used},
                                       {.name = "predicted", .spans = spans + used}};
    for (size_t i = 0; i < timeline->n_predicted; i++) {
        dp_wire_span_from_proto(timeline->predicted[i], pipeline, 0, &spans[used++]);
    }
    tracks[1].count = timeline->n_predicted;
    dp_render_trace(tracks, 2, out);
    return DP_OK;
}

dp_status dpctl_cmd_timeline(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "[JOB]",
        "What really ran when, with the prediction beside it, as a trace that ui.perfetto.dev "
        "opens (Chrome JSON).\v"
        "Example: dpctl timeline job-3 --out t.json\n",
        timeline_options, handle};
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Timeline *timeline = NULL;
    status = newest_job(client, request.id, false, &arena, &request.id, err);
    if (status == DP_OK) {
        status = dp_client_get_timeline(client, request.id, &arena, &timeline, err);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (status == DP_OK) {
        status = render_timeline(timeline, &text, err);
    }
    if (status == DP_OK) {
        status = dpctl_write(request.out, &text, err);
    }
    if (status == DP_OK && request.out != NULL) {
        fprintf(stderr, "%s written; open it with https://ui.perfetto.dev\n", request.out);
    }
    return status;
}
