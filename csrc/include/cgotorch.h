/* The C ABI of streamtorch: LibTorch with the stream as an argument.
 *
 * LibTorch keeps the current stream, device, grad mode and autocast in thread-local storage. A
 * goroutine changes threads between two calls. A value set by one call is therefore wrong at the
 * next. Here every call that enqueues work takes a ct_exec, which says where and how. The core
 * sets LibTorch's state at the beginning of that call and restores it at the end. No call sets
 * state for a later call, except those in the last section, "Process-wide". The calls that watch
 * (traces, waits, the stream checker, counts of memory and handles) are turned on and off.
 *
 * Rules that hold for every function:
 *  - A function that can fail returns NULL, or a ct_status that the caller frees. On failure no
 *    out-parameter is written.
 *  - new       The caller owns the result and frees it with the function of its type.
 *    borrowed  The caller still owns the value. The callee does not use it after the call returns.
 *    consumed  The callee owns the value from now on, also when the call fails.
 *    Parameters are borrowed and results are new where nothing else is said.
 *  - Free functions accept NULL.
 *  - No C++ exception leaves the library and nothing aborts the process.
 *  - Calls return as soon as their work is enqueued. Calls that wait for the device say so in
 *    their first sentence.
 *  - Handles may be used from any thread, by one thread at a time. Several threads may read
 *    metadata at once. */
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

/* Raised with each release in which a declaration below has changed. The Go package refuses
 * libraries of another number. */
#define CT_ABI_VERSION 6
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

/* ---- Status ---------------------------------------------------------------------------------- */

enum {
  CT_INVALID_ARGUMENT = 1, /* a value, shape or dtype that the operator refuses */
  CT_UNSUPPORTED = 2,      /* no kernel for this device or dtype */
  CT_OUT_OF_MEMORY = 3,    /* of the device, or of page-locked host memory */
  /* A CUDA error has destroyed the context. Every later call on that device fails with this code. */
  CT_DEVICE_LOST = 4,
  CT_NO_DEVICE = 5,        /* CUDA, or that CUDA device, is not there */
  CT_NOT_FOUND = 6,        /* no operator of that name */
  CT_MISUSE = 7,           /* an exec used on a thread other than its own */
  CT_INTERNAL = 8,         /* anything else */
  CT_NOT_CAPTURABLE = 9    /* a call that cannot be part of a graph */
};

int32_t ct_status_code(const ct_status* status) CT_NOEXCEPT;
/* The message stays valid until the status is freed. */
const char* ct_status_message(const ct_status* status) CT_NOEXCEPT;
/* The number that a ct_function returned to fail, until the status is freed. 0 for any other
 * failure. */
uint64_t ct_status_cause(const ct_status* status) CT_NOEXCEPT;
void ct_status_free(ct_status* status /* consumed */) CT_NOEXCEPT;

/* Frees text that a function below returned as new. */
void ct_text_free(char* text /* consumed */) CT_NOEXCEPT;

/* ---- Devices --------------------------------------------------------------------------------- */

enum { CT_CPU = 0, CT_CUDA = 1 }; /* c10::DeviceType */

typedef struct ct_device {
  int32_t type;
  int32_t index; /* 0 for the CPU */
} ct_device;

/* The number of CUDA devices. Where there are none it is 0, with a reason in *why (new, may be
 * NULL on return). */
int32_t ct_cuda_count(char** why /* new, or NULL */) CT_NOEXCEPT;

/* Fails with CT_NO_DEVICE or CT_DEVICE_LOST and names the device. The text of CT_NO_DEVICE says
 * why CUDA is absent. */
ct_status* ct_device_check(ct_device device) CT_NOEXCEPT;

/* Waits for every stream of the device. */
ct_status* ct_device_synchronize(ct_device device) CT_NOEXCEPT;

typedef struct ct_memory {
  int64_t allocated;      /* bytes handed out now */
  int64_t peak_allocated; /* the most since the last reset */
  int64_t reserved;       /* bytes that LibTorch's allocator holds of the device; on the CPU equal to allocated */
  int64_t allocations;    /* allocations since counting began */
} ct_memory;

/* LibTorch's allocations on a device. On the CPU counting begins with the first call of this
 * function. */
ct_status* ct_memory_stats(ct_device device, ct_memory* out) CT_NOEXCEPT;
ct_status* ct_memory_reset_peak(ct_device device) CT_NOEXCEPT;
/* Waits for every CUDA device. Then LibTorch's allocator gives its unused blocks back to the
 * devices. */
ct_status* ct_memory_release_cached(ct_device device) CT_NOEXCEPT;

/* ---- Streams and events ---------------------------------------------------------------------- */

/* The device's default stream. 0 is a real stream: the handle, not the number, says that a
 * stream is set. */
