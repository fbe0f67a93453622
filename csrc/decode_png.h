// PNG files, by libpng.
#pragma once

#include <memory>

#include "decode_reader.h"

namespace decode {

class Png : public Reader {
 public:
  explicit Png(Bytes file);
  ~Png() override;
  View read(const Box& box, int shrink, Scratch& scratch) override;

  struct Codec;

 private:
  std::unique_ptr<Codec> codec_;
};

}  // namespace decode
