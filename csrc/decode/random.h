// Random numbers that follow from a key and a counter. There is no seed and no state, so threads
// share nothing.
#pragma once

#include <array>
#include <cstdint>

namespace decode {

// philox returns the 128 bits of Philox4x32-10 for a key and a counter. The algorithm is from
// Salmon, Moraes, Dror and Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Draw holds two independent random values of an image. An image can have many Draws, and each
// has a number. The function `draw` makes a Draw from the key of the image and this number.
struct Draw {
  uint64_t first, second;
};

Draw draw(uint64_t key, uint32_t number);

// Maps 64 random bits to a number from 0 to below 1, in steps of 2^-53.
double uniform(uint64_t bits);

// Maps 64 random bits to a number from 0 to n-1. n must be at least 1.
int below(uint64_t bits, int n);

}  // namespace decode
