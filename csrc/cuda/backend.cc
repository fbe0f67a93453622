#include "cuda/backend.h"

#include <ATen/cuda/PeerToPeerAccess.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/versions.h"
#include "cuda/boxes.h"
#include "cuda/graph.h"
#include "cuda/nccl.h"
#include "cuda/nvjpeg.h"
#include "cuda/program.h"
#include "cuda/trace.h"
#include "cuda/watch.h"

namespace ct {
namespace {

cudaStream_t native(c10::Stream stream) { return c10::cuda::CUDAStream(stream).stream(); }

// While the object lives, the calling thread may make calls that CUDA calls unsafe, such as a
// query of an event. While another thread captures a graph in CUDA's global mode, an unsafe call
// ends that capture with an error. The object tells CUDA that the calls of its thread have
// nothing to do with the capture.
class BesideCaptures {
 public:
  BesideCaptures() noexcept { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class Backend final : public CudaBackend {
 public:
  void bind_thread(c10::DeviceIndex device) override {
    int current = 0;
    C10_CUDA_CHECK(cudaGetDevice(&current));
    if (current == device) C10_CUDA_CHECK(cudaSetDevice(device));
  }

  c10::Stream new_stream(c10::DeviceIndex device, int priority) override {
    const BesideCaptures beside;
    const c10::cuda::CUDAGuard guard(device);
    cudaStream_t stream = nullptr;
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
    return c10::cuda::getStreamFromExternal(stream, device).unwrap();
  }

  c10::Stream external_stream(void* external, c10::DeviceIndex device) override {
    auto* stream = static_cast<cudaStream_t>(external);
    TORCH_CHECK(stream != cudaStreamPerThread, "cudaStreamPerThread is another stream on each thread: make one with cudaStreamCreateWithFlags");
    if (stream == nullptr || stream == cudaStreamLegacy) return c10::cuda::getDefaultCUDAStream(device).unwrap();
    int of = 0;
    C10_CUDA_CHECK(cudaStreamGetDevice(stream, &of));
    TORCH_CHECK(of == device, "the stream is one of cuda:", of, ", not of cuda:", static_cast<int>(device));
    return c10::cuda::getStreamFromExternal(stream, device).unwrap();
  }

  void* native_stream(c10::Stream stream) override { return native(stream); }

  void* new_event(c10::DeviceIndex device, bool timing) override {
    const BesideCaptures beside;
    const c10::cuda::CUDAGuard guard(device);
    cudaEvent_t event = nullptr;
    // cudaEventBlockingSync is not set. With it, CUDA allows only about 56 recordings while the work
    // before them still runs. At the next recording the host would wait.
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming));
    return event;
  }

