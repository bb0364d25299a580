// Profiles: what is read, written and read again, is the same, and gives prices.
#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/price.h"
#include "fuzz.h"

static void check_prices(const struct dp_profile *profile)
{
    struct dp_model_spec model;
    struct dp_error err = {0};
    DP_CHECK(dp_model_preset("deepseek-v3", &model, &err) == DP_OK);
    struct dp_strategy strategy = {
        .pipeline = 4,
        .data = 16,
        .tensor = 1,
        .context = 1,
        .expert = 16,
        .expert_tensor = 1,
        .microbatches = 8,
        .micro_batch_size = 1,
        .format = DP_FORMAT_FP8_BLOCK,
        .shard = DP_SHARD_ZERO1,
        .imbalance = 1,
    };
    struct dp_price_input input = {
        .model = &model, .profile = profile, .strategy = &strategy, .sequence = 4096};
    dp_spans_default(&strategy, 8, &input.spans);
    struct dp_price price;
    dp_price_units(&input, &price);
    struct dp_stage_units units = dp_stage_units_of(&model, 0, 8, true, true);
    struct dp_chunk_price chunk;
    dp_price_chunk(&price, &units, &chunk);
    double seconds = dp_price_pair_s(&price, &chunk, &chunk, true, NULL);
    DP_CHECK(isfinite(seconds) && seconds > 0);
    DP_CHECK(isfinite(price.hop_s) && price.hop_s >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_error err = {0};
    DP_AUTO_JSON json_t *json = NULL;
    DP_AUTO_FREE struct dp_profile *profile = dp_new(struct dp_profile);
    DP_AUTO_FREE struct dp_profile *again = dp_new(struct dp_profile);
    if (dp_json_parse((const char *)data, size, DP_PROFILE_BYTES_MAX, "profile", &json, &err) !=
            DP_OK ||
        dp_profile_from_json(json, profile, &err) != DP_OK) {
        DP_CHECK(err.message[0] != '\0');
        return 0;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf first = {0}, second = {0};
    DP_AUTO_JSON json_t *written = dp_profile_to_json(profile);
    DP_CHECK(dp_profile_from_json(written, again, &err) == DP_OK);
    DP_AUTO_JSON json_t *written_again = dp_profile_to_json(again);
    dp_json_write(written, 0, &first);
    dp_json_write(written_again, 0, &second);
    DP_CHECK(strcmp(first.bytes, second.bytes) == 0);
    check_prices(profile);
    return 0;
}
