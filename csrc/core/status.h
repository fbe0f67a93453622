// Failures. Each call of the C ABI that fails returns a ct_status.
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
  ct_status(int32_t code, std::string message, std::shared_ptr<const ct::Token> cause, uint64_t site = 0);
  ~ct_status();
  const int32_t code;
  const std::string message;
  const std::shared_ptr<const ct::Token> cause;  // or NULL
  const uint64_t site;                           // of the forward call that is differentiated, or 0
};

namespace ct {

// An exception of the core's own, for cases in which LibTorch has no exception. guarded() turns
// it into a status.
class Failure : public std::exception {
 public:
  Failure(int32_t code, std::string message, std::shared_ptr<const Token> cause = nullptr, uint64_t site = 0)
      : code(code), message(std::move(message)), cause(std::move(cause)), site(site) {}
  const char* what() const noexcept override { return message.c_str(); }
  const int32_t code;
  const std::string message;
  const std::shared_ptr<const Token> cause;  // the number of the caller's own error, or NULL
  const uint64_t site;                       // of the forward call that is differentiated, or 0
};

// Returns the status of the exception that is being handled. The most derived class of the
// exception decides its code. If `device` is a CUDA device, also checks whether that device is
// lost. Only to be called inside a catch clause.
ct_status* status_of_exception(c10::Device device) noexcept;

// Runs f. Returns NULL if f succeeds, or the status of the exception that f throws. `device` is
// the device on which f's work runs.
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

// Returns the object of a handle. Throws a Failure that names `parameter` if the handle is NULL.
template <typename T>
T& deref(T* handle, const char* parameter) {
  if (handle == nullptr) throw Failure(CT_INVALID_ARGUMENT, std::string(parameter) + " is NULL");
  return *handle;
}

// Returns a copy of the text. The caller frees it with ct_text_free.
char* new_text(const std::string& text);

}  // namespace ct
