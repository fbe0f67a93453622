#include "cuda/parts.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"

namespace ct {
namespace {

// The driver's functions, which nothing here links.
struct Driver {
  decltype(&cuDeviceGet) device;
  decltype(&cuDeviceGetDevResource) resource;
  decltype(&cuDevSmResourceSplitByCount) split;
  decltype(&cuDevResourceGenerateDesc) description;
  decltype(&cuGreenCtxCreate) create;
  decltype(&cuGreenCtxStreamCreate) stream;

  Driver() {
    const auto find = [](auto& function, const char* name) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result{};
      const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result);
      if (code != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
        (void)cudaGetLastError();
        throw Failure(CT_UNSUPPORTED, std::string("this CUDA driver splits no device in parts (it has no ") + name + "): a newer one does");
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find(device, "cuDeviceGet");
    find(resource, "cuDeviceGetDevResource");
    find(split, "cuDevSmResourceSplitByCount");
    find(description, "cuDevResourceGenerateDesc");
    find(create, "cuGreenCtxCreate");
    find(stream, "cuGreenCtxStreamCreate");
  }
};

const Driver& driver() {
  static const Driver all;
  return all;
}

void check(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return;
  throw Failure(code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_INVALID_RESOURCE_TYPE ? CT_UNSUPPORTED : CT_INTERNAL,
                std::string(what) + " failed with CUDA driver error " + std::to_string(code));
}

std::vector<CUgreenCtx> split(c10::DeviceIndex index, int multiprocessors) {
  const c10::cuda::CUDAGuard guard(index);
  C10_CUDA_CHECK(cudaFree(nullptr));  // parts are of a context that is there
  CUdevice device{};
  check(driver().device(&device, index), "cuDeviceGet");
  CUdevResource all{};
  check(driver().resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  if (multiprocessors < 1 || static_cast<unsigned>(multiprocessors) > all.sm.smCount) {
    throw Failure(CT_INVALID_ARGUMENT, "a part of " + std::to_string(multiprocessors) + " multiprocessors of a device that has " +
                                           std::to_string(all.sm.smCount));
  }
  unsigned count = 0;
  check(driver().split(nullptr, &count, &all, nullptr, 0, static_cast<unsigned>(multiprocessors)), "cuDevSmResourceSplitByCount");
  std::vector<CUdevResource> groups(count);
  check(driver().split(groups.data(), &count, &all, nullptr, 0, static_cast<unsigned>(multiprocessors)), "cuDevSmResourceSplitByCount");
  std::vector<CUgreenCtx> parts(count);
  for (unsigned i = 0; i < count; ++i) {
    CUdevResourceDesc description{};
    check(driver().description(&description, &groups[i], 1), "cuDevResourceGenerateDesc");
    check(driver().create(&parts[i], description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
  }
  return parts;
}

const std::vector<CUgreenCtx>& parts(c10::DeviceIndex device, int multiprocessors) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<std::pair<c10::DeviceIndex, int>, std::vector<CUgreenCtx>>;
  const std::lock_guard lock(*mutex);
  const std::pair key(device, multiprocessors);
  const auto found = all->find(key);
  return found != all->end() ? found->second : all->emplace(key, split(device, multiprocessors)).first->second;
}

}  // namespace

int parts_of(c10::DeviceIndex device, int multiprocessors) { return static_cast<int>(parts(device, multiprocessors).size()); }

cudaStream_t new_part_stream(c10::DeviceIndex device, int multiprocessors, int part, int priority) {
  CUstream stream = nullptr;
  const CUgreenCtx context = parts(device, multiprocessors).at(static_cast<size_t>(part));
  check(driver().stream(&stream, context, CU_STREAM_NON_BLOCKING, priority), "cuGreenCtxStreamCreate");
  return stream;
}

}  // namespace ct
