// token_experts: products of one token with the matrices of the experts that it picked.
//
//   input     without shares [columns] float32, and with them [top, columns] in the weights' dtype
//   weight    [experts, rows, columns], or packed codes of 4 bits, [experts, ..., bytes] uint8
//   picks     [top, 4] int32, as token_route makes them
//   slots     [slots, rows, columns], or none: experts that are there already
//   shares    [top] float32, or none
//   bias      [experts, rows] in the weights' dtype
//   norm      [columns] float32: an RMS norm of the input, as token_linear has it
//   residual  [rows] float32
//
// Without shares each pick has a result of its own, [top, rows / 2] in the weights' dtype. The
// epilogue is silu or gelu_tanh of the first half of the rows times the second half, or "clamped":
// of adjacent rows a and b, (clamp(b) + 1) * a * sigmoid(alpha * a), where a is at most `limit`,
// and b between -limit and limit. With shares the results are summed by them, and added to the
// residual: [1, rows] float32.
//
// Packed codes are those of codes4.h, in the form `form`. `dtype` then takes the place of the
// weights' dtype. The numbers that codes and scales tell are multiplied with the input, which the
// kernel rounds to 16 bits: Note [Integers of the input] in token_linear_cuda.h.
//
// Without slots a pick (i, -1, expert) is weight[i]. With slots it is slots[i], and a pick (i,
// expert, expert) is weight[expert], which is copied into slots[i] on the way. `weight` may then
// lie in page-locked memory of the host. A pick out of range reads other memory: the device does
// not check it. The kernels need compute capability 9.0: token_experts_cuda.h, and for packed codes
// token_codes4_cuda.h. On the CPU, LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/codes4.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/token_codes4_cuda.h"
#include "kernels/token_experts_cuda.h"
#include "kernels/token_instructions_cuda.h"
#include "kernels/token_linear_cuda.h"
#include "kernels/token_product.h"
#include "kernels/token_ring_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_experts";
constexpr int64_t kMostColumns = 8192, kMostSummed = 16384, kMostTop = 16;

struct Inputs {
  const at::Tensor& input;
  const at::Tensor& weight;
  const at::Tensor& picks;
  Optional slots;
  Optional shares;
  Optional bias;
  Optional norm;
  double eps;
  bool offset;
  Epilogue epilogue;
  Optional residual;
  double limit;
  double alpha;
  std::optional<at::ScalarType> dtype_of_codes;
  Form4 form;

  Segments segments() const { return Segments(std::max<int64_t>(columns(), 1), form); }  // of codes
  bool summed() const { return is_defined(shares); }
  bool coded() const { return weight.scalar_type() == at::kByte; }
  at::ScalarType dtype() const { return coded() && dtype_of_codes ? *dtype_of_codes : weight.scalar_type(); }
  at::ScalarType wide() const { return dtype() == at::kDouble ? at::kDouble : at::kFloat; }
  int64_t experts() const { return weight.size(0); }
  int64_t rows() const { return coded() ? weight.size(1) / segments().count : weight.size(1); }
  int64_t columns() const { return !coded() ? weight.size(2) : summed() ? input.numel() / top() : input.numel(); }
  int64_t top() const { return picks.numel() / 4; }

  void check(Optional t, const char* name, int64_t elements, at::ScalarType dtype) const {
    check_elements(kOperator, t, name, elements, dtype, weight.device());
  }

