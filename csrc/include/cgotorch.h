/* The C ABI of streamtorch: LibTorch with the stream as an argument.
 *
 * LibTorch keeps the current stream, device, grad mode and autocast in thread-local storage. A
 * goroutine changes threads between two calls. A value set by one call is therefore wrong at the
 * next. Here every call that enqueues work takes a ct_exec, which names the stream and the modes
 * of the call. The core sets LibTorch's state at the beginning of that call and restores it at
 * the end. No call sets state for a later call, with two exceptions. The first exception is the
 * last section, "Process-wide". The second exception is what observes later calls: traces,
 * watches, the stream checker, and the counts of memory and handles.
 *
 * Rules that hold for every function:
 *  - A function that can fail returns a ct_status*. NULL means success. Any other value is the
 *    failure, and the caller frees it. A function that fails writes no out-parameter.
 *  - new       The caller owns the result and frees it with the function of its type.
 *    borrowed  The caller still owns the value. The callee does not use it after the call returns.
 *    consumed  The callee owns the value from now on, also when the call fails.
 *    A parameter without one of these words is borrowed. A result without one of them is new.
 *  - Free functions accept NULL.
 *  - No C++ exception leaves the library, and no call aborts the process.
 *  - Calls return as soon as their work is enqueued. Calls that wait for the device say so in
 *    their first sentence.
 *  - Handles may be used from any thread, by one thread at a time. Several threads may read
 *    the metadata of one handle at the same time. */
#ifndef CGOTORCH_H_
#define CGOTORCH_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define CT_NOEXCEPT noexcept
#else
#define CT_NOEXCEPT
#endif
#pragma GCC visibility push(default)

/* The version of this header. It is raised in each release that changes a declaration below. The
 * Go package refuses a library of another version. */
#define CT_ABI_VERSION 12
int32_t ct_abi_version(void) CT_NOEXCEPT;

typedef struct ct_status ct_status;
typedef struct ct_stream ct_stream;
typedef struct ct_event ct_event;
typedef struct ct_tensor ct_tensor;
typedef struct ct_op ct_op;
typedef struct ct_overflow ct_overflow;
typedef struct ct_slab ct_slab;
typedef struct ct_watch ct_watch;
typedef struct ct_trace ct_trace;
typedef struct ct_graph ct_graph;
typedef struct ct_graph_pool ct_graph_pool;
typedef struct ct_jpeg_decoder ct_jpeg_decoder;
typedef struct ct_compiled ct_compiled;
typedef struct ct_store ct_store;
typedef struct ct_group ct_group;
typedef struct ct_reducer ct_reducer;

/* ---- Status ---------------------------------------------------------------------------------- */

enum {
  CT_INVALID_ARGUMENT = 1, /* a value, shape or dtype that the operator refuses */
  CT_UNSUPPORTED = 2,      /* no kernel for this device or dtype, or a feature that this device or machine does not have */
  CT_OUT_OF_MEMORY = 3,    /* no device memory or no host memory is left */
  /* A CUDA error has destroyed the context. Every later call on that device fails with this code. */
  CT_DEVICE_LOST = 4,
  CT_NO_DEVICE = 5,        /* CUDA is not there, or no CUDA device has that index */
  CT_NOT_FOUND = 6,        /* no operator of that name */
  CT_MISUSE = 7,           /* an exec used on a thread other than its own */
  CT_INTERNAL = 8,         /* any other failure */
  CT_NOT_CAPTURABLE = 9,   /* a call that cannot be part of a graph */
  CT_GROUP_FAILED = 10     /* another process of a group is lost, late or wrong, or cannot be reached */
};

int32_t ct_status_code(const ct_status* status) CT_NOEXCEPT;
/* The message stays valid until the status is freed. */
const char* ct_status_message(const ct_status* status) CT_NOEXCEPT;
/* Returns the number with which a ct_function reported its failure. The number is valid until the
 * status is freed. Returns 0 for a failure that no ct_function caused. */
uint64_t ct_status_cause(const ct_status* status) CT_NOEXCEPT;
/* Returns the site in the exec of the forward call whose derivative has failed. Returns 0 where it
 * is unknown, and for all failures but those of CT_CHECK_VALUES. */
uint64_t ct_status_site(const ct_status* status) CT_NOEXCEPT;
void ct_status_free(ct_status* status /* consumed */) CT_NOEXCEPT;

/* Frees a text that a function below returned as new. */
void ct_text_free(char* text /* consumed */) CT_NOEXCEPT;

/* ---- Devices --------------------------------------------------------------------------------- */

enum { CT_CPU = 0, CT_CUDA = 1 }; /* c10::DeviceType */

typedef struct ct_device {
  int32_t type;
  int32_t index; /* 0 for the CPU */
} ct_device;

/* Returns the number of CUDA devices. If the number is 0, *why is set to the reason, or to NULL
 * if no memory is left for the text. If the number is not 0, *why is set to NULL. The pointer
 * `why` may be NULL. */
int32_t ct_cuda_count(char** why /* new, or NULL */) CT_NOEXCEPT;

/* Checks that the device is there and works. Fails with CT_NO_DEVICE if the device is not there,
 * and with CT_DEVICE_LOST if it is lost. The message names the device, or says why CUDA is
 * absent. */
ct_status* ct_device_check(ct_device device) CT_NOEXCEPT;

/* Writes 10 * major + minor of a CUDA device's compute capability, and 0 for the CPU. */
ct_status* ct_device_capability(ct_device device, int32_t* out) CT_NOEXCEPT;
/* Returns the name that CUDA gives a device, or "" for the CPU and for a device that is not there.
 * The text lives as long as the process. */
const char* ct_device_name(ct_device device) CT_NOEXCEPT;

/* Waits for every stream of the device. */
ct_status* ct_device_synchronize(ct_device device) CT_NOEXCEPT;

typedef struct ct_memory {
  int64_t allocated;      /* bytes that are allocated now */
  int64_t peak_allocated; /* the largest value of `allocated` since the last reset */
  int64_t reserved;       /* bytes of the device that LibTorch's allocator holds; on the CPU equal to `allocated` */
  int64_t allocations;    /* the number of allocations since counting began */
  int64_t free;           /* bytes of a CUDA device that allocations can still take; 0 for the CPU */
} ct_memory;

/* Writes the counts of LibTorch's allocations on a device. On the CPU, allocations are not
 * counted before the first call of this function or of ct_memory_reset_peak. */
ct_status* ct_memory_stats(ct_device device, ct_memory* out) CT_NOEXCEPT;
ct_status* ct_memory_reset_peak(ct_device device) CT_NOEXCEPT;
/* Waits for every CUDA device. Then LibTorch's allocator gives its unused blocks back to the
 * devices. */
ct_status* ct_memory_release_cached(ct_device device) CT_NOEXCEPT;

/* ---- Streams and events ---------------------------------------------------------------------- */

/* Makes a handle of the device's default stream, which is CUDA's stream 0. A ct_exec that runs
 * work on the default stream must have this handle. A NULL stream in a ct_exec is an error. */
ct_status* ct_stream_default(ct_device device, ct_stream** out) CT_NOEXCEPT;
/* Makes a stream that belongs to the library. The stream does not wait for the default stream. A
 * lower number is a higher priority: 0 is the default, -1 is high. ct_stream_free puts the stream
 * into a list, from which a later ct_stream_new takes it. The CUDA stream itself is never
 * destroyed. */
