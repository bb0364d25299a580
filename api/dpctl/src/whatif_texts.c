// What people write behind --slow, --slow-link and --lose.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "whatif.h"

// A factor with an x behind it or not, up to the end of the text.
static bool read_factor(const char *text, double *ret_factor)
{
    char *end;
    double factor = strtod(text, &end);
    end += *end == 'x';
    *ret_factor = factor;
    return end != text && *end == '\0' && isfinite(factor) && factor > 0 &&
           factor <= DP_COST_FACTOR_MAX;
}

static bool read_rank(const char *text, const struct dp_plan *plan, int32_t *ret_rank)
{
    char *end;
    long rank = strtol(text, &end, 10);
    *ret_rank = (int32_t)rank;
    return end != text && *end == '\0' && rank >= 0 && rank < dp_plan_world(plan);
}

// Marks the ranks that "rank=3" or "node=n2" names.
static dp_status mark(const char *option, const char *item, const struct dp_plan *plan,
                      bool *ret_marked, struct dp_error *err)
{
    const char *equals = strchr(item, '=');
    int32_t rank, found = 0;
    if (strncmp(item, "rank=", 5) == 0) {
        if (!read_rank(equals + 1, plan, &rank)) {
            return dp_fail(err, DP_INVALID, "%s: \"%s\": the job has ranks 0 to %d", option, item,
                           dp_plan_world(plan) - 1);
        }
        ret_marked[rank] = true;
        return DP_OK;
    }
    if (strncmp(item, "node=", 5) != 0) {
        return dp_fail(err, DP_INVALID, "%s: \"%s\" names neither rank=NUMBER nor node=NAME",
                       option, item);
    }
    for (rank = 0; rank < dp_plan_world(plan); rank++) {
        bool is_there = strcmp(plan->ranks[rank].node, equals + 1) == 0;
        ret_marked[rank] = ret_marked[rank] || is_there;
        found += is_there;
    }
    return found > 0 ? DP_OK
                     : dp_fail(err, DP_INVALID, "%s: no rank of the job stands on node \"%s\"",
                               option, equals + 1);
}

static dp_status slow_item(const char *item, const struct dp_plan *plan, double *slow,
                           struct dp_error *err)
{
    DP_AUTO_FREE char *name = dp_strdup(item);
    DP_AUTO_FREE bool *marked = dp_new_array(bool, (size_t)dp_plan_world(plan));
    char *colon = strrchr(name, ':');
    double factor = 0;
    if (colon == NULL || !read_factor(colon + 1, &factor)) {
        return dp_fail(err, DP_INVALID,
                       "--slow: \"%s\" needs a factor over 0 behind a colon: rank=3:1.5", item);
    }
    *colon = '\0';
    dp_status status = mark("--slow", name, plan, marked, err);
    for (int32_t r = 0; status == DP_OK && r < dp_plan_world(plan); r++) {
        slow[r] *= marked[r] ? factor : 1;
    }
    return status;
}

dp_status whatif_slow(const char *text, const struct dp_plan *plan, double *slow,
                      struct dp_error *err)
{
    DP_AUTO_FREE char *items = dp_strdup(text);
    char *rest = NULL;
    dp_status status = DP_OK;
    for (char *item = strtok_r(items, ",", &rest); item != NULL && status == DP_OK;
         item = strtok_r(NULL, ",", &rest)) {
        status = slow_item(item, plan, slow, err);
    }
    return status;
}

static struct dp_adapt_link link_of(const struct dp_plan *plan, const struct dp_adapt_costs *costs,
                                    int32_t from, int32_t to, double factor)
{
    bool is_local = strcmp(plan->ranks[from].node, plan->ranks[to].node) == 0;
    struct dp_adapt_link link = {
        .from = from, .to = to, .hop = is_local ? costs->local : costs->network};
    link.hop.latency *= factor;
    link.hop.bytes_per_second /= factor;
    return link;
}

dp_status whatif_slow_link(const char *text, const struct dp_plan *plan,
                           const struct dp_adapt_costs *costs, struct dp_adapt_link *links,
                           size_t *count, struct dp_error *err)
{
    DP_AUTO_FREE char *name = dp_strdup(text);
    char *dash = strchr(name, '-'), *colon = strrchr(name, ':');
    double factor = 0;
    int32_t from = 0, to = 0;
    bool is_read = dash != NULL && colon != NULL && dash < colon && read_factor(colon + 1, &factor);
    if (is_read) {
        *dash = *colon = '\0';
        is_read = read_rank(name, plan, &from) && read_rank(dash + 1, plan, &to) && from != to;
    }
    if (!is_read) {
        return dp_fail(err, DP_INVALID,
                       "--slow-link: \"%s\" must be two of the ranks 0 to %d and a factor: 2-3:4x",
                       text, dp_plan_world(plan) - 1);
    }
    links[(*count)++] = link_of(plan, costs, from, to, factor);
    links[(*count)++] = link_of(plan, costs, to, from, factor);
    return DP_OK;
}

dp_status whatif_lose(const char *text, const struct dp_plan *plan, bool *lost,
                      struct dp_error *err)
{
    DP_AUTO_FREE char *items = dp_strdup(text);
    char *rest = NULL;
    dp_status status = DP_OK;
    for (char *item = strtok_r(items, ",", &rest); item != NULL && status == DP_OK;
         item = strtok_r(NULL, ",", &rest)) {
        status = mark("--lose", item, plan, lost, err);
    }
    return status;
}
