// Package pt2 runs models that torch.export.save has written, on any device and any stream.
//
// A file with the ending .pt2 holds the operators of a model as a list of nodes, and its weights.
// [Load] reads both. [Program.Forward] then runs the nodes one by one, with LibTorch's operators,
// so that a Program can be trained, captured, and watched by the stream checker.
//
//	program, err := pt2.Load(x, "resnet50.pt2", pt2.Options{})
//	logits := program.Forward(x, images)
//
// In Python, this writes the file:
//
//	batch = torch.export.Dim("batch")
//	exported = torch.export.export(model.eval(), (images,), dynamic_shapes=({0: batch},))
//	torch.export.save(exported, "resnet50.pt2")
//
// A program may have operators that are not LibTorch's own, such as torchvision::nms. Open their
// library with [cgotorch.OpenOperators] before Load.
//
// Source: torch.export, schema version 8.
package pt2
