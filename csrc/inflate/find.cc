#include "inflate/find.h"

#include <array>
#include <cstring>

namespace inflater {
namespace {

// kSums is a table of sums. Its index is four code lengths of three bits each. In the sum, each
// length that is not 0 counts 2^(7-length). If the sum for all lengths of a code is 128, the code
// uses every pattern of bits.
constexpr auto kSums = [] {
  std::array<uint16_t, 1 << 12> sums{};
  for (unsigned i = 0; i < sums.size(); ++i) {
    for (unsigned lengths = i; lengths > 0; lengths >>= 3) {
      if (lengths & 7) sums[i] = static_cast<uint16_t>(sums[i] + (128 >> (lengths & 7)));
    }
  }
  return sums;
}();

// word_at returns the 64 bits that begin at a bit. Up to seven of its highest bits may be
// missing.
uint64_t word_at(Bytes in, uint64_t bit) {
  uint64_t word = 0;
  const size_t byte = bit / 8;
  std::memcpy(&word, in.data() + byte, std::min<size_t>(8, in.size() - byte));
  return word >> (bit % 8);
}

// is_dynamic reports whether the bits may be the header of a dynamic block that is not the last
// one. It makes a quick check first, and then reads the whole header.
bool is_dynamic(Bytes in, uint64_t bit, uint64_t word) {
  constexpr uint64_t kMost = 29;  // stands for 286 literals and lengths, and for 30 distances
  if ((word & 7) != 4 || (word >> 3 & 31) > kMost || (word >> 8 & 31) > kMost) return false;
  if (bit / 8 + 16 > in.size()) return false;
  const int precodes = static_cast<int>(word >> 13 & 15) + 4;
  const uint64_t lengths = word_at(in, bit + 17) & ((uint64_t{1} << (3 * precodes < 57 ? 3 * precodes : 57)) - 1);
  const int sum = kSums[lengths & 0xFFF] + kSums[lengths >> 12 & 0xFFF] + kSums[lengths >> 24 & 0xFFF] +
                  kSums[lengths >> 36 & 0xFFF] + kSums[lengths >> 48 & 0xFFF];
  if (sum != 128) return false;
  Bits bits(in, bit + 3);
  Header header;
  if (read_header(bits, header) || bits.position() > uint64_t{in.size()} * 8) return false;
  std::array<Entry, kLiteralEntries> table;
  const auto literals = static_cast<size_t>(header.literals), distances = static_cast<size_t>(header.distances);
  return build(Alphabet::kLiterals, {header.lengths, literals}, table.data()) &&
         build(Alphabet::kDistances, {header.lengths + literals, distances}, table.data());
}

// is_stored reports whether the length field of a stored block can begin at a byte. The block's
// header is three zero bits, which lie among the zero bits just before that byte.
bool is_stored(Bytes in, size_t byte) {
  if (byte == 0 || byte + 4 > in.size() || in[byte - 1] >> 5 != 0) return false;
  return (in[byte] ^ in[byte + 2]) == 0xFF && (in[byte + 1] ^ in[byte + 3]) == 0xFF;
}

bool is_member(Bytes in, size_t byte) {
  return byte + 4 <= in.size() && in[byte] == 0x1F && in[byte + 1] == 0x8B && in[byte + 2] == 8 && (in[byte + 3] & 0xE0) == 0;
}

}  // namespace

Found find(Bytes in, uint64_t from, uint64_t to) {
  to = std::min(to, uint64_t{in.size()} * 8);
  for (uint64_t bit = from; bit < to;) {
    const size_t byte = bit / 8;
    if (bit % 8 == 0) {
      if (is_member(in, byte)) return {CTD_INFLATE_MEMBER, bit};
      if (is_stored(in, byte)) return {CTD_INFLATE_STORED, bit};
    }
    const uint64_t end = std::min<uint64_t>((byte + 1) * 8, to);
    for (uint64_t word = word_at(in, bit); bit < end; ++bit, word >>= 1) {
      if ((word & 7) == 4 && is_dynamic(in, bit, word)) return {CTD_INFLATE_DYNAMIC, bit};
    }
  }
  return {};
}

}  // namespace inflater
