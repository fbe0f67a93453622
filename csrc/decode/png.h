// Reads PNG files, with libpng.
#pragma once

#include <cstdint>
#include <memory>

#include "decode/reader.h"

namespace decode {

class Png : public Reader {
 public:
  explicit Png(Bytes file);
  ~Png() override;
  View read(const Box& box, int shrink, Scratch& scratch) override;
  Need need(const Box& box, int shrink) const override;

  // Returns an upper bound of the need of one image of at most `pixels` pixels.
  static Need most(int64_t pixels);

  struct Codec;

 private:
  std::unique_ptr<Codec> codec_;
};

}  // namespace decode
