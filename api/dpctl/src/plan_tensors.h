// What a layer of a plan keeps of one micro-batch, tensor by tensor; nothing on CPU ranks.
#pragma once

#include "plan_request.h"

// Lines for people, of each kind of layer that these stages have.
void plan_tensors_put(const struct plan_question *question, const struct dp_plan *plan,
                      const int32_t *stages, int32_t stages_count, struct dp_buf *out);
// {"dense": [{"name", "bytes", "deferred_bytes", "recomputed"}, ...], "moe": [...]}
json_t *plan_tensors_json(const struct plan_question *question, const struct dp_plan *plan);
