#include "torch_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

void torch_rows_split(const char *text, struct torch_rows *ret_rows)
{
    *ret_rows = (struct torch_rows){0};
    while (*text != '\0') {
        size_t length = strcspn(text, ",\n");
        int row = ret_rows->count;
        ret_rows->cells[row][ret_rows->lengths[row]++] = dp_strndup(text, length);
        text += length;
        ret_rows->count += *text == '\n';
        text += *text != '\0';
    }
}

void torch_rows_deinit(struct torch_rows *rows)
{
    for (int row = 0; row < rows->count; row++) {
        for (int i = 0; i < rows->lengths[row]; i++) {
            free(rows->cells[row][i]);
        }
    }
}

void torch_rows_join(const struct torch_rows *rows, struct dp_buf *out)
{
    for (int row = 0; row < rows->count; row++) {
        for (int i = 0; i < rows->lengths[row]; i++) {
            dp_buf_printf(out, "%s%s", i > 0 ? "," : "", rows->cells[row][i]);
        }
        dp_buf_puts(out, "\n");
    }
}

static bool is_message(const char *cell)
{
    return (strstr(cell, "SEND") != NULL && strstr(cell, "WAIT") == NULL) ||
           strstr(cell, "RECV") != NULL;
}

static bool is_work(const char *cell)
{
    return strstr(cell, "SEND") == NULL && strstr(cell, "RECV") == NULL;
}

static void drop(struct torch_rows *rows, int row, int at)
{
    char **cells = rows->cells[row];
    free(cells[at]);
    rows->lengths[row]--;
    memmove(&cells[at], &cells[at + 1], (size_t)(rows->lengths[row] - at) * sizeof(*cells));
}

static void put(struct torch_rows *rows, int row, int at, const char *text)
{
    char **cells = rows->cells[row];
    char *copy = dp_strdup(text);
    memmove(&cells[at + 1], &cells[at], (size_t)(rows->lengths[row] - at) * sizeof(*cells));
    cells[at] = copy;
    rows->lengths[row]++;
}

bool torch_rows_change(struct torch_rows *rows, struct dp_rand *rand)
{
    int row, at;
    do {
        row = (int)dp_rand_below(rand, (uint64_t)rows->count);
        at = (int)dp_rand_below(rand, (uint64_t)rows->lengths[row]);
    } while (!is_message(rows->cells[row][at]));
    uint64_t what = dp_rand_below(rand, 6);
    if (what == 0) {
        drop(rows, row, at);
        return false;
    }
    if (what == 1) {
        put(rows, row, (int)dp_rand_below(rand, (uint64_t)rows->lengths[row] + 1),
            rows->cells[row][at]);
        return false;
    }
    int to = at + (int)dp_rand_below(rand, 7) - 3;
    to = to < 0 ? 0 : to >= rows->lengths[row] ? rows->lengths[row] - 1 : to;
    char *cell = dp_strdup(rows->cells[row][at]);
    drop(rows, row, at);
    put(rows, row, to, cell);
    free(cell);
    return true;
}

// What has happened, as texts: "F 3 1" for a forward of stage 3, micro-batch 1, and so on.
struct happened {
    struct dp_buf text;
};

static bool has(const struct happened *happened, const char *what)
{
    char line[64];
    snprintf(line, sizeof(line), "\n%s\n", what);
    return happened->text.length > 0 && strstr(happened->text.bytes, line) != NULL;
}

static void add(struct happened *happened, const char *what)
{
    dp_buf_printf(&happened->text, "%s%s\n", happened->text.length == 0 ? "\n" : "", what);
}

static int stage_of(const char *cell)
{
    return (int)strtol(cell[0] == '(' ? cell + 1 : cell, NULL, 10);
}

// The row with work on a stage; -1 = none.
static int row_of(const struct torch_rows *rows, int stage)
{
    for (int row = 0; row < rows->count; row++) {
        for (int i = 0; i < rows->lengths[row]; i++) {
            const char *cell = rows->cells[row][i];
            if (is_work(cell) && cell[0] != '(' && stage_of(cell) == stage) {
                return row;
            }
        }
    }
    return -1;
}

