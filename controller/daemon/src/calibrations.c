#include "calibrations.h"

#include <stdlib.h>
#include <string.h>

#include "audit.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "lessons.h"

// The agent ends what takes longer itself (LIMIT_MAX_MS there); this is for one that is gone.
#define ANSWER_MS 200000
#define LIST_DEFAULT 20

enum phase {
    PHASE_NEXT, // look at the node
    PHASE_BUSY, // ranks run there: waits
    PHASE_ORDERED,
    PHASE_STORING, // its answer is there, its row not yet
};

struct calibration {
    uint64_t call, request;
    char (*nodes)[DP_NAME_MAX]; // owned
    size_t count, at;
    bool wait;
    enum phase phase;
    uint64_t session; // of the node at hand
    int64_t until_ns;
    struct dp_buf before, after; // profiles of the node at hand
    struct calibration *next;
};

static bool same_machine(const struct dp_node_record *a, const struct dp_node_record *b)
{
    return strcmp(a->name, b->name) == 0 ||
           (a->boot_id[0] != '\0' && strcmp(a->boot_id, b->boot_id) == 0);
}

static bool find_view(struct daemon *daemon, const char *name, struct dp_node_view *ret_view)
{
    size_t count = dp_core_nodes_count(daemon->core);
    for (size_t i = 0; i < count; i++) {
        dp_core_node_at(daemon->core, i, ret_view);
        if (strcmp(ret_view->node->name, name) == 0) {
            return true;
        }
    }
    return false;
}

// The node and all others on its machine: their ranks would be measured as well.
static void hold(struct daemon *daemon, const char *node, bool on)
{
    struct dp_node_view own, other;
    if (!find_view(daemon, node, &own)) {
        return;
    }
    size_t count = dp_core_nodes_count(daemon->core);
    for (size_t i = 0; i < count; i++) {
        dp_core_node_at(daemon->core, i, &other);
        if (same_machine(own.node, other.node)) {
            struct dp_core_event event = {.kind = DP_EVENT_HOLD,
                                          .hold = {.node = other.node->name, .on = on}};
            daemon_step(daemon, &event);
        }
    }
}

static const char *node_of(const struct calibration *calibration)
{
    return calibration->nodes[calibration->at];
}

static void tell(struct daemon *daemon, const struct calibration *calibration,
                 Dp__V1__CalibrateOutcome outcome, const char *message)
{
    Dp__V1__CalibrateEvent event = DP__V1__CALIBRATE_EVENT__INIT;
    event.node = (char *)node_of(calibration);
    event.outcome = outcome;
    event.message = (char *)message;
    if (outcome == DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED) {
        event.profile_json.data = (uint8_t *)calibration->after.bytes;
        event.profile_json.len = calibration->after.length;
        event.before_json.data = (uint8_t *)calibration->before.bytes;
        event.before_json.len = calibration->before.length;
    }
    (void)call_send(daemon, calibration->call, &event.base);
}

// On to the next node, which is looked at by the next pump.
static void end_node(struct daemon *daemon, struct calibration *calibration,
                     Dp__V1__CalibrateOutcome outcome, const char *message)
{
    tell(daemon, calibration, outcome, message);
    dp_log_info("calibration.ended", "node=%s message=\"%s\"", node_of(calibration), message);
    dp_buf_clear(&calibration->before);
    dp_buf_clear(&calibration->after);
    calibration->at++;
    calibration->phase = PHASE_NEXT;
}

// Whether its machine is being measured for somebody else.
static bool is_ordered_elsewhere(struct daemon *daemon, const struct calibration *own,
                                 const struct dp_node_record *node)
{
    struct dp_node_view view;
    const struct calibration *other = daemon->calibrations;
    for (; other != NULL; other = other->next) {
        bool active = other->phase == PHASE_ORDERED || other->phase == PHASE_STORING;
        if (other != own && active && find_view(daemon, node_of(other), &view) &&
            same_machine(view.node, node)) {
            return true;
        }
    }
    return false;
}