ct_status* ct_stream_new(ct_device device, int32_t priority, ct_stream** out) CT_NOEXCEPT;
/* Makes a handle of a cudaStream_t that the caller made. NULL and cudaStreamLegacy mean the
 * default stream. The call refuses cudaStreamPerThread, because it is a different stream on each
 * thread. The call also refuses a stream of another device than `device`, and a device that is
 * not CUDA. The caller must keep the stream alive while LibTorch's allocator may still hand out
 * memory that was allocated or used on the stream. So the caller first frees all tensors in that
 * memory, then calls ct_memory_release_cached, and then may destroy the stream. ct_stream_free
 * frees the handle and leaves the stream alone. */
ct_status* ct_stream_external(ct_device device, void* stream, ct_stream** out) CT_NOEXCEPT;
void ct_stream_free(ct_stream* stream /* consumed */) CT_NOEXCEPT;
/* The number of the stream. Two streams that are alive at the same time have different numbers. */
uint64_t ct_stream_id(const ct_stream* stream) CT_NOEXCEPT;
/* The cudaStream_t; NULL for the default stream and on the CPU. */
void* ct_stream_native(const ct_stream* stream) CT_NOEXCEPT;
/* Sets *done to 1 if all work enqueued on the stream so far is done, else to 0. Does not wait. */
ct_status* ct_stream_query(const ct_stream* stream, int32_t* done) CT_NOEXCEPT;
/* Waits for all work enqueued on the stream so far. */
ct_status* ct_stream_synchronize(const ct_stream* stream) CT_NOEXCEPT;

/* Records an event: a mark after all work enqueued on the stream so far. timing: 1 allows
 * ct_event_elapsed. */
ct_status* ct_event_record(const ct_stream* stream, int32_t timing, ct_event** out) CT_NOEXCEPT;
void ct_event_free(ct_event* event /* consumed */) CT_NOEXCEPT;
/* Work enqueued on the stream from now on runs after the event. The host does not wait, with one
 * exception: a CPU stream waits here for an event of a CUDA device. */
ct_status* ct_stream_wait(const ct_stream* stream, const ct_event* event) CT_NOEXCEPT;
ct_status* ct_event_query(const ct_event* event, int32_t* done) CT_NOEXCEPT;
/* Does the same as ct_event_query, but does not tell the stream checker. If ct_event_query finds
 * the event done, the checker orders the host's later calls after the event. */
ct_status* ct_event_done(const ct_event* event, int32_t* done) CT_NOEXCEPT;
/* Waits for the event, without spinning. */
ct_status* ct_event_synchronize(const ct_event* event) CT_NOEXCEPT;
/* Asks for one notice about the event. When the event is done, or its device is lost, ct_notified
 * returns the token once. The caller may free the event before the notice. known: 1 tells the
 * stream checker that the host has waited for the event, as ct_event_synchronize does. */
ct_status* ct_event_notify(const ct_event* event, uint64_t token, int32_t known) CT_NOEXCEPT;
/* Waits until an event that was given to ct_event_notify is done. The call asks the device every
 * 20 us. Writes the tokens of the events that are done, at most `capacity` tokens, and returns
 * how many it wrote. The next call writes the remaining tokens. Returns 0 at once if there is no
 * event to wait for. Only one thread at a time may call ct_notified. */
int32_t ct_notified(uint64_t* tokens, int32_t capacity) CT_NOEXCEPT;
/* Writes the milliseconds between two timing events that are done. */
ct_status* ct_event_elapsed(const ct_event* start, const ct_event* end, double* milliseconds) CT_NOEXCEPT;

/* ---- Execution ------------------------------------------------------------------------------- */

/* The stream and the modes of one call. This is a plain value, so it may be copied. */
typedef struct ct_exec {
  const ct_stream* stream; /* borrowed; NULL is an error and does not mean the default stream */
  uint64_t thread;         /* ct_thread_id() of the only thread that may use this exec */
  int32_t grad;            /* 1: operators are recorded for backward */
  int32_t autocast;        /* the dtype of autocast, or -1 for no autocast */
  /* The caller's own number for the line of the program that makes the call, or 0. The reports of
   * the stream checker contain the number. */
  uint64_t site;
  ct_watch* watch;         /* borrowed, or NULL; notes the first wait for the device */
} ct_exec;

/* Returns a number of the calling thread. No other thread, living or ended, has the same number.
 * The number is never 0. */
uint64_t ct_thread_id(void) CT_NOEXCEPT;

/* ---- Tensors --------------------------------------------------------------------------------- */

/* The numbers of dtypes are those of c10::ScalarType. */

/* Makes a dense tensor on the exec's device. Its elements are a copy of host memory, which is
 * `bytes` bytes long. When the call returns, it has read the memory. For a CUDA device the call
 * therefore waits until CUDA has copied the memory to a buffer of CUDA's own. If the memory is
 * page-locked, the call waits for the stream. */
ct_status* ct_tensor_from_host(ct_exec x, const void* data, int64_t bytes, int32_t dtype, const int64_t* shape, int32_t dims,
                               ct_tensor** out) CT_NOEXCEPT;
/* Waits for the stream, and copies the tensor's elements to `data`. The elements are dense in
 * `data`, in row-major order. */
ct_status* ct_tensor_to_host(ct_exec x, const ct_tensor* tensor, void* data, int64_t bytes) CT_NOEXCEPT;
/* Waits for the stream and writes the value of a tensor of one element. */
ct_status* ct_tensor_item(ct_exec x, const ct_tensor* tensor, double* out) CT_NOEXCEPT;
/* Enqueues a copy of a tensor into new page-locked memory, and does not wait. *out is a dense
 * tensor on the CPU. The caller records an event after the copy. When that event is done, the
 * caller may read the elements of *out. On the CPU the copy is made at once. */
ct_status* ct_tensor_read(ct_exec x, const ct_tensor* tensor, ct_tensor** out /* new */) CT_NOEXCEPT;
/* Returns the address of the first element of a dense tensor on the CPU, for reading. The address
 * is valid while the handle lives. Returns NULL for any other tensor. */
const void* ct_tensor_host_data(const ct_tensor* tensor) CT_NOEXCEPT;
/* Returns the same address as ct_tensor_host_data, but does not tell the stream checker of a
 * read. To be used for memory that only the host uses. */
void* ct_tensor_memory(const ct_tensor* tensor) CT_NOEXCEPT;
/* Writes the value of a tensor of one element on the CPU. */
ct_status* ct_tensor_host_item(const ct_tensor* tensor, double* out) CT_NOEXCEPT;
/* Enqueues a copy of host memory into a dense tensor. If the memory is pinned, the call does not
 * wait. Pinned memory must stay unchanged until an event that was recorded after the copy is
 * done. If the memory is not pinned, the call has read it when it returns. For a CUDA device the
 * call then waits until CUDA has copied the memory to a buffer of CUDA's own. */
ct_status* ct_tensor_copy_from(ct_exec x, const ct_tensor* tensor, const void* data, int64_t bytes) CT_NOEXCEPT;
typedef struct ct_host_copy {
  const ct_tensor* tensor;
  const void* data;
  int64_t bytes;
} ct_host_copy;
/* Enqueues four things, in this order: a wait of the stream for the events of `behind`, the
 * timing event *began, the copies, and the timing event *done. The rules of ct_tensor_copy_from
 * hold for each copy. If the call fails, some of this work may already be enqueued. */
ct_status* ct_copies_from(ct_exec x, const ct_event* const* behind, int32_t events, const ct_host_copy* copies, int32_t count,
                          ct_event** began /* new */, ct_event** done /* new */) CT_NOEXCEPT;

