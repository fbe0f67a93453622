// Counts the memory that LibTorch allocates.
#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "check/checker.h"
#include "core/device.h"
#include "core/memory.h"
#include "cuda/backend.h"

namespace {

std::atomic<int64_t> allocated{0}, peak{0}, allocations{0};

void count(int64_t bytes) {
  const int64_t now = allocated += bytes;
  int64_t before = peak;
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
}

#ifdef __x86_64__
// LibTorch has its blocks from the C library, which knows the size of each block.
constexpr size_t kFront = 0;
size_t size_of(void* block) { return malloc_usable_size(block); }
#else
// LibTorch for arm64 has its blocks from mimalloc, which it hides. So the size of a block stands in
// front of it. The block stays aligned as LibTorch aligns it.
constexpr size_t kFront = c10::gAlignment;
size_t size_of(void* block) {
  size_t bytes;
  std::memcpy(&bytes, static_cast<char*>(block) - kFront, sizeof bytes);
  return bytes;
}
#endif

// Wraps LibTorch's CPU allocator and counts its blocks.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* base) : base_(base) { base_delete = base->raw_deleter(); }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0 || bytes > PTRDIFF_MAX - kFront) return base_->allocate(bytes);  // no block, or an error
    c10::DataPtr block = base_->allocate(bytes + kFront);
    void* data = block.get();
    if (data == nullptr) return block;
    if (block.get_deleter() != base_delete) throw ct::Failure(CT_INTERNAL, "LibTorch's CPU allocator has changed its deleter");
    if (kFront > 0) std::memcpy(data, &bytes, sizeof bytes);
    data = static_cast<char*>(data) + kFront;
    block.release_context();
    block = c10::DataPtr(data, data, &release, block.device());
    ++allocations;
    count(static_cast<int64_t>(size_of(data)));
    //edge:allocation-is-known TestCheckStreams_FindsMistakes checked
    if (ct::checker::is_on()) ct::checker::allocated(data, static_cast<int64_t>(bytes));
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { base_->copy_data(to, from, bytes); }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    allocated -= static_cast<int64_t>(size_of(data));
    if (ct::checker::is_on()) ct::checker::freed(data);  //edge:free-is-known TestCheckStreams_FindsMistakes checked
    base_delete(static_cast<char*>(data) - kFront);
  }
  static inline c10::DeleterFnPtr base_delete = nullptr;
  c10::Allocator* const base_;
};

c10::DeviceAllocator& allocator(c10::Device device) {
  at::globalContext().lazyInitDevice(device.type());  // without this LibTorch's allocator throws
  return *c10::getDeviceAllocator(device.type());
}

}  // namespace

void ct::count_cpu_allocations() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(new CountingAllocator(c10::GetCPUAllocator()), 255); });
}

int64_t ct::allocated_bytes(c10::Device device) {
  constexpr size_t all = 0;  // StatType::AGGREGATE
  return allocator(device).getDeviceStats(device.index()).allocated_bytes[all].current;
}

extern "C" {

ct_status* ct_memory_stats(ct_device device, ct_memory* out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (!where.is_cuda()) {
      ct::count_cpu_allocations();
      *out = ct_memory{allocated, peak, allocated, allocations, 0};
      return;
    }
    const auto stats = allocator(where).getDeviceStats(where.index());
    constexpr size_t all = 0;  // StatType::AGGREGATE
    const int64_t in_use = stats.allocated_bytes[all].current, reserved = stats.reserved_bytes[all].current;
    *out = ct_memory{in_use, stats.allocated_bytes[all].peak, reserved, stats.allocation[all].allocated,
                     ct::cuda().untaken(where.index()) + reserved - in_use};
  });
}

ct_status* ct_memory_reset_peak(ct_device device) noexcept {
  return ct::on_device(device, [](c10::Device where) {
    if (where.is_cuda()) {
      allocator(where).resetPeakStats(where.index());
    } else {
      ct::count_cpu_allocations();
      peak = allocated.load();
    }
  });
}

ct_status* ct_memory_release_cached(ct_device device) noexcept {
  return ct::on_device(device, [](c10::Device where) {
    if (!where.is_cuda()) return;
    allocator(where).emptyCache();
    ct::checker::host_waited_for(where);
  });
}

}  // extern "C"
