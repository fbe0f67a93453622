#include "cuda/graph.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>
#include <vector>

#include "core/versions.h"
#include "cuda/graph_fills.h"

namespace ct {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

cudaStream_t current() { return c10::cuda::getCurrentCUDAStream().stream(); }

// Note [A graph's random numbers]
//
// LibTorch has one generator for each device. A captured kernel reads seed and offset from memory
// that belongs to the generator's state at the capture. Launches of several graphs must not write
// into the same memory. So while a graph is captured, the device's generator works on a copy of
// its state, and the graph keeps that copy.
//
// At a launch, seed and offset of the device's generator are written to the copy. The device's
// generator then continues after the numbers that the launch draws.
class GeneratorState {
 public:
  // From this call to give_back, the device's generator draws from a copy of its state.
  void stand_in(c10::DeviceIndex device) {
    at::Generator of_device = at::cuda::detail::getDefaultCUDAGenerator(device);
    const std::lock_guard lock(of_device.mutex());
    real_ = of_device.graphsafe_get_state();
    own_ = of_device.clone();
    of_device.graphsafe_set_state(own_);
    real_of(device) = real_;
  }

  void give_back(c10::DeviceIndex device) {
    if (!real_.defined()) return;
    at::Generator of_device = at::cuda::detail::getDefaultCUDAGenerator(device);
    const std::lock_guard lock(of_device.mutex());
    of_device.graphsafe_set_state(real_);
    real_ = real_of(device) = at::Generator();
  }

  template <typename F>
  void launch(c10::DeviceIndex device, F&& replay) {
    at::Generator of_device = at::cuda::detail::getDefaultCUDAGenerator(device);
    const std::lock_guard lock(of_device.mutex());
    const at::Generator& real = real_of(device);  // defined only while some graph is captured, because a copy then stands in for the real state
    auto* from = (real.defined() ? real : of_device).get<at::CUDAGeneratorImpl>();
    auto* own = own_.get<at::CUDAGeneratorImpl>();
    own->set_current_seed(from->current_seed());
    own->set_philox_offset_per_thread(from->philox_offset_per_thread());
    replay();
    from->set_philox_offset_per_thread(own->philox_offset_per_thread());
  }

 private:
  // The generator's real state, while a copy stands in for it. Undefined at other times. The mutex
  // of the device's generator guards it.
  static at::Generator& real_of(c10::DeviceIndex device) {
    static auto* const all = new at::Generator[256];
    return all[static_cast<uint8_t>(device)];
  }

  at::Generator real_, own_;
};

class Graph final : public CudaGraph, private at::cuda::CUDAGraph {
  auto* drawn_place() const {
    return captured_generator_states_.empty() ? nullptr : drawn_in(*captured_generator_states_.begin()->first, capture_id_);
  }

 public:
  explicit Graph(c10::DeviceIndex device) : at::cuda::CUDAGraph(/*keep_graph=*/true), device_(device) {}

  ~Graph() override { abandon(); }

  void begin(c10::MempoolId_t pool) override {
    generator_.stand_in(device_);
    try {
      pool_ = pool;
      on_ = current();
      begun_ = true;
      capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    } catch (...) {
      abandon();
      throw;
    }
  }

  bool end(CudaGraph* older) override {
    try {
      capture_end();
    } catch (...) {
      abandon(/*ended=*/true);
      throw;
    }
    begun_ = false;
    generator_.give_back(device_);
    for (const auto& [state, increment] : captured_generator_states_) random_ = random_ || increment > 0;
    replace_fills(graph_, device_);
    const bool updated = older != nullptr && take(static_cast<Graph&>(*older));
    if (!updated) instantiate();
    // If the upload fails, the first launch uploads the graph.
    if (cudaGraphUpload(graph_exec_, current()) != cudaSuccess) (void)cudaGetLastError();
    return updated;
  }

  void launch() override {
    const c10::cuda::CUDAGuard guard(device_);
    if (!random_) {
      C10_CUDA_CHECK(cudaGraphLaunch(graph_exec_, current()));
      return;
    }
    generator_.launch(device_, [&] { replay(); });
  }

  bool random() const override { return random_; }

  uint64_t drawn() const override {
    const auto* const place = drawn_place();
    return place == nullptr ? 0 : *place;
  }
  void set_drawn(uint64_t drawn) override {
    if (auto* const place = drawn_place()) *place = drawn;
  }

