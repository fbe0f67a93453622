// Gradients that are reduced over the ranks of a group while a backward computes them.
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
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
#include "kernels/cast.h"
#include "parallel/overlap.h"

// Note [Gradients that arrive]
//
// The parameters are cut into buckets, the last parameters first, because their gradients arrive
// first. A bucket is reduced when all of its gradients have arrived, and after all earlier buckets.
// So the order of the collectives is the same on every rank, whatever the order of the gradients on
// a rank is. The collectives run on a stream of their own, which waits for the gradients by events.
// They reduce the gradients where they are.
//
// A gradient arrives in one of two places. The first is autograd's node that has added it to the
// gradient of the parameter. The second comes earlier. If streamtorch::cast_weights has cast the
// weight, the gradient of the cast arrives when the layer's node has computed it. All weights are
// cast by one node, whose backward runs at the very end. So most gradients would come too late for
// an overlap in the first place. In the second place they also have half the bytes. The node of the
// casts waits for the collectives before it reads the gradients. A gradient of a cast that is in a
// bucket which has not begun by then is not reduced in that place: it arrives again in the first
// place.
//
// If somebody else holds the memory of a gradient of a cast, a copy is reduced, and takes the place
// of the gradient.

// Note [The last bucket]
//
// The collective of the last bucket begins when the backward has ended, so nothing hides it. The
// bucket has the first parameters of the model, up to 1 MiB, and its collective takes 20 us on two
// H100. The large bucket before it begins a little earlier, and is done by then. If the first
// parameter is large, as an embedding, the last bucket has that one.

namespace ct {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

struct Bucket {
  std::vector<size_t> parameters;
  size_t missing = 0;  // gradients that have not arrived
};

// The gradient of a parameter in a backward.
struct Arrival {
  at::Tensor gradient;         // undefined before the gradient has arrived
  const Node* cast = nullptr;  // the node that casts the gradient afterwards, or NULL
  bool begun = false;          // its bucket is being reduced, or has been
};

// The gradients of one dtype in a bucket, which are one collective.
using Part = std::pair<at::ScalarType, variable_list>;

class Reducer {
 public:
  Reducer(ct_group& group, variable_list parameters, int64_t bucket_bytes) : group_(group), parameters_(std::move(parameters)) {
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

  const variable_list& parameters() const { return parameters_; }

  void begin(const std::shared_ptr<Reducer>& self, const ct_stream& main, const ct_stream& side, const variable_list& roots, int32_t op,
             bool zeros);
  void end(bool failed, uint8_t* missing);
  ct_reducer_counts counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  void missed(int64_t* out) {
    const std::lock_guard lock(mutex_);
    std::copy(missed_.begin(), missed_.end(), out);
  }

  // Called by hooks, on threads of autograd.
  void accumulated(const at::Tensor& parameter);
  // Returns the tensor that takes the place of the gradient.
  at::Tensor computed(uint64_t backward, size_t parameter, const Node* cast, const at::Tensor& gradient);
  void before_cast(uint64_t backward, const Node* cast);

 private:
  // Adds the hooks for gradients of casts to the nodes that the roots reach.
  void follow(const std::shared_ptr<Reducer>& self, const variable_list& roots);
  void arrive(size_t parameter, const at::Tensor& gradient, const Node* cast);
  void reduce_ready();
  void reduce(Bucket& bucket);
  void finish(const ct_stream& waiting);
  void reset();

  ct_group& group_;
  const variable_list parameters_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_;

  std::mutex mutex_;  // guards the fields below
  const ct_stream* main_ = nullptr;  // the stream of the backward that is followed; NULL between backwards
  const ct_stream* side_ = nullptr;  // the stream of the collectives
  uint64_t backward_ = 0;            // the number of the backward
  int32_t op_ = CT_MEAN;
  bool zeros_ = false;  // parameters may lack a gradient, and all buckets begin at the end
  std::vector<Arrival> arrivals_;
  std::vector<c10::Stream> sources_;  // other streams that have computed gradients of the next buckets
  size_t next_ = 0;                   // the first bucket that has not begun
  std::vector<std::pair<Finish, variable_list>> begun_;  // the second parts of collectives, and the tensors that they write
  std::optional<BesideCollectives> beside_;              // from the first collective until a stream waits for all
  ct_reducer_counts counts_{};
  std::vector<int64_t> missed_;  // see ct_reducer_missed
};

// Called when autograd has added a gradient to that of a parameter.
struct AccumulatedHook final : torch::autograd::PostAccumulateGradHook, autograd::OwnHook {
  explicit AccumulatedHook(std::weak_ptr<Reducer> reducer) : reducer(std::move(reducer)) {}
  void operator()(const at::Tensor& parameter) override {
    if (const auto r = reducer.lock()) r->accumulated(parameter);
  }
  const std::weak_ptr<Reducer> reducer;
};

// Called when a node has computed the gradients of casts.
struct ComputedHook final : torch::autograd::FunctionPostHook, autograd::OwnHook {
  struct Output {
    size_t index, parameter;
    const Node* cast;
  };
  ComputedHook(std::weak_ptr<Reducer> reducer, uint64_t backward, std::vector<Output> outputs)
      : reducer(std::move(reducer)), backward(backward), outputs(std::move(outputs)) {}
  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    const auto r = reducer.lock();
    if (r == nullptr) return gradients;
    variable_list results = gradients;
    for (const Output& o : outputs) {
      if (o.index < gradients.size() && gradients[o.index].defined()) results[o.index] = r->computed(backward, o.parameter, o.cast, gradients[o.index]);
    }
    return results;
  }
  const std::weak_ptr<Reducer> reducer;
  const uint64_t backward;
  const std::vector<Output> outputs;
};

// Called before a node casts gradients back.
struct CastHook final : torch::autograd::FunctionPreHook, autograd::OwnHook {
  CastHook(std::weak_ptr<Reducer> reducer, uint64_t backward, const Node* cast) : reducer(std::move(reducer)), backward(backward), cast(cast) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto r = reducer.lock()) r->before_cast(backward, cast);
    return gradients;
  }
  const std::weak_ptr<Reducer> reducer;
  const uint64_t backward;
  const Node* const cast;
};

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

