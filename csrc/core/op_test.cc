#include <ATen/record_function.h>
#include <torch/library.h>

#include <algorithm>
#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::describe;
using ct_test::exec;
using ct_test::fails;
using ct_test::floats;
using ct_test::Results;
using ct_test::run;
using ct_test::run1;
using ct_test::shape_of;
using ct_test::Stream;
using ct_test::Tensor;
using ct_test::Text;
using ct_test::values;
using OpTest = ct_test::HandlesTest;

TEST_F(OpTest, Find_IsOnceAndForEver) {
  const ct_op* first = ct_test::find("aten::add.Tensor");
  EXPECT_EQ(ct_test::find("aten::add.Tensor"), first);
  EXPECT_NE(ct_test::find("aten::add.Scalar"), first);
  const ct_op* plain = nullptr;
  EXPECT_OK(ct_op_find("aten::relu", nullptr, &plain));
  EXPECT_EQ(plain, ct_test::find("aten::relu"));
}

TEST_F(OpTest, Find_FromManyThreads) {
  std::vector<std::thread> threads;
  std::vector<const ct_op*> found(16);
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&found, i] { found[i] = ct_test::find("aten::hardswish"); });
  }
  for (std::thread& t : threads) t.join();
  for (const ct_op* op : found) EXPECT_EQ(op, found[0]);
}

TEST_F(OpTest, Find_OfAnUnknownName) {
  const struct {
    const char *name, *overload, *text;
  } cases[] = {
      {"aten::adds", "", "LibTorch has no operator aten::adds; names look like aten::add.Tensor"},
      {"aten::add", "Tensors", "LibTorch has no operator aten::add.Tensors"},
      {"add", "Tensor", "LibTorch has no operator add.Tensor"},
      {"", "", "LibTorch has no operator"},
  };
  for (const auto& c : cases) {
    const ct_op* op = nullptr;
    for (int twice = 0; twice < 2; ++twice) EXPECT_FAILS(CT_NOT_FOUND, c.text, ct_op_find(c.name, c.overload, &op));
  }
}

TEST_F(OpTest, Schemas) {
  char* text = nullptr;
  EXPECT_OK(ct_op_schemas(&text));
  const Text all(text);
  const std::string lines = text;
  EXPECT_NE(lines.find("\naten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n"), std::string::npos);
  EXPECT_EQ(lines.find("\nprim::"), std::string::npos);
  EXPECT_GT(std::count(lines.begin(), lines.end(), '\n'), 2000);
  EXPECT_EQ(lines.back(), '\n');
  size_t start = 0;
  std::string last;
  for (size_t end; (end = lines.find('\n', start)) != std::string::npos; start = end + 1) {
    const std::string line = lines.substr(start, end - start);
    ASSERT_LE(last, line) << "not sorted";
    last = line;
  }
}

// LibTorch makes one product of an input with gaps if the weight requires a gradient. It does so
// also without grad mode, and for a weight that requires none it makes a batch of products.
TEST_F(OpTest, Call_LinearLooksAtGradientsWithoutGradMode) {
  static std::vector<std::string> called;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
    called.emplace_back(fn.name());
    return nullptr;
  }));
  const auto calls = [](const char* name) { return std::count(called.begin(), called.end(), name); };
  const Stream s = ct_test::new_stream(ct_test::kCpu);
  ct_exec x = exec(s);
  x.grad = 0;
  const Tensor dense = floats(x, std::vector<float>(24, 1), {2, 3, 4}), weight = floats(x, std::vector<float>(20, 1), {5, 4});
  const Tensor in = run1(x, "aten::transpose.int", Args().t(dense).i(0).i(1));
  for (const bool requires_grad : {false, true}) {
    if (requires_grad) {
      EXPECT_OK(ct_tensor_set_requires_grad(weight.get(), 1));
    }
    called.clear();
    EXPECT_EQ(shape_of(run1(x, "aten::linear", Args().t(in).t(weight).none())), (std::vector<int64_t>{3, 2, 5}));
    EXPECT_EQ(calls("aten::mm"), requires_grad ? 1 : 0);
    EXPECT_EQ(calls("aten::bmm"), requires_grad ? 0 : 1);
  }
  at::removeCallback(handle);
}

