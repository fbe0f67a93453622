// JPEG files, by libjpeg-turbo.
#pragma once

#include <memory>

#include "decode_reader.h"

namespace decode {

class Jpeg : public Reader {
 public:
  explicit Jpeg(Bytes file);
  ~Jpeg() override;
  View read(const Box& box, int shrink, Scratch& scratch) override;
  bool shrinks() const override { return true; }

  struct Codec;

 private:
  bool take_over(Huffman& huffman);

  std::unique_ptr<Codec> codec_;
};

}  // namespace decode
