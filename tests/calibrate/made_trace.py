"""Traces as profilers write them, made of a table of phases.

The table has a row for each occurrence of a phase: when its kernels ran and how long each stream
was busy meanwhile. Kernels are laid out so that a reader who adds them up finds the table again.
"""

import json

COMPUTE, BESIDE, COMMUNICATION = 7, 27, 24

# Share of a phase's compute by kernel. The names are those of libraries.
KERNELS = {
    "attn(F)": [
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::"
         "CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>>, cutlass::bfloat16_t>>>>(T::Params)",
         0.28),
        ("void deep_gemm::fp8_gemm_kernel<24576u, 1536u, 128u, 128u, 128u, 1u, 8u, 1u, "
         "(deep_gemm::GemmType)0>(__nv_bfloat16*, float*, int*, unsigned int)", 0.42),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<"
         "c10::BFloat16>, std::array<char*, 3ul>>(int, std::array<char*, 3ul>)", 0.30)],
    "mlp(F)": [
        ("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 128u, 128u, 4u, 8u, 1u, "
         "(deep_gemm::GemmType)1>(__nv_bfloat16*, float*, int*, unsigned int) [grouped]", 0.65),
        ("void swiglu_forward_quant_kernel<c10::BFloat16, 128>(float*, int)", 0.35)],
    "mlp(B)": [
        ("void deep_gemm::fp8_gemm_kernel<2048u, 7168u, 128u, 128u, 128u, 4u, 8u, 1u, "
         "(deep_gemm::GemmType)1>(__nv_bfloat16*, float*, int*, unsigned int) [grouped]", 0.66),
        ("void swiglu_backward_quant_kernel<c10::BFloat16, 128>(float*, int)", 0.34)],
    "mlp(W)": [
        ("void deep_gemm::fp8_wgrad_gemm_kernel<4096u, 7168u, 128u>(float*, float*, int) [grouped]",
         1.0)],
    "attn(B)": [
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<flash::"
         "CollectiveMainloopBwdSm90<2, 2, 2>>>>(T::Params)", 0.40),
        ("void deep_gemm::fp8_gemm_kernel<7168u, 16384u, 128u, 128u, 128u, 1u, 8u, 1u, "
         "(deep_gemm::GemmType)0>(__nv_bfloat16*, float*, int*, unsigned int)", 0.32),
        ("void rms_norm_backward_kernel<c10::BFloat16>(float const*, int)", 0.28)],
    "attn(W)": [
        ("void deep_gemm::fp8_wgrad_gemm_kernel<1536u, 7168u, 128u>(float*, float*, int)", 1.0)],
}
# dispatch(B) and combine(B) are named after what they are the backward of.
DATA = {
    "dispatch(F)": "void deep_ep::internode::dispatch<false, 8, false, 7168>(int4*, float*, int)",
    "combine(B)": "void deep_ep::internode::dispatch<true, 8, false, 7168>(int4*, float*, int)",
    "combine(F)": "void deep_ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*, int)",
    "dispatch(B)": "void deep_ep::internode::combine<false, 8, __nv_bfloat16>(int4*, int)",
}
NOTIFY = "void deep_ep::internode::notify_dispatch<false, 8>(int const*, int*, int)"


def laid_out(start, end, busy, pieces):
    """Pieces (name, share, blocks) of `busy` between start and end, with even gaps between them."""
    gaps = max(len(pieces) - 1, 1)
    idle = (end - start - busy) / gaps
    at, out = start, []
    for name, share, blocks in pieces:
        length = busy * share
        out.append((name, blocks, at, at + length))
        at += length + idle
    return out


def kernels_of(row):
    """[(name, blocks, stream, start us, end us)] of one occurrence."""
    phase = row["phase"]
    start, end = row["start"], row["end"]
    if phase in DATA:
        wait = row["comm"] - row["data"]
        pieces = [(NOTIFY, wait / row["comm"], 20), (DATA[phase], row["data"] / row["comm"], 20)]
        return [(name, blocks, COMMUNICATION, a, b)
                for name, blocks, a, b in laid_out(start, end, row["comm"], pieces)]
    if row["beside"] > 0:
        # Main stream from the start, the other up to the end: together they cover the phase.
        name = KERNELS[phase][0][0]
        return [(name, 112, COMPUTE, start, start + row["compute"]),
                (name, 112, BESIDE, end - row["beside"], end)]
    pieces = [(name, share, 112) for name, share in KERNELS[phase]]
    return [(name, blocks, COMPUTE, a, b)
            for name, blocks, a, b in laid_out(start, end, row["compute"], pieces)]


def timeline(rows):
    """Ranges of the host and kernels with their launches, in the order in which both were made."""
    ranges, kernels = [], []
    host = 0.0
    for number, row in enumerate(rows):
        begin = host
        for name, blocks, stream, a, b in kernels_of(row):
            host += 5
            kernels.append({"name": name, "blocks": blocks, "stream": stream, "start": a,
                            "end": b, "launch": host, "correlation": 1000 + len(kernels)})
            host += 3
        ranges.append({"name": row["phase"], "start": begin, "end": host + 1, "number": number})
        host += 4
    return ranges, kernels


EPOCH_US = 1740554137000000.0


