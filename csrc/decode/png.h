// PNG files, by libpng.
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

  // most returns a bound of the need of any image of up to so many pixels.
  static Need most(int64_t pixels);

  struct Codec;

 private:
  std::unique_ptr<Codec> codec_;
};

}  // namespace decode
