#include "dp/clock.h"
#include "exec_internal.h"

// The stage in the tag is the receiver's.
static uint64_t tag_of(const struct dp_exec *exec, const struct part *part, bool forward,
                       int32_t stage)
{
    return dp_transport_tag(forward ? MESSAGE_FORWARD : MESSAGE_BACKWARD, (uint32_t)stage,
                            part->microbatch, 0, (uint32_t)(exec->step & 0xff));
}

dp_status dp_exec_message_send(struct dp_exec *exec, const struct part *part, bool forward,
                               int64_t sent_ns, const void *bytes, size_t length,
                               struct dp_error *err)
{
    int32_t peer = part->cell->peer[forward ? DP_SEND_F : DP_SEND_B];
    if (peer == NO_PEER) {
        return DP_OK;
    }
    struct iovec parts[2] = {{&sent_ns, sizeof(sent_ns)}, {(void *)bytes, length}};
    return dp_transport_sendv(exec->config.transport, exec_rank_of(exec, peer),
                              tag_of(exec, part, forward, part->stage + (forward ? 1 : -1)), parts,
                              length > 0 ? 2 : 1, err);
}

bool dp_exec_message_is_here(struct dp_exec *exec, const struct part *part, bool forward)
{
    int32_t peer = part->cell->peer[forward ? DP_RECV_F : DP_RECV_B];
    return peer == NO_PEER || dp_transport_probe(exec->config.transport, exec_rank_of(exec, peer),
                                                 tag_of(exec, part, forward, part->stage), NULL);
}

// Fits: dp_sim_costs_check admits latency and wire up to DP_COST_SECONDS_MAX, 1e18 ns, each.
static int64_t hop_ns(const struct dp_exec *exec, int32_t peer, bool forward)
{
    const struct dp_sim_costs *costs = exec->config.costs;
    const struct dp_sim_hop *hop = dp_sim_hop_at(costs, peer, exec->config.position);
    double bytes = forward ? costs->message_bytes_f : costs->message_bytes_b;
    double seconds =
        peer == exec->config.position ? 0 : hop->latency + dp_sim_wire_seconds(hop, bytes);
    seconds *= dp_sim_pace_link(exec->config.pace, exec->step, exec_rank_of(exec, peer));
    return (int64_t)(seconds * (double)DP_NS_PER_S);
}

// By plan on a sim rank, whose messages are empty.
static void note_message(struct dp_exec *exec, int32_t peer, bool forward, size_t length,
                         int64_t total_ns, int64_t waiting_ns)
{
    struct dp_exec_link_time message = {
        .bytes = (int64_t)length, .transfer_ns = total_ns, .waiting_ns = waiting_ns};
    if (exec->config.device == NULL) {
        const struct dp_sim_costs *costs = exec->config.costs;
        message.bytes = (int64_t)(forward ? costs->message_bytes_f : costs->message_bytes_b);
        message.transfer_ns = hop_ns(exec, peer, forward);
    }
    dp_exec_times_message(exec->times, exec_rank_of(exec, peer), &message);
}

dp_status dp_exec_message_receive(struct dp_exec *exec, const struct part *part, bool forward,
                                  void *bytes, size_t length, struct wait *ret_wait,
                                  struct dp_error *err)
{
    int32_t peer = part->cell->peer[forward ? DP_RECV_F : DP_RECV_B];
    if (peer == NO_PEER) {
        return DP_OK;
    }
    int64_t sent_ns = 0, arrived_ns = 0;
    struct iovec parts[2] = {{&sent_ns, sizeof(sent_ns)}, {bytes, length}};
    int64_t start_ns = dp_exec_now_ns(exec);
    dp_status status = dp_transport_recvv_timed(exec->config.transport, exec_rank_of(exec, peer),
                                                tag_of(exec, part, forward, part->stage), parts,
                                                length > 0 ? 2 : 1, 0, &arrived_ns, err);
    if (status != DP_OK) {
        return status;
    }
    int64_t end_ns = dp_exec_now_ns(exec);
    int64_t left_ns = sent_ns < start_ns ? start_ns : sent_ns;
    left_ns = left_ns > end_ns ? end_ns : left_ns;
    ret_wait->idle_ns += left_ns - start_ns;
    ret_wait->comm_ns += end_ns - left_ns;
    if (peer != exec->config.position) {
        // The clocks of two nodes need not agree.
        int64_t exposed_ns = end_ns - left_ns;
        int64_t total_ns = arrived_ns + exec->wall_offset_ns - sent_ns;
        struct dp_exec_comm *comm =
            &exec->result.comm[forward ? DP_EXEC_COMM_HOP_F : DP_EXEC_COMM_HOP_B];
        comm->count++;
        comm->exposed_ns += exposed_ns;
        comm->total_ns += total_ns > exposed_ns ? total_ns : exposed_ns;
        note_message(exec, peer, forward, length, total_ns, left_ns - start_ns);
    }
    if (exec->config.device == NULL) {
        int64_t arrival_ns = sent_ns + hop_ns(exec, peer, forward);
        ret_wait->arrival_ns =
            arrival_ns > ret_wait->arrival_ns ? arrival_ns : ret_wait->arrival_ns;
    }
    return DP_OK;
}
