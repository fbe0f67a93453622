#include "decode/random.h"

namespace decode {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

Draw draw(uint64_t key, uint32_t number) {
  const auto bits = philox({number, 0, 0, 0}, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return {uint64_t{bits[1]} << 32 | bits[0], uint64_t{bits[3]} << 32 | bits[2]};
}

double uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

int below(uint64_t bits, int n) {
  return static_cast<int>((static_cast<unsigned __int128>(bits) * static_cast<unsigned>(n)) >> 64);
}

}  // namespace decode
