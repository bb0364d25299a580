#include <stdarg.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "problems.h"
#include "progress.h"

// What has happened to a micro-batch at a stage; one bit per kind of half.
static uint8_t bit_of(dp_action_kind kind)
{
    return (uint8_t)(1u << kind);
}

enum {
    RAN_F = 1 << DP_ACTION_F,
    RAN_B = 1 << DP_ACTION_B,
    RAN_I = 1 << DP_ACTION_I,
    RAN_W = 1 << DP_ACTION_W
};

// For each kind of half: what must have run before it on its rank, what must not, and what to say.
struct rule {
    uint8_t needs, excludes;
    dp_action_kind need;
    const char *twice, *help;
};

static const char split_help[] =
    "a chunk has one backward: whole, or of inputs and then of weights";

static const struct rule rules[DP_ACTION_FB] = {
    [DP_ACTION_F] = {0, RAN_F, DP_ACTION_F, "runs a second time", NULL},
    [DP_ACTION_B] = {RAN_F, RAN_B | RAN_I, DP_ACTION_F, "is a second backward of its chunk",
                     split_help},
    [DP_ACTION_I] = {RAN_F, RAN_B | RAN_I, DP_ACTION_F, "is a second backward of its chunk",
                     split_help},
    [DP_ACTION_W] = {RAN_I, RAN_W, DP_ACTION_I, "repeats weight gradients that were done",
                     split_help},
};

// What the chunk of one stage and micro-batch has, as bits of kinds.
struct cell {
    uint8_t any;  // on any rank
    uint8_t here; // on the rank that holds the stage
    uint8_t ran;  // so far, on that rank
};

struct walk {
    const struct dp_schedule *schedule;
    const struct dp_problem_sink *sink;
    struct cell *cells; // [stages][microbatches]
    int32_t rank;
    size_t index; // into actions: what is looked at
    bool found;
    bool stopped; // the sink has heard enough
};

static struct cell *cell_of(const struct walk *walk, int32_t stage, uint32_t microbatch)
{
    return &walk->cells[(size_t)stage * (size_t)walk->schedule->microbatches + microbatch];
}

__attribute__((format(printf, 4, 5))) static void tell(struct walk *walk, dp_problem_about about,
                                                       const char *help, const char *format, ...)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf message = {0};
    if (about == DP_PROBLEM_ACTION || about == DP_PROBLEM_END) {
        dp_words_where(&walk->sink->words, walk->schedule, walk->rank, walk->index, &message);
        dp_buf_puts(&message, ": ");
    }
    va_list args;
    va_start(args, format);
    dp_buf_vprintf(&message, format, args);
    va_end(args);
    const struct dp_problem problem = {about, walk->rank, walk->index, message.bytes, help};
    walk->found = true;
    walk->stopped = walk->stopped || !walk->sink->note(walk->sink->context, &problem);
}

// "W3@2 comes before its I" and the like.
static void tell_half(struct walk *walk, const struct dp_half *half, const char *help,
                      const char *what)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf name = {0};
    dp_words_half(&walk->sink->words, half, &name);
    tell(walk, DP_PROBLEM_ACTION, help, "%s %s", name.bytes, what);
}

static bool is_backward(dp_action_kind kind)
{
    return kind == DP_ACTION_B || kind == DP_ACTION_I;
}

// The halves of the action that can be counted: of a kind that exists, in range.
static int countable_halves(const struct walk *walk, const struct dp_action *action,
                            struct dp_half ret_halves[2])
{
    struct dp_half halves[2];
    int count = action->kind < DP_ACTION_KIND_COUNT ? dp_action_halves(action, halves) : 0;
    int kept = 0;
    for (int i = 0; i < count; i++) {
        if ((i == 0 || is_backward(halves[i].kind)) && halves[i].stage < walk->schedule->stages &&
            halves[i].microbatch < (uint32_t)walk->schedule->microbatches) {
            ret_halves[kept++] = halves[i];
        }
    }
    return kept;
}

