// Implements the calls of cgotorch_inflate.h.
#include <algorithm>
#include <cstring>

#include "decode/status.h"
#include "include/cgotorch_inflate.h"
#include "inflate/decoder.h"
#include "inflate/find.h"

struct ctd_inflater {
  inflater::Decoder decoder;
};

namespace {

void check(const void* pointer, const char* name) {
  if (!pointer) throw decode::Error(CTD_INVALID_ARGUMENT, std::string(name) + " is NULL");
}

void check(bool right, const char* what) {
  if (!right) throw decode::Error(CTD_INVALID_ARGUMENT, what);
}

// known returns the byte for which a wide element stands.
uint8_t known(uint16_t element, const uint8_t* window) {
  return element < CTD_INFLATE_UNKNOWN ? static_cast<uint8_t>(element) : window[element - CTD_INFLATE_UNKNOWN];
}

}  // namespace

ctd_status* ctd_inflater_new(ctd_inflater** out) noexcept {
  return decode::guarded([&] {
    check(out, "out");
    *out = new ctd_inflater;
  });
}

void ctd_inflater_free(ctd_inflater* inflater) noexcept { delete inflater; }

ctd_status* ctd_inflater_run(ctd_inflater* inflater, const uint8_t* in, size_t in_size, void* out, size_t out_size,
                             ctd_inflate* io) noexcept {
  return decode::guarded([&] {
    check(inflater, "inflater");
    check(io, "io");
    check(out, "out");
    if (in_size > 0) check(in, "in");
    check(io->bit <= uint64_t{in_size} * 8, "bit is behind the end of in");
    check(io->at <= out_size, "at is behind the end of out");
    check(io->history <= io->at, "history begins before out");
    check(io->unknown <= io->at, "unknown is behind at");
    const inflater::Input input{{in, in_size}, io->last != 0};
    if (io->wide) {
      inflater->decoder.run(input, static_cast<uint16_t*>(out), out_size, *io);
    } else {
      inflater->decoder.run(input, static_cast<uint8_t*>(out), out_size, *io);
    }
  });
}

int32_t ctd_inflate_find(const uint8_t* in, size_t in_size, uint64_t from, uint64_t to, uint64_t* bit) noexcept {
  if (!in || !bit) return 0;
  const inflater::Found found = inflater::find({in, in_size}, from, to);
  if (found.kind) *bit = found.bit;
  return found.kind;
}

void ctd_inflate_resolve(const uint16_t* wide, size_t count, const uint8_t* window, uint8_t* out) noexcept {
  constexpr size_t kStep = 64;  // a constant, so that the compiler makes vectors of the loops of a step
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    uint16_t all = 0;
    for (size_t j = 0; j < kStep; ++j) all |= wide[i + j];
    if (all < CTD_INFLATE_UNKNOWN) {  // as in most steps
      for (size_t j = 0; j < kStep; ++j) out[i + j] = static_cast<uint8_t>(wide[i + j]);
    } else {
      for (size_t j = 0; j < kStep; ++j) out[i + j] = known(wide[i + j], window);
    }
  }
  for (; i < count; ++i) out[i] = known(wide[i], window);
}
