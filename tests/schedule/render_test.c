#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "dp/render.h"

static struct dp_sim_result run(const struct dp_schedule *schedule)
{
    return simulate_uniform(schedule,
                            (struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3});
}

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

// Two ranks, two micro-batches: 9 units, each 4 columns wide.
static void a_gantt_chart_has_a_row_per_rank_and_true_lengths(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf text = {0};
    dp_render_gantt(&schedule, &result, &(struct dp_render_options){.width = 43}, &text);
    assert_string_equal(text.bytes, "0 FFFFFFFF............BBBBBBBBBBBBBBBB  67%\n"
                                    "1 ....FFFFFFFFBBBBBBBBBBBBBBBB........  67%\n"
                                    "  0                   5            9 s\n"
                                    "  F forward  B backward  . idle\n");
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

static void streams_and_kinds_differ_with_and_without_colour(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipe", 4, 8);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf plain = {0};
    struct dp_buf colour = {0};
    dp_render_gantt(&schedule, &result, &(struct dp_render_options){.width = 111}, &plain);
    // 26 units of 4 columns: three forwards of the own stream, one of the other.
    assert_int_equal(strncmp(plain.bytes, "0 FFFFFFFFFFFFffff", 18), 0);
    assert_null(strchr(plain.bytes, '\033'));
    for (const char *letter = "FfBbIiWwXx"; *letter != '\0'; letter++) {
        assert_non_null(strchr(plain.bytes, *letter));
    }
    dp_render_gantt(&schedule, &result, &(struct dp_render_options){.width = 111, .color = true},
                    &colour);
    assert_non_null(strstr(colour.bytes, "\033[30;48;5;75m"));
    // Without its escapes the coloured chart is the plain one.
    size_t length = 0;
    for (size_t i = 0; i < colour.length; i++) {
        if (colour.bytes[i] == '\033') {
            i += strcspn(&colour.bytes[i], "m");
        } else {
            colour.bytes[length++] = colour.bytes[i];
        }
    }
    colour.bytes[length] = '\0';
    assert_string_equal(colour.bytes, plain.bytes);
    dp_buf_deinit(&plain);
    dp_buf_deinit(&colour);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

static void a_schedule_that_takes_no_time_has_no_chart(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_sim_result result = simulate_uniform(&schedule, (struct dp_sim_uniform){0});
    struct dp_buf text = {0};
    dp_render_gantt(&schedule, &result, &(struct dp_render_options){0}, &text);
    assert_string_equal(text.bytes, "nothing takes time\n");
    assert_true(dp_render_table_unit(&result, 8) == 0);
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

static void steps_of_any_length_are_drawn_or_said_to_be_beyond_it(void **state)
{
    (void)state;
    for (int power = -323; power <= 8; power += 7) {
        struct dp_schedule schedule = make_schedule("dualpipe", 4, 8);
        double second = pow(10, power);
        struct dp_sim_uniform uniform = {
            .f = second, .b = 2 * second, .i = second, .w = second, .fb = 3 * second};
        struct dp_sim_costs costs;
        dp_sim_costs_init_uniform(&costs, &schedule, &uniform);
        struct dp_sim_result result = simulate_uniform(&schedule, uniform);
        struct dp_buf text = {0};
        struct dp_buf figure = {0};
        dp_render_gantt(&schedule, &result, &(struct dp_render_options){0}, &text);
        dp_render_svg(&schedule, &result, &costs, &(struct dp_render_svg_options){0}, &figure);
        bool drawn = count_lines(text.bytes) > 4;
        assert_int_equal(drawn, power > -20);
        assert_int_equal(strstr(figure.bytes, ">rank 3<") != NULL, drawn);
        dp_buf_deinit(&text);
        dp_buf_deinit(&figure);
        dp_sim_result_deinit(&result);
        dp_sim_costs_deinit(&costs);
        dp_schedule_deinit(&schedule);
    }
}

static void a_table_shows_microbatches_in_cells(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("1f1b", 2, 2);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf text = {0};
    double unit = dp_render_table_unit(&result, dp_schedule_action_count(&schedule));
    assert_true(unit == 1);
    struct dp_render_options options = {0};
    assert_ok(dp_render_table(&schedule, &result, unit, &options, &text, &err), &err);
    assert_string_equal(text.bytes,
                        "slot 0  1* 2  3  4  5  6  7  8\n"
                        "   0 F0 F1 .  .  B0--- .  B1---\n"
                        "   1 .  F0 B0--- F1 B1--- .  .\n"
                        "slot: 1 s  F forward  B backward  . idle  F3: micro-batch 3\n"
                        "* slot 1 is the first bubble-free one: no rank idles from there until the "
                        "cool-down in slot 2, when the first rank has made its last forward\n");
    assert_refused(dp_render_table(&schedule, &result, 1e-6, &options, &text, &err), DP_INVALID,
                   &err, "longer unit");
    assert_refused(dp_render_table(&schedule, &result, 0, &options, &text, &err), DP_INVALID, &err,
                   "positive unit");
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

// The smallest DualPipeV file of torch.distributed.pipelining's documented format.
static void torch_files_have_its_notation(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("dualpipev", 2, 4);
    struct dp_buf text = {0};
    assert_ok(dp_render_torch_csv(&schedule, &text, &err), &err);
    assert_string_equal(text.bytes,
                        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
                        "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
                        "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
                        "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\n");
    dp_schedule_deinit(&schedule);
    schedule = make_schedule("dualpipe", 4, 8);
    assert_refused(dp_render_torch_csv(&schedule, &text, &err), DP_UNSUPPORTED, &err,
                   "keeps each stage on one");
    dp_buf_deinit(&text);
    dp_schedule_deinit(&schedule);
}

// Families with what they draw differently: one chunk, two directions, a V, several chunks.
static const struct {
    const char *family;
    int32_t virtual_stages;
} drawn[] = {{"1f1b", 0}, {"dualpipe", 0}, {"dualpipev", 0}, {"interleaved", 4}, {"zb-h1", 0}};

static struct dp_schedule make_drawn(size_t which, int32_t pipeline, int32_t microbatches)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params params = {.pipeline = pipeline,
                                        .microbatches = microbatches,
                                        .virtual_stages = drawn[which].virtual_stages};
    assert_ok(dp_schedule_generate(drawn[which].family, &params, &schedule, &err), &err);
    return schedule;
}

// Columns of the longest line; escapes take none.
static size_t longest_line(const char *text)
{
    size_t longest = 0;
    size_t columns = 0;
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            longest = columns > longest ? columns : longest;
            columns = 0;
        } else if (*text == '\033') {
            text += strcspn(text, "m");
        } else {
            columns++;
        }
    }
    return longest;
}

static void no_line_is_longer_than_the_terminal(void **state)
{
    (void)state;
    static const int32_t sizes[][2] = {{2, 4},     {10, 24},   {12, 30},
                                       {100, 200}, {256, 512}, {4, 3000}};
    struct dp_error err = {0};
    for (size_t size = 0; size < sizeof(sizes) / sizeof(*sizes); size++) {
        for (size_t which = 0; which < sizeof(drawn) / sizeof(*drawn); which++) {
            struct dp_schedule schedule = make_drawn(which, sizes[size][0], sizes[size][1]);
            struct dp_sim_result result = run(&schedule);
            bool small = result.makespan <= 300;
            for (int32_t width = 40; width <= 400; width += small ? 9 : 90) {
                struct dp_render_options options = {.width = width, .color = width % 2 == 0};
                struct dp_buf text = {0};
                dp_render_gantt(&schedule, &result, &options, &text);
                assert_int_equal(longest_line(text.bytes), width);
                assert_true(count_lines(text.bytes) >= schedule.pipeline + 2);
                dp_buf_clear(&text);
                if (small) {
                    assert_ok(dp_render_table(&schedule, &result, 1, &options, &text, &err), &err);
                    assert_true(longest_line(text.bytes) <= (size_t)width);
                }
                dp_buf_deinit(&text);
            }
            dp_sim_result_deinit(&result);
            dp_schedule_deinit(&schedule);
        }
    }
}

// Looks at many moments of the column and counts.
static char sampled(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                    int32_t rank, double from, double to, bool *ret_clear)
{
    enum { SAMPLES = 400 };
    int counts[128] = {0};
    size_t action = schedule->rank_begin[rank];
    size_t end = schedule->rank_begin[rank + 1];
    int busy = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double moment = from + (to - from) * (i + 0.5) / SAMPLES;
        while (action < end && result->spans[action].end <= moment) {
            action++;
        }
        if (action == end || result->spans[action].start > moment) {
            continue;
        }
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
        const struct dp_action *a = &schedule->actions[action];
        bool second =
            schedule->directions == 2
                ? a->microbatch >= (uint32_t)schedule->microbatches / 2
                : count > 1 && (a->stage == stages[1] || (count > 3 && a->stage == stages[3]));
        counts[(int)"FBIWX"[a->kind] + (second ? 'a' - 'A' : 0)]++;
        busy++;
    }
    int first = 0;
    int next = 0;
    for (int i = 1; i < 128; i++) {
        if (counts[i] > counts[first]) {
            next = first;
            first = i;
        } else if (counts[i] > counts[next]) {
            next = i;
        }
    }
    bool idle = 2 * busy < SAMPLES;
    *ret_clear = abs(2 * busy - SAMPLES) > 8 && (idle || counts[first] - counts[next] > 8);
    return idle ? '.' : (char)first;
}

