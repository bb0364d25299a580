// Writes the text of dp.schedule/1. Straight into a buffer: a tree of a large schedule would take
// many times the memory of its text.
#include <string.h>

#include "dp/action_halves.h"
#include "dp/cleanup.h"
#include "dp/json.h"
#include "dp/schedule.h"

// What surrounds the numbers.
enum {
    HALF_BYTES = sizeof("{\"kind\":\"F\",\"stage\":,\"microbatch\":}") - 1,
    PAIR_BYTES = sizeof("{\"kind\":\"FB\",\"forward\":,\"backward\":}") - 1,
};

static size_t digits(uint32_t number)
{
    size_t count = 1;
    for (; number >= 10; number /= 10) {
        count++;
    }
    return count;
}

static size_t action_bytes(const struct dp_action *action)
{
    struct dp_half halves[2];
    int count = dp_action_halves(action, halves);
    size_t bytes = count == 2 ? PAIR_BYTES : 0;
    for (int i = 0; i < count; i++) {
        bytes += HALF_BYTES + digits((uint32_t)halves[i].stage) + digits(halves[i].microbatch);
    }
    return bytes;
}

static char *put_text(char *at, const char *text)
{
    size_t length = strlen(text);
    memcpy(at, text, length);
    return at + length;
}

static char *put_number(char *at, uint32_t number)
{
    size_t count = digits(number);
    for (size_t i = count; i > 0; i--) {
        at[i - 1] = (char)('0' + number % 10);
        number /= 10;
    }
    return at + count;
}

static char *put_half(char *at, const struct dp_half *half)
{
    at = put_text(at, "{\"kind\":\"");
    at = put_text(at, dp_action_kind_text(half->kind));
    at = put_text(at, "\",\"stage\":");
    at = put_number(at, (uint32_t)half->stage);
    at = put_text(at, ",\"microbatch\":");
    at = put_number(at, half->microbatch);
    return put_text(at, "}");
}

static void write_action(const struct dp_action *action, struct dp_buf *out)
{
    // Two halves with the longest numbers, and what surrounds them.
    char text[2 * (HALF_BYTES + 20) + PAIR_BYTES];
    struct dp_half halves[2];
    char *at = text;
    if (dp_action_halves(action, halves) == 1) {
        at = put_half(at, &halves[0]);
    } else {
        at = put_text(at, "{\"kind\":\"FB\",\"forward\":");
        at = put_half(at, &halves[0]);
        at = put_text(at, ",\"backward\":");
        at = put_half(at, &halves[1]);
        at = put_text(at, "}");
    }
    dp_buf_append(out, text, (size_t)(at - text));
}

// A list per rank: its stages of the one direction, then of the other.
static void write_placement(const struct dp_schedule *schedule, struct dp_buf *out)
{
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        const char *comma = "";
        dp_buf_puts(out, rank > 0 ? ",[" : "[");
        for (int direction = 0; direction < schedule->directions; direction++) {
            for (int32_t stage = 0; stage < schedule->stages; stage++) {
                if (schedule->placement[2 * stage + direction] == rank) {
                    dp_buf_printf(out, "%s%d", comma, stage);
                    comma = ",";
                }
            }
        }
        dp_buf_puts(out, "]");
    }
}

static void write_head(const struct dp_schedule *schedule, struct dp_buf *out)
{
    DP_AUTO_JSON json_t *name = json_string(schedule->name);
    dp_buf_puts(out, "{\"schema\":\"dp.schedule/1\",\"name\":");
    dp_json_write(name, 0, out);
    dp_buf_printf(out, ",\"pipeline\":%d,\"microbatches\":%d,\"stages\":%d,\"placement\":[",
                  schedule->pipeline, schedule->microbatches, schedule->stages);
    write_placement(schedule, out);
    dp_buf_puts(out, "],\"ranks\":[");
}

size_t dp_schedule_json_bytes(const struct dp_schedule *schedule)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf head = {0};
    write_head(schedule, &head);
    size_t bytes = head.length + sizeof("]}") - 1;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t begin = schedule->rank_begin[rank], end = schedule->rank_begin[rank + 1];
        bytes += sizeof("[]") - 1 + (rank > 0) + (end > begin ? end - begin - 1 : 0);
        for (size_t i = begin; i < end; i++) {
            bytes += action_bytes(&schedule->actions[i]);
        }
    }
    return bytes;
}

void dp_schedule_write_json(const struct dp_schedule *schedule, struct dp_buf *out)
{
    write_head(schedule, out);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        dp_buf_puts(out, rank > 0 ? ",[" : "[");
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            if (i > schedule->rank_begin[rank]) {
                dp_buf_puts(out, ",");
            }
            write_action(&schedule->actions[i], out);
        }
        dp_buf_puts(out, "]");
    }
    dp_buf_puts(out, "]}");
}
