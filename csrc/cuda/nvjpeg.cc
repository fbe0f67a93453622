#include "cuda/nvjpeg.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/status.h"
#include "cuda/shared_library.h"
#include "include/cgotorch_decode.h"

namespace ct {
namespace {

// The functions of nvJPEG that are used. They are declared here because the build does not have
// the header of nvJPEG. Each returns 0 for success.
struct Nvjpeg {
  using Handle = void*;
  using State = void*;
  struct Image {
    unsigned char* planes[4];
    size_t pitches[4];
  };
  struct Allocator {
    int (*allocate)(void* context, void** out, size_t bytes, cudaStream_t);
    int (*free)(void* context, void* memory, size_t bytes, cudaStream_t);
    void* context;
  };
  static constexpr int kEngines = 3;  // NVJPEG_BACKEND_HARDWARE
  static constexpr int kPlanes = 1;   // NVJPEG_OUTPUT_YUV

  int (*create)(int backend, Allocator* device, Allocator* pinned, unsigned flags, Handle*);
  int (*destroy)(Handle);
  int (*create_state)(Handle, State*);
  int (*destroy_state)(State);
  int (*begin)(Handle, State, int count, int threads, int output);
  int (*decode)(Handle, State, const unsigned char* const* files, const size_t* sizes, Image* images, cudaStream_t);
};

Nvjpeg open_nvjpeg() {
  SharedLibrary library("libnvjpeg.so." + std::to_string(CUDART_VERSION / 1000));
  library.open("/usr/local/cuda/lib64/" + library.name());
  if (!library) {
    throw Failure(CT_UNSUPPORTED, "nvJPEG cannot be opened; run `make setup` on this machine, or `pip install nvidia-nvjpeg` and add the folder of " +
                                      library.name() + " to LD_LIBRARY_PATH (" + library.reason() + ")");
  }
  Nvjpeg all{};
  library.find(all.create, "nvjpegCreateExV2");
  library.find(all.destroy, "nvjpegDestroy");
  library.find(all.create_state, "nvjpegJpegStateCreate");
  library.find(all.destroy_state, "nvjpegJpegStateDestroy");
  library.find(all.begin, "nvjpegDecodeBatchedInitialize");
  library.find(all.decode, "nvjpegDecodeBatched");
  return all;
}

const Nvjpeg& nvjpeg() {
  static const Nvjpeg all = open_nvjpeg();  // if open_nvjpeg throws, the next call tries again
  return all;
}

// Memory gives nvJPEG memory of LibTorch's allocators. nvJPEG may free memory while the device
// still uses it, because cudaFree would wait for the device. So freed memory is kept until the
// stream is known to be idle.
class Memory {
 public:
  Memory(c10::Allocator* from, c10::Stream stream) : from_(from), stream_(stream) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Nvjpeg::Allocator allocator() { return {allocate, free, this}; }
  void stream_is_idle() {
    const std::lock_guard lock(mutex_);
    freed_.clear();
  }

 private:
  static int allocate(void* context, void** out, size_t bytes, cudaStream_t) noexcept {
    try {
      Memory& self = *static_cast<Memory*>(context);
      const std::lock_guard lock(self.mutex_);
      const c10::StreamGuard guard(self.stream_);
      c10::DataPtr memory = self.from_->allocate(bytes == 0 ? 1 : bytes);
      void* const address = memory.get();
      self.used_[address] = std::move(memory);
      *out = address;
      return cudaSuccess;
    } catch (...) {
      (void)cudaGetLastError();
      return cudaErrorMemoryAllocation;
    }
  }

  static int free(void* context, void* memory, size_t, cudaStream_t) noexcept {
    Memory& self = *static_cast<Memory*>(context);
    const std::lock_guard lock(self.mutex_);
    if (auto node = self.used_.extract(memory)) self.freed_.push_back(std::move(node.mapped()));
    return cudaSuccess;
  }

