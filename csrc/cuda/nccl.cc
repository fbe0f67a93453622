#include "cuda/nccl.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "cuda/shared_library.h"

namespace ct {
namespace {

// The functions of NCCL that are used, since NCCL 2.14. They are declared here because the build
// does not have NCCL's header.
struct Nccl {
  using Comm = void*;
  using Result = int;
  static constexpr Result kSuccess = 0, kInProgress = 7;

  // The fields of ncclConfig_t that NCCL 2.14 had. `size` and `version` tell a later NCCL so.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;
  };

  Result (*unique_id)(ct_group_id*);
  Result (*init)(Comm*, int world, ct_group_id, int rank, Config*);
  Result (*state)(Comm, Result*);
  Result (*finalize)(Comm);
  Result (*destroy)(Comm);
  Result (*abort)(Comm);
  const char* (*text)(Result);
  const char* (*last_error)(Comm);
  Result (*begin)();
  Result (*end)();
  Result (*all_reduce)(const void*, void*, size_t, int dtype, int op, Comm, cudaStream_t);
  Result (*reduce)(const void*, void*, size_t, int dtype, int op, int root, Comm, cudaStream_t);
  Result (*broadcast)(const void*, void*, size_t, int dtype, int root, Comm, cudaStream_t);
  Result (*all_gather)(const void*, void*, size_t, int dtype, Comm, cudaStream_t);
  Result (*reduce_scatter)(const void*, void*, size_t, int dtype, int op, Comm, cudaStream_t);
  Result (*send)(const void*, size_t, int dtype, int to, Comm, cudaStream_t);
  Result (*receive)(void*, size_t, int dtype, int from, Comm, cudaStream_t);
};

Nccl open_nccl() {
  // libtorch_cuda.so itself needs NCCL, so a library of this name is open already.
  SharedLibrary library("libnccl.so.2");
  if (!library) {
    throw Failure(CT_UNSUPPORTED, "NCCL cannot be opened; run `make setup` on this machine, or `pip install nvidia-nccl-cu" +
                                      std::to_string(CUDART_VERSION / 1000) + "` and add the folder of " + library.name() +
                                      " to LD_LIBRARY_PATH (" + library.reason() + ")");
  }
  Nccl all{};
  library.find(all.unique_id, "ncclGetUniqueId");
  library.find(all.init, "ncclCommInitRankConfig");
  library.find(all.state, "ncclCommGetAsyncError");
  library.find(all.finalize, "ncclCommFinalize");
  library.find(all.destroy, "ncclCommDestroy");
  library.find(all.abort, "ncclCommAbort");
  library.find(all.text, "ncclGetErrorString");
  library.find(all.last_error, "ncclGetLastError");
  library.find(all.begin, "ncclGroupStart");
  library.find(all.end, "ncclGroupEnd");
  library.find(all.all_reduce, "ncclAllReduce");
  library.find(all.reduce, "ncclReduce");
  library.find(all.broadcast, "ncclBroadcast");
  library.find(all.all_gather, "ncclAllGather");
  library.find(all.reduce_scatter, "ncclReduceScatter");
  library.find(all.send, "ncclSend");
  library.find(all.receive, "ncclRecv");
  return all;
}

const Nccl& nccl() {
  static const Nccl all = open_nccl();  // if open_nccl throws, the next call tries again
  return all;
}

// Returns NCCL's number of a dtype.
int number_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return 0;
    case at::kByte:
      return 1;
    case at::kInt:
      return 2;
    case at::kLong:
      return 4;
    case at::kHalf:
      return 6;
    case at::kFloat:
      return 7;
    case at::kDouble:
      return 8;
    case at::kBFloat16:
      return 9;
    default:
      throw Failure(CT_UNSUPPORTED, std::string("NCCL reduces no ") + c10::toString(dtype) + "; convert the tensor first");
  }
}

// Note [A group that fails]
//
// If a rank is lost, the kernels of the other ranks wait for it for ever, and so does the host
// wherever it waits for the device. ncclCommAbort ends these kernels. It must work while another
// thread is inside NCCL, so the communicator does not block: its calls return ncclInProgress, and
// the thread asks for their end until the group is aborted. Nothing waits for ncclCommAbort itself,
// because it may wait for graphs that hold the communicator.

