// What a header holds beside the tensors.
#pragma once

#define PREAMBLE_BYTES 8 // the header's length
#define HASHES_KEY "dp.xxh64"
#define HASH_DIGITS 16
