/* Decoding of image batches. The input is JPEG or PNG bytes. The output is cropped and resized
 * uint8 pixels in NHWC order.
 *
 * A training loader decodes thousands of small files a second. A call from Go into C for each
 * file, or a Go thread for each worker, would cost too much. So a pool owns its threads, and one
 * call decodes one batch. A bad file has an error as its own result. The other images of the
 * batch are still right.
 *
 * Rules of every call:
 *   Status     A call returns NULL on success. Otherwise it returns a new ctd_status with a code
 *              and a message. Nothing is thread-local. No exception leaves the library, and no
 *              call aborts the process. A call that fails writes no out-parameter unless its
 *              comment says so.
 *   new        The caller owns the result and frees it with the free function of its type. Free
 *              functions accept NULL.
 *   borrowed   The callee reads or writes the value during the call only, and keeps no pointer to
 *              it.
 *   consumed   The callee owns the value from the call on, also when the call fails.
 *   Threads    Every function may be called from any thread. A pool can decode several batches
 *              at the same time. A pool is freed once, when it decodes nothing.
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

/* The version of this header. It is raised whenever a declaration below changes. The Go package
 * refuses a library of another version. */
#define CTD_ABI_VERSION 4
int32_t ctd_abi_version(void) CTD_NOEXCEPT;

/* ---- Status ---- */

typedef struct ctd_status ctd_status;

enum {
  CTD_INVALID_ARGUMENT = 1, /* a value outside its range, named by the message */
  CTD_OUT_OF_MEMORY = 2,
  CTD_NOT_AN_IMAGE = 3, /* an empty file, or a file of no image format that is known here */
  CTD_TRUNCATED = 4,    /* the data ends before the last pixel */
  CTD_CORRUPT = 5,      /* the data contradicts its format or its checksum */
  CTD_TOO_LARGE = 6,    /* more pixels or scans, or a longer side, than is allowed; found before pixels are decoded */
  CTD_TOO_SMALL = 7,    /* the image is smaller than the crop that was asked for */
  CTD_UNSUPPORTED = 8,  /* a valid image of a kind that is not decoded here */
  CTD_INTERNAL = 9      /* a defect of this library */
};

int32_t ctd_status_code(const ctd_status* status) CTD_NOEXCEPT;        /* borrowed; 0 for NULL */
const char* ctd_status_message(const ctd_status* status) CTD_NOEXCEPT; /* borrowed; valid as long as status; "" for NULL */
void ctd_status_free(ctd_status* status) CTD_NOEXCEPT;                 /* consumed */

/* ---- Image files ---- */

enum { CTD_JPEG = 1, CTD_PNG = 2 };

enum { CTD_GREY = 1, CTD_RGB = 2, CTD_YCC = 3, CTD_CMYK = 4, CTD_YCCK = 5, CTD_PALETTE = 6 };

typedef struct ctd_info {
  int32_t format;      /* CTD_JPEG, CTD_PNG */
  int32_t width;       /* in pixels, as stored: before the orientation is applied */
  int32_t height;      /* in pixels, as stored */
  int32_t channels;    /* the number of stored channels, with alpha; 1 for a palette */
  int32_t bits;        /* bits per channel, or per palette index */
  int32_t color_space; /* CTD_GREY and so on */
  int32_t alpha;       /* 1: has an alpha channel or a transparent colour */
  int32_t progressive; /* 1: progressive JPEG, interlaced PNG */
  int32_t orientation; /* EXIF 1 to 8, 1 where the file says nothing */
} ctd_info;

/* ctd_probe reads the header of a JPEG or PNG. It decodes no pixels, and allocates no memory that
 * grows with the image. */
ctd_status* ctd_probe(const uint8_t* data /* borrowed */, size_t size, ctd_info* out) CTD_NOEXCEPT;

/* ctd_check decodes every pixel of a JPEG or PNG, and does not return the pixels. If the result
 * is NULL, a pool can decode the file. max_pixels: 0 means 100 million. */
ctd_status* ctd_check(const uint8_t* data /* borrowed */, size_t size, int64_t max_pixels) CTD_NOEXCEPT;

/* ctd_orientation returns the EXIF orientation, 1 to 8, of a JPEG, PNG, TIFF or WebP file. It
 * returns 1 for a file without an orientation. */
int32_t ctd_orientation(const uint8_t* data /* borrowed */, size_t size) CTD_NOEXCEPT;

/* ---- A device that decodes JPEG ---- */

