package book

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// pictures decodes pictures, to pixels [N, height, width, 3].
func pictures(x *cgotorch.Exec, transform decode.Transform, height, width int, files ...string) (*cgotorch.Tensor, error) {
	pool, err := decode.NewPool(decode.Options{Transform: transform, NoShrink: true})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	images, results := make([]decode.Image, len(files)), make([]decode.Result, len(files))
	for i, file := range files {
		if images[i].Data, err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	pixels := make([]byte, len(files)*height*width*3)
	if err := pool.Decode(images, pixels, results); err != nil {
		return nil, err
	}
	for i, r := range results {
		if r.Err != nil {
			return nil, fmt.Errorf("%s: %w", files[i], r.Err)
		}
	}
	return cgotorch.FromSlice(x, pixels, int64(len(files)), int64(height), int64(width), 3), nil
}

// openWeights makes a model of package vision, such as "resnet50", with the weights of a file.
func openWeights(x *cgotorch.Exec, name, path string) (nn.Module, error) {
	model, err := vision.New(x, name, vision.Options{})
	if err != nil {
		return nil, err
	}
	if err := checkpoint.LoadModel(x, path, model, nn.LoadOptions{}); err != nil {
		nn.Close(model)
		return nil, err
	}
	nn.SetTraining(model, false)
	return model, nil
}

// classify returns the k most probable classes of each picture.
func classify(x *cgotorch.Exec, model nn.Module, pixels *cgotorch.Tensor, k int) (probabilities [][]float32, classes [][]int64) {
	images := vision.Normalize(x, pixels, vision.ImageNetMean, vision.ImageNetStd)
	p, c := x.TopK(x.Softmax(model.Forward(x, images), 1), k, 1, cgotorch.TopKOptions{})
	return cgotorch.ToRows[float32](x, p), cgotorch.ToRows[int64](x, c)
}

// best returns the most probable class of each picture.
func best(path string, files ...string) (best []int64, err error) {
	err = stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		model, err := openWeights(x, "resnet50", path)
		if err != nil {
			return err
		}
		defer nn.Close(model)
		pixels, err := pictures(x, decode.ResizeCenterCrop{Resize: 232, Height: 224, Width: 224}, 224, 224, files...)
		if err != nil {
			return err
		}
		_, classes := classify(x, model, pixels, 1)
		for _, c := range classes {
			best = append(best, c[0])
		}
		return nil
	})
	return best, err
}

// segment returns the class of each pixel, [N, height, width].
func segment(x *cgotorch.Exec, program *pt2.Program, pixels *cgotorch.Tensor) *cgotorch.Tensor {
	images := vision.Normalize(x, pixels, vision.ImageNetMean, vision.ImageNetStd)
	result := program.Call(x, images).(map[string]any)
	return x.ArgMax(result["out"].(*cgotorch.Tensor), 1, cgotorch.ReduceOptions{})
}

// cut: detect

// A Box is a part of a picture of 320 x 320 pixels that shows an object.
type Box struct {
	Class          int // of COCO; 0 is the background, and no Box has it
	Score          float32
	X0, Y0, X1, Y1 float32
}

func (b Box) area() float32 { return (b.X1 - b.X0) * (b.Y1 - b.Y0) }

// overlap returns the area of both boxes by that of their union.
func (b Box) overlap(o Box) float32 {
	width, height := min(b.X1, o.X1)-max(b.X0, o.X0), min(b.Y1, o.Y1)-max(b.Y0, o.Y0)
	both := max(width, 0) * max(height, 0)
	return both / (b.area() + o.area() - both)
}

