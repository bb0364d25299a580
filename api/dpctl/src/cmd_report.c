// dpctl report: how a job did, beside what was predicted.

#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/method.h"
#include "dp/render.h"
#include "dp/wire.h"

struct request {
    const char *id;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
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
        printf(" (%+.1f %%)", 100 * (measured / predicted - 1));
    }
}

static void print_loss(const Dp__V1__JobReport *report)
{
    char steps[64];
    const char *unit = report->corpus_of_tokens ? "token" : "byte";
    if (report->unigram_entropy > 0) {
        printf("corpus      %llu bytes, unigram entropy %.2f nats/%s\n",
               (unsigned long long)report->corpus_bytes, report->unigram_entropy, unit);
    }
    if (report->first_step_seen == 0 && !report->holdout_known) {
        return;
    }
    const char *separator = "loss        ";
    if (report->first_step_seen > 0 && report->first_loss > 0) {
        printf("%s%.4f at step %llu, %.4f over the last %s", separator, report->first_loss,
               (unsigned long long)report->first_step_seen, report->last_loss,
               dpctl_count(steps, report->averaged_steps, "step"));
        separator = ", ";
    }
    if (report->holdout_known) {
        printf("%s%.4f held out", separator, report->holdout_loss);
    }
    printf(" (nats/%s)\n", unit);
}

static void print_resume(const Dp__V1__JobReport *report)
{
    const Dp__V1__Job *job = report->job;
    if (report->resumed_step == 0) {
        return;
    }
    printf("resumed     from a checkpoint at step %llu%s\n",
           (unsigned long long)report->resumed_step,
           report->resumed_step >= job->steps_total ? ", after which there was nothing to do" : "");
}

static void print_summary(const Dp__V1__JobReport *report)
{
    char a[32], b[32], plan[192];
    const Dp__V1__Job *job = report->job;
    printf("%s  %s  %s after %llu of %llu steps\n", job->id, job->name, job_state_text(job->state),
           (unsigned long long)job->step, (unsigned long long)job->steps_total);
    if (job->message[0] != '\0') {
        printf("%s\n", job->message);
    }
    if (job->plan != NULL) {
        printf("plan        %s; %s parameters\n", plan_text(plan, job->plan),
               dpctl_parameters(a, (double)report->parameters));
    }
    print_resume(report);
    print_loss(report);
    if (report->measured_step_s > 0) {
        printf("step time   predicted %s, measured %s", dpctl_seconds(a, report->predicted_step_s),
               dpctl_seconds(b, report->measured_step_s));
        print_difference(report->predicted_step_s, report->measured_step_s);
        printf(", %.0f tokens/s\n", report->measured_tokens_per_s);
    } else if (report->predicted_step_s > 0) {
        printf("step time   predicted %s, measured -\n",
               dpctl_seconds(a, report->predicted_step_s));
    }
    if (report->submit_to_first_step_s > 0) {
        printf("first step  %s after submission\n",
               dpctl_seconds(a, report->submit_to_first_step_s));
    }
    if (job->checkpoint[0] != '\0') {
        printf("checkpoint  %s\n", job->checkpoint);
    }
}

// A rank's step and what it is made of; all zero when nothing is known.
struct rank_figures {
    double busy, exchange, bubble, sums, optimizer; // seconds
    uint32_t peak_chunks;
    double peak_bytes;
};

static struct rank_figures measured(const Dp__V1__RankResult *rank)
{
    return (struct rank_figures){
        rank->measured_busy_s,      rank->measured_exchange_s,  rank->measured_bubble_s,
        rank->measured_grad_sync_s, rank->measured_optimizer_s, rank->measured_peak_chunks,
        rank->measured_peak_bytes,
    };
}

static struct rank_figures predicted(const Dp__V1__RankResult *rank)
{
    return (struct rank_figures){
        rank->predicted_busy_s,      rank->predicted_exchange_s,  rank->predicted_bubble_s,
        rank->predicted_grad_sync_s, rank->predicted_optimizer_s, rank->predicted_peak_chunks,
        rank->predicted_peak_bytes,
    };
}

static void add_rank(struct dpctl_table *table, const Dp__V1__RankResult *rank,
                     const struct rank_figures *figures)
{
    char text[32];
    const double parts[] = {
        figures->busy,
        figures->exchange,
        figures->bubble,
        figures->sums,
        figures->optimizer,
        figures->busy + figures->exchange + figures->bubble + figures->sums + figures->optimizer,
    };
    bool known = figures->busy > 0;
    dpctl_cell(table, "%u", rank->rank);
    dpctl_cell(table, "%s", rank->node);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++) {
        dpctl_cell(table, "%s", known && parts[i] > 0 ? dpctl_seconds(text, parts[i]) : "");
    }
    dpctl_cell(table, figures->peak_chunks > 0 ? "%u" : "", figures->peak_chunks);
    dpctl_cell(table, "%s", figures->peak_bytes > 0 ? dpctl_bytes(text, figures->peak_bytes) : "");
}

