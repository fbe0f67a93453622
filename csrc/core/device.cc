#include "core/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "check/checker.h"
#include "core/loaded.h"

namespace ct {
namespace {

constexpr int kMaxDevices = 64;

struct Cuda {
  CudaBackend* backend = nullptr;
  int count = 0;
  std::string absence;  // the reason, if `backend` is null or `count` is 0
};

std::string dl_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

std::vector<void (*)()>& openers() {
  static auto* const list = new std::vector<void (*)()>;
  return *list;
}

Cuda open_cuda() {
  Cuda result;
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    result.absence = "no NVIDIA driver on this machine (" + dl_error() + ")";
    return result;
  }
  // RTLD_GLOBAL has two reasons. The static initialisers of libtorch_cuda.so register the CUDA
  // kernels. libcgotorch_cuda.so resolves its symbols against libtorch_cuda.so.
  if (dlopen((folder_of("libtorch_cpu.so") + "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    result.absence = "there is a driver, but LibTorch's CUDA libraries cannot be opened; run `make setup` on this machine (" +
                     dl_error() + ")";
    return result;
  }
  void* own = dlopen((own_folder() + "libcgotorch_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (own == nullptr) {
    result.absence = "libcgotorch_cuda.so cannot be opened; install the libraries again (" + dl_error() + ")";
    return result;
  }
  auto entry = reinterpret_cast<CudaBackend* (*)()>(dlsym(own, "ct_cuda_backend"));
  if (entry == nullptr) {
    result.absence = "libcgotorch_cuda.so is of another version (" + dl_error() + ")";
    return result;
  }
  result.count = at::detail::getCUDAHooks().deviceCount();
  if (result.count == 0) {
    result.absence = "the driver shows no CUDA device (is CUDA_VISIBLE_DEVICES set?)";
    return result;
  }
  result.backend = entry();
  for (auto* fn : openers()) fn();
  return result;
}

const Cuda& cuda_once() {
  static const Cuda opened = open_cuda();
  return opened;
}

struct Loss {
  std::mutex mutex;
  std::atomic<bool> any{false};
  std::array<std::atomic<bool>, kMaxDevices> lost{};
  std::array<std::string, kMaxDevices> text;
};

Loss& losses() {
  static auto* const all = new Loss;
  return *all;
}

}  // namespace

c10::Device to_device(ct_device device) {
  if (device.type == CT_CPU) return c10::Device(c10::kCPU);
  if (device.type == CT_CUDA) {
    if (device.index < 0 || device.index >= kMaxDevices) {
      throw Failure(CT_NO_DEVICE, "cuda:" + std::to_string(device.index) + " is not a device number");
    }
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device.index));
  }
  throw Failure(CT_INVALID_ARGUMENT, "device type " + std::to_string(device.type) + " is neither CPU nor CUDA");
}

ct_device from_device(c10::Device device) {
  return ct_device{device.is_cuda() ? CT_CUDA : CT_CPU, device.is_cuda() ? device.index() : 0};
}

std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&ct_cuda_count), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

void load_cuda() { cuda_once(); }

void when_cuda_is_open(void (*fn)()) { openers().push_back(fn); }

CudaBackend& cuda() {
  const Cuda& opened = cuda_once();
  if (opened.backend == nullptr) throw Failure(CT_NO_DEVICE, "CUDA is not available: " + opened.absence);
  // Without this LibTorch's allocators throw, for instance if a capture is the first thing that a
  // program does.
  static const bool ready = (at::globalContext().lazyInitDevice(c10::kCUDA), true);
  static_cast<void>(ready);
  return *opened.backend;
}

void require(c10::Device device) {
  if (!device.is_cuda()) {
    load_cuda();
    return;
  }
  cuda();
  const int count = cuda_once().count;
  if (device.index() >= count) {
    throw Failure(CT_NO_DEVICE, device.str() + " is not there: this machine shows " + std::to_string(count) +
                                    " CUDA device(s), numbered from 0");
  }
  Loss& all = losses();
  if (all.lost[device.index()].load(std::memory_order_acquire)) {
    throw Failure(CT_DEVICE_LOST, all.text[device.index()]);
  }
}

bool is_lost(c10::Device device) noexcept {
  const Loss& all = losses();
  return all.any.load(std::memory_order_acquire) && device.is_cuda() && all.lost[device.index()].load(std::memory_order_acquire);
}

std::string detect_loss(c10::Device device) {
  Loss& all = losses();
  const std::lock_guard lock(all.mutex);
  const int i = device.index();
  if (!all.lost[i]) {
    const std::string error = cuda().context_error(device.index());
    if (error.empty()) return "";
    all.text[i] = device.str() + " is lost: " + error +
                  ". An operator enqueued earlier may be the cause, not the one named here: run again with "
                  "CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to find it. The device is of no use to this process any "
                  "more; memory on the host can still be saved";
    all.lost[i].store(true, std::memory_order_release);
    all.any.store(true, std::memory_order_release);
  }
  return all.text[i];
}

}  // namespace ct

extern "C" {

int32_t ct_cuda_count(char** why) noexcept {
  const ct::Cuda& opened = ct::cuda_once();
  if (why != nullptr) {
    try {
      *why = opened.count == 0 ? ct::new_text(opened.absence) : nullptr;
    } catch (...) {
      *why = nullptr;
    }
  }
  return opened.backend == nullptr ? 0 : opened.count;
}

ct_status* ct_device_check(ct_device device) noexcept {
  return ct::guarded([&] { ct::require(ct::to_device(device)); });
}

ct_status* ct_device_capability(ct_device device, int32_t* out) noexcept {
  return ct::on_device(device, [&](c10::Device where) { *out = where.is_cuda() ? ct::cuda().chip(where.index()).capability : 0; });
}

const char* ct_device_name(ct_device device) noexcept {
  const char* name = "";
  ct_status_free(ct::on_device(device, [&](c10::Device where) {
    if (where.is_cuda()) name = ct::cuda().name(where.index());
  }));
  return name;
}

ct_status* ct_device_synchronize(ct_device device) noexcept {
  return ct::on_device(device, [](c10::Device where) {
    //edge:device-synchronize TestStream_HostWaits gpu
    if (where.is_cuda()) c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(where.index());
    ct::checker::host_waited_for(where);  //edge:device-synchronize-is-known TestCheckStreams_HostWaits checked
  });
}

}  // extern "C"