// detect returns the boxes of one picture, best first.
func detect(x *cgotorch.Exec, program *pt2.Program, pixels *cgotorch.Tensor, least float32) []Box {
	half := [3]float64{0.5, 0.5, 0.5}
	result := program.Call(x, vision.Normalize(x, pixels, half, half)).([]any)
	scores := cgotorch.ToRows[float32](x, x.Select(result[0].(*cgotorch.Tensor), 0, 0))
	places := cgotorch.ToRows[float32](x, x.Select(result[1].(*cgotorch.Tensor), 0, 0))
	best := func(a, b Box) int { return cmp.Compare(b.Score, a.Score) }
	var all []Box
	for class := 1; class < len(scores[0]); class++ {
		var found, kept []Box
		for i, p := range places {
			if s := scores[i][class]; s > least {
				found = append(found, Box{class, s, p[0], p[1], p[2], p[3]})
			}
		}
		slices.SortStableFunc(found, best)
		for _, b := range found[:min(len(found), 300)] {
			if !slices.ContainsFunc(kept, func(k Box) bool { return k.overlap(b) > 0.55 }) {
				kept = append(kept, b)
			}
		}
		all = append(all, kept...)
	}
	slices.SortStableFunc(all, best)
	return all[:min(len(all), 300)]
}

// end: detect

// embed returns a vector for each text: the mean of its tokens' hidden states.
func embed(x *cgotorch.Exec, program *pt2.Program, texts ...[]int64) [][]float32 {
	length := 0
	for _, ids := range texts {
		length = max(length, len(ids))
	}
	ids, mask := make([]int64, len(texts)*length), make([]int64, len(texts)*length)
	for i, text := range texts {
		for k, id := range text {
			ids[i*length+k], mask[i*length+k] = id, 1 // the rest is padding
		}
	}
	shape := []int64{int64(len(texts)), int64(length)}
	m := cgotorch.FromSlice(x, mask, shape...)
	result := program.Call(x, cgotorch.FromSlice(x, ids, shape...), m).(map[string]any)
	m = x.Unsqueeze(x.To(m, cgotorch.Float32), 2)
	sum := x.SumDim(x.Mul(result["last_hidden_state"].(*cgotorch.Tensor), m), []int64{1}, cgotorch.SumOptions{})
	return cgotorch.ToRows[float32](x, x.Div(sum, x.SumDim(m, []int64{1}, cgotorch.SumOptions{})))
}

// likeness returns the cosine between the embeddings of a picture and of each other one.
func likeness(x *cgotorch.Exec, program *pt2.Program, picture, others *cgotorch.Tensor) []float32 {
	vector := func(pixels *cgotorch.Tensor) *cgotorch.Tensor {
		mean, deviation := [3]float64{0.48145466, 0.4578275, 0.40821073}, [3]float64{0.26862954, 0.26130258, 0.27577711}
		return program.Call(x, vision.Normalize(x, pixels, mean, deviation)).(map[string]any)["image_embeds"].(*cgotorch.Tensor)
	}
	return cgotorch.ToSlice[float32](x, nn.CosineSimilarity(x, vector(picture), vector(others), nn.CosineSimilarityOptions{}))
}

// hear returns the encoder's states [1, 1500, 512]. A second of the sound has 16,000 samples. At
// most 30 seconds are heard.
func hear(x *cgotorch.Exec, program *pt2.Program, sound []float32) *cgotorch.Tensor {
	padded := make([]float32, 30*16000)
	copy(padded, sound)
	return program.Forward(x, cgotorch.FromSlice(x, padded, 1, int64(len(padded))))
}

// cutPython returns the blocks of models.md that follow "<!-- python: NAME -->", by their names.
func cutPython(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("models.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)<!-- python: (\\S+) -->\n```\n(.*?)```\n").FindAllStringSubmatch(string(page), -1) {
		blocks[m[1]] = m[2]
	}
	return blocks
}

