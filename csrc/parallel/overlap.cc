#include "parallel/overlap.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution_backward_native.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <new>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "check/checker.h"
#include "core/autograd.h"
#include "core/device.h"
#include "core/event.h"
#include "core/exec.h"
#include "core/versions.h"
#include "graph/capture.h"
#include "graph/graph.h"
#include "kernels/cast.h"
#include "kernels/sleep.h"

namespace ct {
namespace {

using Mask = GradientMask;

// Makes the main stream wait for a side stream.
void join(const Overlapping& o, const ct_stream& side) {
  const std::unique_ptr<const ct_event> end(record(side, /*timing=*/false));
  wait(o.main, *end);  //edge:overlap-join TestOverlap_Serial checked
}

// Computes the gradients of the weights and bias on the side stream, and the gradient of the
// input on the main stream. If `joined` is true, the main stream waits for the side stream.
// Otherwise the caller keeps the inputs alive until the main stream waits. The gradients of
// weights and bias lie in memory of the side stream. After that memory is freed, only later work
// of the side stream gets it. Before that work, the side stream waits for the main stream: see
// Note [Memory of branches].
Gradients in_parallel(const Overlapping& o, const LayerBackward& layer, const ct_stream& side, bool joined) {
  const std::unique_ptr<const ct_event> fork(record(o.main, /*timing=*/false));
  wait(side, *fork);  //edge:overlap-fork TestOverlap_Serial checked
  checker::branches(side, o.main);
  struct Join {  // joins also when a gradient fails
    ~Join() {
      if (!wanted) return;
      try {
        join(o, side);
      } catch (...) {
        // The device is lost.
      }
    }
    const Overlapping& o;
    const ct_stream& side;
    bool wanted = true;
  } end{o, side};
  Gradients weights;
  {
    std::optional<CurrentStream> stream;
    if (side.device.is_cuda()) stream.emplace(side.stream);
    const checker::OnStream checked(side);
    weights = layer.run(Mask{false, layer.wanted[1], layer.wanted[2]});
    // On CUDA no operator is called for these reads and writes, so the checker must be told of them.
    for (const at::Tensor* in : {&layer.grad, &layer.input}) checker::reads(layer.op, *in);
    for (const at::Tensor* out : {&std::get<1>(weights), &std::get<2>(weights)}) {
      if (out->defined()) checker::writes(layer.op, *out);
    }
  }
  at::Tensor of_input = std::get<0>(layer.run(Mask{true, false, false}));
  end.wanted = joined;
  return {std::move(of_input), std::move(std::get<1>(weights)), std::move(std::get<2>(weights))};
}

// A layer with late gradients may be a little slower on two streams. The main stream still gains
// time, because the side stream does a part of the layer's work.
constexpr double kLateGain = -0.02;

bool may_compare_graphs(const Overlapping& o) { return o.pool != nullptr && !in_capture(o.main) && !checker::is_on(); }

// Finds the faster way to compute a layer's gradients in a graph. It is called in the warm-up run
// of that graph. It captures each way as a small graph, and measures launches of the two graphs.
// If the work were enqueued piece by piece, the gaps between the pieces would be longer than in a
// graph. One stream would then look slower than it is. The gradients have no effects, so they can
// be computed as often as necessary. Waits for the device.
//
// Returns the gradients. Returns nothing if no capture may begin on the device now. That is so
// while another thread captures, while an operator draws random numbers, and after
// ct_captures_hold.
std::optional<Gradients> compare_graphs(const Overlapping& o, const std::string& key, const LayerBackward& layer, const ct_stream& side, bool late) {
  constexpr int kRepeats = 4, kLaunches = 7;
  const c10::Device device = o.main.device;
  const CaptureTurn turn(device, /*wait=*/false);
  if (!turn.held()) return std::nullopt;
  Gradients found = layer.run(layer.wanted);  // libraries choose their kernels here, because a capture forbids that
  // A warm-up run has entered the graph's pool. A capture into a pool that is entered would be
  // refused.
  const ct_graph_pool::Outside outside(*o.pool);
  std::vector<double> times[2];
  try {
    std::unique_ptr<CudaGraph> graphs[2];
    for (const int way : {0, 1}) {
      graphs[way] = cuda().new_graph(device.index());
      graphs[way]->begin(o.pool->id);
      for (int i = 0; i < kRepeats; ++i) {
        if (way == 0) (void)layer.run(layer.wanted);
        else (void)in_parallel(o, layer, side, /*joined=*/!late);
      }
      if (way == 1 && late) join(o, side);
      graphs[way]->end(nullptr);
    }
    std::vector<std::unique_ptr<const Recording>> marks;
    sleep(o.main, 500'000);
    for (int i = 0; i < kLaunches; ++i) {
      for (const auto& graph : graphs) {
        marks.push_back(std::make_unique<const Recording>(o.main, /*timing=*/true));
        graph->launch();
      }
    }
    marks.push_back(std::make_unique<const Recording>(o.main, /*timing=*/true));
    cuda().synchronize_event(marks.back()->native);
    for (size_t i = 2; i + 1 < marks.size(); ++i) {  // without the first launch of each graph
      times[i % 2].push_back(1e3 * cuda().elapsed(marks[i]->native, marks[i + 1]->native) / kRepeats);
    }
    o.overlap.choice.choice.settle(key, /*graph=*/true, median(times[0]), median(times[1]), late ? kLateGain : Choice::kGain);
  } catch (const std::exception&) {  // for example because memory is short
    o.overlap.choice.choice.keep_first(key, /*graph=*/true);
  }
  return found;
}

// This kernel takes the place of LibTorch's kernel. It decides on which streams the gradients are
// computed, and calls LibTorch's kernel to compute them.
Gradients convolution_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                               at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                               at::IntArrayRef output_padding, int64_t groups, Mask mask) {
  const auto native = [&](const Mask& mask) {
    return at::native::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask);
  };
  Overlapping* o = leave_for(grad, mask);
  if (o == nullptr) return native(mask);
  std::ostringstream key;
  key << (transposed ? "transposed convolution " : "convolution ");
  key << Described{input} << " by " << Described{weight} << " stride " << stride << " padding " << padding << " dilation " << dilation << " groups " << groups;
  if (transposed) key << " output padding " << output_padding;
  if (mask[2]) key << " bias";
  return overlapped(*o, {"aten::convolution_backward", key.str(), mask, grad, input, native});
}

class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// Our kernels take the place of LibTorch's when this library is loaded. The kernels for CUDA do
// so when CUDA is opened. LibTorch's table of kernels has no lock, so no operator may run while
// it is changed. At these two times no operator runs yet. Without an Overlap our kernels do the
// same as LibTorch's.
//
// LibTorch warns of the change. Later it warns if gradients are accumulated on a stream that did
// not make them (Note [Late gradients]). We want the change and these gradients.
void install(c10::DispatchKey key) {
  static Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  library_for_life(key).impl("convolution_backward", TORCH_FN(convolution_backward));
}

[[maybe_unused]] const bool installed = [] {
  install(c10::DispatchKey::CPU);
  when_cuda_is_open([] { install(c10::DispatchKey::CUDA); });  // by then LibTorch has registered its own kernel
  install_linear();
  before_gradients_are_cast.store([] {
    if (Overlapping* o = Overlapping::current()) o->late.release();
  });
  allow_gradients_of_other_streams(at::globalContext());
  return true;
}();

}  // namespace

