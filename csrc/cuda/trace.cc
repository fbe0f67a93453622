#include "cuda/trace.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "core/status.h"
#include "cuda/cupti.h"

// Note [The witness]
//
// CUPTI's records say on which stream each kernel, copy and fill ran, and which thread enqueued
// it. They do not depend on anything that this library believes. The core knows CUPTI's number of
// each of the core's own streams. Apart from the work itself, only the calls that launch it are
// recorded. If a record is lost because there is no room, that is an error.
//
// CUPTI allows one user in a process. A trace under Nsight or torch.profiler therefore fails. The
// error gives this reason. Without CUDA a trace has only marks.

namespace ct {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;  // each thread that calls CUDA fills its own buffer
constexpr size_t kMostBuffers = 1024;             // in use at the same time; CUPTI counts the records that find no room
constexpr size_t kMostFree = 64;                  // buffers that are kept for later use
constexpr size_t kMoreLaunches = 4096;            // besides two launches for each record, this many are kept: some calls launch nothing
constexpr size_t kAlignment = 8;                  // ACTIVITY_RECORD_ALIGNMENT

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2,           CUPTI_ACTIVITY_KIND_MEMSET,
                                         CUPTI_ACTIVITY_KIND_RUNTIME,           CUPTI_ACTIVITY_KIND_DRIVER};

// The calls that launch work. Their records give the time and the thread of a launch. CUPTI is
// asked to record all calls. It can be asked for these calls alone, by
// cuptiActivityEnableRuntimeApi, but on an H200 with CUDA 13.0 it then recorded none. Kernels
// compiled by nvcc 13 are launched by __cudaLaunchKernel. cuDNN and cuBLASLt launch through the
// driver.
constexpr CUpti_CallbackId kRuntimeLaunches[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,      CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
    kLaunchOfNvcc13,                                      CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000,
    CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000,      CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,       CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeerAsync_v4000,   CUPTI_RUNTIME_TRACE_CBID_cudaMemset_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,       CUPTI_RUNTIME_TRACE_CBID_cudaMemset2DAsync_v3020,
};
constexpr CUpti_CallbackId kDriverLaunches[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2,  CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync,         CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async,
    CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async,
};

template <size_t N>
bool contains(const CUpti_CallbackId (&ids)[N], CUpti_CallbackId id) {
  return std::find(std::begin(ids), std::end(ids), id) != std::end(ids);
}

struct Launch {
  uint32_t correlation, thread;
  uint64_t start;
};

struct Recorded {
  ct_trace_record record;
  uint32_t correlation;  // the correlation number of its launch
};

// The trace that is running. CUPTI hands filled buffers over on its own thread.
struct Recorder {
  std::mutex mutex;
  bool running = false;
  size_t limit = 0;
  size_t lost = 0;
  std::vector<Recorded> records;
  std::vector<Launch> launches;
  std::vector<std::string> names;
  std::unordered_map<std::string, uint32_t> numbers;  // for each name: its index in `names`

  std::mutex buffers_mutex;  // threads that call CUDA take this mutex, so nobody holds it for long
  std::vector<uint8_t*> buffers;  // the buffers that are free
  size_t lent = 0;
};

Recorder& recorder() {
  static auto* const one = new Recorder;
  return *one;
}

uint32_t name_number(Recorder& r, const char* name) {
  const std::string text = name == nullptr ? "unknown" : name;
  if (const auto entry = r.numbers.find(text); entry != r.numbers.end()) return entry->second;
  r.names.push_back(text);
  return r.numbers[text] = static_cast<uint32_t>(r.names.size() - 1);
}

void add(Recorder& r, const ct_trace_record& record, uint32_t correlation) {
  if (record.end == 0 || record.start == 0 || r.records.size() >= r.limit) {  // Without an end, CUPTI has lost track of the work.
    ++r.lost;
    return;
  }
  r.records.push_back({record, correlation});
}

// Returns the part of a record that is the same for kernels, copies and fills.
template <typename Activity>
ct_trace_record common(const Activity& activity, uint8_t kind) {
  ct_trace_record record{};
  record.start = activity.start;
  record.end = activity.end;
  record.stream = activity.streamId;
  record.device = static_cast<int32_t>(activity.deviceId);
  record.kind = kind;
  return record;
}

uint8_t copy_kind(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA: return CT_COPY_HOST_TO_DEVICE;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH: return CT_COPY_DEVICE_TO_HOST;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return CT_COPY_DEVICE_TO_DEVICE;
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return CT_COPY_PEER;
    default: return CT_COPY_OTHER;
  }
}

template <typename Activity>
void add_copy(Recorder& r, const Activity& copy) {
  ct_trace_record record = common(copy, CT_TRACE_COPY);
  record.bytes = copy.bytes;
  record.copy = copy_kind(copy.copyKind);
  record.pageable = copy.srcKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE || copy.dstKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
  add(r, record, copy.correlationId);
}

