#include "decode/frame.h"

#include <algorithm>
#include <bitset>
#include <cstring>

#include "include/cgotorch_decode.h"

// Note [Frames]
// A device is a machine of its own, whose faults cannot be seen or mended here. So it gets no byte
// that a stranger has written, except the codes of the scan. All markers are written anew from the
// values that libjpeg has read. The tables and the markers in the scan are checked here, and the
// codes are checked by Jpeg::check. Both refuse more than libjpeg does: what no encoder writes may
// mean something else to the device.

namespace decode {
namespace {

constexpr int kComponents = 3;

// The order in which a file lists the values of an 8x8 block.
constexpr uint8_t kZigzag[DCTSIZE2] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                                       41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                                       30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

int32_t sampling_of(const jpeg_decompress_struct& header) {
  const jpeg_component_info* const c = header.comp_info;
  for (int i = 1; i < kComponents; ++i) {
    if (c[i].h_samp_factor != 1 || c[i].v_samp_factor != 1) return 0;
  }
  if (c[0].h_samp_factor == 1 && c[0].v_samp_factor == 1) return CTD_444;
  // libjpeg does not interpolate chroma of one or two columns.
  if (c[0].h_samp_factor != 2 || header.image_width <= 4) return 0;
  return c[0].v_samp_factor == 1 ? CTD_422 : c[0].v_samp_factor == 2 ? CTD_420 : 0;
}

// Returns how many values the table has. Returns 0 if its codes overlap, or if its values repeat or
// are not those of a sequential JPEG of 8 bits.
int values_of(const JHUFF_TBL* table, bool ac) {
  if (!table) return 0;
  int count = 0;
  unsigned code = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    count += table->bits[length];
    code += table->bits[length];
    // No code may consist of ones alone.
    if (code >= 1u << length && table->bits[length] != 0) return 0;
    if (count > 256) return 0;
  }
  std::bitset<256> seen;
  for (int i = 0; i < count; ++i) {
    const int value = table->huffval[i], size = ac ? value & 15 : value, run = ac ? value >> 4 : 0;
    if (size > (ac ? 10 : 11) || (size == 0 && run != 0 && run != 15) || seen[value]) return 0;
    seen[value] = true;
  }
  return count;
}

// Returns the number of bytes of the scan before the marker EOI, or 0 if the scan has markers that
// do not belong there, or has no end. `restarts` is the number of restart markers that belong
// there.
size_t scan_of(Bytes data, size_t restarts) {
  const uint8_t *from = data.data(), *const end = from + data.size();
  for (size_t seen = 0;; from += 2) {
    from = static_cast<const uint8_t*>(std::memchr(from, 0xFF, end - from));
    if (!from || from + 1 == end) return 0;
    const int code = from[1];
    if (code == JPEG_EOI) return seen == restarts ? from - data.data() : 0;
    if (code == 0) continue;
    if (seen == restarts || code != JPEG_RST0 + static_cast<int>(seen % 8)) return 0;
    ++seen;
  }
}

// Writer appends the parts of a JPEG.
struct Writer {
  std::vector<uint8_t>& to;

  void byte(int v) { to.push_back(static_cast<uint8_t>(v)); }
  void word(int v) {
    byte(v >> 8);
    byte(v);
  }
  void marker(int code, int size) {  // `size` is that of what follows, without the size itself
    byte(0xFF);
    byte(code);
    word(size + 2);
  }
  void table(int id, const JQUANT_TBL& t) {
    marker(0xDB, 1 + DCTSIZE2);
    byte(id);
    for (const uint8_t place : kZigzag) byte(t.quantval[place]);
  }
  void table(int id, const JHUFF_TBL& t, int values) {
    marker(0xC4, 17 + values);
    byte(id);
    to.insert(to.end(), t.bits + 1, t.bits + 17);
    to.insert(to.end(), t.huffval, t.huffval + values);
  }
};

}  // namespace

int32_t write_frame(const jpeg_decompress_struct& header, Bytes data, FrameFile& to) {
  if (header.progressive_mode || header.arith_code || header.data_precision != 8 || header.num_components != kComponents ||
      header.comps_in_scan != kComponents || header.jpeg_color_space != JCS_YCbCr) {
    return 0;
  }
  const int32_t sampling = sampling_of(header);
  if (sampling == 0) return 0;
  int dc[2] = {}, ac[2] = {};
  bool quantised[NUM_QUANT_TBLS] = {};
  for (int i = 0; i < kComponents; ++i) {
    const jpeg_component_info& c = header.comp_info[i];
    if (header.cur_comp_info[i] != &c || c.dc_tbl_no < 0 || c.dc_tbl_no > 1 || c.ac_tbl_no < 0 || c.ac_tbl_no > 1) return 0;
    if ((dc[c.dc_tbl_no] = values_of(header.dc_huff_tbl_ptrs[c.dc_tbl_no], false)) == 0) return 0;
    if ((ac[c.ac_tbl_no] = values_of(header.ac_huff_tbl_ptrs[c.ac_tbl_no], true)) == 0) return 0;
    if (c.quant_tbl_no < 0 || c.quant_tbl_no >= NUM_QUANT_TBLS) return 0;
    const JQUANT_TBL* const t = header.quant_tbl_ptrs[c.quant_tbl_no];
    if (!t || std::any_of(t->quantval, t->quantval + DCTSIZE2, [](int v) { return v < 1 || v > 255; })) return 0;
    quantised[c.quant_tbl_no] = true;
  }
  const auto up = [](size_t v, size_t unit) { return (v + unit - 1) / unit; };
  const size_t across = up(header.image_width, size_t{DCTSIZE} * header.max_h_samp_factor),
               mcus = across * up(header.image_height, size_t{DCTSIZE} * header.max_v_samp_factor), every = header.restart_interval;
  const size_t scan = scan_of(data, every != 0 ? (mcus - 1) / every : 0);
  if (scan == 0) return 0;

  to.head.clear();
  to.rest = data.subspan(0, scan + 2);  // with the marker EOI
  Writer w{to.head};
  w.byte(0xFF);
  w.byte(0xD8);
  for (int i = 0; i < NUM_QUANT_TBLS; ++i) {
    if (quantised[i]) w.table(i, *header.quant_tbl_ptrs[i]);
  }
  w.marker(0xC0, 6 + 3 * kComponents);
  w.byte(8);
  w.word(static_cast<int>(header.image_height));
  w.word(static_cast<int>(header.image_width));
  w.byte(kComponents);
  for (int i = 0; i < kComponents; ++i) {
    const jpeg_component_info& c = header.comp_info[i];
    w.byte(i + 1);
    w.byte(c.h_samp_factor << 4 | c.v_samp_factor);
    w.byte(c.quant_tbl_no);
  }
  for (int i = 0; i < 2; ++i) {
    if (dc[i] != 0) w.table(i, *header.dc_huff_tbl_ptrs[i], dc[i]);
    if (ac[i] != 0) w.table(0x10 | i, *header.ac_huff_tbl_ptrs[i], ac[i]);
  }
  if (every != 0) {
    w.marker(0xDD, 2);
    w.word(static_cast<int>(every));
  }
  w.marker(0xDA, 4 + 2 * kComponents);
  w.byte(kComponents);
  for (int i = 0; i < kComponents; ++i) {
    w.byte(i + 1);
    w.byte(header.comp_info[i].dc_tbl_no << 4 | header.comp_info[i].ac_tbl_no);
  }
  w.byte(0);
  w.byte(DCTSIZE2 - 1);
  w.byte(0);
  return sampling;
}

}  // namespace decode