// For each kind of argument, calls an operator whose result shows the value of the argument.
TEST_F(OpTest, Call_WithEachKindOfArgument) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor a = floats(x, {1, 2, 3, 4}, {2, 2}), b = floats(x, {10, 20, 30, 40}, {2, 2});
    const Tensor index = ct_test::tensor(x, ct_test::kInt64, std::vector<int64_t>{1, 0}, {2});
    const Tensor weight = floats(x, {1, 2}), bias = floats(x, {100, 200});
    const struct {
      const char* what;
      const char* op;
      Args args;
      std::vector<float> want;
    } cases[] = {
        {"tensors", "aten::add.Tensor", Args().t(a).t(b).rest(), {11, 22, 33, 44}},
        {"int for Scalar", "aten::add.Tensor", Args().t(a).t(b).i(2), {21, 42, 63, 84}},
        {"float for Scalar", "aten::add.Tensor", Args().t(a).t(b).f(0.5), {6, 12, 18, 24}},
        {"bool for Scalar", "aten::add.Scalar", Args().t(a).b(true).rest(), {2, 3, 4, 5}},
        {"default", "aten::add.Tensor", Args().t(a).t(b).standard(), {11, 22, 33, 44}},
        {"None for Scalar?", "aten::clamp", Args().t(a).none().f(2.5), {1, 2, 2.5, 2.5}},
        {"defaults in the middle", "aten::clamp", Args().t(a).standard().i(3), {1, 2, 3, 3}},
        {"int for float", "aten::leaky_relu", Args().t(run1(x, "aten::neg", Args().t(a))).i(2), {-2, -4, -6, -8}},
        {"float for float", "aten::elu", Args().t(a).f(1).rest(), {1, 2, 3, 4}},
        {"ints", "aten::sum.dim_IntList", Args().t(a).is({0}).b(false).rest(), {4, 6}},
        {"int for int[1]?", "aten::sum.dim_IntList", Args().t(a).i(1).rest(), {3, 7}},
        {"None for int[1]?", "aten::sum.dim_IntList", Args().t(a).none().rest(), {10}},
        {"int for bool", "aten::sum.dim_IntList", Args().t(a).i(1).i(1).rest(), {3, 7}},
        {"dtype", "aten::sum.dim_IntList", Args().t(a).is({0}).b(true).i(ct_test::kFloat), {4, 6}},
        {"None for ScalarType?", "aten::sum.dim_IntList", Args().t(a).is({0}).b(true).none(), {4, 6}},
        {"list of tensors", "aten::cat", Args().ts({a.get(), b.get()}).i(0), {1, 2, 3, 4, 10, 20, 30, 40}},
        {"list with None", "aten::index.Tensor", Args().t(a).ts({nullptr, index.get()}), {2, 1, 4, 3}},
        {"list of optional tensors", "aten::index.Tensor", Args().t(a).ts({index.get()}), {3, 4, 1, 2}},
        {"None for Tensor?", "aten::linear", Args().t(a).t(b).none(), {50, 110, 110, 250}},
        {"NULL for Tensor?", "aten::linear", Args().t(a).t(b).t(nullptr), {50, 110, 110, 250}},
        {"tensor for Tensor?", "aten::linear", Args().t(a).t(b).t(bias), {150, 310, 210, 450}},
        {"string", "aten::div.Tensor_mode", Args().t(b).t(a).s("floor"), {10, 10, 10, 10}},
        {"None for str?", "aten::div.Tensor_mode", Args().t(b).t(a).none(), {10, 10, 10, 10}},
        {"string longer than a word", "aten::einsum", Args().s("ij,jk->ik").ts({a.get(), b.get()}).rest(), {70, 100, 150, 220}},
        {"list of one tensor", "aten::_foreach_add.Scalar", Args().ts({a.get()}).i(1), {2, 3, 4, 5}},
        {"scalars", "aten::_foreach_add.ScalarList",
         Args().ts({weight.get()}).word(CT_ARG_SCALARS).word(1).i(3), {4, 5}},
        {"float scalars", "aten::_foreach_add.ScalarList",
         Args().ts({weight.get()}).word(CT_ARG_SCALARS).word(1).f(0.5), {1.5, 2.5}},
        {"bool scalars", "aten::_foreach_add.ScalarList",
         Args().ts({weight.get()}).word(CT_ARG_SCALARS).word(1).b(true), {2, 3}},
        {"ints for Scalar[]", "aten::_foreach_add.ScalarList", Args().ts({weight.get()}).is({3}), {4, 5}},
        {"floats for Scalar[]", "aten::_foreach_add.ScalarList", Args().ts({weight.get()}).fs({0.5}), {1.5, 2.5}},
        {"int for Tensor", "aten::add.Tensor", Args().t(a).i(2).rest(), {3, 4, 5, 6}},
        {"float for Tensor", "aten::mul.Tensor", Args().t(a).f(0.5), {0.5, 1, 1.5, 2}},
        {"bool for Tensor", "aten::add.Tensor", Args().t(a).b(true).rest(), {2, 3, 4, 5}},
        {"float for the first Tensor", "aten::sub.Tensor", Args().f(1).t(a).rest(), {0, -1, -2, -3}},
        {"memory format", "aten::clone", Args().t(a).i(0), {1, 2, 3, 4}},
        {"device", "aten::full", Args().is({2}).f(7).i(ct_test::kFloat).none().device().none(), {7, 7}},
        {"floats for float[]?", "aten::upsample_nearest1d.vec",
         Args().t(floats(x, {1, 2}, {1, 1, 2})).none().fs({2}), {1, 1, 2, 2}},
        {"ints for float[]?", "aten::upsample_nearest1d.vec",
         Args().t(floats(x, {1, 2}, {1, 1, 2})).none().is({2}), {1, 1, 2, 2}},
    };
    for (const auto& c : cases) {
      SCOPED_TRACE(c.what);
      const Results got = run(x, c.op, c.args);
      ASSERT_EQ(got.tensors.size(), 1U);
      EXPECT_EQ(values<float>(x, got.tensors[0]), c.want);
    }
  }
}

