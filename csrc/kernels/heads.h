// What the operators take that norm and rotate the heads of tokens, and write their keys and values
// into a cache in pages, or attend to it: token_attention, rope_into_pages and prompt_attention.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>

#include <cstdint>

#include "kernels/inputs.h"

namespace ct {

constexpr int64_t kPage = 16;  // tokens of a page

enum Norm : int { kNoNorm, kOfEachHead, kOfAllHeads };  // the CUDA texts have the same numbers

// Throws if memory is no cache in pages.
inline void check_pages(const char* op, const at::Tensor& memory) {
  TORCH_CHECK(memory.dim() == 5 && memory.size(0) == 2 && memory.size(3) == kPage && memory.numel() > 0 && memory.is_contiguous() &&
                  at::isFloatingType(memory.scalar_type()),
              op, ": memory is ", memory.scalar_type(), " ", memory.sizes(), ", want a contiguous [2, pages, key heads, ", kPage, ", head], and want a floating dtype");
}

// Throws if table is not the pages of one sequence.
inline void check_table(const char* op, const at::Tensor& table, c10::Device device) {
  TORCH_CHECK(table.dim() == 2 && table.size(0) == 2 && table.size(1) > 0 && table.stride(1) == 1 && table.scalar_type() == at::kLong && table.device() == device, op,
              ": table is ", table.scalar_type(), " ", table.sizes(), " on ", table.device(), ", want [2, blocks] of ", at::kLong, " on ", device,
              ", without gaps in a row");
}

struct HeadInputs {
  const char* op;
  const at::Tensor& qkv;
  Optional query_norm;
  Optional key_norm;
  double eps;
  bool offset;
  const at::Tensor& cos;
  const at::Tensor& sin;
  const at::Tensor& position;
  const at::Tensor& memory;
  const at::Tensor& table;
  const at::Tensor& before;
  int64_t heads;

  int64_t rows() const { return position.numel(); }
  int64_t head() const { return memory.size(4); }
  int64_t key_heads() const { return memory.size(2); }
  int64_t turned() const { return cos.size(-1); }
  at::ScalarType wide() const { return memory.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
  Norm norm() const { return !is_defined(query_norm) ? kNoNorm : query_norm->numel() == head() ? kOfEachHead : kOfAllHeads; }

  // Throws if t is not a contiguous tensor of this many elements in this dtype.
  void check(const at::Tensor& t, const char* name, int64_t elements, at::ScalarType dtype) const {
    TORCH_CHECK(t.numel() == elements && t.scalar_type() == dtype && t.device() == memory.device() && t.is_contiguous(), op, ": ", name, " is ",
                t.scalar_type(), " ", t.sizes(), " on ", t.device(), ", want ", elements, " contiguous elements of ", dtype, " on ", memory.device());
  }

  void check_memory() const { check_pages(op, memory); }

  void check_norms_and_turns() const {
    TORCH_CHECK(is_defined(query_norm) == is_defined(key_norm), op, ": query_norm and key_norm go together");
    if (norm() != kNoNorm) {
      check(*query_norm, "query_norm", norm() == kOfEachHead ? head() : heads * head(), wide());
      check(*key_norm, "key_norm", norm() == kOfEachHead ? head() : key_heads() * head(), wide());
    }
    TORCH_CHECK(cos.dim() > 0 && turned() % 2 == 0 && turned() <= head(), op, ": cos is ", cos.sizes(), ", want an even number of elements up to ", head());
    check(cos, "cos", rows() * turned(), wide());
    check(sin, "sin", rows() * turned(), wide());
  }

  // Returns queries or keys, [rows, count, HEAD] in the wide dtype, normed and rotated.
  at::Tensor normed_and_rotated(const at::Tensor& raw, Optional weights) const {
    const int64_t count = raw.size(1);
    at::Tensor t = raw;
    if (is_defined(weights)) {
      const at::Tensor weight = offset ? at::add(weights->view({-1}), 1) : weights->view({-1});
      t = at::rms_norm(t.reshape({rows(), -1, weight.numel()}), {weight.numel()}, weight, eps).view({rows(), count, head()});
    }
    const at::Tensor turns = t.narrow(2, 0, turned()), partner = turns.roll({turned() / 2}, {2});
    const at::Tensor rotated = at::add(at::mul(turns, cos.view({rows(), 1, -1})), at::mul(partner, sin.view({rows(), 1, -1})));
    return at::cat({rotated, t.narrow(2, turned(), head() - turned())}, 2);
  }
};

}  // namespace ct
