// How actions are written in what is said about them: as in dp.schedule/1 ("F3@2", places by
// position) or as in a file for PyTorch ("2F3", places by line and column).
#pragma once

#include "dp/action_halves.h"
#include "dp/schedule_audit.h"

struct dp_words {
    const char *const *kinds;               // of PyTorch's letters, by dp_action_kind; NULL = ours
    const struct dp_schedule_place *places; // parallel to the actions; NULL = unknown
};

// The letters of PyTorch's files, by dp_action_kind up to DP_ACTION_W.
extern const char *const dp_words_new_letters[DP_ACTION_FB];
extern const char *const dp_words_old_letters[DP_ACTION_FB];

const char *dp_words_kind(const struct dp_words *words, dp_action_kind kind);
// "F3@2" or "2F3".
void dp_words_half(const struct dp_words *words, const struct dp_half *half, struct dp_buf *out);
// The same for a whole action.
void dp_words_action(const struct dp_words *words, const struct dp_action *action,
                     struct dp_buf *out);
// "rank 2, position 5" or, where the reader sees line and column anyway, "rank 2". index is into
// the actions and may be one past the rank's last.
void dp_words_where(const struct dp_words *words, const struct dp_schedule *schedule, int32_t rank,
                    size_t index, struct dp_buf *out);
// "rank 2 at 5 (F3@2)" or "rank 2 at 3:17 (2F3)".
void dp_words_at(const struct dp_words *words, const struct dp_schedule *schedule, int32_t rank,
                 size_t index, struct dp_buf *out);