static void columns_show_what_fills_most_of_them(void **state)
{
    (void)state;
    int clear_columns = 0;
    for (size_t which = 0; which < sizeof(drawn) / sizeof(*drawn); which++) {
        struct dp_schedule schedule = make_drawn(which, 4, 24);
        struct dp_sim_result result = simulate_uniform(
            &schedule, (struct dp_sim_uniform){
                           .f = 1, .b = 2.3, .i = 1.2, .w = 0.7, .fb = 2.6, .hop = {0.3, 0}});
        struct dp_buf text = {0};
        const int32_t width = 73;
        dp_render_gantt(&schedule, &result, &(struct dp_render_options){.width = width}, &text);
        const char *line = text.bytes;
        int32_t columns = width - 7;
        for (int32_t rank = 0; rank < 4; rank++, line = strchr(line, '\n') + 1) {
            for (int32_t column = 0; column < columns; column++) {
                bool clear;
                char wanted = sampled(&schedule, &result, rank, result.makespan * column / columns,
                                      result.makespan * (column + 1) / columns, &clear);
                if (clear) {
                    assert_int_equal(line[2 + column], wanted);
                    clear_columns++;
                }
            }
        }
        dp_buf_deinit(&text);
        dp_sim_result_deinit(&result);
        dp_schedule_deinit(&schedule);
    }
    assert_true(clear_columns > 4 * 5 * 66 / 2);
}

