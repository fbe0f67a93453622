#include "distributed/store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "core/live.h"
#include "distributed/group.h"

ct_store::ct_store(c10::intrusive_ptr<c10d::TCPStore> s) : store(std::move(s)) { ++ct::live().groups; }
ct_store::~ct_store() { --ct::live().groups; }

using ct::deref;

extern "C" {

ct_status* ct_store_new(const char* host, int32_t port, int32_t listener, int32_t timeout_ms, ct_store** out) noexcept {
  bool consumed = false;
  ct_status* const failure = ct::guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = listener >= 0;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    if (options.isServer) {
      // The caller itself looks for missing processes, because LibTorch's wait cannot name them.
      options.waitWorkers = false;
      options.masterListenFd = listener;
      consumed = true;
    } else {
      options.numWorkers = 1;  // a server of torch.distributed waits until its clients have counted themselves
    }
    *out = ct::with_group([&] { return new ct_store(c10::make_intrusive<c10d::TCPStore>(&deref(host, "host"), options)); });
  });
  if (listener >= 0 && !consumed) (void)close(listener);
  return failure;
}

void ct_store_free(ct_store* store) noexcept { delete store; }

ct_status* ct_store_set(const ct_store* store, const char* key, const char* value) noexcept {
  return ct::guarded([&] {
    const auto* from = reinterpret_cast<const uint8_t*>(value);
    ct::with_group([&] { deref(store, "store").store->set(key, std::vector<uint8_t>(from, from + std::strlen(value))); });
  });
}

ct_status* ct_store_get(const ct_store* store, const char* key, char** value) noexcept {
  return ct::guarded([&] {
    *value = ct::with_group([&]() -> char* {
      c10d::TCPStore& from = *deref(store, "store").store;
      if (!from.check({key})) return nullptr;
      const std::vector<uint8_t> bytes = from.get(key);
      return ct::new_text(std::string(bytes.begin(), bytes.end()));
    });
  });
}

ct_status* ct_store_delete(const ct_store* store, const char* key) noexcept {
  return ct::guarded([&] {
    ct::with_group([&] { (void)deref(store, "store").store->deleteKey(key); });
  });
}

}  // extern "C"
