// Numbers that stand for the caller's own objects.
#pragma once

#include <cstdint>
#include <utility>

#include "core/live.h"

namespace ct {

// Owns a number of the caller's. When the Token is destroyed, on any thread, it calls the
// function `release` with the number.
class Token {
 public:
  Token(uint64_t number, void (*release)(uint64_t)) noexcept : number_(number), release_(release) { ++live().functions; }
  Token(Token&& other) noexcept : number_(other.number_), release_(std::exchange(other.release_, nullptr)) {}
  Token& operator=(Token&&) = delete;
  ~Token() {
    if (release_ == nullptr) return;
    --live().functions;
    release_(number_);
  }
  uint64_t number() const noexcept { return number_; }

 private:
  const uint64_t number_;
  void (*release_)(uint64_t);
};

}  // namespace ct
