// A device that decodes JPEG files for a pool of package imageloader/decode.

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cgotorch.h"
#include "cgotorch_decode.h"
#include "core/device.h"
#include "core/live.h"
#include "core/stream.h"
#include "kernels/jpeg_pixels.h"

// Note [Decoding with engines]
//
// NVIDIA's NVJPG engines make the same samples Y, Cb and Cr as libjpeg, but other colours: their
// chroma is not smoothed. So the engines make the three planes of a file, and four kernels make
// the colours and the resize, with the arithmetic of libjpeg and of the pool's threads. One launch
// of a kernel serves all files of a call. A block works on one file.
//
// A lane is a stream with the memory for one call. A call copies the files into page-locked
// memory, enqueues everything, and sleeps until the results are back on the host. The engines take
// files of one sampling several times faster than mixed files, so a call has one sampling.

namespace ct {
namespace {

using jpeg::Frame;

constexpr int kMostFrames = CudaJpeg::kMostFiles;
constexpr int64_t kMostPixels = 32 << 20;
// The decoder gives up when calls have failed for so long, at least so many of them, and none has
// succeeded between them. The threads of the pool then decode all files, and none waits for an
// engine that fails. A shorter time may be an accident: calls that fail do so within microseconds.
constexpr int kMostFailures = 8;
constexpr std::chrono::seconds kPatience{5};
constexpr unsigned kThreads = 256;
// A batch that waits for its last images would hold up a whole step, so the few kernels of a lane
// run before those of the step.
constexpr int kPriority = -1;

constexpr char kSource[] = R"cuda(
#define KERNEL(name, step)                                                                                            \
  extern "C" __global__ void __launch_bounds__(256) name(const Frame* frames, int count) {                            \
    const int blocks = gridDim.x / count;                                                                             \
    const Frame f = frames[blockIdx.x / blocks];                                                                      \
    step(f, Team{static_cast<int>(blockIdx.x) % blocks, blocks, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)}); \
  }
KERNEL(jpeg_taps, make_taps)
KERNEL(jpeg_pixels, make_pixels)
KERNEL(jpeg_between, make_between)
KERNEL(jpeg_result, make_result)
)cuda";

// The kernels in their order, and the blocks that work on a file.
constexpr struct {
  const char* name;
  unsigned blocks;
} kSteps[] = {{"jpeg_taps", 2}, {"jpeg_pixels", 64}, {"jpeg_between", 32}, {"jpeg_result", 32}};

const CudaProgram& program() {
  static auto* const texts = new std::string(std::string(resample::kText).append(jpeg::kText));
  static auto* const all = new CudaProgram{"jpeg", texts->c_str(), kSource};
  return *all;
}

// Memory grows to the size that is asked for, and a quarter more, so that it seldom grows. When it
// grows, its content is lost.
class Memory {
 public:
  uint8_t* bytes(c10::Allocator* from, size_t size) {
    if (size > size_) {
      size_ = 0;
      memory_ = {};
      memory_ = from->allocate(size + size / 4);
      size_ = size + size / 4;
    }
    return static_cast<uint8_t*>(memory_.get());
  }

 private:
  c10::DataPtr memory_;
  size_t size_ = 0;
};