TEST_F(OpTest, Call_OneNumberForAListOfTwo) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor image = floats(x, std::vector<float>(36, 1), {1, 1, 6, 6});
  const Tensor weight = floats(x, std::vector<float>(9, 1), {1, 1, 3, 3});
  const Tensor by_number = run1(x, "aten::conv2d", Args().t(image).t(weight).none().i(2).i(1).i(1).i(1));
  const Tensor by_list = run1(x, "aten::conv2d", Args().t(image).t(weight).none().is({2, 2}).is({1, 1}).is({1, 1}).i(1));
  EXPECT_EQ(shape_of(by_number), (std::vector<int64_t>{1, 1, 3, 3}));
  EXPECT_EQ(values<float>(x, by_number), values<float>(x, by_list));
  // For a list without a fixed size, one number is a list of one element.
  EXPECT_EQ(shape_of(run1(x, "aten::ones", Args().i(3).rest())), (std::vector<int64_t>{3}));
}

TEST_F(OpTest, Call_WithBools) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor grad = floats(x, {1, 1}, {1, 2}), input = floats(x, {3, 4}, {1, 2}), weight = floats(x, {5, 6, 7, 8}, {2, 2});
  const Results got = run(x, "aten::convolution_backward",
                          Args().t(floats(x, {1, 1}, {1, 2, 1, 1})).t(floats(x, {3, 4}, {1, 2, 1, 1})).t(floats(x, {5, 6, 7, 8}, {2, 2, 1, 1}))
                              .is({2}).is({1, 1}).is({0, 0}).is({1, 1}).b(false).is({0, 0}).i(1).bs({true, false, true}));
  ASSERT_EQ(got.tensors.size(), 3U);
  EXPECT_EQ(values<float>(x, got.tensors[0]), (std::vector<float>{12, 14}));
  EXPECT_EQ(got.tensors[1], nullptr) << "a tensor left undefined is NULL";
  EXPECT_EQ(values<float>(x, got.tensors[2]), (std::vector<float>{1, 1}));
  EXPECT_EQ(got.words, (std::vector<uint64_t>{CT_ARG_TENSOR, CT_ARG_TENSOR, CT_ARG_TENSOR}));
}

