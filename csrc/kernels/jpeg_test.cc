#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/handles_test.h"
#include "decode/frames_test.h"

namespace {

using ct_test::Decoder;
using ct_test::kCpu;
using ct_test::kCuda;
using ct_test::Stream;
using decode::below;
using decode::draw;
using decode::File;

// Batch is the frames of one call, with their files and results.
struct Batch {
  int sampling = 0, height = 0, width = 0;
  std::vector<File> files{}, results{};
  std::vector<ctd_frame> frames{};

  void add(File file, ctd_frame frame) {
    files.push_back(std::move(file));
    results.emplace_back(size_t{3} * height * width, 0xEE);
    frame.data = files.back().data();
    frame.size = files.back().size();
    frame.to = results.back().data();
    frame.failed = -1;
    frames.push_back(frame);
  }
  // Adds a file with a random box.
  void add(const File& file, uint64_t key) {
    decode::read_header(file, [&](const jpeg_decompress_struct& info) {
      int h = height, w = width;
      add(decode::bare(file), decode::random_frame(static_cast<int>(info.image_height), static_cast<int>(info.image_width), key, h, w));
    });
  }
  void run(const ctd_device& device, int lane = 0) {
    device.decode(device.self, lane, sampling, height, width, frames.data(), frames.size());
  }
};

// Returns whether the frame's result is that of a thread of the pool.
bool right(const Batch& batch, size_t i) {
  static thread_local decode::Scratch scratch;
  static thread_local decode::Resizer resizer;
  return batch.frames[i].failed == 0 &&
         batch.results[i] == decode::wanted(batch.files[i], batch.frames[i], batch.height, batch.width, scratch, resizer);
}

void expect_right(const Batch& batch) {
  for (size_t i = 0; i < batch.frames.size(); ++i) {
    const ctd_frame& f = batch.frames[i];
    ASSERT_TRUE(right(batch, i)) << "frame " << i << " of " << batch.frames.size() << ", failed " << f.failed << ", sampling " << batch.sampling
                                 << ", " << f.width << "x" << f.height << ", box " << f.box_width << "x" << f.box_height << " at " << f.box_left
                                 << "," << f.box_top << " to " << f.resized_width << "x" << f.resized_height << ", part at " << f.left << "," << f.top;
  }
}

constexpr struct {
  int sampling, across, down;
} kSamplings[] = {{CTD_444, 1, 1}, {CTD_422, 2, 1}, {CTD_420, 2, 2}};

Batch random_batch(int which, int count, int height, int width, uint64_t key) {
  Batch batch{kSamplings[which].sampling, height, width};
  for (int i = 0; i < count; ++i) {
    const auto [a, b] = draw(key, i);
    const int most = i % 8 == 0 ? 40 : 600;
    const auto pixels = decode::scene(1 + below(a, most), 1 + below(b, most), 3);
    batch.add(decode::jpeg_of(pixels, {.across = kSamplings[which].across, .down = kSamplings[which].down, .restart = i % 5 == 4 ? 7 : 0,
                                       .quality = 30 + i % 70, .optimize = i % 2 == 0}),
              key + i);
  }
  return batch;
}

class JPEGDecoderTest : public ct_test::HandlesTest {
 protected:
  // Makes a decoder. Skips the test where there is no CUDA, no engine or no nvJPEG.
  void open(int lanes = 1) {
    SKIP_WITHOUT_CUDA();
    ct_jpeg_decoder* out = nullptr;
    const ct_test::Status status(ct_jpeg_decoder_new(kCuda, lanes, &out));
    if (status) {
      ASSERT_EQ(ct_status_code(status.get()), CT_UNSUPPORTED) << ct_status_message(status.get());
      GTEST_SKIP() << ct_status_message(status.get());
    }
    decoder_.reset(out);
    device_ = static_cast<const ctd_device*>(ct_jpeg_decoder_device(out));
  }
  void TearDown() override {
    decoder_.reset();
    HandlesTest::TearDown();
  }
  ct_jpeg_counts counts() const {
    ct_jpeg_counts out;
    ct_jpeg_decoder_count(decoder_.get(), &out);
    return out;
  }

