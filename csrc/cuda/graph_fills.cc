#include "cuda/graph_fills.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/versions.h"
#include "cuda/program.h"

// Note [Fills are captured as kernels]
//
// The launch of a graph that has only kernels takes about 30 us. This was measured for ResNet-50
// at every batch size, on an H200. With the 40 to 100 fills that cuDNN makes, the launch took 80
// to 150 us. The device was also idle between a kernel and a fill.

namespace ct {
namespace {

// Writes a value to a range of bytes. `word` is the value, repeated until it has 4 bytes.
constexpr CudaProgram kProgram{"fill", "", R"cuda(
extern "C" __global__ void fill(unsigned char* to, unsigned int word, unsigned long long bytes) {
  const unsigned long long first = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  const unsigned long long step = gridDim.x * (unsigned long long)blockDim.x;
  unsigned long long done = 0;
  if (((unsigned long long)to & 15) == 0) {
    const unsigned long long whole = bytes / 16;
    const uint4 value = make_uint4(word, word, word, word);
    for (unsigned long long i = first; i < whole; i += step) ((uint4*)to)[i] = value;
    done = whole * 16;
  }
  for (unsigned long long i = done + first; i < bytes; i += step) to[i] = (unsigned char)(word >> (8 * (i & 3)));
}
)cuda"};

struct Edges {
  std::vector<cudaGraphNode_t> nodes;
  bool plain = true;  // each edge makes its node wait for the whole of the node before it
};

template <typename F>
Edges edges(F&& get) {
  Edges found;
  size_t count = 0;
  C10_CUDA_CHECK(get(nullptr, nullptr, &count));
  if (count == 0) return found;
  found.nodes.resize(count);
  std::vector<cudaGraphEdgeData> data(count);
  C10_CUDA_CHECK(get(found.nodes.data(), data.data(), &count));
  for (const cudaGraphEdgeData& edge : data) found.plain = found.plain && edge.from_port == 0 && edge.to_port == 0 && edge.type == 0;
  return found;
}

unsigned repeated(unsigned value, unsigned element) {
  if (element == 1) return (value & 0xFF) * 0x01010101u;
  if (element == 2) return (value & 0xFFFF) * 0x00010001u;
  return value;
}

void replace(cudaGraph_t graph, cudaGraphNode_t node, const void* kernel) {
  cudaMemsetParams fill{};
  C10_CUDA_CHECK(cudaGraphMemsetNodeGetParams(node, &fill));
  const Edges before = edges([&](cudaGraphNode_t* nodes, cudaGraphEdgeData* data, size_t* count) { return graph_node_dependencies(node, nodes, data, count); });
  const Edges behind = edges([&](cudaGraphNode_t* nodes, cudaGraphEdgeData* data, size_t* count) { return graph_node_dependents(node, nodes, data, count); });
  if (fill.height != 1 || !before.plain || !behind.plain) return;
  unsigned word = repeated(fill.value, fill.elementSize);
  uint64_t bytes = fill.width * fill.elementSize;
  void* arguments[] = {&fill.dst, &word, &bytes};
  constexpr unsigned kThreads = 256;
  cudaKernelNodeParams launch{};
  launch.func = const_cast<void*>(kernel);
  launch.gridDim = dim3(static_cast<unsigned>(std::clamp<uint64_t>((bytes + 16 * kThreads - 1) / (16 * kThreads), 1, 1024)));
  launch.blockDim = dim3(kThreads);
  launch.kernelParams = arguments;
  cudaGraphNode_t fresh = nullptr;
  C10_CUDA_CHECK(cudaGraphAddKernelNode(&fresh, graph, before.nodes.data(), before.nodes.size(), &launch));
  const std::vector<cudaGraphNode_t> from(behind.nodes.size(), fresh);
  if (!from.empty()) C10_CUDA_CHECK(add_graph_dependencies(graph, from.data(), behind.nodes.data(), nullptr, from.size()));
  C10_CUDA_CHECK(cudaGraphDestroyNode(node));
}

}  // namespace

void replace_fills(cudaGraph_t graph, c10::DeviceIndex device) {
  size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) C10_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  const void* kernel = nullptr;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeMemset) continue;
    if (kernel == nullptr) kernel = kernel_of(kProgram, "fill", device);
    replace(graph, node, kernel);
  }
}

}  // namespace ct