  void check() const {
    TORCH_CHECK(weight.dim() == 3 && weight.numel() > 0 && weight.is_contiguous() && is_aligned(weight) && at::isFloatingType(dtype()) && coded() == dtype_of_codes.has_value(),
                kOperator, ": weight is ", weight.scalar_type(), " ", weight.sizes(),
                ", want contiguous matrices of a floating dtype, aligned to 16 bytes, or packed codes in uint8 and a dtype");
    TORCH_CHECK(top() > 0 && top() <= std::min(kMostTop, experts()), kOperator, ": picks are ", picks.sizes(), " of ", experts(), " experts, want [top, 4] for 1 to ",
                std::min(kMostTop, experts()));
    TORCH_CHECK(!coded() || (columns() > 0 && weight.size(2) == segments().bytes && weight.size(1) % segments().count == 0), kOperator, ": weight is ", weight.sizes(),
                " of packed codes, and ", columns(), " columns take ", segments().count, " segments of ", segments().bytes, " bytes: see pack4");
    TORCH_CHECK(!needs_gradient({input, weight, shares, bias, norm, residual}), kOperator, ": it has no gradient: call it in NoGrad");
    TORCH_CHECK(summed() == (epilogue == kAdd) && is_defined(residual) == summed(), kOperator, ": shares, a residual and the epilogue add go together");
    TORCH_CHECK(summed() || rows() % 2 == 0, kOperator, ": weight is ", weight.sizes(), ", and the epilogue needs an even number of rows");
    TORCH_CHECK(!summed() || !is_defined(norm), kOperator, ": with shares there is no norm");
    check(picks, "picks", 4 * top(), at::kInt);
    TORCH_CHECK(!is_defined(slots) || (slots->dim() == 3 && slots->size(1) == weight.size(1) && slots->size(2) == weight.size(2) && slots->size(0) >= top() &&
                                       slots->scalar_type() == weight.scalar_type() && slots->device() == weight.device() && slots->is_contiguous() && is_aligned(*slots)),
                kOperator, ": slots are not at least ", top(), " matrices like those of weight, ", weight.sizes());
    check(shares, "shares", top(), wide());
    check(input, "input", summed() ? top() * columns() : columns(), summed() ? dtype() : wide());
    check(bias, "bias", experts() * rows(), dtype());
    check(norm, "norm", columns(), wide());
    check(residual, "residual", rows(), wide());
  }
};

at::Tensor by_operators(const Inputs& of) {
  const at::Tensor& held = is_defined(of.slots) ? *of.slots : of.weight;
  const at::Tensor picks = of.picks.view({-1, 4}).to(at::kLong), places = picks.select(1, 0), numbers = picks.select(1, 2);
  const auto within = [](const at::Tensor& t, int64_t least, int64_t count) { return t.min().item<int64_t>() >= least && t.max().item<int64_t>() < count; };
  TORCH_CHECK(within(places, 0, held.size(0)) && within(numbers, 0, of.experts()) && within(picks.select(1, 1), -1, of.experts()), kOperator,
              ": a pick is none of ", held.size(0), " places, or none of ", of.experts(), " experts");
  for (int64_t k = 0; k < of.top(); ++k) {
    const int64_t from = picks.select(0, k).select(0, 1).item<int64_t>();
    if (from < 0) continue;
    TORCH_CHECK(is_defined(of.slots), kOperator, ": a pick is to be copied, and there are no slots");
    of.slots->select(0, places.select(0, k).item<int64_t>()).copy_(of.weight.select(0, from));
  }
  at::Tensor input = of.input.view({of.summed() ? of.top() : 1, of.columns()});
  if (is_defined(of.norm)) input = at::rms_norm(input, {of.columns()}, of.offset ? at::add(*of.norm, 1) : *of.norm, of.eps);
  const at::ScalarType computed = of.coded() ? of.wide() : of.dtype();
  input = input.to(computed).expand({of.top(), of.columns()}).unsqueeze(2);
  at::Tensor matrices = held.index_select(0, places);
  if (of.coded()) matrices = numbers4(matrices, of.columns(), of.form, computed);
  at::Tensor result = at::bmm(matrices, input).squeeze(2);
  if (is_defined(of.bias)) result = at::add(result, of.bias->view({of.experts(), of.rows()}).index_select(0, numbers).to(computed));
  if (of.summed()) {
    const at::Tensor sum = at::mul(result.to(of.wide()), of.shares->view({-1, 1})).sum(0, /*keepdim=*/true);
    return at::add(of.residual->view({1, -1}), sum);
  }
  if (of.epilogue == kClamped) {
    const at::Tensor pairs = result.view({of.top(), -1, 2});
    const at::Tensor gate = at::clamp(pairs.select(2, 0), {}, of.limit), up = at::clamp(pairs.select(2, 1), -of.limit, of.limit);
    return at::mul(at::add(up, 1), at::mul(gate, at::sigmoid(at::mul(gate, of.alpha)))).to(of.dtype());
  }
  const at::Tensor gate = result.narrow(1, 0, of.rows() / 2), up = result.narrow(1, of.rows() / 2, of.rows() / 2);
  return at::mul(of.epilogue == kSilu ? at::silu(gate) : at::gelu(gate, "tanh"), up).to(of.dtype());
}

// How the sums of packed codes are divided.
struct Division {
  int split = 1;     // blocks that add up the picks of a group together
  int together = 1;  // picks whose boxes are a stage

