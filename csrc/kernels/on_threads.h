// Work on the CPU by LibTorch's threads.
#pragma once

#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cstdint>

namespace ct {

// Calls `use` with the borders of parts of `count` pieces, on several threads if there are many
// `operations` of numbers in all of them. `places` has an element that each piece writes, without
// gaps in one dimension or with equal ones. An iterator of LibTorch goes through them, because
// at::parallel_for in this library would need a second library of OpenMP.
template <typename Use>
void on_threads(const at::Tensor& places, int64_t operations, const Use& use) {
  const int64_t count = places.numel(), distance = std::max<int64_t>(places.stride(0), 1) * static_cast<int64_t>(places.element_size());
  const char* const first = static_cast<const char*>(places.const_data_ptr());
  at::TensorIterator all = at::TensorIteratorConfig().add_output(places).resize_outputs(false).check_all_same_dtype(false).build();
  all.for_each(
      [&](char** data, const int64_t*, int64_t n, int64_t) {
        const int64_t from = (data[0] - first) / distance;
        use(from, from + n);
      },
      std::max<int64_t>(count * at::internal::GRAIN_SIZE / (operations + 1), 1));
}

}  // namespace ct
