// The models that an outside implementation trains as well.
#pragma once

#include "dp/buf.h"
#include "dp/device.h"
#include "dp/spec.h"

struct variant {
    struct dp_model_spec model; // its name is the variant's
    dp_element element;
    int32_t steps;
    uint32_t recompute;
    bool stirs; // the weights are moved away from where training starts
};

extern const struct variant variants[];
extern const size_t variants_count;

// Members of a JSON object, without braces.
void variant_write_model(const struct variant *variant, struct dp_buf *out);