TEST_F(OpTest, Call_KeepsAnIntegerTensorsDType) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor whole = ct_test::tensor(x, ct_test::kInt32, std::vector<int32_t>{1, 2}, {2});
  EXPECT_EQ(describe(run1(x, "aten::add.Scalar", Args().t(whole).i(1).rest())).dtype, ct_test::kInt32);
  EXPECT_EQ(describe(run1(x, "aten::add.Scalar", Args().t(whole).b(true).rest())).dtype, ct_test::kInt32);
  EXPECT_EQ(describe(run1(x, "aten::add.Scalar", Args().t(whole).f(1).rest())).dtype, ct_test::kFloat);
}

TEST_F(OpTest, Call_RefusesWhatTheSchemaDoes) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor a = floats(x, {1, 2, 3, 4}, {2, 2});
  ct_tensor* const t = a.get();
  const uint64_t many = uint64_t{1} << 30, more = uint64_t{1} << 40;
  const struct {
    const char* op;
    Args args;
    const char* text;
  } cases[] = {
      {"aten::add.Tensor", Args().t(t), "argument 2 (Tensor other) is missing"},
      {"aten::add.Tensor", Args().t(t).rest(), "argument 2 (Tensor other) is missing and has no default"},
      {"aten::add.Tensor", Args().t(t).standard().i(1), "argument 2 (Tensor other) is missing and has no default"},
      {"aten::add.Tensor", Args(), "argument 1 (Tensor self) is missing"},
      {"aten::add.Tensor", Args().t(t).t(t).i(1).i(1), "got more arguments than the 3 of the schema"},
      {"aten::add.Tensor", Args().t(t).t(t).rest().i(1), "got more arguments than the 3 of the schema"},
      {"aten::add.Tensor", Args().t(t).t(t).i(1).rest().handle(t), "got more arguments than the 3 of the schema"},
      {"aten::transpose.int", Args().t(t).word(CT_ARG_COMPLEX).word(0).word(0).i(1), "argument 2 (int dim0) cannot be a complex number"},
      {"aten::add.Tensor", Args().t(t).t(t).word(CT_ARG_COMPLEX).word(0), "the words end inside argument 3 (Scalar alpha)"},
      {"aten::add.Tensor", Args().t(t).none().i(1), "argument 2 (Tensor other) cannot be None"},
      {"aten::add.Tensor", Args().t(t).t(nullptr).i(1), "argument 2 (Tensor other) cannot be None"},
      {"aten::add.Tensor", Args().t(t).s("b").i(1), "argument 2 (Tensor other) cannot be a string"},
      {"aten::add.Tensor", Args().t(t).is({1}).i(1), "argument 2 (Tensor other) cannot be a list of integers"},
      {"aten::add.Tensor", Args().t(t).fs({1}).i(1), "argument 2 (Tensor other) cannot be a list of floats"},
      {"aten::add.Tensor", Args().t(t).bs({true}).i(1), "argument 2 (Tensor other) cannot be a list of bools"},
      {"aten::add.Tensor", Args().t(t).ts({t}).i(1), "argument 2 (Tensor other) cannot be a list of tensors"},
      {"aten::add.Tensor", Args().t(t).word(CT_ARG_SCALARS).word(1).i(1).i(1),
       "argument 2 (Tensor other) cannot be a list of numbers"},
      {"aten::add.Tensor", Args().t(t).device().i(1), "argument 2 (Tensor other) cannot be a device"},
      {"aten::add.Tensor", Args().t(t).t(t).t(t), "argument 3 (Scalar alpha) cannot be a tensor"},
      {"aten::add.Tensor", Args().t(t).t(t).none(), "argument 3 (Scalar alpha) cannot be None"},
      {"aten::add.Tensor", Args().t(t).word(99).i(1), "argument 2 (Tensor other) is of an unknown kind"},
      {"aten::add.Tensor", Args().t(t).t(t).word(CT_ARG_INT), "the words end inside argument 3 (Scalar alpha)"},
      {"aten::add.Tensor", Args().t(t).word(CT_ARG_TENSOR).i(1), "a tensor is missing for argument 2 (Tensor other)"},
      {"aten::transpose.int", Args().t(t).f(0).i(1), "argument 2 (int dim0) cannot be a float"},
      {"aten::transpose.int", Args().t(t).b(false).i(1), "argument 2 (int dim0) cannot be a bool"},
      {"aten::dropout", Args().t(t).f(0.5).f(1), "argument 3 (bool train) cannot be a float"},
      {"aten::cat", Args().t(t).i(0), "argument 1 (Tensor[] tensors) cannot be a tensor"},
      {"aten::cat", Args().i(1).i(0), "argument 1 (Tensor[] tensors) cannot be an integer"},
      {"aten::cat", Args().ts({t, nullptr}).i(0), "tensor 1 of argument 1 (Tensor[] tensors) is nil"},
      {"aten::permute", Args().t(t).fs({1, 0}), "argument 2 (int[] dims) cannot be a list of floats"},
      {"aten::div.Tensor_mode", Args().t(t).t(t).i(1), "argument 3 (str? rounding_mode) cannot be an integer"},
      {"aten::_foreach_add.ScalarList", Args().ts({t}).bs({true}), "cannot be a list of bools"},
      // The count of each list is larger than the number of words that follow it. The call must fail
      // before it allocates memory for so many elements.
      {"aten::permute", Args().t(t).word(CT_ARG_INTS).word(many), "the words end inside argument 2 (int[] dims)"},
      {"aten::permute", Args().t(t).word(CT_ARG_INTS).word(more), "the words end inside argument 2 (int[] dims)"},
      {"aten::permute", Args().t(t).word(CT_ARG_INTS).word(~uint64_t{0}), "the words end inside argument 2 (int[] dims)"},
      {"aten::permute", Args().t(t).word(CT_ARG_FLOATS).word(many), "the words end inside argument 2"},
      {"aten::permute", Args().t(t).word(CT_ARG_BOOLS).word(many), "the words end inside argument 2"},
      {"aten::permute", Args().t(t).word(CT_ARG_SCALARS).word(many), "the words end inside argument 2"},
      {"aten::div.Tensor_mode", Args().t(t).t(t).word(CT_ARG_STRING).word(many), "the words end inside argument 3"},
      {"aten::cat", Args().word(CT_ARG_TENSORS).word(many).i(0), "a tensor is missing for argument 1 (Tensor[] tensors)"},
  };
  for (const auto& c : cases) EXPECT_FAILS(CT_INVALID_ARGUMENT, c.text, fails(x, c.op, c.args)) << c.op;
}

