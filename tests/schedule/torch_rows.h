// Files with messages as rows of texts, changed at random and run strictly in order: each send
// waits for its receive. Shares nothing with the library's own reader.
#pragma once

#include <stdbool.h>

#include "dp/buf.h"
#include "dp/rand.h"

enum { TORCH_ROWS_MAX = 8, TORCH_CELLS_MAX = 600 };

struct torch_rows {
    int count;
    int lengths[TORCH_ROWS_MAX];
    char *cells[TORCH_ROWS_MAX][TORCH_CELLS_MAX];
};

void torch_rows_split(const char *text, struct torch_rows *ret_rows);
void torch_rows_deinit(struct torch_rows *rows);
void torch_rows_join(const struct torch_rows *rows, struct dp_buf *out);
// Moves a cell that is a message, or one beside it, within its row; or drops or doubles a message,
// and then returns false.
bool torch_rows_change(struct torch_rows *rows, struct dp_rand *rand);
// Whether all rows get to their ends, each action after what it needs, each message after what
// makes it, and nothing is left over. The work itself must be complete and in a good order.
bool torch_rows_run(const struct torch_rows *rows);
