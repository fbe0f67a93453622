// The knowledge of the stream checker: clocks, memory and the streams that touched it.
//
// Note [Vector clocks]: every stream, and the host, counts its own time. For each other stream it
// knows a time: all work up to that time is ordered before its next work. A record takes a copy of
// its stream's knowledge. A wait adds that copy to the knowledge of the waiting stream. A host wait
// adds it to the host's knowledge, and enqueued work knows all that the host knows. Two accesses
// are ordered when the later access's stream knows of the time of the earlier access. All
// goroutines are one host: their order among themselves is the business of Go's race detector.
//
// On the CPU streams run their work at once, but are treated like those of a device. A missing wait
// is thus found without a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cgotorch.h"
#include "check/region.h"
#include "core/stream.h"

namespace ct {

class Checker {
 public:
  using Clock = std::vector<uint64_t>;  // by queue; a missing entry is 0
  using Queue = uint32_t;               // a stream, or the host
  static constexpr Queue kHost = 0, kNone = ~Queue{0};

  // The author of an access, and its place in the program.
  struct Actor {
    Queue queue = kNone;
    std::string op;
    uint64_t site = 0;     // of its call
    uint64_t forward = 0;  // in backward: of the call whose derivative this is
    bool backward = false;
  };

  static Checker& instance();

  Queue queue_of(const ct_stream& stream);
  Queue queue_of(c10::Stream stream);                                // a CUDA stream
  // A CPU stream has ended. A new stream takes its place once the host knows that all its work is
  // done. Clocks then do not grow with every stream that there ever was.
  void ended(uint64_t cpu_stream);
  Queue queue_of_native(c10::DeviceIndex device, uintptr_t stream);  // a cudaStream_t

  // Order.
  std::shared_ptr<const Clock> record(Queue queue);
  void wait(Queue queue, const Clock& event);
  void join(Queue queue, Queue other);  // as if queue now waited for a new record of other
  // Memory of side that its parent uses may be freed without a report, if that use is ordered before
  // side's next allocation.
  void branches(Queue side, Queue parent);
  void host_waits(const Clock& event);
  void host_waits(Queue queue);
  void host_waits_for(c10::Device device);

  // Memory. A block is known by its first byte, from birth to death. A block whose birth was not seen
  // is known by its storage.
  void born(const void* data, int64_t bytes, const Actor& by);
  void dies(const void* data, const Actor& by);
  void access(const at::Tensor& tensor, bool write, const Actor& by);
  // The allocator knows of this queue's use, and does not hand the memory out again before the use is
  // done. Autograd tells the allocator only of tensors that were made in backward.
  void used(const at::Tensor& tensor, Queue queue, bool by_autograd);

  // Host memory of our own, the source or target of copies.
  // False, with nothing changed, where the memory reaches into another slab.
  bool slab_born(const void* data, int64_t bytes);
  void slab_dies(const void* data);
  bool in_slab(const void* data);
  // Accesses to this memory that stand before the event are over. Nothing is said of other memory.
  void slab_over(const void* data, int64_t bytes, const Clock& event);
  void access_slab(const void* data, int64_t bytes, bool write, const Actor& by);  // does nothing for memory of no slab

  // The races found since the last call, as the C ABI gives them.
  bool take(ct_race* out);
  void report_anew();  // also races that were reported before
  void forget();       // all memory and all races found, but not the streams, which may go on

 private:
  struct Access {
    Actor by;
    uint64_t time = 0;
    uint64_t serial = 0;
    Region region;
    bool write = false;
    const char* kind = "";
  };
  struct Block {
    bool slab = false;
    c10::Device device{c10::kCPU};
    int64_t bytes = 0;
    Actor maker;                  // of queue kNone where the birth was not seen
    std::vector<Access> accesses;
    std::set<Queue> recorded;
    // The serial number up to which races between two queues were reported.
    std::map<std::pair<Queue, Queue>, uint64_t> told;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;  // of a block whose birth was not seen
  };
  struct Stream {
    bool host = false, is_default = false;
    c10::Device device{c10::kCPU};
    uint64_t id = 0;
    Clock clock;
    uint64_t host_seen = 0;  // host_changes_ at the last enqueue
    uint64_t last = 0;       // its time at the last access
    Queue parent = kNone;    // of a side stream
    std::shared_ptr<const std::pair<Block, Access>> freed;  // of the side stream's memory, with the parent's last use
  };

  Checker();
  void sweep();
  Queue add(c10::Device device, uint64_t id, bool is_default);
  uint64_t& time(Queue queue, Queue of);
  bool knows(Queue queue, Queue of, uint64_t time) const;
  void learn(Queue queue, const Clock& clock);
  void enqueue(Queue queue);
  Block& block_of(const at::Tensor& tensor);
  std::map<const void*, Block>::iterator slab_of(const void* data);
  void access(Block& block, Access access);
  void check(Block& block, const Access& earlier, const Access& later);
  void report(const Block& block, const Access& earlier, const Access& later, int32_t kind);

  std::mutex mutex_;
  std::vector<Stream> streams_;
  std::map<std::pair<int, uint64_t>, Queue> by_id_, by_native_;  // device (-1 for the CPU)
  std::vector<Queue> ended_;
  uint64_t host_changes_ = 1;
  uint64_t serial_ = 0;  // counts accesses
  std::unordered_map<const void*, Block> blocks_;
  size_t sweep_at_ = 4096;
  std::map<const void*, Block> slabs_;
  std::deque<ct_race> found_;
  std::set<std::string> reported_;
};

}  // namespace ct
