#include "decode/jpeg.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "decode/frame.h"
#include "decode/huffman.h"
#include "decode/libjpeg.h"
#include "decode/status.h"

namespace decode {
namespace {

constexpr int kComponents = 4;  // the largest number of components, that of CMYK

// Returns the bytes of all coefficients. Each component has whole MCUs.
size_t coefficients_of(const jpeg_decompress_struct& info) {
  size_t blocks = 0;
  for (int i = 0; i < info.num_components; ++i) {
    const jpeg_component_info& c = info.comp_info[i];
    blocks += up(c.width_in_blocks, c.h_samp_factor) * up(c.height_in_blocks, c.v_samp_factor);
  }
  return blocks * sizeof(JBLOCK);
}

// Returns the most memory that libjpeg takes for the rows of a component. For a component that is
// shrunk less than others, libjpeg holds up to 16 rows of blocks. Otherwise it holds three MCUs
// for upsampling, which looks at the rows above and below. In addition it holds the rows that it
// upsamples at a time.
size_t rows_of(size_t width, size_t blocks, int v_samp_factor, int max_v_samp_factor) {
  return (blocks * DCTSIZE + kAligned) * 2 * DCTSIZE * v_samp_factor + (width + MAX_SAMP_FACTOR + kAligned) * max_v_samp_factor;
}

// Returns the size of the block from which libjpeg's memory is cut.
size_t block_of(Jpeg::Codec& codec) {
  jpeg_decompress_struct& info = codec.info;
  size_t size = kAligned + (jpeg_has_multiple_scans(&info) ? coefficients_of(info) : 0);
  for (int i = 0; i < info.num_components; ++i) {
    const jpeg_component_info& c = info.comp_info[i];
    size += rows_of(info.image_width, c.width_in_blocks, c.v_samp_factor, info.max_v_samp_factor);
  }
  return size;
}

int32_t color_space_of(const jpeg_decompress_struct& info) {
  switch (info.jpeg_color_space) {
    case JCS_GRAYSCALE: return CTD_GREY;
    case JCS_RGB: return CTD_RGB;
    case JCS_YCbCr: return CTD_YCC;
    case JCS_CMYK: return CTD_CMYK;
    case JCS_YCCK: return CTD_YCCK;
    default:
      throw Error(CTD_UNSUPPORTED, "JPEG with " + std::to_string(info.num_components) + " colour components");
  }
}

// JPEG files in CMYK hold the inks inverted, with or without Adobe's marker. Products are rounded
// as Pillow rounds them.
void rgb_from_inverted_cmyk(const uint8_t* in, uint8_t* out, int width) {
  for (; width-- > 0; in += 4, out += 3) {
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - in[c]) * in[3] + 128;
      out[c] = static_cast<uint8_t>(in[3] - ((product + (product >> 8)) >> 8));
    }
  }
}

// The columns that libjpeg is asked for. Its upsampling looks at the neighbours of a pixel, and
// treats the edge of the part as the edge of the image. So one more MCU is read on each side.
// Every pixel of the box then equals that pixel in the whole image.
struct Part {
  JDIMENSION left, width;  // libjpeg moves `left` to a multiple of the MCU
};

Part part_of(const jpeg_decompress_struct& info, const Box& box, int shrink) {
  const int margin = info.max_h_samp_factor * DCTSIZE / shrink;
  const int left = std::max(box.left - margin, 0);
  const int right = std::min(box.left + box.width + margin, static_cast<int>(info.output_width));
  return {static_cast<JDIMENSION>(left), static_cast<JDIMENSION>(right - left)};
}

}  // namespace

Jpeg::Jpeg(Bytes file) : codec_(std::make_unique<Codec>(file)) {
  Codec& codec = *codec_;
  attempt(codec, [](j_decompress_ptr info) {
    jpeg_create_decompress(info);
    info->src = &codec_of(info).source;
    info->progress = &codec_of(info).progress;
    jpeg_read_header(info, TRUE);
  });
  info_.format = CTD_JPEG;
  info_.width = static_cast<int32_t>(codec.info.image_width);
  info_.height = static_cast<int32_t>(codec.info.image_height);
  info_.channels = codec.info.num_components;
  info_.bits = codec.info.data_precision;
  info_.color_space = color_space_of(codec.info);
  info_.progressive = codec.info.progressive_mode ? 1 : 0;
  info_.orientation = orientation_of_jpeg(file);
}

