#include "check/clocks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/device.h"

namespace ct {
namespace {

constexpr size_t kMaxAccesses = 8192;    // accesses of one block; the oldest one is forgotten when there are more
constexpr int64_t kAllBytes = std::numeric_limits<int64_t>::max() / 2;

}  // namespace

Checker& Checker::instance() {
  static auto* const one = new Checker;
  return *one;
}

Checker::Checker() { forget(); }

void Checker::forget() {
  const std::lock_guard lock(mutex_);
  blocks_.clear();
  for (auto& [data, slab] : slabs_) slab.accesses.clear();
  for (Stream& s : streams_) s.freed.clear();
  reports_.forget();
  if (streams_.empty()) {
    streams_.emplace_back();
    streams_[kHost].host = true;
    streams_[kHost].id = CT_STREAM_HOST;
    streams_[kHost].clock = {1};
  }
}

// ---- Queues

Checker::Queue Checker::add(c10::Device device, uint64_t id, bool is_default) {
  for (auto at = ended_.begin(); at != ended_.end(); ++at) {
    const Queue queue = *at;
    if (!knows(kHost, queue, streams_[queue].last)) continue;
    ended_.erase(at);
    streams_[queue].id = id;
    streams_[queue].device = device;
    streams_[queue].is_default = is_default;
    streams_[queue].parent = kNone;
    streams_[queue].freed.clear();
    return queue;
  }
  const auto queue = static_cast<Queue>(streams_.size());
  Stream s;
  s.device = device;
  s.id = id;
  s.is_default = is_default;
  s.clock.resize(queue + 1);
  s.clock[queue] = 1;
  streams_.push_back(std::move(s));
  return queue;
}

Checker::Queue Checker::queue_of(const ct_stream& stream) {
  if (stream.device.is_cuda()) return queue_of(stream.stream);
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = by_id_.try_emplace({-1, stream.id}, Queue{0});
  if (fresh) at->second = add(stream.device, stream.id, stream.id == 0);
  return at->second;
}

void Checker::ended(uint64_t cpu_stream) {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find({-1, cpu_stream});
  if (at == by_id_.end()) return;
  ended_.push_back(at->second);
  by_id_.erase(at);
}

Checker::Queue Checker::queue_of(c10::Stream stream) {
  const std::pair<int, uint64_t> key(stream.device_index(), static_cast<uint64_t>(stream.id()));
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = by_id_.find(key); at != by_id_.end()) return at->second;
  }
  const auto native = reinterpret_cast<uintptr_t>(cuda().native_stream(stream));
  const Queue queue = queue_of_native(stream.device_index(), native);
  const std::lock_guard lock(mutex_);
  streams_[queue].id = cuda_stream_id(stream);
  by_id_.emplace(key, queue);
  return queue;
}

Checker::Queue Checker::queue_of_native(c10::DeviceIndex device, uintptr_t stream) {
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = by_native_.try_emplace({device, stream}, Queue{0});
  if (fresh) at->second = add(c10::Device(c10::kCUDA, device), CT_STREAM_UNKNOWN, stream == 0);
  return at->second;
}

// ---- Clocks

uint64_t& Checker::time(Queue queue, Queue of) {
  Clock& clock = streams_[queue].clock;
  if (clock.size() <= of) clock.resize(of + 1);
  return clock[of];
}

bool Checker::knows(Queue queue, Queue of, uint64_t time) const {
  const Clock& clock = streams_[queue].clock;
  return of < clock.size() && clock[of] >= time;
}

void Checker::learn(Queue queue, const Clock& clock) {
  Clock& mine = streams_[queue].clock;
  if (mine.size() < clock.size()) mine.resize(clock.size());
  for (size_t i = 0; i < clock.size(); ++i) mine[i] = std::max(mine[i], clock[i]);
  if (queue == kHost) ++host_changes_;
}

void Checker::enqueue(Queue queue) {
  if (queue == kHost || streams_[queue].host_seen == host_changes_) return;
  learn(queue, streams_[kHost].clock);
  streams_[queue].host_seen = host_changes_;
}