// offline puts models with random weights in place of those that Python would download.
var offline = strings.NewReplacer(
	`torchvision.models.swin_t(weights="DEFAULT")`, `scramble(torchvision.models.swin_t())`,
	`torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights="DEFAULT")`, `decided(torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))`,
	`torchvision.models.segmentation.deeplabv3_resnet50(weights="DEFAULT")`, `scramble(torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, aux_loss=True))`,
	`timm.create_model("convnext_tiny.fb_in1k", pretrained=True)`, `scramble(timm.create_model("convnext_tiny"))`,
	`transformers.BertModel.from_pretrained("google-bert/bert-base-uncased")`, `scramble(transformers.BertModel(transformers.BertConfig()))`,
	`transformers.CLIPVisionModelWithProjection.from_pretrained("openai/clip-vit-base-patch32")`, `scramble(transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig()))`,
	`transformers.WhisperModel.from_pretrained("openai/whisper-base")`, `scramble(transformers.WhisperModel(transformers.WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8,
    encoder_ffn_dim=2048, decoder_layers=1, decoder_attention_heads=8, decoder_ffn_dim=2048)))`,
	`WhisperFeatureExtractor.from_pretrained("openai/whisper-base")`, `WhisperFeatureExtractor()`,
)

// The beginning of the Python program of a model, before the page's blocks.
const before = `
import sys, warnings
warnings.filterwarnings("ignore")
import torch, torchvision
from safetensors.torch import save_file
torch.manual_seed(0)
results = {}

def scramble(model):  # no statistics of 0 and 1, and no scales, biases and heads that begin as constants
    for m in model.modules():
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm):
            m.running_mean.normal_(0, 0.1)
            m.running_var.uniform_(0.8, 1.2)
    for name, p in model.named_parameters():
        if p.numel() > 1 and (p == p.flatten()[0]).all():
            p.data.uniform_(0.5, 1.5) if p.dim() == 1 and not name.endswith("bias") else p.data.normal_(0, 0.05)
    return model.eval()

def decided(model):  # a detector whose scores differ: norms with statistics of pictures
    for p in model.head.parameters():
        if p.dim() > 1:
            p.data.normal_(0, 0.3)
    for m in model.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.momentum = 1
    with torch.no_grad():
        model.train().head(list(model.backbone(torch.rand(8, 3, 320, 320) * 2 - 1).values()))
    return model.eval()

def put(**tensors):
    results.update({k: v.detach().contiguous().clone() for k, v in tensors.items()})

def pixels(n, height, width):
    torch.manual_seed(1)
    p = torch.randint(0, 256, (n, height, width, 3), dtype=torch.uint8)
    put(pixels=p)
    return p.permute(0, 3, 1, 2) / 255

def normal(images, mean, std):
    return torchvision.transforms.functional.normalize(images, mean, std)

imagenet = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
`

// What follows the blocks, by model: it runs the model in PyTorch.
var after = map[string]string{
	"resnet50": `
resnet50 = scramble(torchvision.models.resnet50())
classify(resnet50, "resnet50.pth")` + picture + `
with torch.no_grad():
    put(best=resnet50(normal(crop.permute(0, 3, 1, 2) / 255, *imagenet)).argmax(1))`,
	"efficientnet_b0": "classify(scramble(torchvision.models.efficientnet_b0()), 'efficientnet_b0.pth')",
	"vit_b_16":        "classify(scramble(torchvision.models.vit_b_16()), 'vit_b_16.pth')",
	"timm":            "classify(scramble(timm.create_model('resnet50')), 'resnet50.safetensors')",
	"convnext":        "classify(convnext)",
	"swin":            "classify(swin)",
	"deeplab": `
with torch.no_grad():
    out = deeplab(normal(pixels(1, 520, 520), *imagenet))["out"]
    put(logits=out, classes=out.argmax(1))`,
	"ssdlite": `
with torch.no_grad():
    found = ssd([pixels(1, 320, 320)[0]])[0]
    put(boxes=found["boxes"], scores=found["scores"], labels=found["labels"])`,
	"bert": `
with torch.no_grad():
    ids = torch.tensor([[101, 7, 8, 9, 102], [101, 1000, 102, 0, 0]])
    mask = (ids != 0).long()
    hidden = bert(ids, mask).last_hidden_state
    put(logits=hidden, vectors=(hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "go", "##pher", "##s", "run", ",", "!", "2", "##4"]
open("vocab.txt", "w").write("\n".join(words))
texts = ["Gophers run, go!", "24 gopher-runs", "Go  GO s"]
tokenizer = transformers.BertTokenizerFast("vocab.txt")
tokenizer.backend_tokenizer.save("tokenizer.json")
for i, text in enumerate(texts):
    results["text%d" % i] = torch.tensor(tokenizer(text)["input_ids"])`,
	"clip": `
with torch.no_grad():
    e = clip(normal(pixels(3, 224, 224), [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])).image_embeds
    put(logits=e, cosines=torch.nn.functional.cosine_similarity(e[:1], e))`,
	"pictures": picture + "\nput(pixels=crop)",
	"whisper": `
with torch.no_grad():
    sound = torch.sin(torch.arange(50000) * 0.05) * 0.3 + torch.randn(50000) * 0.01
    features = transformers.WhisperFeatureExtractor()(sound.numpy(), sampling_rate=16000, return_tensors="pt").input_features
    put(sound=sound, logits=whisper.encoder(features).last_hidden_state)`,
}