TEST_F(OpTest, Call_CarriesLibTorchsError) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor a = floats(x, {1, 2}), b = floats(x, {1, 2, 3});
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "The size of tensor a (2) must match the size of tensor b (3)",
               fails(x, "aten::add.Tensor", Args().t(a).t(b).rest()));
  const Tensor complex = run1(x, "aten::to.dtype", Args().t(a).i(ct_test::kComplexFloat).rest());
  EXPECT_FAILS(CT_UNSUPPORTED, "floor is not supported for complex", fails(x, "aten::floor", Args().t(complex)));
  EXPECT_FAILS(CT_OUT_OF_MEMORY, "allocate", fails(x, "aten::empty.memory_format", Args().is({int64_t{1} << 46}).rest()));
}

TEST_F(OpTest, Call_FactoryLiesOnTheExecsDevice) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    EXPECT_EQ(describe(run1(x, "aten::zeros", Args().is({2}).rest())).device, device);
    EXPECT_EQ(describe(run1(x, "aten::zeros", Args().is({2}).none().none().standard().none())).device, device);
    EXPECT_EQ(describe(run1(x, "aten::zeros", Args().is({2}).none().none().none().none())).device, ct_test::kCpu);
    EXPECT_EQ(describe(run1(x, "aten::zeros", Args().is({2}).none().none().s("cpu").none())).device, ct_test::kCpu);
    const Tensor a = floats(x, {1});
    EXPECT_EQ(describe(run1(x, "aten::zeros_like", Args().t(a).rest())).device, device) << "where the input lies";
  }
}

