// Windows, and the test for a change.
#include <math.h>
#include <stdlib.h>

#include "internal.h"

// A series that is healthy for ever sends its false alarm once in so many steps, on average: an
// alarm needs the logarithm of it (Lorden 1971).
static const double false_alarm_steps = 1e9;
// One sample is worth at most this share of an alarm, whatever its value.
static const double share_max = 0.25;
static const double sigma_first = 0.05, sigma_min = 0.02, sigma_max = 2;
static const double mad_to_sigma = 1.4826; // of a normal distribution
enum { HISTORY_MIN = 12, SIGMA_EVERY = 8 };

void dp_straggler_window_add(struct window *window, double value)
{
    window->values[window->count % DP_STRAGGLER_WINDOW] = (float)value;
    window->count++;
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

void dp_straggler_sort(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
}

double dp_straggler_median(double *values, size_t count)
{
    dp_straggler_sort(values, count);
    return values[(count - 1) / 2];
}

double dp_straggler_median_of_others(const double *sorted, size_t count, double own)
{
    const double *found = bsearch(&own, sorted, count, sizeof(own), compare_doubles);
    size_t except = found == NULL ? 0 : (size_t)(found - sorted), at = (count - 2) / 2;
    return sorted[at < except ? at : at + 1];
}

static size_t newest_of(const struct window *window, uint32_t newest, double *ret_values)
{
    uint32_t kept = window->count < DP_STRAGGLER_WINDOW ? window->count : DP_STRAGGLER_WINDOW;
    uint32_t count = newest < kept ? newest : kept;
    for (uint32_t i = 0; i < count; i++) {
        ret_values[i] = window->values[(window->count - 1 - i) % DP_STRAGGLER_WINDOW];
    }
    return count;
}

static double middle(double *values, size_t count)
{
    dp_straggler_sort(values, count);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

double dp_straggler_window_median(const struct window *window, uint32_t newest)
{
    double values[DP_STRAGGLER_WINDOW];
    size_t count = newest_of(window, newest, values);
    return count == 0 ? NAN : middle(values, count);
}

static double deviation(const double *values, size_t count, double median)
{
    double distances[DP_STRAGGLER_HISTORY];
    for (size_t i = 0; i < count; i++) {
        distances[i] = fabs(values[i] - median);
    }
    return mad_to_sigma * middle(distances, count);
}

double dp_straggler_window_mean(const struct window *window, uint32_t newest)
{
    double values[DP_STRAGGLER_WINDOW];
    size_t count = newest_of(window, newest, values);
    if (count == 0) {
        return NAN;
    }
    double median = middle(values, count);
    double reach = 3 * fmax(deviation(values, count, median), sigma_min);
    double sum = 0;
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        if (fabs(values[i] - median) <= reach) {
            sum += values[i];
            taken++;
        }
    }
    return sum / (double)taken;
}

double dp_straggler_window_plain_mean(const struct window *window, uint32_t newest)
{
    double values[DP_STRAGGLER_WINDOW], sum = 0;
    size_t count = newest_of(window, newest, values);
    for (size_t i = 0; i < count; i++) {
        sum += values[i];
    }
    return count == 0 ? NAN : sum / (double)count;
}

static void learn(struct series *series, double value)
{
    series->history[series->history_count % DP_STRAGGLER_HISTORY] = (float)value;
    series->history_count++;
    if (series->history_count < HISTORY_MIN) {
        series->sigma = sigma_first;
        return;
    }
    if (series->history_count % SIGMA_EVERY != 0 && series->history_count != HISTORY_MIN) {
        return;
    }
    double values[DP_STRAGGLER_HISTORY];
    size_t count =
        series->history_count < DP_STRAGGLER_HISTORY ? series->history_count : DP_STRAGGLER_HISTORY;
    for (size_t i = 0; i < count; i++) {
        values[i] = series->history[i];
    }
    double sigma = deviation(values, count, middle(values, count));
    series->sigma = fmin(fmax(sigma, sigma_min), sigma_max);
}

void dp_straggler_series_show(struct series *series, double value)
{
    dp_straggler_window_add(&series->window, value);
}

void dp_straggler_series_add(struct series *series, const struct dp_straggler_config *config,
                             int64_t step, double value, bool healthy)
{
    dp_straggler_window_add(&series->window, value);
    double sigma = series->sigma > 0 ? series->sigma : sigma_first;
    double alarm = log(false_alarm_steps), shift = log(config->enter);
    double ratio = shift / (sigma * sigma) * (value - shift / 2);
    ratio = fmin(fmax(ratio, -alarm), share_max * alarm);
    if (series->sum == 0) {
        series->run = 0;
        series->onset_step = step;
    }
    series->sum = fmin(fmax(series->sum + ratio, 0), 2 * alarm);
    series->run += series->sum > 0;
    if (healthy && series->sum < alarm / 2) {
        learn(series, value);
    }
}

double dp_straggler_series_mean(const struct series *series)
{
    return dp_straggler_window_mean(&series->window, series->run);
}

bool dp_straggler_series_changed(const struct series *series,
                                 const struct dp_straggler_config *config, struct stretch each,
                                 double persist_s)
{
    return series->sum >= log(false_alarm_steps) &&
           series->run * each.steps >= config->persist_steps &&
           series->run * each.ns >= persist_s * 1e9 &&
           dp_straggler_series_mean(series) >= log(config->enter);
}

bool dp_straggler_series_recovered(const struct series *series,
                                   const struct dp_straggler_config *config)
{
    return series->window.count >= config->persist_steps &&
           dp_straggler_window_median(&series->window, config->persist_steps) <
               log(config->enter - config->gap);
}

void dp_straggler_series_reset(struct series *series)
{
    series->sum = 0;
    series->run = 0;
}
