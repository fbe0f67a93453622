// A status: the only form in which a call of the C ABI fails.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "cgotorch.h"
#include "core/token.h"

struct ct_status {
  ct_status(int32_t code, std::string message, std::shared_ptr<const ct::Token> cause);
  ~ct_status();
  const int32_t code;
  const std::string message;
  const std::shared_ptr<const ct::Token> cause;  // or NULL
};

namespace ct {

// Thrown inside the core where LibTorch has no exception for the case. guarded() turns it into a
// status.
class Failure : public std::exception {
 public:
  Failure(int32_t code, std::string message, std::shared_ptr<const Token> cause = nullptr)
      : code(code), message(std::move(message)), cause(std::move(cause)) {}
  const char* what() const noexcept override { return message.c_str(); }
  const int32_t code;
  const std::string message;
  const std::shared_ptr<const Token> cause;  // the caller's own error, or NULL
};

// The exception in flight as a status, most derived class first. A failure on a CUDA device is
// checked for the loss of that device. Only to be called inside a catch clause.
ct_status* status_of_exception(c10::Device device) noexcept;

// Runs f and returns NULL, or the status of its exception. device: where f's work runs.
template <typename F>
ct_status* guarded(c10::Device device, F&& f) noexcept {
  try {
    std::forward<F>(f)();
    return nullptr;
  } catch (...) {
    return status_of_exception(device);
  }
}

template <typename F>
ct_status* guarded(F&& f) noexcept {
  return guarded(c10::Device(c10::kCPU), std::forward<F>(f));
}

// The object behind a handle. A NULL handle is an error that names the parameter.
template <typename T>
T& deref(T* handle, const char* parameter) {
  if (handle == nullptr) throw Failure(CT_INVALID_ARGUMENT, std::string(parameter) + " is NULL");
  return *handle;
}

// A copy of text, which the caller frees with ct_text_free.
char* new_text(const std::string& text);

}  // namespace ct
