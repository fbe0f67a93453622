// The CUDA text of the kernels over lists of tensors: foreach.cc compiles and launches it.
//
// Tensor i of each list has the same number of elements. A piece is kPiece successive elements of
// tensor i in all lists, or fewer at the end of the tensor. A block works on one piece at a time.
// The table of tensors is an argument of the kernel, so a launch and a captured graph hold a copy
// of it.
//
// The text is compiled for one set of these macros, and before one of the three other texts:
//
//   LISTS      the number of lists
//   TENSORS    the room of the table
//   THREADS    the threads of a block
//   VECTORS    how many times a thread reads four elements of each list before it writes
//   STEPS      how many times a thread does that for one piece
//   STREAMING  bit i is 1 if the elements of list i should leave the cache first
#pragma once

namespace ct {

inline constexpr char kForeachText[] = R"cuda(
constexpr int kPiece = THREADS * VECTORS * STEPS * 4;

struct Tensor {
  void* lists[LISTS];
  long long elements;
  int first;    // the number of its first piece
  int aligned;  // 1: all addresses are multiples of 16
};

struct Table {
  int tensors, pieces;
  Tensor of[TENSORS];
};

struct Four { float at[4]; };

// The elements of one list.
template <typename T, int kList>
struct List {
  using Raw = typename T::Raw;

  template <typename V>
  static __device__ __forceinline__ V read(const V* from) {
    if constexpr ((STREAMING >> kList & 1) != 0) {
      return __ldcs(from);
    } else {
      return *from;
    }
  }

  template <typename V>
  static __device__ __forceinline__ void write(V* to, V v) {
    if constexpr ((STREAMING >> kList & 1) != 0) {
      __stcs(to, v);
    } else {
      *to = v;
    }
  }

  // Reads four elements if kFour, and one element otherwise.
  template <bool kFour>
  static __device__ __forceinline__ Four load(const Tensor& tensor, long long at) {
    const Raw* from = static_cast<const Raw*>(tensor.lists[kList]) + at;
    Four v{};
    if constexpr (!kFour) {
      v.at[0] = T::widen(read(from));
    } else if constexpr (sizeof(Raw) == 4) {
      const float4 four = read(reinterpret_cast<const float4*>(from));
      v.at[0] = four.x, v.at[1] = four.y, v.at[2] = four.z, v.at[3] = four.w;
    } else {
      const uint2 four = read(reinterpret_cast<const uint2*>(from));
      v.at[0] = T::widen(static_cast<Raw>(four.x & 0xFFFFu)), v.at[1] = T::widen(static_cast<Raw>(four.x >> 16));
      v.at[2] = T::widen(static_cast<Raw>(four.y & 0xFFFFu)), v.at[3] = T::widen(static_cast<Raw>(four.y >> 16));
    }
    return v;
  }

  // Writes what `load` reads.
  template <bool kFour>
  static __device__ __forceinline__ void store(const Tensor& tensor, long long at, const Four& v) {
    Raw* to = static_cast<Raw*>(tensor.lists[kList]) + at;
    if constexpr (kFour && sizeof(Raw) == 4) {
      write(reinterpret_cast<float4*>(to), make_float4(v.at[0], v.at[1], v.at[2], v.at[3]));
    } else if constexpr (kFour) {
      write(reinterpret_cast<uint2*>(to), make_uint2(T::narrow(v.at[0], v.at[1]), T::narrow(v.at[2], v.at[3])));
    } else if constexpr (sizeof(Raw) == 4) {
      write(to, v.at[0]);
    } else {
      write(to, static_cast<Raw>(T::narrow(v.at[0], 0.0f) & 0xFFFFu));
    }
  }
};

template <typename Work>
__device__ __forceinline__ void piece_of_fours(const Work& work, const Tensor& tensor, long long begin, int count) {
  const typename Work::Each each(work, tensor);
#pragma unroll 1
  for (int first = threadIdx.x * 4; first < count; first += THREADS * VECTORS * 4) {
    typename Work::Values values[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int at = first + i * THREADS * 4;
      if (at < count) each.template load<true>(tensor, begin + at, values[i]);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int at = first + i * THREADS * 4;
      if (at < count) each.template store<true>(tensor, begin + at, values[i]);
    }
  }
}

// Is slower, for addresses that are not aligned and for the end of a tensor.
template <typename Work>
__device__ __forceinline__ void piece_of_ones(const Work& work, const Tensor& tensor, long long begin, int count) {
  const typename Work::Each each(work, tensor);
#pragma unroll 1
  for (int at = threadIdx.x; at < count; at += THREADS) {
    typename Work::Values values;
    each.template load<false>(tensor, begin + at, values);
    each.template store<false>(tensor, begin + at, values);
  }
}

template <typename Work>
__device__ __forceinline__ void all_pieces(const Table& table, const Work& work) {
  for (int piece = blockIdx.x; piece < table.pieces; piece += gridDim.x) {
    int low = 0, high = table.tensors;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (table.of[middle].first <= piece) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const Tensor& tensor = table.of[low];
    const long long begin = static_cast<long long>(piece - tensor.first) * kPiece, left = tensor.elements - begin;
    const int count = left < kPiece ? static_cast<int>(left) : kPiece;
    if (tensor.aligned && count % 4 == 0) {
      piece_of_fours(work, tensor, begin, count);
    } else {
      piece_of_ones(work, tensor, begin, count);
    }
  }
}
)cuda";