// picture makes a JPEG file, and its pixels after torchvision's transform.
const picture = `
from PIL import Image
from torchvision.transforms.v2 import CenterCrop, Resize
image = Image.fromarray((torch.rand(12, 16, 3) * 255).byte().numpy()).resize((500, 375), Image.BILINEAR)
image.save("cat.jpg", quality=90)
image = CenterCrop(224)(Resize(232)(Image.open("cat.jpg")))
crop = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, 224, 224, 3)`

const classifier = `
def classify(model, path=None):
    images = normal(pixels(2, 224, 224), *imagenet)
    with torch.no_grad():
        logits = model(images)
    probabilities, classes = logits.softmax(1).topk(5)
    put(logits=logits, probabilities=probabilities, classes=classes)
    if path and path.endswith(".safetensors"):
        save_file(model.state_dict(), path)
    elif path:
        torch.save(model.state_dict(), path)
`

// peer runs a model in PyTorch, with random weights. It returns the folder with the model's file
// and the results.
func peer(t *testing.T, name string, blocks ...string) (folder string, results *safetensors.File) {
	t.Helper()
	python := os.Getenv("CGOTORCH_PEER")
	if python == "" {
		t.Skip("CGOTORCH_PEER is not set: it is the path of a Python with torch 2.11, torchvision, timm and transformers")
	}
	folder = t.TempDir()
	program := before + classifier
	for _, needed := range []string{"timm", "transformers"} {
		program += "try:\n    import " + needed + "\nexcept ImportError:\n    pass\n"
	}
	page := cutPython(t)
	for _, b := range blocks {
		if page[b] == "" {
			t.Fatalf("models.md has no Python block %s", b)
		}
		program += offline.Replace(page[b]) + "\n"
	}
	if strings.Contains(program, `="DEFAULT"`) || strings.Contains(program, "pretrained") {
		t.Fatalf("the Python of %s would download weights", name)
	}
	program += after[name] + "\nsave_file(results, 'results.safetensors')\n"
	command := exec.Command(python, "-c", program)
	command.Dir = folder
	command.Env = append(os.Environ(), "HF_HUB_OFFLINE=1")
	if out, err := command.CombinedOutput(); bytes.Contains(out, []byte("No module named")) || bytes.Contains(out, []byte("is not defined")) {
		t.Skipf("the peer lacks a package: %.200s", out[max(0, len(out)-200):])
	} else if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	results, err := safetensors.Open(filepath.Join(folder, "results.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { results.Close() })
	return folder, results
}

// tensorOf returns a tensor of the peer's results.
func tensorOf(t *testing.T, x *cgotorch.Exec, results *safetensors.File, name string) *cgotorch.Tensor {
	t.Helper()
	info, ok := results.Lookup(name)
	data, err := results.Read(name)
	dtype, known := checkpoint.DType(info.DType)
	if err != nil || !ok || !known {
		t.Fatalf("no result %s: %v", name, err)
	}
	return cgotorch.FromBytes(x, data, dtype, info.Shape)
}

// near logs the largest difference, and fails the test if it is above 2e-5 of the largest value.
func near(t *testing.T, x *cgotorch.Exec, what string, got, want *cgotorch.Tensor) {
	t.Helper()
	if fmt.Sprint(got.Shape()) != fmt.Sprint(want.Shape()) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	d := x.Item(x.Max(x.Abs(x.Sub(got, want)))) / x.Item(x.Max(x.Abs(want)))
	t.Logf("%s: %s %v differs by %.2g of the largest", t.Name(), what, got.Shape(), d)
	if !(d <= 2e-5) {
		t.Errorf("%s differs by %g of the largest", what, d)
	}
}

// equal fails the test unless the elements are equal.
func equal[T cgotorch.Element](t *testing.T, x *cgotorch.Exec, what string, got []T, want *cgotorch.Tensor) {
	t.Helper()
	if w := cgotorch.ToSlice[T](x, want); !slices.Equal(got, w) {
		t.Errorf("%s: %.200v, want %.200v", what, got, w)
	}
}

func inference(t *testing.T, work func(x *cgotorch.Exec)) {
	t.Helper()
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) { work(x.NoGrad()) })
}

