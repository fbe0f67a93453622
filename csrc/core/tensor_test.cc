#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::describe;
using ct_test::exec;
using ct_test::floats;
using ct_test::Stream;
using ct_test::Tensor;
using ct_test::values;
using TensorTest = ct_test::HandlesTest;

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
