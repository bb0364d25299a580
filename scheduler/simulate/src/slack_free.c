// Slack where messages run freely. Backwards, an action can be judged when the action after it and
// those that need its results have been; as in the forward pass, each rank goes on until it lacks
// one, and whoever judges that one lets it go on.
#include <math.h>
#include <stdlib.h>

#include "analysis.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

enum { AHEAD_ACTIONS = 8 }; // as in the forward pass

struct back {
    struct analysis *analysis;
    size_t *at;        // [pipeline]: one past the next action to judge
    uint32_t *missing; // [pipeline]: the action that a stopped rank waits for
    int32_t *ready;
    int32_t ready_count;
};

static inline size_t cell_of(const struct analysis *analysis, const struct output *output)
{
    return sim_cell(analysis->schedule, output->way, output->target, output->microbatch);
}

static void note_consumers(struct analysis *analysis)
{
    const struct dp_schedule *schedule = analysis->schedule;
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        struct dp_half halves[2];
        int parts = dp_action_halves(&schedule->actions[i], halves);
        for (int k = 0; k < parts; k++) {
            const struct dp_half *half = &halves[k];
            if (half->kind != DP_ACTION_W) {
                size_t cell = sim_cell(schedule, sim_way(half), half->stage, half->microbatch);
                analysis->consumer[cell] = (uint32_t)i;
            }
        }
    }
}

// Where it is noted when the action's message goes on its wire.
static inline double *base_of(const struct analysis *analysis, size_t action,
                              const struct output *output)
{
    return output->way == FORWARD
               ? &analysis->slack[action]
               : &analysis->base[sim_cell(analysis->schedule, 0, output->target,
                                          output->microbatch)];
}

// Puts a result that is ready at `end` on the wire behind what is there; returns when it gets on.
static inline double put_on_wire(struct link *link, int way, double end)
{
    double base = end > link->free ? end : link->free;
    link->free = base + link->seconds[way];
    return base;
}

// When each message goes on its wire: not before its result is there and the one before it is off.
static void note_wires(struct analysis *analysis)
{
    const struct dp_schedule *schedule = analysis->schedule;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            struct output outputs[2];
            int count = outputs_of(schedule, &schedule->actions[i], outputs);
            for (int k = 0; k < count; k++) {
                *base_of(analysis, i, &outputs[k]) =
                    put_on_wire(link_between(analysis, rank, outputs[k].peer), outputs[k].way,
                                analysis->spans[i].end);
            }
        }
    }
}

// How much later the result may be made for what becomes of it; below 0 when the spans do not fit.
static inline double output_slack(struct analysis *analysis, int32_t rank, size_t action,
                                  const struct output *output)
{
    double end = analysis->spans[action].end;
    size_t consumer = analysis->consumer[cell_of(analysis, output)];
    double start = analysis->spans[consumer].start;
    if (output->peer == rank) {
        return start < end ? -1 : analysis->slack[consumer] + (start - end);
    }
    const struct link *link = link_between(analysis, rank, output->peer);
    if (analysis->base == NULL) {
        double arrival = end + link->latency;
        return start < arrival ? -1 : analysis->slack[consumer] + (start - arrival);
    }
    double base = *base_of(analysis, action, output);
    double off = base + link->seconds[output->way];
    double arrival = off + link->latency;
    if (start < arrival) {
        return -1;
    }
    struct follower *follower =
        &analysis->followers[rank * analysis->schedule->pipeline + output->peer];
    double slack = least(analysis->slack[consumer] + (start - arrival),
                         follower->slack + (follower->base - off));
    *follower = (struct follower){slack, base};
    return slack + (base - end);
}

// Whether those who need the outputs have been judged.
static inline bool has_consumers(struct back *back, int32_t rank, const struct output *outputs,
                                 int count)
{
    const struct analysis *analysis = back->analysis;
    for (int k = 0; k < count; k++) {
        uint32_t consumer = analysis->consumer[cell_of(analysis, &outputs[k])];
        if (consumer < back->at[outputs[k].peer]) {
            back->missing[rank] = consumer;
            return false;
        }
    }
    return true;
}

static void wake(struct back *back, int32_t rank, uint32_t action)
{
    if (back->missing[rank] == action) {
        back->missing[rank] = NO_ACTION;
        back->ready[back->ready_count++] = rank;
    }
}

// Lets those go on who make the inputs of the action.
static void wake_sources(struct back *back, uint32_t index)
{
    const struct dp_schedule *schedule = back->analysis->schedule;
    const struct dp_action *action = &schedule->actions[index];
    bool pair = action->kind == DP_ACTION_FB;
    if ((action->kind == DP_ACTION_F || pair) && action->stage > 0) {
        wake(back, dp_schedule_rank_of(schedule, action->stage - 1, action->microbatch), index);
    }
    int32_t stage = pair ? action->b_stage : action->stage;
    uint32_t microbatch = pair ? action->b_microbatch : action->microbatch;
    if (action->kind != DP_ACTION_F && action->kind != DP_ACTION_W &&
        stage + 1 < schedule->stages) {
        wake(back, dp_schedule_rank_of(schedule, stage + 1, microbatch), index);
    }
}