// Writes the elements of list 1, of the dtype FROM, to list 0, of the dtype TO.
inline constexpr char kCastText[] = R"cuda(
struct Cast {
  using Values = Four;
  struct Each {
    __device__ __forceinline__ Each(const Cast&, const Tensor&) {}
    template <bool kFour>
    __device__ __forceinline__ void load(const Tensor& tensor, long long at, Values& v) const {
      v = List<FROM, 1>::load<kFour>(tensor, at);
    }
    template <bool kFour>
    __device__ __forceinline__ void store(const Tensor& tensor, long long at, const Values& v) const {
      List<TO, 0>::store<kFour>(tensor, at, v);
    }
  };
};

extern "C" __global__ void __launch_bounds__(THREADS) foreach_kernel(const __grid_constant__ Table table) { all_pieces(table, Cast()); }
)cuda";

// A step of SGD, by the struct Sgd of foreach.cc: see Note [LibTorch's bits]. The lists are
// parameters, gradients and, if there is momentum, momentum buffers.
inline constexpr char kSgdText[] = R"cuda(
struct SgdWork {
  struct Values { Four list[LISTS]; };
  Sgd sgd;

  struct Each {
    const Sgd& sgd;
    float rate;
    __device__ __forceinline__ Each(const SgdWork& work, const Tensor&) : sgd(work.sgd), rate(sgd.rate != nullptr ? *sgd.rate : sgd.lr) {}

    template <bool kFour>
    __device__ __forceinline__ void load(const Tensor& tensor, long long at, Values& v) const {
      v.list[0] = List<Float, 0>::load<kFour>(tensor, at);
      v.list[1] = List<Float, 1>::load<kFour>(tensor, at);
      if constexpr (LISTS > 2) v.list[LISTS - 1] = List<Float, LISTS - 1>::load<kFour>(tensor, at);
    }

    template <bool kFour>
    __device__ __forceinline__ void store(const Tensor& tensor, long long at, Values& v) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& p = v.list[0].at[i];
        float g = v.list[1].at[i];
        if (sgd.weight_decay != 0) g = __fmaf_rn(p, sgd.weight_decay, g);
        if constexpr (LISTS > 2) {
          float& m = v.list[LISTS - 1].at[i];
          m = __fmaf_rn(g, sgd.undamped, __fmul_rn(m, sgd.momentum));
          g = sgd.nesterov ? __fmaf_rn(m, sgd.momentum, g) : m;
        }
        p = __fmaf_rn(g, -rate, p);
      }
      List<Float, 0>::store<kFour>(tensor, at, v.list[0]);
      if constexpr (LISTS > 2) List<Float, LISTS - 1>::store<kFour>(tensor, at, v.list[LISTS - 1]);
    }
  };
};

extern "C" __global__ void __launch_bounds__(THREADS) foreach_kernel(const __grid_constant__ Table table, const __grid_constant__ Sgd sgd) {
  if (sgd.found != nullptr && *sgd.found == 1) return;
  all_pieces(table, SgdWork{sgd});
}
)cuda";

// A step of Adam, by the struct Adam of foreach.cc: see Note [LibTorch's bits]. The lists are
// parameters, gradients, their means, the means of their squares, and the counts of steps. A count
// is one number, which is already that of this step.
inline constexpr char kAdamText[] = R"cuda(
struct AdamWork {
  struct Values { Four p, g, mean, square; };
  Adam adam;

  struct Each {
    const Adam& adam;
    float decay, size, root;  // `root` is the root of the correction of the squares
    __device__ __forceinline__ Each(const AdamWork& work, const Tensor& tensor) : adam(work.adam) {
      const float rate = adam.rate != nullptr ? *adam.rate : adam.lr, step = *static_cast<const float*>(tensor.lists[4]);
      decay = __fmul_rn(rate, adam.weight_decay);
      size = __fdiv_rn(rate, __fsub_rn(1.0f, powf(adam.beta1, step)));
      root = __fsqrt_rn(__fsub_rn(1.0f, powf(adam.beta2, step)));
    }

    template <bool kFour>
    __device__ __forceinline__ void load(const Tensor& tensor, long long at, Values& v) const {
      v.p = List<Float, 0>::load<kFour>(tensor, at);
      v.g = List<Float, 1>::load<kFour>(tensor, at);
      v.mean = List<Float, 2>::load<kFour>(tensor, at);
      v.square = List<Float, 3>::load<kFour>(tensor, at);
    }

    template <bool kFour>
    __device__ __forceinline__ void store(const Tensor& tensor, long long at, Values& v) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float &p = v.p.at[i], &mean = v.mean.at[i], &square = v.square.at[i];
        const float g = v.g.at[i], gg = __fmul_rn(g, g);
        if (adam.weight_decay != 0) p = __fmaf_rn(p, -decay, p);
        mean = __fmaf_rn(adam.beta1, mean, __fmaf_rn(-adam.beta1, g, g));
        square = __fmaf_rn(adam.beta2, square, __fmaf_rn(-adam.beta2, gg, gg));
        const float below = __fadd_rn(__fdiv_rn(__fsqrt_rn(square), root), adam.eps);
        p = __fsub_rn(p, __fdiv_rn(__fmul_rn(size, mean), below));
      }
      List<Float, 0>::store<kFour>(tensor, at, v.p);
      List<Float, 2>::store<kFour>(tensor, at, v.mean);
      List<Float, 3>::store<kFour>(tensor, at, v.square);
    }
  };
};

extern "C" __global__ void __launch_bounds__(THREADS) foreach_kernel(const __grid_constant__ Table table, const __grid_constant__ Adam adam) {
  if (adam.found != nullptr && *adam.found == 1) return;
  all_pieces(table, AdamWork{adam});
}
)cuda";

}  // namespace ct