class Lane {
 public:
  explicit Lane(c10::Device device) : handle_(new_stream(device, kPriority)), stream_(handle_->stream) {
    on_stream([&] { jpeg_ = cuda().new_jpeg(stream_); });
  }
  ~Lane() {
    try {
      on_stream([&] {
        jpeg_.reset();
        device_ = {};
        host_ = {};
      });
    } catch (...) {  // the device is lost, and its memory with it
    }
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Throws if the device has no engines.
  void open() {
    const std::lock_guard lock(mutex_);
    on_stream([&] { jpeg_->open(); });
  }

  void compile() {
    on_stream([&] {
      for (const auto& step : kSteps) cuda().compile(program(), step.name, stream_.device_index());
    });
  }

  // Decodes `frames`, and sets `failed` to 0 for those that are decoded. Two pools may use one lane.
  // The second then waits for the first.
  void decode(int sampling, int height, int width, const std::vector<ctd_frame*>& frames) {
    const std::lock_guard lock(mutex_);
    on_stream([&] {
      try {
        run(sampling, height, width, frames);
      } catch (...) {
        try {
          jpeg_->wait();  // the memory is used for the next call
        } catch (...) {
        }
        throw;
      }
    });
  }

 private:
  template <typename F>
  void on_stream(const F& fn) {
    cuda().beside_captures([&] {
      const c10::StreamGuard guard(stream_);
      cuda().bind_thread(stream_.device_index());  // nvJPEG works on the thread's device
      fn();
    });
  }

  void run(int sampling, int height, int width, std::vector<ctd_frame*> frames) {
    std::vector<Frame> table;
    size_t stored = 0;
    for (const ctd_frame* f : frames) {
      table.push_back(jpeg::frame_of(*f, sampling, height, width));
      stored += f->head_size + f->size;
    }
    // On both sides the memory begins with the table and the results. Then the host has the files,
    // and the device has the memory of the frames.
    const size_t result = size_t{3} * height * width, head = frames.size() * (sizeof(Frame) + result);
    const auto place = [&](uintptr_t base) {
      uintptr_t at = base + head;
      for (Frame& f : table) at = jpeg::place(f, at);
      return at - base;
    };
    uint8_t* const device = device_.bytes(c10::GetAllocator(c10::kCUDA), place(0));
    uint8_t* const host = host_.bytes(at::detail::getCUDAHooks().getPinnedMemoryAllocator(), head + stored);
    place(reinterpret_cast<uintptr_t>(device));
    decode_planes(sampling, frames, table, host + head);
    if (frames.empty()) return;

    const size_t tables = table.size() * sizeof(Frame);
    for (size_t i = 0; i < table.size(); ++i) table[i].to = device + tables + i * result;
    std::memcpy(host, table.data(), tables);
    cuda().copy_to_device(device, host, tables, stream_);
    int count = static_cast<int>(table.size());
    void* arguments[] = {const_cast<uint8_t**>(&device), &count};
    for (const auto& step : kSteps) cuda().launch(program(), step.name, stream_, step.blocks * count, kThreads, arguments);
    cuda().copy_to_host(host + tables, device + tables, frames.size() * result, stream_);
    jpeg_->wait();
    for (size_t i = 0; i < frames.size(); ++i) {
      std::memcpy(frames[i]->to, host + tables + i * result, result);
      frames[i]->failed = 0;
    }
  }

  // Enqueues the decoding of the frames' planes. If nvJPEG refuses a file of the call, each file is
  // decoded alone. A frame whose file is refused again is removed from `frames` and `table`.
  void decode_planes(int sampling, std::vector<ctd_frame*>& frames, std::vector<Frame>& table, uint8_t* staging) {
    std::vector<const uint8_t*> files;
    std::vector<size_t> sizes;
    std::vector<CudaJpeg::Planes> planes;
    for (size_t i = 0; i < frames.size(); ++i) {
      const ctd_frame& f = *frames[i];
      files.push_back(staging);
      sizes.push_back(f.head_size + f.size);
      if (f.head_size > 0) std::memcpy(staging, f.head, f.head_size);
      std::memcpy(staging + f.head_size, f.data, f.size);
      staging += sizes.back();
      const jpeg::Plane* p = table[i].planes;
      planes.push_back({{p[0].data, p[1].data, p[2].data}, {p[0].width, p[1].width, p[2].width}, p[0].height});
    }
    if (jpeg_->decode(sampling, static_cast<int>(files.size()), files.data(), sizes.data(), planes.data())) return;
    size_t left = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      if (files.size() > 1 && jpeg_->decode(sampling, 1, &files[i], &sizes[i], &planes[i])) {
        frames[left] = frames[i];
        table[left++] = table[i];
      }
    }
    frames.resize(left);
    table.resize(left);
  }

  // A call waits for its own work. So the stream is idle when it goes to its next owner.
  const std::unique_ptr<ct_stream> handle_;
  const c10::Stream stream_;
  std::mutex mutex_;
  std::unique_ptr<CudaJpeg> jpeg_;
  Memory device_, host_;
};

}  // namespace
}  // namespace ct

struct ct_jpeg_decoder {
  ct_jpeg_decoder(c10::Device where, int32_t lanes) : where(where) {
    ct::cuda();  // makes LibTorch's allocators ready
    for (int32_t i = 0; i < lanes; ++i) this->lanes.push_back(std::make_unique<ct::Lane>(where));
    for (const auto& lane : this->lanes) lane->open();
    device.self = this;
    device.lanes = lanes;
    device.most_frames = ct::kMostFrames;
    device.most_pixels = ct::kMostPixels;
    device.prepare = [](void* self, int32_t lane) { static_cast<ct_jpeg_decoder*>(self)->prepare(lane); };
    device.decode = [](void* self, int32_t lane, int32_t sampling, int32_t height, int32_t width, ctd_frame* frames, size_t count) {
      static_cast<ct_jpeg_decoder*>(self)->decode(lane, sampling, height, width, frames, count);
    };
    device.retain = [](void* self) { static_cast<ct_jpeg_decoder*>(self)->retain(); };
    device.release = [](void* self) { static_cast<ct_jpeg_decoder*>(self)->release(); };
    ++ct::live().decoders;
  }
  ~ct_jpeg_decoder() { --ct::live().decoders; }

