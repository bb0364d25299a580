// The command line of `dpctl schedule`.

#include "schedule_request.h"

#include <math.h>
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

static const struct {
    int key;
    schedule_options group;
} groups[] = {
    {'P', SCHEDULE_SIZES},
    {'M', SCHEDULE_SIZES},
    {'v', SCHEDULE_SIZES},
    {KEY_COST, SCHEDULE_COSTS},
    {KEY_HOP, SCHEDULE_COSTS},
    {KEY_P2P, SCHEDULE_COSTS},
    {KEY_ACTIVATION, SCHEDULE_BYTES},
    {KEY_WEIGHT, SCHEDULE_BYTES},
    {KEY_SLOW, SCHEDULE_CHANGES},
    {KEY_SLOW_LINK, SCHEDULE_CHANGES},
    {KEY_STAGE_COST, SCHEDULE_CHANGES},
    {KEY_MEMORY_CAP, SCHEDULE_CAP},
    {KEY_SEED, SCHEDULE_SEARCH},
    {KEY_MOVES, SCHEDULE_SEARCH},
    {KEY_PLACEMENT, SCHEDULE_SEARCH},
    {KEY_OBJECTIVE, SCHEDULE_SEARCH},
    {KEY_SCHEDULES, SCHEDULE_FAMILIES},
    {KEY_MEMORY, SCHEDULE_FAMILIES},
    {KEY_TOKENS, SCHEDULE_FAMILIES},
    {KEY_STEP, SCHEDULE_FAMILIES},
    {KEY_STEP_TOKENS, SCHEDULE_FAMILIES},
    {KEY_GPUS, SCHEDULE_FAMILIES},
    {KEY_TABLE, SCHEDULE_DRAWING},
    {KEY_WIDTH, SCHEDULE_WIDTH},
    {KEY_FORMAT, SCHEDULE_FILES},
    {KEY_OUT, SCHEDULE_FILES},
    {KEY_LAYERS, SCHEDULE_SIZES},
    {KEY_LETTERS, SCHEDULE_READING},
};

// Options whose value is taken as it stands.
static const char **text_slot(struct schedule_request *request, int key)
{
    switch (key) {
    case KEY_SCHEDULE:
        return &request->schedule;
    case KEY_COST:
        return &request->cost;
    case KEY_STAGE_COST:
        return &request->stage_cost;
    case KEY_PLACEMENT:
        return &request->placement;
    case KEY_SCHEDULES:
        return &request->schedules;
    case KEY_FORMAT:
        return &request->format;
    case KEY_OUT:
        return &request->out;
    case KEY_LETTERS:
        return &request->letters;
    default:
        return NULL;
    }
}

// Options that are a number of at least 0.
static double *real_slot(struct schedule_request *request, int key)
{
    switch (key) {
    case KEY_HOP:
        return &request->hop;
    case KEY_ACTIVATION:
        return &request->activation_bytes;
    case KEY_WEIGHT:
        return &request->weight_bytes;
    case KEY_MEMORY_CAP:
        return &request->memory_cap;
    case KEY_MEMORY:
        return &request->memory;
    case KEY_TOKENS:
        return &request->tokens_per_s;
    case KEY_STEP:
        return &request->step_s;
    case KEY_STEP_TOKENS:
        return &request->tokens_per_step;
    default:
        return NULL;
    }
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
    if (*count == SCHEDULE_CHANGES_MAX) {
        argp_error(state, "more than %d changes of one kind", SCHEDULE_CHANGES_MAX);
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

static error_t handle_number(int key, char *arg, struct argp_state *state)
{
    struct schedule_request *request = state->input;
    switch (key) {
    case 'P':
        request->pipeline = (int32_t)dpctl_number(state, "-P", arg, 1, DP_PIPELINE_MAX);
        return 0;
    case 'M':
        request->microbatches = (int32_t)dpctl_number(state, "-M", arg, 1, DP_MICROBATCHES_MAX);
        return 0;
    case 'v':
        request->virtual_stages = (int32_t)dpctl_number(state, "-v", arg, 1, DP_RANK_STAGES_MAX);
        return 0;
    case KEY_SEED:
        request->seed = (uint64_t)dpctl_number(state, "--seed", arg, 0, INT64_MAX);
        return 0;
    case KEY_MOVES:
        request->moves = dpctl_number(state, "--moves", arg, 0, INT64_MAX);
        return 0;
    case KEY_GPUS:
        request->gpus = (int32_t)dpctl_number(state, "--gpus", arg, 1, INT32_MAX);
        return 0;
    case KEY_LAYERS:
        request->layers = (int32_t)dpctl_number(state, "--layers", arg, 1, DP_LAYERS_MAX);
        return 0;
    case KEY_WIDTH:
        request->width = (int32_t)dpctl_number(state, "--width", arg, 0, 10000);
        if (request->width > 0 && request->width < 40) {
            argp_error(state, "--width is 40 to 10000, or 0 to wrap nothing");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
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

static void note_option(struct schedule_request *request, int key)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(groups); i++) {
        if (groups[i].key == key) {
            const char **name = &request->given_names[__builtin_ctz(groups[i].group)];
            *name = *name != NULL ? *name : option_text(key);
            request->given |= groups[i].group;
        }
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
    note_option(request, key);
    const char **text = text_slot(request, key);
    double *real = real_slot(request, key);
    if (text != NULL) {
        *text = arg;
        return 0;
    }
    if (real != NULL) {
        *real = dpctl_real(state, option_text(key), arg, 0);
        if (key == KEY_MEMORY && *real <= 0) {
            argp_error(state, "--memory is over 0: nothing fits no memory");
        }
        return 0;
    }
    switch (key) {
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
        return handle_number(key, arg, state);
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
