// One cell: <stage><KIND><micro-batch>, or a pair of them in brackets. See _Action in PyTorch's
// torch/distributed/pipelining/schedules.py, which ignores what follows an action; here it is
// refused.
#include <string.h>

#include "dp/check.h"
#include "schedule_csv.h"

static const struct {
    const char *name;
    uint8_t kind;
} kinds[] = {{"F", DP_ACTION_F},
             {"B", DP_ACTION_B},
             {"I", DP_ACTION_I},
             {"W", DP_ACTION_W},
             {"BW", CSV_BW},
             {"SEND_F", CSV_SEND_F},
             {"RECV_F", CSV_RECV_F},
             {"SEND_B", CSV_SEND_B},
             {"RECV_B", CSV_RECV_B},
             {"WAIT_SEND_F", CSV_WAIT_SEND_F},
             {"WAIT_SEND_B", CSV_WAIT_SEND_B},
             {"UNSHARD", CSV_UNSHARD},
             {"RESHARD", CSV_RESHARD},
             {"REDUCE_GRAD", CSV_REDUCE_GRAD},
             {"WAIT_REDUCE_GRAD", CSV_WAIT_REDUCE_GRAD}};

static const char pair_name[] = "OVERLAP_F_B";

static const char form_help[] =
    "a cell is STAGE KIND MICRO-BATCH, as 2F0, 1I3, 1W3, 0B1 or 3SEND_F1, or a pair as "
    "(0F7;7B3)OVERLAP_F_B";

static const char *name_of(uint8_t kind)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(kinds); i++) {
        if (kinds[i].kind == kind) {
            return kinds[i].name;
        }
    }
    return "?";
}

void dp_csv_item_text(const struct csv_item *item, struct dp_buf *out)
{
    const struct dp_action *action = &item->action;
    if (action->kind == DP_ACTION_FB) {
        dp_buf_printf(out, "(%uF%u;%u%s%u)%s", action->stage, action->microbatch, action->b_stage,
                      name_of(action->b_kind), action->b_microbatch, pair_name);
    } else if (action->kind >= CSV_UNSHARD) {
        dp_buf_printf(out, "%u%s", action->stage, name_of(action->kind));
    } else {
        dp_buf_printf(out, "%u%s%u", action->stage, name_of(action->kind), action->microbatch);
    }
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static void skip(struct csv_text *text, size_t bytes)
{
    text->at += bytes;
    text->place.column += (int32_t)bytes;
}

static void trim(struct csv_text *text)
{
    while (text->at < text->end && is_blank(*text->at)) {
        skip(text, 1);
    }
    while (text->end > text->at && is_blank(text->end[-1])) {
        text->end--;
    }
}

// A piece of the file for a message: short, and without what a terminal would obey.
struct shown {
    char text[48];
};

static struct shown show(const struct csv_text *text)
{
    struct shown shown;
    size_t length = (size_t)(text->end - text->at);
    size_t kept = length < 40 ? length : 40;
    for (size_t i = 0; i < kept; i++) {
        unsigned char c = (unsigned char)text->at[i];
        shown.text[i] = c < ' ' || c == 127 ? '.' : (char)c;
    }
    memcpy(&shown.text[kept], kept < length ? "..." : "", kept < length ? 4 : 1);
    return shown;
}

static bool refuse(const struct csv_text *text, const char *why, struct dp_diags *diags)
{
    dp_diags_add(diags, text->place.line, text->place.column, form_help, "\"%s\" %s",
                 show(text).text, why);
    return false;
}

static bool is_digit(const struct csv_text *text)
{
    return text->at < text->end && *text->at >= '0' && *text->at <= '9';
}

// A number from 0 to max; `what` is what it counts.
static bool read_number(struct csv_text *text, const char *what, uint32_t max,
                        const struct csv_text *whole, uint32_t *ret_number, struct dp_diags *diags)
{
    if (!is_digit(text)) {
        char why[64];
        snprintf(why, sizeof(why), "is no action: the number of its %s is missing", what);
        return refuse(whole, why, diags);
    }
    struct dp_schedule_place place = text->place;
    uint32_t number = 0;
    for (; is_digit(text); skip(text, 1)) {
        number = number > max ? number : number * 10 + (uint32_t)(*text->at - '0');
    }
    if (number > max) {
        dp_diags_add(diags, place.line, place.column, NULL, "\"%s\": %s numbers go from 0 to %u",
                     show(whole).text, what, max);
        return false;
    }
    *ret_number = number;
    return true;
}

// The longest run of letters is the kind: SEND_F and not S.
static bool read_kind(struct csv_text *text, const struct csv_text *whole, uint8_t *ret_kind,
                      struct dp_diags *diags)
{
    const char *begin = text->at;
    while (text->at < text->end && ((*text->at >= 'A' && *text->at <= 'Z') || *text->at == '_')) {
        skip(text, 1);
    }
    size_t length = (size_t)(text->at - begin);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(kinds); i++) {
        if (strlen(kinds[i].name) == length && memcmp(kinds[i].name, begin, length) == 0) {
            *ret_kind = kinds[i].kind;
            return true;
        }
    }
    return refuse(whole, "is no action: its kind is unknown", diags);
}