TEST_F(OpTest, Call_RefusesTheTensorsOfAnotherDevice) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "cuda:1, where the exec is on cpu",
               fails(x, "aten::zeros", Args().is({2}).none().none().s("cuda:1").none()));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "nonsense", fails(x, "aten::zeros", Args().is({2}).none().none().s("nonsense").none()));
  SKIP_WITHOUT_CUDA();
  const Stream there = ct_test::new_stream(ct_test::kCuda);
  const Tensor a = floats(exec(there), {1});
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "lies on cuda:0, where the exec is on cpu", fails(x, "aten::neg", Args().t(a)));
  ct_tensor* root = a.get();
  float out = 77;
  double item = 77;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "lies on cuda:0, where the exec is on cpu", ct_tensor_to_host(x, a.get(), &out, 4));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "lies on cuda:0, where the exec is on cpu", ct_tensor_item(x, a.get(), &item));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "lies on cuda:0, where the exec is on cpu", ct_tensor_copy_from(x, a.get(), &out, 4));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "lies on cuda:0, where the exec is on cpu", ct_backward(x, &root, nullptr, 1, 0));
}

TEST_F(OpTest, Results_OfEachKind) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor a = floats(x, {1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(run(x, "aten::equal", Args().t(a).t(a)).words, (std::vector<uint64_t>{CT_ARG_BOOL, 1}));
  EXPECT_EQ(run(x, "aten::size.int", Args().t(a).i(1)).words, (std::vector<uint64_t>{CT_ARG_INT, 2}));
  EXPECT_EQ(run(x, "aten::item", Args().t(floats(x, {1.5}))).words,
            (std::vector<uint64_t>{CT_ARG_FLOAT, std::bit_cast<uint64_t>(1.5)}));
  EXPECT_EQ(run(x, "aten::item", Args().t(ct_test::tensor(x, ct_test::kInt64, std::vector<int64_t>{-9}, {1}))).words,
            (std::vector<uint64_t>{CT_ARG_INT, static_cast<uint64_t>(-9)}));
  EXPECT_EQ(run(x, "aten::_local_scalar_dense", Args().t(run1(x, "aten::eq.Tensor", Args().t(floats(x, {1})).t(floats(x, {1}))))).words,
            (std::vector<uint64_t>{CT_ARG_BOOL, 1}));
  const Results pair = run(x, "aten::max.dim", Args().t(a).i(1).rest());
  EXPECT_EQ(pair.words, (std::vector<uint64_t>{CT_ARG_TENSOR, CT_ARG_TENSOR}));
  EXPECT_EQ(values<int64_t>(x, pair.tensors[1]), (std::vector<int64_t>{1, 1}));
  const Results list = run(x, "aten::unbind.int", Args().t(a).rest());
  EXPECT_EQ(list.words, (std::vector<uint64_t>{CT_ARG_TENSORS, 2}));
  EXPECT_EQ(values<float>(x, list.tensors[1]), (std::vector<float>{3, 4}));
  EXPECT_TRUE(run(x, "aten::_foreach_zero_", Args().ts({a.get()})).words.empty());
  EXPECT_EQ(values<float>(x, a), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(run(x, "aten::result_type.Tensor", Args().t(a).t(a)).words, (std::vector<uint64_t>{CT_ARG_INT, ct_test::kFloat}));
}

// Operators of the test, for kinds of results that no operator of aten has.
TORCH_LIBRARY(cgotorch_test, library) {
  library.def("lists(Tensor t) -> (Tensor, int[], float[], int?)", [](const at::Tensor& t) {
    return std::make_tuple(t.neg(), std::vector<int64_t>{-1, 2}, std::vector<double>{0.5}, std::optional<int64_t>());
  });
  library.def("text(Tensor t) -> (Tensor, str)", [](const at::Tensor& t) { return std::make_tuple(t.neg(), std::string("no")); });
}

TEST_F(OpTest, Results_ThatAreLists) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Results got = run(x, "cgotorch_test::lists", Args().t(floats(x, {1})));
  EXPECT_EQ(got.words, (std::vector<uint64_t>{CT_ARG_TENSOR, CT_ARG_INTS, 2, static_cast<uint64_t>(-1), 2, CT_ARG_FLOATS, 1,
                                              std::bit_cast<uint64_t>(0.5), CT_ARG_NONE}));
  EXPECT_EQ(values<float>(x, got.tensors[0]), (std::vector<float>{-1}));
}

TEST_F(OpTest, Results_ThatCannotBeReturnedWriteNothing) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor a = floats(x, {1});
  const auto args = Args().t(a);
  uint64_t words[4] = {77};
  ct_tensor* tensors[2] = {a.get()};
  ct_results results{4, 2, 77, 77};
  ct_overflow* overflow = nullptr;
  EXPECT_FAILS(CT_UNSUPPORTED, "a result of type str cannot be returned",
               ct_call(x, ct_test::find("cgotorch_test::text"), args.words.data(), 1, args.tensors.data(), 1, &results, words,
                       tensors, &overflow));
  EXPECT_EQ(words[0], 77U);
  EXPECT_EQ(tensors[0], a.get());
  EXPECT_EQ(results.tensors, 77);
  const Tensor complex = run1(x, "aten::to.dtype", Args().t(a).i(ct_test::kComplexFloat).rest());
  EXPECT_FAILS(CT_UNSUPPORTED, "a result of type complex", fails(x, "aten::item", Args().t(complex)));
}

