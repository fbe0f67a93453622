#include "decode/huffman.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "decode/samples_test.h"

namespace decode {
namespace {

using Block = std::array<JCOEF, DCTSIZE2>;

// Header is a file that libjpeg has opened and read up to the first byte of its scan. If libjpeg
// finds damage here, it ends the process.
class Header {
 public:
  explicit Header(const File& file) {
    info.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, file.data(), file.size());
    jpeg_read_header(&info, TRUE);
  }
  ~Header() { jpeg_destroy_decompress(&info); }

  Bytes rest() const { return {info.src->next_input_byte, info.src->bytes_in_buffer}; }
  int mcus_across() const { return across(info.image_width, info.max_h_samp_factor * DCTSIZE); }
  int mcus_down() const { return across(info.image_height, info.max_v_samp_factor * DCTSIZE); }

  jpeg_decompress_struct info{};

 private:
  static int across(unsigned pixels, int each) { return (static_cast<int>(pixels) + each - 1) / each; }
  jpeg_error_mgr errors_{};
};

// libjpegs returns the coefficients that libjpeg decodes, in the order of the file.
std::vector<Block> libjpegs(const File& file) {
  Header header(file);
  jvirt_barray_ptr* const arrays = jpeg_read_coefficients(&header.info);
  std::vector<Block> out;
  for (int my = 0; my < header.mcus_down(); ++my) {
    for (int mx = 0; mx < header.mcus_across(); ++mx) {
      for (int c = 0; c < header.info.num_components; ++c) {
        const jpeg_component_info& component = header.info.comp_info[c];
        const bool alone = header.info.num_components == 1;
        const int down = alone ? 1 : component.v_samp_factor, across = alone ? 1 : component.h_samp_factor;
        const auto common = reinterpret_cast<j_common_ptr>(&header.info);
        for (int y = 0; y < down; ++y) {
          const auto rows = header.info.mem->access_virt_barray(common, arrays[c], my * down + y, 1, FALSE);
          for (int x = 0; x < across; ++x) {
            Block& block = out.emplace_back();
            std::copy_n(rows[0][mx * across + x], DCTSIZE2, block.begin());
          }
        }
      }
    }
  }
  return out;
}

// Returns the coefficients that Huffman decodes. `result` gets the last result.
std::vector<Block> ours(const File& file, Huffman& huffman, Huffman::Result& result, bool keep = true) {
  Header header(file);
  const Bytes data = header.rest();
  jpeg_start_decompress(&header.info);
  std::vector<Block> out;
  result = huffman.begin(header.info, data);
  for (int i = 0; i < header.mcus_across() * header.mcus_down() && result == Huffman::Result::kOk; ++i) {
    Block blocks[D_MAX_BLOCKS_IN_MCU] = {};
    JBLOCKROW rows[D_MAX_BLOCKS_IN_MCU];
    for (int b = 0; b < D_MAX_BLOCKS_IN_MCU; ++b) rows[b] = reinterpret_cast<JBLOCKROW>(blocks[b].data());
    result = huffman.decode(keep ? rows : nullptr);
    for (int b = 0; keep && b < header.info.blocks_in_MCU; ++b) out.push_back(blocks[b]);
  }
  return out;
}

const JpegKind kKinds[] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {2, 2, false, 1}, {1, 1, false, 7}};

TEST(Huffman, CoefficientsAreLibjpegs) {
  Huffman fast, portable(true);
  for (const int channels : {1, 3, 4}) {
    for (JpegKind kind : kKinds) {
      if (channels != 3 && kind.across * kind.down != 1) continue;
      for (const int quality : {10, 50, 90, 100}) {
        for (const bool optimize : {false, true}) {
          kind.quality = quality;
          kind.optimize = optimize;
          const File file = jpeg_of(scene(67, 91, channels), kind);
          const std::vector<Block> want = libjpegs(file);
          for (Huffman* huffman : {&fast, &portable}) {
            Huffman::Result result{};
            EXPECT_EQ(ours(file, *huffman, result), want) << channels << kind.across << kind.down << " " << quality;
            EXPECT_EQ(result, Huffman::Result::kOk);
            ours(file, *huffman, result, false);
            EXPECT_EQ(result, Huffman::Result::kOk) << "dropped";
          }
        }
      }
    }
  }
}

// One Huffman reads files with different tables, one after another. It must use the tables of
// each file, and none of the file before.
TEST(Huffman, TablesOfEachFile) {
  Huffman huffman;
  for (int i = 0; i < 6; ++i) {
    JpegKind kind{2, 2};
    kind.optimize = i % 2;
    kind.quality = 60 + 7 * i;
    const File file = jpeg_of(scene(40 + i, 50, 3), kind);
    Huffman::Result result{};
    EXPECT_EQ(ours(file, huffman, result), libjpegs(file)) << i;
  }
}

TEST(Huffman, CutAnywhere) {
  Huffman huffman;
  const File file = jpeg_of(scene(40, 50, 3), {1, 1, false, 5});
  Header header(file);
  const Bytes data = header.rest();
  jpeg_start_decompress(&header.info);
  for (size_t size = 0; size < data.size(); ++size) {
    EXPECT_EQ(huffman.begin(header.info, data.first(size)), Huffman::Result::kTruncated) << size;
  }
  EXPECT_EQ(huffman.begin(header.info, data), Huffman::Result::kOk);
}

