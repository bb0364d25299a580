// What the letters and colours of a text drawing mean, wrapped at its width.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/schedule.h"

struct legend {
    int32_t width;  // of a line; 0 = without end
    int32_t indent; // columns before each line's first item
    bool color;
    const char *pair; // how an overlapped pair is written; other kinds are their letter
    int32_t column;   // where the line has come to; 0 = nothing written yet
};

// An item of plain text, on the same line if it fits there.
void dp_render_legend_note(struct legend *legend, const char *text, struct dp_buf *out);
// The kinds that the schedule has.
void dp_render_legend_kinds(struct legend *legend, const struct dp_schedule *schedule,
                            struct dp_buf *out);
// Ends the last line.
void dp_render_legend_end(struct legend *legend, struct dp_buf *out);

// A sentence on lines of its own, wrapped at spaces.
void dp_render_sentence(const char *text, int32_t width, struct dp_buf *out);
