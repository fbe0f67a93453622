// Programs that are one text, compiled with different macros.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/device.h"

namespace ct {

// The text of a program.
struct Variant {
  std::string name;  // for error messages
  std::string head;  // is compiled before `source`: a CT_ON_BOTH_DEVICES text and the macros
  std::string source;
  bool fused_multiply_add = false;  // as in CudaProgram
  bool most_shared_memory = false;  // the same
};

// Returns the program for a key. The first call for the key calls `make`, which returns the
// Variant. Each type of `make` has keys of its own. Programs are never freed.
template <typename Key, typename Make>
const CudaProgram& variant_of(const Key& key, const Make& make) {
  struct Program {
    Variant text;
    CudaProgram program;
  };
  static auto* const mutex = new std::mutex;
  static auto* const programs = new std::map<Key, Program>;
  const std::lock_guard lock(*mutex);
  const auto found = programs->find(key);
  if (found != programs->end()) return found->second.program;
  Program& made = (*programs)[key];
  made.text = make();
  made.program = {made.text.name.c_str(), made.text.head.c_str(), made.text.source.c_str(), made.text.fused_multiply_add,
                  made.text.most_shared_memory};
  return made.program;
}

// Returns the line of a text that defines a macro.
inline std::string define(const char* macro, const std::string& value) { return std::string("#define ") + macro + " " + value + "\n"; }
inline std::string define(const char* macro, int64_t value) { return define(macro, std::to_string(value)); }

// Returns the name that floats.h has for the dtype: float32, float16 or bfloat16.
inline std::string float_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "BFloat16" : dtype == at::kHalf ? "Half" : "Float"; }

}  // namespace ct
