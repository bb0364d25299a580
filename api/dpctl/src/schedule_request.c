// The command line of `dpctl schedule`.

#include "schedule_request.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "dp/check.h"

enum {
    KEY_SCHEDULE = 1,
    KEY_COST,
    KEY_HOP,
    KEY_P2P,
    KEY_ACTIVATION,
    KEY_WEIGHT,
    KEY_SLOW,
    KEY_SLOW_LINK,
    KEY_STAGE_COST,
    KEY_MEMORY_CAP,
    KEY_SEED,
    KEY_MOVES,
    KEY_PLACEMENT,
    KEY_OBJECTIVE,
    KEY_SCHEDULES,
    KEY_MEMORY,
    KEY_TOKENS,
    KEY_STEP,
    KEY_STEP_TOKENS,
    KEY_GPUS,
    KEY_TABLE,
    KEY_WIDTH,
    KEY_OUT,
    KEY_FORMAT,
    KEY_LAYERS,
    KEY_LETTERS
};

// Chunks of so many bytes, all that a rank can hold, add up in 64 bits.
static const double BYTES_MAX = 1e12;

static const struct argp_option options[] = {
    {"schedule", KEY_SCHEDULE, "NAME", 0, "the schedule, as the argument would name it", 0},
    {NULL, 'P', "RANKS", 0, "pipeline ranks", 0},
    {NULL, 'M', "COUNT", 0, "micro-batches per step", 0},
    {"virtual", 'v', "CHUNKS", 0, "chunks per rank, where the family has a choice", 0},
    {"layers", KEY_LAYERS, "N", 0,
     "of the model: no schedule may have more stages (auto: 4P when not said)", 0},
    {"cost", KEY_COST, "LIST", 0,
     "seconds of a chunk (auto, compare: of 1/P of the model): "
     "F=1,I=1,W=1[,B=I+W][,FB=F+B][,FI=FB-B+I]",
     1},
    {"hop", KEY_HOP, "S", 0, "seconds that a message between ranks travels (0)", 1},
    {"p2p", KEY_P2P, "FORM", 0,
     "free: messages travel while ranks compute (default); blocking: "
     "ranks wait for each batch of them",
     1},
    {"activation-bytes", KEY_ACTIVATION, "N", 0, "kept from F on by what --cost is of", 1},
    {"weight-bytes", KEY_WEIGHT, "N", 0, "of these, what is kept until W when I is done (0)", 1},
    {"slow", KEY_SLOW, "WHAT", 0, "what if: rank=3:1.5, stage=2:1.2; may be repeated", 2},
    {"slow-link", KEY_SLOW_LINK, "LINK", 0, "what if: 2-3:4x (2>3:4x one way); may be repeated", 2},
    {"stage-cost", KEY_STAGE_COST, "FILE", 0, "seconds and bytes by stage and rank (CSV)", 2},
    {"memory-cap", KEY_MEMORY_CAP, "BYTES", 0, "auto: most bytes alive on a rank", 3},
    {"placement", KEY_PLACEMENT, "NAME", 0,
     "auto: straight, loop, v, wave, bidirectional, single (all but bidirectional) or all "
     "(default)",
     3},
    {"objective", KEY_OBJECTIVE, "WHAT", 0,
     "auto: makespan (default), or span: the longest time from a rank's first action to its last, "
     "for steps without a barrier",
     3},
    {"seed", KEY_SEED, "N", 0, "auto: of its random choices (1)", 3},
    {"moves", KEY_MOVES, "N", 0, "auto: orders tried at most (default: as suits the sizes)", 3},
    {"schedules", KEY_SCHEDULES, "LIST", 0, "compare: families, comma separated (default all)", 4},
    {"memory", KEY_MEMORY, "N", 0,
     "compare, instead of bytes: activations of N micro-batches fit a rank (default what 1F1B "
     "needs)",
     4},
    {"tokens-per-s", KEY_TOKENS, "N", 0, "compare: what 1F1B reaches, for GPU-hours", 4},
    {"step-s", KEY_STEP, "S", 0, "compare: or a step's length under 1F1B", 4},
    {"tokens-per-step", KEY_STEP_TOKENS, "N", 0, "compare: and its tokens", 4},
    {"gpus", KEY_GPUS, "N", 0, "compare: that share these tokens (default P)", 4},
    {"table", KEY_TABLE, NULL, 0, "show: one cell per time slot", 5},
    {"width", KEY_WIDTH, "N", 0,
     "show: columns to fill (with --table 0: wrap nothing); "
     "export of svg: pixels",
     5},
    {"format", KEY_FORMAT, "NAME", 0,
     "export: json (default), torch-csv, torch-csv-comms, torch-csv-comms-2.14 (for PyTorch up to "
     "2.14), megatron, perfetto or svg",
     6},
    {"out", KEY_OUT, "FILE", 0, "export: write here instead of stdout", 6},
    {"letters", KEY_LETTERS, "AGE", 0, "check a CSV: new (I, B) or old (B, BW); default: as seen",
     6},
    {0},
};