/* Enqueues a copy of a dense tensor into new memory of the exec's device. The tensor may lie on
 * another device. Nothing is recorded for backward. Before this call, the caller makes the exec's
 * stream wait for the work that fills the tensor. For a copy from the CPU to a CUDA device, the
 * call waits until CUDA has copied the elements to a buffer of CUDA's own. If the elements are in
 * page-locked memory, the call waits for the stream. A copy from a CUDA device to the CPU is
 * refused: use ct_tensor_read. */
ct_status* ct_tensor_from_device(ct_exec x, const ct_tensor* tensor, ct_tensor** out /* new */) CT_NOEXCEPT;
/* Enqueues a copy of a dense tensor into host memory. If the memory is pinned, the call does not
 * wait. Pinned memory must be neither read nor written until an event that was recorded after the
 * copy is done. If the memory is not pinned, the call waits for the stream. */
ct_status* ct_tensor_copy_to(ct_exec x, const ct_tensor* tensor, void* data, int64_t bytes) CT_NOEXCEPT;

void ct_tensor_free(ct_tensor* tensor /* consumed */) CT_NOEXCEPT;
/* Frees `count` tensors in one call. NULL entries are skipped. */
void ct_tensors_free(ct_tensor* const* tensors /* each consumed */, int64_t count) CT_NOEXCEPT;
/* Returns a second handle of the same tensor. */
ct_tensor* ct_tensor_alias(const ct_tensor* tensor) CT_NOEXCEPT;
/* Returns a second handle of the same tensor. The new handle is lent: if another stream uses the
 * tensor through it, LibTorch's allocator is not told. The owner of the lent handle must
 * therefore make sure that every use has ended before the memory is freed or refilled. */
ct_tensor* ct_tensor_lend(const ct_tensor* tensor) CT_NOEXCEPT;
/* Reserves the number of a tensor's memory. This number is the field `storage` of ct_tensor_info.
 * While the ct_storage lives, the memory of no other tensor gets the number. The ct_storage does
 * not keep the memory itself alive. Returns NULL for a tensor without memory. */
typedef struct ct_storage ct_storage;
ct_storage* ct_tensor_storage(const ct_tensor* tensor) CT_NOEXCEPT;
void ct_storage_free(ct_storage* storage /* consumed */) CT_NOEXCEPT;

#define CT_STREAM_UNKNOWN (UINT64_MAX - 1) /* the stream of a gradient: backward chose the stream */

typedef struct ct_tensor_info {
  int32_t dtype;
  int32_t dims;
  ct_device device;
  int32_t requires_grad;
  int32_t is_leaf;
  int64_t elements;
  int64_t storage_bytes;
  uint64_t storage; /* the number of the memory, equal for tensors that share memory */
  uint64_t address; /* the address of the first element, 0 for a tensor without memory */
  uint64_t stream;  /* ct_stream_id of the stream on which the memory was allocated, or CT_STREAM_UNKNOWN */
  uint32_t version; /* the number of writes in place, 0 for inference tensors */
  int32_t is_strided; /* 1: element i0, i1, ... lies at address + element size * (i0 * stride0 + ...) */
  int32_t is_conj;    /* 1: the elements in memory are the conjugates of the values */
  int32_t is_neg;     /* 1: the elements in memory are the values with the other sign */
} ct_tensor_info;

void ct_tensor_describe(const ct_tensor* tensor, ct_tensor_info* out) CT_NOEXCEPT;
/* Writes `dims` numbers to `shape` and `dims` numbers to `strides`. Strides count elements.
 * `shape` or `strides` may be NULL. */
void ct_tensor_geometry(const ct_tensor* tensor, int64_t* shape, int64_t* strides) CT_NOEXCEPT;

/* ---- Operators ------------------------------------------------------------------------------- */

/* Finds an operator by its name, such as "aten::conv2d", and the name of its overload, such as
 * "Tensor". An overload without a name has the name "". The handle lives as long as the
 * process. */
ct_status* ct_op_find(const char* name, const char* overload, const ct_op** out /* borrowed */) CT_NOEXCEPT;
/* Writes the schema of an operator, as LibTorch prints it. */
ct_status* ct_op_schema(const ct_op* op, char** out /* new */) CT_NOEXCEPT;
/* Writes all schemas of namespace aten, and those of the libraries that ct_operators_open has
 * opened, as one text. Each line is one schema as LibTorch prints it. The lines are sorted. */
ct_status* ct_op_schemas(char** out /* new */) CT_NOEXCEPT;
/* Opens a shared library that registers operators, and runs its initialisers. `path` has a slash. A
 * child process opens the library first. A library that ends the child is refused, as is one that
 * registers no operators. A library that is open already is left as it is. The library stays open
 * as long as the process. */
ct_status* ct_operators_open(const char* path) CT_NOEXCEPT;

/* Arguments and results are passed in two arrays: an array of words and an array of tensors. In
 * the array of words, each argument is one of the kinds below, followed by the words of its
 * value. The tensors of the arguments follow one another in the array of tensors. Numbers are
 * converted to the type in the schema. A number for a tensor becomes a tensor without dimensions
 * on the CPU, which takes part in type promotion as a number does. */
enum {
  CT_ARG_NONE = 0,
  CT_ARG_DEFAULT = 1,      /* this argument's default in the schema */
  CT_ARG_REST_DEFAULT = 2, /* the defaults of this argument and of all that follow; the last word of a call */
  CT_ARG_TENSOR = 3,       /* one tensor; NULL is None */
  CT_ARG_TENSORS = 4,      /* the number of tensors; a tensor may be NULL only where the schema says Tensor?[] */
  CT_ARG_INT = 5,          /* the value; also for a dtype, a memory format or a layout */
  CT_ARG_FLOAT = 6,        /* the bits of a double */
  CT_ARG_BOOL = 7,         /* 0 or 1 */
  CT_ARG_INTS = 8,         /* the number of values, then the values */
  CT_ARG_FLOATS = 9,       /* the number of values, then the bits of each double */
  CT_ARG_BOOLS = 10,       /* the number of values, then the values */
  CT_ARG_SCALARS = 11,     /* the number of values, then the kind (INT, FLOAT or BOOL) and the value of each */
  CT_ARG_STRING = 12,      /* the number of bytes, then the bytes packed into words, the lowest byte first */
  CT_ARG_DEVICE = 13,      /* the exec's device */
  CT_ARG_COMPLEX = 14      /* the bits of two doubles: the real and the imaginary part */
};

typedef struct ct_results {
  int32_t word_capacity;   /* set by the caller */
  int32_t tensor_capacity; /* set by the caller */
  int32_t words;           /* the number of words written */
  int32_t tensors;         /* the number of tensors written */
} ct_results;

/* Runs an operator on the exec's stream. Results have the same form as arguments. A tensor that
 * LibTorch leaves undefined is a NULL of kind CT_ARG_TENSOR. If the results do not fit into the
 * arrays, nothing is written to the arrays and *overflow is set. results->words and
 * results->tensors then say how much room the results need. ct_overflow_take writes the results
 * of an overflow into larger arrays. */
ct_status* ct_call(ct_exec x, const ct_op* op, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
                   int32_t tensor_count, ct_results* results, uint64_t* result_words, ct_tensor** result_tensors /* new */,
                   ct_overflow** overflow /* new */) CT_NOEXCEPT;
void ct_overflow_take(ct_overflow* overflow /* consumed */, uint64_t* result_words, ct_tensor** result_tensors /* new */)
    CT_NOEXCEPT;

/* ---- Waits ----------------------------------------------------------------------------------- */

