#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "legend.h"
#include "scale.h"
#include "shade.h"

enum {
    WIDTH_MIN = 40,
    LABEL = 4, // columns before the cells: "slot"; ranks have at most three digits
    TEXT_MAX = 64,
    UNIT_PARTS = 10, // of the shortest action, at most
    NO_LOOK = -1
};

struct table {
    const struct dp_schedule *schedule;
    const struct dp_sim_result *result;
    double unit;
    int32_t width; // of a line; 0 = without end
    bool color;
    bool with_stage; // ranks hold several stages of one direction
    int32_t cell;    // columns of a cell, without the space before it
    int32_t slots;
    int32_t block; // slots that fit beside each other
    int32_t mark;  // the first bubble-free slot, or -1
    int32_t until; // slot where the cool-down begins
    char *lines;   // [P][slots * (cell + 1)]: the cells
    int8_t *looks; // parallel to them: 2 * kind + second stream, or NO_LOOK
};

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t slot_at(const struct table *table, double time)
{
    return (int32_t)llround(time / table->unit);
}

static int chunk_text(const struct table *table, dp_action_kind kind, uint32_t stage,
                      uint32_t microbatch, char *text, size_t size)
{
    bool second = dp_schedule_direction(table->schedule, microbatch) == 1;
    char letter = dp_render_shade_letter(kind, second);
    if (table->with_stage) {
        return snprintf(text, size, "%u%c%u", stage, letter, microbatch);
    }
    return snprintf(text, size, "%c%u", letter, microbatch);
}

static int32_t action_text(const struct table *table, const struct dp_action *action,
                           char text[TEXT_MAX])
{
    if (action->kind != DP_ACTION_FB) {
        return chunk_text(table, action->kind, action->stage, action->microbatch, text, TEXT_MAX);
    }
    int length = chunk_text(table, DP_ACTION_F, action->stage, action->microbatch, text, TEXT_MAX);
    text[length++] = '+';
    return length + chunk_text(table, action->b_kind, action->b_stage, action->b_microbatch,
                               &text[length], (size_t)(TEXT_MAX - length));
}

// Cells are as wide as the longest text in the slots of its action.
static void measure(struct table *table)
{
    const struct dp_schedule *schedule = table->schedule;
    size_t count = dp_schedule_action_count(schedule);
    table->cell = table->mark >= 0 ? dp_render_digits(table->mark) + 1 : 1;
    for (size_t i = 0; i < count; i++) {
        char text[TEXT_MAX];
        int32_t length = action_text(table, &schedule->actions[i], text);
        const struct dp_sim_span *span = &table->result->spans[i];
        int32_t slots = slot_at(table, span->end) - slot_at(table, span->start);
        if (slots > 0) {
            int32_t needed = (length + slots) / slots - 1; // slots * (cell + 1) > length
            table->cell = needed > table->cell ? needed : table->cell;
        }
    }
}

static int32_t column_of(const struct table *table, int32_t slot)
{
    return slot * (table->cell + 1) + 1;
}

// Where the text of an action goes: to its begin, or behind a border of blocks that would cut it.
static int32_t text_column(const struct table *table, int32_t first, int32_t last, int32_t length)
{
    int32_t begin = column_of(table, first);
    int32_t border = column_of(table, (first / table->block + 1) * table->block);
    bool is_cut = begin + length > border - 1 && column_of(table, last) > border;
    return is_cut && border + length < column_of(table, last) ? border : begin;
}

static void fill_line(struct table *table, int32_t rank)
{
    const struct dp_schedule *schedule = table->schedule;
    size_t size = (size_t)table->slots * (size_t)(table->cell + 1);
    char *line = &table->lines[(size_t)rank * size];
    int8_t *looks = &table->looks[(size_t)rank * size];
    memset(line, ' ', size);
    memset(looks, NO_LOOK, size);
    for (int32_t slot = 0; slot < table->slots; slot++) {
        line[column_of(table, slot)] = '.';
    }
    struct shade_rank shade;
    dp_render_shade_rank_init(&shade, schedule, rank);
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        int32_t first = slot_at(table, table->result->spans[i].start);
        int32_t last = slot_at(table, table->result->spans[i].end);
        if (first == last) {
            continue;
        }
        int32_t begin = column_of(table, first);
        size_t columns = (size_t)(column_of(table, last) - 1 - begin);
        bool second = dp_render_shade_is_second(&shade, action);
        memset(&line[begin], last == first + 1 ? ' ' : '-', columns);
        memset(&looks[begin], 2 * action->kind + second, columns);
        char text[TEXT_MAX];
        int32_t length = action_text(table, action, text);
        memcpy(&line[text_column(table, first, last, length)], text, (size_t)length);
    }
}

