// The device's way from planes to pixels, run on the CPU, gives the pixels of the pool's threads.
#include "kernels/jpeg_pixels.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "decode/frames_test.h"

namespace decode {
namespace {

// Planes has the samples of the three components, each without gaps.
struct Planes {
  int height = 0, width = 0, sampling = 0;
  File samples[3];
};

// Returns the planes as libjpeg makes them before it upsamples. NVJPG's engines make the same.
Planes planes_of(const File& file) {
  Planes out;
  read_header(file, [&](jpeg_decompress_struct& info) {
    out.height = static_cast<int>(info.image_height);
    out.width = static_cast<int>(info.image_width);
    out.sampling = sampling_of(info);
    info.raw_data_out = TRUE;
    jpeg_start_decompress(&info);
    File padded[3];
    JSAMPROW rows[3][16];
    JSAMPARRAY arrays[3] = {rows[0], rows[1], rows[2]};
    while (info.output_scanline < info.output_height) {
      const size_t mcus = info.output_scanline / (info.max_v_samp_factor * DCTSIZE);
      for (int c = 0; c < 3; ++c) {
        const jpeg_component_info& of = info.comp_info[c];
        const size_t stride = of.width_in_blocks * DCTSIZE, many = of.v_samp_factor * DCTSIZE;
        padded[c].resize((mcus + 1) * many * (stride + 2 * DCTSIZE));
        for (size_t y = 0; y < many; ++y) rows[c][y] = padded[c].data() + (mcus * many + y) * stride;
      }
      jpeg_read_raw_data(&info, arrays, info.max_v_samp_factor * DCTSIZE);
    }
    for (int c = 0; c < 3; ++c) {
      const jpeg_component_info& of = info.comp_info[c];
      for (size_t y = 0; y < of.downsampled_height; ++y) {
        const uint8_t* row = padded[c].data() + y * of.width_in_blocks * DCTSIZE;
        out.samples[c].insert(out.samples[c].end(), row, row + of.downsampled_width);
      }
    }
  });
  return out;
}

// Makes the result as the kernels do, with many threads one after another.
File result_of(const Planes& planes, const ctd_frame& frame, int height, int width, int blocks, int threads) {
  using namespace ct::jpeg;
  EXPECT_TRUE(valid(frame, height, width));
  Frame f = frame_of(frame, planes.sampling, height, width);
  std::vector<uint8_t> memory(place(f, 0) + 256, 0xEE);
  place(f, reinterpret_cast<uintptr_t>(memory.data()));
  File out(static_cast<size_t>(height) * width * 3, 0xEE);
  f.to = out.data();
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(planes.samples[c].size(), static_cast<size_t>(f.planes[c].height) * f.planes[c].width);
    std::copy(planes.samples[c].begin(), planes.samples[c].end(), f.planes[c].data);
  }
  const auto each = [&](auto step) {
    for (int block = 0; block < blocks; ++block) {
      for (int thread = 0; thread < threads; ++thread) step(f, Team{block, blocks, thread, threads});
    }
  };
  each([](const Frame& g, const Team& t) { make_taps(g, t); });
  each([](const Frame& g, const Team& t) { make_pixels(g, t); });
  each([](const Frame& g, const Team& t) { make_between(g, t); });
  each([](const Frame& g, const Team& t) { make_result(g, t); });
  return out;
}

struct Compared {
  Scratch scratch;
  Resizer resizer;
  int frames = 0, down_first = 0;

  bool operator()(const File& file, const Planes& planes, ctd_frame frame, int height, int width, int blocks = 2, int threads = 5) {
    frame.data = file.data();
    frame.size = file.size();
    frame.height = planes.height;
    frame.width = planes.width;
    ++frames;
    down_first += ct::resample::down_first(frame.box_height, frame.box_width, frame.resized_height, frame.resized_width);
    const bool equal = result_of(planes, frame, height, width, blocks, threads) == wanted(file, frame, height, width, scratch, resizer);
    EXPECT_TRUE(equal) << planes.width << "x" << planes.height << ", sampling " << planes.sampling << ", box " << frame.box_width << "x"
                       << frame.box_height << " at " << frame.box_left << "," << frame.box_top << " to " << frame.resized_width << "x"
                       << frame.resized_height << ", part " << width << "x" << height << " at " << frame.left << "," << frame.top;
    return equal;
  }

