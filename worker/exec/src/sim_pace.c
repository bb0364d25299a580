#include "dp/sim_pace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/rand.h"

#define NOISE_FILE_BYTES_MAX (32u * DP_SIM_NOISE_MAX)
#define NOISE_MIN 1e-2
#define NOISE_MAX 1e2

struct list {
    struct dp_sim_item items[DP_SIM_ITEMS_MAX];
    size_t count;
};

struct dp_sim_pace {
    struct list slow, links, gaps;
    struct dp_sim_place *places; // [world]; their nodes are owned
    int32_t world, rank;
    uint64_t seed;
    double noise;
    double *factors; // of the file
    size_t factors_count;
};

DP_DEFINE_CLEANUP(cleanup_pace, struct dp_sim_pace, dp_sim_pace_free)

static dp_status read_lists(const struct dp_sim_spec *spec, struct dp_sim_pace *pace,
                            struct dp_error *err)
{
    const struct {
        const char *name, *text;
        dp_sim_list kind;
        struct list *list;
    } lists[] = {{"slow", spec->slow, DP_SIM_SLOW, &pace->slow},
                 {"slow_link", spec->slow_link, DP_SIM_SLOW_LINK, &pace->links},
                 {"gap", spec->gap, DP_SIM_GAP, &pace->gaps}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(lists); i++) {
        struct list *list = lists[i].list;
        if (dp_sim_items_parse(lists[i].text, lists[i].kind, list->items, &list->count, err) !=
            DP_OK) {
            return dp_fail_in(err, "[sim] %s", lists[i].name);
        }
    }
    return DP_OK;
}

static dp_status read_factors(const char *path, struct dp_sim_pace *pace, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(path, NOISE_FILE_BYTES_MAX, &text, err);
    if (status != DP_OK) {
        return status;
    }
    size_t capacity = 0;
    char *rest = text.bytes;
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        char *end;
        double factor = strtod(line, &end);
        end += strspn(end, " \t\r");
        if (end == line && *end == '\0' && rest == NULL) {
            break; // behind the last line
        }
        if (end == line || *end != '\0' || !(factor >= NOISE_MIN && factor <= NOISE_MAX)) {
            return dp_fail(err, DP_INVALID, "%s, line %zu: a line is one factor from %g to %g",
                           path, pace->factors_count + 1, NOISE_MIN, NOISE_MAX);
        }
        if (pace->factors_count == DP_SIM_NOISE_MAX) {
            return dp_fail(err, DP_TOO_LARGE, "%s has more than %d lines", path, DP_SIM_NOISE_MAX);
        }
        if (pace->factors_count == capacity) {
            capacity = capacity == 0 ? 1024 : 2 * capacity;
            pace->factors = dp_realloc(pace->factors, capacity, sizeof(double));
        }
        pace->factors[pace->factors_count++] = factor;
    }
    return pace->factors_count > 0 ? DP_OK : dp_fail(err, DP_INVALID, "%s holds no factor", path);
}

dp_status dp_sim_pace_new(const struct dp_sim_pace_config *config, struct dp_sim_pace **ret_pace,
                          struct dp_error *err)
{
    DP_CLEANUP(cleanup_pace) struct dp_sim_pace *pace = dp_new(struct dp_sim_pace);
    pace->world = config->world;
    pace->rank = config->rank;
    pace->seed = config->seed;
    pace->noise = config->spec->noise;
    pace->places = dp_new_array(struct dp_sim_place, (size_t)config->world);
    for (int32_t i = 0; i < config->world; i++) {
        pace->places[i] = config->places[i];
        pace->places[i].node = dp_strdup(config->places[i].node);
    }
    dp_status status = read_lists(config->spec, pace, err);
    if (status == DP_OK && config->spec->noise_file[0] != '\0' &&
        (status = read_factors(config->spec->noise_file, pace, err)) != DP_OK) {
        status = dp_fail_in(err, "[sim] noise_file");
    }
    if (status == DP_OK) {
        *ret_pace = dp_steal(pace);
    }
    return status;
}

void dp_sim_pace_free(struct dp_sim_pace *pace)
{
    if (pace != NULL) {
        for (int32_t i = 0; i < pace->world; i++) {
            free((void *)pace->places[i].node);
        }
        free(pace->places);
        free(pace->factors);
        free(pace);
    }
}

double dp_sim_pace_slowness(const struct dp_sim_pace *pace, int64_t step)
{
    return pace == NULL ? 1
                        : dp_sim_items_factor(pace->slow.items, pace->slow.count,
                                              &pace->places[pace->rank], step);
}

double dp_sim_pace_action(const struct dp_sim_pace *pace, int64_t step, uint64_t action)
{
    double factor = dp_sim_pace_slowness(pace, step);
    if (pace == NULL || (pace->noise <= 0 && pace->factors_count == 0)) {
        return factor;
    }
    const uint64_t rank_seed = dp_rand_mix(pace->seed, (uint64_t)pace->rank);
    if (pace->noise > 0) {
        struct dp_rand rand;
        dp_rand_init(&rand, dp_rand_mix(dp_rand_mix(rank_seed, (uint64_t)step), action));
        // The mean of a log-normal variable is exp(mu + sigma^2 / 2).
        factor *= exp(pace->noise * dp_rand_normal(&rand) - pace->noise * pace->noise / 2);
    }
    if (pace->factors_count > 0) {
        // Each rank begins elsewhere; a step goes on where the one before may have ended.
        uint64_t at = rank_seed + (uint64_t)step * 8191 + action;
        factor *= pace->factors[at % pace->factors_count];
    }
    return factor;
}

double dp_sim_pace_link(const struct dp_sim_pace *pace, int64_t step, int32_t peer)
{
    return pace == NULL
               ? 1
               : dp_sim_items_link_factor(pace->links.items, pace->links.count,
                                          &pace->places[pace->rank], &pace->places[peer], step);
}

int64_t dp_sim_pace_gap_ns(const struct dp_sim_pace *pace, int64_t step)
{
    return pace == NULL ? 0
                        : (int64_t)(dp_sim_items_gap(pace->gaps.items, pace->gaps.count,
                                                     &pace->places[pace->rank], step) *
                                    (double)DP_NS_PER_S);
}