/* Makes a watch, which notes the first wait for the device. The watch observes the calls whose
 * exec has the watch. If such a call runs a backward, the watch also observes the backward's
 * operators on LibTorch's threads. On CUDA, CUPTI reports the calls that wait. On the CPU nothing
 * waits. There the watch notes the operators that would wait on CUDA. The core has a list of
 * their names. Fails with CT_UNSUPPORTED where CUPTI is absent or in use by another tool. */
ct_status* ct_watch_new(ct_device device, ct_watch** out) CT_NOEXCEPT;
/* Frees a watch. No call whose exec has the watch may be running. */
void ct_watch_free(ct_watch* watch /* consumed */) CT_NOEXCEPT;
/* Returns a text: the first call that waited, with the operators around that call. Returns NULL
 * while nothing has waited. The text is valid until the watch is freed. */
const char* ct_watch_seen(const ct_watch* watch) CT_NOEXCEPT;

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* Makes a pool: memory of a CUDA device for the work of graphs. All graphs of one pool use the
 * same memory. The caller therefore orders their launches one after another. */
ct_status* ct_graph_pool_new(ct_device device, ct_graph_pool** out) CT_NOEXCEPT;
/* Frees the handle. The memory is given back when the last graph of the pool and the last tensor
 * in its memory are freed. */
void ct_graph_pool_free(ct_graph_pool* pool /* consumed */) CT_NOEXCEPT;
/* Writes the number of bytes of the device that the pool holds. */
ct_status* ct_graph_pool_bytes(const ct_graph_pool* pool, int64_t* out) CT_NOEXCEPT;
/* Adds a stream to the pool, for captures and for the warm-up run before them. Each stream is
 * added once. */
ct_status* ct_graph_pool_add(ct_graph_pool* pool, const ct_stream* stream) CT_NOEXCEPT;
/* From this call to ct_graph_pool_leave, memory for the pool's streams is allocated from the
 * pool. A warm-up run before a capture thus fills the pool. Only one thread at a time may be
 * between the two calls. No capture may run meanwhile. */
ct_status* ct_graph_pool_enter(ct_graph_pool* pool) CT_NOEXCEPT;
void ct_graph_pool_leave(ct_graph_pool* pool) CT_NOEXCEPT;

/* Begins a capture. Waits if another thread captures on the same device. Until ct_graph_end, the
 * work of calls with x becomes part of a graph and does not run. If another stream waits for an
 * event of the capture, the later work of that stream becomes part of the graph too. If an
 * operator outside the capture draws random numbers of the device, it waits for the end of the
 * capture. x's stream must not be a default stream. Fails with CT_NOT_CAPTURABLE inside a
 * capture. */
ct_status* ct_graph_begin(ct_exec x, ct_graph_pool* pool, ct_graph** out) CT_NOEXCEPT;
/* Ends the capture. The thread that began it must make this call. *updated is 1 if the executable
 * form of `older` was updated in place and now belongs to `graph`. `older` can then only be
 * freed. Fails with CT_NOT_CAPTURABLE for work that cannot be a graph. The caller frees `graph`
 * whether or not the call fails. */
ct_status* ct_graph_end(ct_exec x, ct_graph* graph, ct_graph* older /* or NULL */, int32_t* updated) CT_NOEXCEPT;
/* Writes how many random numbers the capture has drawn so far. ct_graph_set_drawn with an earlier
 * count makes the capture draw the same numbers again. */
ct_status* ct_graph_drawn(const ct_graph* graph, uint64_t* out) CT_NOEXCEPT;
ct_status* ct_graph_set_drawn(ct_graph* graph, uint64_t drawn) CT_NOEXCEPT;
/* No capture begins on the device between ct_captures_hold and ct_captures_release.
 * ct_captures_hold waits for a capture that has begun. The caller makes the two calls around a
 * backward that may run a ct_function, unless the backward is part of a capture. On the CPU the
 * two calls do nothing. */
ct_status* ct_captures_hold(ct_device device) CT_NOEXCEPT;
void ct_captures_release(ct_device device) CT_NOEXCEPT;
/* Frees a graph. If its capture was begun and not ended, ends the capture. */
void ct_graph_free(ct_graph* graph /* consumed */) CT_NOEXCEPT;
/* Enqueues the graph's work. The random numbers of the graph follow the last numbers of the
 * device's default generator. */
ct_status* ct_graph_launch(ct_exec x, ct_graph* graph) CT_NOEXCEPT;

typedef struct ct_graph_size {
  int64_t nodes, kernels, copies, fills;
  int32_t random; /* 1: the graph draws random numbers */
} ct_graph_size;

ct_status* ct_graph_count(const ct_graph* graph, ct_graph_size* out) CT_NOEXCEPT;

/* ---- Autograd -------------------------------------------------------------------------------- */

/* Accumulates d(roots)/d(leaf) into the gradient of every leaf that requires a gradient. `grads`
 * may be NULL. An entry of `grads` may be NULL if its root has one element. The exec's stream
 * waits for the streams that forward used. */
ct_status* ct_backward(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, int32_t retain_graph)
    CT_NOEXCEPT;
/* Computes gradients as ct_backward does, but only for `inputs`. The gradients are returned in
 * `out` and not accumulated. An input on which no root depends is an error, or gets NULL if
 * allow_unused is 1. */
ct_status* ct_gradients(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, ct_tensor* const* inputs,
                        int32_t input_count, int32_t retain_graph, int32_t create_graph, int32_t allow_unused,
                        ct_tensor** out /* new, input_count of them */) CT_NOEXCEPT;
/* Fails for a tensor that is not a leaf, and for a tensor of an integer dtype. */
ct_status* ct_tensor_set_requires_grad(const ct_tensor* tensor, int32_t requires_grad) CT_NOEXCEPT;
/* Sets *out to a handle of the accumulated gradient, or to NULL if there is no gradient. When the
 * call begins, *out is a handle or NULL. If it is a handle of the gradient already, it stays. If
 * it is a handle of another tensor, it is freed. */
void ct_tensor_grad(const ct_tensor* tensor, ct_tensor** out /* borrowed in, new out */) CT_NOEXCEPT;
/* Replaces the gradient; NULL removes it. */
ct_status* ct_tensor_set_grad(const ct_tensor* tensor, const ct_tensor* grad /* or NULL */) CT_NOEXCEPT;
/* Counts a write that was not made by LibTorch. A later backward that needs the old value then
 * fails. */
void ct_tensor_bump_version(const ct_tensor* tensor) CT_NOEXCEPT;

/* ---- Recomputing ----------------------------------------------------------------------------- */

/* A function of the caller that computes a tensor from a tensor. Backward calls the function on
 * the thread that runs the graph, which may be a thread of LibTorch. The function is called
 * inside another call of the library. No exception may leave the function. */
typedef struct ct_function {
  uint64_t token; /* the caller's number for the function, an argument of run and of release */
  /* Computes *out from `in`, and records the computation for backward. Returns 0, or a number that
   * stands for the cause of a failure: see ct_status_cause. */
  uint64_t (*run)(uint64_t token, ct_tensor* in /* consumed */, ct_tensor** out /* new */);
  /* The library calls `release`, on any thread, when nothing refers to a number any more. It does
   * so once with the token, and once with each number other than 0 that `run` returned. */
  void (*release)(uint64_t number);
} ct_function;

/* Adds `result` to the autograd graph. The caller has computed `result` from `in` while nothing
 * was recorded.
 *
 * *out is a new tensor with the same elements as `result`, and with a node of the graph. Of all
 * tensors between `in` and `result`, the graph keeps only `in`. In backward the node runs f on a
 * leaf that is equal to `in`, and differentiates f's result. The gradients of the leaves that f
 * reads are accumulated. If `in` requires a gradient, the node passes the gradient of `in` on.
 *
 * f's result must have the shape and dtype of `result`. ct_gradients through the node fails. If
 * `result` has an integer dtype, which has no derivative, *out has no node. */
