// Options that every command takes, and the reading of numbers.

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/spec.h"
#include "dpctl.h"

enum { KEY_CONTROLLER = 0x10000 };

static const struct argp_option output_option = {
    "output", 'o', "FORMAT", 0, "table (default) or json", 99};
static const struct argp_option controller_option = {
    "controller",
    KEY_CONTROLLER,
    "ADDRESS",
    0,
    "host:port of the controller (else $DPCTL_CONTROLLER, else the local cluster)",
    99};

struct parse {
    struct dpctl *ctl;
    const struct dpctl_syntax *syntax;
    void *data;
};

static error_t handle_common(int key, char *arg, struct argp_state *state)
{
    struct parse *parse = state->input;
    switch (key) {
    case 'o':
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0) {
            argp_error(state, "unknown output format \"%s\"; there are table and json", arg);
        }
        parse->ctl->json = strcmp(arg, "json") == 0;
        return 0;
    case KEY_CONTROLLER:
        parse->ctl->controller = arg;
        return 0;
    default:
        break;
    }
    // The command's handler sees its own data, as if it were the only parser.
    state->input = parse->data;
    error_t result =
        parse->syntax->handle == NULL ? ARGP_ERR_UNKNOWN : parse->syntax->handle(key, arg, state);
    state->input = parse;
    return result;
}

void dpctl_parse(struct dpctl *ctl, const struct dpctl_syntax *syntax, void *data, int argc,
                 char **argv)
{
    enum { OPTIONS_MAX = 40 };
    struct argp_option options[OPTIONS_MAX + 3] = {0};
    size_t count = 0;
    for (const struct argp_option *o = syntax->options; o != NULL && (o->name || o->doc); o++) {
        DP_CHECK(count < OPTIONS_MAX);
        options[count++] = *o;
    }
    options[count++] = output_option;
    if (!syntax->offline) {
        options[count++] = controller_option;
    }
    DP_AUTO_FREE char *doc =
        dp_asprintf("%s%sExit codes: %s.\n", syntax->doc,
                    strchr(syntax->doc, '\v') == NULL ? "\v" : "\n", syntax->exits);
    struct argp argp = {
        .options = options,
        .parser = handle_common,
        .args_doc = syntax->arguments,
        .doc = doc,
    };
    struct parse parse = {ctl, syntax, data};
    // Help without the paragraph on options that are mandatory in both their forms.
    setenv("ARGP_HELP_FMT", "no-dup-args-note", 0);
    argp_parse(&argp, argc, argv, 0, NULL, &parse);
}

error_t dpctl_handle_none(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG) {
        argp_error(state, "unexpected argument \"%s\"", arg);
    }
    return ARGP_ERR_UNKNOWN;
}

long dpctl_number(struct argp_state *state, const char *what, const char *text, long min, long max)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max) {
        argp_error(state, "%s must be a whole number from %ld to %ld, not \"%s\"", what, min, max,
                   text);
    }
    return value;
}

double dpctl_real(struct argp_state *state, const char *what, const char *text, double min)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < min) {
        argp_error(state, "%s must be a number, at least %g, not \"%s\"", what, min, text);
    }
    return value;
}

void dpctl_take_argument(struct argp_state *state, const char *what, char *arg, const char **slot)
{
    if (*slot != NULL) {
        argp_error(state, "one %s at a time, not also \"%s\"", what, arg);
    }
    *slot = arg;
}

error_t dpctl_handle_job_file(int key, char *arg, struct argp_state *state, const char **file)
{
    switch (key) {
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job file", arg, file);
        return 0;
    case ARGP_KEY_END:
        if (*file == NULL) {
            argp_error(state, "a job file is missing (- reads standard input)");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void dpctl_sets_take(struct argp_state *state, char *arg, struct dpctl_sets *sets)
{
    if (sets->count == DP_SETS_MAX) {
        argp_error(state, "more than %d --set", DP_SETS_MAX);
    }
    sets->items[sets->count++] = arg;
}

void dpctl_sets_no_learn(struct argp_state *state, struct dpctl_sets *sets)
{
    static char off[] = "resources.learn=0";
    dpctl_sets_take(state, off, sets);
}

dp_status dpctl_sets_apply(const struct dpctl_sets *sets, struct dp_job_spec *spec,
                           struct dp_error *err)
{
    for (int i = 0; i < sets->count; i++) {
        dp_status status = dp_job_spec_set(spec, sets->items[i], err);
        if (status != DP_OK) {
            return status;
        }
    }
    return dp_job_spec_check(spec, err);
}
