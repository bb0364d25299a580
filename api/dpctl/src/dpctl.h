// What every command of dpctl shares: options, output, and the table of commands.
//
// Data goes to stdout; progress, warnings and errors to stderr.
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/json.h"
#include "dp/limits.h"

struct dpctl {
    const char *controller; // --controller or DPCTL_CONTROLLER; NULL = the local cluster's
    char state_directory[DP_PATH_MAX]; // $XDG_STATE_HOME/dp
    bool json;                         // -o json
    bool json_lines;                   // a stream of documents: one on a line
    bool answered;                     // a document went to stdout
    bool color;                        // stdout is a terminal, NO_COLOR unset
    bool out_is_tty, err_is_tty;
    int width; // columns of the terminal, 100 when there is none
};

struct dpctl_command {
    const char *name;
    const char *summary; // one line for `dpctl help`
    // argv[0] is "dpctl NAME"; a failure is described in err, printed once by main.
    dp_status (*run)(struct dpctl *ctl, int argc, char **argv, struct dp_error *err);
};

// The command's own options and arguments go to `handle` (an argp parser: return ARGP_ERR_UNKNOWN
// for what it does not know); common options are taken care of. Usage errors exit with 2.
struct dpctl_syntax {
    const char *arguments; // "JOB", "[JOB]"
    const char *doc;       // what it does; after \v examples, each line with its newline
    const char *exits;     // "0 valid, 3 not valid": exit codes but 1 and 2
    bool offline;          // asks no controller, so that --controller would mean nothing
    const struct argp_option *options;
    error_t (*handle)(int key, char *arg, struct argp_state *state); // state->input = data
};
void dpctl_parse(struct dpctl *ctl, const struct dpctl_syntax *syntax, void *data, int argc,
                 char **argv);
// For a command without arguments of its own.
error_t dpctl_handle_none(int key, char *arg, struct argp_state *state);
// Puts an argument into its slot; a usage error when there was one already. `what`: "job".
void dpctl_take_argument(struct argp_state *state, const char *what, char *arg, const char **slot);
// The argument of a command that takes a job file and nothing else, and that it is there.
error_t dpctl_handle_job_file(int key, char *arg, struct argp_state *state, const char **file);

// `--set KEY=VALUE`, given any number of times up to the limit.
struct dpctl_sets {
    const char *items[DP_SETS_MAX];
    int count;
};
void dpctl_sets_take(struct argp_state *state, char *arg, struct dpctl_sets *sets);
// `--no-learn`: as if its key had been given.
void dpctl_sets_no_learn(struct argp_state *state, struct dpctl_sets *sets);
// Applies them in order and checks the whole.
struct dp_job_spec;
dp_status dpctl_sets_apply(const struct dpctl_sets *sets, struct dp_job_spec *spec,
                           struct dp_error *err);

// A built-in model by its name, or one from a Hugging Face config.json or a job file.
struct dp_model_spec;
dp_status dpctl_load_model(const char *name, struct dp_model_spec *ret_model, struct dp_error *err);

// A whole number in [min, max] from an option, or a usage error.
long dpctl_number(struct argp_state *state, const char *what, const char *text, long min, long max);
// A finite number not under min, or a usage error.
double dpctl_real(struct argp_state *state, const char *what, const char *text, double min);

// Prints json with its "schema" key set and frees it. Byte counts become whole numbers.
void dpctl_print_json(struct dpctl *ctl, json_t *json, const char *schema);
// The same into `out`, indented.
void dpctl_write_json(json_t *json, const char *schema, struct dp_buf *out);
// A JSON string; bytes that are not UTF-8 become U+FFFD.
json_t *dpctl_text_json(const char *text, size_t length);
// A problem of an input as JSON: where it is, what is wrong, what would help.
struct dp_diags;
json_t *dpctl_problems_json(const struct dp_diags *problems, const struct dp_error *err);
void dpctl_print(const struct dp_buf *text);
// Writes to a file, or to stdout when path is NULL or "-".
dp_status dpctl_write(struct dpctl *ctl, const char *path, const struct dp_buf *text,
                      struct dp_error *err);

