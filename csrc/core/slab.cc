#include "core/slab.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "check/checker.h"
#include "core/device.h"
#include "core/exec.h"
#include "core/live.h"
#include "core/tensor.h"
#include "graph/capture.h"

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

// Maps the first pages of a file. If `file` is negative, maps new pages that are 0.
void* map(int file, int64_t bytes) {
  if (bytes <= 0) throw ct::Failure(CT_INVALID_ARGUMENT, "a slab of " + std::to_string(bytes) + " bytes: it must have 1 or more");
  void* data = file < 0 ? mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                        : mmap(nullptr, rounded(bytes), PROT_READ, MAP_SHARED, file, 0);
  if (data != MAP_FAILED) {
#ifdef MADV_HUGEPAGE
    if (file < 0) madvise(data, rounded(bytes), MADV_HUGEPAGE);  // they are locked faster; without them nothing changes
#endif
    return data;
  }
  throw ct::Failure(CT_OUT_OF_MEMORY, "no host memory for a slab of " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
}

void check_file(int file, int64_t bytes) {
  struct stat info{};
  if (fstat(file, &info) != 0) throw ct::Failure(CT_INVALID_ARGUMENT, std::string("the file cannot be mapped: ") + std::strerror(errno));
  if (info.st_size < bytes) {
    throw ct::Failure(CT_INVALID_ARGUMENT, "the file has " + std::to_string(info.st_size) + " bytes, fewer than the " + std::to_string(bytes) + " to be mapped");
  }
}

void* check_foreign(void* data, int64_t bytes) {
  if (bytes <= 0) throw ct::Failure(CT_INVALID_ARGUMENT, "a slab of " + std::to_string(bytes) + " bytes: it must have 1 or more");
  if (const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); data == nullptr || reinterpret_cast<uintptr_t>(data) % page != 0) {
    throw ct::Failure(CT_INVALID_ARGUMENT, "the memory begins inside a page: align it to " + std::to_string(page) + " bytes, as mmap does");
  }
  return data;
}

void count(const ct_slab& slab) {
  if (!ct::checker::slab_born(slab.data, slab.bytes)) throw ct::Failure(CT_INVALID_ARGUMENT, "the memory is another slab's, or part of it is");  //edge:slab-born TestCheckStreams_FindsMistakes checked
  ++ct::live().slabs;
  ct::live().slab_bytes += slab.bytes;
}

}  // namespace

ct_slab::ct_slab(int64_t bytes) : bytes(bytes), read_only(false), owned(true), data(map(-1, bytes)) { count(*this); }

ct_slab::ct_slab(int file, int64_t bytes) : bytes(bytes), read_only(true), owned(true), data((check_file(file, bytes), map(file, bytes))) {
  count(*this);
}

ct_slab::ct_slab(void* data, int64_t bytes) : bytes(bytes), read_only(false), owned(false), data(check_foreign(data, bytes)) { count(*this); }

ct_slab::~ct_slab() {
  ct::checker::slab_dies(data);  //edge:slab-dies TestCheckStreams_FindsMistakes checked
  const size_t size = rounded(bytes);
  if (pinned) ct::live().pinned_bytes -= bytes;
  if (!owned) {
    // The pages are unlocked at once, also while a capture runs, because the owner of the memory may
    // unmap it now.
    if (pinned) ct::cuda().unlock_pages(data);  //edge:foreign-slab-unlocked TestHostSlabOver gpu
  } else if (pinned) {
    ct::after_captures([data = data, size] {
      ct::cuda().unlock_pages(data);  //edge:slab-unlocked TestHostSlab_PinAgain gpu
      munmap(data, size);
    });
  } else {
    munmap(data, size);  //edge:slab-unmapped TestHostSlab_CloseGivesTheMemoryBack
  }
  ct::live().slab_bytes -= bytes;
  --ct::live().slabs;
}

