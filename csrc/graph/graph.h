// Graphs: work that is captured once and launched as one.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>

#include "cgotorch.h"
#include "check/checker.h"
#include "cuda/backend.h"
#include "graph/capture.h"

struct ct_graph_pool {
  explicit ct_graph_pool(c10::Device device);
  ~ct_graph_pool();
  const c10::Device device;
  const c10::MempoolId_t id;
  void add(void* stream);             // a cudaStream_t
  bool has(void* stream) const;
  // Between `enter` and `leave`, memory for the pool's streams comes from the pool.
  void enter();
  void leave() noexcept;

  // Leaves the pool while the object lives, if the pool has been entered.
  class Outside {
   public:
    explicit Outside(ct_graph_pool& pool);
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    ct_graph_pool& pool_;
    const bool was_inside_;
  };

 private:
  bool entered_ = false;
  mutable std::mutex mutex_;
  std::unordered_set<void*> streams_;
};

struct ct_graph {
  explicit ct_graph(c10::Device device);
  ~ct_graph();
  const c10::Device device;
  std::unique_ptr<ct::CudaGraph> graph;
  std::optional<ct::CaptureTurn> turn;  // set during the capture
  std::shared_ptr<const ct::checker::Accesses> accesses;
  bool ready = false;                   // the graph can be launched
};