std::shared_ptr<const Checker::Clock> Checker::record(Queue queue) {
  const std::lock_guard lock(mutex_);
  enqueue(queue);
  auto clock = std::make_shared<const Clock>(streams_[queue].clock);
  ++time(queue, queue);
  return clock;
}

void Checker::wait(Queue queue, const Clock& event) {
  const std::lock_guard lock(mutex_);
  enqueue(queue);
  learn(queue, event);
}

void Checker::join(Queue queue, Queue other) {
  if (queue == other) return;
  wait(queue, *record(other));
}

void Checker::host_waits(const Clock& event) {
  const std::lock_guard lock(mutex_);
  learn(kHost, event);
}

void Checker::host_waits(Queue queue) {
  if (queue != kNone && queue != kHost) host_waits(*record(queue));
}

void Checker::host_waits_for(c10::Device device) {
  for (Queue q = 1;; ++q) {
    {
      const std::lock_guard lock(mutex_);
      if (q >= streams_.size()) return;
      const c10::Device of = streams_[q].device;
      if (device.has_index() ? of != device : of.type() != device.type()) continue;
    }
    host_waits(q);
  }
}

// ---- Memory

void Checker::born(const void* data, int64_t bytes, const Actor& by) {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  Block& block = blocks_[data];
  block = Block{};
  block.bytes = bytes;
  block.maker = by;
  if (by.queue == kNone) return;
  block.device = streams_[by.queue].device;
  enqueue(by.queue);
  // If this is a side stream, memory may have been freed while only its parent knew the memory's
  // last uses. Such a use is no race if it is ordered before this allocation.
  streams_[by.queue].last = time(by.queue, by.queue);
  for (const auto& [queue, freed] : std::exchange(streams_[by.queue].freed, {})) {
    if (knows(by.queue, queue, freed->second.time)) continue;
    report(freed->first, freed->second, {by, 0, 0, Region::bytes(0, kAllBytes), true, kAllocated}, CT_RACE_FREE);
  }
  block.accesses.push_back({by, time(by.queue, by.queue), ++serial_, Region::bytes(0, bytes > 0 ? bytes : kAllBytes), true, kAllocated});
}

void Checker::dies(const void* data, const Actor& by) {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto at = blocks_.find(data);
  if (at == blocks_.end()) return;
  Block block = std::move(at->second);
  blocks_.erase(at);
  const Queue home = block.maker.queue;
  if (home == kNone || home == kHost) return;
  // LibTorch hands the memory out again to later work of its home stream, for which it was
  // allocated. That work is ordered after all work that the host knows.
  enqueue(home);
  Access death{by, 0, 0, Region::bytes(0, kAllBytes), true, "freed"};
  death.by.queue = home;
  for (const Access& use : block.accesses) {
    if (use.by.queue == home || use.by.queue == kHost || block.recorded.count(use.by.queue) != 0) continue;
    if (knows(home, use.by.queue, use.time)) continue;
    const Queue parent = streams_[home].parent;
    if (parent == kNone || !knows(parent, use.by.queue, use.time)) {
      report(block, use, death, CT_RACE_FREE);
      continue;
    }
    auto& freed = streams_[home].freed[use.by.queue];
    if (!freed || freed->second.time < use.time) freed = std::make_shared<const std::pair<Block, Access>>(block, use);
  }
}

void Checker::branches(Queue side, Queue parent) {
  const std::lock_guard lock(mutex_);
  streams_[side].parent = parent;
}

// Forgets freed memory for which LibTorch reports no free.
void Checker::sweep() {
  std::erase_if(blocks_, [](const auto& entry) { return entry.second.maker.queue == kNone && (!entry.second.storage || entry.second.storage->expired()); });
  sweep_at_ = std::max<size_t>(4096, 2 * blocks_.size());
}

Checker::Block& Checker::block_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  if (blocks_.size() >= sweep_at_) sweep();
  Block& block = blocks_[storage.data()];
  if (block.maker.queue == kNone && (!block.storage || block.storage->_unsafe_get_target() != storage.unsafeGetStorageImpl())) {
    block = Block{};
    block.storage.emplace(storage.getWeakStorageImpl());
  }
  block.device = tensor.device();
  block.bytes = static_cast<int64_t>(storage.nbytes());
  return block;
}

