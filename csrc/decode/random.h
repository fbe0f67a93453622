// Random numbers that are a function of a key and a counter: nothing to seed, nothing to share
// between threads.
#pragma once

#include <array>
#include <cstdint>

namespace decode {

// philox returns the 128 bits of Philox4x32-10 for a key and a counter (Salmon, Moraes, Dror, Shaw:
// "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Draw is the random draw with one number, of one image. Its two values are independent.
struct Draw {
  uint64_t first, second;
};

Draw draw(uint64_t key, uint32_t number);

// uniform maps 64 random bits to [0, 1), in steps of 2^-53.
double uniform(uint64_t bits);

// below maps 64 random bits to 0 .. n-1. n must be at least 1.
int below(uint64_t bits, int n);

}  // namespace decode