ct_status* ct_stream_default(ct_device device, ct_stream** out) CT_NOEXCEPT;
/* A stream of the library's own that does not wait for the default stream. A lower number is a
 * higher priority: 0 is the default, -1 is high. Freeing the handle returns the stream to a list
 * for later use. The CUDA stream itself is never destroyed. */
ct_status* ct_stream_new(ct_device device, int32_t priority, ct_stream** out) CT_NOEXCEPT;
/* A handle of a cudaStream_t that the caller made. NULL, or cudaStreamLegacy, is the default
 * stream. Refused are cudaStreamPerThread (another stream on each thread), a stream of another
 * device, and a device that is not CUDA. The caller keeps the stream alive while memory that was
 * allocated or used on it may be handed out again. That is until ct_memory_release_cached after
 * the last tensor is freed. Freeing the handle leaves the stream alone. */
ct_status* ct_stream_external(ct_device device, void* stream, ct_stream** out) CT_NOEXCEPT;
void ct_stream_free(ct_stream* stream /* consumed */) CT_NOEXCEPT;
/* Unequal for streams that are alive at the same time. */
uint64_t ct_stream_id(const ct_stream* stream) CT_NOEXCEPT;
/* The cudaStream_t; NULL for the default stream and on the CPU. */
void* ct_stream_native(const ct_stream* stream) CT_NOEXCEPT;
/* Whether all work enqueued so far is done. Does not wait. */
ct_status* ct_stream_query(const ct_stream* stream, int32_t* done) CT_NOEXCEPT;
/* Waits for all work enqueued so far. */
ct_status* ct_stream_synchronize(const ct_stream* stream) CT_NOEXCEPT;

/* A mark behind all work enqueued on the stream so far. timing: 1 allows ct_event_elapsed. */
ct_status* ct_event_record(const ct_stream* stream, int32_t timing, ct_event** out) CT_NOEXCEPT;
void ct_event_free(ct_event* event /* consumed */) CT_NOEXCEPT;
/* Work enqueued on the stream from now on runs after the event. The host does not wait. */
ct_status* ct_stream_wait(const ct_stream* stream, const ct_event* event) CT_NOEXCEPT;
ct_status* ct_event_query(const ct_event* event, int32_t* done) CT_NOEXCEPT;
/* As ct_event_query, but the stream checker does not conclude that the program knows the work to
 * be done. */
ct_status* ct_event_done(const ct_event* event, int32_t* done) CT_NOEXCEPT;
/* Waits for the event, without spinning. */
ct_status* ct_event_synchronize(const ct_event* event) CT_NOEXCEPT;
/* Asks for a notice when the event is done or its device is lost. ct_notified then returns the
 * token, once. The event may be freed meanwhile. With known the stream checker takes it that the
 * host then knows the work to be done. */
ct_status* ct_event_notify(const ct_event* event, uint64_t token, int32_t known) CT_NOEXCEPT;
/* Waits until an event of ct_event_notify is done, asking the device every 20 us. Writes the
 * tokens of all events that are done, at most capacity. The next call gives the rest. Returns
 * their number. Returns 0 at once when no event is asked about. For one thread at a time. */
int32_t ct_notified(uint64_t* tokens, int32_t capacity) CT_NOEXCEPT;
/* Milliseconds between two timing events that are done. */
ct_status* ct_event_elapsed(const ct_event* start, const ct_event* end, double* milliseconds) CT_NOEXCEPT;

/* ---- Execution ------------------------------------------------------------------------------- */

/* Where and how a call runs. A plain value: copy it freely. */
typedef struct ct_exec {
  const ct_stream* stream; /* borrowed; NULL is an error and not "the default" */
  uint64_t thread;         /* ct_thread_id() of the only thread that may use it */
  int32_t grad;            /* 1: operators are recorded for backward */
  int32_t autocast;        /* a dtype, or -1 for none */
  /* The caller's number for the place of the call, 0 for none. The stream checker's reports give
   * it back. */
  uint64_t site;
  ct_watch* watch;         /* borrowed; notes the first wait for the device, or NULL */
} ct_exec;

/* A number that no other thread, living or ended, has. Never 0. */
uint64_t ct_thread_id(void) CT_NOEXCEPT;

/* ---- Tensors --------------------------------------------------------------------------------- */

/* dtypes are numbered as c10::ScalarType. */

/* Makes a dense tensor on the exec's device from a copy of host memory, bytes long. The memory
 * is read before return: for a CUDA device the call waits until the memory has been staged. */
ct_status* ct_tensor_from_host(ct_exec x, const void* data, int64_t bytes, int32_t dtype, const int64_t* shape, int32_t dims,
                               ct_tensor** out) CT_NOEXCEPT;