  bool random(const File& file, const Planes& planes, uint64_t key) {
    int height = 0, width = 0;
    const ctd_frame frame = random_frame(planes.height, planes.width, key, height, width);
    return (*this)(file, planes, frame, height, width, 1 + below(draw(key, 1000).first, 3), 1 + below(draw(key, 1001).first, 7));
  }
};

constexpr struct Kind {
  int across, down;
} kKinds[] = {{1, 1}, {2, 1}, {2, 2}};

// All small sizes, at which the edges of the planes matter most.
TEST(JpegPixels, EqualThePool_SmallImages) {
  Compared compare;
  uint64_t key = 0;
  for (const Kind& kind : kKinds) {
    for (const int height : {1, 2, 3, 4, 5, 8, 15, 16, 17, 18, 33}) {
      for (const int width : {1, 2, 3, 4, 5, 6, 7, 15, 16, 17, 18, 31, 34}) {
        const File file = jpeg_of(scene(height, width, 3), {.across = kind.across, .down = kind.down, .quality = 70});
        const Planes planes = planes_of(file);
        ASSERT_NE(planes.sampling, 0);
        ctd_frame whole{};
        whole.box_height = whole.resized_height = height;
        whole.box_width = whole.resized_width = width;
        ASSERT_TRUE(compare(file, planes, whole, height, width));  // no weights but 1, so the colours alone
        for (int i = 0; i < 8; ++i) ASSERT_TRUE(compare.random(file, planes, ++key));
      }
    }
  }
  EXPECT_GT(compare.down_first, compare.frames / 20);
  EXPECT_LT(compare.down_first, compare.frames - compare.frames / 20);
}

TEST(JpegPixels, EqualThePool_LargerImages) {
  Compared compare;
  uint64_t key = 1 << 20;
  for (const Kind& kind : kKinds) {
    for (const auto& [height, width] : {std::pair{331, 500}, {500, 375}, {64, 801}, {801, 64}}) {
      const File file = jpeg_of(scene(height, width, 3), {.across = kind.across, .down = kind.down, .restart = 3});
      const Planes planes = planes_of(file);
      for (int i = 0; i < 25; ++i) ASSERT_TRUE(compare.random(file, planes, ++key));
    }
  }
}

// What the pool asks for: a random box to 224x224, and the middle of an image whose shorter side is
// 256. A box of eight times the result is the most.
TEST(JpegPixels, EqualThePool_Recipes) {
  Compared compare;
  for (const Kind& kind : kKinds) {
    const File file = jpeg_of(scene(375, 500, 3), {.across = kind.across, .down = kind.down});
    const Planes planes = planes_of(file);
    ctd_frame box{};
    box.box_top = 31, box.box_left = 77, box.box_height = 301, box.box_width = 290, box.resized_height = box.resized_width = 224;
    EXPECT_TRUE(compare(file, planes, box, 224, 224, 16, 256));
    box.resized_height = 38, box.resized_width = 37;
    EXPECT_TRUE(compare(file, planes, box, 38, 37, 16, 256));
    ctd_frame middle{};
    middle.box_height = 375, middle.box_width = 500, middle.resized_height = 256, middle.resized_width = 341;
    middle.top = 16, middle.left = 59;
    EXPECT_TRUE(compare(file, planes, middle, 224, 224, 16, 256));
  }
}

TEST(JpegPixels, EqualThePool_Photographs) {
  Compared compare;
  uint64_t key = 2 << 20;
  int seen[4] = {};
  const std::vector<File> files = photographs();
  if (files.empty()) GTEST_SKIP() << "the repository's photographs are not here";
  for (const File& file : files) {
    const Planes planes = planes_of(file);
    ++seen[planes.sampling];
    for (int i = 0; i < 12; ++i) EXPECT_TRUE(compare.random(file, planes, ++key)) << file.size() << " bytes";
  }
  for (const int sampling : {CTD_444, CTD_422, CTD_420}) EXPECT_GT(seen[sampling], 0) << sampling;
}

}  // namespace
}  // namespace decode