// On a grid of whole seconds: the first column of the picture from which all are full until some
// rank has no forward left.
static bool steady_by_grid(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                           int *ret_from, int *ret_until)
{
    int until = (int)result->makespan;
    int last_hole = -1;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int own = 0;
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            int kind = schedule->actions[i].kind;
            own = kind == DP_ACTION_F || kind == DP_ACTION_FB ? (int)result->spans[i].end : own;
        }
        until = own < until ? own : until;
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (int second = 0; second < until; second++) {
            bool full = false;
            for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
                full = full ||
                       (result->spans[i].start <= second && result->spans[i].end >= second + 1);
            }
            last_hole = !full && second > last_hole ? second : last_hole;
        }
    }
    *ret_from = last_hole + 1;
    *ret_until = until;
    return last_hole + 1 < until;
}

static void the_first_bubble_free_slot_is_found(void **state)
{
    (void)state;
    static const struct dp_sim_uniform costs[] = {
        {.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3},
        {.f = 2, .b = 3, .i = 2, .w = 1, .fb = 4, .hop = {1, 0}},
    };
    int found = 0;
    int missing = 0;
    for (size_t which = 0; which < sizeof(drawn) / sizeof(*drawn); which++) {
        for (int32_t microbatches = 8; microbatches <= 24; microbatches += 4) {
            for (size_t cost = 0; cost < 2; cost++) {
                struct dp_schedule schedule = make_drawn(which, 4, microbatches);
                struct dp_sim_result result = simulate_uniform(&schedule, costs[cost]);
                double from = -1;
                double until = -1;
                int grid_from;
                int grid_until;
                bool is_steady = dp_render_steady(&schedule, &result, &from, &until);
                assert_int_equal(is_steady,
                                 steady_by_grid(&schedule, &result, &grid_from, &grid_until));
                assert_true(until == grid_until);
                assert_true(!is_steady || from == grid_from);
                found += is_steady;
                missing += !is_steady;
                dp_sim_result_deinit(&result);
                dp_schedule_deinit(&schedule);
            }
        }
    }
    assert_true(found > 5 && missing > 5);
}