/* Waits for the stream. Then the tensor's elements lie in data, dense and in row-major order. */
ct_status* ct_tensor_to_host(ct_exec x, const ct_tensor* tensor, void* data, int64_t bytes) CT_NOEXCEPT;
/* Waits for the stream and writes the value of a tensor of one element. */
ct_status* ct_tensor_item(ct_exec x, const ct_tensor* tensor, double* out) CT_NOEXCEPT;
/* Enqueues a copy of a tensor into new page-locked memory, and does not wait. *out is a dense
 * tensor on the CPU. Its elements may be read when an event recorded behind the copy is done. On
 * the CPU the copy is made at once. */
ct_status* ct_tensor_read(ct_exec x, const ct_tensor* tensor, ct_tensor** out /* new */) CT_NOEXCEPT;
/* The first element of a dense tensor on the CPU, to be read while the handle lives. NULL for
 * any other tensor. */
const void* ct_tensor_host_data(const ct_tensor* tensor) CT_NOEXCEPT;
/* As ct_tensor_host_data, for memory that only the host uses: the stream checker is not told. */
void* ct_tensor_memory(const ct_tensor* tensor) CT_NOEXCEPT;
/* The value of a tensor of one element on the CPU. */
ct_status* ct_tensor_host_item(const ct_tensor* tensor, double* out) CT_NOEXCEPT;
/* Enqueues a copy of host memory into a dense tensor. From pinned memory the call does not wait:
 * the memory must stay unchanged until an event recorded behind the copy is done. Other memory
 * is read before return: for a CUDA device the call waits until the memory has been staged. */
ct_status* ct_tensor_copy_from(ct_exec x, const ct_tensor* tensor, const void* data, int64_t bytes) CT_NOEXCEPT;
typedef struct ct_host_copy {
  const ct_tensor* tensor;
  const void* data;
  int64_t bytes;
} ct_host_copy;
/* Enqueues in one call: waits for the events, a timing event, the copies, a timing event. Each
 * copy is made as ct_tensor_copy_from makes it. Where the call fails some of that may be under
 * way. */
ct_status* ct_copies_from(ct_exec x, const ct_event* const* behind, int32_t events, const ct_host_copy* copies, int32_t count,
                          ct_event** began /* new */, ct_event** done /* new */) CT_NOEXCEPT;

/* Enqueues a copy of a dense tensor into new memory of the exec's device. The tensor may lie on
 * another device. Nothing is recorded for backward. The caller has made the exec's stream wait
 * for the work that fills the tensor. From the CPU to a CUDA device the call waits until the
 * elements have been staged. From a CUDA device to the CPU it is refused: see ct_tensor_read. */
ct_status* ct_tensor_from_device(ct_exec x, const ct_tensor* tensor, ct_tensor** out /* new */) CT_NOEXCEPT;
/* Enqueues a copy of a dense tensor into host memory. To pinned memory the call does not wait:
 * the memory must be neither read nor written until an event recorded behind the copy is done.
 * For other memory the call waits for the stream. */
ct_status* ct_tensor_copy_to(ct_exec x, const ct_tensor* tensor, void* data, int64_t bytes) CT_NOEXCEPT;

void ct_tensor_free(ct_tensor* tensor /* consumed */) CT_NOEXCEPT;
/* Frees count tensors in one call. NULL entries are skipped. */
void ct_tensors_free(ct_tensor* const* tensors /* each consumed */, int64_t count) CT_NOEXCEPT;
/* A second handle of the same tensor. */
ct_tensor* ct_tensor_alias(const ct_tensor* tensor) CT_NOEXCEPT;
/* A second handle whose owner orders the end of every use before the memory is freed or
 * refilled. Uses on other streams then need not be recorded with LibTorch's allocator. */
ct_tensor* ct_tensor_lend(const ct_tensor* tensor) CT_NOEXCEPT;
/* A hold on the number of a tensor's memory, ct_tensor_info.storage. While it lives no other
 * tensor's memory has that number. It does not keep the memory. NULL for a tensor without
 * memory. */
typedef struct ct_storage ct_storage;
ct_storage* ct_tensor_storage(const ct_tensor* tensor) CT_NOEXCEPT;
void ct_storage_free(ct_storage* storage /* consumed */) CT_NOEXCEPT;

#define CT_STREAM_UNKNOWN (UINT64_MAX - 1) /* of a gradient: backward chose the stream */

typedef struct ct_tensor_info {
  int32_t dtype;
  int32_t dims;
  ct_device device;
  int32_t requires_grad;
  int32_t is_leaf;
  int64_t elements;
  int64_t storage_bytes;
  uint64_t storage; /* equal for tensors that share memory */
  uint64_t address; /* of the first element, 0 for a tensor without memory */
  uint64_t stream;  /* ct_stream_id of the stream on which the storage was made, or CT_STREAM_UNKNOWN */
  uint32_t version; /* counts writes in place, 0 for inference tensors */
} ct_tensor_info;

void ct_tensor_describe(const ct_tensor* tensor, ct_tensor_info* out) CT_NOEXCEPT;
/* Writes dims numbers to each of shape and strides (in elements); either may be NULL. */
void ct_tensor_geometry(const ct_tensor* tensor, int64_t* shape, int64_t* strides) CT_NOEXCEPT;

