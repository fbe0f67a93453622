// One image from its bytes to its place in the batch.
#pragma once

#include "decode/crop.h"
#include "decode/memory.h"
#include "decode/raster.h"
#include "decode/reader.h"
#include "decode/resize.h"
#include "include/cgotorch_decode.h"

namespace decode {

// Note [What decoding takes]
// The most memory that an image takes follows from its header. Up to kOwn a thread takes without
// asking, and keeps for the next image. Where an image needs more, all of it is a share of Memory,
// for which the thread waits. When the thread gives the share back it has kOwn again at most. So
// the threads together never have more than kOwn each and what Memory allows.
constexpr size_t kOwn = 16 << 20;

// Transform decodes and transforms one image after another, on one thread, and keeps its memory
// between them.
class Transform {
 public:
  Transform(const ctd_options& checked, Memory& memory, size_t own = kOwn) : options_(checked), memory_(memory), own_(own) {}

  // run writes height x width x channels bytes to `to` and fills in result, all but its error. It
  // waits for memory where the image needs more than kOwn. It throws Error: the bytes written by then
  // are of no use.
  void run(const ctd_image& image, uint8_t* to, ctd_result& result);

  // most returns a bound of the bytes of any image that the options allow.
  static size_t most(const ctd_options& checked);

  Need held() const;

 private:
  // The work on one image, derived from its header.
  struct Work {
    Plan plan;
    Box box;  // the plan's, in the stored image
    int orientation = 1, shrink = 1, channels = 3;
  };
  struct Trim;
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
