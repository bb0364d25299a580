#include "job_times.h"

#include <stdlib.h>

#include "dp/action_span.h"
#include "dp/alloc.h"
#include "dp/limits.h"
#include "dp/wire.h"

static void make_room(struct job_times *owner, size_t kinds, size_t links, Dp__V1__StepDone *done)
{
    owner->kinds = dp_new_array(Dp__V1__KindTime, kinds);
    owner->kinds_list = dp_new_array(Dp__V1__KindTime *, kinds);
    owner->links = dp_new_array(Dp__V1__LinkTime, links);
    owner->links_list = dp_new_array(Dp__V1__LinkTime *, links);
    for (size_t i = 0; i < kinds; i++) {
        owner->kinds_list[i] = &owner->kinds[i];
        dp__v1__kind_time__init(&owner->kinds[i]);
    }
    for (size_t i = 0; i < links; i++) {
        owner->links_list[i] = &owner->links[i];
        dp__v1__link_time__init(&owner->links[i]);
    }
    done->kinds = owner->kinds_list;
    done->n_kinds = kinds;
    done->links = owner->links_list;
    done->n_links = links;
}

static void tell_kind(const struct dp_exec_kind_time *from, Dp__V1__KindTime *to)
{
    to->kind = from->kind;
    to->b_kind = from->b_kind;
    to->stage = from->stage;
    to->b_stage = from->b_stage;
    to->count = (uint32_t)from->count;
    to->total_ns = from->total_ns;
    to->median_ns = from->median_ns;
    to->tokens = (uint64_t)from->tokens;
    to->planned_ns = from->planned_ns;
}

void job_times_tell(const struct dp_trainer_report *step, uint32_t stage, struct job_times *owner,
                    Dp__V1__StepDone *done)
{
    const struct dp_exec_times *times = &step->times;
    size_t kinds = times->kinds_count < DP_STRAGGLER_KINDS_MAX ? times->kinds_count
                                                               : DP_STRAGGLER_KINDS_MAX - 1;
    size_t links =
        times->links_count < DP_STRAGGLER_LINKS_MAX ? times->links_count : DP_STRAGGLER_LINKS_MAX;
    make_room(owner, kinds + 1, links, done);
    for (size_t i = 0; i < kinds; i++) {
        tell_kind(&times->kinds[i], &owner->kinds[i]);
    }
    Dp__V1__KindTime *update = &owner->kinds[kinds];
    update->kind = DP_WIRE_KIND_OPTIMIZER;
    update->stage = update->b_stage = stage;
    update->count = 1;
    update->total_ns = update->median_ns = step->apply_ns;
    update->planned_ns = step->apply_planned_ns;
    for (size_t i = 0; i < links; i++) {
        const struct dp_exec_link_time *from = &times->links[i];
        owner->links[i].peer = (uint32_t)from->peer;
        owner->links[i].count = (uint32_t)from->count;
        owner->links[i].bytes = (uint64_t)from->bytes;
        owner->links[i].transfer_ns = from->transfer_ns;
        owner->links[i].waiting_ns = from->waiting_ns;
    }
    done->launch_gap_ns = times->launch_gap_ns;
    done->off_core_ns = times->off_core_ns;
}

void job_times_copy(const Dp__V1__StepDone *from, struct job_times *owner, Dp__V1__StepDone *done)
{
    make_room(owner, from->n_kinds, from->n_links, done);
    for (size_t i = 0; i < from->n_kinds; i++) {
        owner->kinds[i] = *from->kinds[i];
    }
    for (size_t i = 0; i < from->n_links; i++) {
        owner->links[i] = *from->links[i];
    }
}

void job_times_deinit(struct job_times *owner)
{
    free(owner->kinds);
    free(owner->kinds_list);
    free(owner->links);
    free(owner->links_list);
    *owner = (struct job_times){0};
}
