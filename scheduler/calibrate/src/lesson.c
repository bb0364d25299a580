// What one run teaches, and when it teaches nothing.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/correction.h"

// A part below this share of the step is mostly noise.
#define SHARE_MIN 0.01
// Farther off than this, it is not the profile that is wrong. Where it is most of the step, the run
// as a whole is in doubt.
#define RATIO_MAX 8.0
// Steps that differ more than this from each other are not steady.
#define SPREAD_MAX 0.5
// Time of compute without a core is not the profile's.
#define CORE_SHARE_MIN 0.8
// What is shorter is left of a subtraction.
#define SHORTEST_S 1e-9
// A later run is one of several: it moves the factor by half of what it found.
#define LATER_WEIGHT 0.5

static int by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *values, size_t count)
{
    if (count == 0) {
        return 0;
    }
    qsort(values, count, sizeof(*values), by_value);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static bool is_time(double s)
{
    return isfinite(s) && s > SHORTEST_S;
}

static struct dp_part_result compare(const struct dp_run_facts *facts, dp_part part)
{
    DP_AUTO_FREE double *ratios = dp_new_array(double, facts->ranks);
    DP_AUTO_FREE double *predicted = dp_new_array(double, facts->ranks);
    DP_AUTO_FREE double *measured = dp_new_array(double, facts->ranks);
    size_t count = 0, predictions = 0, measurements = 0;
    for (size_t i = 0; i < facts->ranks; i++) {
        double p = facts->predicted[i].s[part], m = facts->measured[i].s[part];
        if (is_time(p)) {
            predicted[predictions++] = p;
        }
        if (is_time(m)) {
            measured[measurements++] = m;
        }
        if (is_time(p) && is_time(m)) {
            ratios[count++] = m / p;
        }
    }
    return (struct dp_part_result){.predicted_s = median(predicted, predictions),
                                   .measured_s = median(measured, measurements),
                                   .ratio = median(ratios, count)};
}

// "" when there is nothing against it.
static void find_reason(const struct dp_run_facts *facts, char *ret_reason, size_t size)
{
    ret_reason[0] = '\0';
    if (facts->learning_off) {
        snprintf(ret_reason, size, "learning is switched off for this job");
    } else if (facts->is_sim) {
        snprintf(ret_reason, size, "the sim device took its planned times and computed nothing");
    } else if (!facts->completed) {
        snprintf(ret_reason, size, "the job did not complete");
    } else if (facts->recalibrated) {
        snprintf(ret_reason, size, "its nodes were calibrated again since it was planned");
    } else if (facts->cores_exceeded) {
        snprintf(ret_reason, size, "its ranks shared cores, so that their times include waiting");
    } else if (facts->core_share > 0 && facts->core_share < CORE_SHARE_MIN) {
        snprintf(ret_reason, size,
                 "its ranks had a core for %.0f %% of the time they computed: the machine was busy "
                 "with other things",
                 100 * facts->core_share);
    } else if (facts->steps < DP_LEARN_STEPS_MIN) {
        snprintf(ret_reason, size, "%lld steps were measured, it takes %d", (long long)facts->steps,
                 DP_LEARN_STEPS_MIN);
    } else if (!(facts->steps_spread <= SPREAD_MAX)) {
        snprintf(ret_reason, size,
                 "its steps differ by %.0f %% of their median: they were not "
                 "steady",
                 100 * facts->steps_spread);
    } else if (!is_time(facts->predicted_step_s) || !is_time(facts->measured_step_s)) {
        snprintf(ret_reason, size, "its plan or its steps have no time");
    }
}

static bool counts(const struct dp_run_facts *facts, const struct dp_part_result *result)
{
    return result->ratio > 0 && (result->measured_s >= SHARE_MIN * facts->measured_step_s ||
                                 result->predicted_s >= SHARE_MIN * facts->measured_step_s);
}

static double clamp(double value, double most)
{
    return fmin(most, fmax(1 / most, value));
}

// Waits between stages have any length on a machine that is slow to wake threads.
static bool is_beyond(dp_part part, const struct dp_part_result *result)
{
    return part != DP_PART_HOP && clamp(result->ratio, RATIO_MAX) != result->ratio;
}

static void learn_part(const struct dp_run_facts *facts, dp_part part, struct dp_lesson *lesson)
{
    struct dp_part_result *result = &lesson->parts[part];
    double weight = facts->used.runs == 0 ? 1 : LATER_WEIGHT;
    double change = clamp(pow(result->ratio, weight), DP_LEARN_CHANGE_MAX);
    lesson->correction.factor[part] = clamp(facts->used.factor[part] * change, DP_LEARN_FACTOR_MAX);
    result->learned = true;
}

void dp_lesson_learn(const struct dp_run_facts *facts, struct dp_lesson *ret_lesson)
{
    struct dp_lesson lesson = {.used = facts->used, .correction = facts->used};
    find_reason(facts, lesson.reason, sizeof lesson.reason);
    bool any = false;
    for (int part = 0; part < DP_PART_COUNT; part++) {
        lesson.parts[part] = compare(facts, (dp_part)part);
        if (!counts(facts, &lesson.parts[part])) {
            continue;
        }
        any = true;
        if (lesson.reason[0] == '\0' && is_beyond((dp_part)part, &lesson.parts[part]) &&
            lesson.parts[part].measured_s > facts->measured_step_s / 2) {
            snprintf(lesson.reason, sizeof lesson.reason,
                     "%s took %.3g times what was predicted, which no correction explains",
                     dp_part_text((dp_part)part), lesson.parts[part].ratio);
        }
    }
    if (lesson.reason[0] == '\0' && !any) {
        snprintf(lesson.reason, sizeof lesson.reason,
                 "none of its parts was both predicted and "
                 "measured");
    }
    for (int part = 0; lesson.reason[0] == '\0' && part < DP_PART_COUNT; part++) {
        if (counts(facts, &lesson.parts[part]) && !is_beyond((dp_part)part, &lesson.parts[part])) {
            learn_part(facts, (dp_part)part, &lesson);
        }
    }
    lesson.learned = lesson.reason[0] == '\0';
    if (lesson.learned) {
        lesson.correction.runs = facts->used.runs + 1;
        (void)DP_COPY_TEXT(lesson.correction.source, facts->job);
    }
    *ret_lesson = lesson;
}