// What an option's value is, and where in the request it goes.
typedef enum value_kind {
    VALUE_OTHER,
    VALUE_TEXT,
    VALUE_REAL,
    VALUE_INT32,
    VALUE_INT64
} value_kind;

#define TEXT(name) VALUE_TEXT, offsetof(struct schedule_request, name), 0, 0
#define REAL(name) VALUE_REAL, offsetof(struct schedule_request, name), 0, 0 // at least 0
#define I32(name, min, max) VALUE_INT32, offsetof(struct schedule_request, name), min, max
#define I64(name) VALUE_INT64, offsetof(struct schedule_request, name), 0, INT64_MAX
#define OTHER VALUE_OTHER, 0, 0, 0

static const struct value {
    int key;
    uint32_t group; // schedule_options; 0 = every verb takes it
    value_kind kind;
    size_t offset;
    long min, max;
} values[] = {
    {KEY_SCHEDULE, 0, TEXT(schedule)},
    {'P', SCHEDULE_SIZES, I32(pipeline, 1, DP_PIPELINE_MAX)},
    {'M', SCHEDULE_SIZES, I32(microbatches, 1, DP_MICROBATCHES_MAX)},
    {'v', SCHEDULE_SIZES, I32(virtual_stages, 1, DP_RANK_STAGES_MAX)},
    {KEY_LAYERS, SCHEDULE_SIZES, I32(layers, 1, DP_LAYERS_MAX)},
    {KEY_COST, SCHEDULE_COSTS, TEXT(cost)},
    {KEY_HOP, SCHEDULE_COSTS, REAL(hop)},
    {KEY_P2P, SCHEDULE_COSTS, OTHER},
    {KEY_ACTIVATION, SCHEDULE_BYTES, REAL(activation_bytes)},
    {KEY_WEIGHT, SCHEDULE_BYTES, REAL(weight_bytes)},
    {KEY_SLOW, SCHEDULE_CHANGES, OTHER},
    {KEY_SLOW_LINK, SCHEDULE_CHANGES, OTHER},
    {KEY_STAGE_COST, SCHEDULE_CHANGES, TEXT(stage_cost)},
    {KEY_MEMORY_CAP, SCHEDULE_CAP, REAL(memory_cap)},
    {KEY_SEED, SCHEDULE_SEARCH, I64(seed)},
    {KEY_MOVES, SCHEDULE_SEARCH, I64(moves)},
    {KEY_PLACEMENT, SCHEDULE_SEARCH, TEXT(placement)},
    {KEY_OBJECTIVE, SCHEDULE_SEARCH, OTHER},
    {KEY_SCHEDULES, SCHEDULE_FAMILIES, TEXT(schedules)},
    {KEY_MEMORY, SCHEDULE_FAMILIES, REAL(memory)},
    {KEY_TOKENS, SCHEDULE_FAMILIES, REAL(tokens_per_s)},
    {KEY_STEP, SCHEDULE_FAMILIES, REAL(step_s)},
    {KEY_STEP_TOKENS, SCHEDULE_FAMILIES, REAL(tokens_per_step)},
    {KEY_GPUS, SCHEDULE_FAMILIES, I32(gpus, 1, INT32_MAX)},
    {KEY_TABLE, SCHEDULE_DRAWING, OTHER},
    {KEY_WIDTH, SCHEDULE_WIDTH, I32(width, 0, 10000)},
    {KEY_FORMAT, SCHEDULE_FILES, TEXT(format)},
    {KEY_OUT, SCHEDULE_FILES, TEXT(out)},
    {KEY_LETTERS, SCHEDULE_READING, TEXT(letters)},
};

static const struct value *find_value(int key)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(values); i++) {
        if (values[i].key == key) {
            return &values[i];
        }
    }
    return NULL;
}

// "--hop"; options without a long name are -P and -M.
static const char *option_text(int key)
{
    static char texts[DP_ARRAY_LENGTH(options)][24];
    for (size_t i = 0; options[i].key != 0; i++) {
        if (options[i].key == key) {
            if (options[i].name != NULL) {
                snprintf(texts[i], sizeof(texts[i]), "--%s", options[i].name);
            } else {
                snprintf(texts[i], sizeof(texts[i]), "-%c", key);
            }
            return texts[i];
        }
    }
    return "?";
}