/* The sampling of a JPEG's chroma: how many pixels across and down share a value. */
enum { CTD_444 = 1 /* 1x1 */, CTD_422 = 2 /* 2x1 */, CTD_420 = 3 /* 2x2 */ };

/* ctd_frame is one image for a ctd_device. The device decodes the whole frame, cuts `box` out of
 * it, resizes the box to resized_height x resized_width, and writes height x width pixels of the
 * result, which begin at (top, left). The pixels equal those of the pool's threads to the bit. */
typedef struct ctd_frame {
  /* A sequential JPEG of 8 bits and three components Y, Cb, Cr, in one scan. It has the markers
   * SOI, DQT, SOF0, DHT, DRI, SOS and EOI, and no others. All of its bytes have been checked. It is
   * in two pieces: `head`, which may be empty, and the data that follow it. */
  const uint8_t* head;
  size_t head_size;
  const uint8_t* data;
  size_t size;
  int32_t width, height;                               /* of the frame */
  int32_t box_top, box_left, box_height, box_width;    /* lies inside the frame */
  int32_t resized_height, resized_width;  /* not those of the box; at least 1/8 of them */
  int32_t top, left;                                   /* the result lies inside the resized box */
  uint8_t* to;                                         /* height x width x 3 bytes, RGB; on the host */
  int32_t failed;                                      /* the device sets it to 1 if `to` is not written */
} ctd_frame;

/* ctd_device decodes frames beside the threads of a pool. The pool calls it from threads of its
 * own. */
typedef struct ctd_device {
  void* self;              /* the first argument of each function */
  int32_t lanes;           /* calls of `decode` that may run at a time, each with another lane, from 0 to lanes-1 */
  int32_t most_frames;     /* frames in a call, at most */
  int64_t most_pixels;     /* pixels of all frames of a call together, at most */
  /* Makes a lane ready, so that its first call of `decode` takes no longer than later ones. It may
   * take seconds. A pool calls it once for each lane, before it takes images for the lane. What
   * fails here is tried again by `decode`. */
  void (*prepare)(void* self, int32_t lane);
  /* Decodes frames of one sampling. height and width are those of the results. It waits until the
   * results are there, without using a core. */
  void (*decode)(void* self, int32_t lane, int32_t sampling, int32_t height, int32_t width, ctd_frame* frames, size_t count);
  /* A pool retains its device when it is made, and releases it when it is freed. */
  void (*retain)(void* self);
  void (*release)(void* self);
} ctd_device;

/* ---- Pool ---- */

typedef struct ctd_pool ctd_pool;

enum {
  CTD_RESIZE = 1,              /* resizes the whole image to height x width */
  /* Resizes the shorter side to `resize`, and takes the height x width pixels in the middle. A
   * smaller image is padded with 0. */
  CTD_RESIZE_CENTER_CROP = 2,
  /* Adds `padding` pixels on each side, and takes height x width pixels at a random place. Nothing
   * is resized. */
  CTD_RANDOM_CROP = 3,
  CTD_RANDOM_RESIZED_CROP = 4  /* takes a random box of the image, and resizes it to height x width */
};

enum { CTD_PAD_CONSTANT = 0 /* zeros */, CTD_PAD_EDGE = 1, CTD_PAD_REFLECT = 2, CTD_PAD_SYMMETRIC = 3 };

typedef struct ctd_options {
  int32_t workers;        /* number of threads; 0 means one for each core that this process may use */
  int32_t channels;       /* 3: RGB, 1: grey; 0 means 3 */
  int32_t transform;      /* CTD_RESIZE and so on */
  int32_t height, width;  /* size of the result, 1 to 65535 */
  int32_t resize;         /* for CTD_RESIZE_CENTER_CROP: length of the shorter side, 1 to 65535 */
  int32_t padding;        /* for CTD_RANDOM_CROP: 0 to 65535 */
  int32_t padding_mode;   /* for CTD_RANDOM_CROP: CTD_PAD_CONSTANT and so on */
  double min_scale, max_scale; /* for CTD_RANDOM_RESIZED_CROP: share of the image's area; 0 means 0.08 and 1 */
  double min_ratio, max_ratio; /* for CTD_RANDOM_RESIZED_CROP: width / height; 0 means 3/4 and 4/3 */
  double horizontal_flip; /* probability, 0 to 1, that ctd_result.flip is 1 */
  int64_t max_pixels;     /* an image with more pixels is CTD_TOO_LARGE; 0 means 100 million */
  int32_t no_shrink;      /* 1: a JPEG is decoded at full size, even if the box is 4 or more times the size of the result */
  /* The bytes that large images may take at a time, over all threads. 0 means 512 MiB. A large
   * image is one for which a thread needs more than 16 MiB. Large images get their memory in the
   * order in which they ask for it. An image that needs more than `memory` is decoded while no other
   * large image has memory. */
  int64_t memory;
  const ctd_device* device; /* borrowed; decodes some of the JPEG files, or NULL */
} ctd_options;