// Judges actions of the rank from behind. False when the spans do not fit.
static bool judge_rank(struct back *back, int32_t rank)
{
    struct analysis *analysis = back->analysis;
    const struct dp_schedule *schedule = analysis->schedule;
    for (; back->at[rank] > schedule->rank_begin[rank]; back->at[rank]--) {
        size_t i = back->at[rank] - 1;
        if (i >= AHEAD_ACTIONS) {
            __builtin_prefetch(&schedule->actions[i - AHEAD_ACTIONS]);
            __builtin_prefetch(&analysis->spans[i - AHEAD_ACTIONS]);
            __builtin_prefetch(&analysis->slack[i - AHEAD_ACTIONS], 1);
        }
        struct output outputs[2];
        int count = outputs_of(schedule, &schedule->actions[i], outputs);
        if (!has_consumers(back, rank, outputs, count)) {
            return true;
        }
        double end = analysis->spans[i].end;
        bool last = is_last(analysis, rank, i);
        double until = last ? analysis->makespan : analysis->spans[i + 1].start;
        double slack = (last ? 0 : analysis->slack[i + 1]) + (until - end);
        bool fits = until >= end;
        for (int k = count; k-- > 0;) {
            double room = output_slack(analysis, rank, i, &outputs[k]);
            fits &= room >= 0;
            slack = least(slack, room);
        }
        if (!fits) {
            return false;
        }
        analysis->slack[i] = slack;
        wake_sources(back, (uint32_t)i);
    }
    return true;
}

static dp_status judge(struct analysis *analysis, struct dp_error *err)
{
    const struct dp_schedule *schedule = analysis->schedule;
    size_t ranks = (size_t)schedule->pipeline;
    DP_AUTO_FREE size_t *at = dp_memdup(schedule->rank_begin + 1, ranks * sizeof(size_t));
    DP_AUTO_FREE uint32_t *missing = dp_new_array(uint32_t, ranks);
    DP_AUTO_FREE int32_t *ready = dp_new_array(int32_t, ranks);
    struct back back = {.analysis = analysis, .at = at, .missing = missing, .ready = ready};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        missing[rank] = NO_ACTION;
        ready[back.ready_count++] = rank;
    }
    while (back.ready_count > 0) {
        int32_t rank = ready[--back.ready_count];
        if (!judge_rank(&back, rank)) {
            return dp_sim_refuse_spans(analysis, rank, err);
        }
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        if (at[rank] > schedule->rank_begin[rank]) {
            return dp_sim_refuse_spans(analysis, rank, err);
        }
    }
    return DP_OK;
}

static bool wires_take_time(const struct analysis *analysis)
{
    int32_t links = analysis->schedule->pipeline * analysis->schedule->pipeline;
    for (int32_t i = 0; i < links; i++) {
        if (analysis->links[i].seconds[FORWARD] > 0 || analysis->links[i].seconds[BACKWARD] > 0) {
            return true;
        }
    }
    return false;
}

dp_status dp_sim_slack_free(struct analysis *analysis, struct dp_error *err)
{
    const struct dp_schedule *schedule = analysis->schedule;
    size_t cells = 2 * (size_t)schedule->stages * (size_t)schedule->microbatches;
    analysis->consumer = dp_new_array(uint32_t, cells);
    note_consumers(analysis);
    if (wires_take_time(analysis)) {
        analysis->base = dp_new_array(double, cells / 2);
        note_wires(analysis);
    }
    return judge(analysis, err);
}

// The output after number `k` of action `i` that takes the same wire; false when there is none.
static bool next_on_wire(const struct analysis *analysis, int32_t rank, size_t *i, int *k,
                         struct output *output)
{
    const struct dp_schedule *schedule = analysis->schedule;
    int32_t peer = output->peer;
    for (; *i < schedule->rank_begin[rank + 1]; ++*i, *k = -1) {
        struct output outputs[2];
        int count = outputs_of(schedule, &schedule->actions[*i], outputs);
        for (++*k; *k < count; ++*k) {
            if (outputs[*k].peer == peer) {
                *output = outputs[*k];
                return true;
            }
        }
    }
    return false;
}

// Follows result number `k` of the action on the wire, where it may make others wait, as if it went
// on it at once. If it did not, all this is too early to be the start of anything that needs it.
static size_t follow_wire(const struct analysis *analysis, int32_t rank, size_t action, int k,
                          struct output output)
{
    const struct link *link = link_between(analysis, rank, output.peer);
    double off = analysis->spans[action].end;
    bool waits = true;
    while (waits) {
        off += link->seconds[output.way];
        size_t consumer = analysis->consumer[cell_of(analysis, &output)];
        if (is_bound(analysis, consumer, off + link->latency)) {
            return consumer;
        }
        waits = analysis->base != NULL && next_on_wire(analysis, rank, &action, &k, &output) &&
                analysis->spans[action].end <= off;
    }
    return NO_ACTION;
}

size_t dp_sim_path_next_free(const struct analysis *analysis, int32_t rank, size_t action,
                             int32_t *ret_rank)
{
    struct output outputs[2];
    int count = outputs_of(analysis->schedule, &analysis->schedule->actions[action], outputs);
    double end = analysis->spans[action].end;
    for (int k = 0; k < count; k++) {
        size_t consumer = analysis->consumer[cell_of(analysis, &outputs[k])];
        size_t found = outputs[k].peer != rank
                           ? follow_wire(analysis, rank, action, k, outputs[k])
                       : is_bound(analysis, consumer, end) ? consumer
                                                           : NO_ACTION;
        if (found != NO_ACTION) {
            *ret_rank = outputs[k].peer;
            return found;
        }
    }
    return NO_ACTION;
}
