// The lines of Slurm's topology.conf: KEY=VALUE pairs, comments, continued lines.

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "topology_internal.h"

// NAMES_MAX: in all lists of a file together. A short list means many names, so the size of the
// file does not bound them; of a large site's file, the hosts that are asked for are few.
enum { PAIRS_MAX = 8, NAMES_MAX = 16 * DP_NODES_MAX };

struct pair {
    char *key, *value; // owned
    int line, column;
    int value_line, value_column;
};

// The text with the position of the next character.
struct reader {
    const char *at, *end;
    int line, column;
    struct dp_diags *diags;
};

static void step(struct reader *reader)
{
    if (*reader->at == '\n') {
        reader->line++;
        reader->column = 1;
    } else {
        reader->column += ((unsigned char)*reader->at & 0xc0) != 0x80;
    }
    reader->at++;
}

// A backslash before the end of a line joins it with the next one.
static bool at_continuation(const struct reader *reader)
{
    const char *next = reader->at + 1;
    if (*reader->at != '\\') {
        return false;
    }
    next += next < reader->end && *next == '\r';
    return next == reader->end || *next == '\n';
}

// Blanks, comments and continuations up to the next word or the end of the line.
static void skip_blanks(struct reader *reader)
{
    while (reader->at < reader->end) {
        if (at_continuation(reader)) {
            while (reader->at < reader->end && *reader->at != '\n') {
                step(reader);
            }
            if (reader->at < reader->end) {
                step(reader);
            }
        } else if (*reader->at == '#') {
            while (reader->at < reader->end && *reader->at != '\n') {
                step(reader);
            }
        } else if (*reader->at == '\n' || !isspace((unsigned char)*reader->at)) {
            return;
        } else {
            step(reader);
        }
    }
}

static char *read_word(struct reader *reader, const char *ends)
{
    const char *begin = reader->at;
    while (reader->at < reader->end && *reader->at != '\0' &&
           !isspace((unsigned char)*reader->at) && strchr(ends, *reader->at) == NULL &&
           !at_continuation(reader)) {
        step(reader);
    }
    return dp_strndup(begin, (size_t)(reader->at - begin));
}

static void skip_line(struct reader *reader)
{
    while (reader->at < reader->end && *reader->at != '\n') {
        step(reader);
    }
}

// The pairs of one line; an ill-formed one is reported and ends it.
static size_t read_pairs(struct reader *reader, struct pair pairs[PAIRS_MAX])
{
    size_t count = 0;
    for (;;) {
        skip_blanks(reader);
        if (reader->at == reader->end || *reader->at == '\n') {
            return count;
        }
        struct pair pair = {.line = reader->line, .column = reader->column};
        pair.key = read_word(reader, "=#");
        bool assigned = reader->at < reader->end && *reader->at == '=';
        if (!assigned || pair.key[0] == '\0' || count == PAIRS_MAX) {
            dp_diags_add(reader->diags, pair.line, pair.column,
                         "lines look like: SwitchName=leaf1 Nodes=node[001-016]",
                         count == PAIRS_MAX ? "more than %d words in a line"
                                            : "a KEY=VALUE should stand here",
                         PAIRS_MAX);
            free(pair.key);
            skip_line(reader);
            return count;
        }
        step(reader);
        pair.value_line = reader->line;
        pair.value_column = reader->column;
        pair.value = read_word(reader, "#");
        pairs[count++] = pair;
    }
}

static const struct pair *find_pair(const struct pair *pairs, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(pairs[i].key, key) == 0) {
            return &pairs[i];
        }
    }
    return NULL;
}

static void read_block_sizes(const struct pair *pair, struct dp_diags *diags,
                             struct dp_topology_lines *lines)
{
    const char *at = pair->value;
    lines->block_sizes_count = 0;
    lines->block_sizes_line = pair->value_line;
    lines->block_sizes_column = pair->value_column;
    for (bool more = true; more;) {
        char *end = NULL;
        long size = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : 0;
        bool fits = size > 0 && size <= DP_NODES_MAX && (*end == ',' || *end == '\0');
        if (!fits || lines->block_sizes_count == DP_CLUSTER_LEVELS_MAX) {
            dp_diags_add(diags, pair->value_line, pair->value_column,
                         "as in BlockSizes=18,36: hosts of a block, then of larger units",
                         "BlockSizes must be up to %d numbers from 1 to %d", DP_CLUSTER_LEVELS_MAX,
                         DP_NODES_MAX);
            lines->block_sizes_count = 0;
            return;
        }
        lines->block_sizes[lines->block_sizes_count++] = (int32_t)size;
        more = *end == ',';
        at = end + more;
    }
}

// The list of a line, or false after a report.
static bool read_list(const struct pair *pair, struct dp_diags *diags,
                      struct dp_topology_switch *ret)
{
    struct dp_error err = {0};
    int column = 1;
    if (strcasecmp(pair->value, "ALL") == 0) {
        dp_diags_add(diags, pair->value_line, pair->value_column,
                     "write the list of hosts, as scontrol show hostlist prints it",
                     "%s=ALL does not say which", pair->key);
        return false;
    }
    if (dp_hosts_expand(pair->value, &ret->list, &column, &err) != DP_OK) {
        dp_diags_add(diags, pair->value_line, pair->value_column + column - 1, NULL,
                     "%s in %s=", err.message, pair->key);
        return false;
    }
    ret->list_line = pair->value_line;
    ret->list_column = pair->value_column;
    return true;
}

