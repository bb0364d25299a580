#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "schedule_csv.h"

void dp_schedule_csv_deinit(struct dp_schedule_csv *csv)
{
    dp_schedule_deinit(&csv->schedule);
    *csv = (struct dp_schedule_csv){0};
}

// A file on its way to a schedule.
struct import {
    struct csv_file file;
    dp_schedule_letters letters;
    bool has_comms;
    struct dp_schedule schedule;
    struct dp_schedule_place *places; // parallel to its actions
    struct dp_diags *diags;
};

static void import_deinit(struct import *import)
{
    dp_csv_file_deinit(&import->file);
    dp_schedule_deinit(&import->schedule);
    free(import->places);
}

// The first item of a kind; NULL = none. W and I are also found in pairs.
static const struct csv_item *first_of(const struct csv_file *file, uint8_t kind)
{
    for (size_t i = 0; i < file->count; i++) {
        const struct dp_action *action = &file->items[i].action;
        if (action->kind == kind || (action->kind == DP_ACTION_FB && action->b_kind == kind)) {
            return &file->items[i];
        }
    }
    return NULL;
}

static bool refuse_letters(struct import *import, const struct csv_item *item, const char *why)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_csv_item_text(item, &text);
    dp_diags_add(
        import->diags, item->place.line, item->place.column,
        "today I is the backward of inputs, W of weights, B both; before PyTorch 2.6 B was "
        "that of inputs and BW both",
        "%s %s", text.bytes, why);
    return false;
}

static bool choose_letters(struct import *import, dp_schedule_letters wanted)
{
    const struct csv_file *file = &import->file;
    const struct csv_item *full = first_of(file, CSV_BW);
    const struct csv_item *newer = first_of(file, DP_ACTION_I);
    newer = newer == NULL ? first_of(file, DP_ACTION_FB) : newer;
    if (full != NULL && wanted == DP_SCHEDULE_LETTERS_NEW) {
        return refuse_letters(import, full, "is written in the old letters");
    }
    if (newer != NULL && wanted == DP_SCHEDULE_LETTERS_OLD) {
        return refuse_letters(import, newer, "is not in the old letters");
    }
    if (full != NULL && newer != NULL) {
        return refuse_letters(import, full, "is in the old letters, and others are in the new");
    }
    bool looks_old = newer == NULL && (full != NULL || first_of(file, DP_ACTION_W) != NULL);
    import->letters = wanted != DP_SCHEDULE_LETTERS_ANY ? wanted
                      : looks_old                       ? DP_SCHEDULE_LETTERS_OLD
                                                        : DP_SCHEDULE_LETTERS_NEW;
    return true;
}

static uint8_t translated(const struct import *import, uint8_t kind)
{
    if (import->letters == DP_SCHEDULE_LETTERS_OLD) {
        return kind == CSV_BW ? DP_ACTION_B : kind == DP_ACTION_B ? DP_ACTION_I : kind;
    }
    return kind;
}

// The form, and whether its cells are as the form wants them.
static bool check_form(struct import *import)
{
    const struct csv_file *file = &import->file;
    for (size_t i = 0; i < file->count; i++) {
        import->has_comms = import->has_comms || !csv_is_compute(file->items[i].action.kind);
    }
    bool good = true;
    for (int32_t rank = 0; rank < file->rows && import->has_comms; rank++) {
        const struct dp_schedule_place *empty = &file->empty[rank];
        if (empty->line > 0) {
            dp_diags_add(import->diags, empty->line, empty->column,
                         "PyTorch refuses them there; take the commas out",
                         "an empty cell in a file with messages");
            good = false;
        }
    }
    return good;
}

// Takes the computing items for actions.
static bool take_actions(struct import *import)
{
    const struct csv_file *file = &import->file;
    struct dp_schedule *schedule = &import->schedule;
    bool good = true;
    DP_COPY_TEXT(schedule->name, "imported");
    schedule->pipeline = file->rows;
    schedule->directions = 1;
    schedule->actions = dp_new_array(struct dp_action, file->count);
    schedule->rank_begin = dp_new_array(size_t, (size_t)file->rows + 1);
    import->places = dp_new_array(struct dp_schedule_place, file->count);
    size_t count = 0;
    for (int32_t rank = 0; rank < file->rows; rank++) {
        for (size_t i = file->row_begin[rank]; i < file->row_begin[rank + 1]; i++) {
            const struct csv_item *item = &file->items[i];
            if (csv_is_compute(item->action.kind)) {
                schedule->actions[count] = item->action;
                schedule->actions[count].kind = translated(import, item->action.kind);
                import->places[count++] = item->place;
            }
        }
        schedule->rank_begin[rank + 1] = count;
        if (count == schedule->rank_begin[rank]) {
            dp_diags_add(import->diags, rank + 1, 1, NULL, "rank %d has no F, B, I or W", rank);
            good = false;
        }
    }
    return good;
}

// Numbers that the actions use, and the action that uses the largest.
struct numbers {
    bool used[DP_MICROBATCHES_MAX];
    int32_t count; // one more than the largest
    size_t largest_at;
};