  void count(int64_t* nodes, int64_t* kernels, int64_t* copies, int64_t* fills) override {
    size_t all = 0;
    C10_CUDA_CHECK(cudaGraphGetNodes(graph_, nullptr, &all));
    std::vector<cudaGraphNode_t> list(all);
    if (all > 0) C10_CUDA_CHECK(cudaGraphGetNodes(graph_, list.data(), &all));
    *nodes = static_cast<int64_t>(all);
    *kernels = *copies = *fills = 0;
    for (cudaGraphNode_t node : list) {
      cudaGraphNodeType type{};
      C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
      *kernels += type == cudaGraphNodeTypeKernel;
      *copies += type == cudaGraphNodeTypeMemcpy;
      *fills += type == cudaGraphNodeTypeMemset;
    }
  }

 private:
  // Takes over the older graph's memory on the device, if CUDA can replace the older graph's
  // parameters by those of this graph. Returns whether it did.
  bool take(Graph& older) {
    if (!older.has_graph_exec_) return false;
    cudaGraphExecUpdateResultInfo info{};
    if (cudaGraphExecUpdate(older.graph_exec_, graph_, &info) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    graph_exec_ = std::exchange(older.graph_exec_, nullptr);
    has_graph_exec_ = std::exchange(older.has_graph_exec_, false);
    return true;
  }

  // Ends a capture that has failed, or that was begun and is not wanted. LibTorch's own function
  // for the end would leave the pools open. `ended` says that this function has failed.
  void abandon(bool ended = false) noexcept {
    if (!std::exchange(begun_, false)) return;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(on_, &status);
    if (capture_id_ != 0 && status != cudaStreamCaptureStatusNone) capture_ended(device_);
    cudaGraph_t rest = nullptr;
    (void)cudaStreamEndCapture(on_, &rest);  // the capture may have ended already, or may never have begun
    if (rest != nullptr) (void)cudaGraphDestroy(rest);
    (void)cudaGetLastError();
    const auto succeeds = [](auto&& f) {
      try {
        f();
        return true;
      } catch (...) {
        return false;
      }
    };
    if (kResetReleasesPools) {
      succeeds([&] { reset(); });
    } else {
      const bool closed = kEndClosesPools && ended;
      if (succeeds([&] { allocator::endAllocateToPool(device_, pool_); }) || closed) {
        succeeds([&] { allocator::releasePool(device_, pool_); });
      }
      const HostPool host{pool_};
      if (succeeds([&] { host.end(); }) || closed) {
        succeeds([&] { host.release(); });
      }
    }
    succeeds([&] { generator_.give_back(device_); });
  }

  const c10::DeviceIndex device_;
  c10::MempoolId_t pool_{};
  cudaStream_t on_ = nullptr;
  bool begun_ = false;
  bool random_ = false;
  GeneratorState generator_;
};

}  // namespace

std::unique_ptr<CudaGraph> new_graph(c10::DeviceIndex device) { return std::make_unique<Graph>(device); }

c10::MempoolId_t new_graph_pool(c10::DeviceIndex device) {
  const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
  allocator::get()->createOrIncrefPool(device, pool);
  // A capture also opens a pool of page-locked memory with the same number. LibTorch refuses to
  // open that pool again after its last user has closed it. So this function opens the pool of
  // page-locked memory for as long as the graph pool lives.
  const HostPool host{pool};
  host.begin();
  host.end();
  return pool;
}

void free_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept {
  try {
    allocator::releasePool(device, pool);
    HostPool{pool}.release();
  } catch (...) {  // the device is lost
  }
}

void enter_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(void*)> of) {
  allocator::beginAllocateToPool(device, pool, [of = std::move(of)](cudaStream_t stream) { return of(stream); });
}

void leave_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept {
  try {
    allocator::endAllocateToPool(device, pool);
    allocator::releasePool(device, pool);
  } catch (...) {  // the device is lost
  }
}

int64_t graph_pool_bytes(c10::DeviceIndex device, c10::MempoolId_t pool) {
  int64_t bytes = 0;
  for (const auto& segment : segments_of(pool)) {
    if (segment.device == device && segment.owner_private_pool_id == pool) bytes += static_cast<int64_t>(segment.total_size);
  }
  return bytes;
}

}  // namespace ct
