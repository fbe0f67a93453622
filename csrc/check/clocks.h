// What the stream checker knows: clocks, memory and who touched it.
//
// Note [Vector clocks]: every stream, and the host, counts its own time and knows up to which time of each other all work is ordered
// before its next. A record takes a copy of what its stream knows; a wait adds that to what the waiting stream knows; a host wait adds
// it to what the host knows, and work that is enqueued knows what the host knows. Two accesses are ordered when the later one's stream
// knows of the time of the earlier. All goroutines are one host: whether they are ordered among themselves is Go's race detector's
// business.
//
// On the CPU streams run their work at once, but are treated like those of a device, so that a missing wait is found without one.
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
  using Clock = std::vector<uint64_t>;  // by queue; what is not there is 0
  using Queue = uint32_t;               // a stream, or the host
  static constexpr Queue kHost = 0, kNone = ~Queue{0};

  // Who does something, and where in the program.
  struct Actor {
    Queue queue = kNone;
    std::string op;
    uint64_t site = 0;     // of the call that does it
    uint64_t forward = 0;  // in backward: of the call that it is the derivative of
    bool backward = false;
  };

  static Checker& instance();

  Queue queue_of(const ct_stream& stream);
  Queue queue_of(c10::Stream stream);                                // a CUDA stream
  // A CPU stream is no more. Its place goes to a new one once the host knows that all its work is done, so that clocks do not grow with
  // every stream that there ever was.
  void ended(uint64_t cpu_stream);
  Queue queue_of_native(c10::DeviceIndex device, uintptr_t stream);  // a cudaStream_t

  // Order.
  std::shared_ptr<const Clock> record(Queue queue);
  void wait(Queue queue, const Clock& event);
  void join(Queue queue, Queue other);  // as if queue waited for a record of other just now
  // Memory of side that its parent uses may be freed without a word, if that use is ordered before what side allocates next.
  void branches(Queue side, Queue parent);
  void host_waits(const Clock& event);
  void host_waits(Queue queue);
  void host_waits_for(c10::Device device);

  // Memory. A block is known by its first byte, from birth to death; one whose birth was not seen, by its storage.
  void born(const void* data, int64_t bytes, const Actor& by);
  void dies(const void* data, const Actor& by);
  void access(const at::Tensor& tensor, bool write, const Actor& by);
  // The allocator knows of this queue's use, and does not hand the memory out again before the use is done. Autograd tells it of what
  // was made in backward alone.
  void used(const at::Tensor& tensor, Queue queue, bool by_autograd);

  // Host memory of our own that copies start from and end in.
  bool slab_born(const void* data, int64_t bytes);  // false, and nothing is changed, where it reaches into another slab
  void slab_dies(const void* data);
  bool in_slab(const void* data);
  // Of this memory, what stands before the event is over; nothing is said of other memory.
  void slab_over(const void* data, int64_t bytes, const Clock& event);
  void access_slab(const void* data, int64_t bytes, bool write, const Actor& by);  // nothing where it is no slab's

  // The races found since the last call, as the C ABI gives them.
  bool take(ct_race* out);
  void report_anew();  // also what was reported before
  void forget();       // all memory and what was found; not the streams, which may go on

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
    std::map<std::pair<Queue, Queue>, uint64_t> told;  // the serial number up to which races between them were reported
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
    std::shared_ptr<const std::pair<Block, Access>> freed;  // of its memory, with the parent's last use
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