/* ---- Operators ------------------------------------------------------------------------------- */

/* Finds "aten::conv2d" with an overload ("" for the plain one). The handle lives as long as the
 * process. */
ct_status* ct_op_find(const char* name, const char* overload, const ct_op** out /* borrowed */) CT_NOEXCEPT;
/* Every schema of namespace aten as LibTorch prints it, one a line, sorted. */
ct_status* ct_op_schemas(char** out /* new */) CT_NOEXCEPT;

/* Arguments and results travel as one array of words and one of tensors. Each argument is a word
 * of kind, followed by its words. Tensors are taken from the other array in order. Numbers are
 * converted to the type in the schema. */
enum {
  CT_ARG_NONE = 0,
  CT_ARG_DEFAULT = 1,      /* this argument's default in the schema */
  CT_ARG_REST_DEFAULT = 2, /* the same for all arguments that follow, the last word of a call */
  CT_ARG_TENSOR = 3,       /* one tensor; NULL is None */
  CT_ARG_TENSORS = 4,      /* count; that many tensors, NULL only where the schema says Tensor?[] */
  CT_ARG_INT = 5,          /* value; also dtype, memory format and layout */
  CT_ARG_FLOAT = 6,        /* the bits of a double */
  CT_ARG_BOOL = 7,         /* 0 or 1 */
  CT_ARG_INTS = 8,         /* count, values */
  CT_ARG_FLOATS = 9,       /* count, bits */
  CT_ARG_BOOLS = 10,       /* count, values */
  CT_ARG_SCALARS = 11,     /* count, then kind (INT, FLOAT or BOOL) and value of each */
  CT_ARG_STRING = 12,      /* bytes, then those bytes packed into words, little end first */
  CT_ARG_DEVICE = 13       /* the exec's device */
};

typedef struct ct_results {
  int32_t word_capacity;   /* set by the caller */
  int32_t tensor_capacity; /* set by the caller */
  int32_t words;           /* number written */
  int32_t tensors;         /* number written */
} ct_results;

/* Runs an operator on the exec's stream. Results are written in the form of arguments. A tensor
 * that LibTorch leaves undefined is a NULL of kind CT_ARG_TENSOR. When the results do not fit,
 * nothing is written to the arrays and *overflow is set. results->words and results->tensors
 * then say how much room they need: fetch them with ct_overflow_take. */
ct_status* ct_call(ct_exec x, const ct_op* op, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
                   int32_t tensor_count, ct_results* results, uint64_t* result_words, ct_tensor** result_tensors /* new */,
                   ct_overflow** overflow /* new */) CT_NOEXCEPT;
void ct_overflow_take(ct_overflow* overflow /* consumed */, uint64_t* result_words, ct_tensor** result_tensors /* new */)
    CT_NOEXCEPT;

/* ---- Waits ----------------------------------------------------------------------------------- */

/* A watch notes the first wait for the device in calls whose exec carries it. Calls that
 * backward makes on LibTorch's threads are among them. On CUDA CUPTI tells of the calls that
 * wait. On the CPU nothing waits: there the operators that would wait on CUDA are known by name.
 * Fails with CT_UNSUPPORTED where CUPTI is absent or in use by another tool. */
ct_status* ct_watch_new(ct_device device, ct_watch** out) CT_NOEXCEPT;
/* Frees a watch. No call that carries it may be running. */
void ct_watch_free(ct_watch* watch /* consumed */) CT_NOEXCEPT;
/* The first call that waited, with the operators around it. NULL while nothing has waited. Valid
 * until the watch is freed. */
const char* ct_watch_seen(const ct_watch* watch) CT_NOEXCEPT;

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* Memory of a CUDA device for the work of graphs. Graphs of one pool use the same memory: the
 * caller orders their launches one after another. */
ct_status* ct_graph_pool_new(ct_device device, ct_graph_pool** out) CT_NOEXCEPT;
/* Frees the handle. The memory goes back when the last graph and tensor in it are freed. */
void ct_graph_pool_free(ct_graph_pool* pool /* consumed */) CT_NOEXCEPT;
/* The number of bytes that the pool holds of the device. */
ct_status* ct_graph_pool_bytes(const ct_graph_pool* pool, int64_t* out) CT_NOEXCEPT;
/* Adds a stream for captures into the pool, and for the warm-up run before them. To be added
 * once. */
ct_status* ct_graph_pool_add(ct_graph_pool* pool, const ct_stream* stream) CT_NOEXCEPT;
/* From here to ct_graph_pool_leave, memory for the pool's streams is allocated from the pool. A
 * warm-up run before a capture thus fills the pool. For one thread at a time, and not during a
 * capture. */
