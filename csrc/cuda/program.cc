#include "cuda/program.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/status.h"
#include "cuda/compiled_file.h"
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
    const std::string name = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw Failure(CT_NO_DEVICE, "CUDA's run-time compiler cannot be opened; run `make setup` on this machine (" + std::string(dlerror()) + ")");
    }
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) throw Failure(CT_INTERNAL, name + " has no " + symbol);
    };
    find(create, "nvrtcCreateProgram");
    find(compile, "nvrtcCompileProgram");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(code_size, "nvrtcGetCUBINSize");
    find(code, "nvrtcGetCUBIN");
    find(destroy, "nvrtcDestroyProgram");
    find(error, "nvrtcGetErrorString");
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

// Loads the program. A cudaLibrary_t serves every device of its architecture.
cudaLibrary_t load(const CudaProgram& program, int architecture) {
  static auto* const loaded = new std::map<std::pair<const CudaProgram*, int>, cudaLibrary_t>;
  const auto [entry, missing] = loaded->try_emplace({&program, architecture});
  if (!missing) return entry->second;
  try {
    const std::string chip = "sm_" + std::to_string(architecture);
    const CompiledFile file(source_of(program) + option_of(program) + chip + ", CUDA " + std::to_string(CUDART_VERSION));
    std::string code = file.read();
    if (code.empty()) file.write(code = compile(program, chip));
    C10_CUDA_CHECK(cudaLibraryLoadData(&entry->second, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  } catch (...) {
    loaded->erase(entry);
    throw;
  }
  return entry->second;
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
                      attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
  return chips->emplace(device, chip).first->second;
}

const void* kernel_of(const CudaProgram& program, const char* kernel, c10::DeviceIndex device) {
  static auto* const mutex = new std::mutex;
  static auto* const kernels = new std::map<std::tuple<const CudaProgram*, std::string_view, c10::DeviceIndex>, cudaKernel_t>;
  const std::lock_guard lock(*mutex);
  const std::tuple key(&program, std::string_view(kernel), device);
  const auto found = kernels->find(key);
  if (found != kernels->end()) return found->second;
  cudaKernel_t function = nullptr;
  C10_CUDA_CHECK(cudaLibraryGetKernel(&function, load(program, chip(device).capability), kernel));
  kernels->emplace(key, function);
  return function;
}

}  // namespace ct
