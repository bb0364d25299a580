#include "dp/replay.h"
void dp_replay_render(const struct dp_replay_result *result, struct dp_buf *out)
{
    dp_buf_printf(out, "S %g\n", result->slowdown);
}