ct_status* ct_graph_pool_enter(ct_graph_pool* pool) CT_NOEXCEPT;
void ct_graph_pool_leave(ct_graph_pool* pool) CT_NOEXCEPT;

/* Begins a capture. Until ct_graph_end, calls with x, and with execs of streams that wait for
 * events of it, become part of a graph and do not run. Waits for a capture of the device by
 * another thread. Operators of other streams that draw random numbers of the device wait for
 * this capture. x's stream is not a default stream. Fails with CT_NOT_CAPTURABLE inside a
 * capture. */
ct_status* ct_graph_begin(ct_exec x, ct_graph_pool* pool, ct_graph** out) CT_NOEXCEPT;
/* Ends the capture, on the thread that began it. *updated is 1 where the older graph's
 * executable form was updated in place. The older graph is then only good to be freed. Fails
 * with CT_NOT_CAPTURABLE for work that cannot be a graph. The caller frees the graph in either
 * case. */
ct_status* ct_graph_end(ct_exec x, ct_graph* graph, ct_graph* older /* or NULL */, int32_t* updated) CT_NOEXCEPT;
/* How many random numbers the capture has drawn so far. Set back, the capture draws the same
 * numbers again. */
ct_status* ct_graph_drawn(const ct_graph* graph, uint64_t* out) CT_NOEXCEPT;
ct_status* ct_graph_set_drawn(ct_graph* graph, uint64_t drawn) CT_NOEXCEPT;
/* Between these two calls no capture begins on the device. For a backward outside of captures,
 * through an autograd graph whose functions are called again. ct_captures_hold waits for a
 * capture under way. On the CPU they do nothing. */
ct_status* ct_captures_hold(ct_device device) CT_NOEXCEPT;
void ct_captures_release(ct_device device) CT_NOEXCEPT;
/* Frees a graph, and ends a capture that was begun and not ended. */
void ct_graph_free(ct_graph* graph /* consumed */) CT_NOEXCEPT;
/* Enqueues the graph's work. Its random numbers follow the last numbers of its device's default
 * generator. */
ct_status* ct_graph_launch(ct_exec x, ct_graph* graph) CT_NOEXCEPT;

typedef struct ct_graph_size {
  int64_t nodes, kernels, copies, fills;
  int32_t random; /* 1: it draws random numbers */
} ct_graph_size;

ct_status* ct_graph_count(const ct_graph* graph, ct_graph_size* out) CT_NOEXCEPT;

/* ---- Autograd -------------------------------------------------------------------------------- */

/* Accumulates d(roots)/d(leaf) into the gradient of every leaf that requires a gradient. grads
 * may be NULL, and each of its entries may be NULL where the root has one element. The exec's
 * stream waits for the streams that forward used. */
ct_status* ct_backward(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, int32_t retain_graph)
    CT_NOEXCEPT;
/* As ct_backward, for the named inputs alone. Gradients are returned and not accumulated. A
 * gradient is NULL where the roots do not depend on the input and allow_unused is set. */
ct_status* ct_gradients(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, ct_tensor* const* inputs,
                        int32_t input_count, int32_t retain_graph, int32_t create_graph, int32_t allow_unused,
                        ct_tensor** out /* new, input_count of them */) CT_NOEXCEPT;
/* Fails for a tensor that is no leaf, or of an integer dtype. */
ct_status* ct_tensor_set_requires_grad(const ct_tensor* tensor, int32_t requires_grad) CT_NOEXCEPT;
/* The accumulated gradient. *out keeps its value when it is a handle of the gradient already. It
 * is freed and replaced when it is a handle of another tensor, and becomes NULL when there is no
 * gradient. */
void ct_tensor_grad(const ct_tensor* tensor, ct_tensor** out /* borrowed in, new out */) CT_NOEXCEPT;
/* Replaces the gradient; NULL removes it. */
ct_status* ct_tensor_set_grad(const ct_tensor* tensor, const ct_tensor* grad /* or NULL */) CT_NOEXCEPT;
/* Counts a write from outside LibTorch. A later backward that needs the old value then fails. */
void ct_tensor_bump_version(const ct_tensor* tensor) CT_NOEXCEPT;

/* ---- Recomputing ----------------------------------------------------------------------------- */

/* A function of the caller's that maps a tensor to a tensor, for use in backward. It is called
 * on the thread that runs backward, which may be one of LibTorch's, and inside another call. It
 * must not unwind. */
typedef struct ct_function {
  uint64_t token; /* the caller's number for the function, given to both */
  /* Computes *out from in, and records the computation for backward. Returns 0, or a number for
   * the cause of a failure: see ct_status_cause. */
  uint64_t (*run)(uint64_t token, ct_tensor* in /* consumed */, ct_tensor** out /* new */);
  /* Called when nothing refers to the number any more: once with the token, and once with each
   * number that run returned. On any thread. */
  void (*release)(uint64_t number);
} ct_function;