// `what` is where the action should have ended.
static bool at_end(const struct csv_text *text, struct dp_diags *diags)
{
    return text->at == text->end ||
           refuse(text, "stands behind the action; PyTorch would ignore it", diags);
}

static bool read_single(struct csv_text text, struct csv_item *ret_item, struct dp_diags *diags)
{
    const struct csv_text whole = text;
    uint32_t stage = 0;
    uint32_t microbatch = 0;
    uint8_t kind = DP_ACTION_F;
    if (!read_number(&text, "stage", DP_STAGES_MAX - 1, &whole, &stage, diags) ||
        !read_kind(&text, &whole, &kind, diags)) {
        return false;
    }
    if (kind < CSV_UNSHARD &&
        !read_number(&text, "micro-batch", DP_MICROBATCHES_MAX - 1, &whole, &microbatch, diags)) {
        return false;
    }
    if (!at_end(&text, diags)) {
        return false;
    }
    *ret_item = (struct csv_item){
        .action = {.kind = kind, .stage = (uint16_t)stage, .microbatch = microbatch},
        .place = whole.place};
    return true;
}

// The part of a text in front of `stop` (all of it when there is none), which is passed.
static struct csv_text take_until(struct csv_text *text, char stop)
{
    const char *found = memchr(text->at, stop, (size_t)(text->end - text->at));
    struct csv_text part = *text;
    part.end = found == NULL ? text->end : found;
    skip(text, (size_t)(part.end - part.at) + (found != NULL));
    trim(&part);
    return part;
}

// (<forward>;<backward>)OVERLAP_F_B
static bool read_pair(struct csv_text text, struct csv_item *ret_item, struct dp_diags *diags)
{
    const struct csv_text whole = text;
    skip(&text, 1);
    const char *close = memchr(text.at, ')', (size_t)(text.end - text.at));
    if (close == NULL) {
        return refuse(&whole, "has no closing bracket", diags);
    }
    struct csv_text parts = {text.at, close, text.place};
    skip(&text, (size_t)(close - text.at) + 1);
    size_t length = sizeof(pair_name) - 1;
    if ((size_t)(text.end - text.at) < length || memcmp(text.at, pair_name, length) != 0) {
        return refuse(&whole, "is in brackets, but has no OVERLAP_F_B behind them", diags);
    }
    skip(&text, length);
    struct csv_text first = take_until(&parts, ';');
    struct csv_text second = take_until(&parts, ';');
    struct csv_item forward;
    struct csv_item backward;
    if (!at_end(&text, diags) || !read_single(first, &forward, diags) ||
        !read_single(second, &backward, diags)) {
        return false;
    }
    uint8_t kind = backward.action.kind;
    if (parts.at < parts.end || forward.action.kind != DP_ACTION_F ||
        (kind != DP_ACTION_B && kind != DP_ACTION_I)) {
        return refuse(&whole, "does not overlap one forward with one backward, in this order",
                      diags);
    }
    *ret_item = forward;
    ret_item->place = whole.place;
    ret_item->action.kind = DP_ACTION_FB;
    ret_item->action.b_kind = kind;
    ret_item->action.b_stage = backward.action.stage;
    ret_item->action.b_microbatch = backward.action.microbatch;
    return true;
}

bool dp_csv_cell_read(struct csv_text cell, struct csv_item *ret_item, struct dp_diags *diags)
{
    trim(&cell);
    return cell.at < cell.end && *cell.at == '(' ? read_pair(cell, ret_item, diags)
                                                 : read_single(cell, ret_item, diags);
}
