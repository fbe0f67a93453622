// The store of a run: keys and values that its processes share.
#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class TCPStore;
}

struct ct_store {
  explicit ct_store(c10::intrusive_ptr<c10d::TCPStore> store);
  ~ct_store();
  const c10::intrusive_ptr<c10d::TCPStore> store;
};
