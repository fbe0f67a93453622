// token_linear: a product of one row, with the norm before it and what follows it. It is what a
// decoder computes for one token, four times in each layer.
//
//   input      [columns] float32, or without norms in the weights' dtype
//   weight     [rows, columns]
//   bias       [rows] in the weights' dtype
//   norm, late, late_norm, sum   [columns] float32
//   residual   [rows] float32
//
// It computes, in this order:
//
//   input  = sum = input + norm(late) * late_norm   with `late`
//   input  = norm(input) * norm                     with `norm`
//   result = input @ weight^T + bias, [1, rows], and then by `epilogue`:
//
//     ""         the result in the weights' dtype
//     float      the result in float32
//     add        residual + the result, in float32
//     silu       silu(a) * b, of the first and the second half of the result, in the weights' dtype
//     gelu_tanh  gelu(a) * b, the same
//
// Norms are RMS norms; with `offset` their weights are 1 + weight. The input of the product is
// rounded to the weights' dtype. Sums are in float32.
//
// With `scale`, [rows] float32, the weights are codes in int8 or float8_e4m3fn times the scale of
// their row. They may have up to 15 more columns than the input, which are multiplied with 0, so
// none of them is NaN. With `form` they are codes of 4 bits, which have their own scales: weight is
// what pack4 makes of a matrix. `dtype` then takes the place of the weights' dtype. The input is
// not rounded, but the kernel for codes of 4 bits rounds it to 16 bits: Note [Integers of the
// input] in token_linear_cuda.h.
//
// `sizes` says which kernel runs. [0] is token_linear_direct. [stages, window] is a ring of so many
// boxes, of which at most `window` are on their way: boxes of 768 or 1024 columns, or twice as many
// of 512. With [] the operator chooses. Codes have the ring alone, and below compute capability 9.0
// there is no ring. The kernels: token_linear_cuda.h. On the CPU, LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/codes4.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/token_boxes_cuda.h"
#include "kernels/token_codes4_cuda.h"
#include "kernels/token_codes_cuda.h"
#include "kernels/token_direct_cuda.h"
#include "kernels/token_instructions_cuda.h"
#include "kernels/token_linear_cuda.h"
#include "kernels/token_product.h"
#include "kernels/token_ring_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_linear";
constexpr int64_t kMostColumns = 32768, kMostNormed = 8192;

Epilogue epilogue_of(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kNames = {"", "float", "add", "silu", "gelu_tanh"};
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  TORCH_CHECK(found != kNames.end(), kOperator, ": the epilogue is \"", name, "\", want \"\", float, add, silu or gelu_tanh");
  return static_cast<Epilogue>(found - kNames.begin());
}

struct Inputs {
  const at::Tensor& input;
  const at::Tensor& weight;
  Optional bias;
  Optional norm;
  double eps;
  bool offset;
  Epilogue epilogue;
  Optional residual;
  Optional late;
  Optional late_norm;
  Optional sum;
  Optional scale;
  std::optional<at::ScalarType> dtype_of_codes;
  std::optional<Form4> form;

  bool coded() const { return is_defined(scale) || form.has_value(); }
  // As CODES in the CUDA text.
  int codes() const { return form ? *form : !coded() ? 0 : weight.scalar_type() == at::kChar ? 1 : 2; }
  Segments segments() const { return Segments(std::max<int64_t>(columns(), 1), *form); }  // of codes of 4 bits
  at::ScalarType dtype() const { return coded() ? *dtype_of_codes : weight.scalar_type(); }
  int64_t rows() const { return form ? weight.size(0) / segments().count : weight.size(0); }
  int64_t columns() const { return coded() ? input.numel() : weight.size(1); }
  int64_t results() const { return epilogue >= kSilu ? rows() / 2 : rows(); }
  bool normed() const { return is_defined(norm) || is_defined(late); }

  // Throws if t is there and has not this many elements in this dtype, as the kernels read them.
  void check(Optional t, const char* name, int64_t elements, at::ScalarType dtype) const {
    check_elements(kOperator, t, name, elements, dtype, weight.device());
  }