ct_status* ct_recompute(ct_exec x, ct_function f /* consumed */, const ct_tensor* in, const ct_tensor* result, ct_tensor** out)
    CT_NOEXCEPT;

/* ---- Host slabs ------------------------------------------------------------------------------ */

/* Makes a slab: page-aligned host memory that is a source or a target of copies. All its bytes
 * are 0 at first. */
ct_status* ct_slab_new(int64_t bytes, ct_slab** out) CT_NOEXCEPT;
/* Maps the first `bytes` bytes of a file, and makes a slab of this memory. `file` is a descriptor
 * that is open for reading. The caller may close it after the call. The memory must not be
 * written. The file must not become shorter while the slab lives. */
ct_status* ct_slab_map(int32_t file, int64_t bytes, ct_slab** out) CT_NOEXCEPT;
/* Makes a slab of memory that belongs to the caller and must outlive the slab. The content stays
 * as it is. Fails with CT_INVALID_ARGUMENT for memory that does not begin at a page, and for
 * memory that reaches into another slab. */
ct_status* ct_slab_over(void* data, int64_t bytes, ct_slab** out) CT_NOEXCEPT;
/* Unlocks the memory, and unmaps it unless it belongs to the caller. Copies that read or write
 * the memory must be done before this call. */
void ct_slab_free(ct_slab* slab /* consumed */) CT_NOEXCEPT;
/* Makes a tensor on the exec's device whose elements lie in the slab, from the byte `offset` on. A
 * CUDA device reads and writes them over the bus, so the slab must be page-locked. The memory is
 * freed when the slab and all such tensors are. Fails for a slab of a file, and for a tensor that
 * does not lie in the slab. */
ct_status* ct_slab_tensor(ct_exec x, ct_slab* slab, int64_t offset, int32_t dtype, const int64_t* shape, int32_t dims,
                          ct_tensor** out /* new */) CT_NOEXCEPT;
void* ct_slab_data(const ct_slab* slab) CT_NOEXCEPT;
/* Page-locks the slab for every CUDA device: copies then do not wait. Does nothing if the slab is
 * locked already. Fails with CT_NO_DEVICE without CUDA. Fails with CT_OUT_OF_MEMORY if the system
 * refuses. The message then says how many bytes are locked already and what the limit is. */
ct_status* ct_slab_pin(ct_slab* slab) CT_NOEXCEPT;
int32_t ct_slab_pinned(const ct_slab* slab) CT_NOEXCEPT;

/* ---- Checks ---------------------------------------------------------------------------------- */

enum {
  /* The stream checker looks for a race: two accesses to the same memory, one of them a write,
   * without an order between the two. They are accesses of two streams, or of a stream and the
   * host. The checker treats a CPU stream like a stream of a device, as if its work ran later. It
   * does not know accesses that were made before it was turned on. Only one caller at a time may
   * use the checker. */
  CT_CHECK_RACES = 1,
  /* ct_call and the backward functions fail with CT_INTERNAL if an operator makes a NaN from inputs
   * without NaN, or an Inf from finite inputs. They wait for the device. */
  CT_CHECK_VALUES = 2
};

/* Turns the checks on whose numbers `on` is the sum of, and the others off, for the whole
 * process. */
ct_status* ct_check_streams(int32_t on) CT_NOEXCEPT;

#define CT_STREAM_HOST (UINT64_MAX - 2) /* in place of a stream: the access was made by the host */

typedef struct ct_access {
  char op[64];        /* the operator, such as "aten::add_" */
  char what[16];      /* "read", "read early", "written", "allocated" or "freed" */
  uint64_t stream;    /* ct_stream_id, CT_STREAM_HOST, or CT_STREAM_UNKNOWN for a stream of LibTorch's own */
  ct_device device;   /* the device of the stream */
  int32_t number;     /* the number of the stream; the checker counts the streams that it meets */
  int32_t is_default; /* 1: the stream is the default stream of its device */
  int32_t backward;   /* 1: the operator ran in backward */
  uint64_t site;      /* the site in the exec of the call, 0 where unknown */
  uint64_t forward;   /* in backward: the site of the forward call that is differentiated here, or 0 */
  int64_t begin, end; /* the access is to the bytes of the memory from begin up to end */
} ct_access;

enum {
  CT_RACE_ACCESS = 1, /* nothing orders `later` after `earlier` */
  /* The memory is freed while `earlier` may still use it. LibTorch's allocator hands the memory out
   * again in the order of the stream of `later`, and nothing orders that stream after `earlier`. */
  CT_RACE_FREE = 2,
  /* The kernel of `later` reads before its wait what a kernel has written since the last full edge:
   * Note [Programmatic edges] in csrc/kernels/edges.h. */
  CT_RACE_EARLY = 3
};

typedef struct ct_race {
  int32_t kind;
  ct_access earlier, later;
  ct_device device;  /* the device of the memory */
  int64_t bytes;     /* the size of the memory */
  int32_t slab;      /* 1: the memory is a ct_slab's */
  char made_by[64];  /* the operator that allocated the memory, or "" */
  uint64_t made_at;  /* the site of that operator, or 0 */
  int32_t again;     /* 1: a race of these operators and sites was taken since the last ct_check_streams */
} ct_race;

/* Writes a race that was found and not yet taken, and returns 1. Returns 0 if there is none. Of
 * races with equal operators and sites, one waits to be taken. */
int32_t ct_race_take(ct_race* out) CT_NOEXCEPT;

/* Tells the checker that the host reads or writes memory of a slab. write: 1 for a write. Does
 * nothing for memory that is not a slab's, and while the checker is off. */
void ct_check_host(const void* data, int64_t bytes, int32_t write, uint64_t site) CT_NOEXCEPT;
/* Tells the checker that the exec's next kernel begins behind a full edge, because work that is a
 * graph elsewhere begins or has ended here. */
void ct_check_full_edge(ct_exec x) CT_NOEXCEPT;
/* Tells the checker that all uses of a slab's memory before the event are over. The memory begins
 * at `data` and has `bytes` bytes. Does nothing for memory that is not a slab's. */
void ct_check_over(const void* data, int64_t bytes, const ct_event* event) CT_NOEXCEPT;

/* ---- Side by side ---------------------------------------------------------------------------- */

/* Begins a branch: work that runs on the stream `side` beside the work of its parent stream.
 * `side` waits only for the parent, and only the parent waits for `side`. Before this call, the
 * caller makes `side` wait for the parent's work so far.
 *
 * Until ct_branch_end, `side` keeps alive the memory that the branch uses, if it is memory of the
 * parent or of the parent's own parents. Therefore LibTorch's allocator is not told of these
 * uses. Fails if `side` is the parent, if `side` is not on the parent's device, and if `side` is
 * in a branch already. */
ct_status* ct_branch_begin(const ct_stream* side, const ct_stream* parent) CT_NOEXCEPT;
/* Ends the branch. The stream of x is the parent, and must wait for `side` already. *out is the
 * result as a tensor of the parent. If the result has a gradient, the memory that the branch uses
 * stays alive until a backward through *out has ended. Without a gradient the memory is let go at
 * once. `result` may be NULL.
 *
 * transient: 1 promises two things about the operators by which the parent reads *out. These
 * operators are enqueued before the next branch begins. They do not keep *out for backward.
 * LibTorch's allocator is then not told of these uses. */
