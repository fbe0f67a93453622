// Package vision has image classifiers with torchvision's parameter names, shapes and initial weights, so that state dicts can
// be exchanged with PyTorch.
//
// Every model maps images [N, Channels, H, W], float32 or another floating dtype, channels last or not, to logits
// [N, Classes]. A model is freed by [nn.Close].
package vision
