// Reads JPEG files, with libjpeg-turbo.
#pragma once

#include <cstdint>
#include <memory>

#include "decode/reader.h"

namespace decode {

constexpr int64_t kLongestJpegSide = 65500;  // the longest side that libjpeg allows

class Jpeg : public Reader {
 public:
  explicit Jpeg(Bytes file);
  ~Jpeg() override;
  View read(const Box& box, int shrink, Scratch& scratch) override;
  Need need(const Box& box, int shrink) const override;
  bool shrinks() const override { return true; }
  int32_t frame(FrameFile& to) const override;
  void check(Scratch& scratch) override;

  // Returns an upper bound of the need of one image of at most `pixels` pixels.
  static Need most(int64_t pixels);

  struct Codec;

 private:
  void start(int shrink, Scratch& scratch);
  bool take_over(Huffman& huffman);

  std::unique_ptr<Codec> codec_;
};

}  // namespace decode
