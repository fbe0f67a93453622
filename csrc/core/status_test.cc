#include "core/status.h"

#include <c10/util/Exception.h>

#include <array>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::failed;
using ct_test::kCpu;
using ct_test::Status;
using StatusTest = ct_test::HandlesTest;

template <typename E>
std::function<void()> thrown(E e) {
  return [e] { throw e; };
}

const c10::SourceLocation here{"function", "file.cc", 1};

TEST_F(StatusTest, Code_OfEachException) {
  const struct {
    const char* name;
    std::function<void()> raise;
    int32_t code;
    const char* text;
  } cases[] = {
      {"Failure", thrown(ct::Failure(CT_NOT_FOUND, "where is it")), CT_NOT_FOUND, "where is it"},
      {"OutOfMemoryError", thrown(c10::OutOfMemoryError(here, "device full")), CT_OUT_OF_MEMORY, "device full"},
      {"CPU allocator", thrown(c10::Error(here, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")),
       CT_OUT_OF_MEMORY, "you tried"},
      {"NotImplementedError", thrown(c10::NotImplementedError(here, "no kernel")), CT_UNSUPPORTED, "no kernel"},
      {"AcceleratorError", thrown(c10::AcceleratorError(here, 1, "launch failed")), CT_INTERNAL, "launch failed"},
      {"AcceleratorError of memory", thrown(c10::AcceleratorError(here, 2, "out of memory")), CT_OUT_OF_MEMORY, "out of memory"},
      {"cuBLAS", thrown(c10::Error(here, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")), CT_OUT_OF_MEMORY, "cublasCreate"},
      {"cuDNN", thrown(c10::Error(here, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")), CT_INTERNAL, "CUDNN"},
      {"IndexError", thrown(c10::IndexError(here, "index 9")), CT_INVALID_ARGUMENT, "index 9"},
      {"ValueError", thrown(c10::ValueError(here, "value 9")), CT_INVALID_ARGUMENT, "value 9"},
      {"TypeError", thrown(c10::TypeError(here, "type 9")), CT_INVALID_ARGUMENT, "type 9"},
      {"LinAlgError", thrown(c10::LinAlgError(here, "singular")), CT_INVALID_ARGUMENT, "singular"},
      {"Error", thrown(c10::Error(here, "shapes differ")), CT_INVALID_ARGUMENT, "shapes differ"},
      {"bad_alloc", thrown(std::bad_alloc()), CT_OUT_OF_MEMORY, "out of host memory"},
      {"length_error", thrown(std::length_error("too long")), CT_INTERNAL, "too long"},
      {"int", [] { throw 7; }, CT_INTERNAL, "no std::exception"},
  };
  for (const auto& c : cases) EXPECT_FAILS(c.code, c.text, ct::guarded(c.raise)) << c.name;
}

TEST_F(StatusTest, Message_WithoutBacktrace) {
  const Status status(ct::guarded([] { TORCH_CHECK(false, "only this"); }));
  EXPECT_STREQ(ct_status_message(status.get()), "only this");
}

TEST_F(StatusTest, Null_IsSuccess) {
  EXPECT_EQ(ct::guarded([] {}), nullptr);
  EXPECT_EQ(ct_status_code(nullptr), 0);
  EXPECT_STREQ(ct_status_message(nullptr), "");
}

TEST_F(StatusTest, OutOfHostMemory_NeedsNoMemoryAndMayBeFreedOften) {
  ct_status* first = ct::guarded([] { throw std::bad_alloc(); });
  ct_status* second = ct::guarded([] { throw std::bad_alloc(); });
  EXPECT_EQ(first, second);
  ct_status_free(first);
  ct_status_free(second);
  EXPECT_STREQ(ct_status_message(first), "out of host memory");
}

TEST_F(StatusTest, Message_SurvivesTheThreadThatMadeIt) {
  ct_status* status = nullptr;
  std::thread([&] { status = ct::guarded([] { throw ct::Failure(CT_MISUSE, "from the other thread"); }); }).join();
  EXPECT_FAILS(CT_MISUSE, "from the other thread", status);
}

TEST_F(StatusTest, Count_FollowsLife) {
  ct_live before, during;
  ct_live_handles(&before);
  ct_status* status = ct::guarded([] { throw ct::Failure(CT_INTERNAL, ""); });
  ct_live_handles(&during);
  EXPECT_EQ(during.statuses, before.statuses + 1);
  ct_status_free(status);
}

TEST_F(StatusTest, Free_OfNull) {
  ct_status_free(nullptr);
  ct_text_free(nullptr);
  ct_stream_free(nullptr);
  ct_event_free(nullptr);
  ct_tensor_free(nullptr);
  ct_slab_free(nullptr);
  ct_overflow_take(nullptr, nullptr, nullptr);
  ct_tensor* none[] = {nullptr, nullptr};
  ct_tensors_free(none, 2);
  ct_tensors_free(nullptr, 0);
}

TEST_F(StatusTest, AbiVersion_IsTheHeaders) { EXPECT_EQ(ct_abi_version(), CT_ABI_VERSION); }

// Returns a pointer that no call writes to an out-parameter. If the out-parameter still has it,
// the call wrote nothing.
template <typename T>
T* untouched() {
  return reinterpret_cast<T*>(uintptr_t{0xabcde0});
}

// Each function that can fail gets a NULL handle. It must fail with the name of the parameter,
// and write nothing.
TEST_F(StatusTest, NullHandle_NamesTheParameterAndWritesNothing) {
  const auto stream = ct_test::default_stream();
  const ct_exec x = ct_test::exec(stream);
  const auto event = ct_test::record(stream);
  const auto one = ct_test::floats(x, {1});
  ct_tensor* const null_tensor = nullptr;
  ct_tensor* some = one.get();

  ct_event* new_event = untouched<ct_event>();
  const ct_event* const null_event = nullptr;
  ct_tensor* new_tensor = untouched<ct_tensor>();
  const ct_op* op = untouched<ct_op>();
  char* text = untouched<char>();
  int32_t flag = 77;
  double number = 77;
  float host[4] = {77, 77, 77, 77};
  const int64_t shape[] = {1};
  ct_results results{1, 1, 77, 77};
  uint64_t words[] = {77};
  ct_tensor* tensors[] = {untouched<ct_tensor>()};
  ct_overflow* overflow = untouched<ct_overflow>();
  const ct_host_copy copy{nullptr, host, 4};
  ct_exec nowhere = x;
  nowhere.stream = nullptr;

  const struct {
    const char* call;
    const char* parameter;
    ct_status* status;
  } cases[] = {
      {"ct_stream_query", "stream", ct_stream_query(nullptr, &flag)},
      {"ct_stream_synchronize", "stream", ct_stream_synchronize(nullptr)},
      {"ct_event_record", "stream", ct_event_record(nullptr, 0, &new_event)},
      {"ct_stream_wait stream", "stream", ct_stream_wait(nullptr, event.get())},
      {"ct_stream_wait event", "event", ct_stream_wait(stream.get(), nullptr)},
      {"ct_event_query", "event", ct_event_query(nullptr, &flag)},
      {"ct_event_synchronize", "event", ct_event_synchronize(nullptr)},
      {"ct_event_elapsed start", "start", ct_event_elapsed(nullptr, event.get(), &number)},
      {"ct_event_elapsed end", "end", ct_event_elapsed(event.get(), nullptr, &number)},
      {"ct_tensor_from_host exec", "exec.stream", ct_tensor_from_host(nowhere, host, 4, ct_test::kFloat, shape, 1, &new_tensor)},
      {"ct_tensor_from_host data", "data", ct_tensor_from_host(x, nullptr, 4, ct_test::kFloat, shape, 1, &new_tensor)},
      {"ct_tensor_to_host exec", "exec.stream", ct_tensor_to_host(nowhere, one.get(), host, 4)},
      {"ct_tensor_to_host tensor", "tensor", ct_tensor_to_host(x, nullptr, host, 4)},
      {"ct_tensor_to_host data", "data", ct_tensor_to_host(x, one.get(), nullptr, 4)},
      {"ct_tensor_item exec", "exec.stream", ct_tensor_item(nowhere, one.get(), &number)},
      {"ct_tensor_item tensor", "tensor", ct_tensor_item(x, nullptr, &number)},
      {"ct_tensor_copy_from exec", "exec.stream", ct_tensor_copy_from(nowhere, one.get(), host, 4)},
      {"ct_tensor_copy_from tensor", "tensor", ct_tensor_copy_from(x, nullptr, host, 4)},
      {"ct_copies_from exec", "exec.stream", ct_copies_from(nowhere, nullptr, 0, nullptr, 0, &new_event, &new_event)},
      {"ct_copies_from event", "behind", ct_copies_from(x, &null_event, 1, nullptr, 0, &new_event, &new_event)},
      {"ct_copies_from tensor", "tensor", ct_copies_from(x, nullptr, 0, &copy, 1, &new_event, &new_event)},
      {"ct_tensor_copy_from data", "data", ct_tensor_copy_from(x, one.get(), nullptr, 4)},
      {"ct_op_find", "name", ct_op_find(nullptr, "", &op)},
      {"ct_call exec", "exec.stream", ct_call(nowhere, ct_test::find("aten::neg"), nullptr, 0, nullptr, 0, &results, words, tensors, &overflow)},
      {"ct_call op", "op", ct_call(x, nullptr, nullptr, 0, nullptr, 0, &results, words, tensors, &overflow)},
      {"ct_backward exec", "exec.stream", ct_backward(nowhere, &some, nullptr, 1, 0)},
      {"ct_backward root", "root", ct_backward(x, &null_tensor, nullptr, 1, 0)},
      {"ct_gradients exec", "exec.stream", ct_gradients(nowhere, &some, nullptr, 1, &some, 1, 0, 0, 0, &new_tensor)},
      {"ct_gradients root", "root", ct_gradients(x, &null_tensor, nullptr, 1, &some, 1, 0, 0, 0, &new_tensor)},
      {"ct_gradients input", "input", ct_gradients(x, &some, nullptr, 1, &null_tensor, 1, 0, 0, 0, &new_tensor)},
      {"ct_tensor_set_requires_grad", "tensor", ct_tensor_set_requires_grad(nullptr, 1)},
      {"ct_tensor_set_grad", "tensor", ct_tensor_set_grad(nullptr, one.get())},
      {"ct_slab_pin", "slab", ct_slab_pin(nullptr)},
  };
  for (const auto& c : cases) {
    EXPECT_FAILS(CT_INVALID_ARGUMENT, std::string(c.parameter) + " is NULL", c.status) << c.call;
  }
  EXPECT_EQ(new_event, untouched<ct_event>());
  EXPECT_EQ(new_tensor, untouched<ct_tensor>());
  EXPECT_EQ(op, untouched<const ct_op>());
  EXPECT_EQ(text, untouched<char>());
  EXPECT_EQ(flag, 77);
  EXPECT_EQ(number, 77);
  EXPECT_EQ(host[0], 77);
  EXPECT_EQ(results.words, 77);
  EXPECT_EQ(results.tensors, 77);
  EXPECT_EQ(words[0], 77U);
  EXPECT_EQ(tensors[0], untouched<ct_tensor>());
  EXPECT_EQ(overflow, untouched<ct_overflow>());
}

TEST_F(StatusTest, Failure_WritesNoOutParameter) {
  const auto stream = ct_test::default_stream();
  const ct_exec x = ct_test::exec(stream);
  const ct_device nowhere{9, 0};
  ct_stream* new_stream = untouched<ct_stream>();
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 9", ct_stream_default(nowhere, &new_stream));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 9", ct_stream_new(nowhere, 0, &new_stream));
  EXPECT_EQ(new_stream, untouched<ct_stream>());

  ct_memory memory{77, 77, 77, 77, 77};
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 9", ct_memory_stats(nowhere, &memory));
  EXPECT_EQ(memory.allocated, 77);

  ct_slab* slab = untouched<ct_slab>();
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a slab of 0 bytes", ct_slab_new(0, &slab));
  EXPECT_EQ(slab, untouched<ct_slab>());

  const ct_op* op = untouched<const ct_op>();
  EXPECT_FAILS(CT_NOT_FOUND, "aten::nothing", ct_op_find("aten::nothing", "", &op));
  EXPECT_EQ(op, untouched<const ct_op>());

  int64_t size = 77;
  char state[8] = {7};
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 9", ct_generator_state(nowhere, state, &size));
  EXPECT_EQ(size, 77);
  EXPECT_EQ(state[0], 7);

  int32_t on = 77;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "no switch of number 99", ct_switch_get(99, &on));
  EXPECT_EQ(on, 77);

  ct_tensor* tensor = untouched<ct_tensor>();
  const float one = 1;
  const int64_t shape[] = {2};
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "bytes", ct_tensor_from_host(x, &one, 4, ct_test::kFloat, shape, 1, &tensor));
  EXPECT_EQ(tensor, untouched<ct_tensor>());

  // LibTorch itself refuses these shapes. The call must write nothing then, too.
  const auto a = ct_test::floats(x, {1, 2});
  const auto b = ct_test::floats(x, {1, 2, 3});
  const auto args = ct_test::Args().t(a).t(b).rest();
  ct_results results{1, 1, 77, 77};
  uint64_t words[] = {77};
  ct_overflow* overflow = untouched<ct_overflow>();
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "must match the size",
               ct_call(x, ct_test::find("aten::add.Tensor"), args.words.data(), 3, args.tensors.data(), 2, &results, words, &tensor,
                       &overflow));
  EXPECT_EQ(results.words, 77);
  EXPECT_EQ(results.tensors, 77);
  EXPECT_EQ(words[0], 77U);
  EXPECT_EQ(tensor, untouched<ct_tensor>());
  EXPECT_EQ(overflow, untouched<ct_overflow>());
}

}  // namespace
