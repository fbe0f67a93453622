#include "decode/status.h"

namespace decode {
namespace {

// The status that is returned if there is no memory for a new status. It is never freed.
ctd_status* no_memory() {
  static ctd_status one{CTD_OUT_OF_MEMORY, "out of memory"};
  return &one;
}

}  // namespace

ctd_status* status(int32_t code, const char* message) noexcept {
  ctd_status* fallback = no_memory();
  try {
    return new ctd_status{code, message};
  } catch (...) {
    return fallback;
  }
}

}  // namespace decode

int32_t ctd_status_code(const ctd_status* status) noexcept { return status ? status->code : 0; }

const char* ctd_status_message(const ctd_status* status) noexcept { return status ? status->message.c_str() : ""; }

void ctd_status_free(ctd_status* status) noexcept {
  if (status != decode::no_memory()) delete status;
}