void Reducer::follow(const std::shared_ptr<Reducer>& self, const variable_list& roots) {
  // All nodes that the roots reach, and for each gradient of a cast the edges to it.
  std::vector<Node*> found;
  std::unordered_map<const Node*, bool> seen;
  std::unordered_map<const Node*, std::unordered_map<uint32_t, int>> casts;
  const auto reach = [&](const Edge& edge) {
    Node* const node = edge.function.get();
    if (node == nullptr) return;
    if (!std::exchange(seen[node], true)) found.push_back(node);
    if (is_cast_weights(*node)) ++casts[node][edge.input_nr];
  };
  for (const at::Tensor& root : roots) reach(torch::autograd::impl::gradient_edge(root));
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Edge& edge : found[i]->next_edges()) reach(edge);
  }
  if (casts.empty()) return;
  for (Node* node : found) {
    if (is_cast_weights(*node)) {
      node->add_pre_hook(std::make_unique<CastHook>(self, backward_, node));
      continue;
    }
    std::vector<ComputedHook::Output> outputs;
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      const Edge& edge = node->next_edge(i);
      const auto cast = casts.find(edge.function.get());
      if (cast == casts.end() || cast->second.at(edge.input_nr) != 1) continue;  // autograd adds up several gradients after this
      const Edge& to = edge.function->next_edge(edge.input_nr);
      auto* const leaf = dynamic_cast<AccumulateGrad*>(to.function.get());
      if (leaf == nullptr || leaf->variable.grad().defined()) continue;
      if (const auto of = index_.find(leaf->variable.unsafeGetTensorImpl()); of != index_.end()) {
        outputs.push_back({i, of->second, edge.function.get()});
      }
    }
    if (!outputs.empty()) node->add_post_hook(std::make_unique<ComputedHook>(self, backward_, std::move(outputs)));
  }
}

void Reducer::accumulated(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex_);
  const auto of = index_.find(parameter.unsafeGetTensorImpl());
  if (of == index_.end()) return;
  if (main_ == nullptr) {
    ++missed_[of->second];
    return;
  }
  if (const Arrival& a = arrivals_[of->second]; a.begun) {
    if (a.cast != nullptr) return;
    throw Failure(CT_UNSUPPORTED, c10::str("a weight of ", parameter.sizes(), " got a second gradient in one backward, after the first was reduced: recomputed "
                                      "parts that share a weight need one Recompute around all of them, or Exec.Backward and an AllReduce of the gradients"));
  }
  arrive(of->second, parameter.grad(), nullptr);
}

at::Tensor Reducer::computed(uint64_t backward, size_t parameter, const Node* cast, const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  if (main_ == nullptr || backward != backward_ || arrivals_[parameter].gradient.defined()) return gradient;
  // The hook has the list of the engine and a copy of it, so the tensor has two owners.
  constexpr int64_t kOwners = 2;
  const bool own = gradient.is_non_overlapping_and_dense() && gradient.use_count() <= kOwners && gradient.storage().use_count() == 1;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor reduced = own ? gradient : gradient.clone(at::MemoryFormat::Preserve);
  arrive(parameter, reduced, cast);
  return reduced;
}

void Reducer::before_cast(uint64_t backward, const Node* cast) {
  const std::lock_guard lock(mutex_);
  if (main_ == nullptr || backward != backward_) return;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    Arrival& a = arrivals_[i];
    if (a.cast != cast || a.begun) continue;
    a = {};
    ++buckets_[bucket_of_[i]].missing;
  }
  finish(*main_);  //edge:reducer-cast-waits TestGradients_CUDA gpu
}

// Notes a gradient. The caller holds the mutex.
void Reducer::arrive(size_t parameter, const at::Tensor& gradient, const Node* cast) {
  Arrival& a = arrivals_[parameter];
  const bool first = !a.gradient.defined();
  a.gradient = gradient;
  a.cast = cast;
  if (!first) return;
  if (group_.device.is_cuda()) {
    const c10::Stream from = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(group_.device);
    if (from != main_->stream && std::find(sources_.begin(), sources_.end(), from) == sources_.end()) sources_.push_back(from);
  }
  if (--buckets_[bucket_of_[parameter]].missing == 0 && !zeros_) reduce_ready();
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

}  // namespace
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
    for (const at::Tensor& t : all) torch::autograd::impl::set_post_acc_grad_hooks(t, std::make_unique<ct::AccumulatedHook>(made->reducer));
    *out = made.release();
  });
}

void ct_reducer_free(ct_reducer* reducer) noexcept {
  if (reducer == nullptr) return;
  for (const at::Tensor& t : reducer->reducer->parameters()) torch::autograd::impl::set_post_acc_grad_hooks(t, nullptr);
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
