// Tests each call of the C header.
#include "include/cgotorch_decode.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "decode/samples_test.h"

namespace decode {
namespace {

// text_of consumes a status and returns its message, or "" for success. The status must have the
// code `code`.
std::string text_of(ctd_status* status, int32_t code = 0) {
  EXPECT_EQ(ctd_status_code(status), code) << ctd_status_message(status);
  const std::string text = ctd_status_message(status);
  ctd_status_free(status);
  return text;
}

ctd_options resize(int workers) {
  ctd_options o{};
  o.transform = CTD_RESIZE;
  o.height = 6;
  o.width = 7;
  o.workers = workers;
  return o;
}

constexpr size_t kEach = 6 * 7 * 3;

// Counts the threads of pools. A thread that has been joined may still be listed by the kernel
// for a moment.
int threads() {
  int n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    n += name.starts_with("decode-");
  }
  return n;
}

// status_of returns the value of the entry `name` in the kernel's status file of a thread.
std::string status_of(const std::filesystem::path& task, const std::string& name) {
  std::ifstream status(task / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  }
  return "?";
}

// Reports whether the condition becomes true within ten seconds.
bool soon(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(Header, Abi) { EXPECT_EQ(ctd_abi_version(), CTD_ABI_VERSION); }

TEST(Status, NullIsSuccess) {
  EXPECT_EQ(ctd_status_code(nullptr), 0);
  EXPECT_STREQ(ctd_status_message(nullptr), "");
  ctd_status_free(nullptr);
}

TEST(Guarded, EveryException) {
  EXPECT_EQ(text_of(guarded([] { throw Error(CTD_CORRUPT, "text"); }), CTD_CORRUPT), "text");
  EXPECT_EQ(text_of(guarded([] { throw std::bad_alloc(); }), CTD_OUT_OF_MEMORY), "out of host memory");
  EXPECT_EQ(text_of(guarded([] { throw std::runtime_error("other"); }), CTD_INTERNAL), "other");
  EXPECT_EQ(text_of(guarded([] { throw 1; }), CTD_INTERNAL), "unknown exception");
  EXPECT_EQ(guarded([] {}), nullptr);
}

TEST(Probe, Arguments) {
  ctd_info info{};
  const File file = png_of(scene(5, 9, 4));
  EXPECT_EQ(text_of(ctd_probe(file.data(), file.size(), &info)), "");
  EXPECT_EQ(info.format, CTD_PNG);
  EXPECT_EQ(info.width, 9);
  EXPECT_EQ(info.height, 5);
  EXPECT_EQ(info.orientation, 1);
  EXPECT_EQ(text_of(ctd_probe(file.data(), file.size(), nullptr), CTD_INVALID_ARGUMENT), "out is NULL");
  EXPECT_EQ(text_of(ctd_probe(nullptr, 3, &info), CTD_INVALID_ARGUMENT), "data is NULL");
  EXPECT_EQ(text_of(ctd_probe(nullptr, 0, &info), CTD_NOT_AN_IMAGE), "zero bytes");
  EXPECT_EQ(info.width, 9) << "written on failure";
}

TEST(Check, SizeAndDamage) {
  const File file = jpeg_of(scene(50, 90, 3));
  EXPECT_EQ(text_of(ctd_check(file.data(), file.size(), 0)), "");
  EXPECT_EQ(text_of(ctd_check(file.data(), file.size(), 4500)), "");
  EXPECT_EQ(text_of(ctd_check(file.data(), file.size(), 4499), CTD_TOO_LARGE),
            "90x50 is 0.0045 Mpx, above the limit of 0.004499 Mpx: raise MaxPixels");
  EXPECT_EQ(text_of(ctd_check(file.data(), file.size() / 2, 0), CTD_TRUNCATED), "truncated JPEG");
  text_of(ctd_check(file.data(), file.size(), -1), CTD_INVALID_ARGUMENT);
}

TEST(Pool, Arguments) {
  ctd_pool* pool = nullptr;
  ctd_options o = resize(1);
  EXPECT_EQ(text_of(ctd_pool_new(nullptr, &pool), CTD_INVALID_ARGUMENT), "options is NULL");
  EXPECT_EQ(text_of(ctd_pool_new(&o, nullptr), CTD_INVALID_ARGUMENT), "out is NULL");
  o.width = 0;
  EXPECT_EQ(text_of(ctd_pool_new(&o, &pool), CTD_INVALID_ARGUMENT), "width is 0; it must be 1 to 65535");
  EXPECT_EQ(pool, nullptr);
  o.width = 7;
  o.memory = -1;
  EXPECT_EQ(text_of(ctd_pool_new(&o, &pool), CTD_INVALID_ARGUMENT), "memory is -1; it must not be less than 0");
  o.memory = 0;
  ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
  const File file = png_of(scene(5, 9, 3));
  const ctd_image image{file.data(), file.size(), 0, nullptr, 0, 0, 0, 0};
  File dst(kEach, 0xEE);
  ctd_result result{};
  EXPECT_EQ(text_of(ctd_pool_decode(nullptr, &image, 1, dst.data(), kEach, &result), CTD_INVALID_ARGUMENT), "pool is NULL");
  EXPECT_EQ(text_of(ctd_pool_decode(pool, nullptr, 1, dst.data(), kEach, &result), CTD_INVALID_ARGUMENT), "images is NULL");
  EXPECT_EQ(text_of(ctd_pool_decode(pool, &image, 1, nullptr, kEach, &result), CTD_INVALID_ARGUMENT), "dst is NULL");
  EXPECT_EQ(text_of(ctd_pool_decode(pool, &image, 1, dst.data(), kEach, nullptr), CTD_INVALID_ARGUMENT), "results is NULL");
  for (const size_t size : {size_t{0}, kEach - 1, kEach + 1, 2 * kEach}) {
    text_of(ctd_pool_decode(pool, &image, 1, dst.data(), size, &result), CTD_INVALID_ARGUMENT);
  }
  EXPECT_EQ(dst, File(kEach, 0xEE)) << "written on failure";
  EXPECT_EQ(text_of(ctd_pool_decode(pool, nullptr, 0, nullptr, 0, nullptr)), "");
  EXPECT_EQ(text_of(ctd_pool_decode(pool, &image, 1, dst.data(), kEach, &result)), "");
  EXPECT_EQ(result.error, nullptr);
  EXPECT_NE(dst, File(kEach, 0xEE));
  ctd_pool_free(pool);
  ctd_pool_free(nullptr);
  EXPECT_EQ(ctd_pool_workers(nullptr), 0);
  EXPECT_EQ(ctd_pool_max_memory(nullptr), 0);
}

TEST(Pool, ThreadsAreNamedMaskedAndJoined) {
  ctd_options o = resize(3);
  ctd_pool* pool = nullptr;
  ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
  EXPECT_EQ(ctd_pool_workers(pool), 3);
  EXPECT_TRUE(soon([] { return threads() == 3; })) << threads();
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (!name.starts_with("decode-")) continue;
    // Until a thread first waits for work, pthread_create may not have set its signal mask yet.
    ASSERT_TRUE(soon([&] { return status_of(task.path(), "State")[0] == 'S'; })) << name;
    const uint64_t blocked = std::stoull(status_of(task.path(), "SigBlk"), nullptr, 16);
    for (const int signal : {SIGPROF, SIGURG, SIGINT, SIGTERM}) EXPECT_TRUE(blocked >> (signal - 1) & 1) << signal;
  }
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_FALSE(sigismember(&mine, SIGPROF)) << "the caller's own mask was changed";
  ctd_pool_free(pool);
  EXPECT_TRUE(soon([] { return threads() == 0; })) << threads();
  o.workers = 0;
  ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
  EXPECT_GE(ctd_pool_workers(pool), 1);
  ctd_pool_free(pool);
}

TEST(Pool, BatchesAtTheSameTime) {
  const ctd_options o = resize(4);
  ctd_pool* pool = nullptr;
  ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
  const File good = jpeg_of(scene(50, 60, 3)), bad(good.begin(), good.end() - 20);
  constexpr size_t kCount = 33;
  std::vector<ctd_image> images(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const File& file = i % 5 == 4 ? bad : good;
    images[i] = {file.data(), file.size(), i, nullptr, 0, 0, 0, 0};
  }
  File want(kEach);
  ctd_result one{};
  ASSERT_EQ(text_of(ctd_pool_decode(pool, images.data(), 1, want.data(), kEach, &one)), "");
  const auto run = [&] {
    for (int round = 0; round < 10; ++round) {
      File dst(kCount * kEach, 0xEE);
      std::vector<ctd_result> results(kCount);
      EXPECT_EQ(text_of(ctd_pool_decode(pool, images.data(), kCount, dst.data(), dst.size(), results.data())), "");
      for (size_t i = 0; i < kCount; ++i) {
        const File part(dst.begin() + i * kEach, dst.begin() + (i + 1) * kEach);
        if (i % 5 == 4) {
          EXPECT_EQ(text_of(results[i].error, CTD_TRUNCATED), "truncated JPEG");
          EXPECT_EQ(part, File(kEach, 0));
        } else {
          EXPECT_EQ(results[i].error, nullptr);
          EXPECT_EQ(part, want);
        }
      }
    }
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) callers.emplace_back(run);
  for (auto& caller : callers) caller.join();
  ctd_pool_free(pool);
}

// Large images, whole and damaged, need more than a thread's own memory. There is memory for one
// of them at a time. The images must be decoded one after another, and every image must get its
// result.
TEST(Pool, LargeImagesWait) {
  ctd_options o = resize(4);
  o.no_shrink = 1;
  o.max_pixels = 1300 * 1300;
  const File whole = jpeg_of(scene(1300, 1300, 4), {1, 1, true}), damaged(whole.begin(), whole.end() - 2);
  std::vector<ctd_image> images;
  for (const File* file : {&whole, &damaged, &whole, &whole, &damaged}) images.push_back({file->data(), file->size(), 0, nullptr, 0, 0, 0, 0});
  File dst[2];
  int64_t most[2];
  for (const int64_t memory : {0, 1}) {
    o.memory = memory;
    ctd_pool* pool = nullptr;
    ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
    most[memory] = ctd_pool_max_memory(pool);
    dst[memory].resize(images.size() * kEach);
    std::vector<ctd_result> results(images.size());
    ASSERT_EQ(text_of(ctd_pool_decode(pool, images.data(), images.size(), dst[memory].data(), dst[memory].size(), results.data())), "");
    for (size_t i = 0; i < images.size(); ++i) text_of(results[i].error, i == 1 || i == 4 ? CTD_TRUNCATED : 0);
    ctd_pool_free(pool);
  }
  EXPECT_EQ(dst[0], dst[1]);
  const int64_t each = 18 << 20;
  EXPECT_EQ(most[0] - 4 * each, 4 * (most[1] - 4 * each)) << "there is memory for four, and for one";
  EXPECT_GT(most[1] - 4 * each, 1300 * 1300 * 11);
}

// While one thread works on the last image of a batch, the other thread takes the next batch and
// finishes it. That last image has 40 Mpx of noise, a thousand times the work of the second
// batch.
TEST(Pool, ThreadsGoOnWithTheNextBatch) {
  const ctd_options o = resize(2);
  ctd_pool* pool = nullptr;
  ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
  EXPECT_EQ(ctd_pool_busy(pool), 0);
  const File small = png_of(scene(5, 9, 3));
  const Pixels large = scene(5000, 8000, 3);
  const ctd_image short_one{small.data(), small.size(), 0, nullptr, 0, 0, 0, 0};
  const ctd_image long_one{nullptr, 0, 0, large.bytes.data(), large.width, large.height, 3, 0};
  const std::vector<ctd_image> first{short_one, long_one}, second(8, short_one);
  const auto decode = [&](const std::vector<ctd_image>& images) {
    File dst(images.size() * kEach);
    std::vector<ctd_result> results(images.size());
    EXPECT_EQ(text_of(ctd_pool_decode(pool, images.data(), images.size(), dst.data(), dst.size(), results.data())), "");
    for (const ctd_result& result : results) EXPECT_EQ(text_of(result.error), "");
  };
  std::atomic<bool> first_is_done{false};
  std::thread caller([&] {
    decode(first);
    first_is_done = true;
  });
  while (ctd_pool_busy(pool) == 0) std::this_thread::yield();  // the short image of the first batch is done
  decode(second);
  EXPECT_FALSE(first_is_done) << "the second batch waited for the first";
  caller.join();
  EXPECT_GT(ctd_pool_busy(pool), 1'000'000);
  EXPECT_EQ(ctd_pool_busy(nullptr), 0);
  ctd_pool_free(pool);
}

TEST(Pool, WritesEveryResult) {
  const ctd_options o = resize(1);
  ctd_pool* pool = nullptr;
  ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
  ctd_image image{};
  ctd_result result{};
  result.error = reinterpret_cast<ctd_status*>(&result);
  result.width = result.top = result.flip = 77;
  File dst(kEach, 0xEE);
  EXPECT_EQ(text_of(ctd_pool_decode(pool, &image, 1, dst.data(), kEach, &result)), "");
  EXPECT_EQ(text_of(result.error, CTD_NOT_AN_IMAGE), "zero bytes");
  EXPECT_EQ(result.width, 0);
  EXPECT_EQ(result.top, 0);
  EXPECT_EQ(result.flip, 0);
  ctd_pool_free(pool);
}

// Each of many damaged files must give a picture or an error. A sanitizer must find nothing.
TEST(Pool, DamagedFiles) {
  const ctd_options o = resize(2);
  ctd_pool* pool = nullptr;
  ASSERT_EQ(text_of(ctd_pool_new(&o, &pool)), "");
  std::vector<File> files;
  for (const auto& file : {jpeg_of(scene(40, 50, 3)), jpeg_of(scene(40, 50, 3), {2, 1, true}), jpeg_of(scene(20, 20, 4), {1, 1}),
                           png_of(scene(30, 20, 3)), png_of(scene(30, 20, 2), true)}) {
    uint32_t random = 12345;
    const auto next = [&](size_t n) { return (random = random * 1664525 + 1013904223) / 65536 % n; };
    for (int i = 0; i < 120; ++i) {
      File damaged = file;
      for (int change = 0; change < 1 + i % 4; ++change) damaged[next(damaged.size())] = static_cast<uint8_t>(next(256));
      if (i % 7 == 0) damaged.resize(next(damaged.size()));
      files.push_back(damaged);
    }
  }
  std::vector<ctd_image> images;
  for (const File& file : files) images.push_back({file.data(), file.size(), images.size(), nullptr, 0, 0, 0, 0});
  File dst(images.size() * kEach);
  std::vector<ctd_result> results(images.size());
  ASSERT_EQ(text_of(ctd_pool_decode(pool, images.data(), images.size(), dst.data(), dst.size(), results.data())), "");
  int refused = 0;
  for (const ctd_result& result : results) {
    refused += result.error != nullptr;
    EXPECT_NE(ctd_status_code(result.error), CTD_INTERNAL) << ctd_status_message(result.error);
    ctd_status_free(result.error);
  }
  EXPECT_GT(refused, 200);
  ctd_pool_free(pool);
}

}  // namespace
}  // namespace decode
