#include <math.h>
#include <stdio.h>

#include "dp/replay.h"

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *parts_to_json(const struct dp_replay_result *result)
{
    json_t *parts = json_object();
    for (int part = 0; part < DP_REPLAY_PART_COUNT; part++) {
        if (!isnan(result->slowdown_part[part])) {
            json_object_set_new(parts, dp_replay_part_text((dp_replay_part)part),
                                number(result->slowdown_part[part]));
        }
    }
    return parts;
}

static json_t *numbered(const double *values, int32_t count)
{
    json_t *object = json_object();
    for (int32_t i = 0; i < count; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%d", i);
        json_object_set_new(object, key, number(values[i]));
    }
    return object;
}

static json_t *workers_to_json(const struct dp_replay_result *result)
{
    json_t *workers = json_array();
    for (int32_t i = 0; i < result->replicas * result->stages; i++) {
        const struct dp_replay_worker *worker = &result->workers[i];
        json_array_append_new(workers,
                              json_pack("{s:i, s:i, s:i, s:o, s:b}", "rank", worker->rank,
                                        "dp_rank", worker->dp_rank, "stage", worker->stage, "S",
                                        number(worker->slowdown), "fixed", (int)worker->fixed));
    }
    return workers;
}

static json_t *steps_to_json(const struct dp_replay_result *result)
{
    json_t *steps = json_array();
    for (size_t i = 0; i < result->step_count; i++) {
        const struct dp_replay_step *step = &result->steps[i];
        json_array_append_new(steps,
                              json_pack("{s:i, s:o, s:o, s:o, s:o}", "step", step->step,
                                        "measured_s", number(step->measured), "replayed_s",
                                        number(step->replayed), "ideal_s", number(step->ideal), "S",
                                        number(step->replayed / step->ideal)));
    }
    return steps;
}

json_t *dp_replay_to_json(const struct dp_replay_result *result)
{
    static const char *const verdicts[] = {
        [DP_REPLAY_EVEN] = "even",
        [DP_REPLAY_BAD_WORKER] = "bad-worker",
        [DP_REPLAY_UNEVEN_STAGE] = "uneven-stage",
        [DP_REPLAY_ELSEWHERE] = "elsewhere",
    };
    return json_pack(
        "{s:s, s:i, s:i, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:I}",
        "schema", "dp.replay/1", "dp_size", result->replicas, "stages", result->stages,
        "operations", (json_int_t)result->operations, "verdict", verdicts[result->verdict], "S",
        number(result->slowdown), "M_W", number(result->m_workers), "M_S", number(result->m_stage),
        "measured_s", number(result->measured_s), "replayed_s", number(result->replayed_s),
        "ideal_s", number(result->ideal_s), "launch_slowdown", number(result->gaps), "S_optype",
        parts_to_json(result), "S_dp", numbered(result->slowdown_replica, result->replicas),
        "S_stage", numbered(result->slowdown_stage, result->stages), "S_worker",
        workers_to_json(result), "steps", steps_to_json(result), "steps_left_out",
        (json_int_t)result->steps_left_out);
}