static void send_order(struct daemon *daemon, const struct calibration *calibration, bool cancel)
{
    Dp__V1__CalibrateOrder order = DP__V1__CALIBRATE_ORDER__INIT;
    Dp__V1__ControllerMessage message = DP__V1__CONTROLLER_MESSAGE__INIT;
    order.request = calibration->request;
    order.cancel = cancel;
    message.message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_CALIBRATE;
    message.calibrate = &order;
    session_send(daemon, calibration->session, &message);
}

static void begin(struct daemon *daemon, struct calibration *calibration,
                  const struct dp_node_view *view)
{
    calibration->request = ++daemon->last_calibration;
    calibration->session = view->session;
    calibration->phase = PHASE_ORDERED;
    calibration->until_ns = dp_clock_monotonic_ns() + ANSWER_MS * DP_NS_PER_MS;
    dp_buf_append(&calibration->before, view->node->profile.bytes, view->node->profile.length);
    // Nothing new may start there, and what started before the order was heard refuses it.
    hold(daemon, node_of(calibration), true);
    send_order(daemon, calibration, false);
    tell(daemon, calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON, "measuring");
}

// The first node of this machine on which ranks run; false when there is none.
static bool find_busy(struct daemon *daemon, const struct dp_node_record *node,
                      struct dp_node_view *ret_view)
{
    size_t count = dp_core_nodes_count(daemon->core);
    for (size_t i = 0; i < count; i++) {
        dp_core_node_at(daemon->core, i, ret_view);
        if (same_machine(node, ret_view->node) && ret_view->slots_used > 0) {
            return true;
        }
    }
    return false;
}

static void describe_busy(struct daemon *daemon, const char *node, char *ret_text, size_t size)
{
    size_t jobs = dp_core_node_jobs_max(daemon->core, node);
    DP_AUTO_FREE const char **ids = dp_new_array(const char *, jobs + 1);
    size_t count = dp_core_node_jobs(daemon->core, node, ids);
    snprintf(ret_text, size, "ranks of %s%s run on %s, and what they do would be measured as well",
             count == 0 ? "a job" : ids[0], count > 1 ? " and others" : "", node);
}

static void wait_or_refuse(struct daemon *daemon, struct calibration *calibration, const char *why)
{
    if (!calibration->wait) {
        end_node(daemon, calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_REFUSED, why);
    } else if (calibration->phase != PHASE_BUSY) {
        calibration->phase = PHASE_BUSY;
        tell(daemon, calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON, why);
    }
}

static void look_at(struct daemon *daemon, struct calibration *calibration)
{
    struct dp_node_view view, busy;
    char text[DP_TEXT_MAX];
    if (!find_view(daemon, node_of(calibration), &view)) {
        end_node(daemon, calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED, "no such node");
    } else if (view.session == 0) {
        end_node(daemon, calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED,
                 "its agent is not connected");
    } else if (is_ordered_elsewhere(daemon, calibration, view.node)) {
        wait_or_refuse(daemon, calibration, "it is being calibrated for somebody else");
    } else if (find_busy(daemon, view.node, &busy)) {
        describe_busy(daemon, busy.node->name, text, sizeof(text));
        wait_or_refuse(daemon, calibration, text);
    } else {
        begin(daemon, calibration, &view);
    }
}

static void await_answer(struct daemon *daemon, struct calibration *calibration)
{
    bool gone = !session_known(daemon, calibration->session);
    if (!gone && dp_clock_monotonic_ns() < calibration->until_ns) {
        return;
    }
    hold(daemon, node_of(calibration), false);
    end_node(daemon, calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED,
             gone ? "its agent went away while it measured" : "its agent does not answer");
}