  Decoder decoder_;
  const ctd_device* device_ = nullptr;
};

#define OPEN(...)    \
  open(__VA_ARGS__); \
  if (device_ == nullptr) return

TEST_F(JPEGDecoderTest, Refused) {
  ct_jpeg_decoder* out = nullptr;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "0 lanes: want at least one", ct_jpeg_decoder_new(kCpu, 0, &out));
  EXPECT_FAILS(CT_UNSUPPORTED, "the CPU has no engines", ct_jpeg_decoder_new(kCpu, 1, &out));
  EXPECT_EQ(out, nullptr);
  ct_jpeg_decoder_free(nullptr);
}

TEST_F(JPEGDecoderTest, EqualsThePool) {
  OPEN();
  uint64_t key = 3 << 20;
  int64_t frames = 0;
  for (int which = 0; which < 3; ++which) {
    for (const auto& [count, height, width] : {std::tuple{8, 224, 224}, {1, 224, 224}, {7, 33, 57}, {8, 1, 1}, {5, 300, 17}}) {
      Batch batch = random_batch(which, count, height, width, key += 1000);
      batch.run(*device_);
      expect_right(batch);
      frames += count;
    }
  }
  EXPECT_EQ(counts().decoded, frames);
  EXPECT_EQ(counts().failed, 0);
}

TEST_F(JPEGDecoderTest, EqualsThePool_Photographs) {
  OPEN();
  const std::vector<File> files = decode::photographs();
  if (files.empty()) GTEST_SKIP() << "no photographs: set CGOTORCH_JPEGS to a folder";
  uint64_t key = 4 << 20;
  for (int round = 0; round < 4; ++round) {
    for (const auto& kind : kSamplings) {
      Batch batch{kind.sampling, 224, 224};
      int64_t pixels = 0;
      const auto flush = [&] {
        batch.run(*device_);
        expect_right(batch);
        batch = {kind.sampling, 224, 224};
        pixels = 0;
      };
      for (const File& file : files) {
        int64_t more = 0;
        decode::read_header(file, [&](const jpeg_decompress_struct& info) {
          if (decode::sampling_of(info) == kind.sampling) more = int64_t{info.image_width} * info.image_height;
        });
        if (more == 0) continue;
        if (static_cast<int>(batch.frames.size()) == device_->most_frames || pixels + more > device_->most_pixels) flush();
        pixels += more;
        batch.add(file, ++key);
      }
      if (!batch.frames.empty()) flush();
    }
  }
}

