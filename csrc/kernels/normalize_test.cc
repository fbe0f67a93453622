#include <algorithm>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::exec;
using ct_test::run1;
using ct_test::Stream;
using ct_test::Tensor;
using ct_test::values;
using NormalizeTest = ct_test::HandlesTest;

// Returns n elements that are all different.
template <typename T>
std::vector<T> numbered(size_t n) {
  std::vector<T> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>(i + 1);
  return out;
}

struct Images {
  int64_t n, h, w, c;
  int64_t elements() const { return n * h * w * c; }
  std::vector<uint8_t> pixels() const {
    std::vector<uint8_t> out(static_cast<size_t>(elements()));
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(i * 37 + i / 256);
    return out;
  }
  // The images with odd numbers are flipped.
  std::vector<uint8_t> flips() const {
    std::vector<uint8_t> out(static_cast<size_t>(n));
    for (size_t i = 0; i < out.size(); ++i) out[i] = i % 2 == 1;
    return out;
  }
};

// Returns the expected result, in the order n, c, h, w.
template <typename T>
std::vector<T> expected(const Images& m, bool flipped, const std::vector<T>& table) {
  const std::vector<uint8_t> pixels = m.pixels(), flips = m.flips();
  std::vector<T> out;
  for (int64_t n = 0; n < m.n; ++n)
    for (int64_t c = 0; c < m.c; ++c)
      for (int64_t h = 0; h < m.h; ++h)
        for (int64_t w = 0; w < m.w; ++w) {
          const int64_t column = flipped && flips[static_cast<size_t>(n)] ? m.w - 1 - w : w;
          out.push_back(table[static_cast<size_t>(c * 256 + pixels[static_cast<size_t>(((n * m.h + h) * m.w + column) * m.c + c)])]);
        }
  return out;
}

ct_status* normalize(const ct_exec& x, const Tensor& pixels, ct_tensor* flips, const Tensor& table, const Tensor& out) {
  ct_test::Results none;
  return ct_test::call(x, "streamtorch::normalize_images", Args().t(pixels).t(flips).t(table).t(out), &none);
}

// Compares normalize_images with the function `expected`. The elements of floating-point tensors
// are only bits here, so it does not matter which numbers they are.
template <typename T>
void check(ct_device device, ct_test::DType dtype, const Images& m, bool flipped, bool channels_last) {
  SCOPED_TRACE(::testing::Message() << device << " dtype " << dtype << " [" << m.n << " " << m.h << " " << m.w << " " << m.c << "]"
                                    << (flipped ? " flipped" : "") << (channels_last ? " channels last" : ""));
  const Stream s = ct_test::new_stream(device);
  const ct_exec x = exec(s);
  const std::vector<T> bits = numbered<T>(static_cast<size_t>(m.c) * 256);
  const Tensor table = ct_test::tensor(x, dtype, bits, {m.c, 256});
  const Tensor pixels = ct_test::tensor(x, ct_test::kUint8, m.pixels(), {m.n, m.h, m.w, m.c});
  const Tensor flips = ct_test::tensor(x, ct_test::kBool, m.flips(), {m.n});
  const std::vector<T> zeros(static_cast<size_t>(m.elements()));
  Tensor out = channels_last ? run1(x, "aten::permute", Args().t(ct_test::tensor(x, dtype, zeros, {m.n, m.h, m.w, m.c})).is({0, 3, 1, 2}))
                             : ct_test::tensor(x, dtype, zeros, {m.n, m.c, m.h, m.w});
  const uint32_t version = ct_test::describe(out).version;
  ASSERT_OK(normalize(x, pixels, flipped ? flips.get() : nullptr, table, out));
  EXPECT_EQ(values<T>(x, out), expected(m, flipped, bits));
  EXPECT_GT(ct_test::describe(out).version, version);
}

TEST_F(NormalizeTest, EqualsItsDefinition) {
  // There are shapes with one row, and with one column. In some shapes the number of rows is no
  // multiple of a block's rows. Some shapes have more columns than a block has threads.
  const Images shapes[] = {{1, 1, 1, 1}, {3, 8, 8, 3}, {2, 17, 5, 4}, {5, 3, 301, 2}, {2, 9, 300, 3}, {4, 33, 1, 3}};
  for (const ct_device device : ct_test::devices()) {
    for (const Images& m : shapes) {
      for (const bool flipped : {false, true}) {
        for (const bool channels_last : {false, true}) {
          check<uint16_t>(device, ct_test::kBFloat16, m, flipped, channels_last);
          check<uint16_t>(device, ct_test::kHalf, m, flipped, channels_last);
          check<uint32_t>(device, ct_test::kFloat, m, flipped, channels_last);
          check<uint64_t>(device, ct_test::kDouble, m, flipped, channels_last);
        }
      }
    }
  }
}