  Division(const Inputs& of, int groups, int multiprocessors) {
    if (!of.coded() || !of.summed()) return;
    const int top = static_cast<int>(of.top());
    const auto busiest = [&](int blocks) {  // boxes of the busiest block
      const int clusters = std::min(groups, multiprocessors / blocks), turns = (groups + clusters - 1) / clusters;
      constexpr int kMostTurns = 8;  // with a split: see sum_of_cluster
      return blocks > 1 && (top % blocks != 0 || turns > kMostTurns) ? INT32_MAX : turns * top / blocks;
    };
    if (busiest(2) < busiest(1)) split = 2;
    // Small boxes go together, so that all warps have parts of them, and few wait for each other.
    constexpr int64_t kMostLines = 24;  // two for each warp
    const int parts = top / split;
    if (of.segments().count != 1) return;
    together = parts;
    while (together > 1 && (parts % together != 0 || together * (of.segments().columns / 128) > kMostLines)) --together;
  }
};

const CudaProgram& program_of(const Inputs& of, Edge edge, const Cut& cut, int line, const Division& division, int warps) {
  const at::ScalarType dtype = of.dtype();
  const std::tuple key(dtype, of.coded() ? static_cast<int>(of.form) : 0, of.columns(), of.top(), is_defined(of.norm), is_defined(of.bias), of.offset, static_cast<int>(of.epilogue), static_cast<int>(edge), division.split);
  return variant_of(key, [&] {
    Variant made{"products of one token with " + std::to_string(of.top()) + " experts of " + std::to_string(of.columns()) + " " + float_name(dtype),
                 "\n" + define("DTYPE", float_name(dtype)) + define("INPUT", of.summed() ? float_name(dtype) : "Float") + define("COLUMNS", of.columns()) +
                     define("PADDED", cut.padded) + define("BOXES", cut.boxes) + define("WIDTH", cut.width) + define("LINE", line) + define("NORM", is_defined(of.norm)) +
                     define("LATE", 0) + define("OFFSET", of.offset) + define("EPILOGUE", of.epilogue) + define("EDGE", edge) + define("CODES", of.coded() ? of.form : 0) +
                     define("PAIRS", of.coded() ? 8 : 4) + define("PICKS", of.summed() ? 2 : 1) + define("TOP", of.top()) +
                     define("WARPS", warps) + define("TOGETHER", division.together) + define("SPLIT", division.split) + define("BIAS", of.summed() && is_defined(of.bias)) + kEdgesText,
                 std::string(kTokenInstructionsText) + kTokenLinearText + kTokenRingText + (of.coded() ? kTokenCodes4Text : kTokenExpertsText), /*fused_multiply_add=*/true};
    made.most_shared_memory = true;
    return made;
  });
}

