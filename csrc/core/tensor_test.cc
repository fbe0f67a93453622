#include <limits>
#include <numeric>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::describe;
using ct_test::exec;
using ct_test::floats;
using ct_test::shape_of;
using ct_test::Stream;
using ct_test::Tensor;
using ct_test::values;
using TensorTest = ct_test::HandlesTest;

struct DTypeSize {
  ct_test::DType dtype;
  size_t size;
};
constexpr DTypeSize kDTypes[] = {
    {ct_test::kUint8, 1},         {ct_test::kInt8, 1},           {ct_test::kInt16, 2},  {ct_test::kInt32, 4},
    {ct_test::kInt64, 8},         {ct_test::kHalf, 2},           {ct_test::kFloat, 4},  {ct_test::kDouble, 8},
    {ct_test::kComplexFloat, 8},  {ct_test::kComplexDouble, 16}, {ct_test::kBool, 1},   {ct_test::kBFloat16, 2},
    {ct_test::kUint16, 2},        {ct_test::kUint32, 4},         {ct_test::kUint64, 8},
};

// Returns bytes that are valid elements in every dtype.
std::vector<uint8_t> pattern(size_t bytes) {
  std::vector<uint8_t> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = i % 3 == 0;
  return out;
}

TEST_F(TensorTest, FromHostToHost_OfEachDType) {
  for (const ct_device device : ct_test::devices()) {
    for (const auto [dtype, size] : kDTypes) {
      SCOPED_TRACE(::testing::Message() << device << " dtype " << dtype);
      const Stream s = ct_test::new_stream(device);
      const ct_exec x = exec(s);
      const std::vector<uint8_t> want = pattern(6 * size);
      const Tensor t = ct_test::tensor(x, dtype, want, {2, 3});
      const ct_tensor_info info = describe(t);
      EXPECT_EQ(info.dtype, dtype);
      EXPECT_EQ(info.dims, 2);
      EXPECT_EQ(info.device, device);
      EXPECT_EQ(info.elements, 6);
      EXPECT_GE(info.storage_bytes, static_cast<int64_t>(want.size()));
      EXPECT_NE(info.storage, 0U);
      EXPECT_EQ(info.stream, ct_stream_id(s.get()));
      EXPECT_EQ(info.requires_grad, 0);
      EXPECT_EQ(info.is_leaf, 1);
      std::vector<uint8_t> got(want.size());
      EXPECT_OK(ct_tensor_to_host(x, t.get(), got.data(), static_cast<int64_t>(got.size())));
      EXPECT_EQ(got, want);
    }
  }
}

TEST_F(TensorTest, FromHost_ReadsBeforeReturn) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    std::vector<float> data(1 << 16, 1);
    const Tensor t = floats(x, data);
    std::fill(data.begin(), data.end(), 2.0F);
    EXPECT_EQ(values<float>(x, t), std::vector<float>(1 << 16, 1));
  }
}

TEST_F(TensorTest, FromHost_RefusesABadShape) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const float data[] = {1, 2, 3, 4};
  const struct {
    std::vector<int64_t> shape;
    int32_t dims;
    int64_t bytes;
    int32_t dtype;
    const char* text;
  } cases[] = {
      {{-1, 4}, 2, 16, ct_test::kFloat, "shape [-1, 4] has a negative dimension"},
      {{3}, 1, 16, ct_test::kFloat, "shape [3] and dtype Float has 12 bytes; the host memory has 16"},
      {{2, 2}, 2, 12, ct_test::kFloat, "has 16 bytes; the host memory has 12"},
      {{2, 2}, 2, 16, ct_test::kDouble, "has 32 bytes; the host memory has 16"},
      {{2, 2}, 2, -16, ct_test::kFloat, "has 16 bytes; the host memory has -16"},
      {{}, 0, 16, ct_test::kFloat, "has 4 bytes; the host memory has 16"},
      // The call must fail before it allocates memory of that size.
      {{int64_t{1} << 44}, 1, 16, ct_test::kFloat, "the host memory has 16"},
      {{int64_t{1} << 40, int64_t{1} << 40}, 2, 16, ct_test::kFloat, "more than 2^63 bytes"},
      {{int64_t{1} << 62, 0}, 2, 16, ct_test::kDouble, "has 0 bytes; the host memory has 16"},
      {{4}, -1, 16, ct_test::kFloat, "-1 dimensions"},
      {{4}, 1, 16, -1, "dtype -1 is not one of LibTorch's"},
      {{4}, 1, 16, 99, "dtype 99 is not one of LibTorch's"},
  };
  for (const auto& c : cases) {
    ct_tensor* out = nullptr;
    EXPECT_FAILS(CT_INVALID_ARGUMENT, c.text, ct_tensor_from_host(x, data, c.bytes, c.dtype, c.shape.data(), c.dims, &out));
    EXPECT_EQ(out, nullptr);
  }
}

