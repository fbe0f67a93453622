// Decodes damaged images and inflates damaged deflate data. Each input must give an output or an
// error. A sanitizer must find no read or write outside the data. MUTATION_SECONDS says how long
// the tests run. Without it they run only for a moment.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include <zlib.h>

#include "decode/samples_test.h"
#include "include/cgotorch_decode.h"
#include "inflate/decoder.h"
#include "inflate/find.h"

namespace decode {
namespace {

class Until {
 public:
  Until() {
    const char* seconds = std::getenv("MUTATION_SECONDS");
    end_ = Clock::now() + std::chrono::milliseconds(seconds ? 1000 * std::atoi(seconds) : 300);
  }
  bool over() const { return Clock::now() >= end_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return n ? random() % n : 0; }

// Changes a few bytes of the file, or moves, repeats or cuts some. Most changes are in the first
// third, where the headers are.
void damage(Random& random, File& file) {
  for (size_t changes = 1 + below(random, 5); changes > 0 && !file.empty(); --changes) {
    const size_t at = below(random, random() % 2 ? file.size() : file.size() / 3 + 1);
    switch (random() % 8) {
      case 0: file[at] ^= static_cast<uint8_t>(1 << random() % 8); break;
      case 1: file[at] = static_cast<uint8_t>(random()); break;
      case 2: file[at] = 0xFF; break;
      case 3: file[at] = 0; break;
      case 4: file.resize(at); break;
      case 5: {
        const File some(file.begin() + at, file.begin() + std::min(file.size(), at + below(random, 60)));
        file.insert(file.begin() + below(random, file.size()), some.begin(), some.end());
        break;
      }
      case 6: file.erase(file.begin() + at, file.begin() + std::min(file.size(), at + below(random, 30))); break;
      default: file[at] = static_cast<uint8_t>(file[at] + (random() % 2 ? 1 : -1));
    }
  }
}

std::vector<File> samples() {
  std::vector<File> out;
  for (const int channels : {1, 3, 4}) {
    for (const bool progressive : {false, true}) {
      for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}}) {
        if (channels == 4 && across * down > 4) continue;  // an MCU has at most ten blocks
        JpegKind kind{across, down, progressive};
        kind.restart = across == 2 ? 3 : 0;
        kind.optimize = down == 2;
        out.push_back(jpeg_of(scene(70, 90, channels), kind));
      }
    }
  }
  for (const int channels : {1, 2, 3, 4}) {
    for (const bool interlaced : {false, true}) out.push_back(png_of(scene(30, 40, channels), interlaced));
  }
  return out;
}

std::vector<ctd_options> every_transform() {
  std::vector<ctd_options> out;
  for (const int transform : {CTD_RESIZE, CTD_RESIZE_CENTER_CROP, CTD_RANDOM_CROP, CTD_RANDOM_RESIZED_CROP}) {
    for (const auto& [height, width] : {std::pair{3, 5}, {40, 50}, {1, 1}}) {
      ctd_options o{};
      o.workers = 1;
      o.transform = transform;
      o.height = height;
      o.width = width;
      o.resize = 17;
      o.padding = height % 7;
      o.padding_mode = width % 4;
      o.channels = height % 2 ? 3 : 1;
      o.no_shrink = width == 50;
      o.max_pixels = 1 << 18;
      if (width == 5) o.min_scale = 0.001, o.max_scale = 0.01;
      out.push_back(o);
    }
  }
  return out;
}