std::atomic<bool> any_overlap{false};

torch::Library& library_for_life(c10::DispatchKey key) {
  static auto* const libraries = new std::deque<torch::Library>;
  return libraries->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

Gradients overlapped(Overlapping& o, const LayerBackward& layer) {
  const ct_stream* const own = o.late.side();
  const bool late = own != nullptr;
  const ct_stream& side = late ? *own : o.side;
  const std::string key = o.main.device.str() + ": " + layer.kind + (late ? ", late" : "");
  ct_overlap& overlap = o.overlap;
  Choice& choice = overlap.choice.choice;
  const auto counted = [&](Gradients found, int64_t& calls) {
    const std::lock_guard lock(overlap.mutex);
    if (&calls != &overlap.calls_serial) {
      overlap.parallel_layers.insert(key);
      overlap.saved += choice.gain(key, o.pool != nullptr);
    }
    ++calls;
    return found;
  };
  Trial trial;
  const bool is_short = overlap.is_short(key);
  {
    const std::lock_guard lock(overlap.mutex);
    if (overlap.always) trial.second = !overlap.seen.insert(key).second;
  }
  if (!overlap.always && !is_short) {
    if (may_compare_graphs(o) && !choice.decided(key, true)) {
      if (auto found = compare_graphs(o, key, layer, side, late)) return counted(*std::move(found), overlap.calls_serial);
    }
    trial = choice.begin(o.main, key, o.pool != nullptr, o.streams);
  }
  if (trial.second && !is_short) {
    try {
      if (late && !trial.measured) {  // a measured trial must end on the main stream
        Gradients found = in_parallel(o, layer, side, /*joined=*/false);
        o.late.keep(layer.grad, layer.input, side);
        return counted(std::move(found), overlap.calls_late);
      }
      Gradients found = in_parallel(o, layer, side, /*joined=*/true);
      if (trial.measured) choice.end(trial, o.main);
      return counted(std::move(found), overlap.calls_parallel);
    } catch (const c10::OutOfMemoryError&) {
      trial.measured = false;  // the plain way runs next, and its time does not belong to this trial
      o.late.release();
      choice.keep_first(key, o.pool != nullptr);
      const std::lock_guard lock(overlap.mutex);
      overlap.short_of_memory.insert(key);
    }
  }
  Gradients found = layer.run(layer.wanted);
  if (trial.measured && !trial.second) choice.end(trial, o.main);
  return counted(std::move(found), overlap.calls_serial);
}

Overlapping* leave_for(const at::Tensor& grad, const Mask& mask) {
  Overlapping* o = Overlapping::current();
  if (o == nullptr || !mask[0] || !mask[1] || c10::GradMode::is_enabled() || grad.device() != o->main.device) return nullptr;
  if (!checker::runs_on(o->main)) return nullptr;
  if (grad.is_cuda() && c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(grad.device()) != o->main.stream) return nullptr;
  return o;
}

Overlapping* Overlapping::current() noexcept { return static_cast<Overlapping*>(c10::ThreadLocalDebugInfo::get(kOverlapKind)); }

std::ostream& operator<<(std::ostream& out, const Described& of) {
  out << of.tensor.scalar_type() << of.tensor.sizes();
  if (!of.tensor.is_contiguous()) out << " of strides " << of.tensor.strides();
  return out;
}

OverlapScope::OverlapScope(ct_overlap& overlap, const ct_stream& main, const std::vector<const ct_stream*>& sides, ct_graph_pool* pool,
                           const torch::autograd::variable_list& roots)
    : failures_(std::uncaught_exceptions()), leave_(std::make_shared<Overlapping>(overlap, main, sides, pool, roots)), info_(kOverlapKind, leave_) {}

OverlapScope::~OverlapScope() {
  try {
    leave_->late.end(/*failed=*/std::uncaught_exceptions() > failures_);
  } catch (...) {
    // The device is lost.
  }
  ct_overlap& overlap = leave_->overlap;
  const std::lock_guard lock(overlap.mutex);
  overlap.kept = std::max(overlap.kept, leave_->late.peak());
}

}  // namespace ct

