#include "dp/sim_items.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

#define FACTOR_MIN 1e-3
#define FACTOR_MAX 1e3
#define GAP_MAX 60.0

static bool whole_number(const char *text, int64_t max, int64_t *ret_value)
{
    int64_t value = 0;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || (value = 10 * value + (*c - '0')) > max) {
            return false;
        }
    }
    *ret_value = value;
    return *text != '\0';
}

static bool take_number(const char *text, int64_t max, int32_t *ret_value)
{
    int64_t value;
    bool good = whole_number(text, max, &value);
    *ret_value = good ? (int32_t)value : 0;
    return good;
}

static bool take_node(const char *text, struct dp_sim_end *end)
{
    return text[0] != '\0' && DP_COPY_TEXT(end->node, text);
}

// What each of these changes is its own copy of the text.
static bool take_place(char *text, struct dp_sim_item *item)
{
    struct dp_sim_end *end = &item->ends[0];
    if (strcmp(text, "all") == 0) {
        item->where = DP_SIM_ALL;
        return true;
    }
    if (strncmp(text, "rank=", 5) == 0) {
        item->where = DP_SIM_RANK;
        return take_number(text + 5, DP_RANKS_MAX - 1, &end->rank);
    }
    if (strncmp(text, "node=", 5) == 0) {
        item->where = DP_SIM_NODE;
        return take_node(text + 5, end);
    }
    char *slash = strrchr(text, '/');
    if (strncmp(text, "slot=", 5) != 0 || slash == NULL) {
        return false;
    }
    *slash = '\0';
    item->where = DP_SIM_SLOT;
    return take_node(text + 5, end) && take_number(slash + 1, DP_NODE_SLOTS_MAX - 1, &end->slot);
}

static bool take_link(char *text, struct dp_sim_item *item)
{
    char *between = strchr(text, '~');
    item->where = between != NULL ? DP_SIM_NODE : DP_SIM_RANK;
    between = between != NULL ? between : strchr(text, '-');
    if (between == NULL) {
        return false;
    }
    *between = '\0';
    if (item->where == DP_SIM_NODE) {
        return take_node(text, &item->ends[0]) && take_node(between + 1, &item->ends[1]);
    }
    return take_number(text, DP_RANKS_MAX - 1, &item->ends[0].rank) &&
           take_number(between + 1, DP_RANKS_MAX - 1, &item->ends[1].rank) &&
           item->ends[0].rank != item->ends[1].rank;
}

static bool take_steps(char *text, struct dp_sim_item *item)
{
    char *dash = strchr(text, '-');
    if (dash != NULL) {
        *dash = '\0';
    }
    return whole_number(text, DP_STEPS_MAX, &item->first_step) &&
           (dash == NULL || whole_number(dash + 1, DP_STEPS_MAX, &item->last_step)) &&
           item->first_step <= item->last_step;
}

static bool take_value(const char *text, dp_sim_list list, double *ret_value)
{
    char *end;
    double value = strtod(text, &end);
    bool good = end != text && *end == '\0' && isfinite(value);
    *ret_value = value;
    return good && (list == DP_SIM_GAP ? value >= 0 && value <= GAP_MAX
                                       : value >= FACTOR_MIN && value <= FACTOR_MAX);
}

static dp_status refuse(const char *text, const char *what, struct dp_error *err)
{
    return dp_fail(err, DP_INVALID, "\"%.80s\": %s", text, what);
}

static dp_status take_item(const char *text, dp_sim_list list, struct dp_sim_item *ret_item,
                           struct dp_error *err)
{
    struct dp_sim_item item = {.first_step = 1, .last_step = DP_STEPS_MAX};
    DP_AUTO_FREE char *copy = dp_strdup(text);
    char *at = strrchr(copy, '@');
    if (at != NULL) {
        *at = '\0';
    }
    char *colon = strrchr(copy, ':');
    if (colon == NULL) {
        return refuse(text, "there is no ':' with a value behind it", err);
    }
    *colon = '\0';
    if (at != NULL && !take_steps(at + 1, &item)) {
        return refuse(text,
                      "what follows '@' is a step, or the first and last of some: 200 or "
                      "100-400",
                      err);
    }
    if (!take_value(colon + 1, list, &item.value)) {
        return refuse(
            text, list == DP_SIM_GAP ? "the gap is 0 to 60 seconds" : "the factor is 0.001 to 1000",
            err);
    }
    if (list == DP_SIM_SLOW_LINK && !take_link(copy, &item)) {
        return refuse(text, "a link is two ranks, as 2-3, or two nodes, as n1~n2", err);
    }
    if (list != DP_SIM_SLOW_LINK && !take_place(copy, &item)) {
        return refuse(text, "a place is all, rank=3, node=n2 or slot=n2/0", err);
    }
    *ret_item = item;
    return DP_OK;
}

dp_status dp_sim_items_parse(const char *text, dp_sim_list list, struct dp_sim_item *ret_items,
                             size_t *ret_count, struct dp_error *err)
{
    DP_AUTO_FREE char *copy = dp_strdup(text);
    char *rest = text[0] == '\0' ? NULL : copy;
    size_t count = 0;
    for (char *item = strsep(&rest, ";"); item != NULL; item = strsep(&rest, ";")) {
        if (count == DP_SIM_ITEMS_MAX) {
            return dp_fail(err, DP_TOO_LARGE, "there are more than %d items", DP_SIM_ITEMS_MAX);
        }
        dp_status status = take_item(item, list, &ret_items[count], err);
        if (status != DP_OK) {
            return status;
        }
        count++;
    }
    *ret_count = count;
    return DP_OK;
}

static bool is_end(const struct dp_sim_item *item, int end, const struct dp_sim_place *place)
{
    const struct dp_sim_end *at = &item->ends[end];
    switch (item->where) {
    case DP_SIM_RANK:
        return at->rank == place->rank;
    case DP_SIM_NODE:
        return strcmp(at->node, place->node) == 0;
    case DP_SIM_SLOT:
        return strcmp(at->node, place->node) == 0 && at->slot == place->slot;
    case DP_SIM_ALL:
        break;
    }
    return true;
}

static bool holds(const struct dp_sim_item *item, int64_t step)
{
    return step >= item->first_step && step <= item->last_step;
}

double dp_sim_items_factor(const struct dp_sim_item *items, size_t count,
                           const struct dp_sim_place *place, int64_t step)
{
    double factor = 1;
    for (size_t i = 0; i < count; i++) {
        factor *= holds(&items[i], step) && is_end(&items[i], 0, place) ? items[i].value : 1;
    }
    return factor;
}

double dp_sim_items_link_factor(const struct dp_sim_item *items, size_t count,
                                const struct dp_sim_place *a, const struct dp_sim_place *b,
                                int64_t step)
{
    double factor = 1;
    for (size_t i = 0; i < count; i++) {
        bool joins = (is_end(&items[i], 0, a) && is_end(&items[i], 1, b)) ||
                     (is_end(&items[i], 0, b) && is_end(&items[i], 1, a));
        factor *= joins && holds(&items[i], step) ? items[i].value : 1;
    }
    return factor;
}

double dp_sim_items_gap(const struct dp_sim_item *items, size_t count,
                        const struct dp_sim_place *place, int64_t step)
{
    double seconds = 0;
    for (size_t i = 0; i < count; i++) {
        seconds += holds(&items[i], step) && is_end(&items[i], 0, place) ? items[i].value : 0;
    }
    return seconds;
}
