// The functions behind the table of families; each pair lives in its own gen_*.c.
#pragma once

#include "dp/schedule.h"

#define FAMILY_FUNCTIONS(name)                                                                     \
    dp_status dp_schedule_##name##_check(const struct dp_schedule_params *params,                  \
                                         struct dp_error *err);                                    \
    dp_status dp_schedule_##name##_generate(const struct dp_schedule_params *params,               \
                                            struct dp_schedule *schedule, struct dp_error *err)

FAMILY_FUNCTIONS(gpipe);
FAMILY_FUNCTIONS(one_f_one_b);
FAMILY_FUNCTIONS(interleaved);
FAMILY_FUNCTIONS(interleaved_zb);
FAMILY_FUNCTIONS(zb_h1);
FAMILY_FUNCTIONS(zb_h2);
FAMILY_FUNCTIONS(zb_v);
FAMILY_FUNCTIONS(v_half);
FAMILY_FUNCTIONS(v_half_late_w);
FAMILY_FUNCTIONS(v_min);
FAMILY_FUNCTIONS(chimera);
FAMILY_FUNCTIONS(hanayo);
FAMILY_FUNCTIONS(dualpipe);
FAMILY_FUNCTIONS(dualpipe_full_b);
FAMILY_FUNCTIONS(dualpipev);
FAMILY_FUNCTIONS(dualpipev_full_b);
