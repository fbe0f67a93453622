#include "check/captures.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "check/checker.h"
#include "check/thread.h"
#include "core/device.h"
#include "core/stream.h"

namespace ct::checker {
namespace {

struct Noted {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  caffe2::TypeMeta dtype;
  bool write = false;
  Actor by;
};

// The captures that are running, at most one for each device.
struct Captures {
  std::atomic<int> count{0};
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::vector<Noted>> notes;
};

Captures& captures() {
  static auto* const all = new Captures;
  return *all;
}

}  // namespace

void note(const at::Tensor& tensor, bool write, const Actor& by) {
  if (captures().count.load(std::memory_order_relaxed) == 0) return;
  if (!tensor.is_cuda() || !tensor.has_storage() || tensor.layout() != at::kStrided) return;
  if (!cuda().is_capturing(cuda_guard().getStream(tensor.device()))) return;
  Captures& all = captures();
  const std::lock_guard lock(all.mutex);
  const auto notes = all.notes.find(tensor.device().index());
  if (notes == all.notes.end()) return;
  notes->second.push_back({c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()), tensor.sizes().vec(),
                           tensor.strides().vec(), tensor.storage_offset(), tensor.dtype(), write, by});
}

struct Accesses {
  explicit Accesses(std::vector<Noted> notes) : notes(std::move(notes)) {}
  const std::vector<Noted> notes;
};

void capture_begins(c10::Device device) noexcept {
  if (!is_on()) return;
  quietly([&] {
    Captures& all = captures();
    const std::lock_guard lock(all.mutex);
    all.notes[device.index()].clear();
    all.count = static_cast<int>(all.notes.size());
  });
}

std::shared_ptr<const Accesses> capture_ends(c10::Device device) noexcept {
  std::shared_ptr<const Accesses> found;
  quietly([&] {
    Captures& all = captures();
    const std::lock_guard lock(all.mutex);
    const auto notes = all.notes.find(device.index());
    if (notes == all.notes.end()) return;
    std::vector<Noted> outlive;
    std::set<std::tuple<const void*, int64_t, std::vector<int64_t>, bool, uint64_t>> seen;
    for (Noted& n : notes->second) {
      const auto storage = n.storage.lock();
      if (storage != nullptr && seen.emplace(storage.get(), n.offset, n.sizes, n.write, n.by.site).second) outlive.push_back(std::move(n));
    }
    all.notes.erase(notes);
    all.count = static_cast<int>(all.notes.size());
    found = std::make_shared<const Accesses>(std::move(outlive));
  });
  return found;
}

void launched(const ct_stream& stream, const std::shared_ptr<const Accesses>& accesses) noexcept {
  if (!is_on() || accesses == nullptr) return;
  quietly([&] {
    Checker& checker = Checker::instance();
    const Queue from = checker.queue_of(stream);
    std::set<Queue> queues;
    for (const Noted& n : accesses->notes) {
      if (queues.insert(n.by.queue).second) checker.join(n.by.queue, from);
    }
    for (const Noted& n : accesses->notes) {
      auto storage = n.storage.lock();
      if (storage == nullptr) continue;
      at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CUDA), n.dtype);
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(n.sizes, n.strides, n.offset);
      checker.access(tensor, n.write, n.by);
    }
    for (const Queue queue : queues) checker.join(from, queue);
    checker.full_edge(from);
  });
}

}  // namespace ct::checker