TEST_F(OpTest, Results_HaveHandlesOfTheirOwn) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  Tensor a = floats(x, {1, 2});
  const Tensor same = run1(x, "aten::contiguous", Args().t(a).rest());
  EXPECT_NE(same, a);
  EXPECT_EQ(describe(same).storage, describe(a).storage);
  a.reset();
  EXPECT_EQ(values<float>(x, same), (std::vector<float>{1, 2}));
}

TEST_F(OpTest, Results_BeyondTheRoomOverflow) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    std::vector<float> data(100);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
    const Tensor a = floats(x, data, {100, 1});
    const struct {
      int32_t words, tensors;
      bool overflows;
    } rooms[] = {{2, 100, false}, {32, 8, true}, {2, 99, true}, {1, 100, true}, {0, 0, true}};
    for (const auto& room : rooms) {
      Results got;
      EXPECT_OK(ct_test::call(x, "aten::unbind.int", Args().t(a).rest(), &got, room.words, room.tensors));
      EXPECT_EQ(got.overflowed, room.overflows) << room.words << " " << room.tensors;
      EXPECT_EQ(got.words, (std::vector<uint64_t>{CT_ARG_TENSORS, 100}));
      ASSERT_EQ(got.tensors.size(), 100U);
      for (size_t i = 0; i < 100; ++i) EXPECT_EQ(values<float>(x, got.tensors[i]), (std::vector<float>{data[i]}));
    }
  }
}

TEST_F(OpTest, Results_OverflowLeavesTheArraysAlone) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  const Tensor a = floats(x, {1, 2, 3});
  const auto args = Args().t(a).rest();
  uint64_t words[2] = {77, 77};
  ct_tensor* tensors[2] = {a.get(), a.get()};
  ct_results results{2, 2, 0, 0};
  ct_overflow* overflow = nullptr;
  ASSERT_OK(ct_call(x, ct_test::find("aten::unbind.int"), args.words.data(), 2, args.tensors.data(), 1, &results, words, tensors,
                    &overflow));
  ASSERT_NE(overflow, nullptr);
  EXPECT_EQ(results.words, 2);
  EXPECT_EQ(results.tensors, 3);
  EXPECT_EQ(words[0], 77U);
  EXPECT_EQ(tensors[0], a.get());
  uint64_t all_words[2];
  ct_tensor* all_tensors[3];
  ct_overflow_take(overflow, all_words, all_tensors);
  ct_tensors_free(all_tensors, 3);
}

}  // namespace