Jpeg::~Jpeg() = default;

// take_over reports whether `huffman` decodes the file's scan. See Note [Taking libjpeg's place].
bool Jpeg::take_over(Huffman& huffman) {
  Codec& codec = *codec_;
  if (jpeg_has_multiple_scans(&codec.info)) return false;
  switch (huffman.begin(codec.info, {codec.source.next_input_byte, codec.source.bytes_in_buffer})) {
    case Huffman::Result::kOk:
      codec.take(huffman);
      return true;
    case Huffman::Result::kTruncated:
      throw Error(CTD_TRUNCATED, "truncated JPEG");
    default:
      return false;
  }
}

Need Jpeg::need(const Box& whole, int shrink) const {
  jpeg_decompress_struct& info = codec_->info;
  const Box box = shrunk(whole, shrink);
  // part_of adds two MCUs to the width. libjpeg moves the left edge of the part to the left, by
  // less than one MCU. So the margins are at most three MCUs.
  const int margins = 3 * info.max_h_samp_factor * DCTSIZE / shrink;
  const size_t width = std::min((info_.width + shrink - 1) / shrink, box.width + margins);
  Need need;
  if (!jpeg_has_multiple_scans(&info)) {
    const jpeg_component_info& c = info.comp_info[0];
    const size_t across = up(info_.width, size_t{DCTSIZE} * info.max_h_samp_factor) / (DCTSIZE * info.max_h_samp_factor);
    const size_t mcus = info.num_components == 1 ? size_t{c.width_in_blocks} * c.height_in_blocks : across * info.total_iMCU_rows;
    need = Huffman::need(info.src->bytes_in_buffer, coefficients_of(info), mcus, info.restart_interval);
  }
  need.pixels = width * (info_.color_space == CTD_GREY ? 1 : 3) * box.height + width * kComponents;
  need.codec = block_of(*codec_);
  return need;
}

Need Jpeg::most(int64_t pixels) {
  constexpr int64_t kMcu = DCTSIZE * MAX_SAMP_FACTOR;
  static_assert(kLongestJpegSide >= JPEG_MAX_DIMENSION);
  const int64_t area = std::min(pixels, kLongestJpegSide * kLongestJpegSide);
  const int64_t width = std::min(area, kLongestJpegSide), sides = std::min(area + 1, 2 * kLongestJpegSide);
  const size_t padded = area + kMcu * sides + kMcu * kMcu;  // the area, if both sides grow to whole MCUs
  Need need = Huffman::need(SIZE_MAX, kComponents * padded * sizeof(JCOEF), padded / DCTSIZE2, 1);
  need.pixels = 3 * area + kComponents * width;
  // For a file with several scans, libjpeg holds the coefficients. They take as much memory as the
  // data that Huffman holds for one scan.
  need.codec = kComponents * rows_of(width, (width + kMcu) / DCTSIZE, MAX_SAMP_FACTOR, MAX_SAMP_FACTOR) + kAligned;
  return need;
}

// Starts libjpeg, with memory of the scratch.
void Jpeg::start(int shrink, Scratch& scratch) {
  Codec& codec = *codec_;
  codec.info.scale_num = 1;
  codec.info.scale_denom = static_cast<unsigned>(shrink);
  const bool ink = info_.color_space == CTD_CMYK || info_.color_space == CTD_YCCK;
  codec.info.out_color_space = info_.color_space == CTD_GREY ? JCS_GRAYSCALE : ink ? JCS_CMYK : JCS_RGB;
  const size_t block = block_of(codec);
  codec.start(jpeg_has_multiple_scans(&codec.info) ? scratch.codec.zeros(block) : scratch.codec.bytes(block), block);
}

int32_t Jpeg::frame(FrameFile& to) const {
  return write_frame(codec_->info, {codec_->source.next_input_byte, codec_->source.bytes_in_buffer}, to);
}

namespace {

// Reports whether no coefficient with its quantiser is larger than twice what pixels of 8 bits can
// give. `coarsest` is the largest of the quantisers.
bool fits(const JBLOCK& block, const UINT16* quantisers, int coarsest) {
  constexpr int kLargest = 1 << 14;
  JCOEF low = 0, high = 0;
  for (int k = 0; k < DCTSIZE2; ++k) low = std::min(low, block[k]), high = std::max(high, block[k]);
  if (std::max<int>(high, -low) * coarsest <= kLargest) return true;
  for (int k = 0; k < DCTSIZE2; ++k) {
    if (std::abs(block[k] * quantisers[k]) > kLargest) return false;
  }
  return true;
}

}  // namespace

