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
