// CUPTI, which gives the driver's own records of its work. It is opened when a trace or a watch
// first needs it.
#pragma once

#include <cupti.h>

#include <string>

#include "core/versions.h"
#include "cuda/backend.h"

namespace ct {

// The functions of CUPTI that are used. They are not linked, because the library must also run
// where CUPTI is missing.
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
  CuptiSubscribe subscribe;
  decltype(&cuptiUnsubscribe) unsubscribe;
  decltype(&cuCtxGetCurrent) current_context;  // a function of the driver

  // Throws CT_INTERNAL with CUPTI's message if the call failed.
  void check(CUptiResult result, const char* what) const;
};

// Returns the functions of CUPTI. Throws CT_UNSUPPORTED if there is no CUPTI.
const Cupti& cupti();

// Subscribes to CUPTI, which allows one subscriber in a process. All traces and watches share one
// subscription. The subscription ends when the last of them calls unsubscribe. Throws
// CT_UNSUPPORTED if another tool is the subscriber.
CUpti_SubscriberHandle subscribe();
void unsubscribe() noexcept;
// Returns the subscription. To be called between subscribe and unsubscribe.
CUpti_SubscriberHandle subscribed() noexcept;

}  // namespace ct