// 1F1B, P=4: rank 0's first backward starts at (P-1) x (F + B) + F = 10, the last bubble of the
// warm-up is before it.
static void one_f_one_b_is_steady_from_the_first_ranks_first_backward_on(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 4, 16);
    struct dp_sim_result result = run(&schedule);
    double from;
    double until;
    assert_true(dp_render_steady(&schedule, &result, &from, &until));
    assert_true(from == 10);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

// Reads a table of any width back: the cells of one rank, blocks put behind each other.
static void read_row(const char *table, int32_t rank, struct dp_buf *out)
{
    int32_t row = -2;
    for (const char *line = table; *line != '\0'; line = strchr(line, '\n') + 1) {
        row = strncmp(line, "slot", 4) == 0 && line[4] != ':' ? -1 : row + 1;
        bool is_notes = strncmp(line, "slot:", 5) == 0;
        if (is_notes) {
            return;
        }
        if (row == rank) {
            dp_buf_append(out, line + 4, strcspn(line + 4, "\n"));
            // Spaces at the end of a line are left out.
            dp_buf_puts(out, " ");
        }
    }
}

static void strip(char *text, char dropped)
{
    size_t length = 0;
    for (size_t i = 0; text[i] != '\0'; i++) {
        if (text[i] != dropped) {
            text[length++] = text[i];
        }
    }
    text[length] = '\0';
}

static void compare_wrapped(const struct dp_schedule *schedule, const struct dp_sim_result *result,
                            int32_t width)
{
    struct dp_error err = {0};
    struct dp_buf whole = {0};
    struct dp_buf wrapped = {0};
    struct dp_render_options options = {.width = 0};
    assert_ok(dp_render_table(schedule, result, 1, &options, &whole, &err), &err);
    options.width = width;
    assert_ok(dp_render_table(schedule, result, 1, &options, &wrapped, &err), &err);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        struct dp_buf a = {0};
        struct dp_buf b = {0};
        read_row(whole.bytes, rank, &a);
        read_row(wrapped.bytes, rank, &b);
        for (const char *dropped = " -"; *dropped != '\0'; dropped++) {
            strip(a.bytes, *dropped);
            strip(b.bytes, *dropped);
        }
        assert_string_equal(a.bytes, b.bytes);
        dp_buf_deinit(&a);
        dp_buf_deinit(&b);
    }
    dp_buf_deinit(&whole);
    dp_buf_deinit(&wrapped);
}

static void a_wrapped_table_has_the_cells_of_a_long_one(void **state)
{
    (void)state;
    for (size_t which = 0; which < sizeof(drawn) / sizeof(*drawn); which++) {
        for (int fb = 1; fb <= 4; fb++) {
            struct dp_schedule schedule = make_drawn(which, 4, 12);
            struct dp_sim_result result = simulate_uniform(
                &schedule, (struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1, .fb = fb});
            for (int32_t width = 40; width < 130; width += 10) {
                compare_wrapped(&schedule, &result, width);
            }
            dp_sim_result_deinit(&result);
            dp_schedule_deinit(&schedule);
        }
    }
}