TEST_F(NormalizeTest, RefusesWhatDoesNotFit) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const auto zeros = [&](ct_test::DType dtype, const std::vector<int64_t>& shape) {
      return run1(x, "aten::zeros", Args().is(shape).i(dtype).none().device().rest());
    };
    const Tensor pixels = zeros(ct_test::kUint8, {2, 4, 5, 3}), out = zeros(ct_test::kFloat, {2, 3, 4, 5});
    const Tensor table = zeros(ct_test::kFloat, {3, 256}), flips = zeros(ct_test::kBool, {2});
    ASSERT_OK(normalize(x, pixels, flips.get(), table, out));
    const auto refuses = [&](const std::string& text, const Tensor& p, const Tensor& f, const Tensor& t, const Tensor& o) {
      EXPECT_FAILS(CT_INVALID_ARGUMENT, text, normalize(x, p, f.get(), t, o));
    };
    refuses("pixels must be contiguous uint8", zeros(ct_test::kInt8, {2, 4, 5, 3}), flips, table, out);
    refuses("pixels must be contiguous uint8", zeros(ct_test::kUint8, {4, 5, 3}), flips, table, out);
    refuses("pixels must be contiguous uint8", run1(x, "aten::transpose.int", Args().t(zeros(ct_test::kUint8, {2, 5, 4, 3})).i(1).i(2)),
            flips, table, out);
    refuses("1 to 4 channels", zeros(ct_test::kUint8, {2, 4, 5, 5}), flips, zeros(ct_test::kFloat, {5, 256}), zeros(ct_test::kFloat, {2, 5, 4, 5}));
    refuses("flips must be contiguous bool [2]", pixels, zeros(ct_test::kBool, {3}), table, out);
    refuses("flips must be contiguous bool [2]", pixels, zeros(ct_test::kUint8, {2}), table, out);
    refuses("table must be contiguous Float [3, 256]", pixels, flips, zeros(ct_test::kFloat, {3, 255}), out);
    refuses("table must be contiguous Float [3, 256]", pixels, flips, zeros(ct_test::kBFloat16, {3, 256}), out);
    refuses("out must be of a floating-point dtype", pixels, flips, table, zeros(ct_test::kFloat, {2, 4, 5, 3}));
    refuses("out must be of a floating-point dtype", pixels, flips, zeros(ct_test::kInt32, {3, 256}), zeros(ct_test::kInt32, {2, 3, 4, 5}));
    refuses("out must be dense", pixels, flips, table,
            run1(x, "aten::expand", Args().t(zeros(ct_test::kFloat, {2, 3, 4, 1})).is({2, 3, 4, 5}).rest()));
    const Tensor leaf = zeros(ct_test::kFloat, {2, 3, 4, 5});
    ASSERT_OK(ct_tensor_set_requires_grad(leaf.get(), 1));
    refuses("out must not require a gradient", pixels, flips, table, leaf);
    refuses("(Tensor pixels", Tensor(), flips, table, out);
    refuses("(Tensor out", pixels, flips, table, Tensor());
    refuses("(Tensor table", pixels, flips, Tensor(), out);
  }
}

TEST_F(NormalizeTest, RefusesATensorOfAnotherDevice) {
  SKIP_WITHOUT_CUDA();
  const Stream cpu = ct_test::new_stream(), cuda = ct_test::new_stream(ct_test::kCuda);
  const auto zeros = [](const Stream& s, ct_test::DType dtype, const std::vector<int64_t>& shape) {
    return run1(exec(s), "aten::zeros", Args().is(shape).i(dtype).none().device().rest());
  };
  const Tensor pixels = zeros(cuda, ct_test::kUint8, {2, 4, 5, 3}), out = zeros(cuda, ct_test::kFloat, {2, 3, 4, 5});
  const Tensor table = zeros(cpu, ct_test::kFloat, {3, 256});
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a tensor lies on cpu",
               normalize(exec(cuda), pixels, nullptr, table, out));
}

TEST_F(NormalizeTest, AnEmptyBatch) {
  for (const ct_device device : ct_test::devices()) {
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const auto zeros = [&](ct_test::DType dtype, const std::vector<int64_t>& shape) {
      return run1(x, "aten::zeros", Args().is(shape).i(dtype).none().device().rest());
    };
    EXPECT_OK(normalize(x, zeros(ct_test::kUint8, {0, 4, 5, 3}), nullptr, zeros(ct_test::kFloat, {3, 256}), zeros(ct_test::kFloat, {0, 3, 4, 5})));
  }
}

}  // namespace
