// A device's account of memory. By any thread.
#pragma once

#include "dp/device.h"

struct dp_memory_account *dp_account_new(void);
void dp_account_free(struct dp_memory_account *account);

// Counts `bytes` if they fit, or in any case if `forced`; whether they fit.
bool dp_account_add(struct dp_device *device, dp_memory_tag tag, size_t bytes, bool forced);
void dp_account_remove(struct dp_device *device, dp_memory_tag tag, size_t bytes);
// The failure of an add that did not fit.
dp_status dp_account_fail(struct dp_device *device, dp_memory_tag tag, size_t bytes,
                          struct dp_error *err);
