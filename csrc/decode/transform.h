// Takes one image from the bytes of its file to its place in the batch.
#pragma once

#include <cstdint>
#include <vector>

#include "decode/crop.h"
#include "decode/memory.h"
#include "decode/raster.h"
#include "decode/reader.h"
#include "decode/resize.h"
#include "include/cgotorch_decode.h"

namespace decode {

// Note [What decoding takes]
// The header of an image tells the most memory that decoding takes. A thread takes up to kOwn
// bytes without asking, and keeps them for the next image. If an image needs more than kOwn, the
// thread waits for a share of Memory. The share covers the whole need, not only what is above
// kOwn.
//
// Before the thread gives the share back, it frees its memory down to kOwn or less. So all
// threads together never have more than kOwn each, plus what Memory allows.
constexpr size_t kOwn = 16 << 20;

// Transform decodes and transforms images one after another, on one thread. It keeps its memory
// from one image to the next.
class Transform {
 public:
  Transform(const ctd_options& checked, Memory& memory, size_t own = kOwn) : options_(checked), memory_(memory), own_(own) {}

  // run writes the height x width x channels bytes of the result to `to`. It sets all fields of
  // `result` except `error`. It waits for memory if the image needs more than kOwn. If it throws
  // Error, the bytes in `to` mean nothing.
  void run(const ctd_image& image, uint8_t* to, ctd_result& result);

  // Prepares an image for a device: writes its file to `file`, and sets all fields of `out` except
  // those of the file and `to`, and the fields of `result` as `run` does. Returns the sampling of the
  // file, or 0 if a device cannot do what `run` does for this image, or if it has more than `most`
  // pixels. Takes no more than `own` bytes. It may throw Error where `run` does.
  int32_t frame(const ctd_image& image, int64_t most, FrameFile& file, ctd_frame& out, ctd_result& result);

  // Returns an upper bound of the memory in bytes that one image takes. The bound holds for every
  // image that the options allow.
  static size_t most(const ctd_options& checked);

  Need held() const;

 private:
  // The work for one image. The options and the header of the image's file decide it.
  struct Work {
    Plan plan;
    Box box;  // the box of the plan, in the pixels as stored
    int orientation = 1, shrink = 1, channels = 3;
  };
  struct Trim;
  Work work_for(const ctd_image& image, const Reader* reader, ctd_result& result) const;
  Need need(const Work& work, const Reader* reader) const;
  Memory::Share share_for(const Need& need);
  void free();
  View turn(const View& stored, int orientation);
  View grey(const View& rgb);
  void place(const View& from, const Region& region, const Plan& plan, uint8_t* to);
  void copy(const View& from, const Plan& plan, uint8_t* to);
  void resize(const View& from, const Region& region, const Plan& plan, uint8_t* to);

  const ctd_options options_;
  Memory& memory_;
  const size_t own_;
  Resizer resizer_;
  Scratch scratch_;
  Buffer turned_, grey_, result_;
};

}  // namespace decode
