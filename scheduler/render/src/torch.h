// What both of PyTorch's forms share.
#pragma once

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/schedule.h"

// DP_UNSUPPORTED when stages live on two ranks.
dp_status dp_render_torch_check(const struct dp_schedule *schedule, struct dp_error *err);
// "1F0" or "(0F7;7B3)OVERLAP_F_B".
void dp_render_torch_action(const struct dp_action *action, struct dp_buf *out);
