// The memory of slabs, which no allocator of LibTorch knows: copies, mapped tensors and the program
// itself read and write it.
#include "check/clocks.h"

namespace ct {

std::pair<Checker::Block*, Region> Checker::place_of(const at::Tensor& tensor) {
  const auto slab = slab_of(tensor.storage().data());
  if (slab == slabs_.end()) return {&block_of(tensor), Region::of(tensor)};
  return {&slab->second, Region::of(tensor).shifted(static_cast<const char*>(tensor.storage().data()) - static_cast<const char*>(slab->first))};
}

bool Checker::slab_born(const void* data, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto next = slabs_.lower_bound(data);
  if (slab_of(data) != slabs_.end() || (next != slabs_.end() && next->first < static_cast<const char*>(data) + bytes)) return false;
  Block& slab = slabs_[data];
  slab.slab = true;
  slab.bytes = bytes;
  return true;
}

void Checker::slab_dies(const void* data) {
  const std::lock_guard lock(mutex_);
  const auto at = slabs_.find(data);
  if (at == slabs_.end()) return;
  Access death{{kHost, "the end of the slab", 0, 0, false}, 0, 0, Region::bytes(0, at->second.bytes), true, "freed"};
  for (const Access& use : at->second.accesses) {
    if (use.by.queue != kHost && !knows(kHost, use.by.queue, use.time)) report(at->second, use, death, CT_RACE_FREE);
  }
  slabs_.erase(at);
}

std::map<const void*, Checker::Block>::iterator Checker::slab_of(const void* data) {
  auto at = slabs_.upper_bound(data);
  if (at == slabs_.begin()) return slabs_.end();
  --at;
  return static_cast<const char*>(data) - static_cast<const char*>(at->first) < at->second.bytes ? at : slabs_.end();
}

bool Checker::in_slab(const void* data) {
  const std::lock_guard lock(mutex_);
  return slab_of(data) != slabs_.end();
}

void Checker::slab_over(const void* data, int64_t bytes, const Clock& event) {
  const std::lock_guard lock(mutex_);
  const auto slab = slab_of(data);
  if (slab == slabs_.end()) return;
  const int64_t begin = static_cast<const char*>(data) - static_cast<const char*>(slab->first);
  const Region all = Region::bytes(begin, begin + bytes);
  std::erase_if(slab->second.accesses, [&](const Access& a) {
    return all.covers(a.region) && a.by.queue < event.size() && event[a.by.queue] >= a.time;
  });
}

void Checker::access_slab(const void* data, int64_t bytes, bool write, const Actor& by) {
  if (by.queue == kNone || bytes <= 0) return;
  const std::lock_guard lock(mutex_);
  const auto slab = slab_of(data);
  if (slab == slabs_.end()) return;
  const int64_t begin = static_cast<const char*>(data) - static_cast<const char*>(slab->first);
  access(slab->second, {by, 0, 0, Region::bytes(begin, begin + bytes), write, write ? "written" : "read"});
}

}  // namespace ct
