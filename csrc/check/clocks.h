// What the stream checker knows: clocks, memory, and the streams that touched the memory.
//
// Note [Vector clocks]
//
// Every stream counts its own time, and so does the host. A stream also knows one time of each
// other stream. The other stream's work up to that time is ordered before the next work of the
// stream itself. When an event is recorded, the event gets a copy of what its stream knows. When
// a stream waits for the event, this copy is added to what that stream knows. When the host
// waits, the copy is added to what the host knows. Work that is enqueued knows all that the host
// knows.
//
// Two accesses are ordered if the stream of the later access knows the time of the earlier
// access. All goroutines together are one host. The race detector of Go finds missing order
// between goroutines.
//
// CPU streams run their work at once, but the checker treats them like streams of a device. So it
// finds a missing wait without a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
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
#include "check/reports.h"
#include "core/stream.h"

namespace ct {

class Checker {
 public:
  using Clock = std::vector<uint64_t>;  // the times of all queues, by queue; a missing entry is 0
  using Queue = uint32_t;               // a stream, or the host
  static constexpr Queue kHost = 0, kNone = ~Queue{0};

  // The stream or host that makes an access, and the line of the program.
  struct Actor {
    Queue queue = kNone;
    std::string op;
    uint64_t site = 0;     // the site of the call
    uint64_t forward = 0;  // in backward: the site of the forward call that is differentiated
    bool backward = false;
  };

  // The memory of a tensor whose elements say which part of another one is reached, or none.
  using Index = std::optional<std::pair<const void*, Region>>;

  static Checker& instance();

  Queue queue_of(const ct_stream& stream);
  Queue queue_of(c10::Stream stream);                                // a CUDA stream
  // Says that a CPU stream has ended. When the host has waited for all work of the ended stream, a
  // new stream takes over the ended stream's queue. So clocks do not grow with every stream that a
  // program makes.
  void ended(uint64_t cpu_stream);
  Queue queue_of_native(c10::DeviceIndex device, uintptr_t stream);  // a cudaStream_t

  // The order of work.
  std::shared_ptr<const Clock> record(Queue queue);
  void wait(Queue queue, const Clock& event);
  void join(Queue queue, Queue other);  // as if `other` recorded an event now, and `queue` waited for that event
  // Says that a kernel begins behind a full edge, or the next one behind the edge `wait`: when all
  // earlier work of the queue has ended. Note [Programmatic edges] in kernels/edges.h.
  struct Mark {
    Queue queue;
    uint64_t before;  // where the last full edge was
  };
  Mark full_edge(Queue queue);
  void no_full_edge(Mark of);  // because the operator has failed
  // Says that `side` is a side stream of `parent`. Memory of `side` may be freed after a use that
  // `parent` knows and `side` does not. The use is no race if it is ordered before the next
  // allocation of `side`.
  void branches(Queue side, Queue parent);
  void host_waits(const Clock& event);
  void host_waits(Queue queue);
  void host_waits_for(c10::Device device);

  // Blocks of memory. From `born` to `dies`, a block is identified by the address of its first
  // byte. A block for which `born` was not called is identified by its storage.
  void born(const void* data, int64_t bytes, const Actor& by);
  void dies(const void* data, const Actor& by);
  // through: the tensor whose elements say which part is reached, or NULL.
  void access(const at::Tensor& tensor, bool write, const Actor& by, const at::Tensor* through = nullptr);
  // Checks a read before the wait of a kernel, against the writes since the last full edge. The read
  // is an access besides.
  void reads_early(const at::Tensor& tensor, const Actor& by, const at::Tensor* through = nullptr);
  // Says that LibTorch's allocator knows that this queue uses the tensor. The allocator then hands
  // the memory out again only after that use. Autograd tells the allocator only of tensors that
  // were made in backward.
  void used(const at::Tensor& tensor, Queue queue, bool by_autograd);

  // Slabs: host memory that is the source or target of copies. If the memory reaches into a slab
  // that exists already, slab_born changes nothing and returns false.
  bool slab_born(const void* data, int64_t bytes);
  void slab_dies(const void* data);
  bool in_slab(const void* data);
  // Says that the accesses to this memory before the event are over. Does nothing for memory that
  // is not a slab's.
  void slab_over(const void* data, int64_t bytes, const Clock& event);
  void access_slab(const void* data, int64_t bytes, bool write, const Actor& by);  // does nothing if the memory is no slab's

  // Writes a race that was found and not yet taken, in the form of the C ABI. Returns false if
  // there is none.
  bool take(ct_race* out);
  void report_anew();  // after this call, a race that was reported before may be reported again
  void forget();       // forgets all memory and all races, but not the streams, which may go on

 private:
  static constexpr char kAllocated[] = "allocated";

  struct Access {
    Actor by;
    uint64_t time = 0;
    uint64_t serial = 0;
    Region region;
    bool write = false;
    const char* kind = "";  // as ct_access has it
    Index index = std::nullopt;
  };
  struct Block {
    bool slab = false;
    c10::Device device{c10::kCPU};
    int64_t bytes = 0;
    Actor maker;                  // its queue is kNone if the birth was not seen
    std::vector<Access> accesses;
    std::set<Queue> recorded;
    // For a pair of queues: the serial number of an access. Races with accesses up to that number are
    // already reported.
    std::map<std::pair<Queue, Queue>, uint64_t> told;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;  // set for a block whose birth was not seen
  };
  struct Stream {
    bool host = false, is_default = false;
    c10::Device device{c10::kCPU};
    uint64_t id = 0;
    Clock clock;
    uint64_t host_seen = 0;  // the value of host_changes_ at the last enqueue
    uint64_t last_full_edge = 0;  // the accesses of all queues before the last kernel with a full edge, or `wait`, began
    uint64_t last = 0;       // the stream's time at its last access
    Queue parent = kNone;    // set for a side stream
    // For a side stream, by queue: a block of the stream's memory that was freed, and the queue's last
    // use of such a block. The stream's parent knew these uses.
    std::map<Queue, std::shared_ptr<const std::pair<Block, Access>>> freed;
  };

  Checker();
  void sweep();
  Queue add(c10::Device device, uint64_t id, bool is_default);
  uint64_t& time(Queue queue, Queue of);
  bool knows(Queue queue, Queue of, uint64_t time) const;
  void learn(Queue queue, const Clock& clock);
  void enqueue(Queue queue);
  Block& block_of(const at::Tensor& tensor);
  std::pair<Block*, Region> place_of(const at::Tensor& tensor);  // of a slab, too
  std::map<const void*, Block>::iterator slab_of(const void* data);
  void access(Block& block, Access access);
  static bool has_memory(const at::Tensor& tensor);
  static Index index_of(const at::Tensor* through);
  void check(Block& block, const Access& earlier, const Access& later);
  void report(const Block& block, const Access& earlier, const Access& later, int32_t kind);

  std::mutex mutex_;
  std::vector<Stream> streams_;
  std::map<std::pair<int, uint64_t>, Queue> by_id_, by_native_;  // the first half of a key is the device, -1 for the CPU
  std::vector<Queue> ended_;
  uint64_t host_changes_ = 1;
  uint64_t serial_ = 0;  // counts accesses
  std::unordered_map<const void*, Block> blocks_;
  size_t sweep_at_ = 4096;
  std::map<const void*, Block> slabs_;
  Reports reports_;
};

}  // namespace ct
