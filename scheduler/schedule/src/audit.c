#include "problems.h"

struct audit {
    const struct dp_schedule *schedule;
    const struct dp_schedule_source *source;
    struct dp_diags *diags;
};

static struct dp_schedule_place place_of(const struct audit *audit,
                                         const struct dp_problem *problem)
{
    const struct dp_schedule_place *places = audit->source->words.places;
    switch (problem->about) {
    case DP_PROBLEM_SIZES:
        return audit->source->sizes;
    case DP_PROBLEM_PLACEMENT:
        return audit->source->placement;
    case DP_PROBLEM_LISTS:
        break;
    case DP_PROBLEM_ACTION:
        return places != NULL ? places[problem->index] : audit->source->lists;
    case DP_PROBLEM_END:
        if (places != NULL && problem->index > audit->schedule->rank_begin[problem->rank]) {
            return places[problem->index - 1];
        }
        break;
    }
    return audit->source->lists;
}

static bool add(void *context, const struct dp_problem *problem)
{
    struct audit *audit = context;
    struct dp_schedule_place place = place_of(audit, problem);
    dp_diags_add(audit->diags, place.line, place.column, problem->help, "%s", problem->message);
    return true;
}

bool dp_schedule_audit_source(const struct dp_schedule *schedule,
                              const struct dp_schedule_source *source, struct dp_diags *diags)
{
    struct audit audit = {schedule, source, diags};
    const struct dp_problem_sink sink = {.words = source->words, .note = add, .context = &audit};
    return dp_schedule_find_problems(schedule, &sink);
}

bool dp_schedule_audit(const struct dp_schedule *schedule, const struct dp_schedule_place *places,
                       struct dp_diags *diags)
{
    const struct dp_schedule_source source = {.words.places = places};
    return dp_schedule_audit_source(schedule, &source, diags);
}
