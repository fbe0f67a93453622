// Package aoti runs models that AOTInductor has compiled, on the stream of an Exec.
//
// AOTInductor is PyTorch's compiler for inference. It turns an exported program into a shared
// library for one kind of processor or GPU. [Load] opens such a library, and [Package.Forward]
// calls it. A compiled package is a program. Load only what you would also run as a command.
//
//	model, err := aoti.Load(x, "resnet50.pt2", aoti.Options{})
//	logits := model.Forward(x, images)[0]
//
// In Python, this writes the file:
//
//	batch = torch.export.Dim("batch", min=1, max=64)
//	exported = torch.export.export(model.eval(), (images,), dynamic_shapes=({0: batch},))
//	torch._inductor.aoti_compile_and_package(
//	    exported, package_path="resnet50.pt2",
//	    inductor_configs={"aot_inductor.metadata": {"torch_version": torch.__version__}})
//
// The metadata is a help: without it, a package does not tell which PyTorch compiled it.
//
// Package pt2 runs the files of torch.export.save. These run on any machine, and can be trained.
package aoti
