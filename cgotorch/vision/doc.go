// Package vision has models that classify images. Their parameter names, shapes and initial
// weights are those of torchvision, so state dicts can be exchanged with PyTorch.
//
// Every model maps images [N, Channels, H, W] to logits [N, Classes]. The images are float32 or
// another floating dtype, channels last or not. [nn.Close] frees a model.
package vision