// Three threads, each with a lane of its own, with another sampling in each call.
TEST_F(JPEGDecoderTest, Lanes) {
  OPEN(3);
  std::vector<std::vector<Batch>> batches(3);
  for (int lane = 0; lane < 3; ++lane) {
    for (int i = 0; i < 6; ++i) batches[lane].push_back(random_batch((lane + i) % 3, 5, 64, 64, (5 << 20) + lane * 10000 + i * 100));
  }
  std::vector<std::thread> threads;
  for (int lane = 0; lane < 3; ++lane) {
    threads.emplace_back([&, lane] {
      for (int i = 0; i < 30; ++i) batches[lane][i % 6].run(*device_, lane);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& of_lane : batches) {
    for (const Batch& batch : of_lane) expect_right(batch);
  }
  EXPECT_EQ(counts().decoded, 3 * 30 * 5);
}

// Frames that break the limits fail. The others of the call are decoded.
TEST_F(JPEGDecoderTest, Limits) {
  OPEN();
  Batch batch = random_batch(2, 8, 16, 16, 6 << 20);
  batch.frames[1].box_left = batch.frames[1].width;
  batch.frames[3].resized_height = batch.frames[3].box_height / 8 - 1;
  batch.frames[5].top = -1;
  batch.run(*device_);
  for (const int bad : {1, 3, 5}) EXPECT_EQ(batch.frames[bad].failed, 1);
  for (const int good : {0, 2, 4, 6, 7}) EXPECT_TRUE(right(batch, good)) << good;
  Batch large = random_batch(2, device_->most_frames + 1, 16, 16, 7 << 20);
  large.run(*device_);
  for (const ctd_frame& f : large.frames) EXPECT_EQ(f.failed, 1);
}

Batch with_refused_file(int count, uint64_t key) {
  Batch batch = random_batch(2, count, 16, 16, key);
  const ctd_frame& f = batch.frames[0];
  // Engines decode no progressive files, and nvJPEG sees that at once.
  batch.files[0] = decode::bare(decode::jpeg_of(decode::scene(f.height, f.width, 3), {.progressive = true}));
  batch.frames[0].data = batch.files[0].data();
  batch.frames[0].size = batch.files[0].size();
  return batch;
}

// If nvJPEG refuses a file, the others of the call are decoded all the same.
TEST_F(JPEGDecoderTest, RefusedFile) {
  OPEN();
  for (int i = 0; i < 20; ++i) {
    Batch batch = with_refused_file(5, (14 << 20) + i * 100);
    batch.run(*device_);
    EXPECT_EQ(batch.frames[0].failed, 1);
    for (int good = 1; good < 5; ++good) ASSERT_TRUE(right(batch, good)) << i << " " << good;
  }
  EXPECT_EQ(counts().decoded, 20 * 4);
  EXPECT_EQ(counts().failed, 20);
}

// After five seconds of calls without a decoded file the decoder gives up.
TEST_F(JPEGDecoderTest, GivesUp) {
  OPEN();
  Batch good = random_batch(2, 2, 16, 16, 15 << 20);
  for (int i = 0; i < 8; ++i) {
    if (i == 7) {
      good.run(*device_);
      ASSERT_NO_FATAL_FAILURE(expect_right(good));
    }
    with_refused_file(1, 16 << 20).run(*device_);
  }
  good.run(*device_);
  ASSERT_NO_FATAL_FAILURE(expect_right(good));
  for (const auto began = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - began < std::chrono::seconds(6);) {
    for (int i = 0; i < 8; ++i) with_refused_file(1, 16 << 20).run(*device_);
  }
  good.run(*device_);
  for (const ctd_frame& f : good.frames) EXPECT_EQ(f.failed, 1);
}

// Pools that use the decoder keep it.
TEST_F(JPEGDecoderTest, Retained) {
  OPEN();
  const ctd_device& device = *device_;
  device.retain(device.self);
  decoder_.reset();
  Batch batch = random_batch(0, 3, 8, 8, 8 << 20);
  batch.run(device);
  expect_right(batch);
  device.release(device.self);
}

// Another thread captures a graph in CUDA's global mode, in which calls such as cudaMalloc end the
// capture. The decoder's first calls allocate memory.
TEST_F(JPEGDecoderTest, BesideACapture) {
  SKIP_WITHOUT_CUDA();
  const auto begin = reinterpret_cast<int (*)(void*, int)>(dlsym(RTLD_DEFAULT, "cudaStreamBeginCapture"));
  const auto end = reinterpret_cast<int (*)(void*, void**)>(dlsym(RTLD_DEFAULT, "cudaStreamEndCapture"));
  ASSERT_TRUE(begin != nullptr && end != nullptr);
  const Stream captured = ct_test::new_stream(kCuda);
  ASSERT_EQ(begin(ct_stream_native(captured.get()), 0), 0);
  std::thread([&] {
    open();
    if (device_ == nullptr) return;
    for (int which = 0; which < 3; ++which) {
      Batch batch = random_batch(which, 8, 224, 224, (9 << 20) + which * 1000);
      batch.run(*device_);
      expect_right(batch);
    }
    decoder_.reset();
  }).join();
  void* graph = nullptr;
  EXPECT_EQ(end(ct_stream_native(captured.get()), &graph), 0) << "the capture has ended";
}

// Files whose scans are wrong. A pool checks everything but the codes of a scan. Whatever becomes
// of such a file, the other files of the call are right, and so are the calls after it. The test
// prints what became of the files.
TEST_F(JPEGDecoderTest, HostileScans) {
  OPEN();
  for (int which = 0; which < 3; ++which) {
    const auto [sampling, across, down] = kSamplings[which];
    const File good = decode::bare(decode::jpeg_of(decode::scene(375, 500, 3), {.across = across, .down = down}));
    size_t scan = 2;
    while (good[scan + 1] != 0xDA) scan += 2 + good[scan + 2] * 256 + good[scan + 3];
    scan += 2 + good[scan + 2] * 256 + good[scan + 3];
    const File head(good.begin(), good.begin() + scan);
    const auto with = [&](const File& codes) {
      File out = head;
      out.insert(out.end(), codes.begin(), codes.end());
      out.insert(out.end(), {0xFF, 0xD9});
      return out;
    };
    std::vector<std::pair<std::string, File>> bad;
    for (int i = 0; i < 40; ++i) {
      File flipped = good;
      flipped[scan + below(draw(10 << 20, i).first, static_cast<int>(good.size() - scan - 2))] ^= 1 << i % 8;
      bad.emplace_back("a flipped bit", flipped);
    }
    for (int i = 0; i < 20; ++i) bad.emplace_back("a short scan", with(File(good.begin() + scan, good.begin() + scan + (good.size() - scan) * i / 20)));
    for (const int bytes : {2, 64, 4096, 200000}) {
      File stuffed, noise;
      for (int i = 0; i < bytes / 2; ++i) stuffed.insert(stuffed.end(), {0xFF, 0x00});
      for (int i = 0; i < bytes; ++i) noise.push_back(static_cast<uint8_t>(draw(11 << 20, i).first % 255));
      bad.emplace_back("FF00 again and again", with(stuffed));
      bad.emplace_back("zeros", with(File(bytes, 0)));
      bad.emplace_back("noise", with(noise));
    }
    bad.emplace_back("a scan twice as long", with([&] {
      File twice(good.begin() + scan, good.end() - 2);
      twice.insert(twice.end(), good.begin() + scan, good.end() - 2);
      return twice;
    }()));
    ctd_frame frame{};
    frame.width = frame.box_width = 500;
    frame.height = frame.box_height = 375;
    frame.resized_height = frame.resized_width = 100;
    size_t sof = 2;
    while (good[sof + 1] != 0xC0) sof += 2 + good[sof + 2] * 256 + good[sof + 3];
    for (const int side : {2000, 5000}) {
      File large = head;
      for (const int i : {5, 7}) large[sof + i] = side >> 8, large[sof + i + 1] = side & 0xFF;
      large.insert(large.end(), good.begin() + scan, good.end());
      bad.emplace_back(std::to_string(side), large);
    }
    // Each bad file is once among good files, and once alone.
    for (const bool alone : {false, true}) {
      std::map<std::string, std::map<std::string, int>> became;
      for (const auto& [what, file] : bad) {
        Batch batch{sampling, 100, 100};
        for (int i = 0; i < (alone ? 1 : 4); ++i) batch.add(i == 0 ? file : good, frame);
        ctd_frame& first = batch.frames[0];
        if (const int side = std::atoi(what.c_str()); side > 0) first.height = first.width = first.box_height = first.box_width = side;
        if (std::atoi(what.c_str()) > 800) first.resized_height = first.resized_width = (first.box_width + 7) / 8;
        batch.run(*device_);
        bool pool_refuses = false, equal = false;
        try {
          equal = right(batch, 0);
        } catch (const decode::Error&) {
          pool_refuses = true;
        }
        ++became[what][batch.frames[0].failed != 0 ? "failed" : pool_refuses ? "decoded, refused by the pool" : equal ? "equal" : "DIFFERENT"];
        EXPECT_FALSE(batch.frames[0].failed == 0 && !pool_refuses && !equal) << what;
        for (size_t i = 1; i < batch.frames.size(); ++i) ASSERT_TRUE(right(batch, i)) << "beside " << what;
        Batch after = random_batch(which, 2, 20, 20, 12 << 20);
        after.run(*device_);
        ASSERT_NO_FATAL_FAILURE(expect_right(after)) << "after " << what;
      }
      for (const auto& [what, counted] : became) {
        for (const auto& [how, count] : counted) std::printf("sampling %d, %s, %s: %s %d\n", sampling, alone ? "alone" : "beside good files", what.c_str(), how.c_str(), count);
      }
    }
  }
}

}  // namespace