// Whether the rank has what one half ("3F1") needs: received, or made on the rank itself.
static bool has_input(const struct torch_rows *rows, const struct happened *own, int row,
                      const char *half)
{
    int stage, microbatch;
    char kind;
    if (sscanf(half, "%d%c%d", &stage, &kind, &microbatch) != 3) {
        abort();
    }
    if (kind == 'W') {
        return true;
    }
    int source = stage + (kind == 'F' ? -1 : 1);
    int from = row_of(rows, source);
    char what[64];
    if (from >= 0 && from != row) {
        snprintf(what, sizeof(what), "%dRECV_%c%d", stage, kind == 'F' ? 'F' : 'B', microbatch);
        return has(own, what);
    }
    return true;
}

// One cell that is work; false when it cannot be done.
static bool work(const struct torch_rows *rows, struct happened *own, int row, const char *cell)
{
    char first[32], second[32];
    if (sscanf(cell, "(%31[^;];%31[^)])", first, second) == 2) {
        bool good = has_input(rows, own, row, first) && has_input(rows, own, row, second);
        add(own, first);
        add(own, second);
        return good;
    }
    bool good = has_input(rows, own, row, cell);
    add(own, cell);
    return good;
}

// The receive of a send, and where; false when nobody is there.
static bool other_end(const struct torch_rows *rows, const char *send, int *ret_row, char *ret_cell,
                      size_t size)
{
    int stage, microbatch;
    char kind;
    if (sscanf(send, "%dSEND_%c%d", &stage, &kind, &microbatch) != 3) {
        abort();
    }
    int to = stage + (kind == 'F' ? 1 : -1);
    *ret_row = row_of(rows, to);
    snprintf(ret_cell, size, "%dRECV_%c%d", to, kind, microbatch);
    return *ret_row >= 0;
}

// A send after what it sends was made.
static bool was_made(const struct happened *own, const char *send)
{
    int stage, microbatch;
    char kind;
    char what[64];
    if (sscanf(send, "%dSEND_%c%d", &stage, &kind, &microbatch) != 3) {
        abort();
    }
    for (const char *letters = kind == 'F' ? "F" : "BI"; *letters != '\0'; letters++) {
        snprintf(what, sizeof(what), "%d%c%d", stage, *letters, microbatch);
        if (has(own, what)) {
            return true;
        }
    }
    return false;
}

struct run {
    const struct torch_rows *rows;
    int at[TORCH_ROWS_MAX];
    struct happened own[TORCH_ROWS_MAX];
    bool good;
};

// Does the row's next cell if that is possible.
static bool step(struct run *run, int row)
{
    const struct torch_rows *rows = run->rows;
    if (run->at[row] == rows->lengths[row]) {
        return false;
    }
    const char *cell = rows->cells[row][run->at[row]];
    struct happened *own = &run->own[row];
    const char *wait = strstr(cell, "WAIT_SEND");
    if (is_work(cell)) {
        run->good = work(rows, own, row, cell) && run->good;
    } else if (wait != NULL) {
        char sent[64];
        snprintf(sent, sizeof(sent), "%.*s%s", (int)(wait - cell), cell, wait + strlen("WAIT_"));
        run->good = run->good && has(own, sent) && !has(own, cell);
        add(own, cell);
    } else if (strstr(cell, "RECV") != NULL) {
        return false; // done together with its send
    } else {
        int peer;
        char receive[64];
        if (!other_end(rows, cell, &peer, receive, sizeof(receive)) ||
            run->at[peer] == rows->lengths[peer] ||
            strcmp(rows->cells[peer][run->at[peer]], receive) != 0) {
            return false;
        }
        run->good = run->good && was_made(own, cell) && !has(own, cell);
        add(own, cell);
        add(&run->own[peer], receive);
        run->at[peer]++;
    }
    run->at[row]++;
    return true;
}

bool torch_rows_run(const struct torch_rows *rows)
{
    struct run run = {.rows = rows, .good = true};
    for (bool moved = true; moved;) {
        moved = false;
        for (int row = 0; row < rows->count; row++) {
            while (step(&run, row)) {
                moved = true;
            }
        }
    }
    for (int row = 0; row < rows->count; row++) {
        run.good = run.good && run.at[row] == rows->lengths[row];
        dp_buf_deinit(&run.own[row].text);
    }
    return run.good;
}