/* Gives a result a place in the autograd graph. The result was computed from in with nothing
 * recorded. *out is that result. Its backward runs f on a leaf that is equal to in and
 * differentiates f's result. It accumulates into the leaves that f reads, and passes on the
 * gradient of in where in requires a gradient. Of all tensors between in and result the autograd
 * graph keeps in alone. f's result must have result's shape and dtype. ct_gradients through it
 * fails. A result without derivative, of an integer dtype, is recorded as such. */
ct_status* ct_recompute(ct_exec x, ct_function f /* consumed */, const ct_tensor* in, const ct_tensor* result, ct_tensor** out)
    CT_NOEXCEPT;

/* ---- Host slabs ------------------------------------------------------------------------------ */

/* Page-aligned host memory, zero at first, as the source of copies to a device. */
ct_status* ct_slab_new(int64_t bytes, ct_slab** out) CT_NOEXCEPT;
/* Maps the first bytes of a file. The file is open for reading and may be closed afterwards. The
 * memory must not be written, and the file must not become shorter while the slab is there. */
ct_status* ct_slab_map(int32_t file, int64_t bytes, ct_slab** out) CT_NOEXCEPT;
/* A slab of memory that stays the caller's and must outlive the slab. The content stays as it is.
 * Fails with CT_INVALID_ARGUMENT for memory that does not begin at a page, and for memory that
 * reaches into another slab. */
ct_status* ct_slab_over(void* data, int64_t bytes, ct_slab** out) CT_NOEXCEPT;
/* Unlocks the memory, and unmaps it unless it is the caller's. Copies that read from it must be
 * done. */
void ct_slab_free(ct_slab* slab /* consumed */) CT_NOEXCEPT;
void* ct_slab_data(const ct_slab* slab) CT_NOEXCEPT;
/* Page-locks the slab for every CUDA device: copies then do not wait. Does nothing when the slab
 * is locked already. Fails with CT_NO_DEVICE without CUDA. Fails with CT_OUT_OF_MEMORY and the
 * numbers when the system refuses. */
ct_status* ct_slab_pin(ct_slab* slab) CT_NOEXCEPT;
int32_t ct_slab_pinned(const ct_slab* slab) CT_NOEXCEPT;

/* ---- The stream checker ---------------------------------------------------------------------- */

/* Turns the checker on or off. The checker looks for two accesses to the same memory that
 * nothing orders: of two streams, or of a stream and the host. It treats CPU streams as if they
 * ran their work later, like those of a device. It is process-wide, and for one caller at a
 * time. Accesses before it was turned on are not known. */
ct_status* ct_check_streams(int32_t on) CT_NOEXCEPT;

#define CT_STREAM_HOST (UINT64_MAX - 2) /* no stream: the program itself */

typedef struct ct_access {
  char op[64];        /* the operator, such as "aten::add_" */
  char what[16];      /* "read", "written", "allocated" or "freed" */
  uint64_t stream;    /* ct_stream_id, CT_STREAM_HOST, or CT_STREAM_UNKNOWN for a stream of LibTorch's own */
  ct_device device;   /* the stream's */
  int32_t number;     /* of the stream, in the order in which the checker met them */
  int32_t is_default; /* the default stream of its device */
  int32_t backward;   /* the operator ran in backward */
  uint64_t site;      /* the exec's site of the call, 0 where unknown */
  uint64_t forward;   /* in backward, the site of the forward call whose derivative this is, or 0 */
  int64_t begin, end; /* bytes of the memory */
} ct_access;

enum {
  CT_RACE_ACCESS = 1, /* nothing orders later behind earlier */
  /* The memory is handed out again in the order of later's stream, which is not ordered behind
   * earlier. */
  CT_RACE_FREE = 2
};

typedef struct ct_race {
  int32_t kind;
  ct_access earlier, later;
  ct_device device;  /* of the memory */
  int64_t bytes;     /* of the memory */
  int32_t slab;      /* it is a ct_slab's */
  char made_by[64];  /* the operator that allocated it, or "" */
  uint64_t made_at;  /* the site of that operator, or 0 */
} ct_race;

/* Takes a race. Writes a race that was found and not taken yet, and returns 0 when there is
 * none. After each ct_check_streams(1) each pair of operators and sites is reported once. */
int32_t ct_race_take(ct_race* out) CT_NOEXCEPT;

/* Tells the checker that the host reads or writes memory of a slab. Does nothing while the
 * checker is off, and for other memory. */
void ct_check_host(const void* data, int64_t bytes, int32_t write, uint64_t site) CT_NOEXCEPT;
/* Tells the checker that uses of a slab's memory before the event are over, and nothing else. */
void ct_check_over(const void* data, int64_t bytes, const ct_event* event) CT_NOEXCEPT;

/* ---- Side by side ---------------------------------------------------------------------------- */