// The table of DualPipe, P=4, M=8, has its actions at the seconds at which they run: in each row
// the text of an action stands under its slot.
static void table_cells_stand_under_their_slots(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("dualpipe", 4, 8);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf text = {0};
    struct dp_render_options options = {0};
    assert_ok(dp_render_table(&schedule, &result, 1, &options, &text, &err), &err);
    const char *line = strchr(text.bytes, '\n') + 1;
    for (int32_t rank = 0; rank < 4; rank++, line = strchr(line, '\n') + 1) {
        for (size_t i = schedule.rank_begin[rank]; i < schedule.rank_begin[rank + 1]; i++) {
            const struct dp_action *action = &schedule.actions[i];
            const char *cell = line + 4 + 1 + 3 * (int)result.spans[i].start;
            bool second = action->microbatch >= 4;
            char wanted[64];
            int length = snprintf(wanted, sizeof(wanted), "%c%u",
                                  (second ? "fbiwf" : "FBIWF")[action->kind], action->microbatch);
            if (action->kind == DP_ACTION_FB) {
                length += snprintf(&wanted[length], sizeof(wanted) - (size_t)length, "+%c%u",
                                   action->b_microbatch >= 4 ? 'b' : 'B', action->b_microbatch);
            }
            assert_int_equal(strncmp(cell, wanted, (size_t)length), 0);
        }
    }
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

// Slots hold whole durations where a tenth of the shortest action is enough for that.
static void a_table_says_when_it_rounds(void **state)
{
    (void)state;
    static const struct {
        double f, b, hop, unit;
        bool rounded;
    } cases[] = {
        {1, 2, 0, 1, false},          {1, 1.5, 0, 0.5, false},   {0.3, 0.7, 0, 0.1, false},
        {1, 1.5, 0.1, 0.1, false},    {1, 1.5, 0.01, 0.5, true}, {1, 1.01, 0, 1, true},
        {1e-5, 3e-5, 0, 1e-5, false}, {M_PI, M_E, 0, M_E, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct dp_error err = {0};
        struct dp_schedule schedule = make_schedule("1f1b", 4, 40);
        struct dp_sim_uniform uniform = {.f = cases[i].f, .b = cases[i].b};
        uniform.hop.latency = cases[i].hop;
        struct dp_sim_result result = simulate_uniform(&schedule, uniform);
        double unit = dp_render_table_unit(&result, dp_schedule_action_count(&schedule));
        assert_true(fabs(unit / cases[i].unit - 1) < 1e-9);
        struct dp_buf text = {0};
        struct dp_render_options options = {0};
        assert_ok(dp_render_table(&schedule, &result, unit, &options, &text, &err), &err);
        assert_int_equal(strstr(text.bytes, "cells are rounded") != NULL, cases[i].rounded);
        dp_buf_deinit(&text);
        dp_sim_result_deinit(&result);
        dp_schedule_deinit(&schedule);
    }
}

static void a_schedule_that_waits_for_itself_has_no_messages(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("1f1b", 2, 4);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf text = {0};
    // Rank 1 wants micro-batch 1 first, and rank 0 makes it only after micro-batch 0's backward.
    struct dp_action *first = &schedule.actions[schedule.rank_begin[1]];
    first[0].microbatch = 1;
    first[2].microbatch = 0;
    struct dp_action *second = &schedule.actions[1];
    struct dp_action kept = second[0];
    second[0] = second[1];
    second[1] = kept;
    assert_refused(dp_render_torch_csv_comms(&schedule, &result, true, &text, &err), DP_INVALID,
                   &err, "rank 0, position 1: B0@0 waits for ever");
    assert_true(text.length == 0);
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

static void megatron_layers_must_fit(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("1f1b", 4, 8);
    struct dp_buf text = {0};
    const int32_t layers[] = {0, 5, 5, 2};
    struct dp_render_megatron_options options = {.stage_layers = layers};
    assert_ok(dp_render_megatron(&schedule, &options, &text, &err), &err);
    assert_string_equal(text.bytes, "--pipeline-model-parallel-size 4 \\\n"
                                    "--num-layers 12 \\\n"
                                    "--pipeline-model-parallel-layout 'E|t*5|t*5|ttL'\n");
    options.layers = 13;
    assert_refused(dp_render_megatron(&schedule, &options, &text, &err), DP_INVALID, &err,
                   "the stages have 12 decoder layers, the model has 13");
    options = (struct dp_render_megatron_options){0};
    assert_refused(dp_render_megatron(&schedule, &options, &text, &err), DP_INVALID, &err,
                   "needs the number of decoder layers");
    options.layers = -3;
    assert_refused(dp_render_megatron(&schedule, &options, &text, &err), DP_INVALID, &err,
                   "layers");
    dp_buf_deinit(&text);
    dp_schedule_deinit(&schedule);
}

// The 61 layers of DeepSeek-V3 and its prediction layer on 16 ranks, as Megatron's documentation
// writes them: Et*3|(tt|)*29,m|L, the last stage with the loss alone.
static void megatron_layout_is_the_documented_one(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params params = {.pipeline = 16, .microbatches = 32, .virtual_stages = 2};
    assert_ok(dp_schedule_generate("interleaved", &params, &schedule, &err), &err);
    int32_t layers[32];
    for (int i = 0; i < 32; i++) {
        layers[i] = i == 0 ? 3 : i < 30 ? 2 : 0;
    }
    struct dp_render_megatron_options options = {.stage_layers = layers, .mtp_layers = 1};
    struct dp_buf text = {0};
    assert_ok(dp_render_megatron(&schedule, &options, &text, &err), &err);
    assert_non_null(strstr(text.bytes, "--num-layers 61 "));
    assert_non_null(strstr(text.bytes, "'Et*3|(tt|)*29,|mL'"));
    // An order that Megatron would not run is refused, whatever its name is.
    struct dp_action kept = schedule.actions[40];
    schedule.actions[40] = schedule.actions[41];
    schedule.actions[41] = kept;
    assert_refused(dp_render_megatron(&schedule, &options, &text, &err), DP_UNSUPPORTED, &err,
                   "at rank 0, position 40 it would run");
    dp_buf_deinit(&text);
    dp_schedule_deinit(&schedule);
}

static void a_title_cannot_break_the_figure(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 2, 4);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 2});
    struct dp_sim_result result = run(&schedule);
    struct dp_render_svg_options options = {.title = "</text><script>\"&\x01"};
    struct dp_buf text = {0};
    dp_render_svg(&schedule, &result, &costs, &options, &text);
    assert_null(strstr(text.bytes, "<script>"));
    assert_null(strchr(text.bytes, '\x01'));
    assert_non_null(strstr(text.bytes, "&#60;/text&#62;&#60;script&#62;&#34;&#38;<"));
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gantt_chart_has_a_row_per_rank_and_true_lengths),
        cmocka_unit_test(streams_and_kinds_differ_with_and_without_colour),
        cmocka_unit_test(a_schedule_that_takes_no_time_has_no_chart),
        cmocka_unit_test(steps_of_any_length_are_drawn_or_said_to_be_beyond_it),
        cmocka_unit_test(a_table_shows_microbatches_in_cells),
        cmocka_unit_test(torch_files_have_its_notation),
        cmocka_unit_test(no_line_is_longer_than_the_terminal),
        cmocka_unit_test(columns_show_what_fills_most_of_them),
        cmocka_unit_test(the_first_bubble_free_slot_is_found),
        cmocka_unit_test(one_f_one_b_is_steady_from_the_first_ranks_first_backward_on),
        cmocka_unit_test(a_wrapped_table_has_the_cells_of_a_long_one),
        cmocka_unit_test(table_cells_stand_under_their_slots),
        cmocka_unit_test(a_table_says_when_it_rounds),
        cmocka_unit_test(a_schedule_that_waits_for_itself_has_no_messages),
        cmocka_unit_test(megatron_layers_must_fit),
        cmocka_unit_test(megatron_layout_is_the_documented_one),
        cmocka_unit_test(a_title_cannot_break_the_figure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
