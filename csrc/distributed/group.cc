#include "distributed/group.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <string>
#include <utility>

#include "core/autograd.h"
#include "core/device.h"
#include "core/exec.h"
#include "core/live.h"
#include "core/tensor.h"
#include "kernels/foreach.h"

ct_group::ct_group(c10::Device device, int32_t rank, int32_t world, std::shared_ptr<ct::Collectives> collectives, bool compares)
    : device(device), rank(rank), world(world), collectives(std::move(collectives)), number(ct::number_group(this->collectives, world)), compares(compares) {
  ++ct::live().groups;
}
ct_group::~ct_group() { --ct::live().groups; }

namespace ct {

NoBrokenPipes::NoBrokenPipes() {
  sigset_t pipe, waiting;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigemptyset(&waiting);
  (void)sigpending(&waiting);
  pending_ = sigismember(&waiting, SIGPIPE) == 1;
  (void)pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

NoBrokenPipes::~NoBrokenPipes() {
  if (!pending_) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec at_once{};
    while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) continue;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

at::Tensor row_of(const ct_group& group, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device() == group.device, "a tensor on ", tensor.device(), " in a collective of a group on ", group.device);
  TORCH_CHECK(tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense(),
              "a tensor whose elements have gaps in memory in a collective; make it contiguous first");
  const at::Tensor plain = tensor.detach();
  at::Tensor row = at::as_strided(plain, {plain.numel()}, {1});
  return row.is_complex() ? at::view_as_real(row).flatten() : row;
}

namespace {

// Returns whether both NCCL and Gloo reduce the dtype.
bool reducible(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_reduction(at::ScalarType dtype, int32_t op) {
  TORCH_CHECK(op >= CT_SUM && op <= CT_MEAN, "reduction ", op, " is not one of the five");
  TORCH_CHECK(dtype != at::kBool, "a reduction of bool; convert the tensor to uint8 first");
  TORCH_CHECK(reducible(c10::toRealValueType(dtype)), "a reduction of ", dtype, ", which NCCL and Gloo do not have; convert the tensor to another dtype first");
  TORCH_CHECK(op != CT_MEAN || at::isFloatingType(dtype) || at::isComplexType(dtype), "the mean of ", dtype, "; convert the tensor to a floating dtype first");
  TORCH_CHECK(op == CT_SUM || op == CT_MEAN || !at::isComplexType(dtype), "complex numbers have a sum and a mean over ranks, and nothing else");
}

void compare(const ct_group& group, const std::string& mine, c10::Stream stream) {
  if (!group.compares) return;
  const c10::AutoGradMode no_grad(false);
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(mine));
  const at::Tensor most = at::tensor({hash, ~hash}, at::TensorOptions(at::kLong).device(group.device));
  with_group([&] { complete(group.collectives->all_reduce({most}, CT_MAX, stream)); });
  if (most[0].item<int64_t>() == ~most[1].item<int64_t>()) return;
  throw Failure(CT_INVALID_ARGUMENT, "another rank has another collective here in its backward than this rank's " + mine +
                                         ": give all ranks the same model, code and autocast");
}

Finish reduce_rows(const ct_group& group, const std::vector<at::Tensor>& rows, int32_t op, c10::Stream stream) {
  constexpr size_t kSmall = 64 << 10;  // bytes; NCCL takes some microseconds for each row
  using Rows = std::vector<at::Tensor>;
  Rows sent;
  std::vector<std::pair<at::ScalarType, Rows>> small;
  for (const at::Tensor& row : rows) {
    if (row.nbytes() >= kSmall) {
      sent.push_back(row);
      continue;
    }
    auto of = std::find_if(small.begin(), small.end(), [&](const auto& list) { return list.first == row.scalar_type(); });
    if (of == small.end()) of = small.insert(small.end(), {row.scalar_type(), {}});
    of->second.push_back(row);
  }
  std::vector<std::pair<Rows, Rows>> apart;  // small rows, and where their results are
  for (auto& [dtype, list] : small) {
    if (list.size() == 1) {
      sent.push_back(list[0]);
      continue;
    }
    const at::Tensor all = at::cat(list);
    sent.push_back(all);
    Rows results;
    int64_t from = 0;
    for (const at::Tensor& row : list) {
      results.push_back(all.narrow(0, from, row.numel()));
      from += row.numel();
    }
    apart.emplace_back(std::move(list), std::move(results));
  }
  const Finish finish = group.collectives->all_reduce(sent, op, stream);
  const auto copy = [apart = std::move(apart)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const auto& [to, from] : apart) foreach::copy(to, from);
  };
  if (finish) {
    return [finish, copy] {
      finish();
      copy();
    };
  }
  copy();
  return {};
}

void written(const char* op, const at::Tensor& tensor) {
  checker::writes(op, tensor);
  tensor.unsafeGetTensorImpl()->bump_version();
}

namespace {

at::Tensor bytes_of(const ct_group& group, const at::Tensor& tensor) { return row_of(group, tensor).view(at::kByte); }

void check_rank(const ct_group& group, int32_t rank) {
  TORCH_CHECK(rank >= 0 && rank < group.world, "rank ", rank, " in a group of ", group.world, " ranks");
}

// Runs a collective on the tensors of the handles, which it writes. `row` makes the tensors that
// the collective sees.
template <typename Row, typename Run>
ct_status* collective(const char* op, const ct_exec& x, ct_group* group, ct_tensor* const* tensors, int32_t count, Row row, Run run) noexcept {
  return executed(x, [&] {
    ct_group& g = deref(group, "group");
    const c10::AutoGradMode no_grad(false);
    std::vector<at::Tensor> rows;
    for (int32_t i = 0; i < count; ++i) {
      const ct_tensor& t = deref(tensors[i], "tensor");
      use(t, *x.stream);
      checker::reads(op, t.tensor);
      if (at::Tensor of = row(g, t.tensor); of.numel() > 0) rows.push_back(std::move(of));
    }
    if (rows.empty()) return;
    with_group([&] { complete(run(*g.collectives, rows)); });
    for (int32_t i = 0; i < count; ++i) written(op, tensors[i]->tensor);
  });
}

at::Tensor summed(ct_group& group, const ct_stream& stream, const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor sum = tensor.is_non_overlapping_and_dense() ? tensor.clone() : tensor.contiguous();
  with_group([&] { complete(group.collectives->all_reduce({row_of(group, sum)}, CT_SUM, stream.stream)); });
  return sum;
}

// The node of ct_sum_over_ranks.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tensor, int64_t group, int64_t stream) {
    context->saved_data["group"] = group;
    context->saved_data["stream"] = stream;
    return summed(*reinterpret_cast<ct_group*>(group), *reinterpret_cast<const ct_stream*>(stream), tensor);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    auto& group = *reinterpret_cast<ct_group*>(context->saved_data["group"].toInt());
    const auto& stream = *reinterpret_cast<const ct_stream*>(context->saved_data["stream"].toInt());
    compare(group, c10::str("backward of SumOverRanks of ", gradients[0].scalar_type(), gradients[0].sizes()), stream.stream);
    return {summed(group, stream, gradients[0]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace
}  // namespace ct

using ct::Collectives;
using ct::deref;
using Rows = std::vector<at::Tensor>;

extern "C" {

ct_status* ct_group_id_new(ct_group_id* out) noexcept {
  return ct::guarded([&] { *out = ct::cuda().new_group_id(); });
}

ct_status* ct_group_nccl(ct_device device, const ct_group_id* id, int32_t rank, int32_t world, ct_group** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (!where.is_cuda()) throw ct::Failure(CT_INVALID_ARGUMENT, "NCCL has no group on the CPU; ct_group_gloo makes one");
    *out = new ct_group(where, rank, world, ct::cuda().join_group(where.index(), deref(id, "id"), rank, world), /*compares=*/false);
  });
}

ct_status* ct_group_ready(ct_group* group, int32_t* ready) noexcept {
  return ct::guarded([&] { *ready = deref(group, "group").collectives->ready() ? 1 : 0; });
}

void ct_group_abort(ct_group* group) noexcept {
  if (group != nullptr) group->collectives->abort();
}

int64_t ct_group_number(const ct_group* group) noexcept { return group == nullptr ? 0 : group->number; }

void ct_group_free(ct_group* group) noexcept { delete group; }

ct_status* ct_all_reduce(ct_exec x, ct_group* group, ct_tensor* const* tensors, int32_t count, int32_t op) noexcept {
  return ct::collective(
      "AllReduce", x, group, tensors, count,
      [&](const ct_group& g, const at::Tensor& t) {
        ct::check_reduction(t.scalar_type(), op);
        return ct::row_of(g, t);
      },
      [&](Collectives&, const Rows& rows) { return ct::reduce_rows(*group, rows, op, x.stream->stream); });
}

ct_status* ct_reduce(ct_exec x, ct_group* group, ct_tensor* tensor, int32_t op, int32_t root) noexcept {
  return ct::collective(
      "Reduce", x, group, &tensor, 1,
      [&](const ct_group& g, const at::Tensor& t) {
        ct::check_rank(g, root);
        ct::check_reduction(t.scalar_type(), op);
        return ct::row_of(g, t);
      },
      [&](Collectives& all, const Rows& rows) { return all.reduce(rows, op, root, x.stream->stream); });
}

ct_status* ct_broadcast(ct_exec x, ct_group* group, ct_tensor* const* tensors, int32_t count, int32_t root) noexcept {
  return ct::collective(
      "Broadcast", x, group, tensors, count,
      [&](const ct_group& g, const at::Tensor& t) {
        ct::check_rank(g, root);
        return ct::bytes_of(g, t);
      },
      [&](Collectives& all, const Rows& rows) { return all.broadcast(rows, root, x.stream->stream); });
}

ct_status* ct_all_gather(ct_exec x, ct_group* group, ct_tensor* to, const ct_tensor* from) noexcept {
  return ct::executed(x, [&] {
    ct_group& g = deref(group, "group");
    const c10::AutoGradMode no_grad(false);
    const at::Tensor &out = deref(to, "to").tensor, &in = deref(from, "from").tensor;
    TORCH_CHECK(out.scalar_type() == in.scalar_type() && out.numel() == in.numel() * g.world, "AllGather of ", in.sizes(), " of ", in.scalar_type(),
                " from ", g.world, " ranks into ", out.sizes(), " of ", out.scalar_type());
    ct::use(*to, *x.stream);
    ct::use(*from, *x.stream);
    ct::checker::reads("AllGather", in);
    if (in.numel() > 0) {
      ct::with_group([&] { ct::complete(g.collectives->all_gather(ct::bytes_of(g, out), ct::bytes_of(g, in), x.stream->stream)); });
    }
    ct::written("AllGather", out);
  });
}

ct_status* ct_reduce_scatter(ct_exec x, ct_group* group, ct_tensor* to, const ct_tensor* from, int32_t op) noexcept {
  return ct::executed(x, [&] {
    ct_group& g = deref(group, "group");
    const c10::AutoGradMode no_grad(false);
    const at::Tensor &out = deref(to, "to").tensor, &in = deref(from, "from").tensor;
    ct::check_reduction(in.scalar_type(), op);
    TORCH_CHECK(out.scalar_type() == in.scalar_type() && in.numel() == out.numel() * g.world, "ReduceScatter of ", in.sizes(), " of ", in.scalar_type(),
                " over ", g.world, " ranks into ", out.sizes(), " of ", out.scalar_type());
    ct::use(*to, *x.stream);
    ct::use(*from, *x.stream);
    ct::checker::reads("ReduceScatter", in);
    if (in.numel() > 0) {
      ct::with_group([&] { ct::complete(g.collectives->reduce_scatter(ct::row_of(g, out), ct::row_of(g, in), op, x.stream->stream)); });
    }
    ct::written("ReduceScatter", out);
  });
}

ct_status* ct_send(ct_exec x, ct_group* group, const ct_tensor* tensor, int32_t to) noexcept {
  return ct::executed(x, [&] {
    ct_group& g = deref(group, "group");
    const c10::AutoGradMode no_grad(false);
    const ct_tensor& t = deref(tensor, "tensor");
    ct::check_rank(g, to);
    ct::use(t, *x.stream);
    ct::checker::reads("Send", t.tensor);
    if (t.tensor.numel() == 0) return;
    ct::with_group([&] { ct::complete(g.collectives->send(ct::bytes_of(g, t.tensor), to, x.stream->stream)); });
  });
}

ct_status* ct_receive(ct_exec x, ct_group* group, ct_tensor* tensor, int32_t from) noexcept {
  return ct::executed(x, [&] {
    ct_group& g = deref(group, "group");
    const c10::AutoGradMode no_grad(false);
    const ct_tensor& t = deref(tensor, "tensor");
    ct::check_rank(g, from);
    ct::use(t, *x.stream);
    if (t.tensor.numel() == 0) return;
    ct::with_group([&] { ct::complete(g.collectives->receive(ct::bytes_of(g, t.tensor), from, x.stream->stream)); });
    ct::written("Receive", t.tensor);
  });
}

ct_status* ct_sum_over_ranks(ct_exec x, ct_group* group, const ct_tensor* tensor, ct_tensor** out) noexcept {
  return ct::executed(x, [&] {
    const ct_tensor& t = deref(tensor, "tensor");
    ct::check_reduction(t.tensor.scalar_type(), CT_SUM);
    ct::use(t, *x.stream);
    ct::checker::reads("SumOverRanks", t.tensor);
    at::Tensor sum = ct::SumOverRanks::apply(t.tensor, reinterpret_cast<int64_t>(&deref(group, "group")), reinterpret_cast<int64_t>(x.stream));
    ct::checker::writes("SumOverRanks", sum);
    *out = new ct_tensor(std::move(sum), x.stream->id);
  });
}

}  // extern "C"
