// An active probe, and what the rank says of it.
#include "dp/trainer_probe.h"
#include "job.h"

dp_status job_probe(struct job *job, uint64_t request, int64_t step, struct dp_error *err)
{
    struct dp_probe probe;
    dp_status status = dp_trainer_probe(job->trainer, step, &probe, err);
    if (status != DP_OK) {
        return status;
    }
    Dp__V1__ProbeLink links[DP_PROBE_LINKS_MAX];
    Dp__V1__ProbeLink *list[DP_PROBE_LINKS_MAX];
    for (int32_t i = 0; i < probe.links_count; i++) {
        dp__v1__probe_link__init(&links[i]);
        links[i].peer = (uint32_t)probe.links[i].peer;
        links[i].latency_ns = probe.links[i].latency_ns;
        links[i].bytes_per_s = probe.links[i].bytes_per_s;
        list[i] = &links[i];
    }
    Dp__V1__ProbeDone done = DP__V1__PROBE_DONE__INIT;
    done.request = request;
    done.step = (uint64_t)step;
    done.gemm_ns = probe.product_ns;
    done.gemm_off_core_ns = probe.product_off_core_ns;
    done.gemm_flops = probe.product_flops;
    done.links = list;
    done.n_links = (size_t)probe.links_count;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_PROBE;
    report.probe = &done;
    control_report(job->control, DP_LINK_SLOT_NONE, &report);
    return DP_OK;
}