ct_status* ct_branch_end(ct_exec x, const ct_stream* side, const ct_tensor* result, int32_t transient, ct_tensor** out /* new */) CT_NOEXCEPT;

/* Finds which of two ways to do a piece of work is faster on the device. A ct_choice tries the
 * two ways alternately, in calls that the program makes in any case. */
typedef struct ct_choice ct_choice;
typedef struct ct_trial ct_trial; /* one call that is measured */

enum {
  CT_FASTER = 0,       /* the second way is faster */
  CT_FILLS_DEVICE = 1, /* not faster: the pieces of the work fill the device, even one after another */
  CT_LAUNCH_BOUND = 2, /* not faster: to enqueue the work takes the host longer than the work takes the device */
  CT_HIDDEN_WAIT = 3,  /* not faster: the host waits for the device during the work */
  CT_SHARED_QUEUE = 4, /* not faster: there are more streams than queues on the device */
  CT_NOT_WAITED_FOR = 5 /* about as fast, but nothing waits for one part of the work */
};

typedef struct ct_decision {
  char key[192];
  int32_t graph;     /* 1: for work in graphs */
  int32_t second;    /* 1: the second way is taken */
  int32_t why;       /* CT_FASTER or one of the reasons that follow it */
  /* Medians over the measured calls, in microseconds. first_us and second_us are the times of the
   * two ways on the device. host_us is the time that the host takes to enqueue the second way. */
  double first_us, second_us, host_us;
} ct_decision;

/* Makes a choice. `trials` is how many calls are measured, of both ways together. `gain` is the
 * share of the first way's time that the second way has to save. If `trials` or `gain` is 0, the
 * core's own value is used. Returns NULL if no memory is left. */
ct_choice* ct_choice_new(int32_t trials, double gain) CT_NOEXCEPT;
void ct_choice_free(ct_choice* choice) CT_NOEXCEPT; /* all its trials must have ended */
enum { CT_DECIDED = 0, CT_OPEN = 1 };
/* Begins a call of the work, and says which way the call takes: *second is 1 for the second way.
 * *state says whether the choice is decided. If the call is not measured, *out is NULL. graph: 1
 * for the work of a graph, or of its warm-up run, which may wait for the device. streams: how
 * many streams the second way uses. */
ct_status* ct_choice_begin(ct_choice* choice, ct_exec x, const char* key, int32_t graph, int32_t streams, ct_trial** out /* new */,
                           int32_t* second, int32_t* state) CT_NOEXCEPT;
/* Ends a trial. *state says whether the choice is decided now, with this call counted. The last
 * trial for a graph waits for the device. */
ct_status* ct_trial_end(ct_exec x, ct_trial* trial /* consumed */, int32_t* state) CT_NOEXCEPT;
void ct_trial_free(ct_trial* trial) CT_NOEXCEPT; /* ends a trial whose work failed */
/* Returns 1 while trials for an undecided choice are under way. graph: 1 asks about trials in
 * graphs, 0 about trials outside of graphs. */
int32_t ct_choice_open(ct_choice* choice, int32_t graph) CT_NOEXCEPT;
/* Writes a decision that was not yet taken, and returns 1. Returns 0 if there is none. */
int32_t ct_choice_take(ct_choice* choice, ct_decision* out) CT_NOEXCEPT;

/* Lets a backward compute the two gradients of a convolution or linear layer on two streams. One
 * gradient is that of the layer's input, the other that of its weights. If `always` of
 * ct_overlap_new is 1, this begins with a layer's second call. If `always` is 0, it is done only
 * where it is faster. A linear layer takes part only if its forward ran after the first
 * ct_overlap of the process was made. */
typedef struct ct_overlap ct_overlap;

typedef struct ct_overlap_counts {
  int64_t layers;          /* the number of different layers that ran on two streams */
  int64_t parallel, serial;  /* calls on two streams, and on one */
  int64_t late;            /* those parallel calls for which nothing waits before the backward has ended */
  double saved_us;         /* the time that calls on two streams saved, as measured for the choice */
  int64_t kept_bytes;      /* the largest number of bytes that a backward kept alive for late gradients */
  int64_t short_of_memory; /* layers that went back to one stream because memory was short */
} ct_overlap_counts;

ct_status* ct_overlap_new(int32_t always, ct_overlap** out) CT_NOEXCEPT;
void ct_overlap_free(ct_overlap* overlap) CT_NOEXCEPT; /* no backward may be using it */
ct_choice* ct_overlap_choice(ct_overlap* overlap /* borrowed */) CT_NOEXCEPT;
ct_status* ct_overlap_count(ct_overlap* overlap, ct_overlap_counts* out) CT_NOEXCEPT;
/* Does the same as ct_backward, with an overlap. There is at least one stream in `sides`. Before
 * the call, the caller makes all sides wait for the exec's stream. Nothing else runs on the
 * sides. After the call, the caller makes the exec's stream wait for all sides, also if the call
 * fails. `pool` is the pool of the graph that is being captured or is in its warm-up run. Without
 * a graph, `pool` is NULL. In a warm-up run the call may wait for the device. */
ct_status* ct_backward_overlapping(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, int32_t retain_graph,
                                   ct_overlap* overlap, const ct_stream* const* sides, int32_t side_count, ct_graph_pool* pool) CT_NOEXCEPT;

/* ---- Decoding JPEG --------------------------------------------------------------------------- */

/* Makes a decoder of JPEG files on NVIDIA's NVJPG engines. It serves the pools of cgotorch_decode.h
 * as their ctd_device, with `lanes` lanes, at least one. Each lane has a stream of its own. Calls of
 * the ctd_device come from threads of the pools, have no ct_exec, and enqueue their work on the
 * stream of their lane. They do not take part in captures, and do not disturb them.
 *
 * Fails with CT_UNSUPPORTED for the CPU, for a device without such engines, and where the library
 * nvJPEG is absent. The call may wait for the device. */
ct_status* ct_jpeg_decoder_new(ct_device device, int32_t lanes, ct_jpeg_decoder** out /* new */) CT_NOEXCEPT;
/* Frees the handle. The decoder itself is freed when no pool uses it any more. */
void ct_jpeg_decoder_free(ct_jpeg_decoder* decoder /* consumed */) CT_NOEXCEPT;
/* Returns the decoder's ctd_device, which is valid until the decoder itself is freed. */
const void* ct_jpeg_decoder_device(const ct_jpeg_decoder* decoder) CT_NOEXCEPT;

typedef struct ct_jpeg_counts {
  int64_t decoded; /* frames that were decoded */
  int64_t failed;  /* frames that were given back */
  int32_t gave_up; /* 1: too many calls failed one after another, so the decoder fails all files */
} ct_jpeg_counts;

void ct_jpeg_decoder_count(const ct_jpeg_decoder* decoder, ct_jpeg_counts* out) CT_NOEXCEPT;
/* Returns why the last call failed of those in which no file was decoded. NULL means that there was
 * no such call. */
ct_status* ct_jpeg_decoder_failure(const ct_jpeg_decoder* decoder) CT_NOEXCEPT;

/* ---- Compiled packages ----------------------------------------------------------------------- */

/* Opens a shared library that AOTInductor has compiled, and makes a model of it on the exec's
 * device. This runs code of the library. `folder` holds the kernels and the other files of the
 * library's package. The files must stay there while the model lives. The call may wait for the
 * device. Text that the library writes about a failure goes to the standard error. */
