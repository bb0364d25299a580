#include "words.h"

const char *const dp_words_new_letters[DP_ACTION_FB] = {
    [DP_ACTION_F] = "F", [DP_ACTION_B] = "B", [DP_ACTION_I] = "I", [DP_ACTION_W] = "W"};
const char *const dp_words_old_letters[DP_ACTION_FB] = {
    [DP_ACTION_F] = "F", [DP_ACTION_B] = "BW", [DP_ACTION_I] = "B", [DP_ACTION_W] = "W"};

const char *dp_words_kind(const struct dp_words *words, dp_action_kind kind)
{
    return words->kinds != NULL && kind < DP_ACTION_FB ? words->kinds[kind]
                                                       : dp_action_kind_text(kind);
}

void dp_words_half(const struct dp_words *words, const struct dp_half *half, struct dp_buf *out)
{
    const char *kind = dp_words_kind(words, half->kind);
    if (words->kinds != NULL) {
        dp_buf_printf(out, "%d%s%u", half->stage, kind, half->microbatch);
    } else {
        dp_buf_printf(out, "%s%u@%d", kind, half->microbatch, half->stage);
    }
}

void dp_words_action(const struct dp_words *words, const struct dp_action *action,
                     struct dp_buf *out)
{
    if (words->kinds == NULL) {
        dp_action_format(action, out);
        return;
    }
    struct dp_half halves[2];
    int count = dp_action_halves(action, halves);
    dp_buf_puts(out, count == 2 ? "(" : "");
    dp_words_half(words, &halves[0], out);
    if (count == 2) {
        dp_buf_puts(out, ";");
        dp_words_half(words, &halves[1], out);
        dp_buf_puts(out, ")OVERLAP_F_B");
    }
}

void dp_words_where(const struct dp_words *words, const struct dp_schedule *schedule, int32_t rank,
                    size_t index, struct dp_buf *out)
{
    dp_buf_printf(out, "rank %d", rank);
    if (words->kinds != NULL) {
        return;
    }
    dp_buf_printf(out, ", position %zu", index - schedule->rank_begin[rank]);
    if (index == schedule->rank_begin[rank + 1]) {
        dp_buf_puts(out, " (its end)");
    }
}

void dp_words_at(const struct dp_words *words, const struct dp_schedule *schedule, int32_t rank,
                 size_t index, struct dp_buf *out)
{
    if (words->kinds != NULL && words->places != NULL) {
        dp_buf_printf(out, "rank %d at %d:%d (", rank, words->places[index].line,
                      words->places[index].column);
    } else {
        dp_buf_printf(out, "rank %d at %zu (", rank, index - schedule->rank_begin[rank]);
    }
    dp_words_action(words, &schedule->actions[index], out);
    dp_buf_puts(out, ")");
}