static void add_switch(const struct pair *name, const struct pair *list, bool is_leaf,
                       struct dp_diags *diags, struct dp_topology_lines *lines)
{
    struct dp_topology_switch made = {
        .is_leaf = is_leaf, .line = name->value_line, .column = name->value_column};
    if (name->value[0] == '\0' || strlen(name->value) >= DP_NAME_MAX) {
        dp_diags_add(diags, name->line, name->column, NULL, "%s must be 1 to %d bytes", name->key,
                     DP_NAME_MAX - 1);
        return;
    }
    if (lines->count == DP_TOPOLOGY_SWITCHES_MAX) {
        dp_diags_add(diags, name->line, name->column, NULL, "more than %d switches",
                     DP_TOPOLOGY_SWITCHES_MAX);
        return;
    }
    if (lines->names > NAMES_MAX) {
        return; // told already
    }
    if (!read_list(list, diags, &made)) {
        dp_hosts_deinit(&made.list);
        return;
    }
    lines->names += made.list.count;
    if (lines->names > NAMES_MAX) {
        dp_diags_add(diags, list->value_line, list->value_column, NULL,
                     "more than %d names in the lists up to here", NAMES_MAX);
        dp_hosts_deinit(&made.list);
        return;
    }
    made.name = dp_strdup(name->value);
    // Room grows by doubling: only powers of two reallocate.
    if ((lines->count & (lines->count - 1)) == 0) {
        size_t room = lines->count == 0 ? 1 : 2 * lines->count;
        lines->switches = dp_realloc(lines->switches, room, sizeof(*lines->switches));
    }
    lines->switches[lines->count++] = made;
}

static void take_line(const struct pair *pairs, size_t count, struct dp_diags *diags,
                      struct dp_topology_lines *lines)
{
    const struct pair *name = find_pair(pairs, count, "SwitchName");
    const struct pair *block = find_pair(pairs, count, "BlockName");
    const struct pair *sizes = find_pair(pairs, count, "BlockSizes");
    const struct pair *nodes = find_pair(pairs, count, "Nodes");
    const struct pair *switches = find_pair(pairs, count, "Switches");
    if (sizes != NULL) {
        read_block_sizes(sizes, diags, lines);
    }
    if (name == NULL && block == NULL) {
        if (sizes == NULL) {
            dp_diags_add(diags, pairs[0].line, pairs[0].column,
                         "lines begin with SwitchName=, BlockName= or BlockSizes=",
                         "\"%s\" says nothing about a switch or block", pairs[0].key);
        }
        return;
    }
    const struct pair *named = name != NULL ? name : block;
    if ((nodes == NULL) == (switches == NULL) || (block != NULL && nodes == NULL)) {
        dp_diags_add(
            diags, named->line, named->column, NULL,
            nodes == NULL ? "%s=%s names no Nodes=%s" : "%s=%s has both Nodes= and Switches=%s",
            named->key, named->value, block == NULL && nodes == NULL ? " or Switches=" : "");
        return;
    }
    if (lines->count > 0 && lines->blocks != (block != NULL)) {
        dp_diags_add(diags, named->line, named->column, NULL,
                     "SwitchName= and BlockName= in one file");
        return;
    }
    lines->blocks = block != NULL;
    add_switch(named, nodes != NULL ? nodes : switches, nodes != NULL, diags, lines);
}

void dp_topology_read_lines(const char *text, size_t length, struct dp_diags *diags,
                            struct dp_topology_lines *ret_lines)
{
    struct reader reader = {text, text + length, 1, 1, diags};
    struct dp_topology_lines lines = {0};
    while (reader.at < reader.end) {
        struct pair pairs[PAIRS_MAX];
        size_t count = read_pairs(&reader, pairs);
        if (count > 0) {
            take_line(pairs, count, diags, &lines);
        }
        for (size_t i = 0; i < count; i++) {
            free(pairs[i].key);
            free(pairs[i].value);
        }
        if (reader.at < reader.end) {
            step(&reader); // the end of the line
        }
    }
    *ret_lines = lines;
}

void dp_topology_lines_deinit(struct dp_topology_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++) {
        free(lines->switches[i].name);
        dp_hosts_deinit(&lines->switches[i].list);
    }
    free(lines->switches);
    *lines = (struct dp_topology_lines){0};
}

void dp_topology_deinit(struct dp_topology *topology)
{
    dp_hosts_deinit(&topology->hosts);
    for (int32_t i = 0; i < topology->levels_count; i++) {
        free(topology->levels[i].sizes);
    }
    *topology = (struct dp_topology){0};
}

dp_status dp_topology_parse(const char *text, size_t length, const struct dp_hosts *only,
                            struct dp_diags *diags, struct dp_topology *ret_topology,
                            struct dp_error *err)
{
    if (length > DP_TOPOLOGY_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %zu bytes; a topology may have %u", diags->file,
                       length, DP_TOPOLOGY_BYTES_MAX);
    }
    DP_CLEANUP(dp_topology_lines_deinit) struct dp_topology_lines lines = {0};
    dp_topology_read_lines(text, length, diags, &lines);
    if (diags->count == 0) {
        dp_topology_link(&lines, only, diags);
    }
    struct dp_topology topology = {0};
    if (diags->count == 0) {
        dp_topology_fill(&lines, diags, &topology);
    }
    if (diags->count > 0) {
        dp_topology_deinit(&topology);
        return dp_diags_status(diags, err);
    }
    *ret_topology = topology;
    return DP_OK;
}
