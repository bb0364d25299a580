// dp.schedule/1: both readers agree about it; what is read is valid, can be lowered and written,
// and comes back the same.
#include "dp/check.h"
#include "dp/schedule.h"
#include "dp/schedule_audit.h"
#include "fuzz.h"

enum { BYTES_MAX = 1 << 16 };

// The reader that tells all that is wrong, and where.
static dp_status read_text(const char *text, size_t length, struct dp_schedule *ret_schedule)
{
    struct dp_diags diags;
    struct dp_error err = {0};
    dp_diags_init(&diags, "schedule.json", text, length);
    dp_status status = dp_schedule_read_json(text, length, ret_schedule, &diags, &err);
    DP_CHECK((status == DP_OK) == (diags.count == 0));
    DP_CLEANUP(dp_buf_deinit) struct dp_buf rendered = {0};
    dp_diags_render(&diags, &rendered);
    dp_diags_deinit(&diags);
    return status;
}

static dp_status read_json(const char *text, size_t length, struct dp_schedule *ret_schedule)
{
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_error err = {0};
    dp_status status = dp_json_parse(text, length, BYTES_MAX, "input", &json, &err);
    return status == DP_OK ? dp_schedule_from_json(json, ret_schedule, &err) : status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_error err = {0};
    struct dp_schedule schedule, other;
    dp_status status = read_json((const char *)data, size, &schedule);
    DP_CHECK((read_text((const char *)data, size, &other) == DP_OK) == (status == DP_OK));
    if (status != DP_OK) {
        return 0;
    }
    DP_CHECK(dp_schedule_hash(&other) == dp_schedule_hash(&schedule));
    dp_schedule_deinit(&other);
    DP_CHECK(dp_schedule_validate(&schedule, &err) == DP_OK);
    struct dp_lowered lowered;
    DP_CHECK(dp_schedule_lower_all(&schedule, &lowered, &err) == DP_OK);
    dp_lowered_deinit(&lowered);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf written = {0};
    dp_schedule_write_json(&schedule, &written);
    DP_CHECK(written.length == dp_schedule_json_bytes(&schedule));
    struct dp_schedule back;
    DP_CHECK(read_json(written.bytes, written.length, &back) == DP_OK);
    DP_CHECK(dp_schedule_hash(&back) == dp_schedule_hash(&schedule));
    dp_schedule_deinit(&back);
    dp_schedule_deinit(&schedule);
    return 0;
}