// Tables without borders: two spaces between columns; the last column is never padded on its right.
// One that is wider than `fits` loses the columns of `drops`, one by one, and then the end of its
// last column, which is text; stderr says which columns are not there.
struct dpctl_table {
    int columns;
    int fits;            // columns of the terminal (dpctl_fits); 0 = however wide
    const char *drops;   // columns by their letters ('a' is the first), the least important first
    uint32_t right;      // bit i: column i is set flush right, as numbers are
    const int *widths;   // the least width of each column; NULL = as wide as its cells
    struct dp_buf cells; // NUL-terminated cells, row by row
    size_t count;
};
void dpctl_table_deinit(struct dpctl_table *table);
// Adds a cell; empty text becomes "-".
void dpctl_cell(struct dpctl_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// A first row: one cell for each column.
void dpctl_heads(struct dpctl_table *table, const char *const *heads);
void dpctl_table_print(const struct dpctl_table *table);
// What a table on stdout has to fit: 0 when that is no terminal, or with --wide.
int dpctl_fits(const struct dpctl *ctl, bool wide);
// A time (wall clock, UTC) in a table that has to fit: of today without its day, else without its
// seconds; in full when `fits` is 0.
const char *dpctl_time(char buffer[32], int64_t time_ns, int fits);
// Of a command whose table may lose columns; its handler sets a flag.
#define DPCTL_WIDE_OPTION                                                                          \
    {                                                                                              \
        "wide", 'w', NULL, 0, "all columns in full, however narrow the terminal is", 0             \
    }

// checkpoint_files.c: the verbs of dpctl checkpoint that are about files.
bool dpctl_is_checkpoint_verb(const char *word);
dp_status dpctl_checkpoint_files(struct dpctl *ctl, int argc, char **argv, struct dp_error *err);

// "1.2 MiB", "3.4 s", "12 ms".
const char *dpctl_bytes(char buffer[32], double bytes);
const char *dpctl_seconds(char buffer[32], double seconds);
// "671.03 B", "6.86 M".
const char *dpctl_parameters(char buffer[32], double parameters);
// "1 job", "3 jobs". Nouns have at most 30 letters.
const char *dpctl_count(char buffer[64], unsigned long long count, const char *noun);
// Columns of the terminal behind fd, 100 when there is none.
int dpctl_width(int fd);
// Whether nobody takes what is printed: a loop that goes on printing should end.
bool dpctl_output_lost(void);

#define DPCTL_COMMANDS(X)                                                                          \
    X(run, "train a job on this machine: local cluster up, submit, follow, report, stop")          \
    X(local, "the local cluster alone: up, down, status")                                          \
    X(plan, "recommend a strategy for a job; no controller needed")                                \
    X(schedule, "list, show, simulate, compare, check and export pipeline schedules")              \
    X(model, "show a built-in model or one described by a file")                                   \
    X(cluster, "apply, show, list and delete descriptions of clusters")                            \
    X(validate, "check a job file and say everything that is wrong with it")                       \
    X(submit, "hand a job to the controller")                                                      \
    X(jobs, "list jobs")                                                                           \
    X(status, "one job: state, reason, progress, ranks")                                           \
    X(cancel, "end a job")                                                                         \
    X(hold, "keep a job that waits from starting")                                                 \
    X(release, "take that back")                                                                   \
    X(priority, "change before whom a job goes")                                                   \
    X(checkpoint, "have a running job write a checkpoint now")                                     \
    X(reassign, "look for a better layout of a running job, and change to it")                     \
    X(logs, "output of a job's ranks")                                                             \
    X(top, "live utilisation per rank")                                                            \
    X(whatif, "what a slow or lost rank would cost a job, and the best answer")                    \
    X(report, "how a job did: loss, predicted against measured")                                   \
    X(experts, "how busy experts are, and where they would lie evenly")                            \
    X(timeline, "what ran when, as a trace for Perfetto")                                          \
    X(events, "what happened to a job, and what happens")                                          \
    X(history, "jobs that are over, their attempts and what was decided")                          \
    X(audit, "who changed what")                                                                   \
    X(backup, "the controller's database as a file, while it runs")                                \
    X(restore, "put a backup in the place of a controller's database")                             \
    X(nodes, "list nodes; set one down, quarantine or forget it")                                  \
    X(drain, "give a node no new work, and have its jobs leave it")                                \
    X(undrain, "take that back")                                                                   \
    X(quota, "how many ranks users may have at once")                                              \
    X(calibrate, "measure nodes, or read a profiler's trace: the figures that plans rest on")      \
    X(doctor, "what on this machine would bite: ports, memory, cores, versions")                   \
    X(version, "versions of dpctl and of the controller")

#define X(name, summary)                                                                           \
    dp_status dpctl_cmd_##name(struct dpctl *ctl, int argc, char **argv, struct dp_error *err);
DPCTL_COMMANDS(X)
#undef X
