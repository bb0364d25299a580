// Figures as people read them.
#pragma once

#include "dp/plan.h"

enum { DP_PLAN_WORD_MAX = 32 };

// "1.23 s", "45.6 ms", "789 us".
const char *dp_plan_text_seconds(char buffer[DP_PLAN_WORD_MAX], double seconds);
// "1.23 GiB", three digits.
const char *dp_plan_text_bytes(char buffer[DP_PLAN_WORD_MAX], double bytes);
// "180 k", "2.79 M": three digits and a letter.
const char *dp_plan_text_count(char buffer[DP_PLAN_WORD_MAX], double count);
// "interleaved v4"
const char *dp_plan_text_schedule(char buffer[DP_NAME_MAX + 16], const char *name, int32_t chunks);
// "+3.2 %", of `value` against `base`; without the sign of what rounds to nothing.
const char *dp_plan_text_more(char buffer[DP_PLAN_WORD_MAX], double value, double base);
// Words with `first` in front of the first line and as many spaces in front of the others, in lines
// of at most `width` columns; a number and its unit stay together.
void dp_plan_text_wrap(const char *first, const char *words, int width, struct dp_buf *out);
