#include <set>

#include "core/handles_test.h"

namespace {

using ct_test::kCuda;
using ct_test::Stream;
using StreamTest = ct_test::HandlesTest;

TEST_F(StreamTest, Default_IsOneStream) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream a = ct_test::default_stream(device), b = ct_test::default_stream(device);
    EXPECT_EQ(ct_stream_id(a.get()), ct_stream_id(b.get()));
    EXPECT_EQ(ct_stream_native(a.get()), nullptr);
  }
}

TEST_F(StreamTest, New_IsNoOtherStream) {
  std::set<uint64_t> ids;
  std::vector<Stream> streams;
  for (const ct_device device : ct_test::devices()) {
    streams.push_back(ct_test::default_stream(device));
    for (int i = 0; i < 40; ++i) streams.push_back(ct_test::new_stream(device, i % 2 == 0 ? 0 : -1));
  }
  for (const Stream& s : streams) ids.insert(ct_stream_id(s.get()));
  EXPECT_EQ(ids.size(), streams.size());
}

TEST_F(StreamTest, Free_GivesTheCUDAStreamToItsNextOwner) {
  SKIP_WITHOUT_CUDA();
  Stream s = ct_test::new_stream(kCuda);
  void* const native = ct_stream_native(s.get());
  EXPECT_NE(native, nullptr);
  s.reset();
  const Stream urgent = ct_test::new_stream(kCuda, -1);
  EXPECT_NE(ct_stream_native(urgent.get()), native) << "a stream of another priority";
  const Stream next = ct_test::new_stream(kCuda);
  EXPECT_EQ(ct_stream_native(next.get()), native);
  ct_test::default_stream(kCuda).reset();
  const Stream another = ct_test::new_stream(kCuda);
  EXPECT_NE(ct_stream_native(another.get()), nullptr) << "the default stream is nobody's own";
}

TEST_F(StreamTest, QueryAndSynchronize) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    EXPECT_OK(ct_stream_synchronize(s.get()));
    int32_t done = 0;
    EXPECT_OK(ct_stream_query(s.get(), &done));
    EXPECT_EQ(done, 1);
  }
}

TEST_F(StreamTest, NullStream_HasMetadata) {
  EXPECT_EQ(ct_stream_id(nullptr), 0U);
  EXPECT_EQ(ct_stream_native(nullptr), nullptr);
}

}  // namespace