ct_status* ct_compiled_new(ct_exec x, const char* library, const char* folder, ct_compiled** out /* new */) CT_NOEXCEPT;
/* Frees a model. No work that a call of it has enqueued may be running. */
void ct_compiled_free(ct_compiled* compiled /* consumed */) CT_NOEXCEPT;

typedef struct ct_compiled_info {
  int32_t inputs, outputs;
  int32_t weights;
  int32_t shares;   /* 1: the weights can be copied and replaced; 0: some are packed, or on another device */
  int32_t captured; /* 1: a call was captured, so a graph holds addresses of weights */
} ct_compiled_info;

void ct_compiled_describe(const ct_compiled* compiled, ct_compiled_info* out) CT_NOEXCEPT;
/* Returns the name of a weight in the Python model. Weights are numbered in the order of their
 * names. The text is valid until the model is freed. */
const char* ct_compiled_weight_name(const ct_compiled* compiled, int32_t index) CT_NOEXCEPT;
/* Makes a tensor with the shape and the strides of a weight. If `values` is NULL, the tensor is a
 * copy of the weight. Otherwise it is a copy of `values`, which has the weight's shape and
 * dtype. */
ct_status* ct_compiled_weight(ct_exec x, const ct_compiled* compiled, int32_t index, const ct_tensor* values /* or NULL */,
                              ct_tensor** out /* new */) CT_NOEXCEPT;
/* Makes later calls read these weights. They must come from ct_compiled_weight, of this model or
 * of another model of the same library. Models may share them. The model keeps them alive until
 * the next call of this function. The caller orders the calls after the work that fills the
 * weights, and makes the first call as after ct_compiled_new. */
ct_status* ct_compiled_set_weights(ct_exec x, ct_compiled* compiled, ct_tensor* const* weights, int32_t count) CT_NOEXCEPT;
/* Enqueues a call of the model on the exec's stream. `outputs` has room for as many tensors as
 * ct_compiled_info says. The model runs without a gradient. One thread at a time may call a
 * model. Calls on different streams need no order, with one exception: the first call of a model
 * computes constants, and later calls must wait for it. A model reads inputs as memory with the
 * dtype, the shape and the strides that it was compiled for. The caller checks them. draws: 1 for
 * a model that draws random numbers. */
ct_status* ct_compiled_run(ct_exec x, ct_compiled* compiled, ct_tensor* const* inputs, int32_t count, int32_t draws,
                           ct_tensor** outputs /* each new, or NULL */) CT_NOEXCEPT;

/* ---- Several processes ----------------------------------------------------------------------- */

/* Connects to a store of c10d, which keeps keys and values for the processes of one run. With
 * listener >= 0 the call first begins to serve the store on this listening socket, which it
 * consumes. `port` is then the socket's port. Waits until the store answers. It tries to connect
 * for at most timeout_ms, and waits for ever for a process that has the port and does not answer.
 * So do later calls on the store. Several threads may use a store, and one waits for the other. */
ct_status* ct_store_new(const char* host, int32_t port, int32_t listener, int32_t timeout_ms, ct_store** out /* new */) CT_NOEXCEPT;
/* Closes the connection. A store that is served by this handle ends with it and with the groups
 * that were made from it. */
void ct_store_free(ct_store* store /* consumed */) CT_NOEXCEPT;
/* Each of these waits for the answer of the store. */
ct_status* ct_store_set(const ct_store* store, const char* key, const char* value) CT_NOEXCEPT;
/* *value is NULL if the store has no such key. The value has at most 8 MiB. */
ct_status* ct_store_get(const ct_store* store, const char* key, char** value /* new, or NULL */) CT_NOEXCEPT;
ct_status* ct_store_delete(const ct_store* store, const char* key) CT_NOEXCEPT;

/* Joins `world` processes to a group on the CPU, over c10d's Gloo. All processes name the same
 * prefix, which no other group of the store has. `address` is this machine's address at which the
 * others reach it. Waits for the other processes, at most timeout_ms. A collective of the group
 * waits for the other ranks at most timeout_ms. compare: 1 to compare the collectives of a backward
 * over the ranks before they are made, at the cost of a small collective each. Gloo ends the
 * process if the ranks make different ones. */
ct_status* ct_group_gloo(const ct_store* store, const char* prefix, const char* address, int32_t rank, int32_t world, int32_t timeout_ms,
                         int32_t compare, ct_group** out /* new */) CT_NOEXCEPT;

/* The name of a new group of NCCL. One rank makes it and gives it to the others. */
typedef struct ct_group_id {
  char bytes[128];
} ct_group_id;
/* Opens NCCL. Fails with CT_UNSUPPORTED where the library is absent. */
ct_status* ct_group_id_new(ct_group_id* out) CT_NOEXCEPT;
/* Begins to join `world` processes to a group over NCCL. ct_group_ready tells when all have
 * joined. Does not wait for the other processes. */
ct_status* ct_group_nccl(ct_device device, const ct_group_id* id, int32_t rank, int32_t world, ct_group** out /* new */) CT_NOEXCEPT;
/* Sets *ready to 1 if the group can be used. Fails if the group has failed. Does not wait. */
ct_status* ct_group_ready(ct_group* group, int32_t* ready) CT_NOEXCEPT;
/* Ends the group's work that is enqueued, so that no stream waits for another rank any more. Its
 * results are undefined. Later collectives fail. Several threads may call it, also while another
 * one uses the group. Collectives that run over Gloo end only by their time. */
void ct_group_abort(ct_group* group) CT_NOEXCEPT;
/* The argument `group` of streamtorch::batch_norm_act, for norms over the ranks of the group. */
int64_t ct_group_number(const ct_group* group) CT_NOEXCEPT;
/* Frees the group. No work of the group may be running. */
void ct_group_free(ct_group* group /* consumed */) CT_NOEXCEPT;

enum { CT_SUM = 0, CT_PRODUCT = 1, CT_MAX = 2, CT_MIN = 3, CT_MEAN = 4 };

/* The collectives. All ranks call the same ones in the same order, with tensors of the same dtypes,
 * shapes and strides. The tensors are dense. They lie on the group's device, on which the exec's
 * stream is. On CUDA the work is enqueued on the exec's stream, and the call does not wait for
 * other ranks. On the CPU the call returns when the work is done. */

/* Each tensor becomes the sum over all ranks, or as `op` says. All tensors have one dtype. */
ct_status* ct_all_reduce(ct_exec x, ct_group* group, ct_tensor* const* tensors, int32_t count, int32_t op) CT_NOEXCEPT;
/* Does the same with one tensor, for the rank `root` alone. The tensors of the others are undefined
 * afterwards. */
ct_status* ct_reduce(ct_exec x, ct_group* group, ct_tensor* tensor, int32_t op, int32_t root) CT_NOEXCEPT;
/* Each tensor becomes that of the rank `root`. */
ct_status* ct_broadcast(ct_exec x, ct_group* group, ct_tensor* const* tensors, int32_t count, int32_t root) CT_NOEXCEPT;
/* `to` becomes the tensors `from` of all ranks, one after another. */
ct_status* ct_all_gather(ct_exec x, ct_group* group, ct_tensor* to, const ct_tensor* from) CT_NOEXCEPT;
/* `from` is cut into a piece for each rank. `to` becomes the sum of this rank's pieces, or as `op`
 * says. */
ct_status* ct_reduce_scatter(ct_exec x, ct_group* group, ct_tensor* to, const ct_tensor* from, int32_t op) CT_NOEXCEPT;
ct_status* ct_send(ct_exec x, ct_group* group, const ct_tensor* tensor, int32_t to) CT_NOEXCEPT;
ct_status* ct_receive(ct_exec x, ct_group* group, ct_tensor* tensor, int32_t from) CT_NOEXCEPT;
/* Returns the sum of the tensor over all ranks. Its gradient is the sum of the gradients over all
 * ranks: the backward of each rank makes a collective too. */
