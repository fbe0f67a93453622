// Compares the decoder with zlib. Both must give the same output, and an error for the same data.
#include "inflate/decoder.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "decode/status.h"
#include "inflate/find.h"

namespace inflater {
namespace {

using Data = std::vector<uint8_t>;

// Returns random data in which deflate finds long matches and literals. The data are noise, runs
// of one letter, and copies of earlier data.
Data sample(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Data data;
  while (data.size() < size) {
    if (random() % 3 == 0) {
      for (unsigned i = random() % 2000; i > 0; --i) data.push_back(static_cast<uint8_t>(random()));
    } else if (data.size() > 40000 && random() % 2) {
      const size_t from = data.size() - 1 - random() % 32768, n = 3 + random() % 300;
      for (size_t i = 0; i < n; ++i) data.push_back(data[from + i]);
    } else {
      data.insert(data.end(), random() % 400, static_cast<uint8_t>('a' + random() % 4));
    }
  }
  data.resize(size);
  return data;
}

Data deflated(const Data& data, int level, int strategy) {
  z_stream z{};
  deflateInit2(&z, level, Z_DEFLATED, -15, 8, strategy);
  Data out(deflateBound(&z, data.size()) + 100);
  z.next_in = const_cast<uint8_t*>(data.data());
  z.avail_in = static_cast<uInt>(data.size());
  z.next_out = out.data();
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// zlibs_output returns zlib's output for a stream, up to the first error. `whole` becomes true if
// zlib reaches the end of the stream.
Data zlibs_output(const Data& in, size_t most, bool& whole) {
  z_stream z{};
  inflateInit2(&z, -15);
  Data out(most);
  z.next_in = const_cast<uint8_t*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = out.data();
  z.avail_out = static_cast<uInt>(out.size());
  whole = inflate(&z, Z_FINISH) == Z_STREAM_END;
  out.resize(z.total_out);
  inflateEnd(&z);
  return out;
}

// Returns the decoder's output, made in as few runs as possible. The output has room for at least
// `most` bytes.
Data ours(const Data& in, size_t most, bool& whole, int32_t* code = nullptr) {
  Data out(kWindow + most + 2 * CTD_INFLATE_ROOM);
  Decoder decoder;
  ctd_inflate io{};
  io.at = kWindow;
  io.stop_bit = io.stop_at = UINT64_MAX;
  try {
    decoder.run<uint8_t>({in, true}, out.data(), out.size(), io);
    whole = io.stopped == CTD_INFLATE_FINAL;
  } catch (const decode::Error& e) {
    whole = false;
    if (code) *code = e.code();
  }
  return {out.begin() + kWindow, out.begin() + static_cast<ptrdiff_t>(io.at)};
}

struct Kind {
  int level, strategy;
};

const Kind kKinds[] = {{0, Z_DEFAULT_STRATEGY}, {1, Z_DEFAULT_STRATEGY}, {6, Z_DEFAULT_STRATEGY}, {9, Z_DEFAULT_STRATEGY},
                       {6, Z_FIXED},            {6, Z_HUFFMAN_ONLY},     {6, Z_RLE},              {6, Z_FILTERED}};

TEST(Decoder, EqualsZlib) {
  for (const Kind& kind : kKinds) {
    for (const size_t size : {0, 1, 2, 300, 70000, 1000000}) {
      const Data data = sample(size, static_cast<unsigned>(size));
      bool whole = false;
      EXPECT_EQ(ours(deflated(data, kind.level, kind.strategy), size + 1, whole), data) << kind.level << " " << kind.strategy;
      EXPECT_TRUE(whole) << kind.level << " " << kind.strategy << " " << size;
    }
  }
}

// The decoder goes on where its last run stopped. The test gives input and output in small
// pieces, each in memory of its own.
TEST(Decoder, GoesOnWhereItStopped) {
  const Data data = sample(300000, 7);
  for (const Kind& kind : kKinds) {
    const Data in = deflated(data, kind.level, kind.strategy);
    std::mt19937 random(3);
    Decoder decoder;
    ctd_inflate io{};
    io.stop_bit = io.stop_at = UINT64_MAX;
    Data got;
    size_t begin = 0, end = 0;  // the part of `in` that the decoder gets
    for (int runs = 0; io.stopped != CTD_INFLATE_FINAL; ++runs) {
      ASSERT_LT(runs, 10000);
      begin += io.bit / 8;
      io.bit %= 8;
      if (runs == 0 || io.stopped == CTD_INFLATE_MORE) end = std::min(end + 1 + random() % 3000, in.size());
      const Data part(in.begin() + static_cast<ptrdiff_t>(begin), in.begin() + static_cast<ptrdiff_t>(end));
      Data out(kWindow + CTD_INFLATE_ROOM + random() % 5000);
      const size_t history = std::min(got.size(), kWindow);
      std::copy(got.end() - static_cast<ptrdiff_t>(history), got.end(), out.begin() + static_cast<ptrdiff_t>(kWindow - history));
      io.at = kWindow;
      io.history = history;
      io.unknown = 0;
      io.last = end == in.size();
      decoder.run<uint8_t>({part, io.last != 0}, out.data(), out.size(), io);
      got.insert(got.end(), out.begin() + kWindow, out.begin() + static_cast<ptrdiff_t>(io.at));
    }
    EXPECT_EQ(got, data) << kind.level << " " << kind.strategy;
  }
}

// The decoder can begin at any block without knowing the window before it. The unknown elements
// are resolved when the window is known.
TEST(Decoder, BeginsAtAnyBlock) {
  const Data data = sample(400000, 11);
  for (const Kind& kind : kKinds) {
    const Data in = deflated(data, kind.level, kind.strategy);
    Decoder first;
    Data all(kWindow + data.size() + 2 * CTD_INFLATE_ROOM);
    ctd_inflate io{};
    io.at = kWindow;
    io.stop_bit = UINT64_MAX;
    io.last = 1;
    for (int blocks = 0; blocks < 100; ++blocks) {
      io.stop_at = io.at + 1;
      first.run<uint8_t>({in, true}, all.data(), all.size(), io);
      if (io.stopped == CTD_INFLATE_FINAL) break;
      ASSERT_EQ(io.stopped, CTD_INFLATE_BOUNDARY);
      const size_t offset = io.at - kWindow;
      if (offset < kWindow) continue;
      std::vector<uint16_t> wide(kWindow + data.size() + 2 * CTD_INFLATE_ROOM);
      std::iota(wide.begin(), wide.begin() + kWindow, CTD_INFLATE_UNKNOWN);
      Decoder second;
      ctd_inflate there{};
      there.bit = io.bit;
      there.at = there.history = there.unknown = kWindow;
      there.stop_bit = there.stop_at = UINT64_MAX;
      there.wide = 1;
      second.run<uint16_t>({in, true}, wide.data(), wide.size(), there);
      Data got(there.at - kWindow);
      ctd_inflate_resolve(wide.data() + kWindow, got.size(), data.data() + offset - kWindow, got.data());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), data.begin() + static_cast<ptrdiff_t>(offset)));
      if (there.stopped != CTD_INFLATE_KNOWN) {
        EXPECT_EQ(there.stopped, CTD_INFLATE_FINAL);
        continue;
      }
      Data narrow(kWindow + data.size() + 2 * CTD_INFLATE_ROOM);
      for (size_t i = 0; i < kWindow; ++i) {
        ASSERT_LT(wide[there.at - kWindow + i], 256);
        narrow[i] = static_cast<uint8_t>(wide[there.at - kWindow + i]);
      }
      const size_t known = offset + got.size();
      there.at = there.history = kWindow;
      there.unknown = 0;
      there.wide = 0;
      second.run<uint8_t>({in, true}, narrow.data(), narrow.size(), there);
      EXPECT_EQ(there.stopped, CTD_INFLATE_FINAL);
      EXPECT_TRUE(std::equal(narrow.begin() + kWindow, narrow.begin() + static_cast<ptrdiff_t>(there.at),
                             data.begin() + static_cast<ptrdiff_t>(known), data.end()));
    }
  }
}

