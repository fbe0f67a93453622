// Tests frames, and pools with a device. The device of these tests decodes a frame by the code of
// the pool's threads, and only from what ctd_frame tells.
#include "decode/frame.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <tuple>
#include <vector>

#include "decode/jpeg.h"
#include "decode/resize.h"
#include "decode/samples_test.h"
#include "include/cgotorch_decode.h"

namespace decode {
namespace {

File whole(const FrameFile& frame) {
  File file = frame.head;
  file.insert(file.end(), frame.rest.begin(), frame.rest.end());
  return file;
}

struct Device {
  std::function<bool(const ctd_frame&)> fails = [](const ctd_frame&) { return false; };
  std::atomic<int> users{0}, calls{0}, frames{0}, inside{0}, wrong{0};
  std::atomic<uint64_t> ready{0};  // a bit for each lane
  ctd_device interface{};

  explicit Device(int lanes = 2, int most = 8) {
    interface = {this, lanes, most, 1 << 20, prepare, decode, [](void* self) { ++of(self).users; }, [](void* self) { --of(self).users; }};
  }
  static Device& of(void* self) { return *static_cast<Device*>(self); }

  static void prepare(void* self, int32_t lane) { of(self).ready |= uint64_t{1} << lane; }

  static void decode(void* self, int32_t lane, int32_t sampling, int32_t height, int32_t width, ctd_frame* frames, size_t count) {
    Device& d = of(self);
    ++d.calls;
    const int most = d.interface.most_frames;
    if (lane < 0 || lane >= d.interface.lanes || !(d.ready >> lane & 1) || count == 0 || count > static_cast<size_t>(most)) ++d.wrong;
    int64_t pixels = 0;
    for (ctd_frame* f = frames; f < frames + count; ++f) {
      pixels += int64_t{f->width} * f->height;
      if (d.fails(*f)) {
        f->failed = 1;
        continue;
      }
      ++d.frames;
      Scratch scratch;
      File file(f->head, f->head + f->head_size);
      file.insert(file.end(), f->data, f->data + f->size);
      FrameFile again;
      Jpeg jpeg({file.data(), file.size()});
      if (jpeg.info().width != f->width || jpeg.info().height != f->height || jpeg.frame(again) != sampling) ++d.wrong;
      if (whole(again) != file) ++d.wrong;  // a frame of a frame is the same file
      const View box = jpeg.read({f->box_top, f->box_left, f->box_height, f->box_width}, 1, scratch);
      Resizer().resize(box, Region::all(box), f->resized_height, f->resized_width, {f->top, f->left, height, width}, f->to, size_t{3} * width);
    }
    if (pixels > d.interface.most_pixels) ++d.wrong;
  }
};

struct Outcome {
  File pixels;
  std::vector<ctd_result> results;
  std::vector<std::string> errors;
  int on_device = 0;
};

Outcome run(ctd_options o, const std::vector<ctd_image>& images) {
  Outcome out;
  ctd_pool* pool = nullptr;
  ctd_status* failure = ctd_pool_new(&o, &pool);
  EXPECT_EQ(failure, nullptr) << ctd_status_message(failure);
  out.pixels.resize(images.size() * o.height * o.width * 3);
  out.results.resize(images.size());
  EXPECT_EQ(ctd_pool_decode(pool, images.data(), images.size(), out.pixels.data(), out.pixels.size(), out.results.data()), nullptr);
  for (ctd_result& r : out.results) {
    out.errors.push_back(std::to_string(ctd_status_code(r.error)) + ctd_status_message(r.error));
    ctd_status_free(r.error);
    r.error = nullptr;
    out.on_device += r.on_device;
  }
  ctd_pool_free(pool);
  return out;
}

ctd_options random_boxes() {
  ctd_options o{};
  o.transform = CTD_RANDOM_RESIZED_CROP;
  o.height = 24;
  o.width = 20;
  o.workers = 1;
  o.horizontal_flip = 0.5;
  return o;
}

std::vector<ctd_image> images_of(const std::vector<File>& files) {
  std::vector<ctd_image> images;
  for (const File& file : files) images.push_back({file.data(), file.size(), images.size() * 7919, nullptr, 0, 0, 0, 0});
  return images;
}

void expect_equal(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.errors, want.errors);
  EXPECT_EQ(got.pixels, want.pixels);
  for (size_t i = 0; i < want.results.size(); ++i) {
    const ctd_result &a = got.results[i], &b = want.results[i];
    EXPECT_EQ(std::tie(a.width, a.height, a.top, a.left, a.crop_height, a.crop_width, a.flip),
              std::tie(b.width, b.height, b.top, b.left, b.crop_height, b.crop_width, b.flip))
        << i;
  }
}

// Files that a device can take, and files that it cannot take.
std::vector<File> many_files() {
  std::vector<File> files;
  for (int i = 0; i < 60; ++i) {
    const Pixels p = scene(30 + i, 70 - i, 3);
    const int kind = i % 10;
    files.push_back(kind == 0   ? jpeg_of(p, {1, 1})
                    : kind == 1 ? jpeg_of(p, {2, 1})
                    : kind == 2 ? jpeg_of(p, {2, 2, false, 3})
                    : kind == 3 ? jpeg_of(p, {1, 2})
                    : kind == 4 ? jpeg_of(p, {2, 2, true})
                    : kind == 5 ? oriented(jpeg_of(p), 1 + i % 8)
                    : kind == 6 ? jpeg_of(scene(30 + i, 40, 1))
                    : kind == 7 ? png_of(p)
                    : kind == 8 ? jpeg_of(scene(30, 40 + i, 4))
                                : jpeg_of(p, {2, 2, false, 0, 75, true}));
  }
  return files;
}

TEST(Device, SameResults) {
  const std::vector<File> files = many_files();
  for (const int transform : {CTD_RANDOM_RESIZED_CROP, CTD_RESIZE_CENTER_CROP, CTD_RESIZE, CTD_RANDOM_CROP}) {
    ctd_options o = random_boxes();
    o.transform = transform;
    o.resize = 26;
    o.padding = 12;
    const std::vector<ctd_image> images = images_of(files);
    const Outcome want = run(o, images);
    Device device;
    o.device = &device.interface;
    Outcome got;
    // The threads may be faster than the lanes.
    for (int i = 0; i < 50 && got.on_device == 0; ++i) expect_equal(got = run(o, images), want);
    EXPECT_EQ(got.on_device > 0, transform != CTD_RANDOM_CROP);
    EXPECT_EQ(device.wrong, 0);
    EXPECT_EQ(device.users, 0);
  }
}

// A device that fails at some images, or at all, changes no result.
TEST(Device, Fails) {
  const std::vector<File> files = many_files();
  const std::vector<ctd_image> images = images_of(files);
  ctd_options o = random_boxes();
  const Outcome want = run(o, images);
  for (const int every : {1, 3}) {
    Device device(3, 4);
    std::atomic<int> count{0};
    device.fails = [&](const ctd_frame&) { return count++ % every == 0; };
    o.device = &device.interface;
    expect_equal(run(o, images), want);
    EXPECT_EQ(device.wrong, 0);
  }
}

// Damage is found as without a device, although the test's device does not look for it.
TEST(Device, DamagedFiles) {
  std::vector<File> files;
  uint32_t random = 4711;
  const auto next = [&](size_t n) { return (random = random * 1664525 + 1013904223) / 65536 % n; };
  for (int i = 0; i < 400; ++i) {
    File file = jpeg_of(scene(40 + i % 17, 60, 3), {1 + i % 2, 1, false, i % 5});
    for (int change = 0; change < 1 + i % 3; ++change) file[next(file.size())] = static_cast<uint8_t>(next(256));
    if (i % 7 == 0) file.resize(next(file.size()));
    files.push_back(file);
  }
  std::vector<ctd_image> images = images_of(files);
  ctd_options o = random_boxes();
  const Outcome want = run(o, images);
  Device device;
  o.device = &device.interface;
  const Outcome first = run(o, images);
  expect_equal(first, want);
  EXPECT_GT(first.on_device, 0);
  EXPECT_EQ(device.wrong, 0);
  for (size_t i = 0; i < images.size(); ++i) {
    EXPECT_TRUE(first.results[i].sound != 0 || !first.results[i].on_device);
    images[i].sound = first.results[i].sound;
  }
  expect_equal(run(o, images), want);
}

TEST(Device, ManyBatches) {
  const std::vector<File> files = many_files();
  const std::vector<ctd_image> images = images_of(files);
  ctd_options o = random_boxes();
  const Outcome want = run(o, images);
  Device device(2, 16);
  o.device = &device.interface;
  o.workers = 2;
  ctd_pool* pool = nullptr;
  ASSERT_EQ(ctd_pool_new(&o, &pool), nullptr);
  EXPECT_EQ(device.users, 1);
  EXPECT_EQ(ctd_pool_workers(pool), 2);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        File pixels(want.pixels.size());
        std::vector<ctd_result> results(images.size());
        EXPECT_EQ(ctd_pool_decode(pool, images.data(), images.size(), pixels.data(), pixels.size(), results.data()), nullptr);
        EXPECT_EQ(pixels, want.pixels);
        for (ctd_result& r : results) ctd_status_free(r.error);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  ctd_pool_free(pool);
  EXPECT_EQ(device.users, 0);
  EXPECT_EQ(device.wrong, 0);
  EXPECT_GT(device.frames, 0);
}

// The device gets images as long as few of them wait for it, and none of a batch that gives each
// thread one image.
TEST(Device, HasRoom) {
  const std::vector<File> files(256, jpeg_of(scene(100, 120, 3)));
  std::vector<ctd_image> images = images_of(files);
  ctd_options o = random_boxes();
  o.no_shrink = 1;
  Device device(1, 8);
  device.fails = [&](const ctd_frame&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return false;
  };
  o.device = &device.interface;
  const Outcome got = run(o, images);
  EXPECT_GE(got.on_device, 8);
  EXPECT_LE(got.on_device, 200) << "the threads waited for the device";
  o.workers = 4;
  images.resize(4);
  EXPECT_EQ(run(o, images).on_device, 0);
}

int32_t frame_of(const File& file, FrameFile& to) { return Jpeg({file.data(), file.size()}).frame(to); }

TEST(Frame, Forms) {
  const Pixels p = scene(40, 50, 3);
  FrameFile to;
  EXPECT_EQ(frame_of(jpeg_of(p, {1, 1}), to), CTD_444);
  EXPECT_EQ(frame_of(jpeg_of(p, {2, 1}), to), CTD_422);
  EXPECT_EQ(frame_of(jpeg_of(p, {2, 2, false, 2}), to), CTD_420);
  EXPECT_EQ(to.head[0], 0xFF);
  EXPECT_EQ(to.head[1], 0xD8);
  EXPECT_EQ(frame_of(jpeg_of(p, {1, 2}), to), 0);
  EXPECT_EQ(frame_of(jpeg_of(p, {4, 1}), to), 0);
  EXPECT_EQ(frame_of(jpeg_of(p, {2, 2, true}), to), 0);
  EXPECT_EQ(frame_of(jpeg_of(scene(40, 50, 1)), to), 0);
  EXPECT_EQ(frame_of(jpeg_of(scene(40, 4, 3)), to), 0) << "two columns of chroma";
  EXPECT_EQ(frame_of(jpeg_of(scene(40, 5, 3)), to), CTD_420);
  const File file = jpeg_of(p, {2, 2, false, 2});
  EXPECT_EQ(frame_of(file, to), CTD_420);
  const File before = whole(to);
  File cut = jpeg_of(p);
  cut.resize(cut.size() - 2);
  EXPECT_EQ(frame_of(cut, to), 0) << "no end";
  EXPECT_EQ(whole(to), before) << "something was written";
}

// Reports whether the file has a frame whose codes pass the check.
bool passes(const File& file) {
  FrameFile to;
  Scratch scratch;
  Jpeg jpeg({file.data(), file.size()});
  return jpeg.frame(to) != 0 && code_of([&] { jpeg.check(scratch); }) == 0;
}

// Returns where the segment of the n-th marker with this code begins, behind its size.
size_t segment_of(const File& file, uint8_t code, int n = 0) {
  for (size_t i = 2; i + 4 < file.size(); i += 2 + file[i + 2] * 256 + file[i + 3]) {
    if (file[i + 1] == code && n-- == 0) return i + 4;
  }
  return 0;
}

// What libjpeg decodes and no encoder writes does not get to a device.
TEST(Frame, Strict) {
  const File good = jpeg_of(scene(64, 64, 3), {2, 2, false, 4});
  EXPECT_TRUE(passes(good));
  EXPECT_TRUE(passes(jpeg_of(scene(33, 57, 3), {1, 1, false, 0, 100, true})));
  File longer = good;
  longer.insert(longer.end() - 2, 200, 0);
  EXPECT_FALSE(passes(longer)) << "bytes after the last code";
  File middle = good;
  for (size_t i = segment_of(good, 0xDA); i + 1 < middle.size(); ++i) {
    if (middle[i] == 0xFF && middle[i + 1] == 0xD0) {
      middle.insert(middle.begin() + i, 50, 0x55);
      break;
    }
  }
  EXPECT_FALSE(passes(middle)) << "bytes before a restart marker";
  File run = good;
  run[segment_of(good, 0xC4, 1) + 17] = 0x20;  // the first value of an AC table: a run of two without a value
  EXPECT_FALSE(passes(run));
  File twice = good;
  twice[segment_of(good, 0xC4) + 18] = twice[segment_of(good, 0xC4) + 17];
  EXPECT_FALSE(passes(twice)) << "a value that repeats";
  File coarse = good;
  for (int k = 1; k <= 64; ++k) coarse[segment_of(good, 0xDB) + k] = 255;
  EXPECT_FALSE(passes(coarse)) << "coefficients that are too large";
}

}  // namespace
}  // namespace decode