func program(t *testing.T, x *cgotorch.Exec, folder, name string) *pt2.Program {
	t.Helper()
	p, err := pt2.Load(x, filepath.Join(folder, name), pt2.Options{})
	if err != nil {
		t.Fatal(err)
	}
	x.AtEnd(func() { p.Close() })
	return p
}

// Each model of models.md gives PyTorch's numbers, after the page's Python and Go.
func TestModels(t *testing.T) {
	if testing.Short() {
		t.Skip("exports ten models, which takes minutes")
	}
	classified := func(t *testing.T, open func(x *cgotorch.Exec, folder string) nn.Module, name string, blocks ...string) (folder string, results *safetensors.File) {
		torchtest.CheckLeaks(t)
		folder, results = peer(t, name, blocks...)
		inference(t, func(x *cgotorch.Exec) {
			model := open(x, folder)
			pixels := tensorOf(t, x, results, "pixels")
			images := vision.Normalize(x, pixels, vision.ImageNetMean, vision.ImageNetStd)
			near(t, x, "logits", model.Forward(x, images), tensorOf(t, x, results, "logits"))
			p, classes := classify(x, model, pixels, 5)
			near(t, x, "probabilities", cgotorch.FromRows(x, p), tensorOf(t, x, results, "probabilities"))
			equal(t, x, "classes", slices.Concat(classes...), tensorOf(t, x, results, "classes"))
		})
		return folder, results
	}
	t.Run("pictures", func(t *testing.T) {
		folder, results := peer(t, "pictures")
		inference(t, func(x *cgotorch.Exec) {
			pixels, err := pictures(x, decode.ResizeCenterCrop{Resize: 232, Height: 224, Width: 224}, 224, 224, filepath.Join(folder, "cat.jpg"))
			if err != nil {
				t.Fatal(err)
			}
			equal(t, x, "pixels", cgotorch.ToSlice[uint8](x, pixels), tensorOf(t, x, results, "pixels"))
		})
	})
	for name, file := range map[string]string{"resnet50": "resnet50.pth", "efficientnet_b0": "efficientnet_b0.pth", "vit_b_16": "vit_b_16.pth", "timm": "resnet50.safetensors"} {
		t.Run(name, func(t *testing.T) {
			folder, results := classified(t, func(x *cgotorch.Exec, folder string) nn.Module {
				model, err := openWeights(x, strings.Replace(name, "timm", "resnet50", 1), filepath.Join(folder, file))
				if err != nil {
					t.Fatal(err)
				}
				x.AtEnd(func() { nn.Close(model) })
				return model
			}, name)
			if name == "resnet50" {
				got, err := best(filepath.Join(folder, file), filepath.Join(folder, "cat.jpg"))
				inference(t, func(x *cgotorch.Exec) { equal(t, x, fmt.Sprint("best, ", err), got, tensorOf(t, x, results, "best")) })
			}
		})
	}
	for _, name := range []string{"convnext", "swin"} {
		t.Run(name, func(t *testing.T) {
			classified(t, func(x *cgotorch.Exec, folder string) nn.Module { return program(t, x, folder, name+".pt2") }, name, "save", name)
		})
	}
	t.Run("deeplab", func(t *testing.T) {
		torchtest.CheckLeaks(t)
		folder, results := peer(t, "deeplab", "save", "deeplab")
		inference(t, func(x *cgotorch.Exec) {
			p, pixels := program(t, x, folder, "deeplab.pt2"), tensorOf(t, x, results, "pixels")
			out := p.Call(x, vision.Normalize(x, pixels, vision.ImageNetMean, vision.ImageNetStd)).(map[string]any)["out"].(*cgotorch.Tensor)
			near(t, x, "logits", out, tensorOf(t, x, results, "logits"))
			same := x.Item(x.Mean(x.To(x.Eq(segment(x, p, pixels), tensorOf(t, x, results, "classes")), cgotorch.Float32)))
			t.Logf("%.5f of the pixels have the same class", same)
			if same < 0.999 { // two logits may be equal but for rounding
				t.Errorf("%.5f of the pixels have the same class", same)
			}
		})
	})
	t.Run("ssdlite", func(t *testing.T) {
		torchtest.CheckLeaks(t)
		folder, results := peer(t, "ssdlite", "save", "ssdlite")
		inference(t, func(x *cgotorch.Exec) {
			var labels []int64
			var scores, places []float32
			for _, b := range detect(x, program(t, x, folder, "ssdlite.pt2"), tensorOf(t, x, results, "pixels"), 0.001) {
				labels, scores, places = append(labels, int64(b.Class)), append(scores, b.Score), append(places, b.X0, b.Y0, b.X1, b.Y1)
			}
			equal(t, x, "labels", labels, tensorOf(t, x, results, "labels"))
			near(t, x, "scores", cgotorch.FromSlice(x, scores), tensorOf(t, x, results, "scores"))
			near(t, x, "boxes", cgotorch.FromSlice(x, places, int64(len(labels)), 4), tensorOf(t, x, results, "boxes"))
		})
	})
	t.Run("bert", func(t *testing.T) {
		torchtest.CheckLeaks(t)
		folder, results := peer(t, "bert", "save", "bert")
		tokens, err := tokenizer.Open(folder)
		if err != nil {
			t.Fatal(err)
		}
		inference(t, func(x *cgotorch.Exec) {
			for i, text := range []string{"Gophers run, go!", "24 gopher-runs", "Go  GO s"} {
				equal(t, x, text, tokens.Encode(text), tensorOf(t, x, results, fmt.Sprint("text", i)))
			}
			p := program(t, x, folder, "bert.pt2")
			got := embed(x, p, []int64{101, 7, 8, 9, 102}, []int64{101, 1000, 102})
			near(t, x, "vectors", cgotorch.FromRows(x, got), tensorOf(t, x, results, "vectors"))
		})
	})
	t.Run("clip", func(t *testing.T) {
		torchtest.CheckLeaks(t)
		folder, results := peer(t, "clip", "save", "clip")
		inference(t, func(x *cgotorch.Exec) {
			pixels := tensorOf(t, x, results, "pixels")
			got := likeness(x, program(t, x, folder, "clip.pt2"), x.Narrow(pixels, 0, 0, 1), pixels)
			near(t, x, "cosines", cgotorch.FromSlice(x, got), tensorOf(t, x, results, "cosines"))
		})
	})
	t.Run("whisper", func(t *testing.T) {
		torchtest.CheckLeaks(t)
		folder, results := peer(t, "whisper", "save", "whisper")
		inference(t, func(x *cgotorch.Exec) {
			sound := cgotorch.ToSlice[float32](x, tensorOf(t, x, results, "sound"))
			near(t, x, "states", hear(x, program(t, x, folder, "whisper.pt2"), sound), tensorOf(t, x, results, "logits"))
		})
	})
}
