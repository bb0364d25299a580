// Headers of safetensors files: one byte says how many bytes of values follow the header in the
// file; the rest is the header's text. What is accepted covers the file, tensor by tensor.
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/safetensors.h"
#include "fuzz.h"

#define LENGTH_BYTES 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    uint64_t values = data[0];
    uint64_t bytes = LENGTH_BYTES + (size - 1) + values;
    DP_CLEANUP(dp_safetensors_close) struct dp_safetensors file = {.fd = -1};
    if (dp_safetensors_parse("fuzz", bytes, (const char *)data + 1, size - 1, &file, NULL) !=
        DP_OK) {
        return 0;
    }
    uint64_t at = bytes - values;
    for (int64_t i = 0; i < file.count; i++) {
        const struct dp_saved_tensor *tensor = &file.tensors[i];
        DP_CHECK(tensor->begin == at && tensor->bytes <= bytes - at);
        DP_CHECK((uint64_t)dp_saved_tensor_count(tensor) * dp_dtype_bytes(tensor->dtype) ==
                 tensor->bytes);
        at += tensor->bytes;
    }
    DP_CHECK(at == bytes);
    return 0;
}
