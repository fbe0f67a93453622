// The base of the tests of the C ABI. It has owners of handles, and functions that call an
// operator in one line. Its fixture HandlesTest fails a test that does not free all its handles.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cgotorch.h"

namespace ct_test {

struct Free {
  void operator()(ct_status* p) const { ct_status_free(p); }
  void operator()(ct_stream* p) const { ct_stream_free(p); }
  void operator()(ct_event* p) const { ct_event_free(p); }
  void operator()(ct_tensor* p) const { ct_tensor_free(p); }
  void operator()(ct_slab* p) const { ct_slab_free(p); }
  void operator()(ct_watch* p) const { ct_watch_free(p); }
  void operator()(ct_trace* p) const { ct_trace_free(p); }
  void operator()(ct_graph* p) const { ct_graph_free(p); }
  void operator()(ct_graph_pool* p) const { ct_graph_pool_free(p); }
  void operator()(ct_jpeg_decoder* p) const { ct_jpeg_decoder_free(p); }
  void operator()(char* p) const { ct_text_free(p); }
};
using Status = std::unique_ptr<ct_status, Free>;
using Stream = std::unique_ptr<ct_stream, Free>;
using Event = std::unique_ptr<ct_event, Free>;
using Tensor = std::unique_ptr<ct_tensor, Free>;
using Slab = std::unique_ptr<ct_slab, Free>;
using Watch = std::unique_ptr<ct_watch, Free>;
using Trace = std::unique_ptr<ct_trace, Free>;
using Graph = std::unique_ptr<ct_graph, Free>;
using GraphPool = std::unique_ptr<ct_graph_pool, Free>;
using Decoder = std::unique_ptr<ct_jpeg_decoder, Free>;
using Text = std::unique_ptr<char, Free>;

// Succeeds if the status is NULL. Otherwise it fails with the message of the status.
inline ::testing::AssertionResult succeeded(ct_status* status) {
  const Status owned(status);
  if (status == nullptr) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "code " << ct_status_code(status) << ": " << ct_status_message(status);
}

// Succeeds if the call failed with this code and with a message that contains the text.
inline ::testing::AssertionResult failed(ct_status* status, int32_t code, const std::string& text) {
  const Status owned(status);
  if (status == nullptr) return ::testing::AssertionFailure() << "succeeded, want code " << code << " and \"" << text << "\"";
  const std::string message = ct_status_message(status);
  if (ct_status_code(status) == code && message.find(text) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "got code " << ct_status_code(status) << ": " << message << "\nwant code " << code
                                       << " and \"" << text << "\"";
}

#define EXPECT_OK(call) EXPECT_TRUE(::ct_test::succeeded(call))
#define ASSERT_OK(call) ASSERT_TRUE(::ct_test::succeeded(call))
#define EXPECT_FAILS(code, text, call) EXPECT_TRUE(::ct_test::failed(call, code, text))

constexpr ct_device kCpu{CT_CPU, 0};
constexpr ct_device kCuda{CT_CUDA, 0};

inline bool has_cuda() { return ct_cuda_count(nullptr) > 0; }

// The devices on which the tests of operators run.
inline std::vector<ct_device> devices() {
  if (has_cuda()) return {kCpu, kCuda};
  return {kCpu};
}

#define SKIP_WITHOUT_CUDA()                                            \
  do {                                                                 \
    char* why = nullptr;                                               \
    const int count = ct_cuda_count(&why);                             \
    const ::ct_test::Text text(why);                                   \
    if (count == 0) GTEST_SKIP() << (why == nullptr ? "no CUDA" : why); \
  } while (false)

// The numbers of dtypes are those of c10::ScalarType.
enum DType : int32_t {
  kUint8 = 0, kInt8 = 1, kInt16 = 2, kInt32 = 3, kInt64 = 4, kHalf = 5, kFloat = 6, kDouble = 7, kComplexFloat = 9,
  kComplexDouble = 10, kBool = 11, kBFloat16 = 15, kUint16 = 27, kUint32 = 28, kUint64 = 29
};

inline Stream default_stream(ct_device device = kCpu) {
  ct_stream* stream = nullptr;
  EXPECT_OK(ct_stream_default(device, &stream));
  return Stream(stream);
}

inline Stream new_stream(ct_device device = kCpu, int32_t priority = 0) {
  ct_stream* stream = nullptr;
  EXPECT_OK(ct_stream_new(device, priority, &stream));
  return Stream(stream);
}

inline Event record(const Stream& stream, bool timing = false) {
  ct_event* event = nullptr;
  EXPECT_OK(ct_event_record(stream.get(), timing, &event));
  return Event(event);
}

// Returns an exec for the calling thread, without grad mode and autocast.
inline ct_exec exec(const Stream& stream) { return ct_exec{stream.get(), ct_thread_id(), 0, -1, 0, nullptr}; }
inline ct_exec with_grad(ct_exec x) {
  x.grad = 1;
  return x;
}

template <typename T>
Tensor tensor(const ct_exec& x, DType dtype, const std::vector<T>& values, const std::vector<int64_t>& shape) {
  ct_tensor* out = nullptr;
  EXPECT_OK(ct_tensor_from_host(x, values.data(), static_cast<int64_t>(values.size() * sizeof(T)), dtype, shape.data(),
                                static_cast<int32_t>(shape.size()), &out));
  return Tensor(out);
}

inline Tensor floats(const ct_exec& x, const std::vector<float>& values, const std::vector<int64_t>& shape) {
  return tensor(x, kFloat, values, shape);
}
inline Tensor floats(const ct_exec& x, const std::vector<float>& values) {
  return floats(x, values, {static_cast<int64_t>(values.size())});
}

inline ct_tensor_info describe(const Tensor& t) {
  ct_tensor_info info;
  ct_tensor_describe(t.get(), &info);
  return info;
}

inline std::vector<int64_t> shape_of(const Tensor& t) {
  std::vector<int64_t> shape(static_cast<size_t>(describe(t).dims));
  ct_tensor_geometry(t.get(), shape.data(), nullptr);
  return shape;
}

template <typename T>
std::vector<T> values(const ct_exec& x, const Tensor& t) {
  std::vector<T> out(static_cast<size_t>(describe(t).elements));
  EXPECT_OK(ct_tensor_to_host(x, t.get(), out.data(), static_cast<int64_t>(out.size() * sizeof(T))));
  return out;
}

// The arguments of one operator, as ct_call reads them.
class Args {
 public:
  Args& none() { return word(CT_ARG_NONE); }
  Args& standard() { return word(CT_ARG_DEFAULT); }
  Args& rest() { return word(CT_ARG_REST_DEFAULT); }
  Args& device() { return word(CT_ARG_DEVICE); }
  Args& i(int64_t v) { return word(CT_ARG_INT).word(static_cast<uint64_t>(v)); }
  Args& f(double v) { return word(CT_ARG_FLOAT).word(std::bit_cast<uint64_t>(v)); }
  Args& b(bool v) { return word(CT_ARG_BOOL).word(v); }
  Args& t(ct_tensor* v) { return word(CT_ARG_TENSOR).handle(v); }
  Args& t(const Tensor& v) { return t(v.get()); }
  Args& t(Tensor&& v) {
    t(v.get());
    owned_.emplace_back(v.release(), Free());
    return *this;
  }
  Args& ts(const std::vector<ct_tensor*>& v) {
    word(CT_ARG_TENSORS).word(v.size());
    for (ct_tensor* p : v) handle(p);
    return *this;
  }
  Args& is(const std::vector<int64_t>& v) {
    word(CT_ARG_INTS).word(v.size());
    for (int64_t n : v) word(static_cast<uint64_t>(n));
    return *this;
  }
  Args& fs(const std::vector<double>& v) {
    word(CT_ARG_FLOATS).word(v.size());
    for (double n : v) word(std::bit_cast<uint64_t>(n));
    return *this;
  }
  Args& bs(const std::vector<bool>& v) {
    word(CT_ARG_BOOLS).word(v.size());
    for (bool n : v) word(n);
    return *this;
  }
  Args& s(const std::string& v) {
    word(CT_ARG_STRING).word(v.size());
    for (size_t i = 0; i < v.size(); i += 8) {
      uint64_t packed = 0;
      std::memcpy(&packed, v.data() + i, std::min<size_t>(8, v.size() - i));
      word(packed);
    }
    return *this;
  }
  Args& word(uint64_t v) {
    words.push_back(v);
    return *this;
  }
  Args& handle(ct_tensor* v) {
    tensors.push_back(v);
    return *this;
  }

  std::vector<uint64_t> words;
  std::vector<ct_tensor*> tensors;

 private:
  std::vector<std::shared_ptr<ct_tensor>> owned_;
};

struct Results {
  std::vector<uint64_t> words;
  std::vector<Tensor> tensors;
  bool overflowed = false;
};

// Returns the handle of an operator, such as "aten::add.Tensor". If there is no such operator,
// returns NULL and fails the test.
inline const ct_op* find(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const ct_op* op = nullptr;
  EXPECT_OK(ct_op_find(name.substr(0, dot).c_str(), overload.c_str(), &op)) << name;
  return op;
}

// Calls an operator. Its results may take word_room words and tensor_room tensors before they
// overflow.
inline ct_status* call(const ct_exec& x, const std::string& name, const Args& args, Results* out, int32_t word_room = 32,
                       int32_t tensor_room = 8) {
  std::vector<uint64_t> words(static_cast<size_t>(word_room));
  std::vector<ct_tensor*> tensors(static_cast<size_t>(tensor_room));
  ct_results results{word_room, tensor_room, 0, 0};
  ct_overflow* overflow = nullptr;
  ct_status* status = ct_call(x, find(name), args.words.data(), static_cast<int32_t>(args.words.size()), args.tensors.data(),
                              static_cast<int32_t>(args.tensors.size()), &results, words.data(), tensors.data(), &overflow);
  if (status != nullptr) return status;
  words.resize(static_cast<size_t>(results.words));
  tensors.resize(static_cast<size_t>(results.tensors));
  if (overflow != nullptr) ct_overflow_take(overflow, words.data(), tensors.data());
  out->overflowed = overflow != nullptr;
  out->words = std::move(words);
  out->tensors.clear();
  for (ct_tensor* t : tensors) out->tensors.emplace_back(t);
  return nullptr;
}

// Calls an operator that must succeed.
inline Results run(const ct_exec& x, const std::string& name, const Args& args) {
  Results out;
  EXPECT_OK(call(x, name, args, &out)) << name;
  return out;
}

// Calls an operator that must succeed and return one tensor.
inline Tensor run1(const ct_exec& x, const std::string& name, const Args& args) {
  Results out = run(x, name, args);
  EXPECT_EQ(out.tensors.size(), 1U) << name;
  return out.tensors.empty() ? nullptr : std::move(out.tensors[0]);
}

// Calls an operator that must fail. Returns its status.
inline ct_status* fails(const ct_exec& x, const std::string& name, const Args& args) {
  Results out;
  return call(x, name, args, &out);
}

// Enqueues work that does nothing for the given nanoseconds. On the CPU the call itself waits for
// that time.
inline ct_status* sleep(const ct_exec& x, int64_t nanoseconds) {
  Results none;
  return call(x, "streamtorch::sleep", Args().i(nanoseconds).device(), &none);
}

// Checks that a test frees all its handles.
class HandlesTest : public ::testing::Test {
 protected:
  void SetUp() override { ct_live_handles(&before_); }
  void TearDown() override {
    ct_live after;
    ct_live_handles(&after);
    EXPECT_EQ(after.tensors, before_.tensors) << "tensors left";
    EXPECT_EQ(after.streams, before_.streams) << "streams left";
    EXPECT_EQ(after.events, before_.events) << "events left";
    EXPECT_EQ(after.slabs, before_.slabs) << "slabs left";
    EXPECT_EQ(after.statuses, before_.statuses) << "statuses left";
    EXPECT_EQ(after.functions, before_.functions) << "functions left";
    EXPECT_EQ(after.graphs, before_.graphs) << "graphs left";
    EXPECT_EQ(after.decoders, before_.decoders) << "decoders left";
    EXPECT_EQ(after.compiled, before_.compiled) << "compiled models left";
    EXPECT_EQ(after.slab_bytes, before_.slab_bytes) << "slab bytes left";
    EXPECT_EQ(after.pinned_bytes, before_.pinned_bytes) << "pinned bytes left";
  }

 private:
  ct_live before_{};
};

}  // namespace ct_test

inline bool operator==(const ct_device& a, const ct_device& b) { return a.type == b.type && a.index == b.index; }
inline std::ostream& operator<<(std::ostream& out, const ct_device& d) {
  return out << (d.type == CT_CPU ? "cpu" : "cuda") << ":" << d.index;
}
