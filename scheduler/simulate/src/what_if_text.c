#include "what_if_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/schedule.h"

void dp_what_if_items_init(struct what_if_items *items, const char *name, const char *text)
{
    size_t length = strlen(text);
    *items = (struct what_if_items){0};
    dp_diags_init(&items->diags, name, text, length);
    items->cells = dp_new_array(struct dp_csv_cell, DP_WHAT_IF_ITEMS_MAX);
    struct dp_csv csv;
    dp_csv_init(&csv, text, length);
    size_t count = 0;
    if (!dp_csv_next(&csv, items->cells, DP_WHAT_IF_ITEMS_MAX, &count) || csv.line > 1) {
        dp_diags_add(&items->diags, 0, 0, NULL, "the text is empty");
    } else if (count > DP_WHAT_IF_ITEMS_MAX) {
        dp_diags_add(&items->diags, 0, 0, NULL, "%zu items; at most %d", count,
                     DP_WHAT_IF_ITEMS_MAX);
    } else if (memchr(text, '\n', length) != NULL) {
        dp_diags_add(&items->diags, 0, 0, NULL, "the text has more than one line");
    } else {
        items->count = count;
    }
}

void dp_what_if_items_deinit(struct what_if_items *items)
{
    free(items->cells);
    dp_diags_deinit(&items->diags);
}

bool dp_what_if_cut(const struct dp_csv_cell *cell, char separator, struct dp_csv_cell *ret_left,
                    struct dp_csv_cell *ret_right)
{
    const char *at = memchr(cell->text, separator, cell->length);
    if (at == NULL) {
        return false;
    }
    size_t left = (size_t)(at - cell->text);
    struct dp_csv_cell whole = *cell;
    *ret_left = (struct dp_csv_cell){.text = whole.text, .length = left, .column = whole.column};
    *ret_right = (struct dp_csv_cell){
        .text = at + 1, .length = whole.length - left - 1, .column = whole.column + (int)left + 1};
    return true;
}

bool dp_what_if_is(const struct dp_csv_cell *cell, const char *text)
{
    return cell->length == strlen(text) && memcmp(cell->text, text, cell->length) == 0;
}

bool dp_what_if_index(const struct dp_csv_cell *cell, const char *noun, int32_t count,
                      struct dp_diags *diags, int line, int32_t *ret_index)
{
    int64_t value;
    if (!dp_csv_integer(cell, &value)) {
        dp_diags_add(diags, line, cell->column, NULL, "\"%.*s\" is no %s: a number from 0 to %d",
                     dp_csv_shown(cell), cell->text, noun, count - 1);
        return false;
    }
    if (value < 0 || value >= count) {
        dp_diags_add(diags, line, cell->column, NULL, "%s %lld: the schedule has %ss 0 to %d", noun,
                     (long long)value, noun, count - 1);
        return false;
    }
    *ret_index = (int32_t)value;
    return true;
}

bool dp_what_if_seconds(const struct dp_csv_cell *cell, struct dp_diags *diags, int line,
                        double *ret_seconds)
{
    double value;
    if (!dp_csv_number(cell, &value) || value < 0 || value > DP_COST_SECONDS_MAX) {
        dp_diags_add(diags, line, cell->column, NULL, "\"%.*s\" is no time: a number from 0 to %g",
                     dp_csv_shown(cell), cell->text, DP_COST_SECONDS_MAX);
        return false;
    }
    *ret_seconds = value;
    return true;
}

bool dp_what_if_factor(const struct dp_csv_cell *cell, struct dp_diags *diags, int line,
                       double *ret_factor)
{
    struct dp_csv_cell number = *cell;
    number.length -= number.length > 0 && number.text[number.length - 1] == 'x';
    double value;
    if (!dp_csv_number(&number, &value) || value <= 0 || value > DP_COST_FACTOR_MAX) {
        dp_diags_add(diags, line, cell->column, "1.5 is half as slow again, 0.5 twice as fast",
                     "\"%.*s\" is no factor: a number over 0 and at most %g", dp_csv_shown(cell),
                     cell->text, DP_COST_FACTOR_MAX);
        return false;
    }
    *ret_factor = value;
    return true;
}

// The third of three of which two are given.
static bool take_rest(struct what_if_chunk *chunk, dp_action_kind part, dp_action_kind rest,
                      struct dp_diags *diags, int line, int column)
{
    chunk->seconds[rest] = chunk->seconds[DP_ACTION_B] - chunk->seconds[part];
    if (chunk->seconds[rest] >= 0) {
        return true;
    }
    dp_diags_add(diags, line, column, "without overlap B is I + W",
                 "%s takes %g, more than B with %g, and %s is not given", dp_action_kind_text(part),
                 chunk->seconds[part], chunk->seconds[DP_ACTION_B], dp_action_kind_text(rest));
    return false;
}

bool dp_what_if_complete(struct what_if_chunk *chunk, struct dp_diags *diags, int line, int column)
{
    double *seconds = chunk->seconds;
    const bool *given = chunk->given;
    if (!given[DP_ACTION_F]) {
        dp_diags_add(diags, line, column, NULL, "F is missing");
        return false;
    }
    bool good = true;
    if (given[DP_ACTION_I] && given[DP_ACTION_W]) {
        if (!given[DP_ACTION_B]) {
            seconds[DP_ACTION_B] = seconds[DP_ACTION_I] + seconds[DP_ACTION_W];
        }
    } else if (!given[DP_ACTION_B]) {
        dp_diags_add(diags, line, column, "give B, or I and W", "the backward is missing: %s",
                     given[DP_ACTION_I]   ? "W"
                     : given[DP_ACTION_W] ? "I"
                                          : "B");
        good = false;
    } else if (given[DP_ACTION_I]) {
        good = take_rest(chunk, DP_ACTION_I, DP_ACTION_W, diags, line, column);
    } else if (given[DP_ACTION_W]) {
        good = take_rest(chunk, DP_ACTION_W, DP_ACTION_I, diags, line, column);
    } else {
        seconds[DP_ACTION_I] = seconds[DP_ACTION_W] = seconds[DP_ACTION_B] / 2;
    }
    return good;
}

double dp_what_if_fi(double f, double b, double i, double fb)
{
    return fmax(fb - b + i, fmax(f, i));
}
