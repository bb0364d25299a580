// What was decided about jobs' ranks, printed for people.
#pragma once

#include <stddef.h>

#include "dp/v1/decision.pb-c.h"

void dpctl_print_decisions(Dp__V1__Decision *const *decisions, size_t count);
