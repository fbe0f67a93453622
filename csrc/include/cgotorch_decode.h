/* Decoding batches of images: JPEG and PNG bytes in, cropped and resized uint8 NHWC pixels out.
 *
 * A training loader decodes thousands of small files a second. To cross from Go into C for each
 * of them, or to hold a Go thread for each worker, costs more than it should. So a pool owns its
 * threads and one call decodes one batch. A bad file is a result of its own: the rest of the
 * batch is still right.
 *
 * Rules of every call:
 *   Status     A call returns NULL on success, else a new ctd_status with a code and a message.
 *              Nothing is thread-local. No exception and no abort crosses. On failure no
 *              out-parameter is written unless its comment says so.
 *   new        The caller owns the result and frees it with the free function of its type. Free
 *              functions accept NULL.
 *   borrowed   The callee reads or writes the value during the call only, and keeps no pointer to
 *              it.
 *   consumed   The callee owns the value from the call on, also when the call fails.
 *   Threads    Every function may be called from any thread. A pool decodes several batches at
 *              once. One thread frees it when no decode runs.
 *   Text       UTF-8, NUL-terminated, printable. */
#ifndef CGOTORCH_DECODE_H_
#define CGOTORCH_DECODE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define CTD_NOEXCEPT noexcept
extern "C" {
#else
#define CTD_NOEXCEPT
#endif
#pragma GCC visibility push(default)

/* Raised whenever a declaration below changes. The Go package refuses a library of
 * another number. */
#define CTD_ABI_VERSION 3
int32_t ctd_abi_version(void) CTD_NOEXCEPT;

/* ---- Status ---- */

typedef struct ctd_status ctd_status;

enum {
  CTD_INVALID_ARGUMENT = 1, /* a value outside its range, named by the message */
  CTD_OUT_OF_MEMORY = 2,
  CTD_NOT_AN_IMAGE = 3, /* zero bytes, or no image format known here */
  CTD_TRUNCATED = 4,    /* the data ends before the last pixel */
  CTD_CORRUPT = 5,      /* the data contradicts its format or its checksum */
  CTD_TOO_LARGE = 6,    /* more pixels, scans or side length than allowed, found before the pixels are decoded */
  CTD_TOO_SMALL = 7,    /* smaller than the crop asked for */
  CTD_UNSUPPORTED = 8,  /* a valid image of a kind that is not decoded here */
  CTD_INTERNAL = 9      /* a defect of this library */
};

int32_t ctd_status_code(const ctd_status* status) CTD_NOEXCEPT;        /* borrowed; 0 for NULL */
const char* ctd_status_message(const ctd_status* status) CTD_NOEXCEPT; /* borrowed, lives as long as status, "" for NULL */
void ctd_status_free(ctd_status* status) CTD_NOEXCEPT;                 /* consumed */

/* ---- Image files ---- */

enum { CTD_JPEG = 1, CTD_PNG = 2 };

enum { CTD_GREY = 1, CTD_RGB = 2, CTD_YCC = 3, CTD_CMYK = 4, CTD_YCCK = 5, CTD_PALETTE = 6 };

typedef struct ctd_info {
  int32_t format;      /* CTD_JPEG, CTD_PNG */
  int32_t width;       /* pixels, as stored: before the orientation is applied */
  int32_t height;      /* pixels, as stored */
  int32_t channels;    /* as stored, alpha included; 1 for a palette */
  int32_t bits;        /* per channel, or per palette index */
  int32_t color_space; /* CTD_GREY and so on */
  int32_t alpha;       /* 1: has an alpha channel or a transparent colour */
  int32_t progressive; /* 1: progressive JPEG, interlaced PNG */
  int32_t orientation; /* EXIF 1 to 8, 1 where the file says nothing */
} ctd_info;

/* ctd_probe reads the header of a JPEG or PNG. It decodes no pixels and allocates nothing of the
 * image's size. */
ctd_status* ctd_probe(const uint8_t* data /* borrowed */, size_t size, ctd_info* out) CTD_NOEXCEPT;

/* ctd_check decodes every pixel of a JPEG or PNG and drops them. NULL means that a pool would
 * decode the file. max_pixels: 0 means 100 million. */
ctd_status* ctd_check(const uint8_t* data /* borrowed */, size_t size, int64_t max_pixels) CTD_NOEXCEPT;

/* ctd_orientation returns the EXIF orientation, 1 to 8, of a JPEG, PNG, TIFF or WebP file.
 * Without an orientation it returns 1. */
int32_t ctd_orientation(const uint8_t* data /* borrowed */, size_t size) CTD_NOEXCEPT;

/* ---- Pool ---- */

typedef struct ctd_pool ctd_pool;

enum {
  CTD_RESIZE = 1,              /* the whole image to height x width */
  CTD_RESIZE_CENTER_CROP = 2,  /* shorter side to `resize`, then the middle height x width, padded with 0 when smaller */
  CTD_RANDOM_CROP = 3,         /* `padding` pixels on each side, then height x width at a random place, no resize */
  CTD_RANDOM_RESIZED_CROP = 4  /* a random box of the image, resized to height x width */
};

enum { CTD_PAD_CONSTANT = 0 /* zeros */, CTD_PAD_EDGE = 1, CTD_PAD_REFLECT = 2, CTD_PAD_SYMMETRIC = 3 };

typedef struct ctd_options {
  int32_t workers;        /* threads; 0 means one per core this process may use */
  int32_t channels;       /* 3: RGB, 1: grey; 0 means 3 */
  int32_t transform;      /* CTD_RESIZE and so on */
  int32_t height, width;  /* of the result, 1 to 65535 */
  int32_t resize;         /* CTD_RESIZE_CENTER_CROP: length of the shorter side, 1 to 65535 */
  int32_t padding;        /* CTD_RANDOM_CROP: 0 to 65535 */
  int32_t padding_mode;   /* CTD_RANDOM_CROP */
  double min_scale, max_scale; /* CTD_RANDOM_RESIZED_CROP: share of the image's area; 0 means 0.08 and 1 */
  double min_ratio, max_ratio; /* CTD_RANDOM_RESIZED_CROP: width / height; 0 means 3/4 and 4/3 */
  double horizontal_flip; /* probability, 0 to 1, that a result says flip */
  int64_t max_pixels;     /* a source with more is CTD_TOO_LARGE; 0 means 100 million */
  int32_t no_shrink;      /* 1: a JPEG is decoded at full size, also where the box is 4 times the result */
  /* Bytes that large images may take at a time, all threads together. 0 means 512 MiB. An image
   * for which a thread needs more than 16 MiB waits for its share, after those that wait already.
   * An image that needs more than all of them is decoded while no other waiting image has a share. */
  int64_t memory;
} ctd_options;

/* ctd_image is one source. With `pixels` NULL, `data` is a JPEG or PNG file. Else `pixels` are
 * the decoded pixels, height x width x channels (3: RGB, 1: grey) without gaps. `data` is then
 * only read for its EXIF orientation and may be NULL. `key` fixes all random choices: an equal
 * key gives an equal crop and flip, whatever the number of workers. */
typedef struct ctd_image {
  const uint8_t* data;
  size_t size;
  uint64_t key;
  const uint8_t* pixels;
  int32_t width, height, channels;
} ctd_image;

typedef struct ctd_result {
  ctd_status* error;            /* new, or NULL when the image was decoded; on failure its pixels are 0 */
  int32_t width, height;        /* of the source, its orientation applied; 0 when unknown */
  int32_t top, left;            /* of the box that was cropped, in source pixels, less than 0 inside the padding */
  int32_t crop_height, crop_width; /* for CTD_RESIZE_CENTER_CROP the box lies in the resized image */
  int32_t flip;                 /* 1: the caller flips the image left to right. The pool does not flip it. */
} ctd_result;

ctd_status* ctd_pool_new(const ctd_options* options /* borrowed */, ctd_pool** out /* new */) CTD_NOEXCEPT;

/* ctd_pool_decode decodes count images into dst, uint8 count x height x width x channels, and
 * returns when all are done. Of two calls at the same time, the threads take the images of the
 * first call first. They go on with the second call as soon as no image of the first is left to
 * take. dst_size must be exactly that many bytes. The call fails only for wrong arguments, with
 * nothing written. Otherwise every results[i] is written, for failed images too. The caller
 * frees each results[i].error that is not NULL. */
ctd_status* ctd_pool_decode(ctd_pool* pool, const ctd_image* images /* borrowed */, size_t count,
                            uint8_t* dst /* borrowed */, size_t dst_size, ctd_result* results /* borrowed */) CTD_NOEXCEPT;

/* ctd_pool_max_memory returns an upper bound of the memory that decoding takes, in bytes. It is
 * 18 MiB for each thread plus a share for large images. That share is `memory`, or the need of
 * the largest image that max_pixels allows where that is more. The images and dst, which are
 * borrowed, are not in it. */
int64_t ctd_pool_max_memory(const ctd_pool* pool) CTD_NOEXCEPT;

/* ctd_pool_workers returns the number of threads. */
int32_t ctd_pool_workers(const ctd_pool* pool) CTD_NOEXCEPT;

/* ctd_pool_busy returns the nanoseconds that all threads together have spent in images since the
 * pool was made. An image counts when it is done, its wait for memory included. Waiting for work
 * does not count. Divided by the time that passed and the number of threads, it is the used
 * share of the pool. */
int64_t ctd_pool_busy(const ctd_pool* pool) CTD_NOEXCEPT;

/* ctd_pool_free joins the threads. No decode may be running. */
void ctd_pool_free(ctd_pool* pool /* consumed */) CTD_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* CGOTORCH_DECODE_H_ */