static void count_action(const struct walk *walk, int32_t rank, const struct dp_action *action)
{
    struct dp_half halves[2];
    int count = countable_halves(walk, action, halves);
    for (int i = 0; i < count; i++) {
        struct cell *cell = cell_of(walk, halves[i].stage, halves[i].microbatch);
        uint8_t bit = bit_of(halves[i].kind);
        cell->any |= bit;
        if (dp_schedule_rank_of(walk->schedule, halves[i].stage, halves[i].microbatch) == rank) {
            cell->here |= bit;
        }
    }
}

static void count_cells(const struct walk *walk)
{
    const struct dp_schedule *schedule = walk->schedule;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            count_action(walk, rank, &schedule->actions[i]);
        }
    }
}

// Whether the half names a chunk that this rank holds.
static bool is_here(struct walk *walk, const struct dp_half *half)
{
    const struct dp_schedule *schedule = walk->schedule;
    char what[96] = "";
    if (half->stage >= schedule->stages) {
        snprintf(what, sizeof(what), "is of no such stage; stages are 0 to %d",
                 schedule->stages - 1);
    } else if (half->microbatch >= (uint32_t)schedule->microbatches) {
        snprintf(what, sizeof(what), "is of no such micro-batch; micro-batches are 0 to %d",
                 schedule->microbatches - 1);
    } else {
        int32_t owner = dp_schedule_rank_of(schedule, half->stage, half->microbatch);
        if (owner != walk->rank) {
            snprintf(what, sizeof(what),
                     "is on the wrong rank: rank %d holds stage %d for this micro-batch", owner,
                     half->stage);
        }
    }
    if (what[0] != '\0') {
        tell_half(walk, half, NULL, what);
    }
    return what[0] == '\0';
}

// A half is in order when what it needs ran and what it excludes did not. What it needs may also be
// missing or on another rank; that is told where it is found.
static void check_half(struct walk *walk, const struct dp_half *half)
{
    if (!is_here(walk, half)) {
        return;
    }
    struct cell *cell = cell_of(walk, half->stage, half->microbatch);
    const struct rule *rule = &rules[half->kind];
    if (half->kind == DP_ACTION_W && (cell->any & (RAN_B | RAN_I)) == RAN_B) {
        tell_half(walk, half, rule->help, "repeats weight gradients that a whole backward makes");
    } else if ((cell->ran & rule->excludes) != 0) {
        tell_half(walk, half, rule->help, rule->twice);
    } else if ((cell->ran & rule->needs) != rule->needs && (cell->here & rule->needs) != 0) {
        char what[48];
        snprintf(what, sizeof(what), "comes before its %s",
                 dp_words_kind(&walk->sink->words, rule->need));
        tell_half(walk, half, NULL, what);
    }
    cell->ran |= bit_of(half->kind);
}