// The row of its history is written by the core when the inventory comes; nobody is told before.
static void await_row(struct daemon *daemon, struct calibration *calibration)
{
    struct dp_profile_record *rows = NULL;
    size_t count = 0;
    struct dp_error err = {0};
    if (dp_store_load_profiles(daemon->store, node_of(calibration), DP_PROFILE_CALIBRATION, 1,
                               &rows, &count, &err) != DP_OK) {
        return;
    }
    bool stored =
        count == 1 && rows[0].document.length == calibration->after.length &&
        memcmp(rows[0].document.bytes, calibration->after.bytes, calibration->after.length) == 0;
    for (size_t i = 0; i < count; i++) {
        dp_profile_record_deinit(&rows[i]);
    }
    free(rows);
    if (stored) {
        hold(daemon, node_of(calibration), false);
        end_node(daemon, calibration, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED, "measured");
    } else {
        await_answer(daemon, calibration);
    }
}

static void pump_one(struct daemon *daemon, struct calibration *calibration)
{
    if (calibration->at == calibration->count) {
        call_finish(daemon, calibration->call);
        return;
    }
    switch (calibration->phase) {
    case PHASE_NEXT:
    case PHASE_BUSY:
        look_at(daemon, calibration);
        break;
    case PHASE_ORDERED:
        await_answer(daemon, calibration);
        break;
    case PHASE_STORING:
        await_row(daemon, calibration);
        break;
    }
}

void calibrations_pump(struct daemon *daemon)
{
    struct calibration *next;
    for (struct calibration *c = daemon->calibrations; c != NULL; c = next) {
        next = c->next;
        pump_one(daemon, c);
    }
}

void calibrations_level(struct daemon *daemon, uint64_t session,
                        const Dp__V1__CalibrateLevel *level)
{
    struct calibration *c = daemon->calibrations;
    while (c != NULL &&
           !(c->phase == PHASE_ORDERED && c->session == session && c->request == level->request)) {
        c = c->next;
    }
    if (c == NULL) {
        return; // nobody waits for it any more
    }
    if (level->outcome == DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED) {
        dp_buf_append(&c->after, level->profile_json.data, level->profile_json.len);
        c->phase = PHASE_STORING;
    } else if (level->outcome == DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON) {
        tell(daemon, c, level->outcome, level->message);
        return;
    } else {
        hold(daemon, node_of(c), false);
        end_node(daemon, c, level->outcome, level->message);
    }
    pump_one(daemon, c);
}

static int by_name(const void *a, const void *b)
{
    return strverscmp(a, b);
}

// All of them go by name, whoever came first.
static void take_nodes(struct daemon *daemon, const Dp__V1__CalibrateRequest *request,
                       struct calibration *calibration)
{
    size_t known = dp_core_nodes_count(daemon->core);
    size_t room = request->n_node > 0 ? request->n_node : known;
    calibration->nodes = dp_alloc(room, sizeof(*calibration->nodes));
    for (size_t i = 0; i < request->n_node; i++) {
        (void)dp_copy_text(calibration->nodes[calibration->count++], DP_NAME_MAX, request->node[i]);
    }
    for (size_t i = 0; request->n_node == 0 && i < known; i++) {
        struct dp_node_view view;
        dp_core_node_at(daemon->core, i, &view);
        if (view.session != 0) {
            (void)dp_copy_text(calibration->nodes[calibration->count++], DP_NAME_MAX,
                               view.node->name);
        }
    }
    if (request->n_node == 0 && calibration->count > 0) {
        qsort(calibration->nodes, calibration->count, sizeof calibration->nodes[0], by_name);
    }
}