TEST_F(TensorTest, Scalar_AndEmpty) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor scalar = floats(x, {42}, {});
    EXPECT_EQ(describe(scalar).dims, 0);
    EXPECT_EQ(describe(scalar).elements, 1);
    double item = 0;
    EXPECT_OK(ct_tensor_item(x, scalar.get(), &item));
    EXPECT_EQ(item, 42);

    ct_tensor* out = nullptr;
    const int64_t shape[] = {3, 0, 2};
    EXPECT_OK(ct_tensor_from_host(x, nullptr, 0, ct_test::kFloat, shape, 3, &out));
    const Tensor empty(out);
    EXPECT_EQ(shape_of(empty), (std::vector<int64_t>{3, 0, 2}));
    EXPECT_EQ(describe(empty).elements, 0);
    EXPECT_OK(ct_tensor_to_host(x, out, nullptr, 0));
    EXPECT_OK(ct_tensor_copy_from(x, out, nullptr, 0));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "", ct_tensor_item(x, out, &item));
    EXPECT_EQ(item, 42);
  }
}

TEST_F(TensorTest, Item_OfEachDType) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor three = floats(x, {3}, {1});
    for (const auto [dtype, size] : kDTypes) {
      const Tensor t = ct_test::run1(x, "aten::to.dtype", Args().t(three).i(dtype).rest());
      double item = 0;
      if (dtype == ct_test::kComplexFloat || dtype == ct_test::kComplexDouble) {
        EXPECT_FAILS(CT_INVALID_ARGUMENT, "a complex number", ct_tensor_item(x, t.get(), &item));
        continue;
      }
      EXPECT_OK(ct_tensor_item(x, t.get(), &item));
      EXPECT_EQ(item, dtype == ct_test::kBool ? 1 : 3) << dtype;
    }
  }
}

TEST_F(TensorTest, ToHost_OfAViewIsDense) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor t = floats(x, {1, 2, 3, 4, 5, 6}, {2, 3});
    const Tensor transposed = ct_test::run1(x, "aten::t", Args().t(t));
    EXPECT_EQ(shape_of(transposed), (std::vector<int64_t>{3, 2}));
    EXPECT_EQ(values<float>(x, transposed), (std::vector<float>{1, 4, 2, 5, 3, 6}));
    const Tensor expanded = ct_test::run1(x, "aten::expand", Args().t(floats(x, {7}, {1})).is({3}).rest());
    EXPECT_EQ(values<float>(x, expanded), (std::vector<float>{7, 7, 7}));
    const Tensor column = ct_test::run1(x, "aten::select.int", Args().t(t).i(1).i(2));
    EXPECT_EQ(values<float>(x, column), (std::vector<float>{3, 6}));
  }
}

TEST_F(TensorTest, ToHost_OfATensorThatRequiresGrad) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = ct_test::with_grad(exec(s));
  const Tensor t = floats(x, {1, 2});
  EXPECT_OK(ct_tensor_set_requires_grad(t.get(), 1));
  EXPECT_EQ(values<float>(x, t), (std::vector<float>{1, 2}));
}

TEST_F(TensorTest, ToHost_RefusesAnotherSize) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor t = floats(x, {1, 2});
  float out[4] = {77, 77, 77, 77};
  for (const int64_t bytes : {0, 4, 12, -8}) {
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "shape [2] and dtype Float has 8 bytes", ct_tensor_to_host(x, t.get(), out, bytes));
  }
  EXPECT_EQ(out[0], 77);
}

TEST_F(TensorTest, CopyFrom) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor t = floats(x, {1, 2, 3, 4}, {2, 2});
    const uint32_t version = describe(t).version;
    const float data[] = {5, 6, 7, 8};
    EXPECT_OK(ct_tensor_copy_from(x, t.get(), data, 16));
    EXPECT_EQ(values<float>(x, t), (std::vector<float>{5, 6, 7, 8}));
    EXPECT_GT(describe(t).version, version) << "a write must be seen by backward";
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "has 16 bytes; the host memory has 8", ct_tensor_copy_from(x, t.get(), data, 8));
    const Tensor transposed = ct_test::run1(x, "aten::t", Args().t(t));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "not contiguous", ct_tensor_copy_from(x, transposed.get(), data, 16));
    const Tensor row = ct_test::run1(x, "aten::select.int", Args().t(t).i(0).i(1));
    EXPECT_OK(ct_tensor_copy_from(x, row.get(), data, 8));
    EXPECT_EQ(values<float>(x, t), (std::vector<float>{5, 6, 5, 6}));
  }
}

