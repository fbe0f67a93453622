#include "decode/libjpeg.h"

#include <cstring>
#include <utility>

// Note [Taking libjpeg's place] Two thirds of the time of a photograph are spent on its
// entropy-coded data. decode::Huffman decodes these data in half the time of libjpeg's decoder.
//
// libjpeg calls its decoders through a table of functions, and decode::Huffman is put into that
// table. jpeglib.h declares the table but does not define it, so it is defined here. The table's
// first two functions are the same in every libjpeg-turbo from 1.0 to 3.1. No other libjpeg has
// jpeg_crop_scanline, so no other libjpeg can be linked. A test compares the pixels with those of
// libjpeg's own decoder.
struct jpeg_entropy_decoder {
  void (*start_pass)(j_decompress_ptr);
  // The blocks must be 0 before the call. NULL means that the blocks are not wanted.
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
};

// Note [libjpeg's memory]
// Two parts of libjpeg's memory grow with the image: its coefficients and its rows. Both are cut
// from one block, whose size follows from the header. So this memory is counted before it is
// taken, and it goes back to the system when it is freed (Note [Pages]).
//
// libjpeg asks for both parts through a table of functions that jpeglib.h declares. Only the
// functions that make and access an array of coefficients know its form. Here the array is a list
// of the addresses of its rows.
//
// Tables and other small memory come from malloc. Rows that do not fit into the block come from
// malloc too. A later libjpeg-turbo may want more rows than version 2.1. These rows are not
// counted, and the image is not refused.
struct jvirt_barray_control {
  JBLOCKARRAY rows;
};

namespace decode {
namespace {

// For each scan libjpeg goes over the whole image. A small file with many scans could therefore
// keep a thread busy for very long. Encoders write about ten scans.
constexpr int kMostScans = 100;

using Codec = Jpeg::Codec;

[[noreturn]] void leave_corrupt(j_common_ptr info) {
  Codec& codec = codec_of(info);
  char text[JMSG_LENGTH_MAX];
  info->err->format_message(info, text);
  constexpr char kPrefix[] = "Corrupt JPEG data: ";
  const size_t skip = std::strncmp(text, kPrefix, sizeof kPrefix - 1) == 0 ? sizeof kPrefix - 1 : 0;
  char reason[JMSG_LENGTH_MAX];
  std::snprintf(reason, sizeof reason, "corrupt JPEG: %.*s", JMSG_LENGTH_MAX - 20, text + skip);
  leave(codec, CTD_CORRUPT, reason);
}

void on_error(j_common_ptr info) {
  char text[JMSG_LENGTH_MAX];
  switch (info->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
      leave(codec_of(info), CTD_OUT_OF_MEMORY, "out of host memory");
    case JERR_IMAGE_TOO_BIG:  // the limit of libjpeg itself is 65500 pixels
      info->err->format_message(info, text);
      leave(codec_of(info), CTD_TOO_LARGE, text);
#if JPEG_LIB_VERSION < 70 // Ubuntu's libjpeg-turbo has the interface of version 8, without this code
    case JERR_ARITH_NOTIMPL:
#endif
    case JERR_BAD_PRECISION:
    case JERR_COMPONENT_COUNT:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
      info->err->format_message(info, text);
      leave(codec_of(info), CTD_UNSUPPORTED, text);
    default:
      leave_corrupt(info);
  }
}

// After some warnings libjpeg goes on with grey or repeated blocks. These warnings are errors
// here. The remaining warnings are about unusual files whose pixels are right, such as a file
// with bytes after its last pixel.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
      leave_corrupt(info);
    default:
      break;
  }
}

boolean on_end_of_data(j_decompress_ptr info) { leave(codec_of(info), CTD_TRUNCATED, "truncated JPEG"); }

void on_skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<size_t>(count) > info->src->bytes_in_buffer) on_end_of_data(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= count;
}

// Counts the scans in the file, for a message. The count may be wrong, because the function only
// looks for the bytes of a marker.
int scans_of(Bytes file) {
  int scans = 0;
  for (size_t i = 0; i + 1 < file.size(); ++i) scans += file[i] == 0xFF && file[i + 1] == 0xDA;
  return scans;
}