void Jpeg::check(Scratch& scratch) {
  start(1, scratch);
  if (!take_over(scratch.huffman)) throw Error(CTD_UNSUPPORTED, "JPEG without a frame");
  attempt(*codec_, [](j_decompress_ptr info) {
    JBLOCK blocks[D_MAX_BLOCKS_IN_MCU];
    JBLOCKROW rows[D_MAX_BLOCKS_IN_MCU];
    const UINT16* quantisers[D_MAX_BLOCKS_IN_MCU];
    int coarsest[D_MAX_BLOCKS_IN_MCU];
    for (int i = 0; i < info->blocks_in_MCU; ++i) {
      rows[i] = &blocks[i];
      quantisers[i] = info->quant_tbl_ptrs[info->cur_comp_info[info->MCU_membership[i]]->quant_tbl_no]->quantval;
      coarsest[i] = *std::max_element(quantisers[i], quantisers[i] + DCTSIZE2);
    }
    const size_t mcus = size_t{info->MCUs_per_row} * info->MCU_rows_in_scan;
    for (size_t mcu = 1; mcu <= mcus; ++mcu) {
      std::memset(blocks, 0, sizeof(JBLOCK) * info->blocks_in_MCU);
      on_mcu(info, rows);
      for (int i = 0; i < info->blocks_in_MCU; ++i) {
        if (!fits(blocks[i], quantisers[i], coarsest[i])) leave(codec_of(info), CTD_CORRUPT, "corrupt JPEG: a coefficient that is too large");
      }
      const bool ends = mcu == mcus || (info->restart_interval != 0 && mcu % info->restart_interval == 0);
      if (ends && !codec_of(info).huffman->at_end()) leave(codec_of(info), CTD_CORRUPT, "corrupt JPEG: bytes after the last code");
    }
  });
}

View Jpeg::read(const Box& whole, int shrink, Scratch& scratch) {
  Codec& codec = *codec_;
  const Box box = shrunk(whole, shrink);
  start(shrink, scratch);
  const bool ink = codec.info.out_color_space == JCS_CMYK;
  Part part{};
  attempt(codec, [&](j_decompress_ptr info) {
    part = part_of(*info, box, shrink);
    if (part.width < info->output_width) jpeg_crop_scanline(info, &part.left, &part.width);
  });
  // If the file has several scans, libjpeg has read it to its end by now.
  const bool seen = take_over(scratch.huffman) || jpeg_has_multiple_scans(&codec.info);
  const int channels = info_.color_space == CTD_GREY ? 1 : 3;
  const size_t stride = static_cast<size_t>(part.width) * channels;
  const size_t line = static_cast<size_t>(part.width) * codec.info.output_components;
  // `spare` is room for one row: a row that is not wanted, or a row whose pixels are not RGB yet.
  uint8_t* const spare = scratch.pixels.bytes(stride * box.height + line);
  uint8_t* const pixels = spare + line;
  attempt(codec, [&](j_decompress_ptr info) {
    const auto top = static_cast<JDIMENSION>(box.top), bottom = static_cast<JDIMENSION>(box.top + box.height);
    const auto read = [info](uint8_t* to) { jpeg_read_scanlines(info, &to, 1); };
    if (top > 0) jpeg_skip_scanlines(info, top);
    while (info->output_scanline < bottom) {
      uint8_t* const to = pixels + (info->output_scanline - top) * stride;
      read(ink ? spare : to);
      if (ink) rgb_from_inverted_cmyk(spare, to, static_cast<int>(part.width));
    }
    if (seen) return;
    // The rest of the file is read only to find errors. If the last row were skipped too, libjpeg
    // would not look at the data. So the last row is read.
    if (info->output_scanline + 1 < info->output_height) {
      jpeg_skip_scanlines(info, info->output_height - 1 - info->output_scanline);
    }
    while (info->output_scanline < info->output_height) read(spare);
    jpeg_finish_decompress(info);
  });
  const int left = box.left - static_cast<int>(part.left);
  return {pixels + static_cast<size_t>(left) * channels, box.height, box.width, channels, stride};
}

}  // namespace decode
