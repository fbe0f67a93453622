#include "cuda/nvjpeg.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "cuda/filler_jpeg.h"
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
  static constexpr int kEngines = 3;  // NVJPEG_BACKEND_HARDWARE
  static constexpr int kPlanes = 1;   // NVJPEG_OUTPUT_YUV

  int (*create)(int backend, void* device_allocator, void* pinned_allocator, unsigned flags, Handle*);
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
  library.find(all.create, "nvjpegCreateEx");
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

// Note [nvJPEG's memory]
//
// nvJPEG has buffers for each file of a call: for the file's bytes and for its samples. When a
// buffer is too small, nvJPEG allocates a larger one and frees the old one with cudaFree, whatever
// allocator it has been given. cudaFree waits for all work of the device. A decoder beside a
// training step would wait for all steps that are enqueued, and with it every thread that calls
// CUDA. nvJPEG also sets itself up anew when the number of files changes.
//
// So every call has the same number of files, and small fillers take the places of files that are
// not there. Before the first files of a greater size come, a call with fillers of that size makes
// all buffers large enough. The sizes are powers of two, so such calls are rare.

// Engine is nvJPEG for the files of one sampling. If one state decodes files of several samplings,
// nvJPEG is three times slower, because it sets itself up anew.
class Engine {
 public:
  static constexpr int kFiles = CudaJpeg::kMostFiles;

  Engine(int sampling, c10::Stream stream) : sampling_(sampling), stream_(stream) {
    const std::vector<uint8_t> file = filler(kSmall, kSmall);
    filler_ = at::getHostAllocator(at::kCUDA)->allocate(file.size());
    filler_size_ = file.size();
    std::memcpy(filler_.get(), file.data(), file.size());
    planes_ = planes_of(kSmall, kSmall);
    if (const int code = nvjpeg().create(Nvjpeg::kEngines, nullptr, nullptr, 0, &handle_); code != 0) {
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
  bool open() {
    if (state_ != nullptr) return true;
    if (nvjpeg().create_state(handle_, &state_) != 0) return false;
    width_ = height_ = 0;
    return nvjpeg().begin(handle_, state_, kFiles, 1, Nvjpeg::kPlanes) == 0 && reserve(kFirst, kFirst);
  }

  bool decode(int count, const uint8_t* const* files, const size_t* sizes, const CudaJpeg::Planes* planes) {
    int width = 0, height = 0;
    Call call;
    for (int i = 0; i < count; ++i) {
      width = std::max(width, planes[i].widths[0]);
      height = std::max(height, planes[i].height);
      call.files[i] = files[i];
      call.sizes[i] = sizes[i];
      for (int c = 0; c < 3; ++c) {
        call.images[i].planes[c] = planes[i].data[c];
        call.images[i].pitches[c] = planes[i].widths[c];
      }
    }
    call.fill(count, static_cast<const uint8_t*>(filler_.get()), filler_size_, planes_, kSmall, kSmall);
    return open() && reserve(width, height) && run(call);
  }

  // Frees the state. A state in which a file has failed is not used again.
  void forget() {
    if (state_ != nullptr) (void)nvjpeg().destroy_state(std::exchange(state_, nullptr));
  }

 private:
  // The size of a filler in the place of a file, of the first files for which there is room, and of
  // the largest files for which room is made in advance.
  static constexpr int kSmall = 16, kFirst = 1024, kLargest = 2048;

  struct Call {
    const uint8_t* files[kFiles];
    size_t sizes[kFiles];
    Nvjpeg::Image images[kFiles]{};

    // Puts the file in all places from `from` on.
    void fill(int from, const uint8_t* file, size_t size, const c10::DataPtr& to, int width, int height) {
      for (int i = from; i < kFiles; ++i) {
        files[i] = file;
        sizes[i] = size;
        for (int c = 0; c < 3; ++c) {
          images[i].planes[c] = static_cast<uint8_t*>(to.get()) + size_t{1} * c * width * height;
          images[i].pitches[c] = width;
        }
      }
    }
  };

  std::vector<uint8_t> filler(int width, int height) const {
    return filler_jpeg(width, height, sampling_ == CTD_444 ? 1 : 2, sampling_ == CTD_420 ? 2 : 1);
  }
  static c10::DataPtr planes_of(int width, int height) { return c10::cuda::CUDACachingAllocator::get()->allocate(size_t{3} * width * height); }
  bool run(const Call& call) {
    return nvjpeg().decode(handle_, state_, call.files, call.sizes, const_cast<Nvjpeg::Image*>(call.images), c10::cuda::CUDAStream(stream_).stream()) == 0;
  }

  // Makes nvJPEG's buffers large enough for files of a size, up to kLargest.
  bool reserve(int width, int height) {
    const auto size_for = [](int least, int length) {
      int size = std::max(least, kFirst);
      while (size < length && size < kLargest) size *= 2;
      return size;
    };
    width = size_for(width_, width);
    height = size_for(height_, height);
    if (width == width_ && height == height_) return true;
    const std::vector<uint8_t> file = filler(width, height);
    const c10::DataPtr to = planes_of(width, height);
    Call call;
    call.fill(0, file.data(), file.size(), to, width, height);
    const bool good = run(call);
    C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::CUDAStream(stream_).stream()));
    width_ = width;
    height_ = height;
    return good;
  }

  const int sampling_;
  const c10::Stream stream_;
  c10::DataPtr filler_, planes_;  // a small filler, page-locked, and room for its samples
  size_t filler_size_ = 0;
  Nvjpeg::Handle handle_ = nullptr;
  Nvjpeg::State state_ = nullptr;
  int width_ = 0, height_ = 0;  // of the files for which the buffers are large enough
};

class Jpeg final : public CudaJpeg {
 public:
  explicit Jpeg(c10::Stream stream) : stream_(stream) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&done_, cudaEventBlockingSync | cudaEventDisableTiming));
  }
  ~Jpeg() override { (void)cudaEventDestroy(done_); }

  void open() override {
    for (const int sampling : {CTD_444, CTD_422, CTD_420}) {
      if (Engine& one = engine(sampling); !one.open()) one.forget();
    }
  }

  bool decode(int sampling, int count, const uint8_t* const* files, const size_t* sizes, const Planes* planes) override {
    Engine& with = engine(sampling);
    if (with.decode(count, files, sizes, planes)) return true;
    (void)cudaGetLastError();
    wait();
    with.forget();
    return false;
  }

  void wait() override {
    C10_CUDA_CHECK(cudaEventRecord(done_, c10::cuda::CUDAStream(stream_).stream()));
    C10_CUDA_CHECK(cudaEventSynchronize(done_));
  }

 private:
  Engine& engine(int sampling) {
    auto& one = engines_.at(sampling - 1);
    if (!one) one = std::make_unique<Engine>(sampling, stream_);
    return *one;
  }

  const c10::Stream stream_;
  std::array<std::unique_ptr<Engine>, 3> engines_;
  cudaEvent_t done_ = nullptr;
};

}  // namespace

std::unique_ptr<CudaJpeg> new_jpeg(c10::Stream stream) { return std::make_unique<Jpeg>(stream); }

}  // namespace ct
