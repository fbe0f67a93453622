#include "core/status.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "core/device.h"
#include "core/live.h"

ct_status::ct_status(int32_t code, std::string message, std::shared_ptr<const ct::Token> cause, uint64_t site)
    : code(code), message(std::move(message)), cause(std::move(cause)), site(site) {
  ++ct::live().statuses;
}
ct_status::~ct_status() { --ct::live().statuses; }

namespace ct {
namespace {

// The status that is returned when there is no memory for a new status. It is never freed, and
// ct_live_handles does not count it.
ct_status* out_of_host_memory() noexcept {
  static ct_status* const status = new ct_status(CT_OUT_OF_MEMORY, "out of host memory", nullptr);
  return status;
}
// The status is made when the library is loaded, because there is memory then.
[[maybe_unused]] const ct_status* const made_early = (out_of_host_memory(), --live().statuses, nullptr);

ct_status* make(int32_t code, const std::string& message, const std::shared_ptr<const Token>& cause = nullptr, uint64_t site = 0) noexcept {
  try {
    return new ct_status(code, message, cause, site);
  } catch (...) {
    return out_of_host_memory();
  }
}

ct_status* classify() noexcept {
  try {
    throw;
  } catch (const Failure& e) {
    return make(e.code, e.message, e.cause, e.site);
  } catch (const c10::OutOfMemoryError& e) {
    return make(CT_OUT_OF_MEMORY, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    return make(CT_UNSUPPORTED, e.what_without_backtrace());
  } catch (const c10::AcceleratorError& e) {
    // These are the codes from cudaErrorStreamCaptureUnsupported to
    // cudaErrorStreamCaptureWrongThread.
    const bool capture = e.get_error_code() >= 900 && e.get_error_code() <= 908;
    const bool memory = e.get_error_code() == 2;  // cudaErrorMemoryAllocation, of memory that LibTorch's allocator does not manage
    return make(capture ? CT_NOT_CAPTURABLE : memory ? CT_OUT_OF_MEMORY : CT_INTERNAL, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
    // These throw a plain Error too: LibTorch's CPU allocator, and its checks of cuBLAS and cuDNN.
    if ((has("DefaultCPUAllocator") && has("memory")) || has("_STATUS_ALLOC_FAILED")) return make(CT_OUT_OF_MEMORY, text);
    const bool internal = has("_STATUS_EXECUTION_FAILED") || has("_STATUS_INTERNAL_ERROR");
    return make(internal ? CT_INTERNAL : CT_INVALID_ARGUMENT, text);
  } catch (const std::bad_alloc&) {
    return out_of_host_memory();
  } catch (const std::exception& e) {
    return make(CT_INTERNAL, e.what());
  } catch (...) {
    return make(CT_INTERNAL, "an exception that is no std::exception");
  }
}

}  // namespace

ct_status* status_of_exception(c10::Device device) noexcept {
  ct_status* status = classify();
  if (!device.is_cuda() || status->code == CT_DEVICE_LOST || status->code == CT_MISUSE || status->code == CT_NO_DEVICE) {
    return status;
  }
  try {
    const std::string loss = detect_loss(device);
    if (loss.empty()) return status;
    ct_status* lost = make(CT_DEVICE_LOST, loss + "\nThe call that saw it: " + status->message);
    ct_status_free(status);
    return lost;
  } catch (...) {
    return status;
  }
}

char* new_text(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace ct

extern "C" {

int32_t ct_abi_version(void) noexcept { return CT_ABI_VERSION; }
int32_t ct_status_code(const ct_status* status) noexcept { return status == nullptr ? 0 : status->code; }
const char* ct_status_message(const ct_status* status) noexcept { return status == nullptr ? "" : status->message.c_str(); }
uint64_t ct_status_cause(const ct_status* status) noexcept {
  return status == nullptr || status->cause == nullptr ? 0 : status->cause->number();
}
uint64_t ct_status_site(const ct_status* status) noexcept { return status == nullptr ? 0 : status->site; }
void ct_status_free(ct_status* status) noexcept {
  if (status != ct::out_of_host_memory()) delete status;
}
void ct_text_free(char* text) noexcept { std::free(text); }

}  // extern "C"