/* Begins a branch on a stream that only its parent forks to and waits for. Until ct_branch_end
 * the stream keeps alive the memory that it uses of the parent and of the parent's own parents.
 * LibTorch's allocator is not told of each use. The stream waits already for the parent's work
 * so far. Fails for a stream of another device, for the parent, and for a stream that is in a
 * branch already. */
ct_status* ct_branch_begin(const ct_stream* side, const ct_stream* parent) CT_NOEXCEPT;
/* Ends the branch, once the parent of exec x waits for the side. out is the result as the
 * parent's tensor. With a gradient, the memory that the branch uses stays alive until a backward
 * through out has ended. Without a gradient it is let go at once. transient: the parent reads
 * out by operators that are enqueued before the next branch begins and do not keep it for
 * backward. The allocator then need not be told of them. result may be NULL. */
ct_status* ct_branch_end(ct_exec x, const ct_stream* side, const ct_tensor* result, int32_t transient, ct_tensor** out /* new */) CT_NOEXCEPT;

/* Finds which of two ways to do a piece of work is faster on the device. It tries the ways
 * alternately, in calls that are made anyway. */
typedef struct ct_choice ct_choice;
typedef struct ct_trial ct_trial; /* one call that is measured */

enum {
  CT_FASTER = 0,       /* the second way is faster */
  CT_FILLS_DEVICE = 1, /* not faster: one piece of the work after the other fills the device */
  CT_LAUNCH_BOUND = 2, /* not faster: the host takes longer to enqueue the work than the device to do it */
  CT_HIDDEN_WAIT = 3,  /* not faster: the host waits for the device in the work */
  CT_SHARED_QUEUE = 4, /* not faster: there are more streams than the device has queues */
  CT_NOT_WAITED_FOR = 5 /* about as fast, and nothing waits for a part of the work */
};

typedef struct ct_decision {
  char key[192];
  int32_t graph;     /* 1: for work in graphs */
  int32_t second;    /* 1: the second way is taken */
  int32_t why;       /* CT_FASTER and on */
  double first_us, second_us, host_us; /* medians: on the device, and on the host to enqueue the second way */
} ct_decision;

/* trials: calls that are measured, both ways together. gain: share of the first way's time that
 * the second way has to save. 0 stands for the core's own numbers. NULL without memory. */
ct_choice* ct_choice_new(int32_t trials, double gain) CT_NOEXCEPT;
void ct_choice_free(ct_choice* choice) CT_NOEXCEPT; /* its trials are over */
enum { CT_DECIDED = 0, CT_OPEN = 1 };
/* Says which way to go. state: whether the choice is decided. *out is NULL where nothing is
 * measured. graph: 1 for the work of a graph, or of its warm-up run, which may wait for the
 * device. streams: how many streams the second way uses. */
ct_status* ct_choice_begin(ct_choice* choice, ct_exec x, const char* key, int32_t graph, int32_t streams, ct_trial** out /* new */,
                           int32_t* second, int32_t* state) CT_NOEXCEPT;
/* Ends a trial. state: as above, with this call counted. The last trial for a graph waits for
 * the device. */
ct_status* ct_trial_end(ct_exec x, ct_trial* trial /* consumed */, int32_t* state) CT_NOEXCEPT;
void ct_trial_free(ct_trial* trial) CT_NOEXCEPT; /* for work that failed */
/* Whether trials for an undecided choice are under way, in graphs or eagerly. */
int32_t ct_choice_open(ct_choice* choice, int32_t graph) CT_NOEXCEPT;
/* Takes a decision. Writes a decision that was not taken yet, and returns 0 when there is none. */
int32_t ct_choice_take(ct_choice* choice, ct_decision* out) CT_NOEXCEPT;

/* Lets a backward run two gradients of a convolution or linear layer on two streams: that of its
 * input and that of its weights. With always it does so from a layer's second call on, else
 * where it is faster. Linear layers take part whose forward ran after the first ct_overlap of the
 * process was made. */
typedef struct ct_overlap ct_overlap;

typedef struct ct_overlap_counts {
  int64_t layers;          /* different layers that ran on two streams */
  int64_t beside, serial;  /* calls on two streams, and on one */
  int64_t late;            /* of beside, calls that nothing waits for before the backward has ended */
  double saved_us;         /* by calls on two streams, as measured for the choice */
  int64_t kept_bytes;      /* the most that a backward kept alive for late gradients */
  int64_t short_of_memory; /* layers that went back to one stream for want of memory */
} ct_overlap_counts;

ct_status* ct_overlap_new(int32_t always, ct_overlap** out) CT_NOEXCEPT;
void ct_overlap_free(ct_overlap* overlap) CT_NOEXCEPT; /* no backward may be using it */
ct_choice* ct_overlap_choice(ct_overlap* overlap /* borrowed */) CT_NOEXCEPT;
ct_status* ct_overlap_count(ct_overlap* overlap, ct_overlap_counts* out) CT_NOEXCEPT;
/* As ct_backward, with an overlap. There is at least one side. The sides wait for the exec's
 * stream already, and nothing else runs on them. Afterwards the caller makes the exec's stream
 * wait for them, also where this call fails. pool: of the graph whose capture, or warm-up run,
 * this is, or NULL. The call may wait for the device in that warm-up run. */
