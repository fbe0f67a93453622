// Compares the memory that is counted in advance with the memory that is resident afterwards.
#include "decode/need.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <zlib.h>

#include "decode/samples_test.h"
#include "decode/transform.h"

namespace decode {
namespace {

// The bytes that a thread of these tests may take without asking. The number is small, so that
// even small images need more. Small images are made quickly.
constexpr size_t kLittle = 4 << 20;

ctd_options options_of(int transform, int height, int width) {
  ctd_options o{};
  o.transform = transform;
  o.height = height;
  o.width = width;
  o.resize = std::min(height, width);
  return o;
}

constexpr uint8_t kStartOfFrame = 0xC0;

// Returns the file with the size height x width in its header. The file then has too few pixels.
File resized(File file, int height, int width) {
  const auto put = [&](size_t at, uint32_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) file[at + i] = static_cast<uint8_t>(v >> 8 * (bytes - 1 - i));
  };
  if (file[0] == 0x89) {
    put(16, width, 4);
    put(20, height, 4);
    put(29, static_cast<uint32_t>(crc32(0, &file[12], 17)), 4);
    return file;
  }
  for (size_t at = 2;; at += 2 + file[at + 2] * 256 + file[at + 3]) {
    if (file[at + 1] < kStartOfFrame || file[at + 1] > kStartOfFrame + 2) continue;
    put(at + 5, height, 2);
    put(at + 7, width, 2);
    return file;
  }
}

std::vector<File> every_kind(const std::vector<Pixels>& images) {
  std::vector<File> files;
  for (const Pixels& image : images) {
    for (const auto& kind : {JpegKind{1, 1}, JpegKind{2, 2}, JpegKind{4, 1}, JpegKind{1, 4}, JpegKind{2, 2, false, 1}}) {
      if (image.channels == 2 || (image.channels != 3 && kind.across * kind.down > 1)) continue;
      for (const bool progressive : {false, true}) {
        JpegKind k = kind;
        k.progressive = progressive;
        files.push_back(jpeg_of(image, k));
      }
    }
    for (const bool interlaced : {false, true}) files.push_back(png_of(image, interlaced));
  }
  return files;
}

// No image, of any size, kind and transform, needs more than the bound that is known in advance.
TEST(Need, OfNoImageIsAboveTheMost) {
  const std::vector<File> files = every_kind({scene(8, 9, 1), scene(8, 9, 2), scene(8, 9, 3), scene(8, 9, 4)});
  std::mt19937 random(1);
  const auto up_to = [&](double most) {
    return static_cast<int>(std::exp(std::log(most) * static_cast<double>(random()) / 4294967296.0));
  };
  int waited = 0;
  double nearest = 0;
  for (int i = 0; i < 3000; ++i) {
    const File& file = files[random() % files.size()];
    const bool png = file[0] == 0x89;
    const int most = png ? 1'000'000 : 65500, width = up_to(most), height = up_to(std::min(most, 200'000'000 / width));
    ctd_options o = options_of(CTD_RESIZE + random() % 4, up_to(65535), up_to(65535));
    // The test allocates and writes the result, so very large results are skipped.
    if (static_cast<int64_t>(o.height) * o.width > 10'000'000) continue;
    o.channels = random() % 2 ? 3 : 1;
    o.no_shrink = random() % 2;
    o.padding = o.transform == CTD_RANDOM_CROP ? 65535 : 0;
    o.max_pixels = int64_t{width} * height;
    o = checked(o);
    const File changed = resized(png ? file : oriented(file, 1 + random() % 8), height, width);
    Memory memory(SIZE_MAX);
    File to(static_cast<size_t>(o.height) * o.width * o.channels);
    ctd_result result{};
    Transform transform(o, memory, kLittle);
    code_of([&] { transform.run({changed.data(), changed.size(), random(), nullptr, 0, 0, 0, 0}, to.data(), result); });
    const size_t all = Transform::most(o);
    ASSERT_LE(memory.peak(), all) << width << "x" << height << " file " << (&file - files.data()) << " transform " << o.transform
                                  << " to " << o.width << "x" << o.height << "x" << o.channels;
    ASSERT_LE(transform.held().sum(), kLittle);
    waited += memory.peak() > 0;
    nearest = std::max(nearest, static_cast<double>(memory.peak()) / static_cast<double>(all));
  }
  std::printf("%d images needed a share, up to %.2f of the most\n", waited, nearest);
  EXPECT_GT(waited, 400);
  EXPECT_GT(nearest, 0.8);
}

size_t status_of(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// Resident measures the memory that has become resident since the Resident was made.
class Resident {
 public:
  Resident() {
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << 5;
    before_ = status_of("VmRSS");
  }
  size_t most() const { return status_of("VmHWM") - before_; }
  size_t now() const { return status_of("VmRSS") - std::min(before_, status_of("VmRSS")); }

 private:
  size_t before_;
};

// While an image is decoded, no more memory may become resident than was counted for the image.
TEST(Need, NoImageTakesMore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is resident too";
#endif
  struct Case {
    std::string name;
    File file;
    ctd_options options;
  };
  const Pixels rgb = scene(1200, 1501, 3), grey{3600, 1501, 1, rgb.bytes};
  const Pixels ink{900, 1501, 4, rgb.bytes};
  const ctd_options small = options_of(CTD_RESIZE, 300, 300), large = options_of(CTD_RESIZE, 1500, 1500);
  const ctd_options crop = options_of(CTD_RANDOM_CROP, 9, 9);
  ctd_options lum = small;
  lum.channels = 1;
  std::vector<Case> cases = {
      {"progressive", jpeg_of(rgb, {1, 1, true}), small},
      {"progressive 4:2:0, sideways", oriented(jpeg_of(rgb, {2, 2, true}), 6), small},
      {"progressive CMYK", jpeg_of(ink, {1, 1, true}), crop},
      {"baseline", jpeg_of(rgb), small},
      {"baseline, restart markers, sideways, to grey", oriented(jpeg_of(rgb, {2, 2, false, 1}), 8), lum},
      {"fine, enlarged", jpeg_of(rgb, {1, 1, false, 0, 100}), large},
      {"grey to RGB", jpeg_of(grey, {1, 1}), large},
      {"wide", jpeg_of(scene(24, 60000, 3), {1, 4}), crop},
      {"png", png_of(rgb), small},
      {"wide png", png_of(scene(3, 400000, 4)), options_of(CTD_RESIZE, 3, 3)},
      {"interlaced png to grey", png_of(ink, true), lum},
  };
  for (Case& c : cases) {
    c.options.no_shrink = 1;
    const ctd_options o = checked(c.options);
    Memory memory(SIZE_MAX);
    Transform transform(o, memory, kLittle);
    File to(static_cast<size_t>(o.height) * o.width * o.channels);
    std::memset(to.data(), 1, to.size());
    const Resident resident;
    ctd_result result{};
    transform.run({c.file.data(), c.file.size(), 7, nullptr, 0, 0, 0, 0}, to.data(), result);
    const size_t took = resident.most(), after = resident.now();
    std::printf("%-46s counted %5.1f MB, took %5.1f MB, kept %4.1f MB\n", c.name.c_str(), memory.peak() / 1e6, took / 1e6,
                after / 1e6);
    EXPECT_LE(took, memory.peak() + (1 << 20)) << c.name;
    EXPECT_GE(took, memory.peak() * 6 / 10) << c.name << ": far more is counted";
    EXPECT_LE(after, transform.held().sum() + (1 << 20)) << c.name;
    EXPECT_LE(transform.held().sum(), kLittle) << c.name;
  }
}

// Three images that need different memory are decoded in turn. Memory that was kept for one image
// is freed if the next image would need too much in addition.
TEST(Need, WhatIsKeptCounts) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is resident too";
#endif
  const File files[] = {png_of(scene(1000, 1300, 3)), jpeg_of(scene(700, 900, 3), {1, 1, true}),
                        jpeg_of(scene(1300, 1000, 3), {1, 1, false, 0, 100})};
  const ctd_options o = checked(options_of(CTD_RESIZE, 9, 9));
  Memory memory(SIZE_MAX);
  Transform transform(o, memory, kLittle);
  const Resident resident;
  for (int i = 0; i < 6; ++i) {
    const File& file = files[i % 3];
    uint8_t to[9 * 9 * 3];
    ctd_result result{};
    transform.run({file.data(), file.size(), 7, nullptr, 0, 0, 0, 0}, to, result);
    EXPECT_LE(resident.most(), kLittle + (1 << 20)) << i;
    EXPECT_GE(transform.held().sum(), kLittle / 2) << i;
  }
  EXPECT_EQ(memory.peak(), 0u);
}

}  // namespace
}  // namespace decode