// The halves run together, so neither may need the other; and a backward needs every forward of its
// micro-batch.
static bool are_apart(struct walk *walk, const struct dp_half halves[2])
{
    if (halves[0].microbatch != halves[1].microbatch) {
        return true;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf what = {0};
    dp_buf_puts(&what, "needs ");
    dp_words_half(&walk->sink->words, &halves[0], &what);
    dp_buf_puts(&what, " of the same pair");
    tell_half(walk, &halves[1], "the two parts of a pair are of different micro-batches",
              what.bytes);
    return false;
}

static void check_action(struct walk *walk)
{
    const struct dp_action *action = &walk->schedule->actions[walk->index];
    if (action->kind >= DP_ACTION_KIND_COUNT) {
        tell(walk, DP_PROBLEM_ACTION, NULL, "unknown kind %u", action->kind);
        return;
    }
    struct dp_half halves[2];
    int count = dp_action_halves(action, halves);
    if (count == 2 && !is_backward(halves[1].kind)) {
        tell(walk, DP_PROBLEM_ACTION, NULL, "the backward part of a pair is B or I");
        count = 1;
    }
    if (count == 2 && !are_apart(walk, halves)) {
        // As if one followed the other, which is the mistake that was told.
        check_half(walk, &halves[0]);
        check_half(walk, &halves[1]);
        return;
    }
    // Backward first: the forward of the same pair cannot serve it.
    for (int i = count - 1; i >= 0; i--) {
        check_half(walk, &halves[i]);
    }
}

// Says what the chunk lacks; false when it lacks nothing.
static bool lacks(const struct dp_words *words, const struct cell *cell, char *ret_text,
                  size_t size)
{
    bool has_backward = (cell->any & (RAN_B | RAN_I)) != 0;
    if ((cell->any & RAN_F) == 0) {
        snprintf(ret_text, size, has_backward ? "no F" : "no F and no backward");
    } else if (!has_backward) {
        snprintf(ret_text, size, "no %s or %s", dp_words_kind(words, DP_ACTION_B),
                 dp_words_kind(words, DP_ACTION_I));
    } else if ((cell->any & (RAN_B | RAN_W)) == 0) {
        snprintf(ret_text, size, "no W");
    } else {
        return false;
    }
    return true;
}

static void check_cells(struct walk *walk, int32_t stage, uint32_t from, uint32_t to)
{
    char what[64];
    for (uint32_t m = from; m < to && !walk->stopped; m++) {
        if (lacks(&walk->sink->words, cell_of(walk, stage, m), what, sizeof(what))) {
            tell(walk, DP_PROBLEM_END, NULL, "micro-batch %u has %s at stage %d", m, what, stage);
        }
    }
}

// Whether all that the rank is to run is there.
static void check_end(struct walk *walk)
{
    const struct dp_schedule *schedule = walk->schedule;
    uint32_t all = (uint32_t)schedule->microbatches;
    uint32_t middle = schedule->directions == 2 ? all / 2 : all;
    walk->index = schedule->rank_begin[walk->rank + 1];
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        if (schedule->placement[2 * stage] == walk->rank) {
            check_cells(walk, stage, 0, middle);
        }
        if (schedule->placement[2 * stage + 1] == walk->rank) {
            check_cells(walk, stage, middle, all);
        }
    }
}

static void check_actions(struct walk *walk)
{
    const struct dp_schedule *schedule = walk->schedule;
    DP_AUTO_FREE struct cell *cells =
        dp_new_array(struct cell, (size_t)schedule->stages * (size_t)schedule->microbatches);
    walk->cells = cells;
    count_cells(walk);
    for (walk->rank = 0; walk->rank < schedule->pipeline && !walk->stopped; walk->rank++) {
        size_t end = schedule->rank_begin[walk->rank + 1];
        for (walk->index = schedule->rank_begin[walk->rank]; walk->index < end && !walk->stopped;
             walk->index++) {
            check_action(walk);
        }
        if (!walk->stopped) {
            check_end(walk);
        }
    }
}

static void check_sizes(struct walk *walk)
{
    const struct dp_schedule *schedule = walk->schedule;
    const struct {
        const char *name;
        int32_t value, max;
    } sizes[] = {{"pipeline", schedule->pipeline, DP_PIPELINE_MAX},
                 {"microbatches", schedule->microbatches, DP_MICROBATCHES_MAX},
                 {"stages", schedule->stages, DP_STAGES_MAX},
                 {"directions", schedule->directions, 2}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(sizes) && !walk->stopped; i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].max) {
            tell(walk, DP_PROBLEM_SIZES, NULL, "%s must be 1 to %d; it is %d", sizes[i].name,
                 sizes[i].max, sizes[i].value);
        }
    }
}

