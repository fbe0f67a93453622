#include "cuda/program.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/status.h"
#include "cuda/compiled_file.h"
#include "cuda/shared_library.h"
#include "kernels/floats.h"

namespace ct {
namespace {

// The functions of libnvrtc, which LibTorch requires too. They are declared here because the
// build does not have the header of libnvrtc.
struct Nvrtc {
  using Program = void*;
  int (*create)(Program*, const char* source, const char* name, int headers, const char* const*, const char* const*);
  int (*compile)(Program, int count, const char* const* options);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*code_size)(Program, size_t*);
  int (*code)(Program, char*);
  int (*destroy)(Program*);
  const char* (*error)(int);

  Nvrtc() {
    const SharedLibrary library("libnvrtc.so." + std::to_string(CUDART_VERSION / 1000));
    if (!library) throw Failure(CT_NO_DEVICE, "CUDA's run-time compiler cannot be opened; run `make setup` on this machine (" + library.reason() + ")");
    library.find(create, "nvrtcCreateProgram");
    library.find(compile, "nvrtcCompileProgram");
    library.find(log_size, "nvrtcGetProgramLogSize");
    library.find(log, "nvrtcGetProgramLog");
    library.find(code_size, "nvrtcGetCUBINSize");
    library.find(code, "nvrtcGetCUBIN");
    library.find(destroy, "nvrtcDestroyProgram");
    library.find(error, "nvrtcGetErrorString");
  }
};

std::string source_of(const CudaProgram& program) {
  return std::string("#define CT_FUNCTION __device__ __forceinline__\n") + kFloats + program.shared + program.source;
}

const char* option_of(const CudaProgram& program) { return program.fused_multiply_add ? "--fmad=true" : "--fmad=false"; }

std::string compile(const CudaProgram& program, const std::string& architecture) {
  static const Nvrtc nvrtc;
  Nvrtc::Program handle = nullptr;
  const auto check = [&](int code) {
    if (code == 0) return;
    std::string log;
    size_t bytes = 0;
    if (handle != nullptr && nvrtc.log_size(handle, &bytes) == 0 && bytes > 1) {
      log.resize(bytes);
      (void)nvrtc.log(handle, log.data());
    }
    (void)nvrtc.destroy(&handle);
    throw Failure(CT_INTERNAL, std::string("compiling the kernel ") + program.name + " for " + architecture + ": " + nvrtc.error(code) + "\n" + log);
  };
  const std::string source = source_of(program);
  check(nvrtc.create(&handle, source.c_str(), program.name, 0, nullptr, nullptr));
  const std::string option = "--gpu-architecture=" + architecture;
  const char* const options[] = {option.c_str(), "--std=c++17", option_of(program)};
  check(nvrtc.compile(handle, 3, options));
  size_t bytes = 0;
  check(nvrtc.code_size(handle, &bytes));
  std::string code(bytes, '\0');
  check(nvrtc.code(handle, code.data()));
  (void)nvrtc.destroy(&handle);
  return code;
}

int attribute(cudaDeviceAttr which, c10::DeviceIndex device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// A loaded program, for every device of one architecture. The mutex is held while the program is
// compiled, so that other programs need not wait.
struct Loaded {
  std::mutex mutex;
  cudaLibrary_t library = nullptr;
};

Loaded& loaded_of(const CudaProgram& program, int architecture) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<std::pair<const CudaProgram*, int>, Loaded>;
  const std::lock_guard lock(*mutex);
  return (*all)[{&program, architecture}];
}

// Loads the program, unless it is loaded.
cudaLibrary_t load(const CudaProgram& program, int architecture) {
  Loaded& loaded = loaded_of(program, architecture);
  const std::lock_guard lock(loaded.mutex);
  if (loaded.library != nullptr) return loaded.library;
  const std::string chip = "sm_" + std::to_string(architecture);
  const CompiledFile file(source_of(program) + option_of(program) + chip + ", CUDA " + std::to_string(CUDART_VERSION));
  const auto take = [&](const std::string& code) {
    return cudaLibraryLoadData(&loaded.library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  };
  if (const std::string code = file.read(); !code.empty()) {
    if (take(code) == cudaSuccess) return loaded.library;
    (void)cudaGetLastError();  // another driver may refuse the code of the file
    loaded.library = nullptr;
  }
  const std::string code = compile(program, chip);
  C10_CUDA_CHECK(take(code));
  file.write(code);
  return loaded.library;
}

}  // namespace

CudaChip chip(c10::DeviceIndex device) {
  static auto* const mutex = new std::mutex;
  static auto* const chips = new std::map<c10::DeviceIndex, CudaChip>;
  const std::lock_guard lock(*mutex);
  const auto found = chips->find(device);
  if (found != chips->end()) return found->second;
  const CudaChip chip{attribute(cudaDevAttrMultiProcessorCount, device),
                      10 * attribute(cudaDevAttrComputeCapabilityMajor, device) + attribute(cudaDevAttrComputeCapabilityMinor, device),
                      attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device), attribute(cudaDevAttrCooperativeLaunch, device) != 0};
  return chips->emplace(device, chip).first->second;
}

const void* kernel_of(const CudaProgram& program, const char* kernel, c10::DeviceIndex device) {
  static auto* const mutex = new std::mutex;
  static auto* const kernels = new std::map<std::tuple<const CudaProgram*, std::string_view, c10::DeviceIndex>, cudaKernel_t>;
  const std::tuple key(&program, std::string_view(kernel), device);
  {
    const std::lock_guard lock(*mutex);
    const auto found = kernels->find(key);
    if (found != kernels->end()) return found->second;
  }
  cudaKernel_t function = nullptr;
  C10_CUDA_CHECK(cudaLibraryGetKernel(&function, load(program, chip(device).capability), kernel));
  // A launch may ask for all of the shared memory that the kernel's own arrays leave. Without this
  // call CUDA allows 48 KB.
  cudaFuncAttributes of;
  C10_CUDA_CHECK(cudaFuncGetAttributes(&of, reinterpret_cast<const void*>(function)));
  C10_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(function), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      chip(device).shared_memory - static_cast<int>(of.sharedSizeBytes)));
  if (program.most_shared_memory) {
    C10_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(function), cudaFuncAttributePreferredSharedMemoryCarveout,
                                        cudaSharedmemCarveoutMaxShared));
  }
  const std::lock_guard lock(*mutex);
  kernels->emplace(key, function);
  return function;
}

}  // namespace ct