TEST_F(TensorTest, Alias_IsTheSameTensorWithALifeOfItsOwn) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    Tensor t = floats(x, {1, 2});
    const Tensor alias(ct_tensor_alias(t.get()));
    const Tensor lent(ct_tensor_lend(t.get()));
    EXPECT_EQ(describe(alias).storage, describe(t).storage);
    EXPECT_EQ(describe(lent).storage, describe(t).storage);
    EXPECT_EQ(describe(alias).stream, describe(t).stream);
    EXPECT_OK(ct_tensor_set_requires_grad(t.get(), 1));
    EXPECT_EQ(describe(alias).requires_grad, 1);
    t.reset();
    EXPECT_EQ(values<float>(x, alias), (std::vector<float>{1, 2}));
    EXPECT_EQ(values<float>(x, lent), (std::vector<float>{1, 2}));
  }
  EXPECT_EQ(ct_tensor_alias(nullptr), nullptr);
  EXPECT_EQ(ct_tensor_lend(nullptr), nullptr);
}

TEST_F(TensorTest, Geometry) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor t = floats(x, {1, 2, 3, 4, 5, 6}, {1, 2, 3});
  int64_t shape[3], strides[3];
  ct_tensor_geometry(t.get(), shape, strides);
  EXPECT_EQ((std::vector<int64_t>(shape, shape + 3)), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ((std::vector<int64_t>(strides, strides + 3)), (std::vector<int64_t>{6, 3, 1}));
  ct_tensor_geometry(ct_test::run1(x, "aten::permute", Args().t(t).is({2, 0, 1})).get(), nullptr, strides);
  EXPECT_EQ((std::vector<int64_t>(strides, strides + 3)), (std::vector<int64_t>{1, 6, 3}));
  ct_tensor_geometry(t.get(), nullptr, nullptr);
  ct_tensor_geometry(nullptr, shape, strides);
  EXPECT_EQ(shape[2], 3);
}

TEST_F(TensorTest, Describe_OfNullIsAllZero) {
  ct_tensor_info info;
  std::memset(&info, 0xff, sizeof info);
  ct_tensor_describe(nullptr, &info);
  EXPECT_EQ(info.dims, 0);
  EXPECT_EQ(info.elements, 0);
  EXPECT_EQ(info.storage, 0U);
}

// A tensor whose layout has no strides or no shape must not end the process.
TEST_F(TensorTest, Describe_OfOtherLayouts) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor t = floats(x, {0, 2, 3, 0}, {2, 2});
  for (const char* op : {"aten::to_mkldnn", "aten::_to_sparse", "aten::to_sparse_csr"}) {
    const Tensor other = ct_test::run1(x, op, Args().t(t).rest());
    EXPECT_EQ(describe(other).elements, 4) << op;
    int64_t shape[2] = {}, strides[2] = {7, 7};
    ct_tensor_geometry(other.get(), shape, strides);
    EXPECT_EQ(shape[1], 2) << op;
    EXPECT_EQ(strides[0], 0) << op;
    float out[4];
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "dense", ct_tensor_to_host(x, other.get(), out, 16)) << op;
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "dense", ct_tensor_copy_from(x, other.get(), out, 16)) << op;
  }
  EXPECT_FAILS(CT_UNSUPPORTED, "nested",
               ct_test::fails(x, "aten::_nested_tensor_from_tensor_list", Args().ts({t.get(), t.get()}).rest()));
}

TEST_F(TensorTest, Version_CountsWritesInPlace) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor t = floats(x, {1, 2});
  EXPECT_EQ(describe(t).version, 0U);
  ct_test::run1(x, "aten::zero_", Args().t(t));
  EXPECT_EQ(describe(t).version, 1U);
  ct_tensor_bump_version(t.get());
  EXPECT_EQ(describe(t).version, 2U);
  ct_tensor_bump_version(nullptr);
}

TEST_F(TensorTest, SetRequiresGrad_Refused) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = ct_test::with_grad(exec(s));
  const Tensor whole = ct_test::tensor(x, ct_test::kInt64, std::vector<int64_t>{1}, {1});
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "floating point", ct_tensor_set_requires_grad(whole.get(), 1));
  const Tensor leaf = floats(x, {1});
  EXPECT_OK(ct_tensor_set_requires_grad(leaf.get(), 1));
  const Tensor result = ct_test::run1(x, "aten::neg", Args().t(leaf));
  EXPECT_EQ(describe(result).is_leaf, 0);
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "leaf", ct_tensor_set_requires_grad(result.get(), 0));
  EXPECT_OK(ct_tensor_set_requires_grad(leaf.get(), 0));
  EXPECT_EQ(describe(leaf).requires_grad, 0);
}

