// Prints the tables of figures in docs/schedules.md, as the simulator gives them.
#include <stdio.h>
#include <stdlib.h>

#include "dp/schedule.h"
#include "dp/simulate.h"

enum { PIPELINE = 8 };

// Seconds of a stage that is a P-th of the model.
struct durations {
    double f, i, w;
    double pair; // share of F + B that an overlapped pair takes
};

static const struct durations even = {2, 2, 2, 1};
// Forward, input and weight gradient in DeepSeek's published trace (profile-data at 4496024), in
// ms: compute alone, and with the time of the all-to-all, which a pair of 128.5 ms hides.
static const struct durations measured = {35.9, 59.7, 35.1, 1};
static const struct durations exchanged = {97.4, 111.7, 35.1, 128.5 / 244.2};

static void check(dp_status status, const struct dp_error *err)
{
    if (status != DP_OK) {
        fprintf(stderr, "%s\n", err->message);
        exit(1);
    }
}

static struct dp_schedule make(const char *family, int32_t microbatches)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params params = {.pipeline = PIPELINE, .microbatches = microbatches};
    check(dp_schedule_generate(family, &params, &schedule, &err), &err);
    return schedule;
}

static struct dp_sim_result simulate(const struct dp_schedule *schedule, struct durations stage)
{
    struct dp_error err = {0};
    double share = (double)PIPELINE / schedule->stages;
    struct dp_sim_uniform uniform = {.f = share * stage.f,
                                     .b = share * (stage.i + stage.w),
                                     .i = share * stage.i,
                                     .w = share * stage.w,
                                     .fb = share * stage.pair * (stage.f + stage.i + stage.w)};
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    dp_sim_costs_init_uniform(&costs, schedule, &uniform);
    check(dp_simulate(schedule, &costs, false, &result, &err), &err);
    dp_sim_costs_deinit(&costs);
    return result;
}

static size_t messages_of(const struct dp_schedule *schedule)
{
    struct dp_error err = {0};
    struct dp_lowered lowered;
    check(dp_schedule_lower_all(schedule, &lowered, &err), &err);
    size_t count = lowered.rank_begin[lowered.pipeline];
    dp_lowered_deinit(&lowered);
    return count;
}

static void print_sizes(const char *family)
{
    struct dp_schedule first = make("1f1b", 16);
    struct dp_schedule schedule = make(family, 16);
    struct dp_sim_result result = simulate(&schedule, even);
    double bubble = 0;
    double span = 0;
    double most = 0;
    double least = result.ranks[0].peak_activations;
    for (int32_t r = 0; r < PIPELINE; r++) {
        const struct dp_sim_rank *rank = &result.ranks[r];
        bubble = rank->bubble > bubble ? rank->bubble : bubble;
        span = rank->span_bubble > span ? rank->span_bubble : span;
        most = rank->peak_activations > most ? rank->peak_activations : most;
        least = rank->peak_activations < least ? rank->peak_activations : least;
    }
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t held = dp_schedule_rank_stages(&schedule, 0, stages);
    printf("| `%s` | %gx | %.2fx | %g | %g | %g | ", family,
           (double)held * PIPELINE / schedule.stages,
           (double)messages_of(&schedule) / (double)messages_of(&first), result.makespan, bubble,
           span);
    if (least < most) {
        printf("%g to %g |\n", least, most);
    } else {
        printf("%g |\n", most);
    }
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
    dp_schedule_deinit(&first);
}

static void print_share(const char *family, int32_t microbatches, struct durations stage)
{
    struct dp_schedule schedule = make(family, microbatches);
    struct dp_sim_result result = simulate(&schedule, stage);
    printf(" %.1f |", 100 * dp_sim_bubble_ratio(&result));
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

// The step of a row of 64 micro-batches when the all-to-all counts, as a share of 1F1B's.
static void print_exchange(const char *family)
{
    struct dp_schedule schedules[] = {make("1f1b", 64), make(family, 64)};
    double makespans[2];
    for (int i = 0; i < 2; i++) {
        struct dp_sim_result result = simulate(&schedules[i], exchanged);
        makespans[i] = result.makespan;
        dp_sim_result_deinit(&result);
        dp_schedule_deinit(&schedules[i]);
    }
    printf(" %.2f |\n", makespans[1] / makespans[0]);
}

int main(void)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    printf("| schedule | parameters | messages | step | bubble | own-span bubble | activations |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < count; i++) {
        print_sizes(families[i].name);
    }
    printf("\n| schedule | even, M = 16 | even, M = 64 | measured, M = 16 | measured, M = 64 | "
           "step with all-to-all, M = 64 |\n"
           "| --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < count; i++) {
        printf("| `%s` |", families[i].name);
        print_share(families[i].name, 16, even);
        print_share(families[i].name, 64, even);
        print_share(families[i].name, 16, measured);
        print_share(families[i].name, 64, measured);
        print_exchange(families[i].name);
    }
    return 0;
}
