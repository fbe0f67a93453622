// Branches of work on side streams.
//
// Note [Memory of branches]: a side stream's work lies between two events of its parent's stream,
// the fork and the join. LibTorch's allocator gives freed memory out again in the order of the
// stream for which the memory was made. So the allocator would have to be told of each use by
// another stream. It would then record an event when the memory is freed, and query that event at
// later allocations. In a capture it would give the memory back only when the capture ends.
//
// Three rules make it unnecessary to tell the allocator:
//  - A branch uses memory of its parent, and of that parent's parents. This memory is kept alive
//    until the parent waits for the branch. Uses of other streams' memory are recorded as usual.
//  - The side stream's own memory, once freed, is given out again in the stream's next branch. That
//    branch begins after a fork, and so after the parent's uses of the memory.
//  - Backward runs the nodes of a branch on the side stream again. The nodes kept memory of the
//    parent. Backward frees this memory as soon as the nodes are enqueued. So all of the parent's
//    memory that the branch used is kept alive until the backward has ended. At the end the engine
//    makes the calling stream wait for all other streams.
#include <ATen/ops/detach.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "core/exec.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "core/versions.h"

namespace {

using torch::autograd::variable_list;

// Join is the node of a branch's result in the parent. It passes gradients on unchanged, and
// keeps the branch's borrowed memory alive until the backward has ended.
class Join final : public torch::autograd::Node {
 public:
  Join(torch::autograd::edge_list&& edges, std::shared_ptr<const ct::Borrowed> borrowed)
      : Node(std::move(edges)), borrowed_(std::move(borrowed)) {}

  std::string name() const override { return "Join"; }
  void release_variables() override { borrowed_.reset(); }

 private:
  variable_list apply(variable_list&& grads) override {
    torch::autograd::Engine::get_default_engine().queue_callback([borrowed = borrowed_] {});
    return std::move(grads);
  }

  std::shared_ptr<const ct::Borrowed> borrowed_;
};

}  // namespace

extern "C" {

ct_status* ct_branch_begin(const ct_stream* side, const ct_stream* parent) noexcept {
  return ct::guarded([&] {
    const ct_stream& branch = ct::deref(side, "side");
    const ct_stream& from = ct::deref(parent, "parent");
    if (branch.device != from.device) throw ct::Failure(CT_INVALID_ARGUMENT, "a branch's stream is of another device than its parent's");
    if (branch.id == from.id || branch.borrowed != nullptr) {
      throw ct::Failure(CT_INVALID_ARGUMENT, "the stream of a branch is in use already, by another branch or by what forks");
    }
    auto borrowed = std::make_shared<ct::Borrowed>();
    if (from.borrowed != nullptr) borrowed->family = from.borrowed->family;
    borrowed->family.insert(from.id);
    branch.borrowed = std::move(borrowed);
    ct::checker::branches(branch, from);
  });
}

ct_status* ct_branch_end(ct_exec x, const ct_stream* side, const ct_tensor* result, int32_t transient, ct_tensor** out) noexcept {
  const std::shared_ptr<const ct::Borrowed> borrowed = side == nullptr ? nullptr : std::exchange(side->borrowed, nullptr);
  return ct::executed(x, [&] {
    // The parent may be a branch too, and its own parent does not wait for the side stream yet. So
    // from here on the parent keeps the side stream's borrowed memory alive.
    if (borrowed != nullptr && x.stream->borrowed != nullptr) {
      x.stream->borrowed->storages.insert(borrowed->storages.begin(), borrowed->storages.end());
    }
    if (result == nullptr) return;
    at::Tensor tensor = result->tensor;
    if (tensor.requires_grad() && c10::GradMode::is_enabled()) {
      auto edges = torch::autograd::collect_next_edges(tensor);
      tensor = tensor.detach();
      torch::autograd::set_history(tensor, ct::new_node<Join>(std::move(edges), borrowed));
    }
    *out = new ct_tensor(std::move(tensor), result->stream);
    if (side != nullptr && transient != 0 && result->stream == side->id) (*out)->recorded.store(x.stream->id, std::memory_order_relaxed);
  });
}

}  // extern "C"