ct_status* ct_backward_overlapping(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, int32_t retain_graph,
                                   ct_overlap* overlap, const ct_stream* const* sides, int32_t side_count, ct_graph_pool* pool) CT_NOEXCEPT;

/* ---- Counting handles ------------------------------------------------------------------------ */

typedef struct ct_live {
  int64_t tensors, streams, events, slabs, statuses;
  int64_t functions; /* of ct_function, and failures of theirs, that have not been released */
  int64_t graphs;    /* and their pools */
  int64_t slab_bytes, pinned_bytes;
} ct_live;

void ct_live_handles(ct_live* out) CT_NOEXCEPT;

/* ---- Traces ---------------------------------------------------------------------------------- */

enum { CT_TRACE_KERNEL = 1, CT_TRACE_COPY = 2, CT_TRACE_FILL = 3 };
enum { CT_COPY_OTHER = 0, CT_COPY_HOST_TO_DEVICE = 1, CT_COPY_DEVICE_TO_HOST = 2, CT_COPY_DEVICE_TO_DEVICE = 3, CT_COPY_PEER = 4 };

#define CT_STREAM_FOREIGN (UINT64_C(1) << 62) /* with device and CUPTI's number: a stream without ct_stream */

/* One kernel, copy or fill that a device ran. Times are nanoseconds of CLOCK_REALTIME. */
typedef struct ct_trace_record {
  uint64_t start, end;  /* on the device */
  uint64_t launched;    /* when the host made the call, 0 where unknown or before the trace */
  uint64_t bytes;       /* copied or filled, 0 for a kernel */
  uint64_t stream;      /* ct_stream_id of its stream, as the driver tells, or CT_STREAM_FOREIGN */
  uint32_t name;        /* for ct_trace_name, of a kernel */
  uint32_t thread;      /* of the call: gettid(), 0 where not known */
  uint32_t blocks;      /* of a kernel */
  int32_t device;
  uint8_t kind;         /* CT_TRACE_… */
  uint8_t copy;         /* CT_COPY_… */
  uint8_t pageable;     /* 1: the host's side of a copy was not page-locked */
} ct_trace_record;

/* Process-wide: records the work of CUDA devices until ct_trace_stop, at most max_records. Only
 * one trace runs at a time. Fails with CT_NO_DEVICE. Fails with CT_UNSUPPORTED where CUPTI is
 * absent or in use by another tool. */
ct_status* ct_trace_start(int64_t max_records) CT_NOEXCEPT;
/* Waits for every device, and ends the trace, also when the call fails. */
ct_status* ct_trace_stop(ct_trace** out) CT_NOEXCEPT;
void ct_trace_free(ct_trace* trace /* consumed */) CT_NOEXCEPT;
/* The records in order of their starts, valid until the trace is freed. */
const ct_trace_record* ct_trace_records(const ct_trace* trace, int64_t* count) CT_NOEXCEPT;
/* The number of records that were lost for want of room. */
int64_t ct_trace_lost(const ct_trace* trace) CT_NOEXCEPT;
/* The name of a kernel, valid until the trace is freed. "" for a number that no record has. */
const char* ct_trace_name(const ct_trace* trace, uint32_t name) CT_NOEXCEPT;

/* ---- Process-wide ---------------------------------------------------------------------------- */

/* Seeds LibTorch's default generator of every device. */
ct_status* ct_seed(uint64_t seed) CT_NOEXCEPT;
/* The state of a device's default generator, to save and restore. It has at most 8 KiB. size:
 * the capacity on entry, the bytes written on return. */
ct_status* ct_generator_state(ct_device device, void* data, int64_t* size) CT_NOEXCEPT;
ct_status* ct_generator_set_state(ct_device device, const void* data, int64_t size) CT_NOEXCEPT;

enum {
  CT_SWITCH_CUDNN_BENCHMARK = 0,
  CT_SWITCH_TF32 = 1, /* cuBLAS and cuDNN alike */
  CT_SWITCH_DETERMINISTIC = 2
};
ct_status* ct_switch_set(int32_t which, int32_t on) CT_NOEXCEPT;
ct_status* ct_switch_get(int32_t which, int32_t* on) CT_NOEXCEPT;
/* Threads that one operator may use on the CPU. */
ct_status* ct_threads_set(int32_t count) CT_NOEXCEPT;
int32_t ct_threads_get(void) CT_NOEXCEPT;
/* LibTorch's version, such as "2.11.0+cu130". Never freed. */
const char* ct_libtorch_version(void) CT_NOEXCEPT;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
