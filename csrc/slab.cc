#include "slab.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "capture.h"
#include "checker.h"
#include "device.h"
#include "live.h"

namespace {

size_t rounded(int64_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (static_cast<size_t>(bytes) + page - 1) / page * page;
}

std::string lock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
}

}  // namespace

ct_slab::ct_slab(int64_t bytes) : bytes(bytes) {
  if (bytes <= 0) throw ct::Failure(CT_INVALID_ARGUMENT, "a slab of " + std::to_string(bytes) + " bytes: it must have 1 or more");
  data = mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw ct::Failure(CT_OUT_OF_MEMORY, "no host memory for a slab of " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  }
  ++ct::live().slabs;
  ct::live().slab_bytes += bytes;
  ct::checker::slab_born(data, bytes);
}

ct_slab::~ct_slab() {
  ct::checker::slab_dies(data);
  const size_t size = rounded(bytes);
  if (pinned) {
    ct::after_captures([data = data, size] {
      ct::cuda().unlock_pages(data);
      munmap(data, size);
    });
    ct::live().pinned_bytes -= bytes;
  } else {
    munmap(data, size);
  }
  ct::live().slab_bytes -= bytes;
  --ct::live().slabs;
}

extern "C" {

ct_status* ct_slab_new(int64_t bytes, ct_slab** out) noexcept {
  return ct::guarded([&] { *out = new ct_slab(bytes); });
}

void ct_slab_free(ct_slab* slab) noexcept { delete slab; }

void* ct_slab_data(const ct_slab* slab) noexcept { return slab == nullptr ? nullptr : slab->data; }

ct_status* ct_slab_pin(ct_slab* slab) noexcept {
  return ct::guarded(c10::Device(c10::kCUDA, 0), [&] {
    ct_slab& s = ct::deref(slab, "slab");
    if (s.pinned) return;
    ct::CudaBackend& cuda = ct::cuda();
    try {
      cuda.lock_pages(s.data, rounded(s.bytes));
    } catch (const std::exception& e) {
      throw ct::Failure(CT_OUT_OF_MEMORY, "cannot page-lock " + std::to_string(s.bytes) + " bytes of host memory (" +
                                              std::to_string(ct::live().pinned_bytes) + " are locked already, the limit of this process is " +
                                              lock_limit() + "): use smaller or fewer batch buffers. CUDA says: " + e.what());
    }
    s.pinned = true;
    ct::live().pinned_bytes += s.bytes;
  });
}

int32_t ct_slab_pinned(const ct_slab* slab) noexcept { return slab != nullptr && slab->pinned; }

}  // extern "C"