TEST(Huffman, BytesAfterTheImageAndFillBytes) {
  Huffman huffman;
  Huffman::Result result{};
  File file = jpeg_of(scene(40, 50, 3));
  const std::vector<Block> want = libjpegs(file);
  file.insert(file.end() - 2, {0xFF, 0xFF});
  file.insert(file.end(), {1, 2, 3, 0xFF, 0xDA});
  EXPECT_EQ(ours(file, huffman, result), want);
  EXPECT_EQ(result, Huffman::Result::kOk);
}

TEST(Huffman, DataThatEndEarly) {
  for (const int restart : {0, 1, 4}) {
    File file = jpeg_of(scene(64, 64, 3), {1, 1, false, restart});
    file.resize(file.size() * 9 / 10);
    while (file.back() == 0xFF) file.pop_back();
    file.insert(file.end(), {0xFF, 0xD9});
    Huffman huffman;
    Huffman::Result result{};
    const size_t blocks = ours(file, huffman, result).size();
    EXPECT_EQ(result, Huffman::Result::kShort) << restart;
    EXPECT_GT(blocks, 64u) << restart;
  }
}

// Files with markers that do not belong in a scan are left to libjpeg: the result is kUnsuited.
TEST(Huffman, OtherMarkers) {
  const File plain = jpeg_of(scene(64, 64, 3), {1, 1});
  for (const uint8_t marker : {0xD0, 0xD7, 0xC4, 0xDA, 0xDC, 0xFE, 0x01}) {
    File file = plain;
    file.insert(file.end() - 2, {0xFF, marker, 0, 2});
    Huffman huffman;
    Huffman::Result result{};
    ours(file, huffman, result);
    EXPECT_EQ(result, Huffman::Result::kUnsuited) << int{marker};
  }
}

// The memory taken must be bounded by the size of the image. A scan that is too long for the
// image must be left to libjpeg. A scan with several restart markers that no MCU follows must be
// left to libjpeg too.
TEST(Huffman, MoreThanTheImageHas) {
  constexpr size_t kMcus = 72, kBlocks = 3 * kMcus;
  const JpegKind kind{1, 1, false, 4};
  const File plain = jpeg_of(scene(64, 72, 3), kind);
  const size_t scan = Header(plain).rest().size();
  const auto begin = [](const File& file) {
    Huffman huffman;
    Huffman::Result result{};
    ours(file, huffman, result);
    EXPECT_LE(huffman.held().sum(), Huffman::need(Header(file).rest().size(), kBlocks * sizeof(JBLOCK), kMcus, 4).sum());
    EXPECT_LE(huffman.held().sum(), Huffman::need(SIZE_MAX, kBlocks * sizeof(JBLOCK), kMcus, 4).sum());
    return result;
  };
  File file = plain;
  file.insert(file.end() - 2, kBlocks * sizeof(JBLOCK) - scan, 0);
  EXPECT_EQ(begin(file), Huffman::Result::kOk);
  file.insert(file.end() - 2, scan, 0);
  EXPECT_EQ(begin(file), Huffman::Result::kUnsuited);
  file = plain;
  file.insert(file.end() - 2, {0xFF, 0xD1});
  EXPECT_EQ(begin(file), Huffman::Result::kOk);
  file.insert(file.end() - 2, {0xFF, 0xD2});
  EXPECT_EQ(begin(file), Huffman::Result::kUnsuited);
}

// Random data must give coefficients or an error. A sanitizer must find nothing.
TEST(Huffman, AnyBits) {
  const File file = jpeg_of(scene(64, 64, 3));
  Header header(file);
  jpeg_start_decompress(&header.info);
  Huffman huffman;
  uint32_t random = 1;
  int bad = 0, overfull = 0, few = 0;
  for (int i = 0; i < 2000; ++i) {
    File data;
    for (int j = 0; j < 10 + i; ++j) {
      data.push_back(static_cast<uint8_t>((random = random * 1664525 + 1013904223) >> 24));
      if (data.back() == 0xFF) data.push_back(0);
    }
    data.insert(data.end(), {0xFF, 0xD9});
    ASSERT_EQ(huffman.begin(header.info, data), Huffman::Result::kOk);
    Huffman::Result result{};
    for (int mcu = 0; mcu < 16 && result == Huffman::Result::kOk; ++mcu) {
      Block blocks[D_MAX_BLOCKS_IN_MCU] = {};
      JBLOCKROW rows[D_MAX_BLOCKS_IN_MCU];
      for (int b = 0; b < D_MAX_BLOCKS_IN_MCU; ++b) rows[b] = reinterpret_cast<JBLOCKROW>(blocks[b].data());
      result = huffman.decode(i % 2 ? rows : nullptr);
    }
    overfull += result == Huffman::Result::kOverfull;
    bad += result == Huffman::Result::kBadCode;
    few += result == Huffman::Result::kShort;
  }
  EXPECT_GT(bad, 10);
  EXPECT_GT(overfull, 100);
  EXPECT_GT(few, 10);
}

}  // namespace
}  // namespace decode