static void take_change(struct argp_state *state, const char **list, int *count, char *arg)
{
    if (*count == DP_SCHEDULE_CHANGES_MAX) {
        argp_error(state, "more than %d changes of one kind", DP_SCHEDULE_CHANGES_MAX);
    }
    list[(*count)++] = arg;
}

static dp_sim_p2p p2p_of(struct argp_state *state, const char *text)
{
    if (strcmp(text, "free") != 0 && strcmp(text, "blocking") != 0) {
        argp_error(state, "--p2p is free or blocking, not \"%s\"", text);
    }
    return strcmp(text, "free") == 0 ? DP_SIM_P2P_FREE : DP_SIM_P2P_BLOCKING;
}

static dp_auto_objective objective_of(struct argp_state *state, const char *text)
{
    if (strcmp(text, "makespan") != 0 && strcmp(text, "span") != 0) {
        argp_error(state, "--objective is makespan or span, not \"%s\"", text);
    }
    return strcmp(text, "span") == 0 ? DP_AUTO_LONGEST_SPAN : DP_AUTO_MAKESPAN;
}

// Fills the value's place in the request, if it has one.
static void take_value(struct argp_state *state, const struct value *value, char *arg)
{
    void *slot = (char *)state->input + value->offset;
    const char *name = option_text(value->key);
    switch (value->kind) {
    case VALUE_TEXT:
        *(const char **)slot = arg;
        break;
    case VALUE_REAL:
        *(double *)slot = dpctl_real(state, name, arg, (double)value->min);
        break;
    case VALUE_INT32:
        *(int32_t *)slot = (int32_t)dpctl_number(state, name, arg, value->min, value->max);
        break;
    case VALUE_INT64:
        *(int64_t *)slot = dpctl_number(state, name, arg, value->min, value->max);
        break;
    case VALUE_OTHER:
        break;
    }
}

static void take_argument(struct argp_state *state, struct schedule_request *request, char *arg)
{
    if (state->arg_num == 0) {
        request->verb = arg;
    } else {
        dpctl_take_argument(state, "schedule", arg, &request->subject);
    }
}

static void finish(struct argp_state *state, struct schedule_request *request)
{
    if (request->verb == NULL) {
        argp_error(state, "say what to do: list, show, simulate, compare, check, export or replay");
    }
    if (request->schedule != NULL && request->subject != NULL) {
        argp_error(state, "the schedule is named twice: %s and %s", request->subject,
                   request->schedule);
    }
    if (request->subject == NULL) {
        request->subject = request->schedule;
    }
    if (request->memory_cap > 0 && request->activation_bytes <= 0 && request->stage_cost == NULL) {
        argp_error(state, "--memory-cap needs bytes: --activation-bytes or --stage-cost");
    }
    if (request->hop > DP_COST_SECONDS_MAX) {
        argp_error(state, "--hop is at most %g", DP_COST_SECONDS_MAX);
    }
    if (fmax(request->activation_bytes, request->memory_cap) > BYTES_MAX) {
        argp_error(state, "--activation-bytes and --memory-cap are at most %g", BYTES_MAX);
    }
    if (request->weight_bytes > request->activation_bytes) {
        argp_error(state, "--weight-bytes is a part of --activation-bytes: at most %g",
                   request->activation_bytes);
    }
}

static void note_option(struct schedule_request *request, const struct value *value)
{
    if (value->group != 0) {
        const char **name = &request->given_names[__builtin_ctz(value->group)];
        *name = *name != NULL ? *name : option_text(value->key);
        request->given |= value->group;
    }
}

const char *schedule_request_given(const struct schedule_request *request, uint32_t of)
{
    uint32_t found = request->given & of;
    return found != 0 ? request->given_names[__builtin_ctz(found)] : NULL;
}

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct schedule_request *request = state->input;
    const struct value *value = find_value(key);
    if (value != NULL) {
        note_option(request, value);
        take_value(state, value, arg);
    }
    switch (key) {
    case KEY_MEMORY:
        if (request->memory <= 0) {
            argp_error(state, "--memory is over 0: nothing fits no memory");
        }
        return 0;
    case KEY_WIDTH:
        if (request->width > 0 && request->width < 40) {
            argp_error(state, "--width is 40 to 10000, or 0 to wrap nothing");
        }
        return 0;
    case KEY_OBJECTIVE:
        request->objective = objective_of(state, arg);
        return 0;
    case KEY_P2P:
        request->p2p = p2p_of(state, arg);
        return 0;
    case KEY_SLOW:
        take_change(state, request->slow, &request->slow_count, arg);
        return 0;
    case KEY_SLOW_LINK:
        take_change(state, request->slow_links, &request->slow_links_count, arg);
        return 0;
    case KEY_TABLE:
        request->table = true;
        return 0;
    case ARGP_KEY_ARG:
        take_argument(state, request, arg);
        return 0;
    case ARGP_KEY_END:
        finish(state, request);
        return 0;
    default:
        return value != NULL ? 0 : ARGP_ERR_UNKNOWN;
    }
}