static void check_stage(struct walk *walk, int32_t stage)
{
    const struct dp_schedule *schedule = walk->schedule;
    const int32_t *ranks = &schedule->placement[2 * stage];
    static const char *const streams[] = {" for direction 0", " for direction 1"};
    for (int direction = 0; direction < schedule->directions; direction++) {
        if (ranks[direction] == -1) {
            tell(walk, DP_PROBLEM_PLACEMENT, NULL, "no rank holds stage %d%s", stage,
                 schedule->directions == 1 ? "" : streams[direction]);
        } else if (ranks[direction] < 0 || ranks[direction] >= schedule->pipeline) {
            tell(walk, DP_PROBLEM_PLACEMENT, NULL,
                 "stage %d is placed on rank %d; ranks are 0 to %d", stage, ranks[direction],
                 schedule->pipeline - 1);
        }
    }
    if (schedule->directions == 1 && ranks[0] != ranks[1]) {
        tell(walk, DP_PROBLEM_PLACEMENT, NULL,
             "stage %d is placed on two ranks; that takes a bidirectional schedule", stage);
    }
}

// Every rank with some stages, and as many for either direction.
static void check_shares(struct walk *walk)
{
    const struct dp_schedule *schedule = walk->schedule;
    int32_t held[2][DP_PIPELINE_MAX] = {{0}};
    for (int32_t i = 0; i < 2 * schedule->stages; i++) {
        held[i % 2][schedule->placement[i]]++;
    }
    for (int32_t rank = 0; rank < schedule->pipeline && !walk->stopped; rank++) {
        int32_t count = held[0][rank] * schedule->directions;
        if (held[0][rank] != held[1][rank]) {
            tell(walk, DP_PROBLEM_PLACEMENT, NULL,
                 "rank %d holds %d stages for direction 0 and %d for direction 1; the numbers "
                 "must be equal",
                 rank, held[0][rank], held[1][rank]);
        } else if (count < 1 || count > DP_RANK_STAGES_MAX) {
            tell(walk, DP_PROBLEM_PLACEMENT, NULL, "rank %d holds %d stages; it must be 1 to %d",
                 rank, count, DP_RANK_STAGES_MAX);
        }
    }
}

static void check_placement(struct walk *walk)
{
    for (int32_t stage = 0; stage < walk->schedule->stages && !walk->stopped; stage++) {
        check_stage(walk, stage);
    }
    if (!walk->found) {
        check_shares(walk);
    }
}

// Actions enough that the table of chunks is no larger than a few times the input.
static void check_lists(struct walk *walk)
{
    const struct dp_schedule *schedule = walk->schedule;
    size_t count = dp_schedule_action_count(schedule);
    size_t chunks = (size_t)schedule->stages * (size_t)schedule->microbatches;
    if (count > DP_ACTIONS_MAX) {
        tell(walk, DP_PROBLEM_LISTS, NULL, "a schedule of %zu actions; the limit is %u", count,
             DP_ACTIONS_MAX);
    } else if (chunks > 4 * count + 64) {
        tell(walk, DP_PROBLEM_LISTS, NULL,
             "%zu actions cannot take %d micro-batches through %d stages", count,
             schedule->microbatches, schedule->stages);
    }
}

// Point-to-point messages follow the order of actions: a rank sends what an action made right after
// it, without waiting, and before an action receives from each peer up to what the action needs, in
// the order in which the peer sends. All of these were made before what the action needs, so the
// lowered form waits for nothing that the actions do not wait for, and the order of actions that
// dp_schedule_find_rings finds is an order of the lowered form too.
bool dp_schedule_find_problems(const struct dp_schedule *schedule,
                               const struct dp_problem_sink *sink)
{
    struct walk walk = {.schedule = schedule, .sink = sink};
    void (*const checks[])(struct walk *) = {check_sizes, check_placement, check_lists,
                                             check_actions};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(checks) && !walk.found; i++) {
        checks[i](&walk);
    }
    return !walk.found && dp_schedule_find_rings(schedule, sink);
}

static bool take_first(void *context, const struct dp_problem *problem)
{
    dp_fail(context, DP_INVALID, "%s", problem->message);
    return false;
}

dp_status dp_schedule_validate(const struct dp_schedule *schedule, struct dp_error *err)
{
    const struct dp_problem_sink sink = {.note = take_first, .context = err};
    return dp_schedule_find_problems(schedule, &sink) ? DP_OK : DP_INVALID;
}
