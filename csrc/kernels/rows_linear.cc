// rows_linear: a product of a few rows, and what follows it. A decoder calls it four times a layer
// for the next tokens of several answers, and once for the head.
//
//   input    [rows, columns]
//   weight   [outputs, columns] in the same dtype
//   bias     [outputs] in the same dtype
//
// result = input @ weight^T + bias, and then by `epilogue`:
//
//   ""         the result in the dtype
//   float      the result in float32
//   silu       silu(a) * b, of the first and the second half of the result, in the dtype
//   gelu_tanh  gelu(a) * b, the same
//
// Sums are in float32. Their order for a row depends on whether there are up to 8, 16 or 32 rows,
// and on nothing else of the other rows. The kernel takes up to 32 rows in bfloat16 or float16, a
// multiple of 8 columns, and aligned memory: rows_linear_cuda.h. It needs compute capability 9.0.
// For all else, and on the CPU, LibTorch's product does the work. Its result is rounded to the
// dtype before an epilogue changes it. With float64 all of it is float64.
//
// `edge` is in edges.h: `early` reads the weight early. `sizes` is [stages, window] of the kernel's
// ring, cut to what has room, or [] for those that were the fastest.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/rows_linear_cuda.h"
#include "kernels/token_instructions_cuda.h"
#include "kernels/token_product.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::rows_linear";
constexpr int64_t kMostRows = 32, kMostSplit = 8;
constexpr int kWarps = 8, kStageBytes = 16 << 10;

Epilogue epilogue_of(std::string_view name) {
  if (name.empty()) return kPlain;
  if (name == "float") return kFloat;
  if (name == "silu") return kSilu;
  TORCH_CHECK(name == "gelu_tanh", kOperator, ": the epilogue is \"", name, "\", want \"\", float, silu or gelu_tanh");
  return kGelu;
}

struct Inputs {
  const at::Tensor& input;
  const at::Tensor& weight;
  Optional bias;
  Epilogue epilogue;

  int64_t count() const { return input.size(0); }
  int64_t columns() const { return weight.size(1); }
  int64_t outputs() const { return weight.size(0); }
  bool halves() const { return epilogue == kSilu || epilogue == kGelu; }
  int64_t results() const { return halves() ? outputs() / 2 : outputs(); }

  void check() const {
    TORCH_CHECK(weight.dim() == 2 && weight.numel() > 0 && weight.is_contiguous() && at::isFloatingType(weight.scalar_type()), kOperator, ": weight is ",
                weight.scalar_type(), " ", weight.sizes(), ", want a matrix without gaps in a floating dtype");
    TORCH_CHECK(input.dim() == 2 && input.numel() > 0 && input.size(1) == columns() && input.is_contiguous() && input.scalar_type() == weight.scalar_type() &&
                    input.device() == weight.device(),
                kOperator, ": input is ", input.scalar_type(), " ", input.sizes(), " on ", input.device(), ", want [rows, ", columns(), "] of ",
                weight.scalar_type(), " on ", weight.device(), " without gaps");
    check_elements(kOperator, bias, "bias", outputs(), weight.scalar_type(), weight.device());
    TORCH_CHECK(!halves() || outputs() % 2 == 0, kOperator, ": weight is ", weight.sizes(), ", and the epilogue needs an even number of outputs");
    TORCH_CHECK(!needs_gradient({input, weight, bias}), kOperator, ": it has no gradient: call it in NoGrad");
  }
};

