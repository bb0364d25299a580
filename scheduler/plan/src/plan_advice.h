// When the schedule of a plan is the wrong one to take, as far as the plan's own figures tell.
#pragma once

#include "dp/plan.h"

// One line for each reason, with its numbers.
void dp_plan_advise(const struct dp_plan *plan, const struct dp_model_spec *model,
                    struct dp_buf *out);
