#include "cuda/watch.h"

#include <atomic>

#include "cuda/cupti.h"

// Note [Calls that wait]
//
// CUPTI reports the calls to CUDA that wait for the device. A table below lists these calls. An
// asynchronous copy waits if its memory is pageable. The memory is looked up after the call,
// because CUPTI's callback runs inside a call to CUDA.
//
// On the CPU the library has a list of the operators that would wait. LibTorch's sync-debug mode,
// which is process-wide, gives the same answers in a test with one stream. Note [Whose call it
// is] says how a call finds its Exec.

namespace ct {
namespace {

// The host memory of a copy, from the arguments of the call. `host` is the host memory, or NULL
// if there is none. `other` is memory that may be host memory too, or NULL.
struct Ends {
  const void* host = nullptr;
  const void* other = nullptr;
};

Ends ends(cudaMemcpyKind kind, const void* to, const void* from) {
  switch (kind) {
    case cudaMemcpyHostToDevice: return {from, nullptr};
    case cudaMemcpyDeviceToHost: return {to, nullptr};
    case cudaMemcpyDeviceToDevice: return {};
    default: return {from, to};
  }
}

template <typename Params>
Ends of_kind(const void* params) {
  const auto* p = static_cast<const Params*>(params);
  return ends(p->kind, p->dst, p->src);
}

Ends to_device(const void* params) { return {static_cast<const cuMemcpyHtoDAsync_v2_params*>(params)->srcHost, nullptr}; }
Ends to_host(const void* params) { return {static_cast<const cuMemcpyDtoHAsync_v2_params*>(params)->dstHost, nullptr}; }

enum class Waits {
  always,
  with_the_host,  // a copy waits, except one from device to device
  with_pageable   // an asynchronous copy waits if its host memory is not page-locked
};

struct Call {
  CUpti_CallbackDomain domain;
  CUpti_CallbackId id;
  const char* name;
  Waits waits = Waits::always;
  Ends (*ends)(const void* params) = nullptr;
};

#define RUNTIME(name, version) CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_##name##_##version, #name
#define DRIVER(name, version) CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_##name##version, #name

// The calls that wait, from "API synchronization behavior" in CUDA's reference. Some calls are
// left out because they do not wait: queries, the destruction of streams and events,
// cudaMallocAsync and cudaFreeAsync. cudaMemset is left out because it returns at once for device
// memory. The variants for one default stream per thread are left out, because LibTorch and its
// libraries do not use them.
constexpr Call kCalls[] = {
    {RUNTIME(cudaDeviceSynchronize, v3020)},
    {RUNTIME(cudaStreamSynchronize, v3020)},
    {RUNTIME(cudaEventSynchronize, v3020)},
    {RUNTIME(cudaDeviceReset, v3020)},

    {RUNTIME(cudaMemcpy, v3020), Waits::with_the_host, of_kind<cudaMemcpy_v3020_params>},
    {RUNTIME(cudaMemcpy2D, v3020), Waits::with_the_host, of_kind<cudaMemcpy2D_v3020_params>},
    {RUNTIME(cudaMemcpy3D, v3020)},
    {RUNTIME(cudaMemcpyToSymbol, v3020)},
    {RUNTIME(cudaMemcpyFromSymbol, v3020)},
    {RUNTIME(cudaMemcpy2DToArray, v3020)},
    {RUNTIME(cudaMemcpy2DFromArray, v3020)},
    {RUNTIME(cudaMemcpyPeer, v4000)},
    {RUNTIME(cudaMemcpy3DPeer, v4000)},
    {RUNTIME(cudaMemcpyAsync, v3020), Waits::with_pageable, of_kind<cudaMemcpyAsync_v3020_params>},
    {RUNTIME(cudaMemcpy2DAsync, v3020), Waits::with_pageable, of_kind<cudaMemcpy2DAsync_v3020_params>},

    {RUNTIME(cudaMalloc, v3020)},
    {RUNTIME(cudaMallocPitch, v3020)},
    {RUNTIME(cudaMalloc3D, v3020)},
    {RUNTIME(cudaMallocArray, v3020)},
    {RUNTIME(cudaMallocManaged, v6000)},
    {RUNTIME(cudaFree, v3020)},
    {RUNTIME(cudaFreeArray, v3020)},
    {RUNTIME(cudaMallocHost, v3020)},
    {RUNTIME(cudaHostAlloc, v3020)},
    {RUNTIME(cudaFreeHost, v3020)},
    {RUNTIME(cudaHostRegister, v4000)},
    {RUNTIME(cudaHostUnregister, v4000)},

    {DRIVER(cuCtxSynchronize, )},
    {CUPTI_CB_DOMAIN_DRIVER_API, kContextSynchronize2, "cuCtxSynchronize"},
    {DRIVER(cuStreamSynchronize, )},
    {DRIVER(cuEventSynchronize, )},
    {DRIVER(cuMemcpyHtoD, _v2)},
    {DRIVER(cuMemcpyDtoH, _v2)},
    {DRIVER(cuMemcpyHtoDAsync, _v2), Waits::with_pageable, to_device},
    {DRIVER(cuMemcpyDtoHAsync, _v2), Waits::with_pageable, to_host},
    {DRIVER(cuMemAlloc, _v2)},
    {DRIVER(cuMemAllocPitch, _v2)},
    {DRIVER(cuMemAllocManaged, )},
    {DRIVER(cuMemFree, _v2)},
    {DRIVER(cuMemAllocHost, _v2)},
    {DRIVER(cuMemHostAlloc, )},
    {DRIVER(cuMemHostAlloc, _v2)},
    {DRIVER(cuMemFreeHost, )},
    {DRIVER(cuMemHostRegister, )},
    {DRIVER(cuMemHostRegister, _v2)},
    {DRIVER(cuMemHostUnregister, )},
};

#undef RUNTIME
#undef DRIVER

std::atomic<CudaCalls*> observer{nullptr};

void tell(CudaCalls& to, const Call& call, const void* params) {
  const Ends memory = call.ends == nullptr || params == nullptr ? Ends{} : call.ends(params);
  switch (call.waits) {
    case Waits::always:
      to.waits(call.name);
      return;
    case Waits::with_the_host:
      if (memory.host != nullptr) to.waits(call.name);
      return;
    case Waits::with_pageable:
      if (memory.host != nullptr) to.copies(call.name, memory.host, memory.other);
      return;
  }
}

}  // namespace

void CUPTIAPI on_call(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  CudaCalls* const calls = observer.load(std::memory_order_acquire);
  const auto* info = static_cast<const CUpti_CallbackData*>(data);
  if (calls == nullptr || info == nullptr || info->callbackSite != CUPTI_API_ENTER || !calls->watched()) return;
  for (const Call& call : kCalls) {
    if (call.domain == domain && call.id == id) tell(*calls, call, info->functionParams);
  }
}

void start_watching(CudaCalls* calls) {
  CUpti_SubscriberHandle handle = subscribe();
  try {
    for (const Call& call : kCalls) {
      const CUptiResult result = cupti().enable_callback(1, handle, call.domain, call.id);
      // If this CUPTI does not know the number of a call, its CUDA does not have the call.
      if (result != CUPTI_ERROR_INVALID_PARAMETER) cupti().check(result, call.name);
    }
  } catch (...) {
    for (const Call& call : kCalls) (void)cupti().enable_callback(0, handle, call.domain, call.id);
    unsubscribe();
    throw;
  }
  observer.store(calls, std::memory_order_release);
}

void stop_watching() noexcept {
  observer.store(nullptr, std::memory_order_release);
  for (const Call& call : kCalls) (void)cupti().enable_callback(0, subscribed(), call.domain, call.id);
  unsubscribe();
}

}  // namespace ct