void add(Recorder& r, const CUpti_Activity& activity) {
  switch (activity.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const KernelActivity&>(activity);
      ct_trace_record record = common(kernel, CT_TRACE_KERNEL);
      record.name = name_number(r, kernel.name);
      const uint64_t blocks = uint64_t(uint32_t(kernel.gridX)) * uint32_t(kernel.gridY) * uint32_t(kernel.gridZ);
      record.blocks = static_cast<uint32_t>(std::min<uint64_t>(blocks, std::numeric_limits<uint32_t>::max()));
      add(r, record, kernel.correlationId);
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      add_copy(r, reinterpret_cast<const CUpti_ActivityMemcpy6&>(activity));
      return;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      add_copy(r, reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(activity));
      return;
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(activity);
      ct_trace_record record = common(fill, CT_TRACE_FILL);
      record.bytes = fill.bytes;
      add(r, record, fill.correlationId);
      return;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = reinterpret_cast<const CUpti_ActivityAPI&>(activity);
      const bool runtime = activity.kind == CUPTI_ACTIVITY_KIND_RUNTIME;
      if (!(runtime ? contains(kRuntimeLaunches, call.cbid) : contains(kDriverLaunches, call.cbid))) return;
      if (r.launches.size() < 2 * r.limit + kMoreLaunches) {
        r.launches.push_back({call.correlationId, call.threadId, call.start});
      } else {
        ++r.lost;
      }
      return;
    }
    default:
      return;
  }
}

void CUPTIAPI lend_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  Recorder& r = recorder();
  *buffer = nullptr;
  *bytes = 0;
  *most_records = 0;
  const std::lock_guard lock(r.buffers_mutex);
  if (r.lent >= kMostBuffers) return;
  if (r.buffers.empty()) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  } else {
    *buffer = r.buffers.back();
    r.buffers.pop_back();
  }
  if (*buffer == nullptr) return;
  *bytes = kBufferBytes;
  ++r.lent;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t bytes) {
  Recorder& r = recorder();
  {
    const std::lock_guard lock(r.mutex);
    try {
      CUpti_Activity* activity = nullptr;
      while (r.running && bytes > 0 && cupti().activity_next(buffer, bytes, &activity) == CUPTI_SUCCESS) add(r, *activity);
    } catch (...) {
      // No memory is left. The rest of the buffer is lost, and counts as one lost record.
      ++r.lost;
    }
  }
  const std::lock_guard lock(r.buffers_mutex);
  --r.lent;
  if (r.buffers.size() < kMostFree) {
    try {
      r.buffers.push_back(buffer);
      return;
    } catch (...) {
    }
  }
  std::free(buffer);
}

// Undoes the steps of start_trace that were made.
void disable() noexcept {
  for (const CUpti_ActivityKind kind : kKinds) (void)cupti().activity_disable(kind);
}

// Waits for all devices. The wait does not go through LibTorch, because LibTorch's sync-debug
// mode would report it as a wait of an operator.
void wait_for_devices() {
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    if (!c10::cuda::hasPrimaryContext(device)) continue;
    const c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaDeviceSynchronize());
  }
}

void join_launches(Recorder& r) {
  std::sort(r.launches.begin(), r.launches.end(), [](const Launch& a, const Launch& b) {
    return a.correlation != b.correlation ? a.correlation < b.correlation : a.start < b.start;
  });
  for (Recorded& recorded : r.records) {
    const auto found = std::lower_bound(r.launches.begin(), r.launches.end(), recorded.correlation,
                                        [](const Launch& launch, uint32_t correlation) { return launch.correlation < correlation; });
    if (found == r.launches.end() || found->correlation != recorded.correlation) continue;
    recorded.record.launched = found->start;
    recorded.record.thread = found->thread;
  }
}

}  // namespace

void start_trace(size_t limit) {
  const Cupti& c = cupti();
  // The trace needs no callbacks. The subscription only shows whether another tool uses CUPTI.
  (void)subscribe();
  Recorder& r = recorder();
  {
    const std::lock_guard lock(r.mutex);
    r.records.clear();
    r.launches.clear();
    r.names.clear();
    r.numbers.clear();
    r.limit = limit;
    r.lost = 0;
    r.running = true;
  }
  try {
    c.check(c.set_thread_id_type(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM), "cuptiSetThreadIdType");
    c.check(c.activity_register(lend_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
    for (const CUpti_ActivityKind kind : kKinds) c.check(c.activity_enable(kind), "cuptiActivityEnable");
    size_t before = 0;
    (void)c.activity_dropped(nullptr, 0, &before);  // this call sets the count to 0
  } catch (...) {
    disable();
    unsubscribe();
    const std::lock_guard lock(r.mutex);
    r.running = false;
    throw;
  }
}

void stop_trace(ct_trace& out) {
  const Cupti& c = cupti();
  std::exception_ptr failure;
  try {
    wait_for_devices();
  } catch (...) {
    failure = std::current_exception();
  }
  (void)c.activity_flush(0);
  disable();
  (void)c.activity_flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  size_t dropped = 0;
  (void)c.activity_dropped(nullptr, 0, &dropped);
  unsubscribe();
  Recorder& r = recorder();
  const std::lock_guard lock(r.mutex);
  r.running = false;
  join_launches(r);
  out.records.reserve(r.records.size());
  for (const Recorded& recorded : r.records) out.records.push_back(recorded.record);
  out.names = std::move(r.names);
  out.lost = static_cast<int64_t>(r.lost + dropped);
  r.records = {};
  r.names = {};
  r.launches = {};
  r.numbers = {};
  if (failure) std::rethrow_exception(failure);
}

uint32_t trace_number(cudaStream_t stream) {
  // CUPTI needs the context to find the default stream.
  CUcontext context = nullptr;
  if (cupti().current_context(&context) != CUDA_SUCCESS) throw Failure(CT_INTERNAL, "cuCtxGetCurrent failed");
  uint32_t number = 0;
  cupti().check(cupti().stream_id(context, stream, 0, &number), "cuptiGetStreamIdEx");
  return number;
}

}  // namespace ct