void on_progress(j_common_ptr common) {
  const auto info = reinterpret_cast<j_decompress_ptr>(common);
  if (info->input_scan_number <= kMostScans) return;
  const Bytes rest(info->src->next_input_byte, info->src->bytes_in_buffer);
  char reason[JMSG_LENGTH_MAX];
  std::snprintf(reason, sizeof reason, "%s JPEG with %d scans, above the limit of %d",
                info->progressive_mode ? "progressive" : "sequential", info->input_scan_number + scans_of(rest),
                kMostScans);
  leave(codec_of(common), CTD_TOO_LARGE, reason);
}

// Returns the next `size` bytes of the block, or NULL if there are not enough left.
uint8_t* cut(Codec& codec, size_t size) {
  size = up(size, kAligned);
  if (size > static_cast<size_t>(codec.end - codec.next)) return nullptr;
  return std::exchange(codec.next, codec.next + size);
}

JSAMPARRAY on_rows(j_common_ptr info, int pool, JDIMENSION width, JDIMENSION rows) {
  Codec& codec = codec_of(info);
  const size_t stride = up(width, kAligned);
  uint8_t* const block = cut(codec, stride * rows);
  if (!block) return codec.rows(info, pool, width, rows);
  const auto out = static_cast<JSAMPARRAY>(info->mem->alloc_small(info, pool, rows * sizeof(JSAMPROW)));
  for (JDIMENSION y = 0; y < rows; ++y) out[y] = block + y * stride;
  return out;
}

jvirt_barray_ptr on_coefficients(j_common_ptr info, int pool, boolean, JDIMENSION width, JDIMENSION rows, JDIMENSION) {
  const auto block = reinterpret_cast<JBLOCKROW>(cut(codec_of(info), size_t{width} * rows * sizeof(JBLOCK)));
  if (!block) leave(codec_of(info), CTD_INTERNAL, "JPEG with more coefficients than were counted");
  const auto out = static_cast<jvirt_barray_ptr>(info->mem->alloc_small(info, pool, sizeof(jvirt_barray_control)));
  out->rows = static_cast<JBLOCKARRAY>(info->mem->alloc_small(info, pool, rows * sizeof(JBLOCKROW)));
  for (JDIMENSION y = 0; y < rows; ++y) out->rows[y] = block + size_t{y} * width;
  return out;
}

JBLOCKARRAY on_look(j_common_ptr, jvirt_barray_ptr array, JDIMENSION first, JDIMENSION, boolean) { return array->rows + first; }

}  // namespace

void leave(Jpeg::Codec& codec, int32_t code, const char* reason) {
  codec.code = code;
  std::snprintf(codec.reason, sizeof codec.reason, "%s", reason);
  std::longjmp(codec.escape, 1);
}

boolean on_mcu(j_decompress_ptr info, JBLOCKROW* blocks) {
  Codec& codec = codec_of(info);
  switch (codec.huffman->decode(blocks)) {
    case Huffman::Result::kOk:
      return TRUE;
    case Huffman::Result::kBadCode:
      leave(codec, CTD_CORRUPT, "corrupt JPEG: bad Huffman code");
    case Huffman::Result::kOverfull:
      leave(codec, CTD_CORRUPT, "corrupt JPEG: a block with more than 64 coefficients");
    default:
      leave(codec, CTD_CORRUPT, "corrupt JPEG: premature end of data segment");
  }
}

Jpeg::Codec::Codec(Bytes file) {
  info.err = jpeg_std_error(&errors);
  errors.error_exit = on_error;
  errors.emit_message = on_message;
  info.client_data = this;
  progress.progress_monitor = on_progress;
  source.next_input_byte = file.data();
  source.bytes_in_buffer = file.size();
  source.init_source = [](j_decompress_ptr) {};
  source.fill_input_buffer = on_end_of_data;
  source.skip_input_data = on_skip;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = [](j_decompress_ptr) {};
}

void Jpeg::Codec::take(Huffman& by) {
  huffman = &by;
  info.entropy->decode_mcu = on_mcu;
}

void Jpeg::Codec::start(uint8_t* block, size_t size) {
  end = block + size;
  next = block + -reinterpret_cast<uintptr_t>(block) % kAligned;
  attempt(*this, [](j_decompress_ptr of) {
    if (of->data_precision == 8) codec_of(of).rows = std::exchange(of->mem->alloc_sarray, on_rows);
    of->mem->request_virt_barray = on_coefficients;
    of->mem->access_virt_barray = on_look;
    jpeg_start_decompress(of);
  });
}

}  // namespace decode
