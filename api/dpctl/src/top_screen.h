// `dpctl top` over the whole terminal: ranks x time as a heat map, stragglers with their cause.
#pragma once

#include <stdbool.h>

#include "dp/error.h"
#include "top_history.h"

struct top_screen;

// Takes over the terminal until top_screen_close. DP_UNSUPPORTED where it cannot be drawn on.
dp_status top_screen_open(bool color, struct top_screen **ret_screen, struct dp_error *err);
// Gives the terminal back. Accepts NULL.
void top_screen_close(struct top_screen *screen);
// Draws the job and its past.
void top_screen_draw(struct top_screen *screen, const Dp__V1__Job *job,
                     const struct top_history *history);
// Takes keys for so long; true when the user wants to leave. Redraws by itself what keys change.
bool top_screen_wait(struct top_screen *screen, int timeout_ms);
// The user wants no new columns for now.
bool top_screen_paused(const struct top_screen *screen);
