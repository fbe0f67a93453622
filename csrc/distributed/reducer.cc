#include "distributed/reducer.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/collectives.h"
#include "core/device.h"
#include "core/event.h"
#include "core/exec.h"
#include "core/live.h"
#include "core/tensor.h"
#include "core/versions.h"
#include "distributed/group.h"
#include "parallel/overlap.h"

namespace ct {
namespace {

// The gradients of one dtype in a bucket, which are one collective.
using Part = std::pair<at::ScalarType, torch::autograd::variable_list>;

}  // namespace

Reducer::Reducer(ct_group& group, variable_list parameters, int64_t bucket_bytes) : group_(group), parameters_(std::move(parameters)) {
  const int64_t most = std::min(int64_t{1} << 20, bucket_bytes);
  size_t last = 0;  // how many parameters the last bucket has: Note [The last bucket]
  for (int64_t sum = 0; last < parameters_.size(); ++last) {
    const auto more = static_cast<int64_t>(parameters_[last].nbytes());
    if (sum + more > most && sum > most / 16) break;
    sum += more;
  }
  int64_t bytes = 0;
  for (size_t i = parameters_.size(); i-- > 0;) {
    const auto more = static_cast<int64_t>(parameters_[i].nbytes());
    if (buckets_.empty() || bytes + more > bucket_bytes || i + 1 == last) {
      buckets_.emplace_back();
      bytes = 0;
    }
    bytes += more;
    buckets_.back().parameters.push_back(i);
    index_.emplace(parameters_[i].unsafeGetTensorImpl(), i);
  }
  bucket_of_.resize(parameters_.size());
  missed_.resize(parameters_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const size_t i : buckets_[b].parameters) bucket_of_[i] = b;
  }
}

void Reducer::begin(const std::shared_ptr<Reducer>& self, const ct_stream& main, const ct_stream& side, const variable_list& roots, int32_t op,
                    bool zeros) {
  {
    const std::lock_guard lock(mutex_);
    if (main_ != nullptr) throw Failure(CT_MISUSE, "a second backward with the same Gradients before the first has ended");
    reset();
    main_ = &main;
    side_ = &side;
    ++backward_;
    op_ = op;
    zeros_ = zeros;
  }
  try {
    follow(self, roots);
  } catch (...) {  // a begin that fails has no end
    const std::lock_guard lock(mutex_);
    main_ = nullptr;
    throw;
  }
}

// Begins all buckets that can begin.
void Reducer::reduce_ready() {
  for (; next_ < buckets_.size() && buckets_[next_].missing == 0; ++next_) {
    reduce(buckets_[next_]);
    ++counts_.early;
  }
}

void Reducer::reduce(Bucket& bucket) {
  const c10::AutoGradMode no_grad(false);
  const auto behind = [&](const ct_stream& stream) {
    const std::unique_ptr<const ct_event> ready(record(stream, /*timing=*/false));
    wait(*side_, *ready);
  };
  behind(*main_);  //edge:reducer-waits TestGradients_Casts checked
  if (const Overlapping* o = Overlapping::current()) {
    for (const ct_stream* side : o->sides) behind(*side);  //edge:reducer-waits-for-late TestGradients_CUDA gpu
  }
  for (const c10::Stream& source : sources_) {
    if (Overlapping* o = Overlapping::current(); o != nullptr && std::any_of(o->sides.begin(), o->sides.end(), [&](const ct_stream* s) { return s->stream == source; })) {
      continue;
    }
    behind(ct_stream(group_.device, source, cuda_stream_id(source), /*own=*/false));
  }
  const bool mixes = group_.collectives->mixes_dtypes();
  std::vector<Part> parts;
  for (const size_t i : bucket.parameters) {
    Arrival& a = arrivals_[i];
    a.begun = true;
    const at::ScalarType dtype = a.gradient.scalar_type();
    check_reduction(dtype, op_);
    auto of = std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return mixes || part.first == dtype; });
    if (of == parts.end()) of = parts.insert(parts.end(), {dtype, {}});
    if (a.gradient.numel() > 0) of->second.push_back(a.gradient);
    counts_.bytes += static_cast<int64_t>(a.gradient.nbytes());
  }
  std::optional<CurrentStream> stream;
  if (group_.device.is_cuda()) {
    stream.emplace(side_->stream);
    // The kernels of one rank wait for nobody. So nothing else need give way to them, and with one
    // rank the gradients have the bits of a plain backward.
    if (!beside_ && group_.world > 1) beside_.emplace(group_.device.index());
  }
  const checker::OnStream checked(*side_);
  std::string mine = "gradients";
  for (const auto& [dtype, gradients] : parts) {
    int64_t elements = 0;
    for (const at::Tensor& g : gradients) elements += g.numel();
    mine += c10::str(", ", elements, " of ", dtype);
  }
  compare(group_, mine, side_->stream);
  for (auto& [dtype, gradients] : parts) {
    if (gradients.empty()) continue;
    std::vector<at::Tensor> rows;
    for (const at::Tensor& g : gradients) {
      checker::reads("Gradients", g);
      rows.push_back(row_of(group_, g));
    }
    begun_.emplace_back(with_group([&] { return reduce_rows(group_, rows, op_, side_->stream); }), gradients);
    ++counts_.buckets;
  }
}

