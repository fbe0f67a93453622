#include "check/region.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace ct {
namespace {

// Calls f for each run of the region `a`, with the place of the run's first byte.
template <typename F>
void each(const Region& a, size_t dim, int64_t at, F&& f) {
  if (dim == a.sizes.size()) {
    f(at);
    return;
  }
  for (int64_t i = 0; i < a.sizes[dim]; ++i) each(a, dim + 1, at + i * a.steps[dim], f);
}

}  // namespace

Region Region::bytes(int64_t begin, int64_t end) {
  Region r;
  r.begin = begin;
  r.end = end;
  return r;
}

Region Region::shifted(int64_t bytes) const {
  Region r = *this;
  r.begin += bytes;
  r.end += bytes;
  return r;
}

Region Region::of(const at::Tensor& tensor) {
  Region r;
  r.element = static_cast<int64_t>(tensor.element_size());
  r.begin = tensor.storage_offset() * r.element;
  r.end = r.begin;
  if (tensor.numel() == 0) return r;
  r.end += r.element;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    const int64_t size = tensor.size(i), step = tensor.stride(i) * r.element;
    if (size == 1 || step == 0) continue;  // an expanded dimension adds no bytes
    r.sizes.push_back(size);
    r.steps.push_back(step);
    r.end += (size - 1) * step;
  }
  std::vector<size_t> order(r.sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return r.steps[i] < r.steps[j]; });
  // Dimensions without a gap between their elements form one run of bytes.
  const auto sizes = std::exchange(r.sizes, {}), steps = std::exchange(r.steps, {});
  for (size_t i : order) {
    if (r.sizes.empty() && steps[i] == r.element) {
      r.element *= sizes[i];
    } else {
      r.sizes.push_back(sizes[i]);
      r.steps.push_back(steps[i]);
    }
  }
  r.dense = r.sizes.empty();
  return r;
}

bool Region::operator==(const Region& other) const {
  return begin == other.begin && end == other.end && element == other.element && sizes == other.sizes && steps == other.steps;
}

bool Region::covers(const Region& other) const {
  return (dense && begin <= other.begin && end >= other.end) || *this == other;
}

bool overlap(const Region& a, const Region& b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  if (begin >= end) return false;
  if (a.dense && b.dense) return true;
  // All steps of both regions are multiples of one distance, the pitch. If the runs of the two
  // regions lie side by side within the pitch, the regions share no byte. Two columns of a matrix
  // are an example.
  int64_t pitch = 0;
  for (int64_t step : a.steps) pitch = std::gcd(pitch, step);
  for (int64_t step : b.steps) pitch = std::gcd(pitch, step);
  const int64_t shift = ((b.begin - a.begin) % pitch + pitch) % pitch;
  if (shift >= a.element && shift + b.element <= pitch) return false;
  if (b.dense || a.dense) {
    const Region& dense = a.dense ? a : b;
    bool found = false;
    each(a.dense ? b : a, 0, (a.dense ? b : a).begin, [&](int64_t at) {
      found |= at < dense.end && at + (a.dense ? b : a).element > dense.begin;
    });
    return found;
  }
  // Both regions consist of whole units of `unit` bytes. There is one mark for each unit.
  int64_t unit = std::gcd(std::gcd(a.element, b.element), b.begin - a.begin);
  for (int64_t step : a.steps) unit = std::gcd(unit, step);
  for (int64_t step : b.steps) unit = std::gcd(unit, step);
  std::vector<bool> marks(static_cast<size_t>((end - begin) / unit + 1));
  const auto units = [&](const Region& r, auto&& f) {
    each(r, 0, r.begin, [&](int64_t at) {
      for (int64_t byte = at; byte < at + r.element; byte += unit) {
        if (byte >= begin && byte < end) f(static_cast<size_t>((byte - begin) / unit));
      }
    });
  };
  units(a, [&](size_t i) { marks[i] = true; });
  bool found = false;
  units(b, [&](size_t i) { found |= marks[i]; });
  return found;
}

}  // namespace ct
