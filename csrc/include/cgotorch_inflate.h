/* Inflating deflate data piece by piece, also from the middle of a file, where the data before
 * are not known yet.
 *
 * A gzip file has to be read from its start: any byte may be a copy of a byte in the 32 KiB
 * before it. But the blocks of deflate data can be recognised. A copy out of an unknown window
 * can be written down as a place in that window until the window is known. So several threads
 * inflate several parts of one file. Each of them calls these functions.
 *
 * The rules of cgotorch_decode.h hold here too: statuses, ownership in three words, threads.
 * Both headers belong to one library. */
#ifndef CGOTORCH_INFLATE_H_
#define CGOTORCH_INFLATE_H_

#include "cgotorch_decode.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The size of the window before the data that are written, which is also how far back a match
 * may reach. */
#define CTD_INFLATE_WINDOW 32768

/* In wide elements: this plus p is the byte at place p, 0 to 32767, of the window before the
 * first element. */
#define CTD_INFLATE_UNKNOWN 32768

/* No call writes more than this many elements after it could have stopped. */
#define CTD_INFLATE_ROOM 320

typedef struct ctd_inflater ctd_inflater; /* of one stream, used by one thread at a time */

/* Why ctd_inflater_run returned. */
enum {
  CTD_INFLATE_BOUNDARY = 1, /* a block ended, and a stop_ value is reached */
  CTD_INFLATE_FINAL = 2,    /* the stream's last block ended */
  CTD_INFLATE_FULL = 3,     /* less than CTD_INFLATE_ROOM is left of out */
  CTD_INFLATE_MORE = 4,     /* the bytes of `in` behind `bit` are not enough to go on */
  /* Wide only: the last 32 KiB written hold no unknown byte. Narrow elements can follow. */
  CTD_INFLATE_KNOWN = 5
};

typedef struct ctd_inflate {
  uint64_t bit;       /* in, out: place of the next bit of `in`, the lowest bit of a byte first */
  uint64_t at;        /* in, out: index of the next element of out, CTD_INFLATE_WINDOW for the first one */
  /* Elements before `at` that a match may reach when the call begins. 0 at the start of a stream. */
  uint64_t history;
  /* Wide, in, out: the index after the last unknown element so far. CTD_INFLATE_WINDOW where none
   * was written. */
  uint64_t unknown;
  uint64_t stop_bit;  /* stop at the first end of a block that is at this bit or behind it */
  uint64_t stop_at;   /* or that has this index or a larger index */
  int32_t wide;       /* 0: out is uint8_t. 1: out is uint16_t, each element a byte or an unknown byte */
  int32_t last;       /* 1: no bytes follow those of `in`. An early end is then CTD_TRUNCATED */
  int32_t stopped;    /* out: CTD_INFLATE_BOUNDARY and so on */
} ctd_inflate;

ctd_status* ctd_inflater_new(ctd_inflater** out /* new */) CTD_NOEXCEPT;
void ctd_inflater_free(ctd_inflater* inflater /* consumed */) CTD_NOEXCEPT;

/* ctd_inflater_run inflates from io->bit of `in` to io->at of `out`, which has room for out_size
 * elements. The inflater is either at the start of a block, as a new inflater is, or where its
 * last run ended. Between two runs `in` and `out` may have moved, with io->bit and io->at
 * changed to match. The CTD_INFLATE_WINDOW elements before io->at must then have come along. The
 * call fails with CTD_CORRUPT or CTD_TRUNCATED, and the inflater is of no use afterwards. io->at
 * counts the elements that were written before the fault. */
ctd_status* ctd_inflater_run(ctd_inflater* inflater, const uint8_t* in /* borrowed */, size_t in_size, void* out /* borrowed */,
                             size_t out_size, ctd_inflate* io /* borrowed */) CTD_NOEXCEPT;

/* The kinds of places that ctd_inflate_find looks for. */
enum {
  CTD_INFLATE_DYNAMIC = 1, /* a block with codes of its own, not the last of its stream */
  CTD_INFLATE_STORED = 2,  /* a stored block: *bit is that of its length, and its header any of the zeros before that */
  CTD_INFLATE_MEMBER = 3   /* the header of a gzip member */
};

/* ctd_inflate_find searches `in`, from bit `from` on and before bit `to`, for a possible start
 * of a block or a member. It returns its kind and place, or 0. It may be mistaken: the caller
 * tries to inflate from there. */
int32_t ctd_inflate_find(const uint8_t* in /* borrowed */, size_t in_size, uint64_t from, uint64_t to,
                         uint64_t* bit /* borrowed */) CTD_NOEXCEPT;

/* ctd_inflate_resolve turns count wide elements into bytes, given the window before the first of
 * them. */
void ctd_inflate_resolve(const uint16_t* wide /* borrowed */, size_t count, const uint8_t* window /* borrowed; 32768 */,
                         uint8_t* out /* borrowed */) CTD_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* CGOTORCH_INFLATE_H_ */