  c10::Allocator* const from_;
  const c10::Stream stream_;
  std::mutex mutex_;
  std::unordered_map<void*, c10::DataPtr> used_;
  std::vector<c10::DataPtr> freed_;
};

// Engine is nvJPEG for the files of one sampling. If one state decodes files of several samplings,
// nvJPEG is three times slower, because it sets itself up anew.
class Engine {
 public:
  Engine(Memory& device, Memory& pinned) : device_(device.allocator()), pinned_(pinned.allocator()) {
    if (const int code = nvjpeg().create(Nvjpeg::kEngines, &device_, &pinned_, 0, &handle_); code != 0) {
      throw Failure(CT_UNSUPPORTED, "nvJPEG finds no engines that decode JPEG on this device (its status is " + std::to_string(code) + ")");
    }
  }
  ~Engine() {
    forget();
    (void)nvjpeg().destroy(handle_);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Makes the state, unless there is one. Returns whether there is one now.
  bool open() { return state_ != nullptr || nvjpeg().create_state(handle_, &state_) == 0; }

  bool decode(int count, const uint8_t* const* files, const size_t* sizes, Nvjpeg::Image* images, cudaStream_t stream) {
    if (!open()) return false;
    if (count_ != count && nvjpeg().begin(handle_, state_, count, 1, Nvjpeg::kPlanes) != 0) return false;
    count_ = count;
    return nvjpeg().decode(handle_, state_, files, sizes, images, stream) == 0;
  }

  // Frees the state. A state in which a file has failed is not used again.
  void forget() {
    if (state_ != nullptr) (void)nvjpeg().destroy_state(std::exchange(state_, nullptr));
    count_ = 0;
  }

 private:
  Nvjpeg::Allocator device_, pinned_;  // nvJPEG may keep their addresses
  Nvjpeg::Handle handle_ = nullptr;
  Nvjpeg::State state_ = nullptr;
  int count_ = 0;  // the files in a call for which the state is ready
};

class Jpeg final : public CudaJpeg {
 public:
  explicit Jpeg(c10::Stream stream)
      : stream_(stream), device_(c10::cuda::CUDACachingAllocator::get(), stream), pinned_(at::getHostAllocator(at::kCUDA), stream) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&done_, cudaEventBlockingSync | cudaEventDisableTiming));
  }
  ~Jpeg() override { (void)cudaEventDestroy(done_); }

  void open(int sampling) override { engine(sampling).open(); }

  bool decode(int sampling, int count, const uint8_t* const* files, const size_t* sizes, const Planes* planes) override {
    images_.resize(count);
    for (int i = 0; i < count; ++i) {
      for (int c = 0; c < 3; ++c) {
        images_[i].planes[c] = planes[i].data[c];
        images_[i].pitches[c] = planes[i].widths[c];
      }
    }
    Engine& with = engine(sampling);
    if (with.decode(count, files, sizes, images_.data(), c10::cuda::CUDAStream(stream_).stream())) return true;
    (void)cudaGetLastError();
    wait();
    with.forget();
    return false;
  }

  void wait() override {
    C10_CUDA_CHECK(cudaEventRecord(done_, c10::cuda::CUDAStream(stream_).stream()));
    C10_CUDA_CHECK(cudaEventSynchronize(done_));
    device_.stream_is_idle();
    pinned_.stream_is_idle();
  }

 private:
  Engine& engine(int sampling) {
    auto& one = engines_.at(sampling - 1);
    if (!one) one = std::make_unique<Engine>(device_, pinned_);
    return *one;
  }

  const c10::Stream stream_;
  Memory device_, pinned_;
  std::array<std::unique_ptr<Engine>, 3> engines_;
  cudaEvent_t done_ = nullptr;
  std::vector<Nvjpeg::Image> images_;
};

}  // namespace

std::unique_ptr<CudaJpeg> new_jpeg(c10::Stream stream) { return std::make_unique<Jpeg>(stream); }

}  // namespace ct
