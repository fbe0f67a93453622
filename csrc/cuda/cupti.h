// CUPTI, the driver's own account of its work. Opened when a trace or a watch first needs it.
#pragma once

#include <cupti.h>

#include <string>

#include "cuda/backend.h"

namespace ct {

// The functions of CUPTI in use. They are not linked: a LibTorch without CUPTI must still run.
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

  // Throws CT_INTERNAL with CUPTI's words, unless the call succeeded.
  void check(CUptiResult result, const char* what) const;
};

// The functions. Throws CT_UNSUPPORTED where there is no CUPTI.
const Cupti& cupti();

// Subscribes to CUPTI, which has one subscriber in a process. Traces and watches share the
// subscription, which ends with the last of them. Throws CT_UNSUPPORTED when another tool is the
// subscriber.
CUpti_SubscriberHandle subscribe();
void unsubscribe() noexcept;
// The subscription, between the two calls.
CUpti_SubscriberHandle subscribed() noexcept;

}  // namespace ct
