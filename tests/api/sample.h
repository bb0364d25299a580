// Messages with something in every kind of field, for the tests of JSON and of the wire.
#pragma once

#include "dp/arena.h"
#include "dp/v1/agent.pb-c.h"
#include "dp/v1/controller.pb-c.h"

// 2 pipeline ranks x 2 replicas, 2 stages, 5 layers.
Dp__V1__Plan *sample_plan(struct dp_arena *arena);
// Running, with the plan and one rank's utilisation.
Dp__V1__Job *sample_job(struct dp_arena *arena);
// A report of step 7 with a loss and two spans.
Dp__V1__AgentMessage *sample_report(struct dp_arena *arena);
// The order to start that plan.
Dp__V1__ControllerMessage *sample_prepare(struct dp_arena *arena);
