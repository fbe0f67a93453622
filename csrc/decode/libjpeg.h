// libjpeg-turbo for one file: its errors, its source of bytes, its memory and its decoder.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>

// jpeglib.h uses size_t and FILE, so the headers with these types come first.
#include <jpeglib.h>
// jerror.h uses types of jpeglib.h, so jpeglib.h comes first.
#include <jerror.h>

#include "decode/huffman.h"
#include "decode/jpeg.h"
#include "decode/status.h"

namespace decode {

// Note [Leaving libjpeg] libjpeg's error handler must not return. The frames between it and our
// code are C, so the handler leaves by longjmp to the setjmp in attempt(). No frame between the
// two may have a destructor to run. A step that is given to attempt() therefore has plain values
// only. Objects that own memory live in the caller of attempt().
struct Jpeg::Codec {
  explicit Codec(Bytes file);
  ~Codec() { jpeg_destroy_decompress(&info); }
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  // Makes libjpeg decode the scan with `huffman` in place of its own decoder.
  void take(Huffman& huffman);
  // Starts libjpeg. It cuts its memory from the `size` bytes of `block`.
  void start(uint8_t* block, size_t size);

  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  Huffman* huffman = nullptr;  // decodes in place of libjpeg's decoder, or NULL
  uint8_t* next = nullptr;     // the part of the block for libjpeg that is still free, up to end
  uint8_t* end = nullptr;
  decltype(jpeg_memory_mgr::alloc_sarray) rows = nullptr;  // the function of libjpeg itself
  std::jmp_buf escape;
  int32_t code = 0;
  char reason[JMSG_LENGTH_MAX] = "";
};

inline Jpeg::Codec& codec_of(void* info) { return *static_cast<Jpeg::Codec*>(static_cast<j_common_ptr>(info)->client_data); }

// Leaves libjpeg. The function attempt() then throws an Error with this code and this reason.
[[noreturn]] void leave(Jpeg::Codec& codec, int32_t code, const char* reason);

// Decodes the next MCU with the codec's Huffman. Leaves libjpeg if the data are corrupt.
boolean on_mcu(j_decompress_ptr info, JBLOCKROW* blocks);

// attempt runs one step in libjpeg. It throws Error if libjpeg fails. See Note [Leaving libjpeg].
template <class Step>
void attempt(Jpeg::Codec& codec, Step step) {
  if (setjmp(codec.escape) == 0) {
    step(&codec.info);
    return;
  }
  throw Error(codec.code, codec.reason);
}

inline constexpr size_t kAligned = 64;  // twice what libjpeg's vector code needs; libjpeg aligns its own arrays in the same way

inline size_t up(size_t v, size_t unit) { return (v + unit - 1) / unit * unit; }

}  // namespace decode
