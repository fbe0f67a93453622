/* Inflating deflate data piece by piece. A piece may begin in the middle of a file, where the
 * data before it are not known yet.
 *
 * A gzip file must normally be inflated from its start. Any byte may be a copy of a byte in the
 * 32 KiB before it. These 32 KiB are called the window. But a program can find places where a
 * block of deflate data may start. A thread that begins at such a place does not know the window.
 * It writes wide elements, of 16 bits each. A wide element is a byte, or it is the place in the
 * window of a byte that is not known yet. When the window is known, ctd_inflate_resolve turns the
 * wide elements into bytes. So several threads can inflate several parts of one file. Output
 * elements of 8 bits are called narrow.
 *
 * The rules of cgotorch_decode.h hold here too: those about statuses, about the words new,
 * borrowed and consumed, and about threads. Both headers belong to one library. */
#ifndef CGOTORCH_INFLATE_H_
#define CGOTORCH_INFLATE_H_

#include "cgotorch_decode.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The number of elements in the window. The window is the elements directly before the next
 * element that is written. A match may reach back at most this far. */
#define CTD_INFLATE_WINDOW 32768

/* A wide element of CTD_INFLATE_UNKNOWN + p is an unknown byte. It stands for the byte at place
 * p, 0 to 32767, of the window before the first element. */
#define CTD_INFLATE_UNKNOWN 32768

/* A call writes at most CTD_INFLATE_ROOM elements between two places at which it can stop. */
#define CTD_INFLATE_ROOM 320

typedef struct ctd_inflater ctd_inflater; /* inflates one stream; only one thread at a time may use it */

/* Why ctd_inflater_run returned. */
enum {
  CTD_INFLATE_BOUNDARY = 1, /* a block ended, and stop_bit or stop_at is reached */
  CTD_INFLATE_FINAL = 2,    /* the stream's last block ended */
  CTD_INFLATE_FULL = 3,     /* fewer than CTD_INFLATE_ROOM elements are left in `out` */
  CTD_INFLATE_MORE = 4,     /* the bytes of `in` after `bit` are too few to go on */
  /* Only for wide elements: the last 32 Ki elements hold no unknown byte. The next elements can be
   * narrow. */
  CTD_INFLATE_KNOWN = 5
};

typedef struct ctd_inflate {
  uint64_t bit;       /* on entry and on return: the place of the next bit of `in`; the lowest bit of a byte is first */
  /* On entry and on return: the index of the next element of `out`. The first element of the stream
   * has the index CTD_INFLATE_WINDOW. */
  uint64_t at;
  /* How far back from `at` a match may reach when the call begins, in elements. 0 at the start of a
   * stream. */
  uint64_t history;
  /* For wide elements, on entry and on return: the index after the last unknown element so far.
   * CTD_INFLATE_WINDOW if there was none. */
  uint64_t unknown;
  uint64_t stop_bit;  /* stop at the first end of a block that is at this bit or after it */
  uint64_t stop_at;   /* also stop at the first end of a block that has this index or a larger one */
  int32_t wide;       /* 0: `out` is uint8_t. 1: `out` is uint16_t, and each element is a byte or an unknown byte */
  int32_t last;       /* 1: no bytes follow those of `in`, so data that end too early are CTD_TRUNCATED */
  int32_t stopped;    /* on return: why the call returned, CTD_INFLATE_BOUNDARY or one of the others */
} ctd_inflate;

ctd_status* ctd_inflater_new(ctd_inflater** out /* new */) CTD_NOEXCEPT;
void ctd_inflater_free(ctd_inflater* inflater /* consumed */) CTD_NOEXCEPT;

/* ctd_inflater_run inflates from io->bit of `in` to io->at of `out`, which has room for out_size
 * elements. The inflater is either at the start of a block, as a new inflater is, or where its
 * last run ended.
 *
 * Between two runs the caller may move the data of `in` and `out`, and then changes io->bit and
 * io->at to match. The CTD_INFLATE_WINDOW elements before io->at must then be moved too.
 *
 * Fails with CTD_CORRUPT for damaged data, and with CTD_TRUNCATED for data that end too early.
 * The inflater can then only be freed. io->at counts the elements that were written before the
 * fault. */
ctd_status* ctd_inflater_run(ctd_inflater* inflater, const uint8_t* in /* borrowed */, size_t in_size, void* out /* borrowed */,
                             size_t out_size, ctd_inflate* io /* borrowed */) CTD_NOEXCEPT;

/* What ctd_inflate_find looks for. */
enum {
  CTD_INFLATE_DYNAMIC = 1, /* a block that has codes of its own and is not the last block of its stream */
  /* A stored block. *bit is the place of the field with the block's length. The block's header is in
   * the zero bits before that field, and the exact place of the header is not known. */
  CTD_INFLATE_STORED = 2,
  CTD_INFLATE_MEMBER = 3   /* the header of a gzip member */
};

/* ctd_inflate_find searches `in`, from bit `from` to the bit before `to`, for a place where a
 * block or a gzip member may start. It writes that place to *bit and returns the kind, or returns
 * 0. The result may be wrong, so the caller tries to inflate from that place. */
int32_t ctd_inflate_find(const uint8_t* in /* borrowed */, size_t in_size, uint64_t from, uint64_t to,
                         uint64_t* bit /* borrowed */) CTD_NOEXCEPT;

/* ctd_inflate_resolve turns `count` wide elements into bytes. `window` is the window before the
 * first of these elements. It may be NULL if no element is an unknown byte. */
void ctd_inflate_resolve(const uint16_t* wide /* borrowed */, size_t count, const uint8_t* window /* borrowed; 32768 */,
                         uint8_t* out /* borrowed */) CTD_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* CGOTORCH_INFLATE_H_ */
