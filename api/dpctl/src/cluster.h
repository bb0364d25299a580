// A cluster by what people call it.
#pragma once

#include "dp/cluster.h"
#include "dpctl.h"

// A file ("lab.toml", "./lab", "-"), else a cluster that the controller has under this name, or
// "this" for the nodes that are connected to it. Files win over names.
// DP_NOT_FOUND, DP_INVALID, DP_UNAVAILABLE without a controller.
dp_status dpctl_load_cluster(struct dpctl *ctl, const char *name, struct dp_cluster_spec *ret_spec,
                             struct dp_error *err);
// Whether that name means a file.
bool dpctl_cluster_is_file(const char *name);
