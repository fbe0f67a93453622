// The state that LibTorch keeps once for the whole process.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <torch/version.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/exec.h"
#include "graph/capture.h"

namespace {

constexpr int64_t kMaxGeneratorState = 8192;

}  // namespace

extern "C" {

ct_status* ct_seed(uint64_t seed) noexcept {
  return ct::guarded([&] {
    ct::load_cuda();
    std::vector<std::unique_ptr<ct::RandomUse>> uses;
    for (int i = 0, count = ct_cuda_count(nullptr); i < count; ++i) {
      uses.push_back(std::make_unique<ct::RandomUse>(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(i))));
    }
    at::manual_seed(seed);
  });
}

ct_status* ct_generator_state(ct_device device, void* data, int64_t* size) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    const ct::RandomUse use(where);
    at::Generator g = at::globalContext().defaultGenerator(where);
    const std::lock_guard lock(g.mutex());
    const at::Tensor state = g.get_state();
    if (state.numel() > *size) throw ct::Failure(CT_INVALID_ARGUMENT, "the generator's state has " + std::to_string(state.numel()) + " bytes");
    std::memcpy(data, state.const_data_ptr(), static_cast<size_t>(state.numel()));
    *size = state.numel();
  });
}

ct_status* ct_generator_set_state(ct_device device, const void* data, int64_t size) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (size <= 0 || size > kMaxGeneratorState) throw ct::Failure(CT_INVALID_ARGUMENT, std::to_string(size) + " bytes are no generator's state: give what was read from a generator of that device");
    const ct::RandomUse use(where);
    at::Generator g = at::globalContext().defaultGenerator(where);
    at::Tensor state = at::empty({size}, at::TensorOptions().dtype(at::kByte));
    std::memcpy(state.mutable_data_ptr(), data, static_cast<size_t>(size));
    const std::lock_guard lock(g.mutex());
    g.set_state(state);
  });
}

ct_status* ct_switch_set(int32_t which, int32_t on) noexcept {
  return ct::guarded([&] {
    ct::load_cuda();
    at::Context& context = at::globalContext();
    switch (which) {
      case CT_SWITCH_CUDNN_BENCHMARK:
        context.setBenchmarkCuDNN(on != 0);
        return;
      case CT_SWITCH_TF32:
        context.setAllowTF32CuBLAS(on != 0);
        context.setAllowTF32CuDNN(on != 0);
        return;
      case CT_SWITCH_DETERMINISTIC:
        context.setDeterministicCuDNN(on != 0);
        context.setDeterministicAlgorithms(on != 0, false);
        return;
      case CT_SWITCH_CUDNN_BENCHMARK_LIMIT:
        if (on < 0) throw ct::Failure(CT_INVALID_ARGUMENT, "a limit of " + std::to_string(on) + " algorithms: use 0 for all of them, or more");
        context.setBenchmarkLimitCuDNN(on);
        return;
      default:
        throw ct::Failure(CT_INVALID_ARGUMENT, "no switch of number " + std::to_string(which));
    }
  });
}

ct_status* ct_switch_get(int32_t which, int32_t* on) noexcept {
  return ct::guarded([&] {
    ct::load_cuda();
    const at::Context& context = at::globalContext();
    switch (which) {
      case CT_SWITCH_CUDNN_BENCHMARK:
        *on = context.benchmarkCuDNN();
        return;
      case CT_SWITCH_TF32:
        *on = context.allowTF32CuBLAS();
        return;
      case CT_SWITCH_DETERMINISTIC:
        *on = context.deterministicAlgorithms();
        return;
      case CT_SWITCH_CUDNN_BENCHMARK_LIMIT:
        *on = context.benchmarkLimitCuDNN();
        return;
      default:
        throw ct::Failure(CT_INVALID_ARGUMENT, "no switch of number " + std::to_string(which));
    }
  });
}

ct_status* ct_threads_set(int32_t count) noexcept {
  return ct::guarded([&] {
    if (count < 1) throw ct::Failure(CT_INVALID_ARGUMENT, "a thread count of " + std::to_string(count) + ": use 1 or more");
    at::set_num_threads(count);
    ++ct::thread_counts;
  });
}

int32_t ct_threads_get(void) noexcept { return at::get_num_threads(); }

const char* ct_libtorch_version(void) noexcept { return TORCH_VERSION; }

}  // extern "C"