extern "C" {

ct_status* ct_slab_new(int64_t bytes, ct_slab** out) noexcept {
  return ct::guarded([&] { *out = new ct_slab(bytes); });
}

ct_status* ct_slab_map(int32_t file, int64_t bytes, ct_slab** out) noexcept {
  return ct::guarded([&] { *out = new ct_slab(file, bytes); });
}

ct_status* ct_slab_over(void* data, int64_t bytes, ct_slab** out) noexcept {
  return ct::guarded([&] { *out = new ct_slab(data, bytes); });
}

void ct_slab_free(ct_slab* slab) noexcept {
  if (slab != nullptr && --slab->users == 0) delete slab;
}

void* ct_slab_data(const ct_slab* slab) noexcept { return slab == nullptr ? nullptr : slab->data; }

ct_status* ct_slab_pin(ct_slab* slab) noexcept {
  return ct::guarded(c10::Device(c10::kCUDA, 0), [&] {
    ct_slab& s = ct::deref(slab, "slab");
    if (s.pinned) return;
    ct::CudaBackend& cuda = ct::cuda();
    try {
      cuda.lock_pages(s.data, rounded(s.bytes), s.read_only);
    } catch (const std::exception& e) {
      throw ct::Failure(CT_OUT_OF_MEMORY, "cannot page-lock " + std::to_string(s.bytes) + " bytes of host memory (" +
                                              std::to_string(ct::live().pinned_bytes) + " are locked already, the limit of this process is " +
                                              lock_limit() + "): lock less. CUDA says: " + e.what());
    }
    s.pinned = true;
    ct::live().pinned_bytes += s.bytes;
  });
}

int32_t ct_slab_pinned(const ct_slab* slab) noexcept { return slab != nullptr && slab->pinned; }

ct_status* ct_slab_tensor(ct_exec x, ct_slab* slab, int64_t offset, int32_t dtype, const int64_t* shape, int32_t dims, ct_tensor** out) noexcept {
  return ct::executed(x, [&] {
    ct_slab& s = ct::deref(slab, "slab");
    if (dims < 0) throw ct::Failure(CT_INVALID_ARGUMENT, "a shape of " + std::to_string(dims) + " dimensions");
    const at::IntArrayRef sizes(shape, static_cast<size_t>(dims));
    const at::ScalarType type = ct::to_dtype(dtype);
    if (c10::isQIntType(type)) throw ct::Failure(CT_INVALID_ARGUMENT, "a tensor of " + std::string(c10::toString(type)) + ": quantized dtypes are not mapped");
    auto bytes = static_cast<int64_t>(c10::elementSize(type));
    bool overflow = false;
    for (const int64_t size : sizes) overflow |= size < 0 || __builtin_mul_overflow(bytes, size, &bytes);
    if (overflow || offset < 0 || offset % static_cast<int64_t>(c10::elementSize(type)) != 0 || offset > s.bytes || bytes > s.bytes - offset) {
      throw ct::Failure(CT_INVALID_ARGUMENT, "a tensor of shape " + c10::str(sizes) + " and dtype " + c10::toString(type) + " from byte " + std::to_string(offset) +
                                                 " on does not lie in a slab of " + std::to_string(s.bytes) + " bytes, or not at a multiple of its elements");
    }
    if (s.read_only) throw ct::Failure(CT_INVALID_ARGUMENT, "the slab is a mapped file, which a tensor could write: copy it into a slab of memory");
    const c10::Device device = x.stream->device;
    if (device.is_cuda() && !s.pinned) throw ct::Failure(CT_INVALID_ARGUMENT, "the slab is not page-locked, so a CUDA device cannot reach it: call Pin");
    ++s.users;  // the deleter also runs if no tensor can be made
    at::Tensor tensor = at::for_blob(static_cast<char*>(s.data) + offset, sizes)
                            .deleter([slab](void*) { ct_slab_free(slab); })
                            .options(at::TensorOptions().dtype(type).device(device))
                            .target_device(device)
                            .make_tensor();
    *out = new ct_tensor(std::move(tensor), ct::kAnyStream);
  });
}

}  // extern "C"
