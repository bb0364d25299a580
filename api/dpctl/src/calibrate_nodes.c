// dpctl calibrate NODE... and --show: through the controller.

#include <string.h>

#include "calibrate.h"
#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/correction.h"
#include "dp/method.h"
#include "dp/profile.h"

#define POLL_MS 200

DP_DEFINE_CLEANUP(close_calibration, struct dp_client_calibration, dp_client_calibrate_close)

// What became of all nodes.
struct results {
    struct dpctl *ctl;
    const struct calibrate_request *request;
    json_t *list; // -o json
    unsigned measured, refused, failed;
    dp_status status; // of writing --out
};

static dp_status read_profile(const ProtobufCBinaryData *bytes, struct dp_profile *ret_profile,
                              json_t **ret_json, struct dp_error *err)
{
    json_t *json = NULL;
    dp_status status = dp_json_parse(bytes->len == 0 ? "" : (const char *)bytes->data, bytes->len,
                                     DP_PROFILE_BYTES_MAX, "profile", &json, err);
    if (status == DP_OK) {
        status = dp_profile_from_json(json, ret_profile, err);
    }
    if (status == DP_OK && ret_json != NULL) {
        *ret_json = json_incref(json);
    }
    json_decref(json);
    return status;
}

static void take_measured(struct results *results, const Dp__V1__CalibrateEvent *event,
                          struct dp_error *err)
{
    struct dp_profile before, after;
    json_t *json = NULL;
    if (read_profile(&event->profile_json, &after, &json, err) != DP_OK) {
        results->failed++;
        return;
    }
    bool had = read_profile(&event->before_json, &before, NULL, NULL) == DP_OK;
    results->measured++;
    if (results->request->out != NULL && results->status == DP_OK) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_json_write(json, 2, &text);
        results->status = dp_write_file(results->request->out, text.bytes, text.length, err);
    }
    if (results->ctl->json) {
        json_array_append_new(
            results->list,
            json_pack("{s:s, s:s, s:o, s:O}", "node", event->node, "outcome", "measured", "changes",
                      calibrate_changes_json(had ? &before : NULL, &after), "profile", json));
    } else {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_buf_printf(&text, "%s: %s\n", event->node, after.provenance);
        calibrate_render_changes(had ? &before : NULL, &after, &text);
        dpctl_print(&text);
        fflush(stdout);
    }
    json_decref(json);
}

static void take_event(struct results *results, const Dp__V1__CalibrateEvent *event,
                       struct dp_error *err)
{
    if (event->outcome == DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED) {
        take_measured(results, event, err);
        return;
    }
    fprintf(stderr, "%s: %s\n", event->node, event->message);
    if (event->outcome == DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON) {
        return;
    }
    bool refused = event->outcome == DP__V1__CALIBRATE_OUTCOME__CALIBRATE_REFUSED;
    (*(refused ? &results->refused : &results->failed))++;
    if (results->ctl->json) {
        json_array_append_new(results->list,
                              json_pack("{s:s, s:s, s:s}", "node", event->node, "outcome",
                                        refused ? "refused" : "failed", "message", event->message));
    }
}

static dp_status follow(struct results *results, struct dp_client_calibration *calibration,
                        struct dp_error *err)
{
    bool end = false;
    while (!end) {
        if (interrupted()) {
            return dp_fail(err, DP_INTERRUPTED,
                           "cancelled: what was being measured is dropped, and the node keeps the "
                           "figures it had");
        }
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__CalibrateEvent *event = NULL;
        dp_status status =
            dp_client_calibrate_next(calibration, POLL_MS, &arena, &event, &end, err);
        if (status != DP_OK) {
            return status;
        }
        if (event != NULL) {
            take_event(results, event, err);
        }
    }
    return DP_OK;
}