/* ctd_image is one image to decode. If `pixels` is NULL, `data` is a JPEG or PNG file. Otherwise
 * `pixels` are decoded pixels, height x width x channels (3: RGB, 1: grey) without gaps. Then
 * `data` may be NULL, and is only read for its EXIF orientation. `key` fixes all random choices:
 * an equal key gives an equal crop and flip, whatever the number of workers. */
typedef struct ctd_image {
  const uint8_t* data;
  size_t size;
  uint64_t key;
  const uint8_t* pixels;
  int32_t width, height, channels;
  uint64_t sound; /* the same field of an earlier result of this file, or 0 */
} ctd_image;

typedef struct ctd_result {
  ctd_status* error;            /* new, or NULL if the image was decoded; on failure the image's pixels are 0 */
  int32_t width, height;        /* of the source after its orientation is applied; 0 if unknown */
  int32_t top, left;            /* of the cropped box, in source pixels; negative inside the padding */
  int32_t crop_height, crop_width; /* size of the cropped box; for CTD_RESIZE_CENTER_CROP the box lies in the resized image */
  int32_t flip;                 /* 1: the caller flips the image left to right. The pool does not flip the image. */
  /* A number of the file's bytes, if a thread has checked all of its codes and found no damage. It is
   * 0 otherwise. Only files for a device are checked. */
  uint64_t sound;
  int32_t on_device;            /* 1: the pool's device has decoded the image */
} ctd_result;

ctd_status* ctd_pool_new(const ctd_options* options /* borrowed */, ctd_pool** out /* new */) CTD_NOEXCEPT;

/* ctd_pool_decode decodes `count` images into dst, uint8 count x height x width x channels. It
 * returns when all images are done. dst_size must be exactly the number of these bytes.
 *
 * If two calls run at the same time, the threads take the images of the first call first. When
 * all of these are taken, they go on with the second call.
 *
 * The call fails only for wrong arguments, and then writes nothing. Otherwise it writes every
 * results[i], for failed images too. The caller frees each results[i].error that is not NULL.
 *
 * If the pool has a device, the threads leave images to the device, as many as it can take. The
 * result does not depend on who decodes an image. The device gets only files that a thread has
 * checked to their end, so that damage is found as without a device. That check is left out for an
 * image whose `sound` says that its bytes have passed it. The device gets no images of a batch that
 * has no more images than the pool has threads. */
ctd_status* ctd_pool_decode(ctd_pool* pool, const ctd_image* images /* borrowed */, size_t count,
                            uint8_t* dst /* borrowed */, size_t dst_size, ctd_result* results /* borrowed */) CTD_NOEXCEPT;

/* ctd_pool_max_memory returns an upper bound of the memory that decoding takes, in bytes. The
 * bound is 18 MiB for each thread and 2 MiB for each lane of the device, plus memory for large
 * images. For large images it counts the larger of two numbers: the option `memory`, and the need
 * of the largest image that max_pixels allows. The bound does not include the images and dst, which
 * are borrowed, and not the memory of the device. */
int64_t ctd_pool_max_memory(const ctd_pool* pool) CTD_NOEXCEPT;

/* ctd_pool_workers returns the number of threads. ctd_pool_at_a_time returns the most images that
 * the threads and the device work on at a time. */
int32_t ctd_pool_workers(const ctd_pool* pool) CTD_NOEXCEPT;
int32_t ctd_pool_at_a_time(const ctd_pool* pool) CTD_NOEXCEPT;

/* ctd_pool_busy returns the nanoseconds that the threads of `workers` have spent on images since
 * the pool was made. Threads with a lane of a device do not count. An image counts when it is done,
 * including its wait for memory. The time in which a thread waits for work does not count. Divided
 * by the elapsed time and by the number of threads, the result is the fraction of time in which the
 * threads were busy. */
int64_t ctd_pool_busy(const ctd_pool* pool) CTD_NOEXCEPT;

/* ctd_pool_free joins the threads and frees the pool. No decode may be running. */
void ctd_pool_free(ctd_pool* pool /* consumed */) CTD_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* CGOTORCH_DECODE_H_ */