static void print_ranks(const Dp__V1__JobReport *report, const char *title,
                        struct rank_figures (*figures_of)(const Dp__V1__RankResult *rank))
{
    static const char *const heads[] = {"RANK", "NODE",      "BUSY", "EXCHANGE", "BUBBLE",
                                        "SUMS", "OPTIMIZER", "STEP", "CHUNKS",   "PEAK"};
    static const int widths[] = {4, 6, 8, 8, 8, 8, 9, 8, 6, 9}; // the same in both tables
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {
        .columns = DP_ARRAY_LENGTH(heads), .right = ~(1u << 1), .widths = widths};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < report->n_ranks; i++) {
        struct rank_figures figures = figures_of(report->ranks[i]);
        add_rank(&table, report->ranks[i], &figures);
    }
    printf("\n%s\n", title);
    dpctl_table_print(&table);
}

// What filled each rank's device, or was said to.
static void add_memory(struct dpctl_table *table, uint32_t rank, const char *what,
                       const Dp__V1__MemoryParts *memory)
{
    const double parts[] = {
        memory->weights,
        memory->gradients,
        memory->optimizer,
        memory->activations + memory->deferred + memory->transient,
        memory->exchange + memory->runtime,
    };
    char text[32];
    double all = 0;
    dpctl_cell(table, "%u", rank);
    dpctl_cell(table, "%s", what);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++) {
        all += parts[i];
        dpctl_cell(table, "%s", dpctl_bytes(text, parts[i]));
    }
    dpctl_cell(table, "%s", dpctl_bytes(text, all));
}

static void print_memory(const Dp__V1__JobReport *report)
{
    static const char *const heads[] = {
        "RANK", "", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "ACTIVATIONS", "BUFFERS", "ALL"};
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {.columns = DP_ARRAY_LENGTH(heads), .right = ~(1u << 1)};
    dpctl_heads(&table, heads);
    bool any = false;
    for (size_t i = 0; i < report->n_ranks; i++) {
        const Dp__V1__RankResult *rank = report->ranks[i];
        if (rank->measured_memory == NULL) {
            continue;
        }
        any = true;
        add_memory(&table, rank->rank, "measured", rank->measured_memory);
        if (rank->predicted_memory != NULL) {
            add_memory(&table, rank->rank, "predicted", rank->predicted_memory);
        }
    }
    if (any) {
        puts("\nmemory of devices at their fullest moment");
        dpctl_table_print(&table);
    }
}

// What was under way between ranks and what of it showed: the sum of all ranks, over their number.
static void print_comm(const Dp__V1__JobReport *report)
{
    static const char *const kinds[] = {"dispatch(F)", "combine(F)", "combine(B)",
                                        "dispatch(B)", "hop(F)",     "hop(B)"};
    static const char *const heads[] = {"BETWEEN RANKS", "UNDER WAY", "EXPOSED", "HIDDEN"};
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 4, .right = 0xe};
    dpctl_heads(&table, heads);
    bool any = false;
    for (size_t k = 0; k < DP_ARRAY_LENGTH(kinds); k++) {
        double total = 0, exposed = 0;
        for (size_t i = 0; i < report->n_ranks; i++) {
            const Dp__V1__RankResult *rank = report->ranks[i];
            for (size_t j = 0; j < rank->n_comm; j++) {
                bool is_kind = strcmp(rank->comm[j]->kind, kinds[k]) == 0;
                total += is_kind ? rank->comm[j]->total_s / (double)report->n_ranks : 0;
                exposed += is_kind ? rank->comm[j]->exposed_s / (double)report->n_ranks : 0;
            }
        }
        if (total > 0) {
            char text[32];
            any = true;
            dpctl_cell(&table, "%s", kinds[k]);
            dpctl_cell(&table, "%s", dpctl_seconds(text, total));
            dpctl_cell(&table, "%s", dpctl_seconds(text, exposed));
            dpctl_cell(&table, "%.0f %%", 100 * (1 - exposed / total));
        }
    }
    if (any) {
        puts("\nexchanges of experts and hops between stages, mean of a step and rank");
        dpctl_table_print(&table);
    }
}

