// The text of --cost.

#include "dp/what_if.h"

#include <math.h>

#include "what_if_text.h"

enum { KEY_FB = 4, KEY_FI, KEY_COUNT };

static const char *const key_texts[KEY_COUNT] = {
    [DP_ACTION_F] = "F", [DP_ACTION_B] = "B", [DP_ACTION_I] = "I",
    [DP_ACTION_W] = "W", [KEY_FB] = "FB",     [KEY_FI] = "FI",
};

struct costs_given {
    double seconds[KEY_COUNT];
    bool given[KEY_COUNT];
    int columns[KEY_COUNT]; // of the values
};

static int find_key(const struct dp_csv_cell *cell)
{
    for (int key = 0; key < KEY_COUNT; key++) {
        if (dp_what_if_is(cell, key_texts[key])) {
            return key;
        }
    }
    return -1;
}

static void read_item(const struct dp_csv_cell *item, struct costs_given *costs,
                      struct dp_diags *diags)
{
    struct dp_csv_cell name, value;
    if (!dp_what_if_cut(item, '=', &name, &value)) {
        dp_diags_add(diags, 1, item->column, NULL, "\"%.*s\" is no KEY=SECONDS", dp_csv_shown(item),
                     item->text);
        return;
    }
    int key = find_key(&name);
    if (key < 0) {
        dp_diags_add(diags, 1, name.column, "keys are F, B, I, W, FB and FI",
                     "unknown key \"%.*s\"", dp_csv_shown(&name), name.text);
        return;
    }
    if (costs->given[key]) {
        dp_diags_add(diags, 1, name.column, NULL, "%s is there twice", key_texts[key]);
        return;
    }
    costs->given[key] = true;
    costs->columns[key] = value.column;
    if (dp_what_if_seconds(&value, diags, 1, &costs->seconds[key]) && key >= KEY_FB &&
        costs->seconds[key] == 0) {
        dp_diags_add(diags, 1, value.column, "leave it out when nothing overlaps",
                     "%s: a pair takes time", key_texts[key]);
    }
}

// Parts that overlap still end after the longer one.
static void check_pair(const struct costs_given *costs, int pair, dp_action_kind backward,
                       struct dp_diags *diags)
{
    double f = costs->seconds[DP_ACTION_F], b = costs->seconds[backward];
    if (costs->given[pair] && costs->seconds[pair] < fmax(f, b) * (1 - 1e-12)) {
        dp_diags_add(diags, 1, costs->columns[pair], "without overlap it takes both together",
                     "%s takes %g, but a pair cannot end before its longer part: %s takes %g",
                     key_texts[pair], costs->seconds[pair],
                     key_texts[f > b ? DP_ACTION_F : backward], fmax(f, b));
    }
}

static void complete(struct costs_given *costs, struct dp_diags *diags)
{
    struct what_if_chunk chunk = {0};
    for (int kind = 0; kind < 4; kind++) {
        chunk.seconds[kind] = costs->seconds[kind];
        chunk.given[kind] = costs->given[kind];
    }
    if (!dp_what_if_complete(&chunk, diags, 1, 1)) {
        return;
    }
    double *seconds = costs->seconds;
    for (int kind = 0; kind < 4; kind++) {
        seconds[kind] = chunk.seconds[kind];
    }
    double f = seconds[DP_ACTION_F], b = seconds[DP_ACTION_B], i = seconds[DP_ACTION_I];
    if (f + b + i + seconds[DP_ACTION_W] == 0) {
        dp_diags_add(diags, 1, 1, NULL, "nothing takes any time");
        return;
    }
    check_pair(costs, KEY_FB, DP_ACTION_B, diags);
    check_pair(costs, KEY_FI, DP_ACTION_I, diags);
    if (!costs->given[KEY_FI]) {
        seconds[KEY_FI] = costs->given[KEY_FB] ? dp_what_if_fi(f, b, i, seconds[KEY_FB]) : f + i;
    }
    if (!costs->given[KEY_FB]) {
        seconds[KEY_FB] = f + b;
    }
}

dp_status dp_what_if_parse_cost(const char *name, const char *text,
                                struct dp_sim_uniform *ret_uniform, struct dp_error *err)
{
    struct costs_given costs = {0};
    struct what_if_items items;
    dp_what_if_items_init(&items, name, text);
    for (size_t i = 0; i < items.count; i++) {
        read_item(&items.cells[i], &costs, &items.diags);
    }
    if (items.diags.count == 0) {
        complete(&costs, &items.diags);
    }
    dp_status status = dp_diags_status(&items.diags, err);
    if (status == DP_OK) {
        *ret_uniform = (struct dp_sim_uniform){
            .f = costs.seconds[DP_ACTION_F],
            .b = costs.seconds[DP_ACTION_B],
            .i = costs.seconds[DP_ACTION_I],
            .w = costs.seconds[DP_ACTION_W],
            .fb = costs.seconds[KEY_FB],
            .fi = costs.seconds[KEY_FI],
        };
    }
    dp_what_if_items_deinit(&items);
    return status;
}