// The part of the rank's line that belongs to the block.
static void add_line(const struct table *table, int32_t rank, int32_t first, int32_t last,
                     struct dp_buf *out)
{
    size_t size = (size_t)table->slots * (size_t)(table->cell + 1);
    const char *line = &table->lines[(size_t)rank * size];
    const int8_t *looks = &table->looks[(size_t)rank * size];
    dp_buf_printf(out, "%*d", LABEL, rank);
    int look = NO_LOOK;
    int32_t end = column_of(table, last) - 1;
    while (looks[end - 1] == NO_LOOK && line[end - 1] == ' ') {
        end--;
    }
    for (int32_t i = column_of(table, first) - 1; i < end; i++) {
        int next = table->color ? looks[i] : NO_LOOK;
        if (next != look && look != NO_LOOK) {
            dp_render_shade_end(out);
        }
        if (next != look && next != NO_LOOK) {
            dp_render_shade_begin(next / 2, next % 2 == 1, out);
        }
        look = next;
        dp_buf_append(out, &line[i], 1);
    }
    if (look != NO_LOOK) {
        dp_render_shade_end(out);
    }
    dp_buf_puts(out, "\n");
}

// Slot numbers where there is room for them; the bubble-free one's in any case.
static void add_head(const struct table *table, int32_t first, int32_t last, struct dp_buf *out)
{
    int32_t columns = (last - first) * (table->cell + 1);
    int32_t digits = dp_render_digits(table->slots - 1);
    int32_t step = 1;
    while (step * (table->cell + 1) < digits + 2) {
        step = (int32_t)dp_render_round_step(step + 1);
    }
    DP_AUTO_FREE char *line = dp_alloc((size_t)columns + 1, 1);
    memset(line, ' ', (size_t)columns);
    for (int32_t slot = first; slot < last; slot++) {
        bool marked = slot == table->mark;
        bool beside = table->mark >= 0 && abs(slot - table->mark) < step;
        if (!marked && ((slot - first) % step != 0 || beside)) {
            continue;
        }
        char text[32];
        int32_t length = snprintf(text, sizeof(text), "%d%s", slot, marked ? "*" : "");
        int32_t column = column_of(table, slot - first);
        if (column + length <= columns) {
            memcpy(&line[column], text, (size_t)length);
        }
    }
    while (columns > 0 && line[columns - 1] == ' ') {
        columns--;
    }
    dp_buf_printf(out, "%*s%.*s\n", LABEL, "slot", columns, line);
}

static void add_steady(const struct table *table, struct dp_buf *out)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (table->mark >= 0) {
        dp_buf_printf(&text,
                      "* slot %d is the first bubble-free one: no rank idles from there until the "
                      "cool-down in slot %d, when the first rank has made its last forward",
                      table->mark, table->until);
    } else {
        dp_buf_printf(&text,
                      "no slot is bubble-free: some rank still idles when the cool-down begins in "
                      "slot %d, where the first rank has made its last forward",
                      table->until);
    }
    dp_render_sentence(text.bytes, table->width, out);
}

static bool is_rounded(const struct table *table, double time)
{
    return fabs(time / table->unit - round(time / table->unit)) > 1e-3;
}

// Whether some action begins or ends within a slot.
static bool has_rounded(const struct table *table)
{
    size_t count = dp_schedule_action_count(table->schedule);
    for (size_t i = 0; i < count; i++) {
        const struct dp_sim_span *span = &table->result->spans[i];
        if (is_rounded(table, span->start) || is_rounded(table, span->end)) {
            return true;
        }
    }
    return false;
}

// Cells that stand for other times than they say are said to.
static void add_rounding(const struct table *table, struct dp_buf *out)
{
    if (has_rounded(table)) {
        dp_render_sentence("cells are rounded: some actions begin or end within a slot; what is "
                           "said of bubble-free slots comes from the exact times",
                           table->width, out);
    }
}

static void add_notes(const struct table *table, struct dp_buf *out)
{
    struct legend legend = {.width = table->width, .color = table->color, .pair = "F+B"};
    struct scale_unit unit = dp_render_time_unit(table->unit);
    char text[TEXT_MAX];
    snprintf(text, sizeof(text), "slot: %.4g %s", table->unit / unit.seconds, unit.name);
    dp_render_legend_note(&legend, text, out);
    dp_render_legend_kinds(&legend, table->schedule, out);
    dp_render_legend_note(&legend, ". idle", out);
    dp_render_legend_note(
        &legend, table->with_stage ? "6F3: stage 6, micro-batch 3" : "F3: micro-batch 3", out);
    if (table->schedule->directions == 2) {
        dp_render_legend_note(&legend, "lower case: from the last rank", out);
    }
    dp_render_legend_end(&legend, out);
    add_rounding(table, out);
    add_steady(table, out);
}