  void check() const {
    TORCH_CHECK(weight.dim() == 2 && weight.numel() > 0 && weight.is_contiguous() && is_aligned(weight), kOperator, ": weight is ", weight.sizes(),
                ", want a contiguous matrix, aligned to 16 bytes");
    const at::ScalarType kind = weight.scalar_type();
    TORCH_CHECK((kind == at::kChar || kind == at::kFloat8_e4m3fn) == is_defined(scale) && (kind == at::kByte) == form.has_value() && dtype_of_codes.has_value() == coded(), kOperator,
                ": weight is ", kind, ", and codes in int8 or float8_e4m3fn have a scale and a dtype, packed codes in uint8 a form and a dtype, and no other weights have");
    TORCH_CHECK(!is_defined(scale) || (at::isFloatingType(dtype()) && weight.size(1) >= columns() && weight.size(1) < columns() + 16), kOperator, ": weight is ",
                weight.sizes(), " for ", columns(), " columns of ", dtype(), ", want codes of so many columns, or up to 15 more, and a floating dtype");
    TORCH_CHECK(!form || (at::isFloatingType(dtype()) && columns() > 0 && weight.size(1) == segments().bytes && weight.size(0) % segments().count == 0), kOperator, ": weight is ",
                weight.sizes(), " of packed codes, and ", columns(), " columns take ", segments().count, " segments of ", segments().bytes, " bytes, and a floating dtype: see pack4");
    TORCH_CHECK(!needs_gradient({input, weight, bias, norm, residual, late, late_norm}), kOperator, ": it has no gradient: call it in NoGrad");
    TORCH_CHECK(epilogue < kSilu || rows() % 2 == 0, kOperator, ": weight is ", weight.sizes(), ", and the epilogue needs an even number of rows");
    TORCH_CHECK(is_defined(late) == is_defined(late_norm) && is_defined(late) == is_defined(sum), kOperator, ": late, late_norm and sum go together");
    TORCH_CHECK(is_defined(residual) == (epilogue == kAdd), kOperator, ": the epilogue add has a residual, and no other has");
    TORCH_CHECK(!is_defined(sum) || (!sum->is_alias_of(input) && !sum->is_alias_of(*late)), kOperator, ": sum shares memory with an input, which other blocks still read");
    const at::ScalarType wide = dtype() == at::kDouble ? at::kDouble : at::kFloat;
    check(input, "input", columns(), normed() || input.scalar_type() != dtype() ? wide : dtype());
    check(bias, "bias", rows(), dtype());
    check(scale, "scale", rows(), at::kFloat);
    check(norm, "norm", columns(), wide);
    check(late, "late", columns(), wide);
    check(late_norm, "late_norm", columns(), wide);
    check(sum, "sum", columns(), wide);
    check(residual, "residual", rows(), wide);
  }
};

at::Tensor by_operators(const Inputs& of) {
  const at::ScalarType dtype = of.dtype(), wide = dtype == at::kDouble ? dtype : at::kFloat, computed = of.coded() ? wide : dtype;
  const auto normed = [&](const at::Tensor& t, const at::Tensor& weight) {
    return at::rms_norm(t, {of.columns()}, of.offset ? at::add(weight, 1) : weight, of.eps);
  };
  at::Tensor input = of.input.view({1, -1});
  if (is_defined(of.late)) {
    input = at::add(input, normed(of.late->view({1, -1}), *of.late_norm));
    of.sum->copy_(input.view_as(*of.sum));
  }
  if (is_defined(of.norm)) input = normed(input, *of.norm);
  const at::Tensor weight = of.form    ? numbers4(of.weight, of.columns(), *of.form, computed)
                            : of.coded() ? at::mul(of.weight.narrow(1, 0, of.columns()).to(computed), of.scale->unsqueeze(1))
                                         : of.weight;
  const std::optional<at::Tensor> bias = is_defined(of.bias) ? std::optional(of.bias->to(computed)) : std::nullopt;
  at::Tensor result = at::linear(input.to(computed), weight, bias);
  const auto half = [&](int64_t i) { return result.narrow(1, i * of.results(), of.results()); };
  switch (of.epilogue) {
    case kPlain: return result.to(dtype);
    case kFloat: return result.to(wide);
    case kAdd: return at::add(of.residual->view({1, -1}), result);
    case kSilu: return at::silu(half(0)).mul(half(1)).to(dtype);
    case kGelu: return at::gelu(half(0), "tanh").mul(half(1)).to(dtype);
    case kClamped: break;  // of experts alone
  }
  return result;
}