TEST(Decoder, TruncatedAnywhere) {
  const Data data = sample(3000, 5);
  for (const Kind& kind : kKinds) {
    const Data in = deflated(data, kind.level, kind.strategy);
    for (size_t n = 0; n < in.size(); ++n) {
      bool whole = true;
      int32_t code = 0;
      const Data got = ours({in.begin(), in.begin() + static_cast<ptrdiff_t>(n)}, data.size(), whole, &code);
      EXPECT_FALSE(whole) << n;
      if (got.size() < data.size()) {
        EXPECT_EQ(code, CTD_TRUNCATED) << n;
      }
      ASSERT_LE(got.size(), data.size());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), data.begin())) << n;
    }
  }
}

// For data with some flipped bits, zlib and the decoder agree whether the data are valid. They
// also agree on the content of valid data.
TEST(Decoder, DamagedAsZlib) {
  const Data data = sample(5000, 9);
  constexpr size_t kMost = 300'000;
  std::mt19937 random(1);
  int invalid = 0;
  for (const Kind& kind : kKinds) {
    const Data in = deflated(data, kind.level, kind.strategy);
    for (int i = 0; i < 150; ++i) {
      Data damaged = in;
      for (unsigned flips = 1 + random() % 3; flips > 0; --flips) damaged[random() % damaged.size()] ^= static_cast<uint8_t>(1 << random() % 8);
      bool zlibs = false, own = false;
      const Data want = zlibs_output(damaged, kMost, zlibs), got = ours(damaged, kMost, own);
      EXPECT_EQ(own, zlibs) << kind.level << " " << kind.strategy << " " << i;
      if (zlibs) {
        EXPECT_EQ(got, want);
      }
      invalid += !zlibs;
    }
  }
  EXPECT_GT(invalid, 50);
}

