// What software on a device does with memory besides holding what the model needs.
//
// All zero is today's common stack with nothing else on the device: flash attention, SwiGLU in one
// kernel, routing weights applied before an expert's second product, loss on fp32 logits.
#pragma once

#include <stdbool.h>

struct dp_memory_traits {
    // Outside of any tensor: the device's context, libraries and their workspaces.
    double runtime_bytes;
    // What the allocator has reserved beyond what is allocated, as a share of what is allocated.
    double fragmentation_share;
    // Buffers that communication libraries hold for each group of ranks that a rank talks in.
    double group_bytes;
    // Buffers of the expert exchange: copies of a micro-batch's rows that it stages.
    double exchange_rows;
    // Bytes of one optimizer moment, of the fp32 copy of a weight and of a gradient; 0 = 4 each.
    double moment_bytes, master_bytes, gradient_bytes;
    bool scores_kept;       // attention without flash: softmax(QK') and its inputs are kept
    bool dropout;           // masks of one byte: of attention's scores, output and the FFN's output
    bool weights_after_fc2; // routing weights multiply an expert's output, which is then kept
    // 8-bit formats, arXiv 2412.19437 3.3.3: what SwiGLU takes is kept in the products' format, and
    // attention's output once, in 12 bits.
    bool operands_stored;
    bool weights_as_operands; // 8-bit formats: no bf16 weight beside the products' copies
    bool loss_fused;          // cross-entropy works on bf16 logits in place
    bool scratch_gradients;   // one bf16 weight gradient of each shape stays (Transformer Engine)
};
