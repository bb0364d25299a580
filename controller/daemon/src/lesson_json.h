// Lessons and corrections as documents of the store. Lines of a database are checked as they are
// read: another version may have written them.
#pragma once

#include "dp/buf.h"
#include "dp/correction.h"

dp_status lesson_read_profile(const struct dp_buf *document, struct dp_profile *ret_profile,
                              struct dp_error *err);
void lesson_write_correction(const struct dp_correction *correction, struct dp_buf *out);
dp_status lesson_read_correction(const struct dp_buf *document,
                                 struct dp_correction *ret_correction, struct dp_error *err);
// ended: the job is over, and the lesson is what became of it.
void lesson_write(const struct dp_lesson *lesson, bool ended, struct dp_buf *out);
dp_status lesson_read(const struct dp_buf *document, struct dp_lesson *ret_lesson, bool *ret_ended,
                      struct dp_error *err);
