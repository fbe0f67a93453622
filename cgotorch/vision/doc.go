// Package vision has image classifiers with torchvision's parameter names, shapes and initial
// weights, so that state dicts can be exchanged with PyTorch.
//
// Every model maps images [N, Channels, H, W] to logits [N, Classes]. The images are float32 or
// another floating dtype, channels last or not. [nn.Close] frees a model.
package vision
