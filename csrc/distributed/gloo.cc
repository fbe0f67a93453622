// Groups on the CPU, over c10d's Gloo.
#define USE_C10D_GLOO

#include <ATen/ops/cat.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

#include "distributed/group.h"
#include "distributed/store.h"

namespace ct {
namespace {

using c10d::ReduceOp;

ReduceOp operation(int32_t op) {
  switch (op) {
    case CT_PRODUCT:
      return ReduceOp::PRODUCT;
    case CT_MAX:
      return ReduceOp::MAX;
    case CT_MIN:
      return ReduceOp::MIN;
    default:
      return ReduceOp::SUM;  // Gloo has no mean: the sum is divided afterwards
  }
}

// Begins a collective. It waits for no other rank. LibTorch notes each collective in a recorder
// that all groups of the process share. The recorder's list of groups has no lock, so threads that
// are ranks take turns.
template <typename F>
auto begin(F&& collective) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return collective();
}

class Gloo final : public Collectives {
 public:
  Gloo(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, int32_t world, std::chrono::milliseconds timeout)
      : group_(std::move(group)), world_(world), timeout_(timeout) {}

  bool mixes_dtypes() const override { return false; }

  Finish all_reduce(const std::vector<at::Tensor>& tensors, int32_t op, c10::Stream) override {
    std::vector<at::Tensor> all{together(tensors)};
    c10d::AllreduceOptions options;
    options.reduceOp = operation(op);
    options.timeout = timeout_;
    return [this, all, tensors, op, work = begin([&] { return group_->allreduce(all, options); })] {
      work->wait();
      if (op == CT_MEAN) all[0].div_(world_);
      apart(all[0], tensors);
    };
  }

  Finish reduce(const std::vector<at::Tensor>& tensors, int32_t op, int32_t root, c10::Stream) override {
    std::vector<at::Tensor> all{together(tensors)};
    c10d::ReduceOptions options;
    options.reduceOp = operation(op);
    options.rootRank = root;
    options.timeout = timeout_;
    return [this, all, tensors, op, root, work = begin([&] { return group_->reduce(all, options); })] {
      work->wait();
      if (group_->getRank() != root) return;
      if (op == CT_MEAN) all[0].div_(world_);
      apart(all[0], tensors);
    };
  }

  Finish broadcast(const std::vector<at::Tensor>& tensors, int32_t root, c10::Stream) override {
    std::vector<at::Tensor> all{together(tensors)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    return [all, tensors, work = begin([&] { return group_->broadcast(all, options); })] {
      work->wait();
      apart(all[0], tensors);
    };
  }

  Finish all_gather(const at::Tensor& to, const at::Tensor& from, c10::Stream) override {
    at::Tensor out = to, in = from;
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    return [work = begin([&] { return group_->_allgather_base(out, in, options); })] { work->wait(); };
  }

  Finish reduce_scatter(const at::Tensor& to, const at::Tensor& from, int32_t op, c10::Stream) override {
    // Gloo's own reduce-scatter is slower than its all-reduce, and has not all operations.
    std::vector<at::Tensor> all{from.clone()};
    c10d::AllreduceOptions options;
    options.reduceOp = operation(op);
    options.timeout = timeout_;
    return [this, all, to, op, work = begin([&] { return group_->allreduce(all, options); })] {
      work->wait();
      to.copy_(all[0].narrow(0, group_->getRank() * to.numel(), to.numel()));
      if (op == CT_MEAN) to.div_(world_);
    };
  }

  Finish send(const at::Tensor& tensor, int32_t to, c10::Stream) override {
    std::vector<at::Tensor> all{tensor};
    return [this, work = begin([&] { return group_->send(all, to, 0); })] { work->wait(timeout_); };
  }

  Finish receive(const at::Tensor& tensor, int32_t from, c10::Stream) override {
    std::vector<at::Tensor> all{tensor};
    return [this, work = begin([&] { return group_->recv(all, from, 0); })] { work->wait(timeout_); };
  }

  bool ready() override { return true; }
  void abort() noexcept override {}  // Gloo cannot end a collective before its time

 private:
  // Gloo's collectives take one tensor, and many small ones would wait for each other.
  static at::Tensor together(const std::vector<at::Tensor>& tensors) { return tensors.size() == 1 ? tensors[0] : at::cat(tensors); }
  static void apart(const at::Tensor& all, const std::vector<at::Tensor>& tensors) {
    if (tensors.size() == 1) return;
    int64_t from = 0;
    for (const at::Tensor& t : tensors) {
      t.copy_(all.narrow(0, from, t.numel()));
      from += t.numel();
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const int32_t world_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace
}  // namespace ct

ct_status* ct_group_gloo(const ct_store* store, const char* prefix, const char* address, int32_t rank, int32_t world, int32_t timeout_ms,
                         int32_t compare, ct_group** out) noexcept {
  return ct::guarded([&] {
    ct::with_group([&] {
      const std::chrono::milliseconds timeout(timeout_ms);
      auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
      auto keys = c10::make_intrusive<c10d::PrefixStore>(prefix, ct::deref(store, "store").store->clone());
      keys->setTimeout(timeout);
      auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank, world, options);
      *out = new ct_group(c10::Device(c10::kCPU), rank, world, std::make_unique<ct::Gloo>(std::move(group), world, timeout), compare != 0);
    });
  });
}
