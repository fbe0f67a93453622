// Failures. Inside the library a failure is an exception. In the C header it is a ctd_status.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "include/cgotorch_decode.h"

struct ctd_status {
  int32_t code;
  std::string message;
};

namespace decode {

class Error : public std::exception {
 public:
  Error(int32_t code, std::string message) : code_(code), message_(std::move(message)) {}
  int32_t code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int32_t code_;
  std::string message_;
};

// Returns a new status. If there is no memory for a new status, returns one that always exists.
ctd_status* status(int32_t code, const char* message) noexcept;

// guarded runs f. It returns NULL, or a status of the exception that f throws.
template <class F>
ctd_status* guarded(F&& f) noexcept {
  try {
    std::forward<F>(f)();
    return nullptr;
  } catch (const Error& e) {
    return status(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return status(CTD_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& e) {
    return status(CTD_INTERNAL, e.what());
  } catch (...) {
    return status(CTD_INTERNAL, "unknown exception");
  }
}

}  // namespace decode
