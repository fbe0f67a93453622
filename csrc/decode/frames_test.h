// Makes frames for the tests of devices, and the results that are wanted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "decode/jpeg.h"
#include "decode/random.h"
#include "decode/resize.h"
#include "decode/samples_test.h"

namespace decode {

// Calls f with the header of a JPEG.
template <typename F>
void read_header(const File& file, F&& f) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), file.size());
  jpeg_read_header(&info, TRUE);
  f(info);
  jpeg_destroy_decompress(&info);
}

// Returns the sampling of a JPEG that devices decode, or 0.
inline int sampling_of(const jpeg_decompress_struct& info) {
  if (info.jpeg_color_space != JCS_YCbCr || info.progressive_mode || info.comps_in_scan != 3) return 0;
  for (int c = 1; c < 3; ++c) {
    if (info.comp_info[c].h_samp_factor != 1 || info.comp_info[c].v_samp_factor != 1) return 0;
  }
  const int across = info.comp_info[0].h_samp_factor, down = info.comp_info[0].v_samp_factor;
  return across == 1 && down == 1 ? CTD_444 : across == 2 && down == 1 ? CTD_422 : across == 2 && down == 2 ? CTD_420 : 0;
}

// Returns the photographs that devices decode: those of the repository, and those of the folder
// CGOTORCH_JPEGS if that is set. Returns none of the repository's where its files are not there.
inline std::vector<File> photographs() {
  std::vector<std::filesystem::path> folders;
  for (auto up = std::filesystem::current_path(); up.has_relative_path(); up = up.parent_path()) {
    if (auto folder = up / "imageloader/decode/testdata/good"; std::filesystem::exists(folder)) folders.push_back(folder);
  }
  if (const char* more = std::getenv("CGOTORCH_JPEGS")) folders.emplace_back(more);
  std::vector<File> out;
  for (const auto& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".jpg" && entry.path().extension() != ".JPEG") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      File file{std::istreambuf_iterator<char>(in), {}};
      read_header(file, [&](const jpeg_decompress_struct& info) {
        if (sampling_of(info) != 0) out.push_back(std::move(file));
      });
    }
  }
  return out;
}

// Returns the JPEG without the segments that a device never sees: those of applications, and
// comments.
inline File bare(const File& jpeg) {
  File out(jpeg.begin(), jpeg.begin() + 2);
  size_t at = 2;
  while (jpeg[at + 1] != 0xDA) {
    const size_t next = at + 2 + jpeg[at + 2] * 256 + jpeg[at + 3];
    const bool left_out = (jpeg[at + 1] & 0xF0) == 0xE0 || jpeg[at + 1] == 0xFE;
    if (!left_out) out.insert(out.end(), jpeg.begin() + at, jpeg.begin() + next);
    at = next;
  }
  out.insert(out.end(), jpeg.begin() + at, jpeg.end());
  return out;
}

// Returns the result as a thread of the pool makes it.
inline File wanted(const File& file, const ctd_frame& frame, int height, int width, Scratch& scratch, Resizer& resizer) {
  const View box = Jpeg(file).read({frame.box_top, frame.box_left, frame.box_height, frame.box_width}, 1, scratch);
  File out(static_cast<size_t>(height) * width * 3);
  resizer.resize(box, Region::all(box), frame.resized_height, frame.resized_width, {frame.top, frame.left, height, width}, out.data(),
                 static_cast<size_t>(width) * 3);
  return out;
}

// Returns a frame without its file: a random box, often at an edge, with a random resize. If
// height is 0, the result is a random part of the resized box, and its size is set. Otherwise the
// result has the given size.
inline ctd_frame random_frame(int of_height, int of_width, uint64_t key, int& height, int& width) {
  uint32_t draws = 0;
  const auto number = [&](int n) { return below(draw(key, draws++).first, n); };
  const auto begin_of = [&](int whole, int length) { return number(3) == 0 ? 0 : number(2) == 0 ? whole - length : number(whole - length + 1); };
  const auto length_of = [&](int whole) { return number(4) == 0 ? 1 + number(std::min(whole, 3)) : 1 + number(whole); };
  const auto resized = [&](int length, int part) {
    const int least = std::max((length + 7) / 8, part);
    return number(3) == 0 ? least : least + number(std::max(2 * length + 20 - least, 1));
  };
  ctd_frame f{};
  f.height = of_height;
  f.width = of_width;
  f.box_height = length_of(of_height);
  f.box_width = length_of(of_width);
  f.box_top = begin_of(of_height, f.box_height);
  f.box_left = begin_of(of_width, f.box_width);
  f.resized_height = resized(f.box_height, height);
  f.resized_width = resized(f.box_width, width);
  if (height == 0) {
    height = length_of(f.resized_height);
    width = length_of(f.resized_width);
  }
  f.top = begin_of(f.resized_height, height);
  f.left = begin_of(f.resized_width, width);
  return f;
}

}  // namespace decode