// How uneven the experts were in the newest step, where there are any.
static void print_loads(const Dp__V1__JobReport *report)
{
    static const char *const heads[] = {"RANK", "LAYER", "EXPERT", "FULLEST", "RANK LOAD"};
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 5, .right = ~0u};
    dpctl_heads(&table, heads);
    bool any = false;
    for (size_t i = 0; i < report->n_ranks; i++) {
        const Dp__V1__ExpertLoad *load = report->ranks[i]->load;
        if (load == NULL) {
            continue;
        }
        any = true;
        dpctl_cell(&table, "%u", report->ranks[i]->rank);
        dpctl_cell(&table, "%u", load->layer);
        dpctl_cell(&table, "%u", load->expert);
        dpctl_cell(&table, "x%.2f", load->skew);
        dpctl_cell(&table, "x%.2f", load->rank);
    }
    if (any) {
        puts("\nload of experts over the mean, newest step; of each rank its most uneven layer");
        dpctl_table_print(&table);
    }
}

// Where the prediction was off, and what became of that.
static void print_lesson(const Dp__V1__Lesson *lesson)
{
    static const char *const heads[] = {"PART", "PREDICTED", "MEASURED", "RATIO", "LEARNED"};
    char text[32];
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 5, .right = 0xe};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < lesson->n_parts; i++) {
        const Dp__V1__LessonPart *part = lesson->parts[i];
        dpctl_cell(&table, "%s", part->part);
        dpctl_cell(&table, "%s",
                   part->predicted_s > 0 ? dpctl_seconds(text, part->predicted_s) : "");
        dpctl_cell(&table, "%s", part->measured_s > 0 ? dpctl_seconds(text, part->measured_s) : "");
        dpctl_cell(&table, part->ratio > 0 ? "x%.2f" : "", part->ratio);
        dpctl_cell(&table, "%s", part->learned ? "yes" : "no");
    }
    printf("\nprediction, medians over ranks of medians over steps%s%s%s%s\n",
           lesson->used[0] == '\0' ? "" : "; made with the correction by ",
           lesson->used[0] == '\0' ? "" : lesson->source, lesson->used[0] == '\0' ? "" : ": ",
           lesson->used);
    dpctl_table_print(&table);
    if (!lesson->learned) {
        printf("nothing was learned: %s\n", lesson->reason);
    } else if (lesson->correction[0] == '\0') {
        puts("learned: the figures of its nodes need no correction");
    } else {
        printf("learned: later plans on its nodes use %s\n", lesson->correction);
    }
}

// A plan need not tell the exchange from the actions that it is part of.
static const char *predicted_title(const Dp__V1__JobReport *report)
{
    double apart = 0, waited = 0;
    for (size_t i = 0; i < report->n_ranks; i++) {
        apart += report->ranks[i]->predicted_exchange_s;
        waited += report->ranks[i]->measured_exchange_s;
    }
    return apart == 0 && waited > 0 ? "predicted, the exchange within BUSY" : "predicted";
}

void print_next(const char *id, bool cluster_is_down)
{
    fflush(stdout); // the report comes first
    fprintf(stderr, "next: %s`dpctl timeline %s --out trace.json` shows what ran when\n",
            cluster_is_down ? "`dpctl local up`, then " : "", id);
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
        dpctl_print_json(ctl, dp_message_to_json(&report->base), "dp.report/1");
        return DP_OK;
    }
    print_summary(report);
    if (report->n_ranks > 0) {
        print_ranks(report, "measured, mean of a step", measured);
        print_ranks(report, predicted_title(report), predicted);
        print_memory(report);
        print_comm(report);
        print_loads(report);
    }
    if (report->lesson != NULL) {
        print_lesson(report->lesson);
    }
    for (size_t i = 0; i < report->n_notes; i++) {
        printf("%snote: %s\n", i == 0 ? "\n" : "", report->notes[i]);
    }
    return DP_OK;
}

dp_status dpctl_cmd_report(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[JOB]",
        .doc = "How a job (the newest, when none is named) did: loss beside the corpus's unigram "
               "entropy, step time, and what each rank's step is made of, measured and "
               "predicted.\v"
               "BUSY actions, EXCHANGE waits for the expert exchange, BUBBLE other waits, SUMS of "
               "gradients, OPTIMIZER: together the STEP. CHUNKS and PEAK (memory) are the most "
               "that lived at once.\n",
        .exits = "0 ok, 4 no such job, 8 no controller",
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    if (status == DP_OK) {
        status = newest_job(client, request.id, false, &arena, &request.id, err);
    }
    if (status == DP_OK) {
        status = print_report(ctl, client, request.id, err);
    }
    if (status == DP_OK && ctl->out_is_tty) {
        print_next(request.id, false);
    }
    return status;
}