extern "C" {

ct_status* ct_overlap_new(int32_t always, ct_overlap** out) noexcept {
  return ct::guarded([&] {
    ct::load_cuda();
    ct::any_overlap.store(true, std::memory_order_relaxed);
    *out = new ct_overlap(always);
  });
}

void ct_overlap_free(ct_overlap* overlap) noexcept { delete overlap; }

ct_choice* ct_overlap_choice(ct_overlap* overlap) noexcept { return overlap == nullptr ? nullptr : &overlap->choice; }

ct_status* ct_overlap_count(ct_overlap* overlap, ct_overlap_counts* out) noexcept {
  return ct::guarded([&] {
    ct_overlap& o = ct::deref(overlap, "overlap");
    const std::lock_guard lock(o.mutex);
    out->layers = static_cast<int64_t>(o.parallel_layers.size());
    out->parallel = o.calls_parallel + o.calls_late;
    out->late = o.calls_late;
    out->saved_us = o.saved;
    out->kept_bytes = o.kept;
    out->serial = o.calls_serial;
    out->short_of_memory = static_cast<int64_t>(o.short_of_memory.size());
  });
}

ct_status* ct_backward_overlapping(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, int32_t retain_graph,
                                   ct_overlap* overlap, const ct_stream* const* sides, int32_t side_count, ct_graph_pool* pool) noexcept {
  return ct::executed(ct::autograd::without_autocast(x), [&] {
    if (side_count < 1) throw ct::Failure(CT_INVALID_ARGUMENT, "a backward on several streams without a side stream");
    std::vector<const ct_stream*> side_streams;
    for (int32_t i = 0; i < side_count; ++i) side_streams.push_back(&ct::deref(sides[i], "side"));
    const auto from = ct::autograd::tensors(roots, count, "root", *x.stream);
    const ct::OverlapScope scope(ct::deref(overlap, "overlap"), *x.stream, side_streams, pool, from);
    ct::autograd::backward(from, ct::autograd::gradients(grads, count, *x.stream), retain_graph);
  });
}

}  // extern "C"
