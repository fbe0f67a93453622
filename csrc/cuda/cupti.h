// CUPTI, the driver's own account of what runs: opened when a trace or a watch first needs it.
#pragma once

#include <cupti.h>

#include <string>

#include "cuda/backend.h"

namespace ct {

// What is used of CUPTI. It is not linked: a LibTorch without it must still run.
struct Cupti {
  decltype(&cuptiActivityDisable) activity_disable;
  decltype(&cuptiActivityEnable) activity_enable;
  decltype(&cuptiActivityFlushAll) activity_flush;
  decltype(&cuptiActivityGetNextRecord) activity_next;
  decltype(&cuptiActivityGetNumDroppedRecords) activity_dropped;
  decltype(&cuptiActivityRegisterCallbacks) activity_register;
  decltype(&cuptiEnableCallback) enable_callback;
  decltype(&cuptiGetResultString) result_string;
  decltype(&cuptiGetStreamIdEx) stream_id;
  decltype(&cuptiSetThreadIdType) set_thread_id_type;
  decltype(&cuptiSubscribe_v2) subscribe;
  decltype(&cuptiUnsubscribe) unsubscribe;
  decltype(&cuCtxGetCurrent) current_context;  // the driver's

  // Throws CT_INTERNAL with CUPTI's words, unless it succeeded.
  void check(CUptiResult result, const char* what) const;
};

// Throws CT_UNSUPPORTED where there is none.
const Cupti& cupti();

// CUPTI has one subscriber in a process: traces and watches share it, and it ends with the last of them. Throws CT_UNSUPPORTED when
// another tool is the one.
CUpti_SubscriberHandle subscribe();
void unsubscribe() noexcept;
// Between the two.
CUpti_SubscriberHandle subscribed() noexcept;

}  // namespace ct
