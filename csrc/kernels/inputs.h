// The functions with which an operator looks at its tensors before a kernel reads them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

namespace ct {

using Optional = const std::optional<at::Tensor>&;

inline bool is_defined(Optional t) { return t && t->defined(); }

// Returns the address of the elements, as a kernel gets it: NULL without a tensor.
inline const void* read(Optional t) { return is_defined(t) ? t->const_data_ptr() : nullptr; }

// Returns whether one of the tensors needs a gradient in the current grad mode.
inline bool needs_gradient(std::initializer_list<std::optional<at::Tensor>> tensors) {
  return c10::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), [](Optional t) { return is_defined(t) && t->requires_grad(); });
}

inline bool is_floating(at::ScalarType t) { return t == at::kBFloat16 || t == at::kHalf || t == at::kFloat; }

// Returns whether a kernel can read the elements of t in groups of 16 bytes.
inline bool is_aligned(const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; }

// Throws if t is there and has not this many elements in this dtype on this device, as the kernels
// of a token read them.
inline void check_elements(const char* op, Optional t, const char* name, int64_t elements, at::ScalarType dtype, c10::Device device) {
  if (!is_defined(t)) return;
  TORCH_CHECK(t->numel() == elements && t->scalar_type() == dtype && t->device() == device && t->is_contiguous() && is_aligned(*t), op, ": ", name, " is ",
              t->scalar_type(), " ", t->sizes(), " on ", t->device(), ", want ", elements, " elements of ", dtype, " on ", device,
              ", contiguous and aligned to 16 bytes");
}

constexpr int64_t kMostTokenRows = 65535;  // of one launch: see CudaBackend::launch

// Throws if t is not int64 [rows] on this device, without gaps.
inline void check_row_numbers(const char* op, const at::Tensor& t, const char* name, int64_t rows, c10::Device device) {
  TORCH_CHECK(rows > 0 && rows <= kMostTokenRows && t.numel() == rows && t.scalar_type() == at::kLong && t.device() == device && t.is_contiguous(), op, ": ",
              name, " is ", t.scalar_type(), " ", t.sizes(), " on ", t.device(), ", want int64 [", rows, "] on ", device, " without gaps, of 1 to ",
              kMostTokenRows, " rows");
}

// Throws if t is not in this dtype on this device, without gaps, and with so many elements in each
// of `rows` rows. One row may have any shape. Returns the number of elements of a row.
inline int64_t check_rows(const char* op, const at::Tensor& t, const char* name, int64_t rows, int64_t least, int64_t most, at::ScalarType dtype,
                          c10::Device device) {
  const bool shaped = rows == 1 || (t.dim() == 2 && t.size(0) == rows);
  TORCH_CHECK(shaped && t.numel() >= rows * least && t.numel() <= rows * most && t.scalar_type() == dtype && t.device() == device && t.is_contiguous(), op,
              ": ", name, " is ", t.scalar_type(), " ", t.sizes(), " on ", t.device(), ", want ", dtype, " on ", device, " without gaps, ", rows, " rows of ",
              least, " to ", most, " elements");
  return t.numel() / rows;
}

// Returns whether corresponding elements of the two tensors lie in the same order. The tensors have
// equal sizes. The stride of a dimension of size 1 does not matter.
inline bool in_one_order(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

// Returns t, or an aligned copy without gaps.
inline at::Tensor readable(const at::Tensor& t) { return t.is_contiguous() && is_aligned(t) ? t : t.clone(at::MemoryFormat::Contiguous); }

// Returns the operator `name`, which has this signature.
template <typename Signature>
c10::TypedOperatorHandle<Signature> operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace ct
