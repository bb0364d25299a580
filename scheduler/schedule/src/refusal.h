// Refusals that several families share.
#pragma once

#include <stdint.h>

#include "dp/error.h"

// An odd pipeline where every stage lives on two ranks.
dp_status dp_schedule_refuse_odd_pipeline(const char *family, int32_t pipeline,
                                          struct dp_error *err);