// Euclid's way on lengths that carry rounding errors of up to `tolerance`.
static double common_divisor(double a, double b, double tolerance)
{
    while (b > tolerance) {
        double rest = fmod(a, b);
        a = b;
        b = b - rest < tolerance ? 0 : rest;
    }
    return a;
}

// Of all durations or, to hold every gap as well, of all times; as a fraction of the shortest.
static double divisor_of(const struct dp_sim_result *result, size_t count, double shortest,
                         bool times)
{
    const double tolerance = 1e-6 * shortest;
    double divisor = shortest;
    for (size_t i = 0; i < count && divisor * UNIT_PARTS > shortest; i++) {
        const struct dp_sim_span *span = &result->spans[i];
        divisor = common_divisor(span->end - (times ? 0 : span->start), divisor, tolerance);
        if (times) {
            divisor = common_divisor(span->start, divisor, tolerance);
        }
    }
    return shortest / fmax(round(shortest / divisor), 1);
}

double dp_render_table_unit(const struct dp_sim_result *result, size_t action_count)
{
    DP_CHECK(result->spans != NULL);
    double shortest = 0;
    for (size_t i = 0; i < action_count; i++) {
        double seconds = result->spans[i].end - result->spans[i].start;
        if (seconds > 0 && (shortest == 0 || seconds < shortest)) {
            shortest = seconds;
        }
    }
    for (int times = 1; times >= 0 && shortest > 0; times--) {
        double unit = divisor_of(result, action_count, shortest, times == 1);
        if (unit * UNIT_PARTS >= shortest * (1 - 1e-6) &&
            result->makespan / unit <= DP_RENDER_SLOTS_MAX) {
            return unit;
        }
    }
    return shortest;
}

// Slots begin and end exactly where the grid does, give or take the rounding of sums.
static void find_mark(struct table *table)
{
    double from;
    double until;
    bool found = dp_render_steady(table->schedule, table->result, &from, &until);
    table->until = (int32_t)floor(until / table->unit + 1e-6);
    table->mark = found ? (int32_t)ceil(from / table->unit - 1e-6) : -1;
    if (table->mark >= table->until) {
        table->mark = -1;
    }
}

static void add_blocks(struct table *table, struct dp_buf *out)
{
    int32_t ranks = table->schedule->pipeline;
    size_t size = (size_t)table->slots * (size_t)(table->cell + 1) * (size_t)ranks;
    DP_AUTO_FREE char *lines = dp_alloc(size, 1);
    DP_AUTO_FREE int8_t *looks = dp_alloc(size, 1);
    table->lines = lines;
    table->looks = looks;
    for (int32_t rank = 0; rank < ranks; rank++) {
        fill_line(table, rank);
    }
    for (int32_t first = 0; first < table->slots; first += table->block) {
        int32_t last = min32(first + table->block, table->slots);
        add_head(table, first, last, out);
        for (int32_t rank = 0; rank < ranks; rank++) {
            add_line(table, rank, first, last, out);
        }
    }
}

dp_status dp_render_table(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                          double unit, const struct dp_render_options *options, struct dp_buf *out,
                          struct dp_error *err)
{
    DP_CHECK(result->spans != NULL);
    if (!(unit > 0)) {
        return dp_fail(err, DP_INVALID, "a cell of %g seconds; give a positive unit", unit);
    }
    if (result->makespan / unit > DP_RENDER_SLOTS_MAX) {
        return dp_fail(err, DP_INVALID,
                       "the table would have %.0f cells in a row; the limit is %d: give a longer "
                       "unit or draw a Gantt chart",
                       result->makespan / unit, DP_RENDER_SLOTS_MAX);
    }
    struct table table = {.schedule = schedule,
                          .result = result,
                          .unit = unit,
                          .width = options->width,
                          .color = options->color,
                          .with_stage = dp_render_stages_per_rank(schedule) > schedule->directions};
    table.width = table.width > 0 && table.width < WIDTH_MIN ? WIDTH_MIN : table.width;
    table.slots = slot_at(&table, result->makespan);
    find_mark(&table);
    measure(&table);
    int32_t fits = table.width == 0 ? table.slots : (table.width - LABEL) / (table.cell + 1);
    table.block = fits < 1 ? 1 : fits;
    add_blocks(&table, out);
    add_notes(&table, out);
    return DP_OK;
}