// Makes a stream wait for the collectives that have begun. On the CPU the host waits.
void Reducer::finish(const ct_stream& waiting) {
  beside_.reset();
  if (begun_.empty()) return;
  const c10::AutoGradMode no_grad(false);
  {
    std::optional<CurrentStream> stream;
    if (group_.device.is_cuda()) stream.emplace(side_->stream);
    const checker::OnStream checked(*side_);
    auto begun = std::exchange(begun_, {});
    std::exception_ptr failure;
    for (auto& [second, gradients] : begun) {
      try {
        if (second) with_group(second);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
      for (const at::Tensor& g : gradients) checker::writes("Gradients", g);
    }
    if (failure) std::rethrow_exception(failure);
  }
  const std::unique_ptr<const ct_event> done(record(*side_, /*timing=*/false));
  wait(waiting, *done);  //edge:reducer-is-awaited TestGradients_Casts checked
}

void Reducer::end(bool failed, uint8_t* missing) {
  const std::lock_guard lock(mutex_);
  if (main_ == nullptr) throw Failure(CT_MISUSE, "the end of a backward that has not begun");
  const ct_stream& main = *std::exchange(main_, nullptr);
  if (failed) {
    // The collectives that have begun read and write memory until they end.
    try {
      finish(main);
    } catch (...) {
      // The failure of the backward is told.
    }
    reset();
    return;
  }
  main_ = &main;
  bool complete = true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    missing[i] = arrivals_[i].gradient.defined() ? 0 : 1;
    complete = complete && missing[i] == 0;
  }
  std::exception_ptr failure;
  try {
    if (complete || zeros_) {
      const int64_t early = counts_.early;
      for (size_t i = 0; i < parameters_.size(); ++i) {
        if (missing[i] == 0) continue;
        const c10::AutoGradMode no_grad(false);
        at::Tensor& grad = parameters_[i].mutable_grad();
        if (!grad.defined()) grad = at::zeros_like(parameters_[i]);  // or what earlier backwards have left there
        arrive(i, grad, nullptr);
      }
      reduce_ready();
      counts_.early = early;
    }
    finish(main);
  } catch (...) {
    failure = std::current_exception();
    try {
      finish(main);  // the collectives that have begun still write the gradients
    } catch (...) {
      // The first failure is told.
    }
  }
  main_ = nullptr;
  const ct_reducer_counts counts = counts_;
  reset();
  counts_ = counts;
  if (failure) std::rethrow_exception(failure);
  if (!complete && !zeros_) throw Failure(CT_INVALID_ARGUMENT, "some parameters had no gradient in this backward");
}

void Reducer::reset() {
  beside_.reset();
  begun_.clear();
  sources_.clear();
  arrivals_.assign(parameters_.size(), {});
  for (Bucket& b : buckets_) b.missing = b.parameters.size();
  next_ = 0;
  counts_ = {};
}

}  // namespace ct

struct ct_reducer {
  explicit ct_reducer(std::shared_ptr<ct::Reducer> reducer) : reducer(std::move(reducer)) { ++ct::live().groups; }
  ~ct_reducer() { --ct::live().groups; }
  const std::shared_ptr<ct::Reducer> reducer;
};

using ct::deref;

extern "C" {

ct_status* ct_reducer_new(ct_group* group, ct_tensor* const* parameters, int32_t count, int64_t bucket_bytes, ct_reducer** out) noexcept {
  return ct::guarded([&] {
    ct_group& g = deref(group, "group");
    torch::autograd::variable_list all;
    for (int32_t i = 0; i < count; ++i) {
      const at::Tensor& t = deref(parameters[i], "parameter").tensor;
      TORCH_CHECK(t.is_leaf() && t.requires_grad(), "parameter ", i, " is not a leaf that requires a gradient");
      TORCH_CHECK(t.device() == g.device, "parameter ", i, " is on ", t.device(), ", and the group on ", g.device);
      TORCH_CHECK(torch::autograd::impl::post_acc_grad_hooks(t) == nullptr, "parameter ", i, " belongs to another Gradients; close that one first");
      all.push_back(t);
    }
    auto made = std::make_unique<ct_reducer>(std::make_shared<ct::Reducer>(g, all, bucket_bytes));
    ct::Reducer::listen(made->reducer);
    *out = made.release();
  });
}

void ct_reducer_free(ct_reducer* reducer) noexcept {
  if (reducer == nullptr) return;
  reducer->reducer->deafen();
  delete reducer;
}

ct_status* ct_reducer_begin(ct_exec x, ct_reducer* reducer, const ct_stream* side, ct_tensor* const* roots, int32_t count, int32_t sum,
                            int32_t zeros) noexcept {
  return ct::executed(ct::autograd::without_autocast(x), [&] {
    const auto& r = deref(reducer, "reducer").reducer;
    r->begin(r, *x.stream, deref(side, "side"), ct::autograd::tensors(roots, count, "root", *x.stream), sum != 0 ? CT_SUM : CT_MEAN,
             zeros != 0);
  });
}

ct_status* ct_reducer_end(ct_exec x, ct_reducer* reducer, int32_t failed, uint8_t* missing) noexcept {
  return ct::executed(ct::autograd::without_autocast(x), [&] { deref(reducer, "reducer").reducer->end(failed != 0, missing); });
}

void ct_reducer_count(const ct_reducer* reducer, ct_reducer_counts* out) noexcept {
  if (reducer != nullptr) *out = reducer->reducer->counts();
}

void ct_reducer_missed(const ct_reducer* reducer, int64_t* out) noexcept {
  if (reducer != nullptr) reducer->reducer->missed(out);
}

}  // extern "C"