bool Checker::has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.numel() != 0 && tensor.storage().data() != nullptr;
}

Checker::Index Checker::index_of(const at::Tensor* through) {
  if (through == nullptr || !has_memory(*through)) return std::nullopt;
  return std::pair(through->storage().data(), Region::of(*through));
}

void Checker::access(const at::Tensor& tensor, bool write, const Actor& by, const at::Tensor* through) {
  if (by.queue == kNone || !has_memory(tensor)) return;
  const std::lock_guard lock(mutex_);
  const auto [block, region] = place_of(tensor);
  access(*block, {by, 0, 0, region, write, write ? "written" : "read", index_of(through)});
}

void Checker::used(const at::Tensor& tensor, Queue queue, bool by_autograd) {
  if (!tensor.has_storage() || tensor.storage().data() == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (slab_of(tensor.storage().data()) != slabs_.end()) return;  // no allocator hands it out again
  Block& block = block_of(tensor);
  if (!by_autograd || block.maker.backward) block.recorded.insert(queue);
}

// Adds an access to a block and checks it against the earlier accesses. Then forgets the earlier
// accesses that are not needed any more, because the new access would show the same races.
void Checker::access(Block& block, Access later) {
  const Queue queue = later.by.queue;
  enqueue(queue);
  later.serial = ++serial_;
  if (queue == kHost) {
    later.time = ++time(kHost, kHost);  // a stream that knows the host's time before this access does not know of this access
    ++host_changes_;
  } else {
    later.time = streams_[queue].last = time(queue, queue);
  }
  // The last access is checked first, because a report of a race with the last access says most.
  for (auto earlier = block.accesses.rbegin(); earlier != block.accesses.rend(); ++earlier) {
    if (earlier->by.queue != queue && (earlier->write || later.write)) check(block, *earlier, later);
  }
  auto& all = block.accesses;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const Access& a) {
                             if (!later.region.covers(a.region)) return false;
                             if (later.index && !(a.index && a.index->first == later.index->first && later.index->second.covers(a.index->second))) return false;
                             return later.write ? knows(queue, a.by.queue, a.time) : a.by.queue == queue && !a.write;
                           }),
            all.end());
  if (all.size() >= kMaxAccesses) all.erase(all.begin());
  all.push_back(std::move(later));
}

void Checker::check(Block& block, const Access& earlier, const Access& later) {
  const Queue queue = later.by.queue;
  if (knows(queue, earlier.by.queue, earlier.time)) return;
  if (!overlap(earlier.region, later.region)) return;
  // All earlier races between these two queues on this memory are the same mistake, and are not
  // reported again.
  uint64_t& told = block.told[{earlier.by.queue, queue}];
  if (earlier.serial <= told) return;
  told = serial_;
  report(block, earlier, later, CT_RACE_ACCESS);
}

// ---- Reports

void Checker::report(const Block& block, const Access& earlier, const Access& later, int32_t kind) {
  const auto told = [&](const Access& from) {
    const Stream& of = streams_[from.by.queue];
    ct_access out{};
    copy_text(out.op, from.by.op);
    copy_text(out.what, from.kind);
    out.stream = of.id;
    out.device = from_device(of.device);
    out.number = static_cast<int32_t>(from.by.queue);
    out.is_default = of.is_default;
    out.site = from.by.site;
    out.forward = from.by.forward;
    out.backward = from.by.backward;
    out.begin = std::min(from.region.begin, block.bytes);
    out.end = std::min(from.region.end, block.bytes);
    return out;
  };
  ct_race race{};
  race.kind = kind;
  race.earlier = told(earlier);
  race.later = told(later);
  race.device = from_device(block.device);
  race.bytes = block.bytes;
  race.slab = block.slab;
  race.made_at = block.maker.site;
  copy_text(race.made_by, block.maker.op);
  reports_.add(race);
}

void Checker::report_anew() {
  const std::lock_guard lock(mutex_);
  reports_.anew();
}

bool Checker::take(ct_race* out) {
  const std::lock_guard lock(mutex_);
  return reports_.take(out);
}

}  // namespace ct
