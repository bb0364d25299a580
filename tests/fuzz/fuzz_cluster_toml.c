// cluster.toml: what is read, written and read again, is the same.
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/spec.h"
#include "fuzz.h"

static dp_status parse(const char *text, size_t length, struct dp_cluster_spec *ret_spec)
{
    struct dp_diags diags;
    struct dp_error err = {0};
    dp_diags_init(&diags, "cluster.toml", text, length);
    dp_status status = dp_cluster_spec_parse(text, length, &diags, ret_spec, &err);
    DP_CHECK((status == DP_OK) == (diags.count == 0) || status == DP_TOO_LARGE);
    dp_diags_deinit(&diags);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_cluster_spec spec, back;
    if (parse((const char *)data, size, &spec) != DP_OK) {
        return 0;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_cluster_spec_write(&spec, &text);
    DP_CHECK(parse(text.bytes, text.length, &back) == DP_OK);
    DP_CHECK(memcmp(&spec, &back, sizeof(spec)) == 0);
    return 0;
}
