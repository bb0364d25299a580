// config.json: a shape that is read is valid for accelerators, can be counted, and comes back from
// the job file that is sent to the controller.
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/spec.h"
#include "fuzz.h"

static void check_counts(const struct dp_model_spec *model)
{
    int64_t total = dp_model_parameters(model), layers = 0;
    int32_t windows = 0;
    for (int32_t layer = 0; layer < model->layers; layer++) {
        struct dp_layer_parts parts;
        dp_model_layer_parts(model, layer, &parts);
        DP_CHECK(dp_layer_parts_active(&parts) > 0);
        DP_CHECK(dp_layer_parts_active(&parts) <= dp_layer_parts_total(&parts));
        layers += dp_layer_parts_total(&parts);
        windows += dp_model_layer_window(model, layer) > 0;
    }
    int64_t tables = dp_model_embedding_parameters(model) + dp_model_head_parameters(model);
    tables -= model->tied_embedding > 0 ? (int64_t)model->hidden * model->vocabulary : 0;
    DP_CHECK(total == layers + tables && total > 0);
    DP_CHECK(dp_model_active_parameters(model) <= total);
    DP_CHECK(dp_model_mtp_parameters(model) >= 0 && windows == model->window_layers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_job_spec spec, back;
    struct dp_error err = {0};
    dp_job_spec_init(&spec);
    if (dp_model_from_hf_config((const char *)data, size, "config.json", &spec.model, &err) !=
        DP_OK) {
        DP_CHECK(err.message[0] != '\0');
        return 0;
    }
    check_counts(&spec.model);
    spec.resources.device = DP_DEVICE_CUDA;
    spec.train = (struct dp_train_spec){.steps = 1, .global_batch = 1, .sequence = 1, .seed = 1};
    if (spec.model.vocabulary < 256) {
        return 0; // a job reads bytes
    }
    DP_CHECK(dp_job_spec_check(&spec, &err) == DP_OK);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_job_spec_write(&spec, &text);
    struct dp_diags diags;
    dp_diags_init(&diags, "job.toml", text.bytes, text.length);
    DP_CHECK(dp_job_spec_parse(text.bytes, text.length, NULL, &diags, &back, &err) == DP_OK);
    DP_CHECK(memcmp(&spec, &back, sizeof(spec)) == 0);
    dp_diags_deinit(&diags);
    return 0;
}