void schedule_request_parse(struct dpctl *ctl, int argc, char **argv,
                            struct schedule_request *ret_request)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "list\nshow|simulate|export NAME -P RANKS -M COUNT\n"
                     "show|simulate|export|check FILE.json|FILE.csv\ncompare -P RANKS -M COUNT\n"
                     "replay TRACE.csv",
        .doc = "Pipeline schedules: which there are, what they cost, how they look, and what a "
               "measured run would have taken without its slow parts.\v"
               "Seconds and bytes are of one chunk. `compare` and the schedule \"auto\", which is "
               "made for the costs given, take them as of 1/P of the model, so that with 2P stages "
               "a chunk is half as long. A .csv is PyTorch's form of a schedule. docs/schedules.md "
               "explains the answers, docs/what-if.md the changes.\n\n"
               "Examples:\n"
               "  dpctl schedule compare -P 8 -M 16 --schedules 1f1b,dualpipe,dualpipev\n"
               "  dpctl schedule show dualpipe -P 4 -M 8 --table\n"
               "  dpctl schedule simulate zb-h1 -P 8 -M 24 --cost F=1,I=1,W=1 -o json\n"
               "  dpctl schedule simulate dualpipe -P 8 -M 20 --slow rank=3:1.5\n"
               "  dpctl schedule export dualpipev -P 4 -M 10 --format torch-csv --out v.csv\n",
        .exits = "0 ok, 3 a file or a text is wrong, the family cannot have these sizes or nothing "
                 "fits the cap, 4 no such schedule or file",
        .offline = true,
        .options = options,
        .handle = handle,
    };
    *ret_request = (struct schedule_request){.cost = "F=1,I=1,W=1", .seed = 1, .width = -1};
    dpctl_parse(ctl, &syntax, ret_request, argc, argv);
}

static json_t *number_or_null(double number)
{
    return number > 0 ? json_real(number) : json_null();
}

static json_t *count_or_null(int64_t count)
{
    return count > 0 ? json_integer(count) : json_null();
}

static json_t *text_or_null(const char *text)
{
    return text != NULL ? dpctl_text_json(text, strlen(text)) : json_null();
}

static json_t *texts_json(const char *const *texts, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, text_or_null(texts[i]));
    }
    return list;
}

json_t *schedule_request_json(const struct schedule_request *request)
{
    const char *p2p = request->p2p == DP_SIM_P2P_FREE ? "free" : "blocking";
    const struct {
        const char *name;
        json_t *value;
    } members[] = {
        {"schedule", text_or_null(request->subject)},
        {"pipeline", count_or_null(request->pipeline)},
        {"microbatches", count_or_null(request->microbatches)},
        {"virtual", count_or_null(request->virtual_stages)},
        {"layers", count_or_null(request->layers)},
        {"cost", text_or_null(request->cost)},
        {"hop_s", json_real(request->hop)},
        {"p2p", json_string(p2p)},
        {"activation_bytes", number_or_null(request->activation_bytes)},
        {"weight_bytes", number_or_null(request->weight_bytes)},
        {"slow", texts_json(request->slow, request->slow_count)},
        {"slow_link", texts_json(request->slow_links, request->slow_links_count)},
        {"stage_cost", text_or_null(request->stage_cost)},
        {"memory_cap_bytes", number_or_null(request->memory_cap)},
        {"placement", text_or_null(request->placement)},
        {"objective", json_string(dp_auto_objective_text(request->objective))},
        {"seed", json_integer((json_int_t)request->seed)},
        {"moves", count_or_null(request->moves)},
        {"memory", number_or_null(request->memory)},
        {"tokens_per_s", number_or_null(request->tokens_per_s)},
        {"step_s", number_or_null(request->step_s)},
        {"tokens_per_step", number_or_null(request->tokens_per_step)},
        {"gpus", count_or_null(request->gpus)},
    };
    json_t *json = json_object();
    for (size_t i = 0; i < DP_ARRAY_LENGTH(members); i++) {
        json_object_set_new(json, members[i].name, members[i].value);
    }
    return json;
}
