// What was found and decided about jobs' ranks, printed for people.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dp/v1/controller.pb-c.h"
#include "dp/v1/decision.pb-c.h"

void dpctl_print_decisions(Dp__V1__Decision *const *decisions, size_t count);
// Whether it is about the ranks that run now, and has not been taken back.
bool dpctl_verdict_stands(const Dp__V1__Job *job, const Dp__V1__StragglerVerdict *verdict);
// "rank 1 on node-0: confirmed, device, x2.01 since step 40".
void dpctl_verdict_text(char *buffer, size_t size, const Dp__V1__StragglerVerdict *verdict);
// Those that stand, a line each with `label` in front.
void dpctl_print_verdicts(const char *label, const Dp__V1__Job *job);
