// Everything in which the supported versions of LibTorch differ for this library. docs/versions.md
// lists the versions. No other file asks for LibTorch's version.
#pragma once

#include <c10/core/impl/PyInterpreter.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#ifdef USE_CUDA
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <cupti.h>
#endif

#define CT_LIBTORCH_SINCE(minor) (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

#if !CT_LIBTORCH_SINCE(9)
#error "streamtorch needs LibTorch 2.9 or newer"
#endif

namespace torch::autograd {
struct Node;
}

namespace ct {

// An owner of a node of the autograd graph. A node counts its own owners since 2.13.
#if CT_LIBTORCH_SINCE(13)
using NodePtr = c10::intrusive_ptr<torch::autograd::Node>;
#else
using NodePtr = std::shared_ptr<torch::autograd::Node>;
#endif

// Returns a new node of the type N.
template <typename N, typename... Args>
NodePtr new_node(Args&&... args) {
#if CT_LIBTORCH_SINCE(13)
  return c10::make_intrusive<N>(std::forward<Args>(args)...);
#else
  return NodePtr(new N(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
#endif
}

// Gives a node with one input new metadata for it, with the same values. New metadata records the
// stream that is current when the metadata is made. A gradient may have its own dtype since 2.10.
template <typename N>
void renew_input_metadata(N& node) {
  const auto of = node.input_metadata(0);
  node.clear_input_metadata();
#if CT_LIBTORCH_SINCE(10)
  node.add_input_metadata(of.options(), of.shape_as_dim_vector(), of.is_tensor_subclass(), of.is_nested_tensor(), of.grad_dtype());
#else
  node.add_input_metadata(of.options(), of.shape_as_dim_vector(), of.is_tensor_subclass(), of.is_nested_tensor());
#endif
}

// The kinds under which this library keeps thread-local debug information. Since 2.13 a library
// makes its own kinds. Before, they are kinds that LibTorch itself does not use. No other library
// in the process may use these.
#if CT_LIBTORCH_SINCE(13)
inline constexpr std::string_view kOverlapName = "streamtorch overlap", kWatchName = "streamtorch watch";
inline constexpr c10::DebugInfoKind kOverlapKind(&kOverlapName), kWatchKind(&kWatchName);
#else
inline constexpr auto kOverlapKind = c10::DebugInfoKind::PRODUCER_INFO, kWatchKind = c10::DebugInfoKind::INFERENCE_CONTEXT;
#endif

// Whether tensors can have named dimensions, and LibTorch has aten::rename_ for them.
inline constexpr bool kNamedTensors = !CT_LIBTORCH_SINCE(13);

// Switches off the warning that a gradient was computed on another stream than its parameter's.
// Only 2.10 and newer warn.
template <typename Context>
void allow_gradients_of_other_streams([[maybe_unused]] Context& context) {
#if CT_LIBTORCH_SINCE(10)
  context.setWarnOnAccumulateGradStreamMismatch(false);
#endif
}

// The part of an interpreter that owns Python objects. There are none in the process.
class NoPythonObjects : public c10::impl::PyInterpreterVTable {
 public:
  void incref(PyObject*) const override { none(); }
#if CT_LIBTORCH_SINCE(10)
  void decref(PyObject*) const override { none(); }
  bool try_incref(const c10::impl::PyObjectSlot&) const override { none(); }
  size_t refcnt(PyObject*) const override { none(); }
#else
  void decref(PyObject*, bool) const override { none(); }
#endif

 protected:
  [[noreturn]] static void none() { TORCH_CHECK(false, "there is no Python in this process"); }
};

#ifdef USE_CUDA

// Returns where a capture counts the random numbers that it has drawn. `state` is of the generator
// that the capture uses. Since 2.12 a state has such a place for each capture, from the capture's
// first number on. Before that number the result is NULL.
inline auto* drawn_in(at::CUDAGeneratorState& state, [[maybe_unused]] c10::CaptureId_t capture) {
#if CT_LIBTORCH_SINCE(12)
  const std::lock_guard lock(state.capture_states_mutex_);
  const auto found = state.capture_states_.find(capture);
  return found == state.capture_states_.end() ? nullptr : &found->second->offset_intragraph_;
#else
  return &state.offset_intragraph_;
#endif
}

// Tells LibTorch that a capture was ended which LibTorch had begun. Since 2.13 its allocator counts
// the captures of a device.
inline void capture_ended([[maybe_unused]] c10::DeviceIndex device) {
#if CT_LIBTORCH_SINCE(13)
  c10::cuda::CUDACachingAllocator::markCaptureEnd(device);
#endif
}

// Returns the segments of a graph's pool.
inline auto segments_of(c10::MempoolId_t pool) {
#if CT_LIBTORCH_SINCE(11)
  return c10::cuda::CUDACachingAllocator::snapshot(pool, /*include_traces=*/false).segments;
#else
  return c10::cuda::CUDACachingAllocator::snapshot(pool).segments;
#endif
}

// The pool of page-locked memory with the number of a graph's pool. LibTorch has such pools since
// 2.11. Before, these functions do nothing.
struct HostPool {
  const c10::MempoolId_t pool;
#if CT_LIBTORCH_SINCE(11)
  void begin() const { all()->begin_allocate_to_pool(pool, [](c10::Stream) { return false; }); }
  void end() const { all()->end_allocate_to_pool(pool); }
  void release() const { all()->release_pool(pool); }

 private:
  static at::HostAllocator* all() { return at::getHostAllocator(at::kCUDA); }
#else
  void begin() const {}
  void end() const {}
  void release() const {}
#endif
};

// A capture that fails leaves its pools open. Since 2.13 capture_end closes them for allocation
// when it fails. Since 2.14 CUDAGraph::reset also releases them.
inline constexpr bool kEndClosesPools = CT_LIBTORCH_SINCE(13), kResetReleasesPools = CT_LIBTORCH_SINCE(14);

// What CUDA 12 and CUDA 13 spell differently. LibTorch 2.9 and 2.10 of PyPI are built for CUDA 12.
#if CUDART_VERSION >= 13000
using KernelActivity = CUpti_ActivityKernel10;
inline constexpr CUpti_CallbackId kLaunchOfNvcc13 = CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000;
inline constexpr CUpti_CallbackId kContextSynchronize2 = CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2;
#define CT_CUDA_12_V2(function) function
inline constexpr auto capture_info = cudaStreamGetCaptureInfo;
#else
using KernelActivity = CUpti_ActivityKernel9;
inline constexpr CUpti_CallbackId kLaunchOfNvcc13 = CUPTI_RUNTIME_TRACE_CBID_INVALID;
inline constexpr CUpti_CallbackId kContextSynchronize2 = CUPTI_DRIVER_TRACE_CBID_INVALID;
#define CT_CUDA_12_V2(function) function##_v2
inline constexpr auto capture_info = cudaStreamGetCaptureInfo_v3;
#endif

// These take the data of edges in both.
inline constexpr auto graph_node_dependencies = CT_CUDA_12_V2(cudaGraphNodeGetDependencies);
inline constexpr auto graph_node_dependents = CT_CUDA_12_V2(cudaGraphNodeGetDependentNodes);
inline constexpr auto add_graph_dependencies = CT_CUDA_12_V2(cudaGraphAddDependencies);
#undef CT_CUDA_12_V2

// The function by which a process subscribes to CUPTI.
struct CuptiSubscribe {
#if CUDART_VERSION >= 13000
  static constexpr const char* kName = "cuptiSubscribe_v2";
  decltype(&cuptiSubscribe_v2) function;
  // `other` gets the name of the subscriber that is there already, if CUPTI tells it.
  CUptiResult operator()(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc call, std::string& other) const {
    char name[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN + 1] = "";
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "streamtorch";
    params.oldSubscriberName = name;
    params.oldSubscriberSize = CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN;
    const CUptiResult result = function(handle, call, nullptr, &params);
    other = name;
    return result;
  }
#else
  static constexpr const char* kName = "cuptiSubscribe";
  decltype(&cuptiSubscribe) function;
  CUptiResult operator()(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc call, std::string&) const {
    return function(handle, call, nullptr);
  }
#endif
};

#endif

}  // namespace ct