at::Tensor by_kernel(const Inputs& of, Edge edge, at::IntArrayRef sizes) {
  const at::ScalarType dtype = of.dtype();
  const c10::DeviceIndex device = of.weight.device().index();
  const CudaChip chip = cuda().chip(device);
  TORCH_CHECK((dtype == at::kBFloat16 || dtype == at::kHalf) && of.columns() % 8 == 0 && of.columns() <= (of.summed() ? kMostSummed : kMostColumns) && of.rows() < INT32_MAX / kMostTop - 1024 && chip.capability >= 90,
              kOperator, ": weight is ", dtype, " ", of.weight.sizes(), ", and the kernel takes bfloat16 and float16, and a multiple of 8 columns up to ",
              kMostColumns, " (", kMostSummed, " with shares), on compute capability 9.0");
  TORCH_CHECK(sizes.empty() || (sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0), kOperator, ": sizes is ", sizes, ", want [] or [stages, window]");
  const int in_group = of.coded() ? 8 : 4;  // as in the CUDA texts
  const int top = static_cast<int>(of.top()), turns = of.summed() ? 1 : top;
  const int pairs = static_cast<int>((of.rows() + 1) / 2), groups = (pairs + in_group - 1) / in_group;
  const Division division(of, groups, chip.multiprocessors);
  const int parts = of.summed() ? top / division.split : 1;
  const Cut cut = of.coded() ? Cut(of.segments()) : Cut(of.columns(), /*coded=*/false, /*ring=*/true);
  const int warps = of.coded() ? warps4(division.together * cut.width / 128) : 4;
  const int line = of.coded() ? static_cast<int>(of.segments().bytes) : cut.width * 2;  // bytes of a row in a box
  const int bytes_of_eight = of.coded() ? 18 : 16;  // bytes of eight columns of the input
  at::Tensor out = of.summed() ? at::empty({1, of.rows()}, of.weight.options().dtype(at::kFloat)) : at::empty({top, of.rows() / 2}, of.weight.options().dtype(dtype));
  Linear l{.input = of.input.const_data_ptr(), .weight = of.weight.const_data_ptr(), .bias = read(of.bias), .norm = read(of.norm), .residual = read(of.residual),
           .out = out.mutable_data_ptr(), .picks = of.picks.const_data_ptr(), .shares = read(of.shares), .eps = static_cast<float>(of.eps),
           .limit = static_cast<float>(of.limit), .alpha = static_cast<float>(of.alpha), .rows = static_cast<int>(of.rows())};
  const int stage_bytes = division.together * line * 2 * in_group;
  const int clusters = std::min(chip.multiprocessors / division.split, groups * turns);
  const int copies = (groups * turns + clusters - 1) / clusters * cut.boxes * (parts / division.together);
  const int kept = cut.padded / 8 * bytes_of_eight * parts + 8 * warps, of_sums = of.coded() ? bytes_of_sums4(warps, in_group) : 0;  // bytes
  const int fixed = 48 * top + 768;  // of static shared memory: picks, the other block's sums, and barriers
  const int room = (chip.shared_memory - kept - of_sums - fixed) / (stage_bytes + 16);
  const auto size = [&](size_t i, int64_t own) {
    return static_cast<int>(std::min<int64_t>(sizes.empty() ? own : sizes[i], INT16_MAX)) * (of.coded() ? 1 : cut.boxes_together());
  };
  l.stages = std::min({size(0, of.coded() ? window4(stage_bytes) + 1 : 10), copies, room});
  l.window = std::min(size(1, of.coded() ? window4(stage_bytes) : 4), l.stages);
  TORCH_CHECK(l.stages > 0, kOperator, ": ", parts, " rows of ", of.columns(), " elements leave no room in shared memory");
  const int64_t halves = of.epilogue == kSilu || of.epilogue == kGelu ? 2 : 1;
  const at::Tensor& held = is_defined(of.slots) ? *of.slots : of.weight;
  const auto map_of = [&](const at::Tensor& matrices) {
    return of.coded() ? CudaBoxes{} : cuda().boxes(matrices.const_data_ptr(), matrices.size(0) * halves, halves, of.rows() / halves, of.columns() * 2, static_cast<int>(2 * in_group / halves), line);
  };
  CudaBoxes maps[] = {map_of(of.weight), map_of(held)};
  Boxes4 codes{of.weight.const_data_ptr(), held.const_data_ptr()};
  void* arguments[] = {&l, of.coded() ? static_cast<void*>(&codes) : maps};
  cuda().launch(program_of(of, edge, cut, line, division, warps), of.coded() ? "token_codes4" : "token_experts", images::stream_of(of.weight), clusters * division.split, 32 * (warps + 1), arguments,
                l.stages * (stage_bytes + 16) + kept, start_of(edge), static_cast<unsigned>(division.split));
  return out;
}

at::Tensor token_experts(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& picks, Optional slots, Optional shares, Optional bias, Optional norm, double eps,
                         bool offset, c10::string_view epilogue, Optional residual, double limit, double alpha, c10::string_view edge, at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, c10::string_view form) {
  const std::string_view name(epilogue.data(), epilogue.size());
  const Epilogue which = name == "silu" ? kSilu : name == "gelu_tanh" ? kGelu : name == "clamped" ? kClamped : kAdd;
  TORCH_CHECK(which != kAdd || name == "add", kOperator, ": the epilogue is \"", name, "\", want silu, gelu_tanh, clamped or add");
  const Inputs of{input, weight, picks, slots, shares, bias, norm, eps, offset, which, residual, limit, alpha, dtype, form4_of(kOperator, {form.data(), form.size()})};
  of.check();
  const Edge checked = edge_of(kOperator, {edge.data(), edge.size()}, weight.device());
  return weight.is_cuda() ? by_kernel(of, checked, sizes) : by_operators(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "token_experts(Tensor input, Tensor weight, Tensor picks, Tensor(a!)? slots=None, Tensor? shares=None, Tensor? bias=None, Tensor? norm=None, float eps=0., bool offset=False, "
      "str epilogue=\"silu\", Tensor? residual=None, float limit=0., float alpha=0., str edge=\"full\", int[] sizes=[], ScalarType? dtype=None, str form=\"mxfp4\") -> Tensor");
  declare_early_reads(kOperator, {{"weight"}, {"picks"}, {"slots"}, {"shares"}, {"norm"}});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_experts", TORCH_FN(token_experts)); }

}  // namespace
}  // namespace ct
