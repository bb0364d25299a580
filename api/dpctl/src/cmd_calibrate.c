// dpctl calibrate: figures of devices, by measuring or from what a profiler recorded.

#include <string.h>

#include "calibrate.h"

enum {
    KEY_ALL = 1,
    KEY_WAIT,
    KEY_LOCAL,
    KEY_SHOW,
    KEY_TRACE,
    KEY_BASE,
    KEY_MODEL,
    KEY_SEQUENCE,
    KEY_SAMPLES,
    KEY_EXPERT,
    KEY_TENSOR,
    KEY_DOMAIN,
    KEY_PRECISION,
    KEY_RECOMPUTE,
    KEY_OUT,
};

static const struct argp_option options[] = {
    {"all", KEY_ALL, NULL, 0, "every node that is connected", 0},
    {"wait", KEY_WAIT, NULL, 0, "wait for nodes on which ranks run, rather than refuse", 0},
    {"local", KEY_LOCAL, NULL, 0, "this machine, without a controller", 0},
    {"show", KEY_SHOW, "NODE", 0, "what is known of a node, and since when", 0},
    {"from-trace", KEY_TRACE, "FILE", 0,
     "read a PyTorch profiler's trace or an nsys JSON export, plain or gzip", 1},
    {"base", KEY_BASE, "PROFILE", 0, "the profile that the trace's figures are put into", 1},
    {"model", KEY_MODEL, "NAME", 0, "what was trained: a built-in model or a config.json", 1},
    {"seq-len", KEY_SEQUENCE, "N", 0, "tokens of a sample", 1},
    {"micro-batch-size", KEY_SAMPLES, "N", 0, "samples of a micro-batch (1)", 1},
    {"expert", KEY_EXPERT, "N", 0, "ranks that share the experts (1)", 1},
    {"tensor", KEY_TENSOR, "N", 0, "tensor-parallel ranks (1)", 1},
    {"domain", KEY_DOMAIN, "N", 0, "ranks of one scale-up domain (8)", 1},
    {"precision", KEY_PRECISION, "FORMAT", 0, "of products (the model's own)", 1},
    {"recompute", KEY_RECOMPUTE, "WHAT", 0, "what the backward pass computed again (none)", 1},
    {"out", KEY_OUT, "FILE", 0, "write the profile here", 2},
    {0},
};

static int32_t count_of(struct argp_state *state, const char *what, const char *arg)
{
    return (int32_t)dpctl_number(state, what, arg, 1, DP_SEQUENCE_MAX);
}

static error_t take_trace_option(int key, char *arg, struct argp_state *state)
{
    struct calibrate_request *request = state->input;
    switch (key) {
    case KEY_TRACE:
        request->trace = arg;
        return 0;
    case KEY_BASE:
        request->base = arg;
        return 0;
    case KEY_MODEL:
        request->model = arg;
        return 0;
    case KEY_SEQUENCE:
        request->sequence = count_of(state, "--seq-len", arg);
        return 0;
    case KEY_SAMPLES:
        request->samples = count_of(state, "--micro-batch-size", arg);
        return 0;
    case KEY_EXPERT:
        request->expert = (int32_t)dpctl_number(state, "--expert", arg, 1, DP_EXPERTS_MAX);
        return 0;
    case KEY_TENSOR:
        request->tensor = (int32_t)dpctl_number(state, "--tensor", arg, 1, DP_TENSOR_MAX);
        return 0;
    case KEY_DOMAIN:
        request->domain = (int32_t)dpctl_number(state, "--domain", arg, 1, DP_RANKS_MAX);
        return 0;
    case KEY_PRECISION:
        request->precision = arg;
        return 0;
    case KEY_RECOMPUTE:
        request->recompute = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void check_request(const struct calibrate_request *request, struct argp_state *state)
{
    bool nodes = request->all || request->nodes_count > 0;
    if (nodes + request->local + (request->show != NULL) + (request->trace != NULL) != 1) {
        argp_error(state, "give one of NODE..., --all, --local, --show NODE and --from-trace FILE");
    }
    if (request->all && request->nodes_count > 0) {
        argp_error(state, "give either nodes or --all");
    }
    if (request->trace == NULL && (request->model != NULL || request->base != NULL)) {
        argp_error(state, "--model and --base say what --from-trace FILE shows");
    }
    if (request->model != NULL && request->sequence == 0) {
        argp_error(state, "--model wants --seq-len, the tokens of a sample in the trace");
    }
    if (request->trace != NULL && request->out != NULL && request->model == NULL) {
        argp_error(state, "--out writes a profile, which needs --model");
    }
}

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct calibrate_request *request = state->input;
    switch (key) {
    case KEY_ALL:
        request->all = true;
        return 0;
    case KEY_WAIT:
        request->wait = true;
        return 0;
    case KEY_LOCAL:
        request->local = true;
        return 0;
    case KEY_SHOW:
        request->show = arg;
        return 0;
    case KEY_OUT:
        request->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (request->nodes_count == DP_CALIBRATE_NODES_MAX) {
            argp_error(state, "at most %d nodes at once", DP_CALIBRATE_NODES_MAX);
        }
        request->nodes[request->nodes_count++] = arg;
        return 0;
    case ARGP_KEY_END:
        check_request(request, state);
        return 0;
    default:
        return take_trace_option(key, arg, state);
    }
}

dp_status dpctl_cmd_calibrate(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "[NODE...]",
        .doc = "Measures nodes as ranks will use them, one at a time, and keeps the result: "
               "products, attention, memory, links, all-to-all, sums. Or reads a profiler's trace "
               "and fits F, I, W, pairs and the all-to-all.\v"
               "docs/calibration.md describes what is measured and how traces are read.\n\n"
               "Examples:\n"
               "  dpctl calibrate --all\n"
               "  dpctl calibrate --show node-0\n"
               "  dpctl calibrate --from-trace train.json.gz --base h800 --model deepseek-v3 \\\n"
               "      --seq-len 4096 --expert 64 --out mine.json\n",
        .exits = "0 ok, 3 the trace cannot be read, 4 no such node or file, 6 ranks run there or "
                 "another calibration does, 8 no controller or a node that does not answer",
        .options = options,
        .handle = handle,
    };
    struct calibrate_request request = {.samples = 1, .expert = 1, .tensor = 1, .domain = 8};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    if (request.trace != NULL) {
        return calibrate_trace(ctl, &request, err);
    }
    if (request.local) {
        return calibrate_local(ctl, &request, err);
    }
    return request.show != NULL ? calibrate_show(ctl, &request, err)
                                : calibrate_nodes(ctl, &request, err);
}
