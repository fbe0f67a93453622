// Implements the calls of the C header. They check arguments and turn exceptions into statuses.
// Other files do the work.
#include <memory>
#include <string>

#include "decode/crop.h"
#include "decode/pool.h"
#include "decode/reader.h"
#include "decode/status.h"
#include "include/cgotorch_decode.h"

struct ctd_pool {
  decode::Pool pool;
};

namespace decode {
namespace {

template <class T>
T& deref(T* pointer, const char* name) {
  if (!pointer) throw Error(CTD_INVALID_ARGUMENT, std::string(name) + " is NULL");
  return *pointer;
}

Bytes bytes(const uint8_t* data, size_t size) {
  if (size > 0) deref(data, "data");
  return {data, size};
}

}  // namespace
}  // namespace decode

using decode::bytes;
using decode::deref;
using decode::guarded;

int32_t ctd_abi_version() noexcept { return CTD_ABI_VERSION; }

ctd_status* ctd_probe(const uint8_t* data, size_t size, ctd_info* out) noexcept {
  return guarded([&] {
    deref(out, "out");
    *out = decode::open(bytes(data, size))->info();
  });
}

ctd_status* ctd_check(const uint8_t* data, size_t size, int64_t max_pixels) noexcept {
  return guarded([&] {
    ctd_options limits{};
    limits.transform = CTD_RESIZE;
    limits.height = limits.width = 1;
    limits.max_pixels = max_pixels;
    limits = decode::checked(limits);
    const auto reader = decode::open(bytes(data, size));
    const ctd_info& info = reader->info();
    decode::check_size(info.width, info.height, limits.max_pixels);
    const auto scratch = std::make_unique<decode::Scratch>();
    reader->read({0, 0, info.height, info.width}, 1, *scratch);
  });
}

int32_t ctd_orientation(const uint8_t* data, size_t size) noexcept { return data ? decode::orientation_of({data, size}) : 1; }

ctd_status* ctd_pool_new(const ctd_options* options, ctd_pool** out) noexcept {
  return guarded([&] {
    deref(out, "out");
    *out = new ctd_pool{decode::Pool(decode::checked(deref(options, "options")))};
  });
}

ctd_status* ctd_pool_decode(ctd_pool* pool, const ctd_image* images, size_t count, uint8_t* dst, size_t dst_size,
                            ctd_result* results) noexcept {
  return guarded([&] {
    decode::Pool& p = deref(pool, "pool").pool;
    if (dst_size % p.bytes_per_image() != 0 || dst_size / p.bytes_per_image() != count) {
      throw decode::Error(CTD_INVALID_ARGUMENT, "dst has " + std::to_string(dst_size) + " bytes; " +
                                                    std::to_string(count) + " images of " +
                                                    std::to_string(p.bytes_per_image()) + " bytes do not fit exactly");
    }
    if (count == 0) return;
    deref(images, "images");
    deref(dst, "dst");
    deref(results, "results");
    p.decode(images, count, dst, results);
  });
}

int64_t ctd_pool_max_memory(const ctd_pool* pool) noexcept { return pool ? static_cast<int64_t>(pool->pool.max_memory()) : 0; }

int32_t ctd_pool_workers(const ctd_pool* pool) noexcept { return pool ? pool->pool.workers() : 0; }

int32_t ctd_pool_at_a_time(const ctd_pool* pool) noexcept { return pool ? pool->pool.at_a_time() : 0; }

int64_t ctd_pool_busy(const ctd_pool* pool) noexcept { return pool ? pool->pool.busy() : 0; }

void ctd_pool_free(ctd_pool* pool) noexcept { delete pool; }