static dp_status outcome(const struct results *results, struct dp_error *err)
{
    if (results->status != DP_OK) {
        return results->status;
    }
    char count[64];
    if (results->failed > 0) {
        return dp_fail(err, DP_UNAVAILABLE, "%s could not be measured: see above",
                       dpctl_count(count, results->failed, "node"));
    }
    if (results->refused > 0) {
        return dp_fail(err, DP_CONFLICT,
                       "%s not measured: see above; --wait waits for nodes on which ranks run",
                       dpctl_count(count, results->refused, "node"));
    }
    return DP_OK;
}

dp_status calibrate_nodes(struct dpctl *ctl, const struct calibrate_request *request,
                          struct dp_error *err)
{
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    (void)interrupted();
    Dp__V1__CalibrateRequest message = DP__V1__CALIBRATE_REQUEST__INIT;
    message.node = (char **)request->nodes;
    message.n_node = (size_t)request->nodes_count;
    message.wait = request->wait;
    DP_CLEANUP(close_calibration) struct dp_client_calibration *calibration = NULL;
    status = dp_client_calibrate(client, &message, &calibration, err);
    struct results results = {.ctl = ctl, .request = request, .list = json_array()};
    if (status == DP_OK) {
        status = follow(&results, calibration, err);
    }
    if (status == DP_OK && ctl->json) {
        dpctl_print_json(ctl, json_pack("{s:O}", "nodes", results.list), "dp.calibration/1");
    }
    json_decref(results.list);
    return status == DP_OK ? outcome(&results, err) : status;
}

static void add_history(struct dpctl_table *table, const Dp__V1__StoredProfile *row)
{
    char time[32];
    dpctl_cell(table, "%s", dp_clock_format_utc(time, row->time_ns));
    dpctl_cell(table, "%s", row->source);
    dpctl_cell(table, "%s", row->job);
    DP_AUTO_JSON json_t *json = NULL;
    struct dp_profile profile;
    struct dp_correction correction;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_json_parse((const char *)row->document_json.data, row->document_json.len,
                      DP_PROFILE_BYTES_MAX, "document", &json, NULL) != DP_OK) {
        dp_buf_puts(&text, "unreadable");
    } else if (strcmp(row->source, "run") == 0) {
        if (dp_correction_from_json(json, &correction, NULL) == DP_OK) {
            dp_correction_render(&correction, &text);
        }
    } else if (dp_profile_from_json(json, &profile, NULL) == DP_OK) {
        dp_buf_printf(&text, "products %.4g GFLOP/s, hop %.3g us and %.3g GB/s",
                      1e-9 * profile.gemm_flops_per_s, 1e6 * profile.local.latency_s,
                      1e-9 * profile.local.bytes_per_s);
    }
    dpctl_cell(table, "%s", text.length > 0 ? text.bytes : "nothing to correct");
}

static void print_history(const Dp__V1__ListProfilesResponse *response)
{
    static const char *const heads[] = {"TIME", "SOURCE", "JOB", "FIGURES"};
    struct dp_profile profile;
    if (read_profile(&response->profile_json, &profile, NULL, NULL) == DP_OK) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_buf_printf(&text, "the next plan uses: %s\n", profile.provenance);
        calibrate_render_changes(NULL, &profile, &text);
        dp_buf_puts(&text, "\n");
        dpctl_print(&text);
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 4};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < response->n_profiles; i++) {
        add_history(&table, response->profiles[i]);
    }
    dpctl_table_print(&table);
}

dp_status calibrate_show(struct dpctl *ctl, const struct calibrate_request *request,
                         struct dp_error *err)
{
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListProfilesResponse *response = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = dp_client_list_profiles(client, request->show, 0, &arena, &response, err);
    }
    if (status == DP_OK && request->out != NULL) {
        status = dp_write_file(request->out, response->profile_json.data,
                               response->profile_json.len, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&response->base), "dp.profiles_of_node/1");
    } else {
        print_history(response);
    }
    return DP_OK;
}
