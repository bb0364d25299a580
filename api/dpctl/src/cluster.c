#include "cluster.h"

#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

bool dpctl_cluster_is_file(const char *name)
{
    size_t length = strlen(name);
    return strcmp(name, "-") == 0 || strchr(name, '/') != NULL ||
           (length > 5 && strcmp(name + length - 5, ".toml") == 0) || access(name, F_OK) == 0;
}

dp_status dpctl_load_cluster(struct dpctl *ctl, const char *name, struct dp_cluster_spec *ret_spec,
                             struct dp_error *err)
{
    if (dpctl_cluster_is_file(name)) {
        return dp_cluster_spec_load(name, ret_spec, err);
    }
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "there is no file \"%s\", and clusters by name are the controller's",
                          name);
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Cluster *cluster = NULL;
    status = dp_client_get_cluster(client, name, &arena, &cluster, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "there is no file \"%s\"", name);
    }
    const char *text = (const char *)cluster->cluster_toml.data;
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, name, text, cluster->cluster_toml.len);
    return dp_cluster_spec_parse(text == NULL ? "" : text, cluster->cluster_toml.len, &diags,
                                 ret_spec, err);
}