const CudaProgram& program_of(const Inputs& of, Edge edge, const Cut& cut, int line, int pairs, int warps) {
  const at::ScalarType dtype = of.dtype(), input = of.input.scalar_type();
  const int codes = of.codes();
  const std::tuple key(dtype, input, of.columns(), is_defined(of.norm), is_defined(of.late), of.offset, static_cast<int>(of.epilogue), static_cast<int>(edge), cut.boxes,
                       codes, pairs);
  return variant_of(key, [&] {
    Variant made{"a product of one row of " + std::to_string(of.columns()) + " " + float_name(dtype),
                 "\n" + define("DTYPE", float_name(dtype)) + define("INPUT", float_name(input)) + define("COLUMNS", of.columns()) +
                     define("PADDED", cut.padded) + define("BOXES", cut.boxes) + define("WIDTH", cut.width) + define("LINE", line) +
                     define("NORM", is_defined(of.norm)) + define("LATE", is_defined(of.late)) + define("OFFSET", of.offset) +
                     define("EPILOGUE", of.epilogue) + define("EDGE", edge) + define("CODES", codes) + define("PAIRS", pairs) + define("PICKS", 0) +
                     define("TOP", 1) + define("WARPS", warps) + define("TOGETHER", 1) + define("SPLIT", 1) + define("BIAS", 0) + kEdgesText,
                 std::string(kTokenInstructionsText) + kTokenLinearText, /*fused_multiply_add=*/true};
    if (cut.boxes == 0) made.source += kTokenDirectText;
    if (cut.boxes != 0) made.source += std::string(kTokenRingText) + (codes == 0 ? kTokenBoxesText : codes < kMxfp4 ? kTokenCodesText : kTokenCodes4Text);
    made.most_shared_memory = true;
    return made;
  });
}

// Returns how many pairs a group of codes has: 8, or 4 where the busiest block then has 5 % less.
int pairs_of_codes(int pairs, int multiprocessors) {
  const auto busiest = [&](int in_group) {
    const int groups = (pairs + in_group - 1) / in_group, blocks = std::min(multiprocessors, groups);
    return (groups + blocks - 1) / blocks * in_group;
  };
  return 20 * busiest(8) > 21 * busiest(4) ? 4 : 8;
}