static void calibration_free(struct calibration *calibration)
{
    dp_buf_deinit(&calibration->before);
    dp_buf_deinit(&calibration->after);
    free(calibration->nodes);
    free(calibration);
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const Dp__V1__CalibrateRequest *request =
        service_unpack(daemon, call, &dp__v1__calibrate_request__descriptor, bytes, length, &arena);
    if (request == NULL) {
        return;
    }
    for (size_t i = 0; i < request->n_node; i++) {
        struct dp_node_view view;
        if (!find_view(daemon, request->node[i], &view)) {
            char text[DP_TEXT_MAX];
            snprintf(text, sizeof(text), "no node \"%s\": `dpctl nodes` lists them",
                     request->node[i]);
            call_fail(daemon, call, DP_NOT_FOUND, text);
            return;
        }
    }
    struct calibration *calibration = dp_new(struct calibration);
    calibration->call = call;
    calibration->wait = request->wait;
    take_nodes(daemon, request, calibration);
    if (calibration->count == 0) {
        calibration_free(calibration);
        call_fail(daemon, call, DP_NOT_FOUND, "no node is connected");
        return;
    }
    struct dp_audit_record audit;
    audit_fill(daemon, call, DP_METHOD_CALIBRATE, request->user,
               request->n_node == 1 ? request->node[0] : "nodes", &audit);
    audit_keep(daemon, &audit, &(struct dp_error){.status = DP_OK});
    calibration->next = daemon->calibrations;
    daemon->calibrations = calibration;
    pump_one(daemon, calibration);
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct daemon *daemon = context;
    struct calibration **link = &daemon->calibrations;
    while (*link != NULL && (*link)->call != call) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return;
    }
    struct calibration *calibration = *link;
    *link = calibration->next;
    bool held = calibration->at < calibration->count &&
                (calibration->phase == PHASE_ORDERED || calibration->phase == PHASE_STORING);
    if (held && !daemon->stopping) {
        if (session_known(daemon, calibration->session)) {
            send_order(daemon, calibration, true);
        }
        hold(daemon, node_of(calibration), false);
    }
    calibration_free(calibration);
}

const struct dp_rpc_handler calibrate_handler = {
    .method = DP_METHOD_CALIBRATE,
    .on_message = on_message,
    .on_closed = on_closed,
};

static void add_row(const struct dp_profile_record *row, struct dp_arena *arena,
                    Dp__V1__ListProfilesResponse *response)
{
    Dp__V1__StoredProfile *to = arena_take(arena, sizeof(*to));
    dp__v1__stored_profile__init(to);
    to->node = (char *)row->node;
    to->time_ns = row->time_ns;
    to->source = (char *)row->source;
    to->job = (char *)row->job;
    to->document_json.data = (uint8_t *)row->document.bytes;
    to->document_json.len = row->document.length;
    response->profiles[response->n_profiles++] = to;
}

void calibrations_list(struct daemon *daemon, uint64_t call,
                       const Dp__V1__ListProfilesRequest *request, struct dp_arena *arena)
{
    struct dp_node_view view;
    struct dp_error err = {0};
    struct dp_profile_record *rows = NULL;
    size_t count = 0;
    if (!find_view(daemon, request->node, &view)) {
        char text[DP_TEXT_MAX];
        snprintf(text, sizeof(text), "no node \"%s\": `dpctl nodes` lists them", request->node);
        call_fail(daemon, call, DP_NOT_FOUND, text);
        return;
    }
    uint32_t limit = request->limit == 0 ? LIST_DEFAULT : request->limit;
    limit = limit < DP_PROFILES_KEPT ? limit : DP_PROFILES_KEPT;
    if (dp_store_load_profiles(daemon->store, request->node, "", limit, &rows, &count, &err) !=
        DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    Dp__V1__ListProfilesResponse response = DP__V1__LIST_PROFILES_RESPONSE__INIT;
    response.profiles = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        add_row(&rows[i], arena, &response);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct dp_profile profile;
    if (lessons_profile(daemon, view.node, &profile)) {
        DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
        dp_json_write(json, 0, &text);
        response.profile_json.data = (uint8_t *)text.bytes;
        response.profile_json.len = text.length;
    }
    call_reply(daemon, call, &response.base);
    for (size_t i = 0; i < count; i++) {
        dp_profile_record_deinit(&rows[i]);
    }
    free(rows);
}
