// Calls of operators on one to three tensors and up to two numbers without boxing: add, mul, relu
// and their like. The dispatcher's boxing takes 10 % of a small operator's time. Such operators are
// found by signature and not by name. All others, and all other arguments, go the general way
// (op.cc).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Scalar.h>

#include <memory>

#include "cgotorch.h"

namespace ct {

class Unboxed {
 public:
  // Finds the way for an operator. NULL for an operator of another signature.
  static std::unique_ptr<const Unboxed> find(const c10::OperatorHandle& op);
  virtual ~Unboxed() = default;

  // Runs the operator and returns true. Does nothing and returns false unless the words are one
  // tensor, number or default for each argument.
  bool call(const ct_stream& stream, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
            int32_t tensor_count, at::Tensor* result) const;

 protected:
  static constexpr int kMaxTensors = 3, kMaxScalars = 2;
  Unboxed(const c10::FunctionSchema& schema, int tensors, int scalars);
  virtual at::Tensor run(const at::Tensor* const* tensors, const at::Scalar* const* scalars) const = 0;

 private:
  const int tensors_, scalars_;
  at::Scalar defaults_[kMaxScalars];
  bool has_default_[kMaxScalars] = {};
};

}  // namespace ct