TEST_F(TensorTest, Grad_HandleStaysWhileTheTensorDoes) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor t = floats(x, {1, 2});
    ct_tensor* grad = nullptr;
    ct_tensor_grad(t.get(), &grad);
    EXPECT_EQ(grad, nullptr);

    const Tensor one = floats(x, {3, 4});
    EXPECT_OK(ct_tensor_set_grad(t.get(), one.get()));
    ct_tensor_grad(t.get(), &grad);
    ASSERT_NE(grad, nullptr);
    EXPECT_NE(grad, one.get());
    ct_tensor* const first = grad;
    ct_tensor_grad(t.get(), &grad);
    EXPECT_EQ(grad, first) << "the same gradient keeps its handle";

    const Tensor two = floats(x, {5, 6});
    EXPECT_OK(ct_tensor_set_grad(t.get(), two.get()));
    ct_tensor_grad(t.get(), &grad);
    {
      const Tensor owned(grad);
      EXPECT_EQ(values<float>(x, owned), (std::vector<float>{5, 6}));
      grad = ct_tensor_alias(owned.get());
    }
    EXPECT_OK(ct_tensor_set_grad(t.get(), nullptr));
    ct_tensor_grad(t.get(), &grad);  // this call must free the handle
    EXPECT_EQ(grad, nullptr);
    grad = ct_tensor_alias(one.get());
    ct_tensor_grad(nullptr, &grad);
    EXPECT_EQ(grad, nullptr);
  }
}

TEST_F(TensorTest, SetGrad_RefusesAnotherShape) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor t = floats(x, {1, 2});
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "must have the shape, dtype and device of its tensor, [2] of Float on cpu; got [3] of Float on cpu",
               ct_tensor_set_grad(t.get(), floats(x, {1, 2, 3}).get()));
  const Tensor half = ct_test::tensor(x, ct_test::kHalf, std::vector<uint16_t>{0, 0}, {2});
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "got [2] of Half", ct_tensor_set_grad(t.get(), half.get()));
}

TEST_F(TensorTest, Free_OfMany) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  ct_live before, after;
  ct_live_handles(&before);
  std::vector<ct_tensor*> many;
  for (int i = 0; i < 10; ++i) {
    many.push_back(floats(x, {1}).release());
    many.push_back(nullptr);
  }
  ct_live_handles(&after);
  EXPECT_EQ(after.tensors, before.tensors + 10);
  ct_tensors_free(many.data(), static_cast<int64_t>(many.size()));
}

// Note [Whose stream]
//
// The stream of a handle decides whether a use of its memory is recorded with the allocator. So
// the handle of a result must have the stream of the call. On CUDA the handle of a view must have
// the stream of its base. The handle of a gradient must have CT_STREAM_UNKNOWN.
TEST_F(TensorTest, Stream_OfResultsViewsAndGradients) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream a = ct_test::new_stream(device), b = ct_test::new_stream(device);
    const ct_exec on_a = ct_test::with_grad(exec(a)), on_b = ct_test::with_grad(exec(b));
    const Tensor t = floats(on_a, {1, 2});
    EXPECT_OK(ct_tensor_set_requires_grad(t.get(), 1));
    EXPECT_OK(ct_stream_wait(b.get(), ct_test::record(a).get()));
    const Tensor result = ct_test::run1(on_b, "aten::mul.Tensor", Args().t(t).t(t));
    EXPECT_EQ(describe(result).stream, ct_stream_id(b.get()));
    if (device.type == CT_CUDA) {
      const Tensor view = ct_test::run1(on_b, "aten::view", Args().t(t).is({2, 1}));
      EXPECT_EQ(describe(view).stream, ct_stream_id(a.get())) << "a view lies in its base's memory";
    }
    const Tensor loss = ct_test::run1(on_b, "aten::sum", Args().t(result).rest());
    ct_tensor* root = loss.get();
    EXPECT_OK(ct_backward(on_b, &root, nullptr, 1, 0));
    ct_tensor* grad = nullptr;
    ct_tensor_grad(t.get(), &grad);
    EXPECT_EQ(describe(Tensor(grad)).stream, CT_STREAM_UNKNOWN) << "backward chose the gradient's stream";
  }
}

}  // namespace