ct_status* ct_sum_over_ranks(ct_exec x, ct_group* group, const ct_tensor* tensor, ct_tensor** out /* new */) CT_NOEXCEPT;

/* Reduces gradients while a backward computes them. `parameters` are leaves on the group's device.
 * They are cut into buckets of at most `bucket_bytes`, the last parameters first. The parameters
 * and the group outlive the reducer. */
ct_status* ct_reducer_new(ct_group* group, ct_tensor* const* parameters, int32_t count, int64_t bucket_bytes, ct_reducer** out /* new */)
    CT_NOEXCEPT;
void ct_reducer_free(ct_reducer* reducer /* consumed */) CT_NOEXCEPT;
/* Until ct_reducer_end, the reducer follows the backward of the roots on the exec's stream. When
 * all gradients of a bucket have arrived, and all earlier buckets are under way, the bucket
 * becomes its mean over all ranks. `sum`: 1 for the sum. The collectives run on `side`, on which
 * nothing else runs meanwhile. A gradient of a weight that streamtorch::cast_weights has cast is
 * reduced in the dtype of the cast, unless the weight has a gradient already. One backward at a
 * time uses a reducer. zeros: 1 to give a parameter without a gradient one of zeros. All buckets
 * are then reduced in ct_reducer_end, because the ranks may lack different gradients. */
ct_status* ct_reducer_begin(ct_exec x, ct_reducer* reducer, const ct_stream* side, ct_tensor* const* roots, int32_t count, int32_t sum,
                            int32_t zeros) CT_NOEXCEPT;
/* Ends what ct_reducer_begin has begun. The exec's stream waits for the collectives. Without
 * `zeros` the call fails if a parameter had no gradient, and missing[i] is 1 for each of them.
 * failed: 1 after a backward that has failed. */
ct_status* ct_reducer_end(ct_exec x, ct_reducer* reducer, int32_t failed, uint8_t* missing) CT_NOEXCEPT;
typedef struct ct_reducer_counts {
  int64_t buckets;   /* collectives of the last backward */
  int64_t early;     /* those that began before the backward had ended */
  int64_t bytes;     /* the bytes that they reduced */
} ct_reducer_counts;
void ct_reducer_count(const ct_reducer* reducer, ct_reducer_counts* out) CT_NOEXCEPT;
/* Writes for each parameter how often a backward that the reducer did not follow has added to its
 * gradient so far. */
void ct_reducer_missed(const ct_reducer* reducer, int64_t* out) CT_NOEXCEPT;

/* ---- Counting handles ------------------------------------------------------------------------ */

typedef struct ct_live {
  int64_t tensors, streams, events, slabs, statuses;
  int64_t functions; /* the tokens of ct_function and the numbers of its failures that are not yet released */
  int64_t graphs;    /* graphs and pools of graphs */
  int64_t decoders;  /* JPEG decoders, until their last user has released them */
  int64_t compiled;  /* compiled models */
  int64_t groups;    /* stores, groups and reducers */
  int64_t slab_bytes, pinned_bytes;
} ct_live;

void ct_live_handles(ct_live* out) CT_NOEXCEPT;

/* ---- Traces ---------------------------------------------------------------------------------- */

enum { CT_TRACE_KERNEL = 1, CT_TRACE_COPY = 2, CT_TRACE_FILL = 3 };
enum { CT_COPY_OTHER = 0, CT_COPY_HOST_TO_DEVICE = 1, CT_COPY_DEVICE_TO_HOST = 2, CT_COPY_DEVICE_TO_DEVICE = 3, CT_COPY_PEER = 4 };

#define CT_STREAM_FOREIGN (UINT64_C(1) << 62) /* a stream without ct_stream; the device and CUPTI's number are added to it */

/* One kernel, copy or fill that a device ran. Times are nanoseconds of CLOCK_REALTIME. */
typedef struct ct_trace_record {
  uint64_t start, end;  /* nanoseconds, when the device began and ended */
  uint64_t launched;    /* when the host made the call, 0 where unknown or before the trace began */
  uint64_t bytes;       /* the number of bytes copied or filled, 0 for a kernel */
  uint64_t stream;      /* ct_stream_id of the stream that the driver reports, or CT_STREAM_FOREIGN */
  uint32_t name;        /* the number of a kernel's name, for ct_trace_name */
  uint32_t thread;      /* gettid() of the thread that made the call, 0 where unknown */
  uint32_t blocks;      /* the blocks of a kernel */
  int32_t device;
  uint8_t kind;         /* CT_TRACE_… */
  uint8_t copy;         /* CT_COPY_… */
  uint8_t pageable;     /* 1: the host memory of a copy was not page-locked */
} ct_trace_record;

/* Records the work of all CUDA devices until ct_trace_stop, at most max_records records. The
 * trace is process-wide. Only one trace runs at a time. Fails with CT_NO_DEVICE without CUDA.
 * Fails with CT_UNSUPPORTED where CUPTI is absent or in use by another tool. */
ct_status* ct_trace_start(int64_t max_records) CT_NOEXCEPT;
/* Waits for every CUDA device and ends the trace. The trace also ends if the call fails. */
ct_status* ct_trace_stop(ct_trace** out) CT_NOEXCEPT;
void ct_trace_free(ct_trace* trace /* consumed */) CT_NOEXCEPT;
/* Returns the records, in the order of their starts. The records are valid until the trace is
 * freed. */
const ct_trace_record* ct_trace_records(const ct_trace* trace, int64_t* count) CT_NOEXCEPT;
/* Returns the number of records that were lost because there was no room. */
int64_t ct_trace_lost(const ct_trace* trace) CT_NOEXCEPT;
/* Returns the name of a kernel. The text is valid until the trace is freed. Returns "" for a
 * number that no record has. */
const char* ct_trace_name(const ct_trace* trace, uint32_t name) CT_NOEXCEPT;

/* ---- Process-wide ---------------------------------------------------------------------------- */

/* Seeds LibTorch's default generator of every device. */
ct_status* ct_seed(uint64_t seed) CT_NOEXCEPT;
/* Reads the state of a device's default generator, so that it can be restored. The state has at
 * most 8 KiB. *size is the capacity of `data` on entry, and the number of bytes written on
 * return. */
ct_status* ct_generator_state(ct_device device, void* data, int64_t* size) CT_NOEXCEPT;
ct_status* ct_generator_set_state(ct_device device, const void* data, int64_t size) CT_NOEXCEPT;

enum {
  CT_SWITCH_CUDNN_BENCHMARK = 0,
  CT_SWITCH_TF32 = 1, /* for both cuBLAS and cuDNN */
  CT_SWITCH_DETERMINISTIC = 2,
  CT_SWITCH_CUDNN_BENCHMARK_LIMIT = 3 /* a number of algorithms, 0 for all */
};
ct_status* ct_switch_set(int32_t which, int32_t on) CT_NOEXCEPT;
ct_status* ct_switch_get(int32_t which, int32_t* on) CT_NOEXCEPT;
/* Sets the number of threads that an operator may use on the CPU if it begins later. */
ct_status* ct_threads_set(int32_t count) CT_NOEXCEPT;
int32_t ct_threads_get(void) CT_NOEXCEPT;
/* LibTorch's version, such as "2.11.0+cu130". The text is never freed. */
const char* ct_libtorch_version(void) CT_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