  void record(void* event, c10::Stream stream) override {
    const c10::cuda::CUDAGuard guard(stream.device_index());
    C10_CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event), native(stream)));
  }

  void wait(c10::Stream stream, void* event) override {
    const c10::cuda::CUDAGuard guard(stream.device_index());
    C10_CUDA_CHECK(cudaStreamWaitEvent(native(stream), static_cast<cudaEvent_t>(event), 0));
  }

  bool query_event(void* event) override {
    const BesideCaptures beside;
    const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    C10_CUDA_CHECK(code);
    return true;
  }

  void synchronize_event(void* event) override {
    while (!query_event(event)) std::this_thread::sleep_for(std::chrono::microseconds(20));  // CUDA's own wait would spin
  }

  float elapsed(void* start, void* end) override {
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start), static_cast<cudaEvent_t>(end)));
    return milliseconds;
  }

  void lock_pages(void* data, size_t bytes, bool read_only) override {
    const BesideCaptures beside;
    C10_CUDA_CHECK(cudaHostRegister(data, bytes, cudaHostRegisterPortable | (read_only ? cudaHostRegisterReadOnly : 0U)));
  }

  void unlock_pages(void* data) noexcept override {
    const BesideCaptures beside;
    (void)cudaHostUnregister(data);
    (void)cudaGetLastError();
  }

  bool page_locked(const void* data) override {
    cudaPointerAttributes attributes{};
    C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
    return attributes.type != cudaMemoryTypeUnregistered;
  }

  void copy_to_device(void* destination, const void* source, size_t bytes, c10::Stream stream) override {
    //edge:copy-from-on-stream TestHostSlab_PinnedCopyDoesNotWait gpu
    C10_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, native(stream)));
  }

  void copy_between(void* destination, c10::DeviceIndex to, const void* source, c10::DeviceIndex from, size_t bytes,
                    c10::Stream stream) override {
    if (to != from) (void)at::cuda::get_p2p_access(to, from);  // without peer access the copy goes through the host
    C10_CUDA_CHECK(cudaMemcpyPeerAsync(destination, to, source, from, bytes, native(stream)));
  }

  void copy_to_host(void* destination, const void* source, size_t bytes, c10::Stream stream) override {
    const bool wait = !page_locked(destination);
    //edge:copy-to-on-stream TestStream_Wait_CPUForCUDA gpu
    C10_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, native(stream)));
    if (wait) C10_CUDA_CHECK(cudaStreamSynchronize(native(stream)));
  }

  // Returns whether the next kernel of a captured stream begins behind several others. A programmatic
  // edge is one between two kernels.
  static bool joins(c10::Stream stream) {
    if (native(stream) == nullptr) return false;  // as is_capturing
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t* nodes = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 0;
    C10_CUDA_CHECK(capture_info(native(stream), &status, nullptr, nullptr, &nodes, &edges, &count));
    return status == cudaStreamCaptureStatusActive && count > 1;
  }

  // Adds the size of a cluster to the attributes of a launch.
  static void set_cluster(cudaLaunchConfig_t& how, unsigned cluster) {
    cudaLaunchAttribute& attribute = how.attrs[how.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }

  void launch(const CudaProgram& program, const char* kernel, c10::Stream stream, unsigned blocks, unsigned threads, void** arguments, int shared,
              CudaStart start, unsigned cluster, unsigned rows) override {
    const c10::cuda::CUDAGuard guard(stream.device_index());
    const void* function = kernel_of(program, kernel, stream.device_index());
    cudaLaunchConfig_t how{dim3(blocks, rows), dim3(threads), static_cast<size_t>(shared), native(stream), nullptr, 0};
    cudaLaunchAttribute attributes[2];
    how.attrs = attributes;
    if (start == CudaStart::kProgrammatic && joins(stream)) start = CudaStart::kBehind;
    if (start != CudaStart::kBehind) {
      cudaLaunchAttribute& attribute = attributes[how.numAttrs++];
      if (start == CudaStart::kTogether) {
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = 1;
      } else {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
      }
    }
    if (cluster > 1) set_cluster(how, cluster);
    //edge:kernel-on-stream TestEvent_Done gpu
    C10_CUDA_CHECK(cudaLaunchKernelExC(&how, function, arguments));
  }

  int clusters(const CudaProgram& program, const char* kernel, c10::DeviceIndex device, unsigned threads, int shared, unsigned cluster) override {
    const c10::cuda::CUDAGuard guard(device);
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t how{dim3(cluster), dim3(threads), static_cast<size_t>(shared), nullptr, &attribute, 0};
    set_cluster(how, cluster);
    int count = 0;
    C10_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kernel_of(program, kernel, device), &how));
    return count;
  }

  CudaBoxes boxes(const void* matrix, int64_t count, int64_t together, int64_t rows, int64_t row_bytes, int box_rows, int box_bytes) override {
    return ct::boxes(matrix, count, together, rows, row_bytes, box_rows, box_bytes);
  }

  void compile(const CudaProgram& program, const char* kernel, c10::DeviceIndex device) override {
    const c10::cuda::CUDAGuard guard(device);
    (void)kernel_of(program, kernel, device);
  }

  CudaChip chip(c10::DeviceIndex device) override { return ct::chip(device); }

  const char* name(c10::DeviceIndex device) override {
    static auto* const mutex = new std::mutex;
    static auto* const names = new std::map<c10::DeviceIndex, std::string>;
    const std::lock_guard lock(*mutex);
    const auto found = names->find(device);
    if (found != names->end()) return found->second.c_str();
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    return names->emplace(device, properties.name).first->second.c_str();
  }

  int64_t untaken(c10::DeviceIndex device) override {
    const BesideCaptures beside;
    const c10::cuda::CUDAGuard guard(device);
    size_t untaken = 0, all = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&untaken, &all));
    return static_cast<int64_t>(untaken);
  }

  void beside_captures(const std::function<void()>& fn) override {
    const BesideCaptures beside;
    fn();
  }
  std::unique_ptr<CudaJpeg> new_jpeg(c10::Stream stream) override { return ct::new_jpeg(stream); }

  ct_group_id new_group_id() override { return new_nccl_id(); }
  std::unique_ptr<Collectives> join_group(c10::DeviceIndex device, const ct_group_id& id, int32_t rank, int32_t world) override {
    const BesideCaptures beside;
    return new_nccl(device, id, rank, world);
  }

  std::unique_ptr<CudaGraph> new_graph(c10::DeviceIndex device) override { return ct::new_graph(device); }

  bool is_capturing(c10::Stream stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    // The legacy default stream cannot be captured. To ask CUDA about it is an error while another
    // stream is captured.
    if (native(stream) == nullptr) return false;
    C10_CUDA_CHECK(cudaStreamIsCapturing(native(stream), &status));
    return status != cudaStreamCaptureStatusNone;
  }

  c10::MempoolId_t new_graph_pool(c10::DeviceIndex device) override { return ct::new_graph_pool(device); }
  void free_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept override { ct::free_graph_pool(device, pool); }
  void enter_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(void*)> of) override {
    ct::enter_graph_pool(device, pool, std::move(of));
  }
  void leave_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept override { ct::leave_graph_pool(device, pool); }
  int64_t graph_pool_bytes(c10::DeviceIndex device, c10::MempoolId_t pool) override { return ct::graph_pool_bytes(device, pool); }

  void start_trace(size_t limit) override { ct::start_trace(limit); }
  void stop_trace(ct_trace& out) override { ct::stop_trace(out); }
  uint32_t trace_number(c10::Stream stream) override {
    const c10::cuda::CUDAGuard guard(stream.device_index());
    // On a thread without a CUDA context the guard does not set the device.
    C10_CUDA_CHECK(cudaSetDevice(stream.device_index()));
    return ct::trace_number(native(stream));
  }
  void start_watching(CudaCalls* calls) override { ct::start_watching(calls); }
  void stop_watching() noexcept override { ct::stop_watching(); }

  std::string context_error(c10::DeviceIndex device) noexcept override {
    const BesideCaptures beside;
    // The thread goes back to its device only if that device has a context. To set a device without a
    // context would make a context there.
    c10::DeviceIndex before = device;
    (void)c10::cuda::GetDevice(&before);
    if (before != device) (void)cudaSetDevice(device);
    (void)cudaGetLastError();
    // If an error has destroyed the context, every call returns that error. The call here is
    // cudaStreamQuery, because it neither waits nor enqueues.
    const cudaError_t code = cudaStreamQuery(nullptr);
    (void)cudaGetLastError();
    if (before != device) (void)c10::cuda::MaybeSetDevice(before);
    switch (code) {
      case cudaSuccess:
      case cudaErrorNotReady:
      case cudaErrorStreamCaptureUnsupported:
      case cudaErrorStreamCaptureImplicit:
      case cudaErrorMemoryAllocation:
        return "";
      default:
        return cudaGetErrorString(code);
    }
  }
};

}  // namespace
}  // namespace ct

ct::CudaBackend* ct_cuda_backend(void) {
  static auto* const backend = new ct::Backend;
  return backend;
}
