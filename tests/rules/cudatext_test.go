package rules

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// cudaPrograms are the CUDA programs of csrc/kernels: their texts behind floats.h, and the macros
// of one of their variants. "name:kText" is only the text kText of the file `name`.
var cudaPrograms = map[string][]string{
	"add_layer_norm":        {"INPUT Float", "ADDEND BFloat16", "SUM Float", "NORMED BFloat16", "PARAMETER Float", "ADDED 1", "APART 1", "CHANNELS 768", "ROW_THREADS 32", "THREADS 128", "BLOCKS 4", "SUMS 1", "add_layer_norm_cuda.h"},
	"add_rms_norm":          {"WIDTH 4096", "THREADS 512", "ALIGNED 1", "OUT BFloat16", "NEW 1", "OUT_NORM 1", "NORM 1", "OFFSET 0", "RESULT BFloat16", "EDGE 1", "edges.h:kEdgesText", "add_rms_norm.cc"},
	"channels":              {"DTYPE BFloat16", "PARAMETER Float", "NONE 0", "RELU 0", "RELU6 0", "SILU 1", "HARDSWISH 0", "GELU 0", "channels_cuda.h"},
	"augment":               {"level.h:kLevelText", "augment_pixels.h:kPixelsText", "augment.cc"},
	"blend":                 {"level.h:kLevelText", "blend.cc:kBlendText", "blend.cc"},
	"blur":                  {"level.h:kLevelText", "border.h:kBorderText", "blur_taps.h:kTapsText", "blur.cc"},
	"foreach":               {"LISTS 3", "TENSORS 8", "THREADS 256", "VECTORS 1", "STEPS 1", "STREAMING 0", "FROM Float", "TO BFloat16", "foreach.cc:kText", "foreach_cuda.h:kForeachText", "foreach_cuda.h:kSgdText"},
	"foreach Adam":          {"LISTS 4", "TENSORS 8", "THREADS 256", "VECTORS 1", "STEPS 1", "STREAMING 0", "foreach.cc:kText", "foreach_cuda.h:kForeachText", "foreach_cuda.h:kAdamText"},
	"foreach cast":          {"LISTS 2", "TENSORS 8", "THREADS 256", "VECTORS 1", "STEPS 1", "STREAMING 0", "FROM Float", "TO BFloat16", "foreach.cc:kText", "foreach_cuda.h:kForeachText", "foreach_cuda.h:kCastText"},
	"gated":                 {"DTYPE BFloat16", "ACTIVATION 2", "ALIGNED 1", "gated.cc"},
	"global_avg_pool":       {"global_avg_pool.cc"},
	"image_convolution":     {"image_convolution_cells.h:kCellsText", "DTYPE Float", "CELL BFloat16", "CHANNELS 3", "image_convolution_cuda.h"},
	"jpeg":                  {"resample.h:kText", "jpeg_pixels.h:kText", "jpeg.cc"},
	"linear":                {"linear.cc:kText", "DTYPE BFloat16", "BIAS Float", "TANH 0", "linear_cuda.h"},
	"mix":                   {"images.h:kText", "mix.cc"},
	"norm":                  {"norm_work.h:kText", "DTYPE BFloat16", "LANES 8", "ACTIVATION kRelu", "ADDEND 1", "KERNELS 0", "norm_cuda.h", "norm_forward_cuda.h", "norm_backward_cuda.h", "norm_pool_cuda.h"},
	"normalize":             {"images.h:kText", "normalize.cc"},
	"pad":                   {"border.h:kBorderText", "pad.cc:kPadText", "pad.cc"},
	"pooling":               {"pooling.cc:kText", "pooling.cc"},
	"prompt_attention":      {"DTYPE BFloat16", "MMA \"bf16\"", "HEAD 128", "GROUP 4", "SINKS 1", "token_instructions_cuda.h", "prompt_attention_cuda.h"},
	"rope_into_pages":       {"DTYPE BFloat16", "HEAD 128", "NORM 2", "token_instructions_cuda.h", "rope_into_pages.cc"},
	"scale_channels":        {"DTYPE BFloat16", "scale_channels.cc"},
	"sleep":                 {"sleep.cc"},
	"token_attention":       {"DTYPE BFloat16", "MMA \"bf16\"", "QKV Float", "ROWS 0", "HEAD 128", "GROUP 4", "STAGES 4", "CLUSTER 8", "WARPS 4", "NEIGHBOURS 2", "NORM 1", "CAP 1", "SINKS 1", "EDGE 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_heads_cuda.h", "token_attention_cuda.h"},
	"token_attention rows":  {"DTYPE BFloat16", "MMA \"bf16\"", "QKV BFloat16", "ROWS 1", "HEAD 128", "GROUP 4", "STAGES 4", "CLUSTER 1", "WARPS 4", "NEIGHBOURS 2", "NORM 2", "CAP 0", "SINKS 1", "EDGE 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_heads_cuda.h", "token_attention_cuda.h"},
	"token_embedding":       {"token_embedding.cc:kText", "DTYPE BFloat16", "token_embedding.cc:kSource"},
	"token_drawn":           {"EDGE 1", "BLOCKS 8", "ITEMS 16", "KEEP 1", "TOP 1", "FILTER 1", "ROWS 0", "edges.h:kEdgesText", "token_best_cuda.h", "token_drawn_cuda.h"},
	"token_drawn rows":      {"EDGE 1", "BLOCKS 8", "ITEMS 16", "KEEP 1", "TOP 0", "FILTER 0", "ROWS 1", "edges.h:kEdgesText", "token_best_cuda.h", "token_drawn_cuda.h"},
	"token_likeliest":       {"EDGE 1", "BLOCKS 8", "edges.h:kEdgesText", "token_best_cuda.h", "token_likeliest.cc:kSource"},
	"token_experts":         {"DTYPE BFloat16", "INPUT Float", "COLUMNS 2048", "PADDED 2048", "BOXES 2", "WIDTH 1024", "LINE 2048", "NORM 1", "LATE 0", "OFFSET 0", "EPILOGUE 3", "EDGE 1", "CODES 0", "PAIRS 4", "PICKS 1", "TOP 8", "TOGETHER 1", "BIAS 1", "SPLIT 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_experts_cuda.h"},
	"token_experts add":     {"DTYPE BFloat16", "INPUT BFloat16", "COLUMNS 768", "PADDED 768", "BOXES 1", "WIDTH 768", "LINE 1536", "NORM 0", "LATE 0", "OFFSET 0", "EPILOGUE 2", "EDGE 1", "CODES 0", "PAIRS 4", "PICKS 2", "TOP 8", "TOGETHER 1", "BIAS 1", "SPLIT 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_experts_cuda.h"},
	"rows_linear":           {"DTYPE BFloat16", "MMA \"bf16\"", "ROWS 8", "COLUMNS 4096", "TILES 1", "BOXES 8", "SPLIT 1", "EPILOGUE 3", "EDGE 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "rows_linear_cuda.h"},
	"rows_linear split":     {"DTYPE Half", "MMA \"f16\"", "ROWS 32", "COLUMNS 14336", "TILES 2", "BOXES 7", "SPLIT 8", "EPILOGUE 0", "EDGE 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "rows_linear_cuda.h"},
	"token_codes4":          {"DTYPE BFloat16", "INPUT Float", "COLUMNS 2880", "PADDED 2944", "BOXES 1", "WIDTH 2944", "LINE 1568", "NORM 1", "LATE 0", "OFFSET 0", "EPILOGUE 5", "EDGE 1", "CODES 3", "PAIRS 8", "PICKS 1", "TOP 4", "TOGETHER 1", "BIAS 1", "SPLIT 1", "WARPS 12", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_codes4_cuda.h"},
	"token_codes4 add":      {"DTYPE BFloat16", "INPUT BFloat16", "COLUMNS 2880", "PADDED 2944", "BOXES 1", "WIDTH 2944", "LINE 1568", "NORM 0", "LATE 0", "OFFSET 0", "EPILOGUE 2", "EDGE 1", "CODES 3", "PAIRS 8", "PICKS 2", "TOP 4", "TOGETHER 1", "BIAS 1", "SPLIT 2", "WARPS 12", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_codes4_cuda.h"},
	"token_codes4 small":    {"DTYPE BFloat16", "INPUT BFloat16", "COLUMNS 768", "PADDED 768", "BOXES 1", "WIDTH 768", "LINE 416", "NORM 0", "LATE 0", "OFFSET 0", "EPILOGUE 2", "EDGE 1", "CODES 3", "PAIRS 8", "PICKS 2", "TOP 8", "TOGETHER 4", "BIAS 0", "SPLIT 1", "WARPS 12", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_codes4_cuda.h"},
	"token_codes4 int4":     {"DTYPE BFloat16", "INPUT Float", "COLUMNS 4096", "PADDED 4096", "BOXES 1", "WIDTH 4096", "LINE 2320", "NORM 1", "LATE 1", "OFFSET 0", "EPILOGUE 3", "EDGE 1", "CODES 4", "PAIRS 8", "PICKS 0", "TOP 1", "TOGETHER 1", "BIAS 1", "SPLIT 1", "WARPS 11", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_codes4_cuda.h"},
	"token_codes4 int4-128": {"DTYPE BFloat16", "INPUT Float", "COLUMNS 4096", "PADDED 4096", "BOXES 1", "WIDTH 4096", "LINE 2112", "NORM 1", "LATE 1", "OFFSET 0", "EPILOGUE 3", "EDGE 1", "CODES 5", "PAIRS 8", "PICKS 0", "TOP 1", "TOGETHER 1", "BIAS 1", "SPLIT 1", "WARPS 11", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_codes4_cuda.h"},
	"codes4":                {"DTYPE BFloat16", "FORM 3", "codes4.cc"},
	"codes4 int4":           {"DTYPE Float", "FORM 4", "codes4.cc"},
	"codes4 int4-128":       {"DTYPE Half", "FORM 5", "codes4.cc"},
	"token_route":           {"THREADS 256", "COLUMNS 2048", "EXPERTS 128", "TOP 8", "NORM 1", "OFFSET 0", "OF_TOP 1", "OFTEN 0", "CLUSTER 1", "EDGE 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_route_cuda.h"},
	"token_route cluster":   {"THREADS 256", "COLUMNS 2880", "EXPERTS 32", "TOP 4", "NORM 1", "OFFSET 0", "OF_TOP 1", "OFTEN 1", "CLUSTER 8", "EDGE 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_route_cuda.h"},
	"token_linear":          {"DTYPE BFloat16", "INPUT Float", "COLUMNS 2048", "PADDED 2048", "BOXES 2", "WIDTH 1024", "LINE 2048", "NORM 1", "LATE 1", "OFFSET 0", "EPILOGUE 3", "EDGE 1", "CODES 0", "PAIRS 4", "PICKS 0", "TOP 1", "TOGETHER 1", "BIAS 1", "SPLIT 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_direct_cuda.h", "token_ring_cuda.h", "token_boxes_cuda.h"},
	"token_linear codes":    {"DTYPE BFloat16", "INPUT Float", "COLUMNS 2048", "PADDED 2048", "BOXES 2", "WIDTH 1024", "LINE 1024", "NORM 1", "LATE 1", "OFFSET 0", "EPILOGUE 3", "EDGE 1", "CODES 1", "PAIRS 8", "PICKS 0", "TOP 1", "TOGETHER 1", "BIAS 1", "SPLIT 1", "edges.h:kEdgesText", "token_instructions_cuda.h", "token_linear_cuda.h", "token_ring_cuda.h", "token_codes_cuda.h"},
	"window_attention":      {"window_attention.cc:kText", "DTYPE BFloat16", "MMA \"bf16\"", "DEPTH 32", "window_attention.cc"},
}

// cudaStub declares for a C++ compiler what the programs use of CUDA.
const cudaStub = `
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#define __device__
#define __global__
#define __shared__
#define __align__(...)
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __launch_bounds__(...)
#define CT_FUNCTION inline
#define asm(...)
#define volatile
using std::max; using std::min;
struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;
struct uint2 { unsigned x, y; }; struct uint4 { unsigned x, y, z, w; }; struct int2 { int x, y; }; struct int4 { int x, y, z, w; };
struct float2 { float x, y; }; struct float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned, unsigned) { return {}; } inline uint4 make_uint4(unsigned, unsigned, unsigned, unsigned) { return {}; }
inline int4 make_int4(int, int, int, int) { return {}; } inline unsigned __ballot_sync(unsigned, int) { return 0; }
inline float2 make_float2(float, float) { return {}; } inline float4 make_float4(float, float, float, float) { return {}; }
inline float __uint_as_float(unsigned) { return 0; } inline float __int_as_float(int) { return 0; }
inline unsigned __float_as_uint(float) { return 0; } inline int __float_as_int(float) { return 0; }
inline void __syncthreads() {} inline void __syncwarp(unsigned = 0) {} inline void __threadfence() {} inline void __nanosleep(unsigned) {}
inline int __all_sync(unsigned, int v) { return v; } inline int __syncthreads_or(int) { return 0; } inline int __syncthreads_and(int) { return 0; }
template <typename T> T __shfl_xor_sync(unsigned, T v, int, int = 32) { return v; }
inline unsigned __reduce_max_sync(unsigned, unsigned v) { return v; } inline int __reduce_min_sync(unsigned, int v) { return v; }
template <typename T> T __shfl_sync(unsigned, T v, int, int = 32) { return v; }
template <typename T> T __shfl_up_sync(unsigned, T v, unsigned, int = 32) { return v; }
template <typename T> T __shfl_down_sync(unsigned, T v, unsigned, int = 32) { return v; }
template <typename T> T __ldcg(const T* p) { return *p; } template <typename T> T __ldcs(const T* p) { return *p; } template <typename T> T __ldg(const T* p) { return *p; }
template <typename T> void __stcg(T*, T) {} template <typename T> void __stcs(T*, T) {}
template <typename T> T atomicAdd(T* p, T) { return *p; } inline unsigned atomicInc(unsigned*, unsigned) { return 0; }
template <typename T> T atomicMin(T* p, T) { return *p; } template <typename T> T atomicMax(T* p, T) { return *p; } template <typename T> T atomicExch(T* p, T) { return *p; }
inline float __expf(float v) { return v; } inline float rsqrtf(float v) { return v; } inline float ldexpf(float v, int) { return v; } inline float __fdividef(float a, float b) { return a / b; } inline float __frcp_rn(float v) { return v; }
inline float __fmul_rn(float a, float b) { return a * b; } inline float __fadd_rn(float a, float b) { return a + b; } inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; } inline float __fsqrt_rn(float a) { return a; } inline float __fmaf_rn(float a, float b, float c) { return a * b + c; }
inline double __dmul_rn(double a, double b) { return a * b; } inline double __dadd_rn(double a, double b) { return a + b; }
inline int __float2int_rn(float v) { return int(v); } inline int __float2int_rd(float v) { return int(v); } inline int __popc(unsigned) { return 0; } inline long long clock64() { return 0; }
inline std::size_t __cvta_generic_to_shared(const void*) { return 0; } inline float tanhf(float v) { return v; } inline float exp2f(float v) { return v; }
inline int __mulhi(int a, int b) { return a * b; } inline unsigned __umulhi(unsigned a, unsigned b) { return a * b; } inline unsigned __byte_perm(unsigned a, unsigned, unsigned) { return a; }
`

// The texts of each CUDA program fit together: no name has two meanings, and each name is known. A
// machine without CUDA's compiler checks them as C++ here. So a change of a text that many programs
// share does not wait for a GPU to show its faults.
func TestCUDATexts_FitTogether(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip(err)
	}
	const folder = "../../csrc/kernels"
	listed := map[string]bool{}
	for name, parts := range cudaPrograms {
		source := cudaStub + cudaText(t, filepath.Join(folder, "floats.h"))
		for _, part := range parts {
			file, both, _ := strings.Cut(part, ":")
			switch {
			case strings.Contains(part, " "):
				source += "\n#define " + part + "\n"
			case both != "":
				listed[file] = true
				source += namedText(t, filepath.Join(folder, file), both)
			default:
				listed[file] = true
				source += cudaText(t, filepath.Join(folder, file))
			}
		}
		compiler := exec.Command("g++", "-std=c++20", "-fsyntax-only", "-w", "-fpermissive", "-x", "c++", "-")
		compiler.Stdin = strings.NewReader(source)
		if out, err := compiler.CombinedOutput(); err != nil {
			t.Errorf("the CUDA program %s: %v\n%.3000s", name, err, out)
		}
	}
	files, _ := filepath.Glob(folder + "/*")
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(t)
		if name := filepath.Base(file); name != "floats.h" && strings.Contains(string(text), `R"cuda(`) && !listed[name] {
			t.Errorf("%s has a CUDA text that is in no program of cudaPrograms", name)
		}
	}
}

// cudaText returns the CUDA texts of a file, one behind the other.
func cudaText(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	var all string
	for _, m := range regexp.MustCompile(`(?s)R"cuda\((.*?)\)cuda"`).FindAllStringSubmatch(string(text), -1) {
		all += m[1]
	}
	if all == "" {
		t.Fatalf("%s has no CUDA text", path)
	}
	return all
}

// namedText returns the text of the constant or of the CT_ON_BOTH_DEVICES with this name.
func namedText(t *testing.T, path, name string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	for _, form := range []string{`(?s)CT_ON_BOTH_DEVICES\(%s,(.*?)\n\)  // CT_ON_BOTH`, `(?s) %s\[\] = R"cuda\((.*?)\)cuda"`} {
		if m := regexp.MustCompile(fmt.Sprintf(form, name)).FindStringSubmatch(string(text)); m != nil {
			return m[1]
		}
	}
	t.Fatalf("%s has no text %s", path, name)
	return ""
}
