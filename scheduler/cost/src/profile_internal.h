// Reading and writing of accelerators' profiles.
#pragma once

#include "dp/profile.h"

// The form of an accelerator: "figures", "memory" and what they rest on, each optional where `base`
// (may be NULL) has it.
dp_status dp_profile_device_from_json(const json_t *json, const struct dp_profile *base,
                                      struct dp_profile *ret_profile, struct dp_error *err);
json_t *dp_profile_device_to_json(const struct dp_profile *profile);
// Fills what dp/cost.h knows of a device from an accelerator's figures.
void dp_profile_device_settle(struct dp_profile *profile);

extern const unsigned char dp_profiles_bytes[];
extern const size_t dp_profiles_bytes_count;
