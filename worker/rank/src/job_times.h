// A step's times by kinds and peers, as messages that outlive the step.
#pragma once

#include "dp/trainer.h"
#include "dp/v1/rank.pb-c.h"

// Points done's kinds and links at one block each, which `owner` keeps.
struct job_times {
    Dp__V1__KindTime *kinds, **kinds_list;
    Dp__V1__LinkTime *links, **links_list;
};

void job_times_tell(const struct dp_trainer_report *step, uint32_t stage, struct job_times *owner,
                    Dp__V1__StepDone *done);
// Gives `done`, a shallow copy of another, kinds and links of its own.
void job_times_copy(const Dp__V1__StepDone *from, struct job_times *owner, Dp__V1__StepDone *done);
void job_times_deinit(struct job_times *owner);
