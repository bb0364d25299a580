// What reads dp.schedule/1, with or without the text that it came from.
#pragma once

#include "dp/schedule.h"

// What a failure is about.
struct dp_json_subject {
    const char *key; // of the document; NULL = all of it
    int32_t entry;   // of the list under the key; -1 = all of it
    bool actions;    // some action is wrong
};

// Everything but dp_schedule_validate. On failure *ret_subject says what is wrong.
dp_status dp_schedule_build_from_json(const json_t *json, struct dp_schedule *ret_schedule,
                                      struct dp_json_subject *ret_subject, struct dp_error *err);
// One element of a rank's list.
dp_status dp_action_from_json(const json_t *json, struct dp_action *ret_action,
                              struct dp_error *err);