class NcclGroup final : public Collectives {
 public:
  NcclGroup(c10::DeviceIndex device, const ct_group_id& id, int32_t rank, int32_t world) : device_(device) {
    const c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaSetDevice(device));  // on a thread without a CUDA context the guard sets nothing
    Nccl::Config config;
    check(nccl().init(&comm_, world, id, rank, &config));
  }

  ~NcclGroup() override {
    if (aborted_) return;
    const c10::cuda::CUDAGuard guard(device_);
    if (nccl().finalize(comm_) != Nccl::kInProgress || settled(std::chrono::seconds(5))) {
      std::thread([comm = comm_] { (void)nccl().destroy(comm); }).detach();  // see Note [A group that fails]
    } else {
      abort();
    }
  }

  bool mixes_dtypes() const override { return true; }
  Finish all_reduce(const std::vector<at::Tensor>& tensors, int32_t op, c10::Stream stream) override {
    return run(stream, [&](cudaStream_t on) {
      for (const at::Tensor& t : tensors) check(nccl().all_reduce(t.data_ptr(), t.data_ptr(), t.numel(), number_of(t.scalar_type()), op, comm_, on));
    });
  }
  Finish reduce(const std::vector<at::Tensor>& tensors, int32_t op, int32_t root, c10::Stream stream) override {
    return run(stream, [&](cudaStream_t on) {
      for (const at::Tensor& t : tensors) check(nccl().reduce(t.data_ptr(), t.data_ptr(), t.numel(), number_of(t.scalar_type()), op, root, comm_, on));
    });
  }
  Finish broadcast(const std::vector<at::Tensor>& tensors, int32_t root, c10::Stream stream) override {
    return run(stream, [&](cudaStream_t on) {
      for (const at::Tensor& t : tensors) check(nccl().broadcast(t.data_ptr(), t.data_ptr(), t.numel(), number_of(t.scalar_type()), root, comm_, on));
    });
  }
  Finish all_gather(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) override {
    return run(stream, [&](cudaStream_t on) {
      check(nccl().all_gather(from.data_ptr(), to.data_ptr(), from.numel(), number_of(from.scalar_type()), comm_, on));
    });
  }
  Finish reduce_scatter(const at::Tensor& to, const at::Tensor& from, int32_t op, c10::Stream stream) override {
    return run(stream, [&](cudaStream_t on) {
      check(nccl().reduce_scatter(from.data_ptr(), to.data_ptr(), to.numel(), number_of(to.scalar_type()), op, comm_, on));
    });
  }
  Finish send(const at::Tensor& tensor, int32_t to, c10::Stream stream) override {
    return run(stream, [&](cudaStream_t on) { check(nccl().send(tensor.data_ptr(), tensor.numel(), number_of(tensor.scalar_type()), to, comm_, on)); });
  }
  Finish receive(const at::Tensor& tensor, int32_t from, c10::Stream stream) override {
    return run(stream, [&](cudaStream_t on) { check(nccl().receive(tensor.data_ptr(), tensor.numel(), number_of(tensor.scalar_type()), from, comm_, on)); });
  }

  bool ready() override {
    const std::optional<Nccl::Result> now = state();
    if (!now) throw Failure(CT_GROUP_FAILED, kAborted);
    check(*now);
    return *now == Nccl::kSuccess;
  }

  void abort() noexcept override {
    if (aborted_.exchange(true)) return;
    try {
      std::thread([comm = comm_, asking = asking_] {
        const std::lock_guard lock(*asking);  // state() does not ask any more afterwards
        (void)nccl().abort(comm);
      }).detach();
    } catch (...) {
      // No thread can be made. The process is short of memory, and ends.
    }
  }

 private:
  static constexpr char kAborted[] = "the group was aborted, because a rank has failed";

  void check(Nccl::Result result) {
    if (result == Nccl::kSuccess || result == Nccl::kInProgress) return;
    std::string why = nccl().text(result);
    const std::lock_guard lock(*asking_);
    if (aborted_) throw Failure(CT_GROUP_FAILED, kAborted);
    if (const char* more = nccl().last_error(comm_); more != nullptr && *more != 0) why += std::string(", ") + more;
    throw Failure(CT_GROUP_FAILED, "NCCL: " + why);
  }

  // Waits until the last call on the communicator has ended. Returns whether it has.
  bool settled(std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    std::optional<Nccl::Result> now;
    while ((now = state()) == Nccl::kInProgress && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return now == Nccl::kSuccess;
  }

  // Returns how the last call on the communicator goes, or nothing after an abort, which frees the
  // communicator.
  std::optional<Nccl::Result> state() {
    const std::lock_guard lock(*asking_);
    if (aborted_) return std::nullopt;
    Nccl::Result now = Nccl::kSuccess;
    const Nccl::Result asked = nccl().state(comm_, &now);
    return asked == Nccl::kSuccess ? now : asked;
  }

  template <typename F>
  Finish run(c10::Stream stream, F&& calls) {
    const std::lock_guard lock(mutex_);  // NCCL takes one call on a communicator at a time
    if (aborted_) throw Failure(CT_GROUP_FAILED, kAborted);
    const c10::cuda::CUDAGuard guard(device_);
    check(nccl().begin());
    try {
      calls(c10::cuda::CUDAStream(stream).stream());
    } catch (...) {
      (void)nccl().end();
      throw;
    }
    const Nccl::Result result = nccl().end();
    check(result);
    if (result == Nccl::kInProgress) {
      for (bool ended = false; !ended;) {
        ended = ready();
        if (!ended) std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    return {};
  }

  const c10::DeviceIndex device_;
  Nccl::Comm comm_ = nullptr;
  std::mutex mutex_;
  const std::shared_ptr<std::mutex> asking_ = std::make_shared<std::mutex>();  // held while comm_ is asked
  std::atomic<bool> aborted_{false};
};

}  // namespace

ct_group_id new_nccl_id() {
  ct_group_id id{};
  if (const int result = nccl().unique_id(&id); result != 0) {
    throw Failure(CT_GROUP_FAILED, std::string("NCCL: ") + nccl().text(result) + "; NCCL_DEBUG=INFO tells more, NCCL_SOCKET_IFNAME names the network interface");
  }
  return id;
}

std::unique_ptr<Collectives> new_nccl(c10::DeviceIndex device, const ct_group_id& id, int32_t rank, int32_t world) {
  return std::make_unique<NcclGroup>(device, id, rank, world);
}

}  // namespace ct