static void use(struct numbers *numbers, uint32_t number, size_t at)
{
    numbers->used[number] = true;
    if ((int32_t)number >= numbers->count) {
        numbers->count = (int32_t)number + 1;
        numbers->largest_at = at;
    }
}

static bool check_gaps(const struct import *import, const struct numbers *numbers, const char *what)
{
    for (int32_t i = 0; i < numbers->count; i++) {
        if (!numbers->used[i]) {
            const struct dp_schedule_place *place = &import->places[numbers->largest_at];
            dp_diags_add(
                import->diags, place->line, place->column, "they are counted from 0 without gaps",
                "%s %d is here, but nothing is done of %s %d", what, numbers->count - 1, what, i);
            return false;
        }
    }
    return true;
}

static bool find_sizes(struct import *import)
{
    struct dp_schedule *schedule = &import->schedule;
    DP_AUTO_FREE struct numbers *stages = dp_new(struct numbers);
    DP_AUTO_FREE struct numbers *microbatches = dp_new(struct numbers);
    for (size_t i = 0; i < dp_schedule_action_count(schedule); i++) {
        struct dp_half halves[2];
        int count = dp_action_halves(&schedule->actions[i], halves);
        for (int h = 0; h < count; h++) {
            use(stages, (uint32_t)halves[h].stage, i);
            use(microbatches, halves[h].microbatch, i);
        }
    }
    schedule->stages = stages->count;
    schedule->microbatches = microbatches->count;
    bool good = check_gaps(import, stages, "stage");
    return check_gaps(import, microbatches, "micro-batch") && good;
}

// How much of a stage a rank runs, and where it does first.
struct share {
    size_t actions;
    size_t first;
};

// A stage is on the rank that runs most of it.
static int32_t choose_rank(const struct share *shares, int32_t ranks)
{
    int32_t best = 0;
    for (int32_t rank = 1; rank < ranks; rank++) {
        best = shares[rank].actions > shares[best].actions ? rank : best;
    }
    return best;
}

static void refuse_second(struct import *import, int32_t stage, const struct share *shares,
                          int32_t rank, int32_t second)
{
    const struct dp_schedule_place *place = &import->places[shares[second].first];
    const struct dp_schedule_place *other = &import->places[shares[rank].first];
    dp_diags_add(import->diags, place->line, place->column,
                 "PyTorch keeps each stage on one rank; for two directions export dualpipev",
                 "stage %d is on rank %d here, and on rank %d from %d:%d on", stage, second, rank,
                 other->line, other->column);
}

static bool find_placement(struct import *import)
{
    struct dp_schedule *schedule = &import->schedule;
    size_t ranks = (size_t)schedule->pipeline;
    DP_AUTO_FREE struct share *shares =
        dp_new_array(struct share, (size_t)schedule->stages * ranks);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            struct dp_half halves[2];
            int count = dp_action_halves(&schedule->actions[i], halves);
            for (int h = 0; h < count; h++) {
                struct share *share = &shares[(size_t)halves[h].stage * ranks + (size_t)rank];
                share->first = share->actions++ == 0 ? i : share->first;
            }
        }
    }
    bool good = true;
    schedule->placement = dp_new_array(int32_t, 2 * (size_t)schedule->stages);
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        const struct share *of_stage = &shares[(size_t)stage * ranks];
        int32_t rank = choose_rank(of_stage, schedule->pipeline);
        schedule->placement[2 * stage] = rank;
        schedule->placement[2 * stage + 1] = rank;
        for (int32_t second = 0; second < schedule->pipeline; second++) {
            if (second != rank && of_stage[second].actions > 0) {
                refuse_second(import, stage, of_stage, rank, second);
                good = false;
            }
        }
    }
    return good;
}

static bool audit(struct import *import)
{
    const struct dp_schedule_place start = {1, 1};
    const struct dp_schedule_source source = {
        .words = {.kinds = import->letters == DP_SCHEDULE_LETTERS_OLD ? dp_words_old_letters
                                                                      : dp_words_new_letters,
                  .places = import->places},
        .sizes = start,
        .placement = start,
        .lists = start};
    return dp_schedule_audit_source(&import->schedule, &source, import->diags) &&
           (!import->has_comms ||
            dp_csv_messages_check(&import->file, &import->schedule, import->diags));
}

dp_status dp_schedule_read_csv(const char *text, size_t length, dp_schedule_letters letters,
                               struct dp_schedule_csv *ret_csv, struct dp_diags *diags,
                               struct dp_error *err)
{
    if (length > DP_SCHEDULE_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "a schedule of %zu bytes; the limit is %u", length,
                       DP_SCHEDULE_BYTES_MAX);
    }
    DP_CLEANUP(import_deinit) struct import import = {.diags = diags};
    bool good = dp_csv_rows_read(text, length, &import.file, diags) &&
                choose_letters(&import, letters) && check_form(&import) && take_actions(&import) &&
                find_sizes(&import) && find_placement(&import) && audit(&import);
    if (!good) {
        return dp_diags_status(diags, err);
    }
    *ret_csv = (struct dp_schedule_csv){
        .schedule = import.schedule, .letters = import.letters, .has_comms = import.has_comms};
    import.schedule = (struct dp_schedule){0};
    return DP_OK;
}