TEST(Decoder, NoiseIsRefusedOrEnds) {
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    Data in(1 + random() % 300);
    for (uint8_t& byte : in) byte = static_cast<uint8_t>(random());
    bool zlibs = false, own = false;
    zlibs_output(in, 300'000, zlibs);
    ours(in, 300'000, own);
    EXPECT_EQ(own, zlibs) << i;
  }
}

TEST(Find, SeesEachDynamicBlock) {
  const Data data = sample(500000, 13);
  const Data in = deflated(data, 6, Z_DEFAULT_STRATEGY);
  Decoder decoder;
  Data out(kWindow + data.size() + 2 * CTD_INFLATE_ROOM);
  ctd_inflate io{};
  io.at = kWindow;
  io.stop_bit = UINT64_MAX;
  io.last = 1;
  int seen = 0;
  for (;;) {
    const uint64_t at = io.bit;
    io.stop_at = io.at + 1;
    decoder.run<uint8_t>({in, true}, out.data(), out.size(), io);
    if (io.stopped == CTD_INFLATE_FINAL) break;  // the function `find` does not look for a last block
    const Found found = find(in, at, io.bit);
    if ((in[at / 8] >> (at % 8) & 7) == 4 || at % 8 > 5) {
      EXPECT_EQ(found.kind, CTD_INFLATE_DYNAMIC);
      EXPECT_EQ(found.bit, at);
      ++seen;
    }
  }
  EXPECT_GT(seen, 3);
}

TEST(Find, StoredBlocksAndMembers) {
  const Data stored = deflated(sample(200000, 17), 0, Z_DEFAULT_STRATEGY);
  const Found first = find(stored, 1, stored.size() * 8);
  EXPECT_EQ(first.kind, CTD_INFLATE_STORED);
  EXPECT_EQ(first.bit, 8u);  // the length of the first block, after its header
  Data joined(100, 0xAA);
  const Data member = {0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3};
  joined.insert(joined.end(), member.begin(), member.end());
  const Found found = find(joined, 0, joined.size() * 8);
  EXPECT_EQ(found.kind, CTD_INFLATE_MEMBER);
  EXPECT_EQ(found.bit, 800u);
  EXPECT_EQ(find({}, 0, 0).kind, 0);
}

TEST(Header, ChecksArguments) {
  ctd_inflater* inflater = nullptr;
  ASSERT_EQ(ctd_inflater_new(&inflater), nullptr);
  ctd_inflate io{};
  uint8_t out[1000];
  const auto code = [&](ctd_inflater* which, const uint8_t* in, size_t size, ctd_inflate* place) {
    ctd_status* status = ctd_inflater_run(which, in, size, out, sizeof out, place);
    const int32_t got = ctd_status_code(status);
    ctd_status_free(status);
    return got;
  };
  const uint8_t in[] = {0x03, 0x00};
  EXPECT_EQ(code(nullptr, in, 2, &io), CTD_INVALID_ARGUMENT);
  EXPECT_EQ(code(inflater, nullptr, 2, &io), CTD_INVALID_ARGUMENT);
  EXPECT_EQ(code(inflater, in, 2, nullptr), CTD_INVALID_ARGUMENT);
  io.bit = 17;
  EXPECT_EQ(code(inflater, in, 2, &io), CTD_INVALID_ARGUMENT);
  io = {};
  io.history = 1;
  EXPECT_EQ(code(inflater, in, 2, &io), CTD_INVALID_ARGUMENT);
  io = {};
  io.stop_bit = io.stop_at = UINT64_MAX;
  io.last = 1;
  EXPECT_EQ(code(inflater, in, 2, &io), 0);
  EXPECT_EQ(io.stopped, CTD_INFLATE_FINAL);
  ctd_inflater_free(inflater);
  ctd_inflater_free(nullptr);
}

}  // namespace
}  // namespace inflater