at::Tensor by_operators(const Inputs& of) {
  const at::Tensor result = at::linear(of.input, of.weight, of.bias);
  if (of.epilogue == kPlain) return result;
  if (of.epilogue == kFloat) return result.to(result.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  using Gated = at::Tensor(const at::Tensor&, c10::string_view, double, double);
  static auto* const gated = new auto(operator_of<Gated>("streamtorch::gated"));
  return gated->call(result, of.epilogue == kSilu ? "silu" : "gelu_tanh", 0, 0);
}

// How the kernel is laid out on a device.
struct Layout {
  int64_t rows;   // of the input in shared memory
  int64_t tiles;  // of 16 rows of weights in a group
  int64_t split;  // blocks of a cluster
  int64_t boxes;  // of a block's part of a row
  int64_t kept;   // bytes of shared memory, without the ring
  int stages;     // of the ring; 0: there is no room
};

// Returns the smallest clusters whose ring has 8 stages, or 4 with more than 16 rows. The largest
// clusters may have 4, and with fewer there is no room. A ring of 6 was slower than one of 8,
// because a larger part of the input comes later. With more rows, larger clusters cost more.
Layout layout_of(const CudaChip& chip, const Inputs& of) {
  constexpr int kLeastStages = 4;
  Layout made{};
  made.rows = of.count() <= 8 ? 8 : of.count() <= 16 ? 16 : 32;
  made.tiles = made.rows > 16 ? 2 : 1;
  const int64_t parts = kWarps / made.tiles, width = 64 * parts, pairs = 8 * made.tiles;
  for (made.split = 1;; made.split *= 2) {
    made.boxes = (of.columns() + made.split * width - 1) / (made.split * width);
    made.kept = 2 * made.rows * (made.boxes * width + 32) + 4 * parts * made.rows * (2 * pairs + 4) + (made.split > 1 ? 16 * made.rows * pairs + 16 : 0);
    made.stages = static_cast<int>((chip.shared_memory - made.kept) / (kStageBytes + 16));
    if (made.split == kMostSplit || made.stages >= (made.rows > 16 ? 1 : 2) * kLeastStages) break;
  }
  if (made.stages < kLeastStages) made.stages = 0;
  return made;
}

const CudaProgram& program_of(const Inputs& of, const Layout& layout, Edge edge) {
  const at::ScalarType dtype = of.weight.scalar_type();
  return variant_of(std::tuple(dtype, of.columns(), layout.rows, layout.split, static_cast<int>(of.epilogue), static_cast<int>(edge)), [&] {
    Variant made{"a product of up to " + std::to_string(layout.rows) + " rows of " + std::to_string(of.columns()) + " " + float_name(dtype),
                 "\n" + define("DTYPE", float_name(dtype)) + define("MMA", dtype == at::kHalf ? "\"f16\"" : "\"bf16\"") + define("ROWS", layout.rows) +
                     define("COLUMNS", of.columns()) + define("TILES", layout.tiles) + define("BOXES", layout.boxes) + define("SPLIT", layout.split) +
                     define("EPILOGUE", of.epilogue) + define("EDGE", edge) + kEdgesText,
                 std::string(kTokenInstructionsText) + kRowsLinearText, /*fused_multiply_add=*/true};
    made.most_shared_memory = true;
    return made;
  });
}

// As the struct RowsLinear of the CUDA text.
struct RowsLinear {
  const void* input;
  const void* bias;
  void* out;
  int count;
  int outputs;
  int stages;
  int window;
};

// Returns how many clusters of the kernel run at the same time. Only the first call for a program
// and a size asks CUDA.
int clusters_of(const CudaProgram& program, c10::DeviceIndex device, int threads, int shared, int split) {
  static auto* const mutex = new std::mutex;
  static auto* const known = new std::map<std::tuple<const CudaProgram*, c10::DeviceIndex, int>, int>;
  const std::lock_guard lock(*mutex);
  const auto [at, added] = known->try_emplace({&program, device, shared}, 0);
  if (added) at->second = cuda().clusters(program, "rows_linear", device, static_cast<unsigned>(threads), shared, static_cast<unsigned>(split));
  return at->second;
}

at::Tensor by_kernel(const Inputs& of, const Layout& layout, Edge edge, at::IntArrayRef sizes) {
  const c10::DeviceIndex device = of.weight.device().index();
  const CudaChip chip = cuda().chip(device);
  const CudaProgram& program = program_of(of, layout, edge);
  at::Tensor out = at::empty({of.count(), of.results()}, of.weight.options().dtype(of.epilogue == kFloat ? at::kFloat : of.weight.scalar_type()));
  const auto size = [&](size_t i, int own) { return sizes.empty() ? own : static_cast<int>(std::min<int64_t>(sizes[i], INT16_MAX)); };
  const int stages = std::min(size(0, 10), layout.stages);
  RowsLinear l{of.input.const_data_ptr(), read(of.bias), out.mutable_data_ptr(), static_cast<int>(of.count()), static_cast<int>(of.outputs()), stages,
               std::min(size(1, 3), stages)};
  const int split = static_cast<int>(layout.split), shared = static_cast<int>(layout.kept + stages * (kStageBytes + 16)), threads = 32 * (kWarps + 1);
  const int64_t matrices = of.halves() ? 2 : 1, in_group = 16 * layout.tiles, groups = (of.outputs() + in_group - 1) / in_group;
  const int most = split == 1 ? chip.multiprocessors : clusters_of(program, device, threads, shared, split);
  if (most < 1) return by_operators(of);  // a part of a device has no room for a cluster
  CudaBoxes map = cuda().boxes(of.weight.const_data_ptr(), matrices, matrices, of.outputs() / matrices, 2 * of.columns(), static_cast<int>(in_group / matrices),
                               static_cast<int>(128 * kWarps / layout.tiles));
  void* arguments[] = {&l, &map};
  cuda().launch(program, "rows_linear", images::stream_of(of.weight), static_cast<unsigned>(std::min<int64_t>(most, groups) * split), static_cast<unsigned>(threads),
                arguments, shared, start_of(edge), static_cast<unsigned>(split));
  return out;
}

at::Tensor rows_linear(const at::Tensor& input, const at::Tensor& weight, Optional bias, c10::string_view epilogue, c10::string_view edge,
                       at::IntArrayRef sizes) {
  const Inputs of{input, weight, bias, epilogue_of({epilogue.data(), epilogue.size()})};
  of.check();
  TORCH_CHECK(sizes.empty() || (sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0), kOperator, ": sizes is ", sizes, ", want [] or [stages, window]");
  const Edge checked = edge_of(kOperator, {edge.data(), edge.size()}, weight.device());
  const at::ScalarType dtype = weight.scalar_type();
  if (weight.is_cuda() && of.count() <= kMostRows && of.columns() % 8 == 0 && of.columns() < INT32_MAX / 64 && of.outputs() < INT32_MAX - 64 &&
      (dtype == at::kBFloat16 || dtype == at::kHalf) && is_aligned(input) && is_aligned(weight)) {
    const CudaChip chip = cuda().chip(weight.device().index());
    const Layout layout = layout_of(chip, of);
    if (chip.capability >= 90 && layout.stages > 0) return by_kernel(of, layout, checked, sizes);
  }
  return by_operators(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("rows_linear(Tensor input, Tensor weight, Tensor? bias=None, str epilogue=\"\", str edge=\"full\", int[] sizes=[]) -> Tensor");
  declare_early_reads(kOperator, {{"weight"}});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("rows_linear", TORCH_FN(rows_linear)); }

}  // namespace
}  // namespace ct