at::Tensor by_kernel(const Inputs& of, Edge edge, at::IntArrayRef sizes) {
  const at::ScalarType dtype = of.dtype();
  const c10::DeviceIndex device = of.weight.device().index();
  const CudaChip chip = cuda().chip(device);
  TORCH_CHECK((dtype == at::kBFloat16 || dtype == at::kHalf) && of.columns() % 8 == 0 && of.columns() <= (of.normed() ? kMostNormed : kMostColumns) &&
                  of.rows() < INT32_MAX && chip.capability >= (of.coded() ? 90 : 80) && (!is_defined(of.scale) || of.weight.size(1) % 16 == 0),
              kOperator, ": weight is ", of.weight.scalar_type(), " ", of.weight.sizes(), " for ", of.columns(), " columns of ", dtype,
              ", and the kernels take bfloat16 and float16, a multiple of 8 columns up to ", kMostColumns, " (", kMostNormed,
              " behind a norm), on compute capability 8.0; codes in rows of a multiple of 16 bytes, on 9.0");
  const at::ScalarType to = of.epilogue == kFloat || of.epilogue == kAdd ? at::kFloat : dtype;
  at::Tensor out = at::empty({1, of.results()}, of.weight.options().dtype(to));
  Linear l{.input = of.input.const_data_ptr(), .weight = of.weight.const_data_ptr(), .bias = read(of.bias), .norm = read(of.norm), .late = read(of.late),
           .late_norm = read(of.late_norm), .sum = is_defined(of.sum) ? of.sum->mutable_data_ptr() : nullptr, .residual = read(of.residual),
           .scale = read(of.scale), .out = out.mutable_data_ptr(), .eps = static_cast<float>(of.eps), .rows = static_cast<int>(of.rows())};
  const c10::Stream stream = images::stream_of(of.weight);
  const int pairs = static_cast<int>((of.rows() + 1) / 2);
  TORCH_CHECK(sizes.empty() || (sizes.size() == 1 && sizes[0] == 0 && !of.coded()) || (sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0), kOperator,
              ": sizes is ", sizes, ", want [], [0] or [stages, window], and [0] not with codes");
  const bool ring = of.coded() || (chip.capability >= 90 && !(sizes.size() == 1 && sizes[0] == 0));
  const int element = of.coded() ? 1 : 2;
  const Cut cut = of.form ? Cut(of.segments()) : Cut(of.columns(), of.coded(), ring);
  const int warps = of.form ? warps4(cut.width / 128) : of.coded() ? 8 : 4;
  const int input_bytes = cut.padded * (of.form ? 18 : of.coded() ? 32 : 16) / 8;
  if (!ring) {
    void* arguments[] = {&l};
    const int blocks = std::min(2 * chip.multiprocessors, (pairs + 7) / 8);
    cuda().launch(program_of(of, edge, cut, 0, 4, 0), "token_linear_direct", stream, blocks, 256, arguments, input_bytes + 64, start_of(edge));
    return out;
  }
  // A block gets as many boxes as it copies, but not more than there is room for.
  const int in_group = of.form ? 8 : of.coded() ? pairs_of_codes(pairs, chip.multiprocessors) : 4;
  const int line = of.form ? static_cast<int>(of.segments().bytes) : cut.width * element, box_bytes = line * 2 * in_group;
  const int groups = (pairs + in_group - 1) / in_group;
  const int blocks = std::min(chip.multiprocessors, groups), copies = (groups + blocks - 1) / blocks * cut.boxes;
  const int kept = input_bytes + 8 * warps, of_sums = of.form ? bytes_of_sums4(warps, in_group) : of.coded() ? 8 * warps * 2 * in_group : 0;  // bytes
  const int room = (chip.shared_memory - kept - of_sums - 128) / (box_bytes + 16);
  // Where a block copies few boxes, the loads of its input count for more than the boxes that they
  // wait behind.
  const auto size = [&](size_t i, int64_t own) {
    return static_cast<int>(std::min<int64_t>(sizes.empty() ? own : sizes[i], INT16_MAX)) * cut.boxes_together();
  };
  if (of.form && room < 1) return by_operators(of);  // a chip with little shared memory
  l.stages = std::min({size(0, of.form ? window4(box_bytes) + 1 : 10), copies, room});
  l.window = std::min(size(1, of.form ? window4(box_bytes) : copies <= 8 * cut.boxes_together() ? 2 : 3), l.stages);
  TORCH_CHECK(l.stages > 0, kOperator, ": a row of ", of.columns(), " elements leaves no room in shared memory");
  const int64_t matrices = of.epilogue >= kSilu ? 2 : 1;
  CudaBoxes map{};
  Boxes4 codes{of.weight.const_data_ptr(), nullptr};
  if (!of.form) {
    map = cuda().boxes(of.weight.const_data_ptr(), matrices, matrices, of.rows() / matrices, of.weight.size(1) * element, static_cast<int>(2 * in_group / matrices), line);
  }
  void* arguments[] = {&l, of.form ? static_cast<void*>(&codes) : &map};
  const char* const name = of.form ? "token_codes4" : of.coded() ? "token_linear_codes" : "token_linear_boxes";
  cuda().launch(program_of(of, edge, cut, line, in_group, warps), name, stream, blocks, 32 * (warps + 1), arguments, l.stages * (box_bytes + 16) + kept, start_of(edge));
  return out;
}

at::Tensor token_linear(const at::Tensor& input, const at::Tensor& weight, Optional bias, Optional norm, double eps, bool offset, c10::string_view epilogue,
                        Optional residual, Optional late, Optional late_norm, Optional sum, c10::string_view edge, at::IntArrayRef sizes, Optional scale,
                        std::optional<at::ScalarType> dtype, std::optional<c10::string_view> form) {
  std::optional<Form4> form4;
  if (form) form4 = form4_of(kOperator, {form->data(), form->size()});
  const Inputs of{input, weight, bias, norm, eps, offset, epilogue_of({epilogue.data(), epilogue.size()}), residual, late, late_norm, sum, scale, dtype, form4};
  of.check();
  const Edge checked = edge_of(kOperator, {edge.data(), edge.size()}, weight.device());
  if (weight.is_cuda()) return by_kernel(of, checked, sizes);
  return by_operators(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "token_linear(Tensor input, Tensor weight, Tensor? bias=None, Tensor? norm=None, float eps=0., bool offset=False, str epilogue=\"\", "
      "Tensor? residual=None, Tensor? late=None, Tensor? late_norm=None, Tensor(a!)? sum=None, str edge=\"full\", int[] sizes=[], Tensor? scale=None, ScalarType? dtype=None, str? form=None) -> Tensor");
  declare_early_reads(kOperator, {{"weight"}, {"norm"}, {"late_norm"}});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_linear", TORCH_FN(token_linear)); }

}  // namespace
}  // namespace ct