TEST(Mutation, Images) {
  const std::vector<File> files = samples();
  std::vector<std::unique_ptr<ctd_pool, decltype(&ctd_pool_free)>> pools;
  std::vector<size_t> sizes;
  for (const ctd_options& o : every_transform()) {
    ctd_pool* pool = nullptr;
    ASSERT_EQ(ctd_pool_new(&o, &pool), nullptr);
    pools.emplace_back(pool, ctd_pool_free);
    sizes.push_back(static_cast<size_t>(o.height) * o.width * o.channels);
  }
  Random random(std::random_device{}());
  size_t runs = 0, pictures = 0;
  for (const Until until; !until.over();) {
    constexpr size_t kCount = 16;
    // Each file gets a block of exactly its size, because a vector may have unused room after its
    // end.
    std::vector<std::unique_ptr<uint8_t[]>> owners;
    std::vector<ctd_image> images;
    for (size_t i = 0; i < kCount; ++i) {
      File file = files[below(random, files.size())];
      damage(random, file);
      owners.push_back(std::make_unique<uint8_t[]>(file.size()));
      std::copy(file.begin(), file.end(), owners.back().get());
      images.push_back({owners.back().get(), file.size(), random(), nullptr, 0, 0, 0, 0});
    }
    const size_t which = below(random, pools.size());
    File dst(sizes[which] * kCount);
    std::vector<ctd_result> results(kCount);
    ASSERT_EQ(ctd_pool_decode(pools[which].get(), images.data(), kCount, dst.data(), dst.size(), results.data()), nullptr);
    for (const ctd_result& result : results) {
      const int32_t code = ctd_status_code(result.error);
      EXPECT_TRUE(code != CTD_INTERNAL && code != CTD_INVALID_ARGUMENT && code != CTD_OUT_OF_MEMORY) << ctd_status_message(result.error);
      pictures += code == 0;
      ++runs;
      ctd_status_free(result.error);
    }
  }
  std::printf("%zu images, %zu of them pictures\n", runs, pictures);
  EXPECT_GT(runs, pictures);
}

TEST(Mutation, Deflate) {
  std::vector<File> files;
  const File text = scene(90, 120, 3).bytes;
  for (const int level : {0, 1, 6, 9}) {
    for (const int strategy : {Z_DEFAULT_STRATEGY, Z_HUFFMAN_ONLY, Z_FIXED}) {
      z_stream z{};
      ASSERT_EQ(deflateInit2(&z, level, Z_DEFLATED, -15, 8, strategy), Z_OK);
      File out(deflateBound(&z, text.size()) + 100);
      z.next_in = const_cast<uint8_t*>(text.data());
      z.avail_in = static_cast<uInt>(text.size());
      z.next_out = out.data();
      z.avail_out = static_cast<uInt>(out.size());
      ASSERT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
      out.resize(z.total_out);
      deflateEnd(&z);
      files.push_back(out);
    }
  }
  Random random(std::random_device{}());
  size_t runs = 0;
  for (const Until until; !until.over(); ++runs) {
    File file = files[below(random, files.size())];
    damage(random, file);
    const auto in = std::make_unique<uint8_t[]>(file.size());
    std::copy(file.begin(), file.end(), in.get());
    const size_t room = inflater::kWindow + CTD_INFLATE_ROOM + below(random, 200000);
    const auto narrow = std::make_unique<uint8_t[]>(room);
    const auto wide = std::make_unique<uint16_t[]>(room);
    inflater::Decoder decoder;
    ctd_inflate io{};
    io.at = io.unknown = inflater::kWindow;
    io.stop_bit = random() % 3 ? UINT64_MAX : below(random, 8 * file.size());
    io.stop_at = UINT64_MAX;
    io.wide = random() % 2;
    io.history = io.wide ? inflater::kWindow : 0;
    // The decoder gets a growing part of the input, as if a file were being read.
    for (size_t size = 0, steps = 0; steps < 50; ++steps) {
      size = std::min(file.size(), size + 1 + below(random, file.size()));
      io.last = size == file.size();
      const int32_t code = code_of([&] {
        const inflater::Input input{{in.get(), size}, io.last != 0};
        if (io.wide) {
          decoder.run(input, wide.get(), room, io);
        } else {
          decoder.run(input, narrow.get(), room, io);
        }
      });
      ASSERT_TRUE(code == 0 || code == CTD_CORRUPT || code == CTD_TRUNCATED) << code;
      ASSERT_LE(io.at, room);
      if (code != 0 || io.stopped != CTD_INFLATE_MORE) break;
    }
    inflater::find({in.get(), file.size()}, below(random, 8 * file.size()), 8 * file.size());
  }
  std::printf("%zu streams\n", runs);
}

}  // namespace
}  // namespace decode