  void retain() noexcept { ++users; }
  void release() noexcept {
    if (--users == 0) delete this;
  }

  void prepare(int32_t lane) noexcept {
    try {
      if (lane >= 0 && lane < device.lanes && !ct::is_lost(where)) lanes[lane]->compile();
    } catch (...) {
      ct_status_free(ct::status_of_exception(where));  // remembers that the device is lost
    }
  }

  // Frames that do not fit the device's limits fail. So do all frames after the decoder has given
  // up.
  void decode(int32_t lane, int32_t sampling, int32_t height, int32_t width, ctd_frame* frames, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) frames[i].failed = 1;
    std::unique_ptr<ct_status> why;
    try {
      int64_t pixels = 0;
      std::vector<ctd_frame*> chosen;
      for (size_t i = 0; i < count; ++i) {
        if (!ct::jpeg::valid(frames[i], height, width)) continue;
        pixels += int64_t{frames[i].height} * frames[i].width;
        chosen.push_back(&frames[i]);
      }
      const bool fits = lane >= 0 && lane < device.lanes && sampling >= CTD_444 && sampling <= CTD_420 && count <= ct::kMostFrames && pixels <= ct::kMostPixels;
      if (fits && !chosen.empty() && !gave_up && !ct::is_lost(where)) lanes[lane]->decode(sampling, height, width, chosen);
    } catch (...) {
      why.reset(ct::status_of_exception(where));  // remembers that the device is lost
    }
    const int64_t good = std::count_if(frames, frames + count, [](const ctd_frame& f) { return f.failed == 0; });
    decoded += good;
    failed += static_cast<int64_t>(count) - good;
    note(good > 0, std::move(why));
  }

  // Notes how a call ended. why: the error of a call that failed, or NULL if nvJPEG refused the
  // files.
  void note(bool good, std::unique_ptr<ct_status> why) {
    const std::lock_guard lock(mutex);
    if (gave_up) return;
    if (good) {
      failures = 0;
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (failures++ == 0) failing_since = now;
    gave_up = failures >= ct::kMostFailures && now - failing_since >= ct::kPatience;
    failure = std::move(why);
    if (!failure) failure = std::make_unique<ct_status>(CT_UNSUPPORTED, "nvJPEG refused all files of a call", nullptr);
  }

  const c10::Device where;
  ctd_device device{};
  std::vector<std::unique_ptr<ct::Lane>> lanes;
  std::atomic<int> users{1};
  std::atomic<bool> gave_up{false};
  std::atomic<int64_t> decoded{0}, failed{0};
  mutable std::mutex mutex;  // guards the members below
  int failures = 0;          // successive calls without a good file
  std::chrono::steady_clock::time_point failing_since;
  std::unique_ptr<ct_status> failure;
};

extern "C" {

ct_status* ct_jpeg_decoder_new(ct_device device, int32_t lanes, ct_jpeg_decoder** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (lanes < 1) throw ct::Failure(CT_INVALID_ARGUMENT, std::to_string(lanes) + " lanes: want at least one");
    if (!where.is_cuda()) throw ct::Failure(CT_UNSUPPORTED, "the CPU has no engines that decode JPEG: give a CUDA device");
    *out = new ct_jpeg_decoder(where, lanes);
  });
}

void ct_jpeg_decoder_free(ct_jpeg_decoder* decoder) noexcept {
  if (decoder != nullptr) decoder->release();
}

const void* ct_jpeg_decoder_device(const ct_jpeg_decoder* decoder) noexcept { return &decoder->device; }

void ct_jpeg_decoder_count(const ct_jpeg_decoder* decoder, ct_jpeg_counts* out) noexcept {
  *out = ct_jpeg_counts{decoder->decoded, decoder->failed, decoder->gave_up};
}

ct_status* ct_jpeg_decoder_failure(const ct_jpeg_decoder* decoder) noexcept {
  const std::lock_guard lock(decoder->mutex);
  return decoder->failure ? new ct_status(decoder->failure->code, decoder->failure->message, decoder->failure->cause) : nullptr;
}

}  // extern "C"