def kineto(rows, annotate=True, device_ranges=False):
    ranges, kernels = timeline(rows)
    events = [{"ph": "M", "name": "process_name", "ts": EPOCH_US, "pid": 4711, "tid": 0,
               "args": {"name": "python"}},
              {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "",
               "ts": EPOCH_US}]

    def add(**event):
        event["ts"] = round(EPOCH_US + event["ts"], 3)
        event["dur"] = round(event["dur"], 3)
        events.append({"ph": "X", **event})

    for entry in ranges:
        if annotate and not device_ranges:
            add(cat="user_annotation", name=entry["name"], pid=4711, tid=4711, ts=entry["start"],
                dur=entry["end"] - entry["start"], args={"External id": entry["number"]})
            # Programs name things within their phases, too.
            add(cat="user_annotation", name="quantise", pid=4711, tid=4711,
                ts=entry["start"] + 0.5, dur=entry["end"] - entry["start"] - 1, args={})
        add(cat="cpu_op", name="aten::mm", pid=4711, tid=4711, ts=entry["start"], dur=2,
            args={"Input Dims": [[4096, 7168], [7168, 2112]], "Sequence number": 7})
    for kernel in kernels:
        add(cat="cuda_runtime", name="cudaLaunchKernelExC", pid=4711, tid=4711,
            ts=kernel["launch"], dur=2.5,
            args={"External id": 9, "cbid": 430, "correlation": kernel["correlation"]})
        add(cat="kernel", name=kernel["name"], pid=0, tid=kernel["stream"], ts=kernel["start"],
            dur=kernel["end"] - kernel["start"],
            args={"External id": 9, "queued": 0, "device": 0, "context": 1,
                  "stream": kernel["stream"], "correlation": kernel["correlation"],
                  "registers per thread": 168, "shared memory": 199680,
                  "blocks per SM": 0.85, "grid": [kernel["blocks"], 1, 1],
                  "block": [384, 1, 1], "est. achieved occupancy %": 0})
        events.append({"ph": "s", "id": kernel["correlation"], "pid": 4711, "tid": 4711,
                       "ts": EPOCH_US + kernel["launch"], "cat": "ac2g", "name": "ac2g"})
    if device_ranges:
        for entry, row in zip(ranges, rows):
            for stream in {k[2] for k in kernels_of(row)}:
                mine = [k for k in kernels_of(row) if k[2] == stream]
                add(cat="gpu_user_annotation", name=entry["name"], pid=0, tid=stream,
                    ts=mine[0][3], dur=mine[-1][4] - mine[0][3], args={"External id": 9})
    return json.dumps({"schemaVersion": 1, "deviceProperties": [
        {"id": 0, "name": "NVIDIA H800", "numSms": 132}], "distributedInfo": {
            "backend": "nccl", "rank": 0, "world_size": 64},
        "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": events,
        "traceName": "train.json"}, indent=1)


def nsight_json(rows):
    """`nsys export --type json`: a line of strings, then a line for each event."""
    ranges, kernels = timeline(rows)
    strings, ids = ["[Unknown]"], {}

    def id_of(text):
        if text not in ids:
            ids[text] = len(strings)
            strings.append(text)
        return str(ids[text])

    lines = []
    for entry in ranges:
        lines.append({"Type": 59, "NvtxEvent": {
            "Type": 59, "Timestamp": str(round(1e3 * entry["start"])),
            "TextId": id_of(entry["name"]), "GlobalTid": "281474976710656",
            "EndTimestamp": str(round(1e3 * entry["end"])), "DomainId": "0", "NsTime": True}})
    for kernel in kernels:
        at = round(1e3 * kernel["launch"])
        lines.append({"Type": 48, "TraceProcessEvent": {
            "startNs": str(at), "endNs": str(at + 2500), "correlationId": kernel["correlation"],
            "globalTid": "281474976710656", "eventClass": 0, "name": id_of("cudaLaunchKernelExC")}})
        lines.append({"Type": 79, "CudaEvent": {
            "startNs": str(round(1e3 * kernel["start"])), "endNs": str(round(1e3 * kernel["end"])),
            "correlationId": kernel["correlation"], "globalPid": "281474976710656",
            "eventClass": 3, "contextId": "1", "streamId": str(kernel["stream"]), "deviceId": "0",
            "kernel": {"demangledName": id_of(kernel["name"]), "shortName": id_of("kernel"),
                       "mangledName": id_of("_Z"), "blockX": 384, "blockY": 1, "blockZ": 1,
                       "gridX": kernel["blocks"], "gridY": 1, "gridZ": 1,
                       "dynamicSharedMemory": 199680, "registersPerThread": 168}}})
    return "\n".join(json.dumps(line) for line in [{"data": strings}] + lines) + "\n"


def nsight_tables(rows):
    """`nsys export --type jsonlines`: a table's row in each line; strings may come last."""
    ranges, kernels = timeline(rows)
    ids = {}

    def id_of(text):
        return ids.setdefault(text, len(ids) + 1)

    lines = []
    for entry in ranges:
        lines.append({"table": "NVTX_EVENTS", "start": round(1e3 * entry["start"]),
                      "end": round(1e3 * entry["end"]), "eventType": 59,
                      "text": entry["name"], "globalTid": 281474976710656, "domainId": 0})
    for kernel in kernels:
        at = round(1e3 * kernel["launch"])
        lines.append({"table": "CUPTI_ACTIVITY_KIND_RUNTIME", "start": at, "end": at + 2500,
                      "eventClass": 0, "globalTid": 281474976710656,
                      "correlationId": kernel["correlation"], "nameId": id_of("cudaLaunchKernel")})
        lines.append({"table": "CUPTI_ACTIVITY_KIND_KERNEL", "start": round(1e3 * kernel["start"]),
                      "end": round(1e3 * kernel["end"]), "deviceId": 0, "contextId": 1,
                      "streamId": kernel["stream"], "correlationId": kernel["correlation"],
                      "globalPid": 281474976710656, "demangledName": id_of(kernel["name"]),
                      "shortName": id_of("kernel"), "gridX": kernel["blocks"], "gridY": 1,
                      "gridZ": 1, "blockX": 384})
    lines += [{"table": "StringIds", "id": number, "value": text} for text, number in ids.items()]
    return "\n".join(json.dumps(line) for line in lines) + "\n"
