// What follows when the operations take given times. Lanes lie side by side, so that each wait is
// one loop over all steps of all replicas.

#include <stdlib.h>

#include "dp/alloc.h"
#include "internal.h"

static double max(double a, double b)
{
    return a > b ? a : b;
}

static void latest(double *gate, const double *values, size_t lanes)
{
    for (size_t lane = 0; lane < lanes; lane++) {
        gate[lane] = max(gate[lane], values[lane]);
    }
}

// Every lane of a group that stands together waits for the last of them.
static void latest_together(double *gate, size_t lanes, size_t together)
{
    for (size_t from = 0; from < lanes; from += together) {
        double last = gate[from];
        for (size_t i = 1; i < together; i++) {
            last = max(last, gate[from + i]);
        }
        for (size_t i = 0; i < together; i++) {
            gate[from + i] = last;
        }
    }
}

void dp_replay_own_times(const struct replay_table *table, const struct replay_graph *graph,
                         double *ret_times)
{
    // What ends this much before its last participant began was not recorded well (the limit of
    // the published analyzer); smaller errors of clocks stay, to cancel in the mean.
    const double least_s = -1e-2;
    size_t lanes = table->lanes;
    double *gate = dp_new_array(double, lanes);
    for (size_t node = 0; node < graph->nodes; node++) {
        int32_t begin = graph->member_begin[node], end = graph->member_begin[node + 1];
        for (size_t lane = 0; lane < lanes && graph->joint[node]; lane++) {
            gate[lane] = table->start[(size_t)graph->members[begin] * lanes + lane];
        }
        for (int32_t i = begin + 1; i < end && graph->joint[node]; i++) {
            latest(gate, &table->start[(size_t)graph->members[i] * lanes], lanes);
        }
        if (graph->across[node]) {
            latest_together(gate, lanes, (size_t)table->replicas);
        }
        for (int32_t i = begin; i < end; i++) {
            size_t at = (size_t)graph->members[i] * lanes;
            for (size_t lane = 0; lane < lanes; lane++) {
                double own = table->duration[at + lane];
                if (graph->joint[node]) {
                    own = table->start[at + lane] + own - gate[lane];
                    own = own <= least_s ? 0 : own;
                }
                ret_times[at + lane] = own;
            }
        }
    }
    free(gate);
}

// The end of the step is that of the optimizer; in a recording without one, of whatever ends last.
static bool counts_as_end(const struct replay_table *table, int32_t position)
{
    dp_replay_kind last = DP_REPLAY_OPTIMIZER;
    return replay_count(table, table->stage[position], last) == 0 ||
           table->kind[position] == (int32_t)last;
}

void dp_replay_run(const struct replay_table *table, const struct replay_graph *graph,
                   const double *times, size_t lanes, size_t together, double *scratch,
                   double *ret_steps)
{
    double *ends = scratch;                            // [positions][lanes]
    double *gate = &scratch[table->positions * lanes]; // [lanes]
    for (size_t step = 0; step < lanes / together; step++) {
        ret_steps[step] = 0;
    }
    for (size_t node = 0; node < graph->nodes; node++) {
        for (size_t lane = 0; lane < lanes; lane++) {
            gate[lane] = 0;
        }
        for (int32_t i = graph->wait_begin[node]; i < graph->wait_begin[node + 1]; i++) {
            latest(gate, &ends[(size_t)graph->waits[i] * lanes], lanes);
        }
        if (graph->across[node]) {
            latest_together(gate, lanes, together);
        }
        for (int32_t i = graph->member_begin[node]; i < graph->member_begin[node + 1]; i++) {
            size_t at = (size_t)graph->members[i] * lanes;
            for (size_t lane = 0; lane < lanes; lane++) {
                ends[at + lane] = gate[lane] + times[at + lane];
            }
            if (counts_as_end(table, graph->members[i])) {
                for (size_t lane = 0; lane < lanes; lane++) {
                    size_t step = lane / together;
                    ret_steps[step] = max(ret_steps[step], ends[at + lane]);
                }
            }
        }
    }
}
